"""A federation on this machine, to try things out: a SuperLink and SuperNodes as real processes on loopback.

    FOLDER/
      trial.json            who there is, and which processes were started when
      ca.crt, server.*      encryption; the authority's own key is not kept
      state.db              the SuperLink's memory
      nodes/NAME/           one node's own folder: its data, its key, what it remembers, its log

Encrypted, and open only to nodes with a registered key, unless asked otherwise. Whoever can reach the SuperLink can
hand it code to run: in a consortium its port belongs behind a proxy that asks who is there.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakline.errors import LeaklineError, StoreError
from leakline.flower import need_flower
from leakline.flower.processes import born, environment, flwr, free_port, let_go, reap, start, stop, tree
from leakline.flower.transport.submit import Link, await_health, connect
from leakline.flower.trial.certificates import make_certificates, make_node_key
from leakline.names import is_safe
from leakline.study.files import read_json, write_atomically


@dataclass(frozen=True)
class Node:
    """A node to start: the client that it plays, and where that client's data are."""

    name: str
    data: Path


def up(folder: Path, nodes: Sequence[Node] = (), *, insecure: bool = False, wait: float = 120.0) -> Link:
    """Start what is not running: a SuperLink and a SuperNode for each of ``nodes``; returns the SuperLink's address.

    Called again in the same folder it starts again what has died, with the same port, keys and memory.
    """
    need_flower()
    folder = folder.absolute()
    known = read_json(folder / "trial.json") if (folder / "trial.json").is_file() else {}
    if not known and not nodes:
        raise LeaklineError("there is nothing to start again", folder.name, "say which nodes")
    if known and nodes:
        raise StoreError("there is a trial federation already", folder.name, "`leakline flower down` ends it")
    folder.mkdir(parents=True, exist_ok=True)
    os.chmod(folder, 0o700)
    state: dict[str, Any] = known or {
        "port": free_port(),
        "insecure": insecure,
        "nodes": [{"name": n.name, "data": str(n.data.absolute()), "port": 0} for n in nodes],
        "processes": {},
    }
    _check(state["nodes"])
    try:
        link = _superlink(folder, state)
        for node in state["nodes"]:
            _supernode(folder, state, node, link)
        _await_nodes(folder, state, wait)
        for process in state["processes"].values():
            process["family"] = {
                **process.get("family", {}),
                **{str(pid): day for pid, day in tree(process["pid"]).items()},
            }
        _save(folder, state)
    except BaseException:
        _save(folder, state)
        down(folder)
        raise
    return link


def down(folder: Path) -> list[str]:
    """End exactly the processes that `up` started, and what they started; returns which were still there."""
    path = folder / "trial.json"
    if not path.is_file():
        raise StoreError("no trial federation was started here", folder.name, "`leakline flower up` starts one")
    state = read_json(path)
    family: dict[int, str] = {}
    names = []
    # Nodes first: a node that loses its SuperLink would begin to call for it.
    for name, process in reversed(state["processes"].items()):
        if born(process["pid"]) == process["born"]:
            names.append(name)
            family |= tree(process["pid"])
        # Helpers of a process that was killed are nobody's children now.
        family |= {int(pid): day for pid, day in process.get("family", {}).items()}
    stop(family)
    for file in folder.glob("state.db*"):  # with it go the nodes' registrations; keys, data and memories stay
        file.unlink()
    path.unlink()
    return names


def running(folder: Path) -> dict[str, bool]:
    """The processes of a trial federation, and whether each is alive."""
    if not (folder / "trial.json").is_file():
        raise StoreError("no trial federation was started here", folder.name, "`leakline flower up` starts one")
    state = read_json(folder / "trial.json")
    return {name: born(process["pid"]) == process["born"] for name, process in state["processes"].items()}


def link_of(folder: Path) -> Link:
    """Where the SuperLink of a trial federation is."""
    state = read_json(folder / "trial.json")
    return Link(f"127.0.0.1:{state['port']}", None if state["insecure"] else (folder / "ca.crt").absolute())


