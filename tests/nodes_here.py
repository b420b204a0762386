"""Flower nodes in this process: real messages, real ClientApps, and a grid that hands one to the other.

Replies come back in reverse order and a node may be given a fault, so that a transport has something to survive.
Messages can be built only where Flower thinks that a task runs, so its identity is set here (a test's privilege).
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # other people's deprecations
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid
    from flwr.supercore.task_identity import TaskIdentity

from leakline.errors import LeaklineError
from leakline.flower import client_app
from leakline.flower.transport.serving import RECORD, serve
from leakline.flower.transport.shares import write_shares
from leakline.flower.transport.submit import Asked

__all__ = [
    "Array",
    "ArrayRecord",
    "ConfigRecord",
    "Context",
    "Message",
    "Node",
    "NodesHere",
    "RecordDict",
    "config",
    "failing",
    "own_nodes",
    "serving",
    "simulated_nodes",
    "slowly",
]

logging.getLogger("flwr").setLevel(logging.ERROR)
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 0, 0

Fault = Callable[[Message, Message], Message | None]
"""(what came, what would go back) -> what goes back, or None for nothing."""


@dataclass
class Node:
    """One node: its configuration, and what may be wrong with it."""

    config: dict[str, Any]
    run_config: Mapping[str, Any] = field(default_factory=dict)
    app: ClientApp = field(default_factory=client_app)
    fault: Fault | None = None
    context: Context = field(init=False)
    heads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.context = Context(7, 1, dict(self.config), RecordDict(), dict(self.run_config))


class NodesHere(Grid):
    """A grid over nodes in this process."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = dict(enumerate(nodes, start=100))
        self.waiting: dict[str, Message] = {}
        self.sent = 0
        self.dies_after: int | None = None

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        found = []
        for message in messages:
            self.sent += 1
            if self.dies_after is not None and self.sent > self.dies_after:
                raise ConnectionError("the SuperLink was killed")
            name = str(uuid.uuid4())
            message.metadata.__dict__["_message_id"] = name
            self.waiting[name] = message
            found.append(name)
        return found

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = []
        for name in reversed(list(message_ids)):
            if name not in self.waiting:
                continue
            message = self.waiting[name]
            node = self.nodes.get(message.metadata.dst_node_id)
            if node is None:
                replies.append(Message(Error(5, "gone"), reply_to=message))
            else:
                node.heads.append(message.metadata.message_type)
                reply: Message | None = node.app(message, node.context)
                if node.fault is not None and message.metadata.message_type != "query":
                    reply = node.fault(message, reply)
                if reply is None:
                    continue
                replies.append(reply)
            del self.waiting[name]
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise NotImplementedError


def slowly(message: Message, reply: Message) -> None:
    """A node that hangs."""
    time.sleep(0.01)


def failing(code: int) -> Fault:
    """A node that Flower reports as failed, with a text that must not be handed on."""
    return lambda message, reply: Message(Error(code, "/home/patients/1234.dcm"), reply_to=message)


def config(text: str, out: Path, **more) -> dict:
    return {"study": text, "out": str(out), "folder": "", "submission": "", "wait": 0.01, "deadline": 20.0, **more}


def own_nodes(text: str, folder: Path, state: bool = True) -> list[Node]:
    """Nodes of which each was given only its own file."""
    shares = write_shares(Asked(text).study(), folder)
    return [
        Node({"client": name, "data": str(path)} | ({"state": str(folder / name)} if state else {}), {"study": text})
        for name, path in shares.items()
    ]


def simulated_nodes(text: str, out: Path, count: int = 3) -> list[Node]:
    return [Node({"partition-id": i, "num-partitions": count}, config(text, out)) for i in range(count)]


def serving(text: str, nodes: list[Node], out: Path, dies_after: int | None = None) -> tuple[dict, NodesHere]:
    grid = NodesHere(nodes)
    grid.dies_after = dies_after
    with contextlib.suppress(LeaklineError, ConnectionError):
        serve(grid, Context(7, 1, {}, RecordDict(), config(text, out)))
    return json.loads((out / RECORD).read_text()), grid
