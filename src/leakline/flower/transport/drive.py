"""Studies on Flower from the command line: on its simulation, or on the nodes of a deployment."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from leakline.data import Elsewhere
from leakline.errors import ClientLost
from leakline.federation import Federation
from leakline.flower import need_flower
from leakline.flower.processes import NOWHERE, born, environment, free_port, start, stop, tree
from leakline.flower.reach import check
from leakline.flower.transport.serving import base_task, with_facts
from leakline.flower.transport.submit import Asked, Link, Sent, await_end, await_health, one_by_one, submit, talking
from leakline.messages import Memory
from leakline.runtimes.machine import cores
from leakline.study.cells import Cell, Study
from leakline.study.describe import description, key_of
from leakline.study.judges import Place
from leakline.study.lab import attack_key
from leakline.study.run import check_parts
from leakline.study.sharing import Shared
from leakline.study.spec import parse
from leakline.study.store import Store
from leakline.study.train import Opens, Progress, silent


def on_simulation(
    asked: Asked, out: Path, *, deadline: float = 3600.0, progress: Progress = silent
) -> tuple[Study, Opens]:
    """Train a study on Flower's simulation (Ray, this machine); returns what is left to do: attacks and cards."""
    need_flower(simulation=True)
    study = asked.study()
    check_parts(study)
    federations = [cell.federation() for cell in study.cells]
    if not all(_done(study, cell, Store(out)) for cell in study.cells):
        with (
            tempfile.TemporaryDirectory(prefix="leakline-", ignore_cleanup_errors=True) as folder,
            _superlink(Path(folder), out) as link,
        ):
            nodes = max(len(f.task.clients) for f in federations)
            size = f"num-supernodes={nodes} client-resources-num-cpus=1 init-args-num-cpus={cores()}"
            record = submit(
                asked, study.name, link, out, deadline, progress, ["--federation-config", size], code=study.foreign
            )
    else:
        record = {"cells": []}
    return study, _trained_elsewhere(record, study)


def _done(study: Study, cell: Cell, store: Store) -> bool:
    """Whether a cell is trained, and met by all attacks that train where it did."""
    federation = cell.federation()
    run = store.run(key_of(description(federation)))
    inside = {attack_key(name, attack) for name, attack in study.inside(cell, federation, False).items()}
    return (end := run.end) is not None and end["status"] == "finished" and inside <= run.met()


def on_deployment(
    asked: Asked, link: Link, out: Path, *, deadline: float = 3600.0, wait: float = 60.0, progress: Progress = silent
) -> tuple[Study, Opens]:
    """Train a study on the nodes of a running SuperLink; returns what is left to do here."""
    need_flower()
    named = _named(asked)
    if all(_here(cell) for cell in named.cells):
        check_parts(named)
    record = submit(asked, named.name, link, out, deadline, progress, wait=wait, code=named.foreign)
    return _left(asked, named, record)


def attached(out: Path, *, progress: Progress = silent) -> tuple[Study, Opens]:
    """Wait for a study that was handed over before; returns what is left to do here."""
    need_flower()
    sent = Sent.kept(out)
    check(sent.link.address, sent.link.certificate)
    with talking(sent.link) as env:
        record = await_end(sent, out, env, progress)
    return _left(sent.asked, _named(sent.asked), record)


def _named(asked: Asked) -> Study:
    """A study as far as it is known without its nodes."""
    named = parse(asked.text, preset=asked.preset, sets=asked.sets, share=base_task, trust=True).only(asked.only)
    return replace(named, cells=tuple(one_by_one(cell) for cell in named.cells))


def _left(asked: Asked, named: Study, record: Mapping[str, Any]) -> tuple[Study, Opens]:
    """What is left to do here of a study that was trained on nodes."""
    cells = record["cells"]
    study = replace(named, cells=tuple(_with_nodes(asked, position, cells) for position in range(len(named.cells))))
    away: dict[str, list[str]] = {}
    for entry in cells:
        for line in entry.get("away", ()):
            away.setdefault(line, []).append(entry["name"])
    notes = [f"{' and '.join(names[:3])} began without {line}" for line, names in away.items()]
    if study.every_attack and not all(
        _here(cell) for cell, entry in zip(study.cells, cells, strict=False) if not entry["error"]
    ):
        asked_for, study = study.every_attack, study.trained_at_nodes()
        if names := ", ".join(name for name in asked_for if name not in study.every_attack):
            notes.append(f"not attacked ({names}): an attack needs the clients' data, and they are at the nodes")
    study = replace(study, notes=(*study.notes, *notes))
    return study, _trained_elsewhere(record, study)


def _with_nodes(asked: Asked, position: int, cells: Sequence[Mapping[str, Any]]) -> Cell:
    """A cell whose clients are as their nodes described them to the server."""
    facts = cells[position].get("facts", {}) if position < len(cells) else {}

    def share(shared: Shared, seed: int) -> Any:
        base = base_task(shared, seed)
        return with_facts(base, {name: {"facts": one} for name, one in facts.items()}) if facts else base

    return asked.study(share).cells[position]


def _here(cell: Cell) -> bool:
    return not any(isinstance(client.train, Elsewhere) for client in cell.federation().task.clients)


def _trained_elsewhere(record: Mapping[str, Any], study: Study) -> Opens:
    """A place that trains nothing: a cell that is not finished by now failed on Flower, for the reason it gave.

    A start that was refused (a node is missing, data do not fit) has no run yet: its cell is known by its position.
    """
    errors = [str(entry["error"]) for entry in record["cells"]]

    @contextlib.contextmanager
    def opens(federation: Federation, memories: dict[str, Memory]) -> Iterator[Place]:
        key = key_of(description(federation))
        mine = (
            e for e, cell in zip(errors, study.cells, strict=False) if key_of(description(cell.federation())) == key
        )
        raise ClientLost(next(mine, "") or str(record.get("error") or "it was not trained on Flower"))
        yield

    return opens


@contextlib.contextmanager
def _superlink(home: Path, out: Path) -> Iterator[Link]:
    """A SuperLink for one simulation: on loopback, in a folder that goes with it, and gone afterwards."""
    link = Link(f"127.0.0.1:{free_port()}")
    host, _, port = link.address.partition(":")
    log = home / "superlink.log"
    command = ["flower-superlink", "--insecure", "--simulation", "--host", host, "--port", port]
    env = environment(home) | NOWHERE
    process = start([*command, "--disable-runtime-dependency-installation"], env, log, with_us=True)
    family = {process.pid: born(process.pid)}
    try:
        await_health(link, process, log)
        yield link
    except BaseException:
        out.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            shutil.copy(log, out / "flower.log")
        raise
    finally:
        stop(tree(process.pid) or family)