@contextlib.contextmanager
def trial(folder: Path, nodes: Sequence[Node], *, insecure: bool = False) -> Iterator[Link]:
    """A trial federation for the length of a block."""
    link = up(folder, nodes, insecure=insecure)
    try:
        yield link
    finally:
        down(folder)


def _check(nodes: Sequence[Mapping[str, Any]]) -> None:
    names = [node["name"] for node in nodes]
    if not all(is_safe(name) for name in names) or len(set(names)) != len(names):
        raise LeaklineError(f"nodes need distinct names of letters, digits, '_', '.' and '-': {names[:5]}")
    for node in nodes:
        if '"' in node["data"] or not Path(node["data"]).exists():
            raise LeaklineError(f"there are no data for {node['name']}", Path(node["data"]).name, "check the path")


def _save(folder: Path, state: Mapping[str, Any]) -> None:
    write_atomically(folder / "trial.json", json.dumps(state, indent=1).encode())


def _launch(folder: Path, state: dict[str, Any], name: str, command: Sequence[str], home: Path) -> Any:
    log = home / f"{command[0]}.log"
    process = start(command, environment(home / "flwr"), log, cwd=home)
    before = state["processes"].get(name, {})
    reap([before["pid"]] if before else [])
    state["processes"][name] = {"pid": process.pid, "born": born(process.pid), "family": before.get("family", {})}
    _save(folder, state)
    return process, log


def _alive(state: Mapping[str, Any], name: str) -> bool:
    process = state["processes"].get(name)
    return process is not None and born(process["pid"]) == process["born"]


def _superlink(folder: Path, state: dict[str, Any]) -> Link:
    certificates = None if state["insecure"] else make_certificates(folder)
    link = Link(f"127.0.0.1:{state['port']}", None if certificates is None else certificates[0])
    if _alive(state, "superlink"):
        return link
    command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(state["port"])]
    command += ["--database", str(folder / "state.db"), "--disable-runtime-dependency-installation"]
    if certificates is None:
        command += ["--insecure"]
    else:
        authority, certificate, key = (str(path) for path in certificates)
        command += ["--ssl-ca-certfile", authority, "--ssl-certfile", certificate, "--ssl-keyfile", key]
        command += ["--enable-supernode-auth"]
    process, log = _launch(folder, state, "superlink", command, folder / "superlink")
    await_health(link, process, log)
    let_go(process)
    return link


def _supernode(folder: Path, state: dict[str, Any], node: dict[str, Any], link: Link) -> None:
    name, home = node["name"], folder / "nodes" / node["name"]
    if _alive(state, name):
        return
    home.mkdir(parents=True, exist_ok=True)
    node["port"] = node["port"] or free_port()
    config = f'client="{name}" data="{node["data"]}" state="{home / "state"}"'
    command = ["flower-supernode", "--superlink", link.address, "--host", "127.0.0.1", "--port", str(node["port"])]
    command += ["--node-config", config]
    if link.certificate is None:
        command += ["--insecure"]
    else:
        private, public = make_node_key(home)
        authority, certificate, key = (str(path) for path in make_certificates(folder))
        command += ["--root-certificates", authority, "--auth-supernode-private-key", str(private)]
        command += ["--ssl-ca-certfile", authority, "--ssl-certfile", certificate, "--ssl-keyfile", key]
        if not node.get("registered"):
            env = connect(link, folder / "superlink" / "cli")
            flwr(["supernode", "register", str(public), "leakline"], env)
            node["registered"] = True
    let_go(_launch(folder, state, name, command, home)[0])


def _await_nodes(folder: Path, state: Mapping[str, Any], seconds: float) -> None:
    """Wait until every node has its number from the SuperLink."""
    until = time.monotonic() + seconds
    for node in state["nodes"]:
        log = folder / "nodes" / node["name"] / "flower-supernode.log"
        while "SuperNode ID:" not in log.read_text(errors="replace"):
            if not _alive(state, node["name"]) or time.monotonic() > until:
                lines = log.read_text(errors="replace").strip().splitlines()[-3:]
                raise LeaklineError(f"the node {node['name']} did not start: " + " | ".join(lines)[-300:])
            time.sleep(0.3)
