"""docs/deployment.md typed to the letter, each command on a machine of its own; then all that may go wrong there.

Minutes of one core: a SuperLink, a proxy and three nodes over TLS, and the dozens of processes that Flower starts.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from leakline.data import Client, Data, Task
from leakline.federation import Federation, federate
from leakline.flower.transport.submit import Asked
from leakline.messages import Dropped, Order, Update
from leakline.runtimes.local import LocalTransport
from leakline.study.store import Store
from machines import Machine, machines, until
from watched import watch

GUIDE = Path(__file__).parents[2] / "docs" / "deployment.md"
SITES = ("north", "south", "east")
slow = pytest.mark.slow
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")
FAULTS = """
import os, sys, time
from pathlib import Path

here = Path(os.environ["LEAKLINE_MACHINE"])
if (here / "version").exists() and Path(sys.argv[0]).name == "flwr-clientapp":
    import leakline
    leakline.__version__ = "0.0.1"
if (here / "hang").exists() and Path(sys.argv[0]).name == "flwr-clientapp":
    import leakline.runtimes.client as client
    client.answer = lambda *_: time.sleep(900)
if (here / "wait").exists() and Path(sys.argv[0]).name == "flwr-clientapp":
    import leakline.runtimes.client as client
    at_once = client.answer
    def answer(federation, bench, order, memory):
        while order.round > 0 and (here / "wait").exists():
            time.sleep(0.2)
        return at_once(federation, bench, order, memory)
    client.answer = answer
