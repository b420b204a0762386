"""The server's side of a study on Flower: gather the nodes, train each cell, keep the ordinary store."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid

from leakline.data import FEATURES, AtNodes, Client, Data, Elsewhere, Task
from leakline.errors import ClientLost, LeaklineError, StackError, StudyError
from leakline.federation import Federation
from leakline.flower.transport.exchange import FlowerTransport
from leakline.flower.transport.known import Known
from leakline.flower.transport.place import FlowerPlace
from leakline.flower.transport.turns import as_node, inside, study_settings
from leakline.flower.transport.versions import compare
from leakline.messages import Memory
from leakline.models import Adapted
from leakline.names import printable
from leakline.runtimes.client import reason_of
from leakline.study.at_work import at_work
from leakline.study.cells import Cell, Study
from leakline.study.describe import THREADS, description, key_of
from leakline.study.files import read_json, write_atomically
from leakline.study.lab import Lab, meet
from leakline.study.one_cell import wanted
from leakline.study.run import check_cell
from leakline.study.sharing import Shared, task_of
from leakline.study.sources import sourced
from leakline.study.spec import parse
from leakline.study.store import Store
from leakline.study.train import train_run

RECORD = "flower.json"
"""In the run directory: what became of the newest submission, for the command that waits for it."""
SENT = "submission.json"
"""In the run directory: what that command handed over."""


def serve(grid: Grid, context: Context) -> None:
    """Run a whole study: what a ServerApp's main does. Raises at the end if a cell failed, so that Flower knows."""
    torch.set_num_threads(THREADS)
    config = context.run_config
    with inside(str(config.get("folder", ""))):
        out = Path(str(config.get("out") or Path("runs") / "flower")).absolute()
        _seen_by_both(out, str(config.get("submission", "")))
        out.mkdir(parents=True, exist_ok=True)
        record: dict[str, Any] = {"submission": config.get("submission", ""), "cells": [], "error": ""}
        try:
            text, preset, sets, only = study_settings(config)
            gathering = Gathering(grid, dict(config), out)
            study = parse(text, preset=preset, sets=sets, share=gathering.task, trust=True).only(only)
            plain = parse(text, preset=preset, sets=sets, share=base_task, trust=True).only(only)
            # Most attacks need an examiner who sees everything; the command that submitted this may add them.
            with at_work(Store(out), study.unattacked()) as cells:
                for position, cell in enumerate(study.cells):
                    entry: dict[str, Any] = {"name": cell.name, "error": ""}
                    record["cells"].append(entry)
                    _write(out, record)
                    try:
                        gathering.cell, gathering.needed = position, _needed(plain.cells[position].federation())
                        federation = as_node(cell.federation())
                        entry |= {"run": key_of(description(federation)), "rounds": federation.rounds}
                        entry["facts"] = gathering.described()
                        entry["away"] = gathering.away()
                        _write(out, record)
                        cells.set_run(cell, entry["run"])
                        _train(grid, study, cell, federation, gathering, out, entry["run"])
                    except LeaklineError as error:
                        entry["error"] = str(error)
                        cells.set_error(cell, entry["error"])
        except LeaklineError as error:
            record["error"] = str(error)
        except Exception as error:
            record["error"] = f"the server's app failed: {reason_of(error)}"
            raise
        finally:
            record["done"] = True
            _write(out, record)
    failed = [entry["name"] for entry in record["cells"] if entry["error"]]
    if failed or record["error"]:
        raise StudyError(record["error"] or f"{len(failed)} of {len(record['cells'])} cells failed: {failed[0]}")


def _seen_by_both(out: Path, token: str) -> None:
    """Refuse to train what the command that waits for it would never see: it wrote its token into the run directory."""
    if token and (not (out / SENT).is_file() or read_json(out / SENT).get("token") != token):
        raise StudyError(
            "the command that handed this study over waits on another machine, or as another user",
            out.name,
            "give it on the SuperLink's machine, as its user, or with --out on a disk that both see",
        )


def _write(out: Path, record: Mapping[str, Any]) -> None:
    write_atomically(out / RECORD, json.dumps(record, indent=1).encode())


