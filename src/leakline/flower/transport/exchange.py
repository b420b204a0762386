"""The Flower transport: orders out to nodes, updates back, in the order of the orders, never later than a deadline.

Clients are known by name. Nodes are asked theirs when the federation gathers, and again when an unknown node turns
up: a node that was restarted may have another id, but it is the same client. Flower's strategies and mods are not used.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from leakline.errors import ClientLost, StudyError
from leakline.flower.transport.steady import steadily
from leakline.flower.transport.versions import other
from leakline.flower.transport.wire import answers_of, arrays, head_of, order_head, record
from leakline.messages import Dropped, Order, Update
from leakline.names import printable

REASONS = {
    1: "its node cannot load the app",
    2: "its app raised an error",
    3: "no answer before its order expired",
    4: "its answer was lost",
    5: "its node is gone",
    7: "its node refused the app",
    8: "its app was killed",
}
"""Flower's error codes in words. The text that comes with them may name paths, so it is left at the node."""

FIRST_PAUSE = 0.01
"""How long to wait before asking again for answers, in seconds; each time half as long again, up to ``poll``."""

INTRODUCTION = 300.0
"""How long a node may take to say who it is, which includes reading its data; a round's deadline may be far longer."""

STRANGERS = 10.0
"""How long to wait for other nodes to say who they are, once every client has one: two may claim one name."""


