"""leakline's defences in the server's half of somebody's Flower app.

    strategy = leakline.flower.as_strategy([leakline.MetricPrivacy(0.5, clip=5.0)], FedAvg())

Replies are checked, then admitted; the wrapped strategy combines what is left; what came of it is published.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, FedProx, Strategy

from leakline.defences import Defence
from leakline.errors import ClientLost, StackError
from leakline.flower.recorder import read_reply
from leakline.flower.wrap.around import Around
from leakline.flower.wrap.bridge import EXAMPLES, Bridge, finite_figures, node_name
from leakline.flower.wrap.sides import CLIENT, HEAD, checked, stack_key
from leakline.messages import Dropped, Memory, Receipt, Update
from leakline.names import printable
from leakline.stack import Stack


def as_strategy(
    defences: Sequence[Defence],
    strategy: Strategy,
    *,
    weighting: Literal["examples", "even"] | None = None,
    noise: Literal["secret", "seeded"] = "secret",
    seed: int = 0,
    on_bad_client: Literal["drop", "stop"] = "drop",
    min_clients: int = 2,
    averages: bool | None = None,
    buffers: Iterable[str] = (),
) -> Defended:
    """The strategy behind leakline's guard, with the server's half of these defences around it.

    ``weighting = "even"`` lets every client count the same. Defences whose noise is for a mean of clients need that,
    and have it unless you say otherwise; others leave clients the weight of their examples. ``noise = "seeded"`` is
    for comparisons: whoever knows the seed can subtract it. ``averages``: whether the wrapped strategy returns the
    mean of what it is given (FedAvg and FedProx do; say so of your own), so that noise on its result is noise on the
    mean. Defences that act at clients need ``as_mod`` with the same list there; replies without it are refused.
    """
    stack = checked(defences)
    plain = _is_mean(strategy) if averages is None else averages
    if not plain and (early := stack.publishing("aggregate")):
        raise StackError(
            f"{early} adds its noise to the mean of the updates, and {_name(strategy)} does not "
            "show it: what it returns has gone through more than a mean",
            "as_strategy",
            "wrap FedAvg or FedProx, say averages=True of a strategy of your own, or let the defence act on the model "
            '(at="model"), which promises nothing with such a strategy',
        )
    if weighting is None:
        weighting = "even" if stack.dividing else "examples"
    if weighting not in ("examples", "even"):
        raise ValueError(f'weighting must be "examples" or "even": {weighting!r}')
    if stack.dividing and weighting == "examples":
        logging.getLogger("leakline").warning(
            "%s promises nothing here: clients count by their examples, its noise is for clients that count the same",
            stack.dividing,
        )
    return Defended(stack, strategy, weighting, noise == "secret", seed, on_bad_client, min_clients, tuple(buffers))


class Defended(Around):
    """A strategy with a guard before it and defences around it; ``rounds`` is what happened, one entry a round."""

    def __init__(
        self, stack: Stack, strategy: Strategy, weighting: str, secret: bool = True,
        seed: int = 0, on_bad_client: str = "drop", min_clients: int = 2, buffers: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        super().__init__(strategy)
        self.stack, self.weighting, self.secret, self.seed = stack, weighting, secret, seed
        self.on_bad_client, self.min_clients, self.buffers = on_bad_client, min_clients, buffers
        self.client_side = stack.using(*CLIENT)
        self.memory: Memory = {}
        self.rounds: list[dict[str, Any]] = []
        self.bridge: Bridge | None = None
        self.asked: list[int] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Remember what is sent, and send the notes of the defences along."""
        messages, stack = list(super().configure_train(server_round, arrays, config, grid)), self.stack
        if self.bridge is None:
            self.bridge = Bridge.of(arrays, self.buffers)
            self.private = stack.kept(self.bridge.layout)
        self.arrays, self.asked = arrays, [message.metadata.dst_node_id for message in messages]
        self.sent = self.bridge.weights(arrays).only(lambda name: name not in self.private)
        self.facts: dict[str, float] = {}
        self.turns = stack.turns(
            server_round - 1, "server", self.memory, seed=self.seed, secret=self.secret,
            expected=float(len(self.asked)), values=self.sent.layout.size, facts=self.facts,
        )  # fmt: skip
        notes = stack.brief(self.turns)
        self.most = stack.sends(notes)
        if stack:  # a mod wants to know that this side is there, whether or not it has anything to do
            head = {"round": server_round - 1, "stack": stack_key(self.stack), "notes": json.dumps(notes)}
            for message in messages:
                message.content = RecordDict({**dict(message.content.items()), HEAD: ConfigRecord(head)})
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Guard, admit, let the wrapped strategy combine, publish."""
        if self.bridge is None or not self.asked:
            return super().aggregate_train(server_round, replies)
        receipts: list[Receipt] = []
        dropped: list[Dropped] = []
        originals: dict[tuple[str, int], Message] = {}
        arriving = self._arriving(server_round, list(replies), receipts, dropped, originals)
        admitted = list(self.stack.admit(arriving, self.turns))
        self._enough(server_round, receipts, dropped)
        arrays, metrics = super().aggregate_train(server_round, self._replies(admitted, originals))
        self.rounds.append(
            {"round": server_round, "cohort": [r.client for r in receipts], "facts": self.facts,
             "dropped": [[d.client, d.reason] for d in dropped]}
        )  # fmt: skip
        if arrays is None:
            return None, metrics
        # Above float32, so that the mean's own size is not lost beside that of the weights.
        wide = torch.cat([torch.as_tensor(arrays[e.name].numpy()).double().flatten() for e in self.sent.layout.entries])
        change = self.sent.like((wide - self.sent.vector.double()).float())
        change = self.stack.publish(change, "aggregate", receipts, self.turns)
        change = self.stack.publish(change, "model", receipts, self.turns)
        result = self.sent + change
        if not torch.isfinite(result.vector).all():
            raise ClientLost("the next model would not be finite; it was not published", f"round {server_round}")
        return self.bridge.record(result, self.arrays), metrics  # counters, and what stays at home, are as sent

    def _arriving(
        self, index: int, replies: list[Message], receipts: list[Receipt], dropped: list[Dropped],
        originals: dict[tuple[str, int], Message],
    ) -> Iterator[Update]:  # fmt: skip
        """Usable updates in the order of node ids, whatever order they came in."""
        seen: set[int] = set()
        lacking: list[str] = []
        for reply in sorted(replies, key=lambda r: r.metadata.src_node_id):
            node = reply.metadata.src_node_id
            found = self._read(reply, lacking)
            if node in seen or node not in self.asked:
                found = [Dropped(node_name(node), "answered twice" if node in seen else "was not asked")]
            seen.add(node)
            bad = next((one for one in found if isinstance(one, Dropped)), None)
            if bad is not None:
                self._drop(bad, dropped, index)
                continue
            for one in found:
                assert isinstance(one, Update)
                receipts.append(Receipt(one.client, one.examples, one.steps, one.part))
                originals[one.client, one.part] = reply
                yield one
        for node in self.asked:
            if node not in seen:
                self._drop(Dropped(node_name(node), "no reply came in time"), dropped, index)
        if lacking and len(lacking) == len(seen):
            raise StackError(
                f"{self.client_side} acts at the clients, and no reply shows that it did",
                f"round {index}; nothing was published",
                "give the ClientApp the same list: ClientApp(mods=[leakline.flower.as_mod(defences)])",
            )

    def _drop(self, one: Dropped, dropped: list[Dropped], index: int) -> None:
        if self.on_bad_client == "stop":
            raise ClientLost(
                f"client {one.client}: {one.reason}", f"round {index}", 'mend it, or set on_bad_client = "drop"'
            )
        dropped.append(one)
        logging.getLogger("leakline").warning("round %s goes on without %s: %s", index, one.client, one.reason)

    def _read(self, reply: Message, lacking: list[str]) -> list[Update | Dropped]:
        """What a reply holds: one update, or one for each part of its client."""
        assert self.bridge is not None
        key, client = getattr(self.strategy, "weighted_by_key", EXAMPLES), node_name(reply.metadata.src_node_id)
        if reply.has_error() or not self.client_side:
            return [read_reply(self.bridge, reply, self.sent, key, several=False)]
        head = reply.content.config_records.get(HEAD, {})
        if head.get("stack") != stack_key(self.stack):
            lacking.append(client)
            said = "carries no" if "stack" not in head else "was given another list than"
            return [Dropped(client, f"its ClientApp {said} as_mod for {self.client_side}")]
        parts = head.get("parts", 1)
        if type(parts) is not int or not 1 <= parts <= self.most:
            return [Dropped(client, f"it sends {printable(parts, 20)} parts, and was asked for {self.most}")]
        found: list[Update | Dropped] = []
        for part in range(parts):
            content = part_of(reply.content, part)
            one = self.bridge.update(content, self.sent, client, key)
            found.append(replace(one, part=part) if isinstance(one, Update) else one)
        return found

    def _enough(self, index: int, receipts: list[Receipt], dropped: list[Dropped]) -> None:
        here = len({r.client for r in receipts})
        needed = max(self.min_clients, self.stack.fewest)
        if here < min(needed, len(self.asked)) or here == 0:
            raise ClientLost(
                f"only {here} of {len(self.asked)} clients gave a usable answer, {needed} are needed"
                + (f"; {dropped[0].client}: {dropped[0].reason}" if dropped else ""),
                f"round {index}; nothing was published",
                "mend the clients, or lower min_clients",
            )

    def _replies(self, updates: list[Update], originals: dict[tuple[str, int], Message]) -> list[Message]:
        """The admitted updates as replies that the wrapped strategy can combine, all with the same names in them."""
        assert self.bridge is not None
        key = getattr(self.strategy, "weighted_by_key", EXAMPLES)
        shared = set.intersection(*(set(finite_figures(u.metrics)) for u in updates)) if updates else set()
        found = []
        for update in updates:
            original = originals[update.client, update.part]
            figures = {name: update.metrics[name] for name in sorted(shared)}
            weight = update.examples if self.weighting == "examples" else 1
            arrays = self._wide(self.sent.vector.double() + update.delta.vector.double())
            others = {k: v for k, v in original.content.config_records.items() if k != HEAD}
            reply = copy.copy(original)
            reply.content = RecordDict({"arrays": arrays, "metrics": MetricRecord({**figures, key: weight}), **others})
            found.append(reply)
        return found

    def _wide(self, vector: torch.Tensor) -> ArrayRecord:
        """Weights in double precision: a clipped change must not be rounded to the grid of the weights."""
        found = dict(self.arrays.items())
        for entry in self.sent.layout.entries:
            values = vector[self.sent.layout.slices[entry.name]].view(entry.shape)
            found[entry.name] = Array(values.numpy().copy())
        return ArrayRecord(found)

    def summary(self) -> None:
        """Say what protects, and what the wrapped strategy is."""
        logging.getLogger("flwr").info("\t├──> Defended by leakline: %s", self.stack or "guard only")
        super().summary()


def part_of(content: RecordDict, part: int) -> RecordDict:
    """The records of one part of a reply; the first lies where a reply without parts has its own."""
    ours = f"{HEAD}.part-"
    if part == 0:
        return RecordDict({k: v for k, v in content.items() if not k.startswith(ours)})
    return RecordDict({k: v for k, v in content.items() if k.startswith(f"{ours}{part}.")})


def _is_mean(strategy: Strategy) -> bool:
    while isinstance(strategy, Around):
        strategy = strategy.strategy
    return type(strategy) in (FedAvg, FedProx)


def _name(strategy: Strategy) -> str:
    while isinstance(strategy, Around):
        strategy = strategy.strategy
    return type(strategy).__name__
