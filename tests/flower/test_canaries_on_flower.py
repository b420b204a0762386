"""Canaries inside a run on Flower: the readings of the same audit in this process, or a refusal before training."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from leakline.flower.transport.drive import _left, _named
from leakline.flower.transport.submit import Asked
from leakline.study.run import run_study
from leakline.study.store import Store
from nodes_here import own_nodes, serving, simulated_nodes
from three_clients import STUDY
from watched import alone, leakline, watch

EVEN = '[strategies]\nfedavg = { use = "fedavg", weighting = "even" }\n'
AUDIT = '[[attacks]]\nuse = "in-run-audit"\ncanaries = 60\n'
DEFENCES = {
    "clients": '[defences]\nglobal-dp = [{ use = "global-dp", noise_multiplier = 2.0, clip = 0.5 }]\n',
    "private layers": '[defences]\nboth = [{ use = "fedper", last = 1 }, '
    '{ use = "adaptive-clip", noise_multiplier = 2.0, clip = 0.5 }]\n',
    "opposites": '[defences]\ngaussian-release = [{ use = "gaussian-release", noise_multiplier = 2.0, clip = 0.5 }]\n',
    "parts": '[defences]\nintermediaries = [{ use = "intermediaries", noise_multiplier = 2.0, clip = 0.5, '
    'parts = "public", most = 3 }]\n',
    "records": '[defences]\ndp-sgd = [{ use = "dp-sgd", noise_multiplier = 2.0, clip = 0.5 }]\n',
}


def text(kind: str) -> str:
    return STUDY + EVEN + DEFENCES[kind] + AUDIT


def here(study: str, out: Path) -> list[dict]:
    """What the audit reads of the one cell in this process."""
    (outcome,) = run_study(Asked(study).study(), out, workers=1)
    return audited(out, outcome.run.key)


def audited(out: Path, run: str) -> list[dict]:
    found = [reading for reading in Store(out).run(run).attacks() if reading["by"] == "in-run-audit"]
    assert "epsilon" in {reading["measure"] for reading in found}
    return found


@pytest.mark.parametrize("kind", ["clients", "private layers", "records"])
def test_simulated_nodes_train_with_the_canaries_that_a_run_here_has(kind, tmp_path):
    out = tmp_path / "out"
    record, grid = serving(text(kind), simulated_nodes(text(kind), out), out)
    assert [cell["error"] for cell in record["cells"]] == [""]
    assert all(node.heads.count("train") + node.heads.count("evaluate") >= 6 for node in grid.nodes.values())
    there = audited(out, record["cells"][0]["run"])
    assert there == here(text(kind), tmp_path / "here")


def at_nodes(kind: str, folder: Path) -> str:
    """The study without any data of the clients in it."""
    test = Asked(STUDY).study().cells[0].federation().task.test
    own = folder / "server.npz"
    np.savez(own, x=test.x.numpy(), y=test.y.numpy())
    return text(kind).replace(
        'use     = "digits"\nlimit   = 240\nclients = 3',
        'use = "at-nodes"\nsites = ["client-1", "client-2", "client-3"]\nshape = [1, 8, 8]\n'
        f'classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]\ntest = {json.dumps(str(own))}',
    )


@pytest.mark.parametrize("kind", [kind for kind in DEFENCES if kind != "records"])
def test_canary_clients_are_played_beside_nodes_that_keep_their_data(kind, tmp_path):
    """Intermediaries state no clip, so a canary's length is tried on data that are here, too."""
    study, out = text(kind) if kind == "parts" else at_nodes(kind, tmp_path), tmp_path / "out"
    nodes = own_nodes(STUDY, tmp_path / "n")
    for node in nodes:
        node.context.run_config["study"] = study
    record, _ = serving(study, nodes, out)
    assert [cell["error"] for cell in record["cells"]] == [""]
    run = record["cells"][0]["run"]
    assert audited(out, run) == here(text(kind), tmp_path / "here")
    left, _ = _left(Asked(study), _named(Asked(study)), record)  # what the command goes on with
    assert left.every_attack == ("in-run-audit",)
    assert not any("not attacked" in note for note in left.notes)
    (outcome,) = run_study(left, out)
    assert not outcome.error
    assert not outcome.trained


def test_nodes_train_no_more_than_was_asked_for_by_name(tmp_path):
    study = 'attacks = "strongest"\n' + at_nodes("clients", tmp_path).replace(AUDIT, "")
    assert "in-run-audit" in Asked('attacks = "strongest"\n' + text("clients").replace(AUDIT, "")).study().every_attack
    nodes = own_nodes(STUDY, tmp_path / "n")
    for node in nodes:
        node.context.run_config["study"] = study
    record, grid = serving(study, nodes, tmp_path / "out")
    assert [cell["error"] for cell in record["cells"]] == [""]
    assert all(node.heads == ["query", "train", "train", "train"] for node in grid.nodes.values())
    left, _ = _left(Asked(study), _named(Asked(study)), record)
    assert left.every_attack == ()
    assert any("not attacked" in note and "in-run-audit" in note for note in left.notes)


@pytest.mark.parametrize(
    ("kind", "why"),
    [("records", "lie among a client's own records, and those are at its node"), ("none", "where no clip is known")],
)
def test_what_nodes_cannot_be_audited_with_is_refused_before_training(kind, why, tmp_path):
    study = at_nodes("records", tmp_path)
    study = study if kind == "records" else study.replace(DEFENCES["records"], "")
    nodes = own_nodes(STUDY, tmp_path / "n")
    for node in nodes:
        node.context.run_config["study"] = study
    record, grid = serving(study, nodes, tmp_path / "out")
    assert why in record["cells"][0]["error"]
    assert "fix:" in record["cells"][0]["error"]
    assert all(node.heads == ["query"] for node in grid.nodes.values())


def test_records_that_are_here_too_are_audited_here(tmp_path):
    """Nodes hold what the study has: no node is given canary records, and the command audits in its own process."""
    study, out = text("records"), tmp_path / "out"
    record, grid = serving(study, own_nodes(study, tmp_path / "n"), out)
    assert [cell["error"] for cell in record["cells"]] == [""]
    assert Store(out).run(record["cells"][0]["run"]).met() == set()
    left, opens = _left(Asked(study), _named(Asked(study)), record)
    (outcome,) = run_study(left, out, workers=1, opens=opens)
    assert audited(out, outcome.run.key) == here(study, tmp_path / "here")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="watches processes through /proc")
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.parametrize("kind", ["clients", "records"])
def test_on_flowers_simulation(kind, tmp_path, monkeypatch):
    eye = watch(tmp_path / "watch", monkeypatch)
    (tmp_path / "study.toml").write_text(text(kind))
    command = leakline("run", str(tmp_path / "study.toml"), "--on", "flower-sim", "--out", str(tmp_path / "out"))
    done = subprocess.run([*alone(), *command], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert eye.left_behind() == []
    (run,) = [cell["run"] for cell in Store(tmp_path / "out").grid()["cells"]]
    assert audited(tmp_path / "out", run) == here(text(kind), tmp_path / "here")
    log = [json.loads(line) for line in (Store(tmp_path / "out").run(run).path / "log.jsonl").read_text().splitlines()]
    assert any(line.get("on") == "flower" and line.get("met") == ["in-run-audit"] for line in log)
