"""The whole parameters of a sharded unit: on their way, there, shared out among neighbours, or gone."""

from __future__ import annotations

from hpcdist.array import Array
from hpcdist.comm import Work
from hpcdist.parallel.collection import Bundles

__all__ = ["Gathered"]


class Gathered:
    """What has been gathered.

    Attributes
    ----------
    bundles : Bundles
    arrays : list of array, optional
        Whole parameters, in the order of the unit; None: they are not there.
    """

    def __init__(self, bundles: Bundles) -> None:
        self.bundles = bundles
        self.arrays: list[Array] | None = None
        self._coming: list[Work[list[Array]]] | None = None

    def get(self) -> list[Array]:
        """Return whole parameters. Collective over the shard axis, unless they are there already."""
        if self.arrays is None:
            coming, self._coming = self._coming, None
            found: dict[int, Array] = {}
            for i, (bundle, places) in enumerate(self.bundles):
                arrays = bundle.gather() if coming is None else coming[i].wait()
                found.update(zip(places, arrays, strict=True))
            self.arrays = [found[i] for i in range(len(found))]
        return self.arrays

    def post(self) -> None:
        """Post the gathering. Collective over the shard axis, unless it has been done."""
        if self.arrays is None and self._coming is None:
            self._coming = [bundle.igather() for bundle, _ in self.bundles]

    def let_go(self) -> None:
        """Forget whole parameters; wait for those that are on their way. Collective over the shard axis then."""
        for work in self._coming or ():
            work.wait()
        self.arrays = self._coming = None
        for bundle, _ in self.bundles:
            bundle.drop()

    def share_out(self) -> None:
        """Forget whole parameters, and keep this rank's part of what neighbours have together."""
        whole = self.get()
        for bundle, places in self.bundles:
            bundle.keep([whole[i] for i in places])
        self.arrays = None