def _train(
    grid: Grid, study: Study, cell: Cell, federation: Federation, gathering: Gathering, out: Path, key: str
) -> None:
    simulation = any(fact.get("simulated") for fact in gathering.facts.values())
    inside = study.inside(cell, federation, not simulation)
    check_cell(federation, inside)
    gathering.enough()
    if not simulation and isinstance(federation.model, Adapted) and federation.model.pretrain:
        raise StackError(
            "nodes do not hold the server's public data, and cannot make the same pretrained network of them",
            "model",
            "save the pretrained network once (docs/fewer-parameters.md), and give it with weights = FILE",
        )
    constants = federation.bench().constants

    @contextlib.contextmanager
    def opens(
        which: Federation, memories: dict[str, Memory], told: Mapping[str, Any] | None = None
    ) -> Iterator[FlowerPlace]:
        settings = gathering.settings(key if told is None else key_of(description(which)))
        settings["extra"] |= {"constants": constants} | ({} if told is None else {"told": dict(told)})
        known = {"known": gathering.transport, "away": gathering.declined()}
        yield FlowerPlace(grid, which, out if simulation else None, **known, **settings)

    standing = Store(out).run(key).standing()
    if standing is not None:
        _nobody_forgot(federation, standing[0].next, gathering.ask_kept(key, federation))
    if not simulation:
        gathering.remember()
    started = time.monotonic()
    keep = wanted(study.attacks_on(cell).values(), federation)
    federation = sourced(Store(out), federation)
    run = train_run(Store(out), federation, keep=keep, delta=study.delta, title=cell.name, opens=opens)
    run.log(on="flower", simulation=simulation, seconds=round(time.monotonic() - started, 3))
    if inside:
        lab = Lab(federation.granted, Store(out), run, 1, places=lambda which, told: opens(which, {}, told))
        meet(inside, lab)
        run.log(on="flower", simulation=simulation, met=list(inside))


def _nobody_forgot(federation: Federation, done: int, facts: Mapping[str, Mapping[str, Any]]) -> None:
    """Private layers live at the nodes: a run can only go on where they still have them."""
    if federation.wire == federation.layout or done == 0:
        return
    lost = [name for name, fact in facts.items() if int(fact.get("kept", -1)) < 0]
    if lost:
        raise StackError(
            f"{', '.join(lost[:5])} no longer have the layers that they kept to themselves",
            f"the run stands after round {done - 1}",
            'give nodes a folder (state="PATH" in --node-config), and start this study with another --out',
        )


class Gathering:
    """Turns a study's data table into a task by asking the nodes what they hold.

    ``cell``: the cell in hand; ``needed``: how many clients its rounds need, and so its start.
    """

    def __init__(self, grid: Grid, config: Mapping[str, Any], out: Path) -> None:
        self.grid, self.config = grid, config
        self.known = Known(out, repr([config.get(name) for name in ("study", "preset", "sets")]))
        self.cell, self.needed = 0, 0
        self._fits: dict[str, Any] = {}
        self._names: list[str] = []
        self.transport: FlowerTransport | None = None
        self._done: dict[tuple[str, int, int], tuple[Task, FlowerTransport, dict[str, Any]]] = {}
        self._refused: dict[tuple[str, int, int], LeaklineError] = {}
        self.facts: Mapping[str, Mapping[str, Any]] = {}

    def settings(self, key: str) -> dict[str, Any]:
        """A transport's settings in this run."""
        extra = {"cell": self.cell, "fit": self._fits, "key": key}
        times = {name: float(self.config[name]) for name in ("deadline", "wait") if self.config.get(name)}
        return {"extra": extra, **times}

    def ask_kept(self, key: str, federation: Federation) -> Mapping[str, Mapping[str, Any]]:
        """What nodes still have of a run that is gone on with; asked only where it matters."""
        if federation.wire == federation.layout:
            return {}
        return FlowerTransport(self.grid, names=self._names, **self.settings(key)).gather(self.needed)

    def declined(self) -> dict[str, str]:
        """Who does not take part in this cell by the policy of its node, each with its reason."""
        told = {name: fact.get("declines") for name, fact in self.facts.items()}
        return {
            name: printable(str(cells[str(self.cell)]), 300)
            for name, cells in told.items()
            if isinstance(cells, Mapping) and cells.get(str(self.cell))
        }

    def away(self) -> list[str]:
        """Who this cell begins without, one line for each."""
        missing = [name for name in self._names if name not in self.facts]
        lines = [f"{name}: no node of that name is connected" for name in missing]
        return lines + [f"{name}: {reason}" for name, reason in self.declined().items()]

    def enough(self) -> None:
        """Refuse to begin with fewer clients than a round needs, and say who is not there."""
        away = self.away()
        for line in away:
            logging.getLogger("leakline").warning("begins without %s", line)
        if len(self._names) - len(away) < self.needed:
            raise ClientLost(
                f"{len(self._names) - len(away)} of {len(self._names)} clients take part, {self.needed} are needed; "
                + "; ".join(away[:5]),
                "the start",
                "agree with them on a study that they take part in, or lower min_clients",
            )

    def described(self) -> dict[str, Any]:
        """What the run is described by, of each client of whom anything is known."""
        return {name: one.get("facts") for name, one in self.known.facts(self._names, self.facts).items()}

    def remember(self) -> None:
        """Write down what a run that begins now knows of its clients."""
        self.known.keep(self._names, self.facts)

    def task(self, shared: Shared, seed: int) -> Task:
        """The task of a cell: the server's own part from the study, the clients as their nodes describe them."""
        wanted_seed = dict(shared.values).get("seed", 0)
        wanted = (repr(shared), seed if wanted_seed == "each" else int(wanted_seed), self.needed)
        if wanted in self._refused:
            raise self._refused[wanted]  # the next cell need not wait for the same missing node again
        if wanted not in self._done:
            try:
                self._done[wanted] = self._ask(shared, seed, wanted[1])
            except LeaklineError as error:
                self._refused[wanted] = error
                raise
        task, self.transport, self._fits = self._done[wanted]
        self._names = [client.name for client in task.clients]
        self.facts = {name: self.transport.facts[name] for name in self._names if name in self.transport.nodes}
        return task

    def _ask(self, shared: Shared, seed: int, data_seed: int) -> tuple[Task, FlowerTransport, dict[str, Any]]:
        base = base_task(shared, seed)
        self._fits = fit_of(shared, base, data_seed)
        self._names = [client.name for client in base.clients]
        transport = FlowerTransport(self.grid, names=self._names, **self.settings("federation"))
        facts = transport.gather(self.needed)
        compare(facts)
        _all_fit(facts)
        simulation = any(fact.get("simulated") for fact in facts.values())
        if dict(shared.values).get("seed") == "each" and not simulation:
            raise StackError(
                'data.seed = "each" shares the data out anew for each seed, and nodes hold one share',
                "data.seed",
                "give a number",
            )
        return with_facts(base, self.known.facts(self._names, facts)), transport, self._fits


