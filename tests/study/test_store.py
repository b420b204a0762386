"""The store: what is committed comes back, and damage is said in a line."""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import tiny
from leakline.attacks import Attack, Challenge
from leakline.cards import Card
from leakline.defences import AdaptiveClip
from leakline.errors import StoreError, StudyError
from leakline.federation import State, federate
from leakline.measures import MEASURES, Measure
from leakline.messages import Round
from leakline.privacy import Seat
from leakline.readings import Reading
from leakline.results import read
from leakline.runtimes.local import LocalTransport
from leakline.strategies import MENU
from leakline.study.carded import card_of
from leakline.study.cells import Study, grid
from leakline.study.describe import FORMAT
from leakline.study.files import NEW, append, read_json, read_lines, write_atomically
from leakline.study.run import run_study
from leakline.study.store import Run, Store
from leakline.study.train import train_run

FED = tiny.federation(
    strategy=MENU["fedadam"]("even"), defences=(AdaptiveClip(1.0, 0.5),), rounds=3, task=tiny.task((8, 9, 10))
)


def record(index: int) -> dict:
    return {"round": index, "cohort": ["a"], "facts": {}, "metrics": {}, "dropped": []}


def committed(path: Path, rounds: int = 2) -> tuple[Run, State, dict]:
    run, state = Run(path / "abc123"), State()
    run.open({"x": 1})
    with LocalTransport(FED, 1) as transport:
        for round_ in federate(FED, transport, state=state):
            run.commit(state, transport.memories, record(round_.index), [Reading("accuracy", 0.5, round=round_.index)])
            if state.next == rounds:
                break
        return run, state, transport.memories


def test_a_commit_comes_back_whole(tmp_path):
    run, state, memories = committed(tmp_path)
    memories["a"]["private"] = torch.arange(3.0)
    run = Run(tmp_path / "other")
    run.open({})
    run.commit(state, memories, record(1), [])
    found, clients = run.load()
    assert found.next == 2
    assert found.weights.layout == state.weights.layout
    assert torch.equal(found.weights.vector, state.weights.vector)
    assert found.optimiser.keys() == state.optimiser.keys() == {"m", "v"}
    assert all(torch.equal(found.optimiser[k], v) for k, v in state.optimiser.items())
    assert found.memory == state.memory
    assert torch.equal(clients["a"]["private"], torch.arange(3.0))


def test_lines_lost_or_cut_by_a_kill_are_mended_from_the_checkpoint(tmp_path):
    run, *_ = committed(tmp_path)
    expected = {n: (run.path / n).read_bytes() for n in ("rounds.jsonl", "readings.jsonl")}
    assert len(run.rounds()) == 2
    lines = expected["rounds.jsonl"]
    first = lines.splitlines(keepends=True)[0]
    for damage in (first, lines[:-7], lines + b'{"round": 2, "coh', lines + first.replace(b": 0", b": 2")):
        (run.path / "rounds.jsonl").write_bytes(damage)
        (run.path / "readings.jsonl").write_bytes(expected["readings.jsonl"].splitlines(keepends=True)[0])
        run.load()
        for name, text in expected.items():
            assert (run.path / name).read_bytes() == text


def test_without_a_checkpoint_a_run_starts_from_nothing(tmp_path):
    run = Run(tmp_path / "abc")
    run.open({})
    append(run.path / "rounds.jsonl", [{"round": 0}])
    assert run.load() is None
    assert run.rounds() == []
    with pytest.raises(StoreError, match="no model"):
        run.final_weights()


