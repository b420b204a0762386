"""A Flower federation as the place where a study's run happens, with as few messages as the loop allows.

On real nodes a message costs seconds whatever it carries: Flower starts a new process for each. Where clients judge
a round's model, the same message therefore also asks them to train the next round from it, and those answers are
held until the loop asks for them. That is done only where the next order is already certain, so that no client ever
releases an update that is not used.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flwr.app import RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from leakline.data import Data
from leakline.federation import Federation
from leakline.flower.transport.exchange import FlowerTransport
from leakline.flower.transport.shelf import Shelf
from leakline.flower.transport.wire import NEXT, answers_of
from leakline.messages import Dropped, Memory, Order, Update
from leakline.runtimes.local import LocalTransport
from leakline.weights import Weights


@dataclass
class _Ahead:
    """Answers to orders that the loop has not given yet, by client."""

    order: Order
    answers: dict[str, list[Update | Dropped]] = field(default_factory=dict)

    def fits(self, order: Order) -> bool:
        """Whether this is the order that was foreseen."""
        mine = self.order
        same = order.weights.vector is mine.weights.vector and dict(order.notes) == dict(mine.notes)
        return same and order.round == mine.round


class FlowerPlace(FlowerTransport):
    """Carries a study's orders over a Flower grid, and judges on the server's own data here.

    Canaries hold no data and have no node: they are played here, beside the nodes.
    ``out``: in a simulation, the run directory in which nodes keep their memories; None in a deployment, where
    nobody but the node may see them.
    """

    def __init__(self, grid: Grid, federation: Federation, out: Path | None, **settings: Any) -> None:
        clients = federation.task.clients
        super().__init__(grid, names=[client.name for client in clients if client.canary is None], **settings)
        self._guests = {client.name for client in clients if client.canary is not None}
        self.federation, self.out = federation, out
        self._here = LocalTransport(federation, workers=1)
        self._notes: Mapping[str, float] = {}
        self._round = -1
        self._ahead: _Ahead | None = None

    @property
    def memories(self) -> Mapping[str, Memory]:
        """What clients kept: seen in a simulation, where nobody's secrets are at stake; nothing in a deployment."""
        if self.out is None:
            return {}
        shelves = {name: Shelf({}, self.extra["key"], self.out / "nodes" / name) for name in self.names}
        return {name: found for name, shelf in shelves.items() if (found := shelf.recall(self._round + 1))}

    def outputs(self, weights: Weights, data: Data) -> Tensor:
        """The global model's outputs on data of the server's, in order."""
        return self._here.outputs(weights, data)

    def exchange(self, orders: Sequence[Order]) -> Iterator[Update | Dropped]:
        """Let every ordered client take its turn; a turn that was taken ahead is handed on."""
        if orders and orders[0].kind == "evaluate":
            yield from self._judge(orders)
            return
        ahead, self._ahead = self._ahead, None
        ready = ahead.answers if ahead is not None and orders and ahead.fits(orders[0]) else {}
        if orders:
            self._notes, self._round = orders[0].notes, orders[0].round
        guests, elsewhere = self._guests, {*ready, *self._guests}
        sent = super().exchange([order for order in orders if order.client not in elsewhere])
        played = self._here.exchange([order for order in orders if order.client in guests])
        theirs, ours = (itertools.groupby(some, key=lambda one: one.client) for some in (sent, played))
        for order in orders:
            if order.client in ready:
                yield from ready[order.client]
            else:
                yield from next(ours if order.client in guests else theirs)[1]
        for _ in itertools.chain(theirs, ours):
            raise AssertionError("more answers than orders")

    def _judge(self, orders: Sequence[Order]) -> Iterator[Update | Dropped]:
        foreseen = self._foreseen(orders[0])
        if foreseen is None:
            yield from super().exchange(orders)
            return
        self._ahead = _Ahead(foreseen)
        self.extra["then"] = {"round": foreseen.round, "notes": dict(foreseen.notes)}
        try:
            yield from super().exchange(orders)
        finally:
            del self.extra["then"]

    def _foreseen(self, order: Order) -> Order | None:
        """The training order that will follow, where nothing that is still to happen can change it."""
        federation = self.federation
        everybody = federation.cohort.sampling == "full"
        more = order.round + 1 < federation.rounds and not federation.judging.patience
        if not (everybody and more and federation.stack.steady):
            return None
        return replace(order, round=order.round + 1, notes=self._notes, kind="train")

    def _read(self, content: RecordDict, order: Order) -> list[Update | Dropped]:
        answers = super()._read(content, order)
        if self._ahead is not None and order.kind == "evaluate":
            then = replace(self._ahead.order, client=order.client)
            lost: list[Update | Dropped] = [one for one in answers if isinstance(one, Dropped)]  # neither half was done
            self._ahead.answers[order.client] = lost or answers_of(content, then, NEXT)
        return answers