def _needed(federation: Federation) -> int:
    """How many clients a start needs: as many as a round."""
    return min(max(federation.cohort.quorum, federation.stack.fewest), len(federation.task.clients))


def fit_of(shared: Shared, base: Task, seed: int = 0) -> dict[str, Any]:
    """What a node's data must be like."""
    if shared.plant is not None:
        raise StackError("a trait is planted into data that the study holds itself", "data.plant", "leave it out")
    if dict(shared.values).get("fold") is not None:
        raise StackError("nodes cut their own data, and not into folds", "data.fold", "leave it out")
    return {
        "shape": list(base.shape), "classes": list(base.classes), "kind": base.kind,
        "client_test": dict(shared.values).get("client_test", 0.2), "seed": seed,
        **_features(shared),
    }  # fmt: skip


def _features(shared: Shared) -> dict[str, Any]:
    """What nodes are to make of their inputs, as a table of the study has it."""
    if shared.features is None:
        return {}
    if isinstance(shared.source, AtNodes) or shared.features.normalise == "public":
        raise StackError(
            "nodes make features of their own records alone, and this study asks for more",
            "data.features",
            'give the study data of its own, and normalise = "record"; or let nodes hold features in their files',
        )
    name = next(name for name, kind in FEATURES.items() if kind is type(shared.features))
    return {"features": {"use": name, **vars(shared.features)}}


def base_task(shared: Shared, seed: int) -> Task:
    """What the server itself knows of a cell's data."""
    return shared.source.task() if isinstance(shared.source, AtNodes) else task_of(shared, seed)


def with_facts(base: Task, facts: Mapping[str, Mapping[str, Any]]) -> Task:
    """The task with each client as its node describes it; one whose data are the same as here stays as it is.

    So does one whose node is not there.
    """
    return replace(base, clients=tuple(_as_described(client, facts.get(client.name), base) for client in base.clients))


def _as_described(client: Client, reply: Mapping[str, Any] | None, base: Task) -> Client:
    if reply is None:
        return client
    facts = reply.get("facts")
    if reply.get("simulated"):
        if isinstance(client.train, Elsewhere):
            raise StackError(
                "this study's data are at the nodes of a real federation, and simulated nodes have none",
                'data.use = "at-nodes"',
                "run it with --on flower, or give the study data of its own",
            )
        return client
    if not isinstance(facts, Mapping):
        raise StudyError(f"the node of {client.name} did not say what it holds", fix="update leakline at that node")
    parts: dict[str, Data | None] = {}
    for part in ("train", "test"):
        own, told = getattr(client, part), facts.get(part)
        if told is None:
            parts[part] = None
        elif own is not None and not isinstance(own, Elsewhere) and own.fingerprint() == told["digest"]:
            parts[part] = own
        else:
            parts[part] = Elsewhere.of(int(told["count"]), base.shape, str(told["digest"]))
    if parts["train"] is None:
        raise StudyError(f"the node of {client.name} holds no examples", fix="check its data")
    return Client(client.name, parts["train"], parts["test"], client.traits)


def _all_fit(facts: Mapping[str, Mapping[str, Any]]) -> None:
    wrong = [f"{name}: {fact['refused']}" for name, fact in facts.items() if fact.get("refused")]
    if wrong:
        raise StudyError("\n".join(wrong), "the nodes' data", "mend the nodes' data, or the study")
