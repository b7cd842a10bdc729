"""Pictures of who holds what: every line of the text, and the geometry of the SVG file."""

from xml.etree import ElementTree

import dtensor_suite as suite
import numpy as np
import pytest
from move_suite import INV, S0, S1, P, R

from hpcdist.comm import DeviceMesh, DryCommunicator, init_device_mesh
from hpcdist.comm.local import run
from hpcdist.dtensor import Shard, distribute_tensor, visualize_sharding

SVG = "{http://www.w3.org/2000/svg}"


def lines(capsys, shape, placements, mesh_shape=(2, 2), order=None, **options):
    """Return what the first of ranks that need not exist prints."""
    mesh = init_device_mesh(mesh_shape, ("dp", "tp")[-len(mesh_shape) :], DryCommunicator(int(np.prod(mesh_shape))))
    x = distribute_tensor(np.zeros(shape), mesh, placements, src_data_rank=None, order=order)
    with suite.silent():
        visualize_sharding(x, **options)
    return capsys.readouterr().out.splitlines()


def test_rows_and_columns_uneven(capsys):
    assert lines(capsys, (5, 3), [S0, S1], header="a weight") == [
        "a weight",
        "(5, 3) dp: Shard(0), tp: Shard(1)",
        "          columns 0-1  column 2",
        "rows 0-2  rank 0       rank 1",
        "rows 3-4  rank 2       rank 3",
    ]


def test_copies_and_ranks_with_nothing(capsys):
    assert lines(capsys, (1, 3), [S0, R]) == [
        "(1, 3) dp: Shard(0), tp: Replicate()",
        "       columns 0-2",
        "row 0  ranks 0, 1",
        "ranks 2, 3: nothing",
    ]
    assert lines(capsys, (2, 2), [INV, INV])[-1] == "rows 0-1  ranks 0-3"


def test_one_dimension_and_order(capsys):
    assert lines(capsys, 5, [S0, S0], order=(1, 0))[1:] == [
        "  elements 0-1  element 2  element 3  element 4",
        "  rank 0        rank 2     rank 1     rank 3",
    ]


def test_sums_and_sections(capsys):
    assert lines(capsys, (2, 2), [P, S1])[:2] == ["(2, 2) dp: Partial(op='sum'), tp: Shard(1)", "not reduced over dp"]
    assert lines(capsys, 8, [Shard(0, sections=(4, 4))], (2,))[1:] == [
        "  elements 0-1  elements 2-3  elements 4-5  elements 6-7",
        "  rank 0        rank 1        rank 0        rank 1",
    ]


def test_an_array_without_elements(capsys):
    assert lines(capsys, (0, 3), [S0], (2,))[-1] == "ranks 0, 1: nothing"


def test_the_first_rank_of_the_mesh_prints(capsys):
    """Ranks are named as in the communicator; the others communicate and print nothing."""

    def main(comm):
        mesh = DeviceMesh([[3, 1]], ("dp", "tp"), comm)
        if mesh.get_coordinate() is not None:
            x = distribute_tensor(np.zeros(2), mesh, [INV, S0])
            with suite.silent():
                visualize_sharding(x)

    run(4, main)
    assert capsys.readouterr().out.splitlines()[1:] == ["  element 0  element 1", "  rank 3     rank 1"]


def test_svg_is_in_proportion(capsys, tmp_path):
    path = tmp_path / "weight.svg"
    lines(capsys, (4, 5), [S0, S1], header="q & k", path=path)
    root = ElementTree.parse(path).getroot()
    background, *rectangles = root.iter(f"{SVG}rect")
    cells = [{k: float(r.get(k)) for k in ("x", "y", "width", "height")} for r in rectangles]
    texts = [t.text for t in root.iter(f"{SVG}text")]
    assert {t for t in texts if t.startswith("rank")} == {"rank 0", "rank 1", "rank 2", "rank 3"}
    assert {"q & k", "columns 0-2", "columns 3-4", "rows 0-1", "rows 2-3"} <= set(texts)
    assert len({r.get("fill") for r in (background, *rectangles)}) == 5
    wide, narrow = cells[:2]
    assert wide["width"] / narrow["width"] == pytest.approx(3 / 2, rel=1e-3)
    assert wide["height"] == narrow["height"] == cells[2]["height"]
    for cell in cells:
        assert 0 <= cell["x"] <= float(root.get("width")) - cell["width"]
        assert 0 <= cell["y"] <= float(root.get("height")) - cell["height"]


def test_svg_of_what_nobody_holds(capsys, tmp_path):
    path = tmp_path / "empty.svg"
    lines(capsys, (0, 3), [S0], (2,), path=path)
    assert "ranks 0, 1: nothing" in [t.text for t in ElementTree.parse(path).getroot().iter(f"{SVG}text")]


def test_in_colour(capsys):
    pytest.importorskip("rich")
    text = "\n".join(lines(capsys, (4, 4), [S0, R], use_rich=True, header="[x] a weight"))
    assert "[x] a weight" in text
    for told in ("rows 0-1", "rows 2-3", "columns 0-3", "ranks 0, 1", "ranks 2, 3"):
        assert told in text


def test_what_cannot_be_drawn_is_refused(capsys, tmp_path, monkeypatch):
    for shape, placements in (((), [INV, INV]), ((2, 2, 2), [S0, S1])):
        with pytest.raises(ValueError, match="1 or 2 dimensions"):
            lines(capsys, shape, placements)
    with pytest.raises(ValueError, match=r"ends in \.svg"):
        lines(capsys, 3, [S0, R], path=tmp_path / "x.png")
    monkeypatch.setattr("hpcdist.dtensor.picture.find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match="rich"):
        lines(capsys, 3, [S0, R], use_rich=True)