def damaged(data: bytes) -> dict[str, bytes]:
    return {
        "empty": b"", "cut": data[: len(data) // 2], "noise": os.urandom(300), "no header": data[8:],
        "a pickle": b"\x80\x04\x95\x00", "header too long": (2**40).to_bytes(8, "little") + data[8:],
        "metadata gone": data.replace(b'"layout"', b'"layouT"', 1),
    }  # fmt: skip


@pytest.mark.parametrize("case", damaged(b"0" * 100))
def test_a_damaged_checkpoint_is_a_store_error_of_one_line(tmp_path, case):
    run, *_ = committed(tmp_path, rounds=1)
    path = run.path / "checkpoint.safetensors"
    bad = damaged(path.read_bytes())[case]
    path.write_bytes(bad)
    with pytest.raises(StoreError, match="checkpoint") as caught:
        run.load()
    assert "\n" not in caught.value.what
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize("case", damaged(b"0" * 100))
def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_the_run_ends_as_it_would_have(tmp_path, case):
    whole = train_run(Store(tmp_path / "whole"), FED, workers=1)
    run = Store(tmp_path / "cut").run(whole.key)
    train_run(Store(tmp_path / "cut"), FED, workers=1)
    (run.path / "end.json").unlink()
    path = run.path / "checkpoint.safetensors"
    path.write_bytes(damaged(path.read_bytes())[case])
    assert run.standing()[0].next == FED.rounds - 1
    train_run(Store(tmp_path / "cut"), FED, workers=1)
    for name in ("rounds.jsonl", "readings.jsonl", "end.json", "checkpoint.safetensors"):
        assert (run.path / name).read_bytes() == (whole.path / name).read_bytes()


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00", '{"format": 99}', "null"])
def test_a_damaged_study_file_is_a_store_error(tmp_path, text):
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(StoreError):
        Store(tmp_path).grid()


def test_a_store_of_text_readings_is_refused_by_name_with_what_to_do(tmp_path):
    (tmp_path / "study.json").write_text('{"format": 1, "cells": []}')
    with pytest.raises(StoreError) as caught:
        Store(tmp_path).grid()
    what, where, fix = caught.value.what, caught.value.where, caught.value.fix
    assert "written by format 1" in what
    assert f"reads format {FORMAT}" in what
    assert where == tmp_path.name
    assert fix == "run the study again into a new directory: leakline run STUDY --out NEW"
    study = Study("x", grid(tiny.federation(rounds=1)))
    with pytest.raises(StoreError, match="format 1"):  # and nothing is trained into it
        list(run_study(study, tmp_path, workers=1))
    assert json.loads((tmp_path / "study.json").read_text()) == {"format": 1, "cells": []}


def test_a_reading_comes_back_as_it_was_written(tmp_path):
    run = Store(tmp_path).run("abc")
    run.open({})
    about = {"rule": "rmia", "fpr": 0.01, "p": 0.25}
    reading = Reading("tpr", 0.5, 0.25, 0.75, 8, "mia", 3, "ann", 0.01, about, "a sentence")
    run.add_attack("mia-1", [reading, Reading("auc", 0.5, by="mia")])
    first, second = run.attacks()
    assert Reading.of(first) == reading
    assert Reading.of(second) == Reading("auc", 0.5, by="mia")
    assert "about" not in second
    assert reading.label == "tpr at fpr=0.01 (rmia)"  # what was found with a number is no part of its name


@dataclass(frozen=True)
class Pins(Attack):
    """An attack from outside, with a measure of its own."""

    seat: ClassVar[Seat] = Seat.PUBLIC
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("guessed-pins", "Share of PINs that were guessed.", 0.0, 1.0, "lower", 0.5, "share", 1),
    )

    def challenges(self, lab):
        yield Challenge(0, 0, 0)

    def guess(self, view, hints):
        return 0

    def measure(self, guesses, secrets):
        return [Reading("guessed-pins", 1.0, n=4), Reading("tries", 3.0)]


def test_a_measure_from_outside_travels_with_the_store(tmp_path):
    study = Study("pins", grid(tiny.federation(rounds=1), seed=[0, 1]), {"pins": Pins()})
    outcomes = list(run_study(study, tmp_path, workers=1))
    assert Store(tmp_path).measures() == {"guessed-pins": Pins.measures[0]}
    found = read(tmp_path)
    assert found.measure("guessed-pins").better == "lower"
    assert found.measure("tries").better == "higher"  # nobody describes it
    assert found.measure("auc") == MEASURES["auc"]
    (leak, _) = found.settings[0].leaks
    assert (leak.measure, leak.chance, leak.better) == ("guessed-pins", 0.5, "lower")
    card = card_of(outcomes[0].run, measures=Pins.measures)
    assert [text for label, text in card.rows() if label == "attack"] == [
        "pins: guessed-pins 1.000, n = 4 (chance 0.5)", "pins: 1 more figures are in the report"
    ]  # fmt: skip
    assert Card.from_dict(card.as_dict()).rows() == card.rows()


