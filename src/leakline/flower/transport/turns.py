"""A node's side of a turn: from the message that came to the message that goes back."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, RecordDict

from leakline.attacks.audit.insertion import retold
from leakline.bench.training import Bench
from leakline.data import Client, Elsewhere, Task
from leakline.errors import ClientLost, LeaklineError, StackError
from leakline.federation import Federation
from leakline.flower.node.limit import limited
from leakline.flower.node.policy import Policy
from leakline.flower.node.settings import policy_of
from leakline.flower.transport.holdings import facts_of, name_of, own_client, simulated, state_folder
from leakline.flower.transport.objections import objected
from leakline.flower.transport.shelf import Shelf
from leakline.flower.transport.versions import versions
from leakline.flower.transport.wire import NEXT, answer_record, dropped_record, head_of, order_of, record, vector_of
from leakline.messages import Order, Update
from leakline.runtimes.client import answer, reason_of
from leakline.runtimes.machine import tune_allocator
from leakline.study.cells import Study
from leakline.study.describe import THREADS
from leakline.study.spec import parse

Mine = Callable[[Context, Mapping[str, Any], str], Federation]
"""Builds the federation as one client sees it: its own data, and the names of the others."""


def take_turn(content: RecordDict, context: Context, mine: Mine | None = None, patience: float = 0.0) -> RecordDict:
    """Answer a query, a training order or an evaluation order; what goes wrong goes back as one line without paths.

    ``patience``: for how many seconds somebody waits for the answer (0: nobody says). No real node works for longer.
    """
    torch.set_num_threads(THREADS)
    tune_allocator()
    name = ""
    try:
        with limited(_seconds(context, patience)):
            head = head_of(content)
            name = name_of(context.node_config, head["names"])
            if head["kind"] == "query":
                return _introduce(context, head, name, mine)
            return _work(content, context, head, name, mine)
    except Exception as error:  # whatever a client's code raises must not reach a log that others read
        return dropped_record(name, _why(error))


def _work(content: RecordDict, context: Context, head: Mapping[str, Any], name: str, mine: Mine | None) -> RecordDict:
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


def _seconds(context: Context, patience: float) -> float:
    """How long this turn may take at a real node: what its owner allows, and no longer than anybody waits."""
    if simulated(context.node_config):
        return 0.0
    return min((float(s) for s in (context.node_config.get("limit"), patience) if s), default=0.0)


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
    except ClientLost:  # the time is over
        raise
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
                client = own_client(context.node_config, name, head["fit"])
                facts["facts"] = facts_of(client)
                facts["declines"] = _declines(context, head, client)
            except ClientLost:
                raise
            except Exception as error:
                facts["refused"] = _why(error)
    return record(facts)


def _declines(context: Context, head: Mapping[str, Any], client: Client) -> dict[str, str]:
    """The cells of a study that this node does not train in by its own policy, each with its reason."""
    if (policy := policy_of(context.node_config)) == Policy():
        return {}
    cells = _own_study(context, head, client).cells
    verdicts = {str(i): objected(policy, as_node(cell.federation()), context, i) for i, cell in enumerate(cells)}
    return {cell: reason for cell, reason in verdicts.items() if reason}


def _shelf(context: Context, head: Mapping[str, Any], name: str) -> Shelf:
    folder = state_folder(context.node_config, context.run_config, name)
    return Shelf(context.state, str(head.get("key", "federation")), folder)


def _at_hand(context: Context, head: Mapping[str, Any], name: str, mine: Mine | None) -> tuple[Federation, Bench]:
    if mine is None and simulated(context.node_config):
        settings = study_settings(context.run_config)
        told = json.dumps(head.get("told", {}))
        return _simulated(*settings, head["cell"], str(context.run_config.get("folder", "")), told)
    if mine is not None:
        federation = mine(context, head, name)
    else:
        client = own_client(context.node_config, name, head["fit"])
        federation = as_node(_own_study(context, head, client).cells[head["cell"]].federation())
    policy = policy_of(context.node_config)
    if reason := objected(policy, federation, context, head.get("cell", 0)):
        raise StackError(reason, "the node's policy", "agree on a study that promises as much")
    federation = policy.watching(federation)
    return federation, federation.bench()


def _own_study(context: Context, head: Mapping[str, Any], client: Client) -> Study:
    beside = tuple(Path(str(context.node_config[key])) for key in ("state",) if context.node_config.get(key))
    return own_study(*study_settings(context.run_config), client, head["names"], head["fit"], beside)


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
    text: str, preset: str, sets: tuple[str, ...], only: tuple[str, ...], cell: int, folder: str, told: str
) -> tuple[Federation, Bench]:
    # Ray's workers live through a whole run: the study is read once in each of them.
    with inside(folder):
        federation = as_node(parse(text, preset=preset, sets=sets, trust=True).only(only).cells[cell].federation())
    if inserted := json.loads(told):
        federation = retold(federation, inserted)
    return federation, federation.bench()


def own_study(
    text: str,
    preset: str,
    sets: tuple[str, ...],
    only: tuple[str, ...],
    client: Client,
    names: Sequence[str],
    fit: Mapping[str, Any],
    beside: tuple[Path, ...] = (),
) -> Study:
    """A study as one node sees it: its own client, and names for the others.

    ``beside``: folders in which a file of weights is looked for.
    """

    def share(shared: object, seed: int) -> Task:
        members = tuple(
            client if name == client.name else Client(name, Elsewhere.of(0, fit["shape"], "")) for name in names
        )
        # The server's own data stay there; an empty part stands for those that a strategy asks for.
        return Task(members, None, Elsewhere.of(0, fit["shape"], ""), tuple(fit["classes"]), fit["kind"])

    return parse(text, preset=preset, sets=sets, share=share, here=False, trust=True, beside=beside).only(only)
