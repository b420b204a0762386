"""Flower in one process: real strategies, real ClientApps and mods, real messages, and a grid that just calls them.

Messages can be built only where Flower thinks that a task runs, so its identity is set here (a test's privilege).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # other people's deprecations
    from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid
    from flwr.supercore.task_identity import TaskIdentity

logging.getLogger("flwr").setLevel(logging.ERROR)
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 0, 0

Train = Callable[[str, dict[str, np.ndarray], int], tuple[dict[str, np.ndarray], dict[str, Any]]]
"""(client, weights, round) -> weights, metrics."""


def record(values: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.ascontiguousarray(v)) for name, v in values.items()})


def values(arrays: ArrayRecord) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in arrays.items()}


def client_app(train: Train, mods: Iterable[Any] = (), seen: list[Any] | None = None) -> ClientApp:
    """An app as people write them; ``seen`` collects what its evaluation was given."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def _(message: Message, context: Context) -> Message:
        new, metrics = train(
            str(context.node_config["name"]),
            values(message.content["arrays"]),
            int(message.content["config"]["server-round"]),
        )
        content = RecordDict({"arrays": record(new), "metrics": MetricRecord(metrics)})
        return Message(content=content, reply_to=message)

    @app.evaluate()
    def _(message: Message, context: Context) -> Message:
        if seen is not None:
            seen.append((context.node_config["name"], values(message.content["arrays"])))
        return Message(content=RecordDict({"metrics": MetricRecord({"num-examples": 1, "x": 0.0})}), reply_to=message)

    return app


class Here(Grid):
    """A grid over nodes a, b, c, ... in this process; ``fault`` may change a reply on its way, or swallow it."""

    def __init__(self, app: ClientApp, names: str = "abc", fault: Callable[[str, Message], Any] | None = None) -> None:
        self.app, self.fault = app, fault
        self.contexts = {
            10 + i: Context(run_id=7, node_id=10 + i, node_config={"name": n}, state=RecordDict(), run_config={})
            for i, n in enumerate(names)
        }

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    run = property(lambda self: None)

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = []
        # Flower asks in random order; sums of floats depend on it.
        for message in sorted(messages, key=lambda m: m.metadata.dst_node_id):
            context = self.contexts[message.metadata.dst_node_id]
            try:
                reply = self.app(message, context)
            except Exception as error:  # as Flower's own simulation does
                reply = Message(Error(code=0, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
            if self.fault is not None and message.metadata.message_type == "train":
                reply = self.fault(str(context.node_config["name"]), reply)
            if reply is not None:
                replies.append(reply)
        return replies
