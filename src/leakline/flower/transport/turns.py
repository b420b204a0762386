"""A node's side of a turn: from the message that came to the message that goes back."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, RecordDict

from leakline.bench.training import Bench
from leakline.data import Client, Elsewhere, Task
from leakline.errors import LeaklineError, StackError
from leakline.federation import Federation
from leakline.flower.transport.holdings import facts_of, name_of, own_client, simulated, state_folder
from leakline.flower.transport.shelf import Shelf
from leakline.flower.transport.versions import versions
from leakline.flower.transport.wire import NEXT, answer_record, dropped_record, head_of, order_of, record, vector_of
from leakline.messages import Order, Update
from leakline.runtimes.client import answer, reason_of
from leakline.runtimes.machine import tune_allocator
from leakline.study.describe import THREADS
from leakline.study.spec import parse

Mine = Callable[[Context, Mapping[str, Any], str], Federation]
"""Builds the federation as one client sees it: its own data, and the names of the others."""


def take_turn(content: RecordDict, context: Context, mine: Mine | None = None) -> RecordDict:
    """Answer a query, a training order or an evaluation order; what goes wrong goes back as one line without paths."""
    torch.set_num_threads(THREADS)
    tune_allocator()
    name = ""
    try:
        head = head_of(content)
        name = name_of(context.node_config, head["names"])
        if head["kind"] == "query":
            return _introduce(context, head, name, mine)
        if head["client"] != name:
            raise ValueError(f"this node plays {name or 'nobody'}, the order is for {head['client']}")
        federation, bench = _at_hand(context, head, name, mine)
        if head.get("constants", bench.constants) != bench.constants:
            raise StackError("its frozen weights are not the server's", "model", "give nodes the same file and torch")
        shelf = _shelf(context, head, name)
        order = order_of(head, federation.wire, vector_of(content))
        done = answer_record(_turn(federation, bench, order, shelf))
        if "then" in head:  # the order that will follow is known already: both turns in one message
            following = replace(order, round=head["then"]["round"], notes=head["then"]["notes"], kind="train")
            return RecordDict({**done, **_following(federation, bench, following, shelf)})
        return done
    except Exception as error:  # whatever a client's code raises must not reach a log that others read
        return dropped_record(name, _why(error))


def _turn(federation: Federation, bench: Bench, order: Order, shelf: Shelf) -> list[Update]:
    training = order.kind == "train"
    memory = shelf.recall(order.round if training else order.round + 1)
    updates = answer(federation, bench, order, memory)
    if training:
        shelf.keep(order.round, memory)
    return updates


def _following(federation: Federation, bench: Bench, order: Order, shelf: Shelf) -> RecordDict:
    try:
        return answer_record(_turn(federation, bench, order, shelf), NEXT)
    except Exception as error:  # the evaluation before it stands
        return dropped_record(order.client, _why(error), NEXT)


def _why(error: Exception) -> str:
    return error.what if isinstance(error, LeaklineError) else reason_of(error)


def _introduce(context: Context, head: Mapping[str, Any], name: str, mine: Mine | None) -> RecordDict:
    """Who this node is and whether its data fit."""
    facts: dict[str, Any] = {"name": name, "simulated": simulated(context.node_config), "versions": versions()}
    if name in head["names"]:
        facts["kept"] = _shelf(context, head, name).newest()
        if mine is None and not facts["simulated"]:
            try:
                facts["facts"] = facts_of(own_client(context.node_config, name, head["fit"]))
            except Exception as error:
                facts["refused"] = _why(error)
    return record(facts)


def _shelf(context: Context, head: Mapping[str, Any], name: str) -> Shelf:
    folder = state_folder(context.node_config, context.run_config, name)
    return Shelf(context.state, str(head.get("key", "federation")), folder)


def _at_hand(context: Context, head: Mapping[str, Any], name: str, mine: Mine | None) -> tuple[Federation, Bench]:
    if mine is not None:
        federation = mine(context, head, name)
        return federation, federation.bench()
    settings = study_settings(context.run_config)
    if simulated(context.node_config):
        return _simulated(*settings, head["cell"], str(context.run_config.get("folder", "")))
    client = own_client(context.node_config, name, head["fit"])
    beside = tuple(Path(str(context.node_config[key])) for key in ("state",) if context.node_config.get(key))
    federation = as_node(own_federation(*settings, head["cell"], client, head["names"], head["fit"], beside))
    return federation, federation.bench()


def study_settings(config: Mapping[str, Any]) -> tuple[str, str, tuple[str, ...], tuple[str, ...]]:
    """A run's study: its text, preset, overrides and choice of cells."""
    lists = [tuple(json.loads(str(config.get(key) or "[]"))) for key in ("sets", "only")]
    return str(config["study"]), str(config.get("preset", "")), lists[0], lists[1]


def as_node(federation: Federation) -> Federation:
    """The same federation with clients that train one by one: nodes cannot be vectorised over."""
    return federation if federation.engine.together == "off" else federation.but(together="off")


@contextlib.contextmanager
def inside(folder: str) -> Any:
    """Paths of a study are meant from where its command was given."""
    before = Path.cwd()
    try:
        if folder and Path(folder).is_dir():
            os.chdir(folder)
            if folder not in sys.path:  # a model in a file beside the study
                sys.path.append(folder)
        yield
    finally:
        os.chdir(before)


@lru_cache(maxsize=2)
def _simulated(
    text: str, preset: str, sets: tuple[str, ...], only: tuple[str, ...], cell: int, folder: str
) -> tuple[Federation, Bench]:
    # Ray's workers live through a whole run: the study is read once in each of them.
    with inside(folder):
        federation = as_node(parse(text, preset=preset, sets=sets, trust=True).only(only).cells[cell].federation())
    return federation, federation.bench()


def own_federation(
    text: str,
    preset: str,
    sets: tuple[str, ...],
    only: tuple[str, ...],
    cell: int,
    client: Client,
    names: list[str],
    fit: Mapping[str, Any],
    beside: tuple[Path, ...] = (),
) -> Federation:
    """A cell of a study as one node sees it: its own client, and names for the others.

    ``beside``: folders in which a file of weights is looked for.
    """

    def share(shared: object, seed: int) -> Task:
        members = tuple(
            client if name == client.name else Client(name, Elsewhere.of(0, fit["shape"], "")) for name in names
        )
        # The server's own data stay there; an empty part stands for those that a strategy asks for.
        return Task(members, None, Elsewhere.of(0, fit["shape"], ""), tuple(fit["classes"]), fit["kind"])

    study = parse(text, preset=preset, sets=sets, share=share, here=False, trust=True, beside=beside).only(only)
    return study.cells[cell].federation()