"""
"""What may be wrong with a machine, by files that lie there."""


def typed() -> list[tuple[str, bool, list[str]]]:
    """The guide's commands in order: where, whether they stay, and the lines."""
    found = re.findall(r"^```sh\n# at (\w+)(, and stays)?\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    return [(where, bool(stays), lines.strip().splitlines()) for where, stays, lines in found]


def shown(name: str) -> str:
    """A file as the guide has it."""
    (text,) = re.findall(rf"^```toml\n# {re.escape(name)}\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    return text


def write_data(folder: Path, task: Task, position: int) -> None:
    client = task.clients[position]
    np.savez(
        folder / "data.npz", x_train=client.train.x.numpy(), y_train=client.train.y.numpy(),
        x_test=client.train.x[:9].numpy(), y_test=client.train.y[:9].numpy(), class_names=np.array(task.classes),
    )  # fmt: skip


def held() -> Task:
    text = 'name = "d"\n[data]\nuse = "digits"\nlimit = 240\nclients = 3\n[model]\nuse = "mlp"\n'
    return Asked(text).study().cells[0].federation().task


def follow(there: dict[str, Machine]) -> None:
    """Type the guide until its nodes are up; south and east do as north does, but look only as they start."""
    for where, stays, lines in typed():
        for line in lines:
            if line.startswith("leakline run"):
                continue
            alone = where == "server" or "--check" in line  # starting looks at the same things, and the others do that
            everybody = [where] if alone else list(SITES)
            if line.startswith("leakline flower register"):
                for name in SITES:
                    shutil.copy(there[name].folder / f"{name}.key.pub", there["server"].folder)
            for name in everybody:
                own = line.replace("north", name) if name in SITES else line
                if stays:
                    log = there[name].start(own)
                    ready = {"flower-superlink": 8000, "leakline flower proxy": 8443}
                    port = next((p for start, p in ready.items() if own.startswith(start)), 0)
                    if port:
                        until(lambda name=name, port=port: there[name].listens(port))
                    else:
                        until(lambda log=log: "SuperNode ID:" in log.read_text(errors="replace"))
                    continue
                done = there[name].run(own)
                assert done.returncode == 0, f"{own}\n{done.stdout}{done.stderr}"
                if "--new" in own:
                    (there[name].folder / f"{name}.toml").write_text(shown("north.toml").replace("north", name))
                    shutil.copy(there["server"].folder / "ca.crt", there[name].folder)


class Away(LocalTransport):
    """Clients in this process, of whom some do not answer in some rounds."""

    def __init__(self, federation: Federation, lost: set[tuple[int, str]]) -> None:
        super().__init__(federation, workers=1)
        self.lost = lost

    def exchange(self, orders: Sequence[Order]) -> Iterator[Update | Dropped]:
        for order in orders:
            if (order.round, order.client) in self.lost:
                yield Dropped(order.client, "away")
            else:
                yield from super().exchange([order])


def same_in_process(text: str, task: Task, run) -> None:
    """The weights of a run are those of a federation here in which the same clients were away in the same rounds."""
    members = tuple(
        Client(name, Data(c.train.x, c.train.y), Data(c.train.x[:9], c.train.y[:9]))
        for name, c in zip(SITES, task.clients, strict=True)
    )
    whole = Task(members, None, None, task.classes)
    federation = Asked(text).study(lambda *_: whole).cells[0].federation()
    lost = {(record["round"], client) for record in run.rounds() for client, _ in record["dropped"]}
    with Away(federation, lost) as transport:
        (*_, last) = federate(federation, transport)
    assert torch.equal(run.final_weights().vector, last.result.vector)


def rounds(out: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in out.glob("runs/*/rounds.jsonl"))


def env(name: str, tmp_path: Path) -> dict[str, str]:
    """A machine's own: nothing that it says or keeps is another's."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    modules = f"{tmp_path / 'faults'}{os.pathsep}{os.environ['PYTHONPATH']}"
    home = tmp_path / name
    own = {"LEAKLINE_MACHINE": str(home), "FLWR_HOME": str(home / "flower"), "HOME": str(home)}
    return {**os.environ, **quiet, **own, "PATH": path, "PYTHONPATH": modules}


@pytest.fixture
def there(tmp_path, monkeypatch):
    """A consortium that has followed the guide up to its nodes; afterwards nothing of it is left."""
    eye = watch(tmp_path / "watch", monkeypatch)
    (tmp_path / "faults").mkdir()
    hook = (tmp_path / "watch" / "hooks" / "sitecustomize.py").read_text()
    (tmp_path / "faults" / "sitecustomize.py").write_text(hook + FAULTS)
    task = held()
    sites = {name: ["server.example"] for name in SITES}
    with machines(tmp_path, "server", sites, lambda name: env(name, tmp_path)) as up:
        for position, name in enumerate(SITES):
            write_data(up[name].folder, task, position)
        for machine in up.values():
            (machine.folder / "hospitals.toml").write_text(shown("hospitals.toml"))
        follow(up)
        yield up
    assert eye.left_behind() == []
    assert [e for e in eye.abroad() if not str(e[1][0]).startswith("10.77.")] == []


def driving() -> str:
    """The guide's command that trains."""
    (line,) = [line for _, _, lines in typed() for line in lines if line.startswith("leakline run")]
    return line


def trained(out: Path):
    """The run that the newest submission trained."""
    return Store(out).run(json.loads((out / "flower.json").read_text())["cells"][0]["run"])


@slow
def test_the_guide_as_it_is_written(there):
    """One node declines: it asks for more than is promised."""
    server, folder = there["server"], there["server"].folder
    east = there["east"].folder / "east.toml"
    east.write_text(east.read_text().replace("epsilon  = 8.0", "epsilon = 0.1"))  # it is read at every turn
    done = server.run(driving())
    assert done.returncode == 0, done.stdout + done.stderr
    reason = "its policy asks for at most epsilon 0.1 (delta 1e-05) for a record against the server"
    assert f"began without east: {reason}" in done.stdout
    assert f"this node declines cell 0: {reason}" in (there["east"].folder / "0.log").read_text()
    assert [r["cohort"] for r in trained(folder / "runs" / "hospitals").rounds()] == [["north", "south"]] * 3


def plainly(there: dict[str, Machine]) -> str:
    """A study without a defence, so that its weights can be compared, and nodes that ask for nothing; the command."""
    folder = there["server"].folder
    plain = shown("hospitals.toml").split("[defences]")[0].replace('evaluate      = "clients"\n', "")
    plain = plain.replace('"hospitals"', '"plain"').replace("[model]", 'test = "test.npz"\n\n[model]')
    (folder / "plain.toml").write_text(plain)
    task = held()
    np.savez(folder / "test.npz", x=task.test.x.numpy(), y=task.test.y.numpy(), class_names=np.array(task.classes))
    for name in SITES:
        file = there[name].folder / f"{name}.toml"
        file.write_text(file.read_text().split("[asks]")[0])
    return driving().replace("hospitals.toml", "plain.toml").replace("runs/hospitals", "runs/plain")


@slow
def test_another_version_another_name_and_what_the_proxy_refuses(there):
    _only_the_fleet_api_is_reached(there["north"])
    _a_certificate_for_another_name(there["north"])
    line = plainly(there)
    (there["east"].folder / "version").touch()
    done = there["server"].run(line)
    assert done.returncode != 0
    assert "1 nodes run another leakline than the server's" in done.stderr
    assert "east: 0.0.1" in done.stderr
    assert rounds(there["server"].folder / "runs" / "plain") == 0


@slow
def test_one_that_hangs_one_that_is_killed_and_a_closed_terminal(there):
    """Each has its line, and the weights are those of the same clients in this process.

    South hangs in the first round, north is killed in the second, which waits at east until north is back.
    """
    server, folder = there["server"], there["server"].folder
    line, out = f"{plainly(there)} --deadline 600", folder / "runs" / "plain"
    _limit(there["south"], 45)  # of a first round so long the next one may take two and a half minutes
    (there["south"].folder / "hang").touch()
    for name in ("north", "east"):
        (there[name].folder / "wait").touch()
    server.start(line)
    until(lambda: rounds(out) >= 1)
    (there["south"].folder / "hang").unlink()
    there["north"].kill("leakline flower node north.toml")
    server.kill(line)  # the terminal is closed; what was handed over goes on
    (there["north"].folder / "wait").unlink()
    _comes_back(there["north"])
    again = server.run(line)
    assert again.returncode == 2
    assert "this study was handed over before and is at work" in again.stderr
    (there["east"].folder / "wait").unlink()
    done = server.run("leakline flower attach runs/plain", timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finished:completed" in server.run("leakline flower stop runs/plain").stdout
    dropped = [dict(record["dropped"]) for record in trained(out).rounds()]
    assert dropped[0] == {"south": "it took longer than 45 s, the most that its node allows"}
    assert list(dropped[1]) == ["north"]
    assert re.search("node is gone|no answer|no node of that name", dropped[1]["north"])
    assert dropped[2:] == [{}]
    same_in_process((folder / "plain.toml").read_text(), held(), trained(out))


def _limit(machine: Machine, seconds: int) -> None:
    """Another time limit: it is told to the node's app when the node starts."""
    file = machine.folder / f"{machine.name}.toml"
    file.write_text(re.sub(r"limit\s+= \d+", f"limit = {seconds}", file.read_text()))
    machine.stop(f"leakline flower node {machine.name}.toml")
    _comes_back(machine)


def _comes_back(machine: Machine) -> None:
    """Start a node as its unit does: again, while the SuperLink thinks that one of its key is there."""
    line, end = f"leakline flower node {machine.name}.toml", time.monotonic() + 600
    while time.monotonic() < end:
        log = machine.start(line)
        until(lambda log=log: "SuperNode ID:" in log.read_text(errors="replace") or not machine.runs(line))
        if machine.runs(line):
            return
        assert "Failed to activate SuperNode" in log.read_text(errors="replace")
        time.sleep(30)  # the unit's RestartSec
    raise AssertionError("the SuperLink does not let it come back")


def _only_the_fleet_api_is_reached(north: Machine) -> None:
    asked = "curl --silent --cacert ca.crt --output /dev/null --write-out %{{http_code}} -X POST https://server.example:{}/v1/{}"
    assert north.run(asked.format(8443, "control/list-runs")).stdout == "403"
    assert north.run(asked.format(8443, "runtime/acquire-task")).stdout == "403"
    assert north.run(asked.format(8443, "fleet/get-run")).stdout not in ("403", "000", "502")
    assert north.run(asked.format(8000, "control/list-runs")).returncode == 7  # nobody listens there for others
    done = north.run(
        "leakline run hospitals.toml --on flower --superlink server.example:8443 --root-certificates ca.crt"
    )
    assert done.returncode == 2
    assert "a proxy lets nodes through to this SuperLink, and nobody else" in done.stderr


def _a_certificate_for_another_name(north: Machine) -> None:
    text = (north.folder / "north.toml").read_text().replace("server.example:8443", "10.77.1.1:8443")
    (north.folder / "other.toml").write_text(text)
    done = north.run("leakline flower node other.toml --check")
    assert done.returncode == 2
    assert "superlink  wrong  10.77.1.1:8443: the certificate there is for another name than 10.77.1.1" in done.stdout
