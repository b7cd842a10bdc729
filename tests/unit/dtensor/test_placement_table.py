"""Every operation at every placement of its inputs, on 1 to 4 ranks: the whole answer, or the one refusal."""

import re
from pathlib import Path

import placement_table
import pytest
from placement_cases import drawn
from placement_table import NAMED, RAISES, SIZES, refused

from hpcdist.autograd import OPS

OPERATIONS = sorted({case.split(".")[0] for case in NAMED})
README = Path(__file__).parents[3] / "README.md"
WRITE = "if this is wanted: python tests/placement_table.py --write"


@pytest.fixture(scope="module")
def golden():
    return placement_table.golden()


@pytest.mark.parametrize("name", OPERATIONS)
def test_answers_are_whole_or_refused(name, golden):
    """No wrong number, no other error; nothing is refused, and no collective made, beyond what the table says."""
    for case in (case for case in NAMED if case.split(".")[0] == name):
        for placements, row in placement_table.rows(case).items():
            here = f"{case} {placements}"
            assert not row.problem, f"{here}: {row.problem}"
            assert placements in golden.get(case, {}), f"{here}: not in the table; {WRITE}"
            before = golden[case][placements]
            new = [size for size in SIZES if refused(row.outcome, size) and not refused(before, size)]
            assert not new, f"{here}: raises now on {new} ranks; {WRITE}"
            more = placement_table.total(row.outcome) - placement_table.total(before)
            assert before.startswith(RAISES) or more <= 0, f"{here}: {row.outcome}, before {before}; {WRITE}"


@pytest.mark.parametrize("name", OPERATIONS)
def test_two_axes(name):
    """Placements drawn at random on two axes: the whole answer, at once or after the calls that the refusal names."""
    for case in (case for case in NAMED if case.split(".")[0] == name):
        tried = drawn(case, 2, 4)
        for placements, measured in zip(tried, placement_table.on_ranks((2, 2), case, tried), strict=True):
            outcome = placement_table.judged(case, (2, 2), measured)
            assert not outcome.startswith("!"), f"{case} {placements}: {outcome}"


def test_the_table_has_no_case_too_many(golden):
    assert golden.keys() == NAMED.keys()


@pytest.mark.parametrize("what", ["gradient", "held"])
def test_wrong_numbers_would_be_seen(monkeypatch, what):
    """The referee is not blind: gradients, or these and values, of one rank in four are off by a little."""
    right = getattr(placement_table, what)

    def wrong(*args):
        found = right(*args)
        return found._replace(data=found.data * (1 + 1e-6 * (found.coordinate == (3,))))

    monkeypatch.setattr(placement_table, what, wrong)
    assert placement_table.rows("exp.0")["P"].problem.startswith("! 4 ranks:")


def test_what_raises_is_in_the_readme(golden):
    refusing = {case.split(".")[0] for case, found in golden.items() for x in found.values() if x.startswith(RAISES)}
    section = README.read_text(encoding="utf-8").split("## What a distributed tensor refuses")[1].split("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", section)) & set(OPS) == refusing
    assert len(section.splitlines()) < 25
