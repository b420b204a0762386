"""Running studies: once, resumed, attacked later, killed at any moment."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import tiny
from leakline.attacks import Attack, LossThreshold
from leakline.defences import GlobalDP, Intermediaries
from leakline.errors import ClientLost, LeaklineError
from leakline.readings import Reading
from leakline.strategies import MENU
from leakline.study.cells import Cell, Study, grid
from leakline.study.describe import description, key_of
from leakline.study.lab import Lab
from leakline.study.run import run_study
from leakline.study.spec import load, parse
from leakline.study.store import Store
from leakline.study.train import train_run

RESULTS = ("rounds.jsonl", "readings.jsonl", "attacks.jsonl", "run.json", "end.json")


def study(**changes) -> Study:
    base = tiny.federation(strategy=MENU["fedavg"]("even"), rounds=3)
    cells = grid(base, defences={"none": (), "dp": (GlobalDP(1.0, 0.5),)}, seed=[0, 1])
    return Study(**({"name": "tiny", "cells": cells, "attacks": {"loss": LossThreshold(20)}} | changes))


def results(root: Path) -> dict[str, bytes]:
    """Every byte that must not depend on how the run went; weights from the checkpoint."""
    found = {str(p.relative_to(root)): p.read_bytes() for name in RESULTS for p in root.glob(f"runs/*/{name}")}
    for path in root.glob("runs/*/checkpoint.safetensors"):
        with safe_open(path, framework="pt") as file:
            found[f"{path.parent.name}/weights"] = file.get_tensor("weights").numpy().tobytes()
            found[f"{path.parent.name}/next"] = file.metadata()["next"].encode()
    return found


def test_a_probe_is_briefed_from_what_the_server_had_learned_when_the_run_ended(tmp_path):
    defence = Intermediaries(noise_multiplier=0.01, clip=1.0, parts="paper", start=4, smallest=1)
    fed = tiny.federation(defences=(defence,), strategy=MENU["fedavg"]("even"), rounds=3)
    run = train_run(Store(tmp_path), fed, workers=1)
    parts = run.standing()[0].memory["0"]["parts"]
    assert parts != defence.start  # so that a probe as in round 0 would show itself
    before = (run.path / "checkpoint.safetensors").read_bytes()
    lab = Lab(fed, Store(tmp_path), run, workers=1)
    for _ in range(2):
        answers = lab.probe(run.final_weights(), 0, clients=["b"])
        assert [u.part for u in answers] == list(range(parts))
    assert (run.path / "checkpoint.safetensors").read_bytes() == before
    other = fed.but(defences=(replace(defence, start=2),))  # a world of its own has learned nothing yet
    assert len(lab.probe(run.final_weights(), 0, clients=["b"], federation=other)) == 2


@pytest.mark.parametrize("workers", [1, 2])
def test_other_federations_are_there_once_and_in_order(tmp_path, workers):
    """However many processes train them, whatever was there before and whatever of it had been kept."""
    base = tiny.federation()
    lab = Lab(base, Store(tmp_path), train_run(Store(tmp_path), base, workers=1), workers=workers)
    others = [base, *(base.but(seed=seed) for seed in (3, 1, 2))]
    expected = [tiny.run(other)[0].updates for other in others]
    first = lab.variants(others[:3], keep=lambda index, client: False)
    assert [one.kept(0) for one in first] == [None] * 3
    found = lab.variants(others, keep=lambda index, client: index == 0)
    assert [one.federation for one in found] == others
    for one, updates in zip(found, expected, strict=True):
        assert all(torch.equal(a.delta.vector, b.delta.vector) for a, b in zip(one.kept(0)[1], updates, strict=True))
    logs = {path: path.read_bytes() for path in tmp_path.glob("runs/*/log.jsonl")}
    assert len(logs) == 4
    lab.variants(others, keep=lambda index, client: index == 0)
    assert logs == {path: path.read_bytes() for path in tmp_path.glob("runs/*/log.jsonl")}


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_wrong_with_another_federation_is_said_whoever_trained_it(tmp_path, workers):
    base = tiny.federation()
    lab = Lab(base, Store(tmp_path), train_run(Store(tmp_path), base, workers=1), workers=workers)
    bad = tiny.federation(min_clients=3, task=tiny.task((8, 9, 0)))
    with pytest.raises(ClientLost, match="only 2 of 3"):
        lab.variants([base.but(seed=5), bad, base.but(seed=6)])
    good = lab.variants([base.but(seed=5)])  # what could be trained is there
    assert good[0].run.end["status"] == "finished"


def test_federations_that_somebody_else_trains_come_last(tmp_path):
    """Another process lets go of the first only when the others are there."""
    base, store = tiny.federation(), Store(tmp_path)
    lab = Lab(base, store, train_run(store, base, workers=1), workers=1)
    others = [base.but(seed=seed) for seed in (1, 2, 3)]
    first, *rest = [store.run(key_of(description(other))) for other in others]
    context = multiprocessing.get_context("fork")
    holds = context.Event()

    def hold() -> None:
        with first.locked():
            holds.set()
            patience = time.monotonic() + 30
            while time.monotonic() < patience and not all(run.end for run in rest):
                time.sleep(0.01)
            os._exit(0 if all(run.end for run in rest) else 1)  # a claim ends with its process

    process = context.Process(target=hold)
    process.start()
    assert holds.wait(30)
    assert [one.federation for one in lab.variants(others)] == others
    process.join()
    assert process.exitcode == 0


def test_a_study_fills_its_grid(tmp_path):
    outcomes = list(run_study(study(), tmp_path, workers=1))
    assert [o.error for o in outcomes] == [""] * 4
    assert all(o.trained for o in outcomes)
    written = Store(tmp_path).grid()
    assert [c["labels"]["defence"] for c in written["cells"]] == ["none", "none", "dp", "dp"]
    assert len({c["run"] for c in written["cells"]}) == 4
    for o in outcomes:
        assert [r["round"] for r in o.run.rounds()] == [0, 1, 2]
        assert {r["measure"] for r in o.run.readings()} >= {"accuracy", "loss"}
        labels = {Reading.of(r).label for r in o.run.attacks()}
        assert labels >= {"auc", "tpr at fpr=0.01", "tpr at fpr=0.1", "tpr at fpr=0.5"}
        assert o.run.end["status"] == "finished"
        assert o.run.end["card"]["promises"]


def test_the_readings_are_those_of_the_model(tmp_path):
    fed = tiny.federation()
    run = train_run(Store(tmp_path), fed, workers=1)
    weights = run.final_weights()
    assert torch.equal(weights.vector, tiny.run(fed)[-1].result.vector)
    expected = fed.objective.summary(fed.bench().outputs(weights, fed.task.test), fed.task.test.y)
    last = {r["measure"]: r["value"] for r in run.readings() if r["round"] == 1}
    assert last == pytest.approx({k: v for k, v in expected.items() if k in last})


def test_running_again_trains_nothing_and_changes_nothing(tmp_path):
    list(run_study(study(), tmp_path, workers=1))
    before = results(tmp_path)
    times = {p: p.stat().st_mtime_ns for p in tmp_path.glob("runs/*/end.json")}
    again = list(run_study(study(), tmp_path, workers=1))
    assert not any(o.trained for o in again)
    assert results(tmp_path) == before
    assert all(p.stat().st_mtime_ns == t for p, t in times.items())


def test_only_runs_the_cells_asked_for_and_keeps_what_was_there(tmp_path):
    first = list(run_study(study().only(["defence=none"]), tmp_path, workers=1))
    assert [o.cell.labels["seed"] for o in first] == [0, 1]
    second = list(run_study(study().only(["defence=dp", "seed=1"]), tmp_path, workers=1))
    assert [o.cell.name for o in second] == ["given dp seed 1"]
    written = Store(tmp_path).grid()["cells"]
    assert sorted((c["labels"]["defence"], c["labels"]["seed"]) for c in written) == [
        ("dp", 1),
        ("none", 0),
        ("none", 1),
    ]
    assert [o.trained for o in run_study(study(), tmp_path, workers=1)] == [False, False, True, False]


def test_only_takes_names_with_commas_of_their_own():
    names = ["plain", "one, two", "one", "one, two, three"]
    cells = tuple(Cell({"scenario": name, "seed": 0}, list) for name in names)
    chosen = {
        "scenario=one, two": ["one, two"],
        "scenario=one, two, three,plain": ["plain", "one, two, three"],
        "scenario=plain,one": ["plain", "one"],
    }
    for wanted, expected in chosen.items():
        assert [c.labels["scenario"] for c in Study("s", cells).only([wanted]).cells] == expected


@pytest.mark.parametrize(
    ("wanted", "what"),
    [("colour=red", "no such label"), ("seed", "no such label"), ("seed=0,7", "no cell has seed = 7")],
)
def test_only_says_what_it_cannot_find(wanted, what):
    with pytest.raises(LeaklineError, match=what):
        study().only([wanted])


def test_an_attack_added_later_trains_nothing_again(tmp_path):
    list(run_study(study(attacks={}), tmp_path, workers=1))
    logs = {p: p.read_bytes() for p in tmp_path.glob("runs/*/log.jsonl")}
    assert not list(tmp_path.glob("runs/*/attacks.jsonl"))
    outcomes = list(run_study(study(), tmp_path, workers=1))
    assert not any(o.trained for o in outcomes)
    assert all(p.read_bytes() == text for p, text in logs.items())  # no round was timed
    areas = [[r for r in o.run.attacks() if r["measure"] == "auc"] for o in outcomes]
    assert {len(found) for found in areas} == {1}
    # another setting of the same attack is another attack; the first one is not run again
    outcomes = list(
        run_study(study(attacks={"loss": LossThreshold(20), "more": LossThreshold(10)}), tmp_path, workers=1)
    )
    areas = [[r for r in o.run.attacks() if r["measure"] == "auc"] for o in outcomes]
    assert {len(found) for found in areas} == {2}


def test_more_seeds_are_added_to_what_is_there(tmp_path):
    base = tiny.federation(rounds=1)
    list(run_study(study(cells=grid(base, seed=[0])), tmp_path, workers=1))
    outcomes = list(run_study(study(cells=grid(base, seed=[0, 1])), tmp_path, workers=1))
    assert [o.trained for o in outcomes] == [False, True]


@pytest.mark.parametrize("stop", [0, 1, 2])
def test_an_interrupted_run_goes_on_where_it_was(tmp_path, stop):
    fed = tiny.federation(strategy=MENU["fedavgm"]("even"), defences=(GlobalDP(1.0, 0.5),), rounds=4)

    class Stopped(Exception):
        pass

    def interrupt(cell, done, rounds, figures):
        if done == stop + 1:
            raise Stopped

    with pytest.raises(Stopped):
        train_run(Store(tmp_path / "a"), fed, workers=1, progress=interrupt)
    done = []
    train_run(Store(tmp_path / "a"), fed, workers=1, progress=lambda c, d, r, f: done.append(d))
    assert done == list(range(stop + 2, 5))  # no round was trained twice
    train_run(Store(tmp_path / "b"), fed, workers=1)
    assert results(tmp_path / "a") == results(tmp_path / "b")


def test_a_failed_run_says_why_and_can_be_gone_on_with(tmp_path):
    fed = tiny.federation(min_clients=3, task=tiny.task((8, 9, 0)))
    with pytest.raises(ClientLost):
        train_run(Store(tmp_path), fed, workers=1)
    (end,) = [json.loads(p.read_text()) for p in tmp_path.glob("runs/*/end.json")]
    assert end["status"] == "failed"
    assert "only 2 of 3" in end["error"]
    with pytest.raises(ClientLost):
        train_run(Store(tmp_path), fed, workers=1)


def test_a_failing_cell_does_not_stop_the_others(tmp_path):
    good, bad = tiny.federation(rounds=1), tiny.federation(rounds=1, min_clients=3, task=tiny.task((8, 9, 0)))
    cells = (*grid(bad, seed=[0]), *grid(good, seed=[1]))
    outcomes = list(run_study(study(cells=cells), tmp_path, workers=1))
    assert "only 2 of 3" in outcomes[0].error
    assert outcomes[1].error == ""
    assert "error" in Store(tmp_path).grid()["cells"][0]


def test_dropped_clients_are_on_the_card(tmp_path):
    run = train_run(Store(tmp_path), tiny.federation(task=tiny.task((8, 9, 0))), workers=1)
    assert run.end["card"]["dropped"] == ["c: raised ValueError: it has no examples (2 rounds, first in round 0)"]


def test_a_study_in_python_returns_its_directory_or_raises(tmp_path):
    assert study(cells=grid(tiny.federation(rounds=1), seed=[0])).run(tmp_path / "x", workers=1) == tmp_path / "x"
    bad = tiny.federation(rounds=1, min_clients=3, task=tiny.task((8, 9, 0)))
    with pytest.raises(LeaklineError, match="1 of 1 cells failed"):
        study(cells=grid(bad, seed=[0])).run(tmp_path / "y", workers=1)
    with pytest.raises(ValueError, match="name"):
        study(name="../x")


# --- SIGKILL -------------------------------------------------------------------------------------------------------

TEXT = textwrap.dedent(
    """\
    name = "killed"
    noise = "seeded"
    [data]
    use = "digits"
    limit = 240
    clients = 6
    [model]
    use = "small-cnn"
    channels = [4]
    hidden = 8
    [training]
    rounds = 8
    batch = 8
    epochs = 2
    [strategies]
    fedadam = { use = "fedadam", weighting = "even" }
    [defences]
    none = []
    adaptive = [{ use = "adaptive-clip", noise_multiplier = 1.0, clip = 1.0 }]
    [[attacks]]
    use = "loss-threshold"
    """
)


def real(toml: Path, out: Path, workers: int) -> subprocess.Popen:
    """The command line in a fresh interpreter."""
    return subprocess.Popen(
        [sys.executable, "-m", "leakline.cli", "run", str(toml), "--out", str(out), "--workers", str(workers)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


class Forked:
    """The same command in a fork of this process: what takes long in a short run is importing."""

    def __init__(self, toml: Path, out: Path, workers: int) -> None:
        def target() -> None:
            list(run_study(load(str(toml)), out, workers=workers))

        self.process = multiprocessing.get_context("fork").Process(target=target)
        self.process.start()
        self.pid = self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def communicate(self) -> None:
        self.process.join()


def begun(out: Path) -> int:
    """Changes when a run has begun: the grid is the first thing that it writes."""
    return (out / "study.json").stat().st_mtime_ns if (out / "study.json").exists() else 0


def kill_and_compare(tmp_path: Path, kills: int, seed: int, start, longest: float) -> int:
    """Kill a study at random moments, finish it, compare it with a whole one; how many kills met a live process."""
    toml = tmp_path / "study.toml"
    toml.write_text(TEXT)
    list(run_study(parse(TEXT), tmp_path / "whole", workers=1))
    rng, out = random.Random(seed), tmp_path / "killed"
    struck = 0
    for attempt in range(kills):
        before = begun(out)
        process = start(toml, out, 1 + attempt % 2)
        while process.poll() is None and begun(out) == before:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, longest))
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            struck += 1
        process.communicate()
    last = real(toml, out, 2)
    _, said = last.communicate(timeout=120)
    assert last.returncode == 0, said.decode()
    assert results(out) == results(tmp_path / "whole")
    rounds = [json.loads(line) for p in out.glob("runs/*/log.jsonl") for line in p.read_text().splitlines()]
    # 16 rounds in all; a kill may fall between a round and its line in the log, and no round is committed twice
    assert 16 - struck <= len(rounds) <= 16
    return struck


def test_a_study_killed_five_times_ends_as_if_it_had_not_been(tmp_path):
    assert kill_and_compare(tmp_path, 5, 0, Forked, longest=0.1) >= 1


@pytest.mark.slow
def test_a_study_killed_twenty_times_ends_as_if_it_had_not_been(tmp_path):
    # A study may be done before the last kills fall: only those that met a live process count.
    struck = attempt = 0
    while struck < 20:
        (tmp_path / str(attempt)).mkdir()
        struck += kill_and_compare(tmp_path / str(attempt), 8, attempt, real, longest=0.3)
        attempt += 1
        assert attempt <= 10
    print(f"{struck} kills over {attempt} studies")


@dataclass(frozen=True)
class Crashing(Attack):
    """An attack with a bug."""

    def challenges(self, lab):
        raise ZeroDivisionError("division by zero in /home/someone/attack.py")

    def guess(self, view, hints):
        return None

    def measure(self, guesses, secrets):
        return []


def test_an_attack_that_crashes_costs_its_cell_only_and_nothing_that_was_trained(tmp_path):
    study = replace(parse(TEXT), attacks={"crashing": Crashing()})
    outcomes = list(run_study(study, tmp_path, workers=1))
    assert all("the attack crashing failed: raised ZeroDivisionError" in o.error for o in outcomes)
    assert not any("someone" in o.error for o in outcomes)
    again = list(run_study(replace(study, attacks={}), tmp_path, workers=1))
    assert not any(o.error or o.trained for o in again)