def test_one_name_cannot_mean_two_things(tmp_path):
    @dataclass(frozen=True)
    class Other(Pins):
        measures: ClassVar[tuple[Measure, ...]] = (Measure("auc", "Something else."),)

    study = Study("pins", grid(tiny.federation(rounds=1)), {"pins": Other()})
    with pytest.raises(StudyError, match="'auc' is described in two ways"):
        list(run_study(study, tmp_path, workers=1))


def test_a_directory_that_is_no_run_directory(tmp_path):
    with pytest.raises(StoreError, match=r"no study\.json"):
        Store(tmp_path).grid()
    for key in ("../x", "a/b", "", "..", "a\0b"):
        with pytest.raises(StoreError, match="not a run"):
            Store(tmp_path).run(key)


def test_a_second_process_cannot_work_on_the_same_run(tmp_path):
    store = Store(tmp_path)
    run = store.run("abc")

    def other(pipe):
        try:
            with Run(run.path).locked():
                pipe.send("got in")
        except StoreError as error:
            pipe.send(str(error))

    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with run.locked():
        process = context.Process(target=other, args=(theirs,))
        process.start()
        assert ours.poll(20)
        assert "another process" in ours.recv()
        process.join(10)
    with run.locked():
        pass


def test_training_a_run_that_another_process_holds_is_refused(tmp_path):
    from leakline.study.describe import description, key_of

    store = Store(tmp_path)
    with store.run(key_of(description(FED))).locked(), pytest.raises(StoreError, match="another process"):
        train_run(store, FED, workers=1)


def test_kept_updates_are_written_and_hostile_client_names_are_not(tmp_path):
    run = Run(tmp_path / "abc")
    run.open({})
    fed = tiny.federation(rounds=1)
    (round_,) = tiny.run(fed)
    run.kept.add(round_)
    folder = run.path / "kept" / "round-0000"
    assert sorted(p.name for p in folder.iterdir()) == [
        "a.safetensors",
        "b.safetensors",
        "c.safetensors",
        "sent.safetensors",
    ]
    from dataclasses import replace

    evil = Round(**{**round_.__dict__, "updates": (replace(round_.updates[0], client="../../../evil"),)})
    with pytest.raises(StoreError, match="file name"):
        run.kept.add(evil)
    assert not list(tmp_path.rglob("*evil*"))


def test_atomic_writing_leaves_the_old_file_or_the_new_one(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_atomically(path, b"old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new and longer")
    assert path.read_bytes() == b"old"


def test_half_a_line_is_left_out(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n{"a"')
    assert read_lines(path) == [{"a": 1}, {"a": 2}]
    assert read_lines(tmp_path / "none") == []
    path.write_text(json.dumps([1]))
    with pytest.raises(StoreError, match="does not hold"):
        read_json(path)


def test_what_a_kill_left_half_written_is_swept_and_nothing_else(tmp_path):
    def there() -> set[Path]:
        return {p for p in tmp_path.rglob("*") if not p.name.startswith(".training.")}  # claims are counted on

    store = Store(tmp_path)
    run = train_run(store, FED, workers=1)
    before = there()
    (run.path / "end.json").unlink()
    left = [run.path / f"{NEW}{name}" for name in ("checkpoint.safetensors.abc", "readings.jsonl.x", ".training.7.x")]
    others = [run.path / f"{NEW}mine", run.path / f"{NEW}attacks.jsonl.y"]  # an attack may be writing this one
    for path in left + others:
        path.write_text("half")
    train_run(store, FED, workers=1)
    assert there() == before | set(others)
    run.sweep("attacks")
    assert there() == before | {others[0]}