class FlowerTransport:
    """Carries a federation's orders over a Flower grid.

    ``names``: all clients of the federation; by default those of the first round. ``deadline``: the longest that a
    round may take, in seconds; once rounds have been timed, twice their median and a minute if that is less. Who has
    not answered by then is dropped. ``wait``: how long nodes may take to connect. ``extra`` goes to every node with
    each order. ``known``: another transport over the same grid, which has asked the nodes already. ``away``: clients
    that are asked for nothing, each with its reason.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        names: Sequence[str] = (),
        deadline: float = 3600.0,
        wait: float = 60.0,
        extra: Mapping[str, Any] | None = None,
        poll: float = 0.25,
        known: FlowerTransport | None = None,
        away: Mapping[str, str] | None = None,
    ) -> None:
        if deadline <= 0 or wait < 0:
            raise ValueError(f"deadline must be above 0 and wait not negative: {deadline}, {wait}")
        self.grid, self.deadline, self.wait, self.poll = grid, deadline, wait, poll
        self.extra = dict(extra or {})
        self.names = list(names)
        self.nodes: dict[str, int] = dict(known.nodes) if known else {}
        """Who is where: client's name -> node id."""
        self.facts: dict[str, dict[str, Any]] = dict(known.facts) if known else {}
        """What each client's node said about itself."""
        self._asked: dict[int, str] = dict(known._asked) if known else {}
        self._took: list[float] = []
        self.away = dict(away or {})
        self._unfit: dict[str, str] = {}

    def gather(self, needed: int = 0) -> Mapping[str, Mapping[str, Any]]:
        """Wait until every client has a node and return what the nodes say of themselves, or say who is missing.

        ``needed``: so many are enough once the wait is over (0: all are needed).
        """
        names = self.names
        until = time.monotonic() + self.wait
        while True:
            waiting = time.monotonic()
            self._ask([node for node in self._online() if node not in self._asked])
            until += time.monotonic() - waiting  # the wait is for nodes to connect, not for their answers
            missing = [name for name in names if name not in self.nodes]
            if not missing:
                return {name: self.facts[name] for name in names}
            if time.monotonic() >= until:
                break
            time.sleep(self.poll)
        if needed and len(names) - len(missing) >= needed:
            return {name: self.facts[name] for name in names if name in self.nodes}
        silent = sorted({reason for reason in self._asked.values() if reason})
        raise ClientLost(
            f"{len(names) - len(missing)} of {len(names)} clients have a node"
            + (f", {needed} are needed" if needed and needed < len(names) else "")
            + f"; missing: {', '.join(missing[:8])}"
            + (f" ({len(self._asked)} nodes are connected: {'; '.join(silent)[:200]})" if silent else ""),
            f"waited {self.wait:.0f} s",
            'start a SuperNode for each client, with client="NAME" in its --node-config',
        )

    def exchange(self, orders: Sequence[Order]) -> Iterator[Update | Dropped]:
        """Send every order, then hand answers on as they come, in the order of ``orders``."""
        self.names = self.names or [order.client for order in orders]
        if not self.nodes and orders:
            self.gather()
        started = time.monotonic()
        until = started + self.patience()
        self._look_again([order.client for order in orders])
        answers: dict[int, list[Update | Dropped]] = {}
        pending: dict[str, int] = {}
        packed: dict[int, ArrayRecord] = {}
        for position, order in enumerate(orders):
            node = self.nodes.get(order.client)
            if node is None or order.client in self.away:
                reason = self.away.get(order.client) or self._unfit.get(order.client)
                answers[position] = [Dropped(order.client, reason or "no node of that name is connected")]
                continue
            vectors = packed.setdefault(id(order.weights), arrays([order.weights.vector]))
            kind = MessageType.TRAIN if order.kind == "train" else MessageType.EVALUATE
            sent = self._push(node, kind, {**order_head(order), "names": self.names, **self.extra}, vectors, until)
            if sent is None:
                answers[position] = [Dropped(order.client, "its order could not be sent")]
            else:
                pending[sent] = position
        for position, order in enumerate(orders):
            pause = FIRST_PAUSE
            while position not in answers and time.monotonic() < until:
                if not self._pull(pending, orders, answers, until):
                    time.sleep(pause)
                    pause = min(self.poll, 1.5 * pause)
            if position not in answers:
                self._pull(pending, orders, answers, until)
            yield from answers.pop(position, None) or [
                Dropped(order.client, f"no answer within {until - started:.0f} s")
            ]
        if not pending:  # a round that lost somebody says nothing about how long a round takes
            self._took.append(time.monotonic() - started)

    def patience(self) -> float:
        """How long the next round may take."""
        return min(self.deadline, 2 * statistics.median(self._took) + 60) if self._took else self.deadline

    def _online(self) -> list[int]:
        return steadily(self.grid.get_node_ids, time.monotonic() + min(self.deadline, INTRODUCTION), self.poll)

    def _look_again(self, names: Sequence[str]) -> None:
        """Ask nodes that are new, if somebody's node is gone."""
        online = set(self._online())
        gone = [name for name in names if self.nodes.get(name) not in online and name not in self.away]
        for name in gone:
            self.nodes.pop(name, None)
        for node in [node for node in self._asked if node not in online]:
            del self._asked[node]  # one that comes back with the same number is asked again
        if gone:
            self._ask([node for node in online if node not in self._asked])
        for name in gone:
            if name in self.nodes:
                self._look_at(name)

    def _look_at(self, name: str) -> None:
        """Hold a node that came after the start to what those were held to that began."""
        fact = self.facts[name]
        reason = (other(fact) if "versions" in fact else "") or printable(str(fact.get("refused") or ""), 200)
        self._unfit[name] = reason
        if reason:
            del self.nodes[name]

    def _ask(self, nodes: Sequence[int]) -> None:
        """Ask nodes who they are."""
        if not nodes:
            return
        until = time.monotonic() + min(self.deadline, INTRODUCTION)
        head = {"kind": "query", "names": self.names, **self.extra}
        pending = {self._push(node, MessageType.QUERY, head, None, until): node for node in nodes}
        pending.pop(None, None)
        while pending and time.monotonic() < until:
            waited_for = [sent for sent in pending if sent]
            replies = steadily(lambda: self.grid.pull_messages(waited_for), until, self.poll)  # noqa: B023
            for reply in replies:
                self._meet(pending.pop(reply.metadata.reply_to_message_id), reply)
            if all(name in self.nodes for name in self.names):  # whoever is still silent is not waited for long
                until = min(until, time.monotonic() + STRANGERS)
            if not replies:
                time.sleep(self.poll)
        for node in pending.values():
            self._asked[node] = "one does not answer"

    def _meet(self, node: int, reply: Message) -> None:
        if reply.has_error():
            self._asked[node] = REASONS.get(reply.error.code, "one failed")
            return
        try:
            head = head_of(reply.content)
            name = printable(head["name"]) if head.get("name") else ""
        except Exception:
            self._asked[node] = "one gives no readable answer"
            return
        if "dropped" in head:
            self._asked[node] = f"one says: {printable(str(head['dropped']), 120)}"
            return
        self._asked[node] = "" if name else "one plays no client of this study"
        if not name:
            return
        if name in self.nodes and self.nodes[name] in set(self._online()):
            raise StudyError(
                f"two nodes say that they are {name}",
                f"nodes {self.nodes[name]} and {node}",
                'give each SuperNode its own client="NAME" in --node-config',
            )
        self.nodes[name], self.facts[name] = node, head

    def _push(
        self, node: int, kind: str, head: Mapping[str, Any], vectors: ArrayRecord | None, until: float
    ) -> str | None:
        ttl = max(1.0, until - time.monotonic())  # an order that nobody fetched in time must not be carried out later
        message = Message(record(head, vectors), node, kind, ttl=ttl, group_id=str(head.get("round", "")))
        sent = steadily(lambda: self.grid.push_messages([message]), until, self.poll)
        return str(sent[0]) if sent and sent[0] else None

    def _pull(
        self, pending: dict[str, int], orders: Sequence[Order], answers: dict[int, list[Update | Dropped]], until: float
    ) -> bool:
        replies = steadily(lambda: self.grid.pull_messages(list(pending)), until, self.poll) if pending else []
        for reply in replies:
            position = pending.pop(reply.metadata.reply_to_message_id, None)
            if position is None:
                continue
            if reply.has_error():
                reason = REASONS.get(reply.error.code, "its node failed")
                answers[position] = [Dropped(orders[position].client, reason)]
            else:
                answers[position] = self._read(reply.content, orders[position])
        return bool(replies)

    def _read(self, content: RecordDict, order: Order) -> list[Update | Dropped]:
        return answers_of(content, order)
