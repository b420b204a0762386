"""Certificates, processes, exported apps and the commands around them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
import tomllib
import warnings
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from leakline.cli import app
from leakline.errors import LeaklineError, RuntimeMissing, StoreError, StudyError
from leakline.flower import need_flower, trial
from leakline.flower.app_files import export
from leakline.flower.processes import QUIET, born, environment, flwr, free_port, healthy, stop, tree
from leakline.flower.transport.submit import Link, _ended, connect
from leakline.flower.trial.certificates import make_certificates, make_node_key

STUDY = """
name  = "s"
title = "π \U0001f338 \\"quoted\\" \\\\ \\t"
[data]
use     = "digits"
clients = 3
[model]
use = "mlp"
"""


def command(*arguments: str):
    """The command line, with its errors as `main` would print them."""
    done = CliRunner().invoke(app, list(arguments))
    if isinstance(done.exception, LeaklineError):
        return 2, str(done.exception)
    return done.exit_code, done.output


# certificates and keys


def test_the_authority_vouches_for_loopback_and_its_key_is_gone(tmp_path):
    authority, certificate, key = make_certificates(tmp_path)
    root, leaf = (x509.load_pem_x509_certificate(p.read_bytes()) for p in (authority, certificate))
    leaf.verify_directly_issued_by(root)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.curve.name == "secp384r1"
    assert private.public_key() == leaf.public_key()
    assert key.stat().st_mode & 0o777 == 0o600
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ca.crt", "server.crt", "server.key"]
    before = key.read_bytes()
    make_certificates(tmp_path)
    assert key.read_bytes() == before  # a federation that is started again is still believed


def test_node_keys_are_what_flower_registers(tmp_path):
    private, public = make_node_key(tmp_path)
    key = serialization.load_ssh_private_key(private.read_bytes(), None)
    assert serialization.load_ssh_public_key(public.read_bytes()) == key.public_key()
    assert key.curve.name == "secp384r1"
    assert private.stat().st_mode & 0o777 == 0o600


# processes

NEST = """
import subprocess, sys, time
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(99)"
child = subprocess.Popen([sys.executable, "-c", deaf])
print(child.pid, flush=True)
time.sleep(99)
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@linux
def test_stop_ends_a_process_with_its_children_and_nobody_else():
    parent = subprocess.Popen([sys.executable, "-c", NEST], stdout=subprocess.PIPE, text=True)
    bystander = subprocess.Popen(["sleep", "99"])
    child = int(parent.stdout.readline())
    time.sleep(0.5)  # the child must have learnt to ignore the polite signal
    family = tree(parent.pid)
    assert set(family) == {parent.pid, child}
    stop(family, grace=1.0)
    assert born(parent.pid) == born(child) == ""
    assert bystander.poll() is None
    stop({bystander.pid: "another birthday"}, grace=0.1)  # a number that was used again is somebody else
    assert bystander.poll() is None
    stop({bystander.pid: born(bystander.pid)})
    assert born(bystander.pid) == ""
    parent.stdout.close()
    bystander.wait()
    parent.wait()


STARTS = """
import os, sys, time
from pathlib import Path
from leakline.flower.processes import start
print(start(["sleep", "99"], dict(os.environ), Path(sys.argv[1]), with_us=True).pid, flush=True)
time.sleep(99)
"""


