"""The commands on a recording: exit codes, clear errors, a page that loads nothing."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch

import tiny
from leakline.federation import federate
from leakline.readings import Reading
from leakline.recordings.claims import Claimed
from leakline.recordings.recorder import Recorder
from leakline.recordings.recording import Recording
from leakline.study.files import read_json, read_lines, write_json, write_lines


@pytest.fixture
def recorded(tmp_path) -> Path:
    fed = tiny.federation(model=tiny.image_net, task=tiny.task(shape=tiny.IMAGE))
    recorder = Recorder(tmp_path / "rec", plan={"batch": 4})
    recorder.open(fed.wire)
    for one in federate(fed):
        recorder.write(one)
    return tmp_path / "rec"


def test_audit_says_what_the_rounds_show(leakline, recorded):
    code, out, _ = leakline("audit", "rec")
    assert code == 0
    assert "no noise at the server" in re.sub(r"\s+", " ", out)
    assert "BatchNorm" in out
    code, out, err = leakline("audit", "rec", "--clip", "1", "--noise-multiplier", "1", "--json")
    assert code == 3
    assert "contradict" in err
    found = json.loads(out)
    assert found["claimed"] == {"clip": 1, "noise_multiplier": 1, "clip_at": "server", "noise_at": "server"}
    assert {f["check"]: f["verdict"] for f in found["findings"]}["noise"] == "broken"
    assert json.loads((recorded / "findings.json").read_text()) == found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--clip", "much"], "clip must be a number"),
        (["--clip", "-1"], "clip must be positive"),
        (["--noise-multiplier", "1"], "give clip too"),
        (["--clap", "1"], "unknown option --clap"),
        (["--clip-at", "moon"], "moon"),
    ],
)
def test_wrong_claims_are_said(leakline, recorded, words, said):
    code, _, err = leakline("audit", "rec", *words)
    assert code == 2
    assert said in err


def test_a_recording_of_another_format_is_refused_with_what_to_do(leakline, recorded):
    path = recorded / "recording.json"
    write_json(path, {**read_json(path), "version": 0})
    attack = ("attack", "rec", "--model", "tiny:image_net", "--shape", "1,8,8")
    for words in (("audit", "rec"), ("report", "rec"), attack):
        code, _, err = leakline(*words)
        assert code == 2
        assert "a recording of version 0, this one reads 1" in err
        assert "record again" in err


def test_the_report_holds_what_is_recorded_and_what_attacks_read(leakline, recorded):
    Recording(recorded).run.add_attack(
        "x", [Reading("ssim", 0.5, by="gradient-inversion", round=1, client="<script>a", chance=0.1)]
    )
    folder = recorded / "media" / "x" / "round-0001" / "a"
    folder.mkdir(parents=True)
    from PIL import Image

    Image.new("L", (4, 4)).save(folder / "strip.png")
    code, out, _ = leakline("report", "rec")
    assert code == 0
    assert out.strip().endswith("report.html")
    page = (recorded / "report.html").read_text()
    assert "no noise at the server" in page
    assert "gradient-inversion" in page
    assert "<script" not in page
    assert "&lt;script&gt;a" in page
    assert page.count("data:image/png") == 1
    assert not re.search(r"""(src|href)=["']?https?:""", page)
    assert str(recorded.parent) not in page
    leakline("report", "rec", "--shareable", "-o", "page.html")
    shared = (recorded.parent / "page.html").read_text()
    assert "data:image/png" not in shared
    assert "1 images are left out" in shared


def test_the_report_shows_the_claims_that_were_audited(leakline, recorded):
    leakline("audit", "rec", "--clip", "2.5")
    leakline("report", "rec")
    assert "Claims looked at: clip 2.5" in (recorded / "report.html").read_text()


def test_a_missing_round_is_named_by_every_command(leakline, recorded):
    for path in (recorded / "kept" / "round-0001").iterdir():
        path.unlink()
    (recorded / "kept" / "round-0001").rmdir()
    for words in (["audit", "rec"], ["report", "rec"]):
        code, _, err = leakline(*words)
        assert code == 2
        assert "round 1 is missing" in err


def test_a_gate_is_not_for_recordings(leakline, recorded):
    code, _, err = leakline("report", "rec", "--fail-if", "epsilon > 1")
    assert code == 2
    assert "--fail-if is for studies" in err


def test_hostile_text_of_a_recording_stays_text(leakline, recorded):
    record, *lines = read_lines(recorded / "rounds.jsonl")
    record["dropped"] = [["\x1b[31mx", "<img src=x onerror=1>"]]
    record["metrics"] = {"<b>": 1.0}
    write_lines(recorded / "rounds.jsonl", [record, *lines])
    assert leakline("report", "rec")[0] == 0
    page = (recorded / "report.html").read_text()
    assert "<img src=x" not in page
    assert "\x1b" not in page
    assert torch.is_tensor(Recording(recorded).round(0).sent.vector)


def test_help_names_everything_that_may_be_claimed(leakline):
    shown = re.sub(r"\s+", " ", leakline("audit", "--help")[1])
    for field in dataclasses.fields(Claimed):
        assert f"--{field.name.replace('_', '-')}" in shown or field.name == "by"


def test_what_the_recording_claims_is_audited_shown_and_reported(leakline, tmp_path):
    fed = tiny.federation(model=tiny.image_net, task=tiny.task(shape=tiny.IMAGE))
    said = {"clip": 0.5, "noise_multiplier": 1.0, "weighting": "examples", "by": "Somebody's <b>wrapper"}
    recorder = Recorder(tmp_path / "said", claimed=said)
    recorder.open(fed.wire)
    for one in federate(fed):
        recorder.write(one)
    assert leakline("report", "said")[0] == 0
    page = (tmp_path / "said" / "report.html").read_text()
    assert "Claims looked at: clip 0.5, noise_multiplier 1.0" in page
    assert "&lt;b&gt;wrapper" in page
    code, out, err = leakline("audit", "said")
    assert code == 3
    assert "contradict" in err
    assert "noise_multiplier 1.0" in re.sub(r"\s+", " ", out)
    code, out, _ = leakline(
        "audit", "said", "--noise-multiplier", "0", "--clip-at", "client", "--clip", "1e6", "--json"
    )
    assert code == 0
    assert json.loads(out)["claimed"]["clip"] == 1e6
