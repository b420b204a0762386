"""Recordings written by anybody: numpy alone, the format as its schema says, one clean line for what does not fit."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from leakline.bench.training import Plan
from leakline.errors import LeaklineError, StoreError
from leakline.federation import federate
from leakline.recordings.claims import Claimed
from leakline.recordings.format import PLAN
from leakline.recordings.recorder import Recorder
from leakline.recordings.recording import Recording
from leakline.recordings.writing import last_round, packed, write_round
from leakline.study.files import append, read_lines, write_lines
from leakline.study.tensors import pack_sealed, read_sealed

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "recording.schema.json").read_text())


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "norm.running_mean": rng.normal(size=3),  # double precision, and a buffer before the parameters
        "w": rng.normal(size=(4, 3)).astype(np.float32),
        "b": rng.normal(size=()).astype(np.float16),
        "norm.num_batches_tracked": np.array(7),
    }


def test_what_numpy_writes_is_what_is_read(tmp_path):
    sent, change, result = arrays(), {"a": arrays(1), "b": arrays(2)}, arrays(3)
    for _ in range(2):
        folder = write_round(
            tmp_path / "r", sent, change, result, examples={"a": 5}, metrics={"a": {"loss": 0.5}},
            dropped={"c": "no answer"}, engine="mine 1.0", plan={"batch": 4}, claimed={"weighting": "even"},
            facts={"clip": 1.5},
        )  # fmt: skip
    assert folder.name == "round-0001"
    recording = Recording(tmp_path / "r")
    assert recording.indices() == [0, 1]
    assert (recording.engine, recording.seat, recording.known) == ("mine 1.0", "server", {"batch": 4})
    assert recording.claimed() == Claimed(weighting="even")
    assert recording.left_out == ("norm.num_batches_tracked",)
    assert [(e.name, e.shape, e.buffer) for e in recording.layout().entries] == [
        ("w", (4, 3), False), ("b", (), False), ("norm.running_mean", (3,), True),
    ]  # fmt: skip
    round_ = recording.round(1)
    for entry, values in round_.updates[1].delta.layers():
        np.testing.assert_array_equal(values.numpy(), change["b"][entry.name].astype(np.float32))
    for entry, values in round_.result.layers():
        np.testing.assert_array_equal(values.numpy(), result[entry.name].astype(np.float32))
    assert [(u.client, u.examples) for u in round_.updates] == [("a", 5), ("b", 1)]
    assert (round_.facts, round_.cohort) == ({"clip": 1.5}, ("a", "b"))
    assert [(d.client, d.reason) for d in round_.dropped] == [("c", "no answer")]
    write_round(tmp_path / "c", sent, {"me": arrays(1)}, seat="client", index=4)
    assert Recording(tmp_path / "c").round(4).facts == {"result_unknown": 1.0}


def test_no_torch_is_imported(tmp_path):
    code = (
        "import sys, numpy as np; from leakline.recordings.writing import write_round; w = {'w': np.ones(3)};"
        f"write_round({str(tmp_path / 'r')!r}, w, {{'a': w}}, w); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert Recording(tmp_path / "r").round(0).updates[0].client == "a"


def test_its_files_are_those_of_torchs_writer_byte_by_byte(tmp_path):
    vector, meta = torch.randn(17), {"client": "ä", "examples": "3", "part": "0", "steps": "0"}
    assert packed("delta", vector.numpy(), meta) == b"".join(pack_sealed({"delta": vector}, meta))
    (tmp_path / "x.safetensors").write_bytes(packed("delta", vector.numpy(), meta))
    tensors, said = read_sealed(tmp_path / "x.safetensors")
    assert torch.equal(tensors["delta"], vector)
    assert said == meta


def validators() -> tuple[Any, Any]:
    jsonschema = pytest.importorskip("jsonschema")
    of = jsonschema.Draft202012Validator
    of.check_schema(SCHEMA)
    return tuple(of({**SCHEMA, "$ref": f"#/$defs/{name}"}) for name in ("manifest", "round"))  # type: ignore[return-value]


def test_every_writer_keeps_to_the_schema(tmp_path):
    manifest, line = validators()
    write_round(tmp_path / "a", arrays(), {"a": arrays(1)}, arrays(2), claimed={"clip": 1.0, "noise_multiplier": 1.0})
    fed = tiny.federation(model=tiny.image_net, task=tiny.task(shape=tiny.IMAGE))
    recorder = Recorder(tmp_path / "b", most_mb=0.01, plan=dataclasses.asdict(Plan()))
    recorder.open(fed.wire)
    for round_ in federate(fed):
        recorder.write(round_)
    for name in "ab":
        manifest.validate(json.loads((tmp_path / name / "recording.json").read_text()))
        for written in (tmp_path / name / "rounds.jsonl").read_text().splitlines():
            line.validate(json.loads(written))
    for wrong in (
        {"version": 2},
        {"seat": "moon"},
        {"layout": []},
        {"claimed": {"noise_multiplier": 1}},
        {"plan": {"lr": 1}},
    ):
        assert not manifest.is_valid({**json.loads((tmp_path / "a" / "recording.json").read_text()), **wrong})
    assert not line.is_valid({"round": -1, "cohort": [], "kept": []})


def test_the_schema_names_what_the_code_names():
    parts = SCHEMA["$defs"]["manifest"]["properties"]
    assert set(parts["plan"]["properties"]) == set(PLAN) == {f.name for f in dataclasses.fields(Plan)}
    assert set(parts["claimed"]["properties"]) == {f.name for f in dataclasses.fields(Claimed)}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"updates": {"a": {"w": np.ones((4, 3), np.float32)}}}, "the update of a has no b"),
        ({"updates": {"a": {**arrays(), "w": np.ones(5)}}}, r"w is float64 of shape \(5,\) in the update of a"),
        ({"updates": {"a": {**arrays(), "w": np.ones((4, 3), int)}}}, "w is int64"),
        ({"updates": {"../a": arrays()}}, "cannot be a file name"),
        ({"updates": {"sent": arrays()}}, "cannot be a file name"),
        ({"result": {}}, "result has no"),
        ({"sent": {"n": np.array(1)}}, "no array of floating-point numbers"),
        ({"sent": {"n": np.array("x")}}, "n is of type"),
        ({"examples": {"a": 0}}, "a trained on 0 examples"),
        ({"examples": {"a": 1.5}}, "1.5 examples"),
        ({"plan": {"lr": 1}}, "a plan has no 'lr'"),
        ({"claimed": {"noise_multiplier": 1.0}}, "give clip too"),
        ({"claimed": {"clap": 1.0}}, "clap"),
        ({"index": -1}, "no number -1"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line_and_nothing_is_written(changes, said, tmp_path):
    given = {"sent": arrays(), "updates": {"a": arrays(1)}, "result": arrays(2), **changes}
    with pytest.raises(LeaklineError, match=said):
        write_round(tmp_path / "r", **given)
    assert not (tmp_path / "r" / "rounds.jsonl").exists()
    assert not (tmp_path / "r" / "kept").exists()


def test_two_recorders_on_one_folder_are_told_apart(tmp_path):
    write_round(tmp_path, arrays(), {"a": arrays(1)}, run="first")
    with pytest.raises(StoreError, match="a recording of another run already"):
        write_round(tmp_path, arrays(), {"a": arrays(1)}, run="second")
    with pytest.raises(StoreError, match="round 0 is recorded already, the last is 0"):
        write_round(tmp_path, arrays(), {"a": arrays(1)}, run="first", index=0)
    with pytest.raises(StoreError, match="of another model"):
        write_round(tmp_path, {"w": np.ones(3)}, {"a": {"w": np.ones(3)}}, run="first")
    write_round(tmp_path, arrays(), {"a": arrays(1)}, run="first")
    assert Recording(tmp_path).indices() == [0, 1]


def test_recorders_at_the_same_time_leave_whole_rounds(tmp_path):
    code = (
        "import sys, numpy as np; from leakline.recordings.writing import write_round; w = {'w': np.ones(3)}\n"
        f"for _ in range(15): write_round({str(tmp_path / 'r')!r}, w, {{sys.argv[1]: w}}, w, run='shared')"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, name]) for name in ("a", "b")]
    assert [process.wait() for process in both] == [0, 0]
    recording = Recording(tmp_path / "r")
    assert recording.indices() == list(range(30))
    assert sorted(recording.clients(i)[0] for i in range(30)) == ["a"] * 15 + ["b"] * 15


def test_half_a_recording_is_read_as_far_as_it_goes_and_gone_on_with(tmp_path):
    for _ in range(2):
        write_round(tmp_path, arrays(), {"a": arrays(1)}, arrays(2))
    lines = tmp_path / "rounds.jsonl"
    lines.write_text(lines.read_text()[:-30])  # a kill in mid-line
    assert Recording(tmp_path).indices() == [0]
    assert last_round(lines) == 0
    write_round(tmp_path, arrays(), {"a": arrays(1)}, arrays(2))
    assert Recording(tmp_path).indices() == [0, 1]
    lines.unlink()  # a kill before the first line
    with pytest.raises(StoreError, match="holds no round"):
        Recording(tmp_path).indices()
    path = tmp_path / "recording.json"
    path.write_text('{"format": "leakline-rec')
    with pytest.raises(StoreError, match="recording.json: it cannot be read"):
        Recording(tmp_path)


def test_the_last_round_is_found_at_the_end_of_long_lines(tmp_path):
    path = tmp_path / "rounds.jsonl"
    assert last_round(path) == -1
    append(path, [{"round": i, "cohort": ["x" * 60] * 300} for i in range(12)])
    assert last_round(path) == 11


def test_kept_may_name_files_or_stems(tmp_path):
    write_round(tmp_path, arrays(), {"a": arrays(1)}, arrays(2))
    lines = read_lines(tmp_path / "rounds.jsonl")
    lines[0]["kept"] = [f"{name}.safetensors" for name in lines[0]["kept"]]
    write_lines(tmp_path / "rounds.jsonl", lines)
    assert Recording(tmp_path).clients(0) == ["a"]
