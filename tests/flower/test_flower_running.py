"""Flower as real processes: Ray's simulation, and a SuperLink with three SuperNodes over TLS on loopback.

Everything here starts dozens of Python processes: minutes, not seconds. Three scenarios (plain FedAvg, FedYogi under
global DP with seeded noise, FedPer under intermediaries) must give the very weights that this process computes.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from leakline.flower.processes import environment, free_port, start, stop, tree
from leakline.flower.transport.shares import write_shares
from leakline.flower.transport.submit import Asked
from leakline.flower.trial import Node, down, running, up
from leakline.flower.trial.certificates import make_node_key
from leakline.study.files import read_json
from leakline.study.run import run_study
from leakline.study.store import Store
from three_clients import SCENARIOS, STUDY
from watched import alone, leakline, watch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="watches processes through /proc")


@pytest.fixture
def eye(tmp_path, monkeypatch):
    return watch(tmp_path / "watch", monkeypatch)


def write_study(folder: Path, text: str) -> Path:
    path = folder / "study.toml"
    path.write_text(text)
    return path


def same_as_here(text: str, out: Path, folder: Path) -> None:
    """Every run in ``out`` holds the weights and readings that this process computes."""
    for outcome in run_study(Asked(text).study(), folder, workers=1):
        there = Store(out).run(outcome.run.key)
        assert there.end["status"] == "finished"
        assert torch.equal(there.final_weights().vector, outcome.run.final_weights().vector)
        assert there.readings() == outcome.run.readings()
        assert there.rounds() == outcome.run.rounds()


def started(text: str, folder: Path, **options) -> tuple[Path, list[str]]:
    """A trial federation whose nodes hold only their own files, and the command that runs the study on it."""
    shares = write_shares(Asked(text).study(), folder / "shares")
    link = up(folder / "trial", [Node(name, path) for name, path in shares.items()], **options)
    how = ["--superlink", link.address, "--root-certificates", str(link.certificate)]
    study = write_study(folder, text)
    return folder / "trial", leakline("run", str(study), "--on", "flower", *how, "--out", str(folder / "out"))


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_on_ray_without_a_network(eye, tmp_path):
    study = write_study(tmp_path, STUDY + SCENARIOS)
    command = leakline("run", str(study), "--on", "flower-sim", "--out", str(tmp_path / "out"))
    done = subprocess.run([*alone(), *command], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert eye.abroad() == []
    assert eye.left_behind() == []
    same_as_here(STUDY + SCENARIOS, tmp_path / "out", tmp_path / "here")
    assert "3 of 3 cells done" in done.stdout


LEAST = (
    STUDY.replace("rounds        = 3", "rounds        = 2").replace("clients = 3", "clients = 2")
    + """
