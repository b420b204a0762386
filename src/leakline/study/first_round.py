"""The first round of federations that differ at the server alone: their clients answer alike, so they train once.

A study compares defences and strategies that act on what clients sent. From one seed they all send the same weights
first, and without a defence at the clients the same updates come back. These are remembered, in this process only.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from types import TracebackType

import numpy as np
from torch import Tensor

from leakline.data.base import Data
from leakline.federation import Federation
from leakline.messages import Dropped, Memory, Order, Update
from leakline.runtimes.local import LocalTransport
from leakline.study.describe import describe
from leakline.weights import Weights

MOST = 256 * 2**20
"""Bytes of updates that are remembered, of all federations together; the oldest are forgotten first."""
AT_SERVER = frozenset({
    "strategy", "defences", "rounds", "noise", "sampling", "participation", "min_clients", "max_norm",
    "on_bad_client", "secure_aggregation", "planned", "evaluate", "average", "patience",
})  # fmt: skip
"""Settings that no client computes with, once no defence acts there. Any other setting makes another round."""
AT_CLIENT = ("accept", "shares", "kept", "split", "batches", "gradient", "release")
"""The hooks of defences that act at clients."""

_rounds: OrderedDict[str, tuple[list[Update], object]] = OrderedDict()
"""What was answered, and the model: for as long as it is held, no other has its identity."""


class FirstRound:
    """A local transport whose first round is taken from memory where the same clients trained from the same start."""

    def __init__(self, place: LocalTransport) -> None:
        self.place, self.federation = place, place.federation

    def __enter__(self) -> FirstRound:
        self.place.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.place.__exit__(kind, error, trace)

    @property
    def memories(self) -> dict[str, Memory]:
        """What clients keep between rounds."""
        return self.place.memories

    def outputs(self, weights: Weights, data: Data) -> Tensor:
        """The global model's outputs on data of the server's, in order."""
        return self.place.outputs(weights, data)

    def exchange(self, orders: Sequence[Order]) -> Iterator[Update | Dropped]:
        """Let every ordered client take its turn, or give what it answered to the same order before."""
        if not orders or not self._alike(orders):
            yield from self.place.exchange(orders)
            return
        key = _key(self.federation, orders)
        if key in _rounds:
            _rounds.move_to_end(key)
            yield from map(_copied, _rounds[key][0])
            return
        answers: list[Update] = []
        for answer in self.place.exchange(orders):
            if isinstance(answer, Update):
                answers.append(_copied(answer))
            yield answer
        if len(answers) == len(orders):
            _rounds[key] = (answers, self.federation.model)
            while sum(_size(kept) for kept, _ in _rounds.values()) > MOST:
                _rounds.popitem(last=False)

    def _alike(self, orders: Sequence[Order]) -> bool:
        """Whether what comes back depends on nothing but clients, weights and seed, and may be remembered."""
        federation = self.federation
        first = orders[0].round == 0 and orders[0].kind == "train"
        ours = not federation.stack.using(*AT_CLIENT) and federation.wire == federation.layout
        return first and ours and len(orders) * 4 * federation.wire.size <= MOST


def _key(federation: Federation, orders: Sequence[Order]) -> str:
    """A hash of all that decides what clients answer: who, from which weights, by which recipe."""
    settings = {f.name: describe(value) for f, value in federation.flat() if f.name not in AT_SERVER}
    # A function of the user's own is told by itself: its text does not say what it holds on to.
    named = settings["model"] if is_dataclass(federation.model) else id(federation.model)
    about = settings | {"model": named, "mu": federation.strategy.proximal, "asked": [o.client for o in orders]}
    digest = hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(orders[0].weights.vector.numpy()).data)
    return digest.hexdigest()


def _size(updates: Sequence[Update]) -> int:
    return sum(4 * update.delta.vector.numel() for update in updates)


def _copied(update: Update) -> Update:
    """The same update in memory of its own: whoever gets one may do with it as they like."""
    metrics: Mapping[str, float] = dict(update.metrics)
    return replace(update.with_delta(update.delta.vector.clone()), metrics=metrics)