@linux
def test_what_was_started_for_one_run_ends_with_it_even_if_that_is_killed(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", STARTS, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    assert born(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until = time.monotonic() + 10
    while born(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert born(child) == ""


@linux
def test_down_spares_a_process_that_took_over_a_number(tmp_path):
    bystander = subprocess.Popen(["sleep", "99"])
    gone = {"pid": bystander.pid, "born": "1"}
    (tmp_path / "trial.json").write_text(json.dumps({"processes": {"superlink": gone}, "nodes": []}))
    assert trial.running(tmp_path) == {"superlink": False}
    assert trial.down(tmp_path) == []
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
    with pytest.raises(StoreError, match="no trial federation was started here"):
        trial.down(tmp_path)


def test_flower_is_told_to_keep_quiet(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    env = environment(tmp_path / "home")
    assert env["FLWR_TELEMETRY_ENABLED"] == "0"
    assert QUIET.items() <= env.items()
    assert env["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


def test_a_superlink_that_does_not_answer_is_said_to(tmp_path):
    link = Link(f"127.0.0.1:{free_port()}")
    assert not healthy(link.address)
    env = connect(link, tmp_path)
    with pytest.raises(LeaklineError, match="flwr list failed"):
        flwr(["list", "leakline"], env)
    with pytest.raises(LeaklineError, match="the SuperLink no longer answers"):
        _ended("1", env, link, tmp_path, "token", lambda *_: None, every=0.0)


# apps


def test_an_exported_app_is_one_that_flower_takes(tmp_path):
    folder = export(STUDY, tmp_path / "app", name="S", sets=["training.rounds=3"], settings={"out": "/x"})
    assert sorted(p.name for p in folder.iterdir()) == ["LICENSE", "client_app.py", "pyproject.toml", "server_app.py"]
    config = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert config["study"] == STUDY
    assert json.loads(config["sets"]) == ["training.rounds=3"]
    assert config["out"] == "/x"
    from flwr.cli.build import build_fab_from_disk
    from flwr.cli.config_utils import load_and_validate

    _, remarks = load_and_validate(folder / "pyproject.toml")
    assert remarks == []
    warnings.simplefilter("ignore")  # what Flower's own libraries say to Flower
    assert len(build_fab_from_disk(folder)) > 500
    with pytest.raises(StudyError, match="not empty"):
        export(STUDY, folder)


def test_the_halves_of_an_app_are_there_before_torch_is():
    code = "import sys, leakline.flower as f; f.client_app(), f.server_app(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# commands


def test_commands_say_what_is_wrong(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(STUDY)
    run = ("run", "study.toml", "--out", str(tmp_path / "out"))
    assert "there is no place 'mars'" in command(*run, "--on", "mars")[1]
    assert "which SuperLink?" in command(*run, "--on", "flower")[1]
    assert "how is the SuperLink known?" in command(*run, "--on", "flower", "--superlink", "127.0.0.1:1")[1]
    both = ("--insecure", "--root-certificates", "x")
    assert "how is the SuperLink known?" in command(*run, "--on", "flower", "--superlink", "127.0.0.1:1", *both)[1]
    gone = ("--root-certificates", "gone.crt")
    assert "there is no file gone.crt" in command(*run, "--on", "flower", "--superlink", "127.0.0.1:1", *gone)[1]
    assert "no trial federation" in command("flower", "down")[1]
    assert "no trial federation" in command("flower", "status")[1]
    assert "the study has 3 clients, not 2" in command("flower", "up", "--study", "study.toml", "--nodes", "2")[1]
    Path("empty").mkdir()
    assert "0 nodes' data are there" in command("flower", "up", "--data", "empty")[1]
    assert not Path(".leakline-flower/trial.json").exists()


def test_a_study_is_exported_and_split_by_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(STUDY)
    code, said = command("flower", "export", "study.toml", "app")
    assert code == 0
    assert "flwr run app" in said
    assert tomllib.loads(Path("app/pyproject.toml").read_text())["project"]["name"] == "leakline-s"
    code, said = command("flower", "split", "study.toml", "shares")
    assert code == 0
    assert sorted(p.name for p in Path("shares").iterdir()) == ["client-1", "client-2", "client-3"]
    assert 'client="client-2" data="' in said


def test_a_missing_extra_is_named(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else find(name, *rest))
    need_flower()
    with pytest.raises(RuntimeMissing, match=r"ray is not installed[\s\S]*leakline\[flower\]"):
        need_flower(simulation=True)


def test_nodes_need_names_and_data(tmp_path):
    for name, data in (("../x", tmp_path), ("a", tmp_path / "gone")):
        with pytest.raises(LeaklineError):
            trial.up(tmp_path / "trial", [trial.Node(name, data)])
    with pytest.raises(LeaklineError, match="nothing to start again"):
        trial.up(tmp_path / "new")


def test_code_of_the_users_own_travels_with_the_app(tmp_path):
    from leakline.foreign import Foreign

    (tmp_path / "net.py").write_text("x = 1\n")
    (tmp_path / "pkg" / "deep").mkdir(parents=True)
    for name in ("__init__.py", "other.py", "deep/__init__.py", "deep/net.py"):
        (tmp_path / "pkg" / name).write_text(f"# {name}\n")
    (tmp_path / "pkg" / "patients.csv").write_text("secret")
    code = [
        Foreign("net:build", tmp_path / "net.py"),
        Foreign("pkg.deep.net:build", tmp_path / "pkg" / "deep" / "net.py"),
        Foreign("pkg:build", tmp_path / "pkg" / "__init__.py"),
        Foreign("installed.net:build", tmp_path / "elsewhere" / "net.py", "installed"),
    ]
    folder = export("", tmp_path / "app", code=code)
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    own = {"pyproject.toml", "LICENSE", "client_app.py", "server_app.py"}
    assert found - own == {"net.py", "pkg/__init__.py", "pkg/other.py", "pkg/deep/__init__.py", "pkg/deep/net.py"}
    assert (folder / "pkg" / "deep" / "net.py").read_text() == "# deep/net.py\n"
    (tmp_path / "client_app.py").write_text("")
    with pytest.raises(StudyError, match="name of the app's own"):
        export("", tmp_path / "app2", code=[Foreign("client_app:build", tmp_path / "client_app.py")])
