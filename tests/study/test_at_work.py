"""Several processes in one run directory: the work is shared, nothing is done twice, lost or overwritten."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import tiny
from leakline.attacks import LossThreshold
from leakline.defences import GlobalDP
from leakline.errors import StoreError
from leakline.strategies import MENU
from leakline.study.at_work import at_work
from leakline.study.cells import Study, grid
from leakline.study.files import NEW
from leakline.study.pace import Standing
from leakline.study.run import check_parts, run_study
from leakline.study.store import Store

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked")
RESULTS = ("rounds.jsonl", "readings.jsonl", "attacks.jsonl", "run.json", "end.json", "checkpoint.safetensors")
CONTEXT = multiprocessing.get_context("fork")


def study(rounds: int = 3, seeds: int = 3, **changes) -> Study:
    base = tiny.federation(strategy=MENU["fedavg"]("even"), rounds=rounds)
    cells = grid(base, defences={"none": (), "dp": (GlobalDP(1.0, 0.5),)}, seed=range(seeds))
    return Study(**({"name": "tiny", "cells": cells, "attacks": {"loss": LossThreshold(20)}} | changes))


def results(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for name in RESULTS for p in root.glob(f"runs/*/{name}")}


def working(asked: Study, root: Path):
    """Another process that runs a study; it ends with the number of cells that failed."""

    def target() -> None:
        os._exit(sum(bool(outcome.error) for outcome in run_study(asked, root, workers=1)))

    process = CONTEXT.Process(target=target)
    process.start()
    return process


def rounds_trained(root: Path) -> dict[str, int]:
    return {path.parent.name: len(path.read_text().splitlines()) for path in root.glob("runs/*/log.jsonl")}


def ended(processes) -> list[int]:
    for process in processes:
        process.join(120)
    return [process.exitcode for process in processes]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    list(run_study(study(), root, workers=1))
    return root


def test_equal_commands_share_the_work_and_do_nothing_twice(whole, tmp_path):
    assert ended([working(study(), tmp_path) for _ in range(3)]) == [0, 0, 0]
    assert results(tmp_path) == results(whole)
    assert Store(tmp_path).grid() == Store(whole).grid()
    assert set(rounds_trained(tmp_path).values()) == {3}


def test_parts_of_one_study_meet_in_one_grid(whole, tmp_path):
    parts = [study().only([f"seed={seed}"]) for seed in range(3)]
    assert ended([working(part, tmp_path) for part in parts]) == [0, 0, 0]
    assert results(tmp_path) == results(whole)

    def as_set(root):
        return {json.dumps(cell, sort_keys=True) for cell in Store(root).grid()["cells"]}

    assert as_set(tmp_path) == as_set(whole)


def test_a_cell_that_another_process_holds_is_waited_for(tmp_path):
    asked, said = study(seeds=2), []
    run = Store(tmp_path).run(check_parts(asked)[0])
    ours, theirs = CONTEXT.Pipe()

    def hold() -> None:
        with run.locked():
            theirs.send("held")
            ours_only = theirs.poll(60)
            assert ours_only

    holder = CONTEXT.Process(target=hold)
    holder.start()
    assert ours.recv() == "held"

    def listen(standing: Standing) -> None:
        line = standing.line()
        said.append(line)
        if "another process" in line and len([one for one in said if "another process" in one]) == 1:
            ours.send("let go")

    outcomes = list(run_study(asked, tmp_path, workers=1, watch=listen))
    assert ended([holder]) == [0]
    assert [outcome.error for outcome in outcomes] == [""] * 4
    assert outcomes[-1].cell is asked.cells[0]
    assert [line for line in said if "1 cells" in line]


def other_text(asked: Study) -> Study:
    return replace(asked, text="# another")


def other_delta(asked: Study) -> Study:
    return replace(asked, delta=1e-3)


def other_settings(asked: Study) -> Study:
    return study(rounds=2)


def other_attacks(asked: Study) -> Study:
    return replace(asked, attacks={"loss": LossThreshold(10)})


@pytest.mark.parametrize("other", [other_text, other_delta, other_settings, other_attacks])
def test_another_study_is_refused_while_one_is_at_work_and_taken_afterwards(other, tmp_path):
    asked, store = study(seeds=1), Store(tmp_path)
    second = other(asked)
    with at_work(store, asked, check_parts(asked)):
        before = store.grid()
        with (
            pytest.raises(StoreError, match="another process is at work on another study"),
            at_work(store, second, check_parts(second)),
        ):
            pass
        assert store.grid() == before
    with at_work(store, second, check_parts(second)):
        assert store.grid() != before


def test_a_failure_is_written_and_taken_back(tmp_path):
    asked, store = study(seeds=1), Store(tmp_path)
    with at_work(store, asked) as here, at_work(store, asked) as there:
        here.set_error(asked.cells[0], "the sky fell")
        there.set_run(asked.cells[1], "abc")
        assert [(cell["run"], cell.get("error")) for cell in store.grid()["cells"]] == [
            (None, "the sky fell"),
            ("abc", None),
        ]
        there.set_error(asked.cells[0], "")
        assert "error" not in store.grid()["cells"][0]


@pytest.mark.slow
def test_four_processes_killed_twenty_times_do_every_cell_once(tmp_path):
    rounds = 40  # so that there is work left to kill
    asked, rng, struck = study(rounds=rounds, seeds=12), random.Random(0), 0
    list(run_study(asked, tmp_path / "whole", workers=1))
    root = tmp_path / "shared"
    processes = [working(asked, root) for _ in range(4)]
    while struck < 20 and any(process.is_alive() for process in processes):
        time.sleep(rng.uniform(0, 0.4))
        victim = rng.randrange(4)
        if processes[victim].is_alive():
            os.kill(processes[victim].pid, signal.SIGKILL)
            processes[victim].join()
            struck += 1
            processes[victim] = working(asked, root)
    assert struck == 20
    assert ended(processes) == [0] * 4
    assert results(root) == results(tmp_path / "whole")
    trained = rounds_trained(root)
    # A kill may fall between a round and its line in the log; no round is committed twice.
    assert all(done <= rounds for done in trained.values())
    assert sum(trained.values()) >= rounds * 24 - struck
    for run in root.glob("runs/*"):  # whoever was killed left nothing: one free claim of a kind, and no half file
        assert sorted(path.name.rpartition(".")[0] for path in run.glob(".*")) == [".attacks", ".training"]
        assert all(path.read_bytes() == b"" for path in run.glob(".*"))
    assert [path.name.rpartition(".")[0] for path in root.glob(".*") if not path.name.startswith(NEW)] == [".grid"]