[strategies]
fedyogi = { use = "fedyogi", weighting = "even" }
[[defences.both]]
use  = "fedper"
last = 1
[[defences.both]]
use              = "intermediaries"
noise_multiplier = 1.0
clip             = 0.5
parts            = 2
"""
)
"""Every message starts a process of seconds, so as few as show it: one cell of two clients and two rounds, between
which the server's state and the nodes' own layers must last, with noise, parts and judges at the nodes. The three
scenarios, each of three clients and three rounds, are slow."""


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        pytest.param(LEAST, ["client-1", "client-2"], id="one"),
        pytest.param(STUDY + SCENARIOS, ["client-1", "client-2", "client-3"], id="three", marks=pytest.mark.slow),
    ],
)
def test_deployed_with_encryption_and_registered_nodes(eye, tmp_path, text, nodes):
    trial, command = started(text, tmp_path)
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        _strangers_are_kept_out(trial)
    finally:
        ended = down(trial)
        still = bystander.poll() is None
        bystander.kill()
        bystander.wait()
    assert sorted(ended) == [*nodes, "superlink"]
    assert still
    assert eye.left_behind() == []
    assert eye.abroad() == []
    same_as_here(text, tmp_path / "out", tmp_path / "here")
    opened = {(Path(home).parent.name, Path(path).parent.name) for _, path, home, who in eye.entries("open")
              if who == "flwr-clientapp"}  # fmt: skip
    assert opened == {(name, name) for name in nodes}  # nobody opens another's file
    assert (trial / "nodes" / "client-1" / "node-key").stat().st_mode & 0o077 == 0


def _strangers_are_kept_out(trial: Path) -> None:
    """A node with a key that nobody registered, and one without a key, are turned away."""
    state = read_json(trial / "trial.json")
    rogue = trial / "rogue"
    rogue.mkdir()
    private, _ = make_node_key(rogue)
    secured = [f"--ssl-{name}file" for name in ("ca-cert", "cert", "key")]
    paths = [str(trial / name) for name in ("ca.crt", "server.crt", "server.key")]
    for key in (["--auth-supernode-private-key", str(private)], []):
        command = [
            "flower-supernode", "--superlink", f"127.0.0.1:{state['port']}", "--host", "127.0.0.1",
            "--port", str(free_port()), "--root-certificates", paths[0], "--node-config", 'client="client-1"',
            *(part for pair in zip(secured, paths, strict=True) for part in pair), *key,
        ]  # fmt: skip
        log = rogue / f"{len(key)}.log"
        process, family = start(command, environment(rogue / "home"), log), {}
        until = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < until:
            family |= tree(process.pid)
            time.sleep(0.1)
        stop(family)  # Flower's helper outlives a node that was turned away
        assert process.returncode not in (None, 0)
        assert "SuperNode ID:" not in log.read_text()


def rounds_done(out: Path) -> int:
    lines = list(out.glob("runs/*/rounds.jsonl"))
    return sum(path.read_bytes().count(b"\n") for path in lines)


@pytest.mark.slow
def test_a_superlink_that_is_killed_and_started_again(eye, tmp_path):
    text = STUDY + '[defences]\nfedper = [{ use = "fedper", last = 1 }]\n'
    trial, command = started(text, tmp_path)
    try:
        first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        until = time.monotonic() + 300
        while rounds_done(tmp_path / "out") < 1 and time.monotonic() < until:
            time.sleep(0.2)
        os.kill(read_json(trial / "trial.json")["processes"]["superlink"]["pid"], signal.SIGKILL)
        said, _ = first.communicate(timeout=120)
        assert first.returncode == 2, said
        assert "give the same command" in said
        assert rounds_done(tmp_path / "out") < 3
        assert running(trial)["superlink"] is False
        up(trial)
        assert all(running(trial).values())
        again = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert again.returncode == 0, again.stdout + again.stderr
    finally:
        down(trial)
    assert eye.left_behind() == []
    same_as_here(text, tmp_path / "out", tmp_path / "here")


FAULTY = '''
"""A model that misbehaves at one node in some rounds: what is asked of it lies in a file."""
import os, time
from pathlib import Path
import torch
from torch import nn

class Net(nn.Sequential):
    def forward(self, x):
        place = Path(os.environ.get("FLWR_HOME", "")).parent
        fault = place / "fault"
        what = fault.read_text() if place.name == "client-2" and fault.exists() else ""
        if what == "raise":
            raise OSError("no such file: /srv/patients/jane.dcm")
        if what == "hang":
            time.sleep(600)
        if what == "nan":
            return super().forward(x) * float("nan")
        return super().forward(x)

def build(**given):
    place = Path(os.environ.get("FLWR_HOME", "")).parent
    wide = place.name == "client-2" and (place / "fault").exists() and (place / "fault").read_text() == "shape"
    return Net(nn.Flatten(), nn.Linear(64, 9 if wide else 8), nn.Tanh(), nn.Linear(9 if wide else 8, 10))
'''
REASONS = ("raised OSError", "NaN", "the studies differ", "no answer", "its node is gone")


@pytest.mark.slow
def test_faults_of_a_real_node_end_as_a_dropped_client(eye, tmp_path, monkeypatch):
    """One node raises, answers NaN, has another model, hangs past the deadline, and is at last killed in mid-round."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "faulty.py").write_text(FAULTY)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'modules'}{os.pathsep}{os.environ['PYTHONPATH']}")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    text = STUDY.replace('[model]\nuse    = "mlp"\nhidden = [8]', 'model = "faulty:build"').replace(
        "rounds        = 3", "rounds = 5"
    )
    text = 'model = "faulty:build"\n' + text.replace('model = "faulty:build"\n', "")
    trial, command = started(text, tmp_path)
    fault = trial / "nodes" / "client-2" / "fault"
    try:
        fault.write_text("raise")
        process = subprocess.Popen(
            [*command, "--trust", "--deadline", "90"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for done, what in enumerate(("nan", "shape", "hang", "killed"), start=1):
            until = time.monotonic() + 300
            while rounds_done(tmp_path / "out") < done and time.monotonic() < until and process.poll() is None:
                time.sleep(0.1)
            if what == "killed":
                os.kill(read_json(trial / "trial.json")["processes"]["client-2"]["pid"], signal.SIGKILL)
            else:
                fault.write_text(what)
        said, _ = process.communicate(timeout=600)
        assert process.returncode == 0, said
    finally:
        down(trial)
    assert eye.left_behind() == []
    run = Store(tmp_path / "out").run(next((tmp_path / "out" / "runs").iterdir()).name)
    dropped = [record["dropped"] for record in run.rounds()]
    assert [[client for client, _ in each] for each in dropped] == [["client-2"]] * 5
    for each, reason in zip(dropped, REASONS, strict=True):
        assert reason in each[0][1]
        assert "jane" not in each[0][1]
    assert all(record["cohort"] == ["client-1", "client-3"] for record in run.rounds())
    assert torch.isfinite(run.final_weights().vector).all()


OWN_NET = """from torch import nn


def build(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[-1] * shape[-2], 8), nn.ReLU(), nn.Linear(8, classes))
"""


@pytest.mark.slow
def test_a_network_in_a_file_of_ones_own_travels_to_the_nodes(eye, tmp_path, monkeypatch):
    """The file lies where the command is given, and nowhere near the nodes."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "travelling_net.py").write_text(OWN_NET)
    text = STUDY.replace('[model]\nuse    = "mlp"\nhidden = [8]', 'model = "travelling_net:build"')
    text = 'model = "travelling_net:build"\n' + text.replace('model = "travelling_net:build"\n', "")
    monkeypatch.syspath_prepend(here)
    trial, command = started(text, tmp_path)
    try:
        done = subprocess.run([*command, "--trust"], cwd=here, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        down(trial)
    assert eye.left_behind() == []
    same_as_here(text, tmp_path / "out", tmp_path / "same")
