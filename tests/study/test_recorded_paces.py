"""What real runs were told of the time left: their calls of `Pace`, recorded by processor time, played again.

`record_pace.py` made the logs with one worker, on a shared core: even a process's own time for the same
federation differs by 40 % in them (caches). Nothing here is timed.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from record_pace import Said, read, said

PACES = Path(__file__).parent / "paces"
MISSED = "clinics"
"""A board's study of DICOM files, recorded after the bounds were set: the one that is not foreseen."""
LOGS = sorted(path for path in PACES.glob("*.jsonl") if path.stem != MISSED)


@cache
def told_in(study: str) -> dict[float, Said]:
    return said(read(PACES / f"{study}.jsonl"))


def test_there_are_shadows_searches_and_worlds():
    counted = {call[3][0] for path in LOGS for call in read(path) if call[1] == "did"}
    assert counted == {"train", "worlds", "search"}
    asked = {call[3][2] for path in LOGS for call in read(path) if call[1] == "plan" and call[3][0] == "meet"}
    assert {"membership-inference", "client-inference", "gradient-inversion", "audit"} <= asked


@pytest.mark.parametrize("study", ["quickstart", "shadows"])
def test_a_tenth_of_the_run_is_enough_for_30_percent(study):
    """One figure is said, and it is as near as it claims to be."""
    told = told_in(study)[0.1]
    assert told.error is not None
    assert abs(told.error) < 0.3, told


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_one_figure_is_within_30_percent_and_a_range_holds_the_truth(path):
    for told in told_in(path.stem).values():
        assert told.held if told.error is None else abs(told.error) < 0.3, told


def test_a_run_that_was_recorded_after_the_bounds_were_set_is_told_a_figure_from_a_fifth_on():
    """Its first tenth, 2.6 s, goes into starting and trial rounds."""
    told = list(told_in("participation").values())
    assert [one.about is not None for one in told] == [False, *[True] * 7, False]
    assert told[0].left is None


def test_audits_under_a_defence_are_not_foreseen():
    """A known fault, with its size: 484 s were left at a tenth, and about 156 s were said.

    Audits took 309 s of them. That of the mechanism had met a cell that promises nothing, for no time at all; that in
    the run had not been met, and its rounds, with canaries in them, are not those that training has.
    """
    told = told_in(MISSED)[0.1]
    assert told.truth == pytest.approx(484, abs=1)
    assert told.error == pytest.approx(-0.68, abs=0.01)


def test_where_searches_are_nearly_all_no_figure_is_said():
    """How long a search goes on under another defence shows when it does: until then, the most."""
    told = told_in("searches")
    assert told[0.1].left is None
    assert [told[share].left[0] for share in (0.2, 0.5, 0.8)] == [0, 0, 0]
