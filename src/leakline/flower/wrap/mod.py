"""leakline's defences in the clients' half of somebody's Flower app.

    app = ClientApp(mods=[leakline.flower.as_mod([leakline.FedPer(last=1)])])

Layers that stay at home lie in the node's own state between rounds; the reply carries for them what was sent, so that
the app's server still finds a whole model. A defence that trains parts of a client apart (intermediaries) needs one
line in the app, which asks for the rows to train on: ``rows = leakline.flower.rows(len(data))``.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict

from leakline.defences import Defence
from leakline.errors import StackError
from leakline.flower.recorder import ClientAppCallable, Mod, round_of
from leakline.flower.transport.shelf import Shelf
from leakline.flower.wrap.bridge import EXAMPLES, Bridge, node_name, only_arrays, only_metrics
from leakline.flower.wrap.sides import HEAD, SERVER, checked, stack_key
from leakline.messages import Dropped, Memory, Order, Turn, Update
from leakline.stack import Stack
from leakline.weights import Weights


def as_mod(
    defences: Sequence[Defence],
    *,
    noise: Literal["secret", "seeded"] = "secret",
    seed: int = 0,
    name: Callable[[Context], str] | None = None,
    buffers: Iterable[str] = (),
    weighted_by: str = EXAMPLES,
) -> Mod:
    """A ClientApp mod with the clients' half of these defences.

    Give the server's strategy the same list (`as_strategy`) if any of them acts there too. ``name`` gives a client's
    name from its context (default: its node); it addresses seeded noise and the dealing of images, nothing else.
    """
    return _Mod(checked(defences), noise == "secret", seed, name, tuple(buffers), weighted_by)


def rows(examples: int) -> np.ndarray:
    """The rows of its ``examples`` that a ClientApp shall train on now: all, unless a defence deals them into parts."""
    desk = _DESK.get()
    return np.arange(examples) if desk is None else desk.rows(examples)


@dataclass
class _Desk:
    """What `rows` needs to know while the app runs: who deals, and whose turn it is."""

    deal: Callable[[int], list[np.ndarray] | None]
    part: int = 0
    parts: list[np.ndarray] | None = None
    asked: bool = False

    def rows(self, examples: int) -> np.ndarray:
        """The rows of the part whose turn it is."""
        if not self.asked:
            self.parts, self.asked = self.deal(examples), True
        return np.arange(examples) if self.parts is None else self.parts[self.part]


_DESK: ContextVar[_Desk | None] = ContextVar("leakline-desk", default=None)


@dataclass(frozen=True)
class _Mod:
    """The mod; all that it keeps between messages is in the node's state."""

    stack: Stack
    secret: bool
    seed: int
    name: Callable[[Context], str] | None
    buffers: tuple[str, ...]
    weighted_by: str
    key: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", stack_key(self.stack))

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Put home layers in, let the app train, take them out, release."""
        kind = message.metadata.message_type.partition(".")[0]
        if kind not in (MessageType.TRAIN, MessageType.EVALUATE) or not message.content.array_records:
            return call_next(message, context)
        arrays = only_arrays(message.content)
        bridge = Bridge.of(arrays, self.buffers)
        home = self.stack.kept(bridge.layout)
        shelf = Shelf(context.state, f"mod-{self.key}")
        if kind == MessageType.EVALUATE:
            return call_next(self._filled(message, bridge, shelf.recall(shelf.newest() + 1), home), context)

        head = message.content.config_records.get(HEAD, {})
        self._check(head)
        index = head.get("round", (round_of(message) or shelf.newest() + 2) - 1)
        memory = shelf.recall(index)
        party = node_name(context.node_id) if self.name is None else self.name(context)
        order = Order(party, index, bridge.weights(arrays).only(lambda n: n not in home), _notes(head))
        self.stack.accept(order, self._turns(index, party, memory))
        desk = _Desk(lambda examples: self._deal(examples, order, memory))
        replies = self._train(message, context, call_next, desk, bridge, memory, home, order)
        if failed := next((r for r in replies if r.has_error()), None):
            return failed
        sent = bridge.weights(arrays)
        updates = [self._read(bridge, r, sent, party, part) for part, r in enumerate(replies)]
        if home:
            _take_home(bridge, home, replies, updates, memory)
        shared = sent.only(lambda n: n not in home)
        content: dict[str, Any] = {}
        for part, (reply, update) in enumerate(zip(replies, updates, strict=True)):
            out = replace(update, delta=update.delta.only(lambda n: n not in home))
            where = party if len(updates) == 1 else f"{party}/{part}"
            out = self.stack.release(out, self._turns(index, where, memory))
            content |= self._records(bridge, reply.content, arrays, shared + out.delta, out, part)
        shelf.keep(index, memory)
        answer = {"stack": self.key, "parts": len(updates)}
        reply = replies[0]
        reply.content = RecordDict({**content, HEAD: ConfigRecord(answer)})
        return reply

    def _check(self, head: Any) -> None:
        """Refuse to train for a server that does not do its half."""
        elsewhere = self.stack.using(*SERVER)
        if "stack" not in head and elsewhere:
            raise StackError(
                f"{elsewhere} acts at the server too, and this server's strategy does not carry it",
                "as_mod",
                "wrap the strategy with the same list: leakline.flower.as_strategy(defences, strategy)",
            )
        if "stack" in head and head["stack"] != self.key:
            raise StackError(
                "as_strategy and as_mod were given different defences", "as_mod", "give both the same list"
            )

    def _turns(self, index: int, party: str, memory: Memory) -> tuple[Turn, ...]:
        return self.stack.turns(index, party, memory, seed=self.seed, secret=self.secret)

    def _deal(self, examples: int, order: Order, memory: Memory) -> list[np.ndarray] | None:
        return self.stack.split(examples, order, self._turns(order.round, order.client, memory))

    def _train(
        self, message: Message, context: Context, call_next: ClientAppCallable, desk: _Desk, bridge: Bridge,
        memory: Memory, home: frozenset[str], order: Order,
    ) -> list[Message]:  # fmt: skip
        """Let the app train, once for each part; an app that never asks for its rows cannot be split."""
        replies: list[Message] = []
        several = self.stack.sends(order.notes) > 1
        while True:
            token = _DESK.set(desk)
            try:
                replies.append(call_next(self._filled(message, bridge, memory, home), context))
            finally:
                _DESK.reset(token)
            if several and not desk.asked and not replies[-1].has_error():
                split = self.stack.using("split")
                raise StackError(
                    f"{split} trains parts of a client's data apart, and this app trains on all of them",
                    "as_mod",
                    "ask for the rows in the app's train function: rows = leakline.flower.rows(len(data))",
                )
            desk.part += 1
            if replies[-1].has_error() or desk.part >= (1 if desk.parts is None else len(desk.parts)):
                return replies

    def _filled(self, message: Message, bridge: Bridge, memory: Memory, home: frozenset[str]) -> Message:
        """The message for the app: home layers as this client left them, and nothing of leakline's in it."""
        content = {k: v for k, v in message.content.items() if k != HEAD}
        kept = memory.get("private")
        if home and kept is not None:
            own = Weights(bridge.layout.only(lambda n: n in home), kept)
            content = {k: bridge.record(own, v) if isinstance(v, ArrayRecord) else v for k, v in content.items()}
        found = copy.copy(message)
        found.content = RecordDict(content)
        return found

    def _read(self, bridge: Bridge, reply: Message, sent: Weights, party: str, part: int) -> Update:
        found = bridge.update(reply.content, sent, party, self.weighted_by)
        if isinstance(found, Dropped):
            raise ValueError(f"{party}: {found.reason}")
        return replace(found, part=part)

    def _records(
        self, bridge: Bridge, content: RecordDict, arrays: ArrayRecord, weights: Weights, update: Update, part: int
    ) -> dict[str, Any]:
        """A released update as the records that the app would have sent; figures taken out stay out."""
        start = "" if part == 0 else f"{HEAD}.part-{part}."
        metrics = only_metrics(content, self.weighted_by)
        shown = {k: v for k, v in metrics.items() if k in update.metrics}
        found: dict[str, Any] = {
            f"{start}{name}": MetricRecord({**shown, self.weighted_by: update.examples})
            for name, record in content.metric_records.items()
            if record is metrics
        }
        like = only_arrays(content)
        whole = ArrayRecord({n: like[n] if n in weights.layout.slices else arrays[n] for n in arrays})
        name = next(iter(content.array_records))
        return {**found, f"{start}{name}": bridge.record(weights, whole)}


def _take_home(
    bridge: Bridge, home: frozenset[str], replies: Sequence[Message], updates: Sequence[Update], memory: Memory
) -> None:
    """Keep the home layers as training left them; with several parts their mean, weighted by examples."""
    total = sum(u.examples for u in updates)
    own = [bridge.weights(only_arrays(r.content)).only(lambda n: n in home).vector for r in replies]
    memory["private"] = sum(
        (v * (u.examples / total) for v, u in zip(own, updates, strict=True)), torch.zeros_like(own[0])
    )


def _notes(head: Any) -> dict[str, float]:
    try:
        return {str(k): float(v) for k, v in json.loads(head.get("notes", "{}")).items()}
    except (TypeError, ValueError, AttributeError):
        return {}
