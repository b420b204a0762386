"""What real runs were told of the time left: their calls of `Pace`, recorded by processor time, played again.

`record_pace.py` made the logs with one worker, all but quickstart's on a shared core: even a process's own time for
the same federation differs by 40 % in them (caches). Quickstart's was made on a quiet machine once all rules stood, so
no rule was fitted to it. Nothing here is timed.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from record_pace import Said, read, said

PACES = Path(__file__).parent / "paces"
NOT_HELD = ("clinics", "exposed", "quickstart-busy")
"""A board's study of DICOM files, one with a search that is not foreseen, and quickstart on a core whose load changes:
what they are told is stated below. Shadows and participation were recorded before attacks gave samples."""
LOGS = sorted(path for path in PACES.glob("*.jsonl") if path.stem not in NOT_HELD)


@cache
def told_in(study: str) -> dict[float, Said]:
    return said(read(PACES / f"{study}.jsonl"))


def test_there_are_shadows_searches_and_worlds():
    counted = {call[3][0] for path in LOGS for call in read(path) if call[1] == "did"}
    assert counted == {"train", "worlds", "search"}
    asked = {call[3][2] for path in LOGS for call in read(path) if call[1] == "plan" and call[3][0] == "meet"}
    assert {"membership-inference", "client-inference", "gradient-inversion", "audit"} <= asked


@pytest.mark.parametrize("study", ["quickstart", "shadows", "clinics"])
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


def test_audits_are_foreseen_from_samples_though_none_was_met():
    """303 of the 491 s that were left at a tenth: that of the mechanism had met nothing, that in the run neither.

    How wide samples' bounds are was chosen by this log, so it is no proof of them. It was made when an in-run audit
    still told of a round before it had looked at it: the first seemed short, and from seven tenths on too
    little is said.
    """
    told = told_in("clinics")
    assert told[0.1].truth == pytest.approx(491, abs=1)
    assert told[0.1].error == pytest.approx(-0.07, abs=0.01)
    assert all(abs(told[share].error) < 0.2 for share in (0.2, 0.3, 0.4, 0.5, 0.6))


def test_quickstart_on_a_core_whose_load_changes_is_told_too_much():
    """A known fault, with its size: 28 % too much at a tenth, 35 % at four tenths, where one figure claims 30.

    232 s where a quiet core takes 147: by the rules before samples it is 24 % and 26 %. The audits' samples say 11 s of
    one that took 6.
    """
    told = told_in("quickstart-busy")
    assert [told[share].error for share in (0.1, 0.4)] == pytest.approx([0.28, 0.35], abs=0.01)


def test_a_search_through_clipped_examples_is_not_foreseen():
    """A known fault, with its size: 51 s were left at a half, and about 13 s were said.

    A search of 30 images under dp-sgd took 39 s, where 6 were the most that was counted: an evaluation there takes 15
    times as long as one without clipping, since its images share nothing, and labels were tried in five ways.
    """
    told = told_in("exposed")
    assert told[0.5].truth == pytest.approx(51, abs=1)
    assert told[0.5].error == pytest.approx(-0.75, abs=0.01)


def test_where_searches_are_nearly_all_no_figure_is_said():
    """How long a search goes on under another defence shows when it does: until then, the most."""
    told = told_in("searches")
    assert told[0.1].left is None
    assert [told[share].left[0] for share in (0.2, 0.5, 0.8)] == [0, 0, 0]
