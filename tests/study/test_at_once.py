"""Several cells at once, or a part of them: the bytes of one process, whatever dies on the way."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import tiny
from leakline.attacks import MENU, LossThreshold
from leakline.defences import GlobalDP
from leakline.errors import StudyError
from leakline.federation import Federation
from leakline.study.cells import Cell, Study, grid
from leakline.study.pace import Kind, Pace, Standing
from leakline.study.parts import Part
from leakline.study.run import check_parts, run_study
from leakline.study.store import Store
from menu_examples import ATTACKS as SETTINGS
from menu_examples import world

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked")
TIMES = ("log.jsonl",)


def content(root: Path) -> dict[str, bytes]:
    """Every byte of the store, but for times and locks."""
    paths = [p for p in root.rglob("*") if p.is_file() and not p.name.startswith(".") and p.name not in TIMES]
    return {str(p.relative_to(root)): p.read_bytes() for p in paths}


def study(seeds: int = 2) -> Study:
    """Cells that differ in their defence and seed, two that are one run, and one whose attack trains worlds."""
    cells = grid(tiny.federation(rounds=3), defences={"none": (), "dp": (GlobalDP(1.0, 0.5),)}, seed=range(seeds))
    twin = replace(cells[0], labels={**cells[0].labels, "defence": "twin"}, attacks={"loss": LossThreshold(10)})
    name = "client-inference"
    federation = world(name).but(noise="seeded")
    worlds = Cell(
        {"strategy": "given", "defence": "worlds", "seed": 0}, lambda: federation, {name: MENU[name](**SETTINGS[name])}
    )
    return Study("several", (*cells, twin, worlds), attacks={"loss": LossThreshold(20)})


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    assert [outcome.error for outcome in run_study(study(), root, workers=1)] == [""] * 6
    return root


@linux
@pytest.mark.parametrize("workers", [0, 2])
def test_cells_at_once_leave_the_bytes_of_one_process(workers, whole, tmp_path):
    said: list[Standing] = []
    outcomes = list(run_study(study(), tmp_path, workers=workers, at_once=2, watch=said.append))
    assert sorted(outcome.cell.name for outcome in outcomes) == sorted(cell.name for cell in study().cells)
    assert [outcome.error for outcome in outcomes] == [""] * 6
    assert {outcome.of for outcome in outcomes} == {6}
    assert sum(outcome.trained for outcome in outcomes) == 5  # one of the twins was there
    assert content(tmp_path) == content(whole)
    assert any("of 6 cells done" in standing.line() for standing in said)
    assert [outcome.trained for outcome in run_study(study(), tmp_path, at_once=2)] == [False] * 6


@linux
def test_failures_are_told_and_written_down_as_by_one_process(tmp_path):
    def fails() -> Federation:
        if os.getpid() != here:  # in the check all is well
            raise StudyError("the sky fell", "cell", "hold it up")
        return tiny.federation(seed=7)

    here = os.getpid()
    broken = Cell({"strategy": "given", "defence": "broken", "seed": 7}, fails)
    asked = replace(study(1), cells=(broken, *study(1).cells[:2]))
    outcomes = {outcome.cell.name: outcome for outcome in run_study(asked, tmp_path, at_once=2)}
    assert "the sky fell" in outcomes[broken.name].error
    assert [bool(outcome.error) for outcome in outcomes.values()].count(True) == 1
    assert "the sky fell" in Store(tmp_path).grid()["cells"][0]["error"]


@linux
def test_a_process_that_dies_once_costs_nothing_and_twice_its_cell_alone(whole, tmp_path):
    here, sign = os.getpid(), tmp_path / "died"

    def dying(cell: Cell, times: int) -> Cell:
        def federation() -> Federation:
            if os.getpid() != here and len(list(tmp_path.glob("died-*"))) < times:
                (tmp_path / f"died-{os.getpid()}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return cell.federation()

        return replace(cell, federation=federation)

    asked = study()
    once = replace(asked, cells=(dying(asked.cells[0], 1), *asked.cells[1:]))
    assert [outcome.error for outcome in run_study(once, tmp_path / "once", at_once=2)] == [""] * 6
    assert content(tmp_path / "once") == content(whole)
    for sign in tmp_path.glob("died-*"):
        sign.unlink()
    always = replace(asked, cells=(dying(asked.cells[1], 9), *asked.cells[2:4]))
    outcomes = {outcome.cell.name: outcome.error for outcome in run_study(always, tmp_path / "always", at_once=2)}
    assert sum(map(bool, outcomes.values())) == 1
    assert "its process died 2 times (exit code -9; out of memory?)" in outcomes[asked.cells[1].name]


@linux
def test_several_at_once_are_for_the_processor(tmp_path):
    devices = iter(["cpu", "meta"])  # no GPU is needed to be asked about one
    elsewhere = Cell({"seed": 0}, lambda: tiny.federation(device=next(devices)))
    with pytest.raises(StudyError, match="trained on the CPU"):
        list(run_study(Study("elsewhere", (elsewhere,)), tmp_path, at_once=2))


def test_parts_deal_all_runs_out_once_and_keep_what_is_one_run_together():
    keys = check_parts(study())
    assert len(set(keys)) == 5
    for of in range(1, 9):
        shares = [Part(number, of).cells(keys) for number in range(1, of + 1)]
        assert sorted(number for share in shares for number in share) == list(range(6))
        assert sum(len({keys[number] for number in share}) for share in shares) == 5
        sizes = [len({keys[number] for number in share}) for share in shares]
        assert max(sizes) - min(sizes) <= 1


def test_parts_one_after_another_leave_the_bytes_of_one_process(whole, tmp_path):
    done = []
    for number in (3, 1, 4, 2):
        outcomes = list(run_study(study(), tmp_path, workers=1, part=Part(number, 4)))
        done += [outcome.cell.name for outcome in outcomes]
        assert {outcome.of for outcome in outcomes} == {len(outcomes)}
        assert len(Store(tmp_path).grid()["cells"]) == 6
    assert sorted(done) == sorted(cell.name for cell in study().cells)
    assert content(tmp_path) == content(whole)
    assert list(run_study(study(), tmp_path, part=Part(6, 6))) == []


@pytest.mark.parametrize("text", ["0/4", "5/4", "1/0", "x/4", "3", "-1/4", "1/4/2", "1 / 4", "1/9999999", "٣/٤"])
def test_a_part_that_there_is_not_is_one_line(text):
    with pytest.raises(StudyError, match="part") as error:
        Part.read(text)
    assert "\n" not in error.value.what
    assert Part.read("3/16") == Part(3, 16)
    assert Part.read("") == Part(1, 1)


def test_what_others_tell_of_their_cells_adds_up_and_is_shared_by_those_at_work():
    now, kind = [0.0], Kind("train", "here")
    ours = Pace(lambda standing: None, lambda: now[0])
    ours.at_once = 2
    theirs = {cell: Pace(lambda standing: None, lambda: now[0]) for cell in "ab"}
    for cell in "abcd":
        ours.plan(cell, kind, 10.0)
    for cell, pace in theirs.items():
        pace.expect(cell, ours.of_cell(cell))
    for _ in range(5):  # both at once: a round takes two seconds
        now[0] += 2.0
        for cell, pace in theirs.items():
            pace.did(cell, kind, 1.0)
            ours.hear(cell, pace.of_cell(cell), cell)
            ours.hear(cell, pace.of_cell(cell), cell)  # told twice, it counts once
    assert ours.prices.of(kind) == 2.0
    assert ours.seconds_left[1] == (5 + 5 + 10 + 10) * 2.0 / 2
    for cell in "abc":
        ours.drop(cell)
    assert ours.seconds_left[1] == 20.0  # one cell is done by one
