"""A sample of the table of operations and placements over MPI; thread ranks have all of it."""

import placement_table
import pytest
from placement_cases import sample, short
from placement_table import RAISES

from hpcdist.comm import init_device_mesh

RANKS = (2, 3)
SAMPLE = sample(150)


@pytest.mark.parametrize("part", range(5))
def test_sample(world, part):
    mesh, golden = init_device_mesh((world.size,), ("tp",), world), placement_table.golden()
    for case, placements in SAMPLE[part::5]:
        ranks = world.all_gather_object(placement_table.measure(mesh, case, placements))
        outcome = placement_table.judge(case, ranks)
        expected = golden[case][short(placements)]
        raises = placement_table.refused(expected, world.size)
        assert (outcome == RAISES) == raises, f"{case} {placements}: {outcome}, not {expected}"
