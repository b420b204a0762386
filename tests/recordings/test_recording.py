"""Recordings: what is written is read back; what is damaged is named; leakline's own runs are read too."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from leakline.errors import StoreError
from leakline.federation import federate, keep_all
from leakline.messages import Round, Update
from leakline.recordings import is_recording
from leakline.recordings.recorder import Recorder
from leakline.recordings.recording import Recording
from leakline.study.files import read_json, read_lines, write_json
from leakline.study.store import Store
from leakline.study.train import train_run
from leakline.weights import Weights


def recorded(path: Path, **changes: object) -> list[Round]:
    fed = tiny.federation(model=tiny.image_net, task=tiny.task(shape=tiny.IMAGE))
    recorder = Recorder(path, **changes)  # type: ignore[arg-type]
    recorder.open(fed.wire)
    rounds = list(federate(fed))
    for one in rounds:
        recorder.write(one)
    return rounds


def test_what_is_written_is_read_back(tmp_path):
    rounds = recorded(tmp_path, plan={"batch": 4, "learning_rate": 0.1})
    found = Recording(tmp_path)
    assert found.indices() == [0, 1]
    assert found.known == {"batch": 4, "learning_rate": 0.1}
    for ours, theirs in zip(found.rounds(), rounds, strict=True):
        assert ours.sent.layout == theirs.sent.layout
        assert torch.equal(ours.sent.vector, theirs.sent.vector)
        assert torch.equal(ours.result.vector, theirs.result.vector)
        assert ours.cohort == theirs.cohort
        for mine, other in zip(ours.updates, theirs.updates, strict=True):
            assert (mine.client, mine.examples, mine.steps) == (other.client, other.examples, other.steps)
            assert torch.equal(mine.delta.vector, other.delta.vector)


def test_a_run_of_leaklines_own_is_read_by_the_same_reader(tmp_path):
    fed = tiny.federation()
    run = train_run(Store(tmp_path), fed, workers=1, keep=keep_all)
    found = Recording(run.path)
    rounds = list(federate(fed))
    assert not is_recording(run.path)
    assert found.known["batch"] == fed.plan.batch
    assert found.indices() == [0, 1]
    assert torch.equal(found.round(0).result.vector, rounds[0].result.vector)
    assert found.round(1).facts["result_unknown"] == 1
    assert torch.equal(found.round(1).updates[2].delta.vector, rounds[1].updates[2].delta.vector)
    with pytest.raises(StoreError, match="not a recording"):
        Recording(tmp_path)


def test_parts_of_a_client_are_files_of_their_own(tmp_path):
    sent = Weights.zeros(tiny.LAYOUT)
    updates = tuple(Update("a", sent.like(sent.vector + part), 5, 1, part=part) for part in range(3))
    recorder = Recorder(tmp_path)
    recorder.open(sent.layout)
    recorder.write(Round(0, sent, updates, ("a",), (), sent))
    assert [(u.client, u.part) for u in Recording(tmp_path).round(0).updates] == [("a", 0), ("a", 1), ("a", 2)]
    assert Recording(tmp_path).clients(0) == ["a"]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-50])


def rewrite(path: Path, **tensors: torch.Tensor) -> None:
    save_file(tensors, path)


DAMAGE = {
    "a round's folder is gone": (lambda p: shutil.rmtree(p / "kept" / "round-0001"), "round 1 is missing"),
    "a file is gone": (lambda p: (p / "kept/round-0001/b.safetensors").unlink(), "b.safetensors is missing"),
    "sent is gone": (lambda p: (p / "kept/round-0001/sent.safetensors").unlink(), "sent.safetensors is missing"),
    "a file is cut": (lambda p: cut(p / "kept/round-0001/b.safetensors"), "b.safetensors: it cannot be read"),
    "not a file of tensors": (
        lambda p: (p / "kept/round-0001/b.safetensors").write_text("hello"),
        "b.safetensors: it cannot be read",
    ),
    "wrong length": (
        lambda p: rewrite(p / "kept/round-0001/b.safetensors", delta=torch.zeros(5)),
        r"b.safetensors: .* it holds torch.float32 of shape \(5,\)",
    ),
    "wrong type": (
        lambda p: rewrite(p / "kept/round-0001/b.safetensors", delta=torch.zeros(5, dtype=torch.float64)),
        "torch.float64",
    ),
    "no delta": (lambda p: rewrite(p / "kept/round-0001/b.safetensors", x=torch.zeros(5)), "it holds nothing"),
    "no metadata": (
        lambda p: rewrite(p / "kept/round-0001/b.safetensors", **load_file(p / "kept/round-0001/b.safetensors")),
        "its metadata are damaged",
    ),
    "no layout": (
        lambda p: rewrite(p / "kept/round-0001/sent.safetensors", **load_file(p / "kept/round-0001/sent.safetensors")),
        "its layout is damaged",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(name, tmp_path):
    act, said = DAMAGE[name]
    recorded(tmp_path)
    act(tmp_path)
    found = Recording(tmp_path)
    assert found.round(0).index == 0  # the rest can be read
    with pytest.raises(StoreError, match=said) as caught:
        found.round(1)
    assert "round-0001" in str(caught.value) or "round 1" in str(caught.value)
    assert str(tmp_path.parent) not in str(caught.value)


def test_a_damaged_manifest_is_named(tmp_path):
    recorded(tmp_path)
    path = tmp_path / "recording.json"
    manifest = read_json(path)
    path.write_text(json.dumps({**manifest, "seal": "0"}))
    with pytest.raises(StoreError, match="its seal does not fit"):
        Recording(tmp_path)
    for change, said in (
        ({"version": 2}, "version 2"),
        ({"format": "other"}, "reads 1"),
        ({"layout": [["a", [-1], False]]}, "layout is damaged"),
        ({"layout": 5}, "layout is damaged"),
        ({"layout": manifest["layout"][:-1]}, "shapes that recording.json says"),
    ):
        write_json(path, {**manifest, **change})
        with pytest.raises(StoreError, match=said):
            Recording(tmp_path).round(0)
    path.write_text("{")
    with pytest.raises(StoreError, match="recording.json: it cannot be read"):
        Recording(tmp_path)
    with pytest.raises(StoreError, match="no recording.json"):
        Recording(tmp_path / "nowhere")


def test_names_in_a_recording_are_not_believed(tmp_path):
    recorded(tmp_path)
    path = tmp_path / "kept" / "round-0000" / "b.safetensors"
    delta = load_file(path)
    for name in ("../../../x", "a", "sent"):
        save_file(delta, path, metadata={"client": name, "part": "0", "examples": "1", "steps": "1"})
        with pytest.raises(StoreError, match="metadata are damaged"):
            Recording(tmp_path).round(0)
    lines = read_lines(tmp_path / "rounds.jsonl")
    lines[1]["kept"] = ["sent", "../../secret", 5, "a"]
    lines[1] |= {"dropped": [["x"], 3, ["a", "b"]], "metrics": {"loss": "x", "n": 1}, "cohort": 3, "facts": []}
    odd = [[1], "x", {"round": -1}, {"round": "1"}, {"round": True}, *lines]
    (tmp_path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in odd))
    found = Recording(tmp_path).round(1)
    assert [u.client for u in found.updates] == ["a"]
    assert [(d.client, d.reason) for d in found.dropped] == [("a", "b")]
    assert found.metrics == {"n": 1.0}


def test_a_recording_without_a_round_says_so(tmp_path):
    recorded(tmp_path, rounds=frozenset({7}))
    with pytest.raises(StoreError, match="holds no round"):
        Recording(tmp_path).indices()


def test_half_a_line_left_by_a_kill_is_no_round(tmp_path):
    recorded(tmp_path)
    path = tmp_path / "rounds.jsonl"
    path.write_text(path.read_text()[:-20])
    assert Recording(tmp_path).indices() == [0]


def test_client_names_that_would_hide_a_file_are_refused(tmp_path):
    sent = Weights.zeros(tiny.LAYOUT)
    recorder = Recorder(tmp_path)
    recorder.open(sent.layout)
    for name in ("sent", "result", "../x"):
        with pytest.raises(StoreError, match="cannot be a file name"):
            recorder.write(Round(0, sent, (Update(name, sent, 1, 1),), (name,), (), sent))
