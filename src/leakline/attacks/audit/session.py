"""Several rounds in a row on one memory, as a seat sees them, while one client sends what an audit wants.

A session is played under a seed of its own, so that two sessions which differ in one client's input alone draw the
same noise (where the noise is seeded): what then differs between them is that input and nothing else.

    ReleaseSession    the server's seat: the reports of two clients, side by side
    PublishSession    a participant's seat: how the published model changed in each round
    RecordSession     the server's seat, one record apart: the update of a client that trains on a steep classifier
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from leakline.attacks.audit.channel import _update, belonging, released
from leakline.attacks.audit.workbench import record_federation
from leakline.bench.training import Bench, Plan
from leakline.data.base import Client, Data
from leakline.federation import Federation, State, federate, keep_none
from leakline.messages import Dropped, Memory, Order, Update
from leakline.randomness import Stream
from leakline.runtimes.client import answer
from leakline.weights import Weights

ROUNDS = 6
"""Rounds of a session: noise that returns within five of them shows."""


class Session(Protocol):
    """Something that plays rounds in a row. An input has one row for each round, or is None: the target is away."""

    @property
    def values(self) -> int:
        """How long an input of one round is."""
        ...

    @property
    def rounds(self) -> int:
        """How many rounds are played."""
        ...

    def see(self, sent: Tensor | None, seed: int, *, quiet: bool = False) -> Tensor:
        """What the seat sees, a row for each round; ``quiet``: nobody else sends anything either."""
        ...


def reseeded(federation: Federation, seed: int, attending: Sequence[str] | None = None) -> Federation:
    """The same federation under another seed, and with given attendance where its cohorts are drawn.

    A copy that keeps the layout it has computed: building a model for every trial would cost more than the trial.
    """
    other = copy.copy(federation)
    other.__dict__["seed"] = Stream(federation.seed, seed, "examiner", "session").integer()
    if attending is not None:
        other.__dict__["invited"] = lambda index: list(attending)
    return other


@dataclass(frozen=True)
class ReleaseSession:
    """The server's seat: what the target and another client report, round after round."""

    federation: Federation
    rounds: int = ROUNDS

    @property
    def values(self) -> int:
        """The part of the model that travels."""
        return self.federation.wire.size

    def see(self, sent: Tensor | None, seed: int, *, quiet: bool = False) -> Tensor:
        """The reports of a round in one row; who is away reports zeros."""
        return torch.stack([torch.cat([u.delta.vector for u in row]) for row in self.reports(sent, seed, quiet)])

    def reports(self, sent: Tensor | None, seed: int, quiet: bool = False) -> list[list[Update]]:
        """The reports themselves, of the target and of another client where there is one."""
        federation = reseeded(self.federation, seed)
        names = [c.name for c in federation.task.clients[:2]]
        memories: dict[str, Memory] = {name: {} for name in names}
        nothing = torch.zeros(self.values)
        rows = []
        for index in range(self.rounds):
            inputs = [nothing if sent is None else sent[index], nothing]
            made = [_update(federation, n, x) for n, x in zip(names, inputs, strict=False)]
            told = [replace(u, metrics={"loss": float(u.delta.vector.norm())}) for u in made]
            rows.append([released(federation, u, index, memories[u.client]) for u in told])
        return rows


Others = Literal["short", "long"]

FIT = 10.0
"""How far on the right side a record of a steep classifier lies that is to have no gradient."""


@dataclass(frozen=True)
class PublishSession:
    """A participant's seat. ``attending``: how many of the others come (-1: all); ``dropped`` do not answer.

    ``parts``: whether the input goes into every part of a client that splits itself, or into the first.
    """

    federation: Federation
    rounds: int = ROUNDS
    attending: int = -1
    dropped: int = 0
    others: Others = "short"
    parts: Literal["all", "one"] = "all"

    @property
    def values(self) -> int:
        """The part of the model that travels."""
        return self.federation.wire.size

    def see(self, sent: Tensor | None, seed: int, *, quiet: bool = False) -> Tensor:
        """How the published model changed in each round."""
        rest = [c.name for c in self.federation.task.clients[1:]]
        rest = rest if self.attending < 0 else rest[: self.attending]
        names = rest if sent is None else [self._target, *rest]
        federation = reseeded(self._federation, seed, names)
        crowd = _Crowd(self, federation, sent, quiet, {})
        state = State(weights=Weights.zeros(federation.wire))
        changes = [r.result.vector - r.sent.vector for r in federate(federation, crowd, keep=keep_none, state=state)]
        return torch.stack(changes)

    @property
    def _target(self) -> str:
        return self.federation.task.clients[0].name

    @cached_property
    def _federation(self) -> Federation:
        return replace(self.federation, rounds=self.rounds)

    @cached_property
    def vectors(self) -> dict[str, Tensor]:
        """What the others send: all different, since a defence may compare clients."""
        generator = torch.Generator().manual_seed(1)
        length = 0.1 if self.others == "short" else 100.0
        drawn = {c.name: torch.randn(self.values, generator=generator) for c in self.federation.task.clients}
        return {name: vector * (length / max(float(vector.norm()), 1e-12)) for name, vector in drawn.items()}


@dataclass(frozen=True)
class _Crowd:
    """A transport whose clients send what a session says."""

    session: PublishSession
    federation: Federation
    sent: Tensor | None
    quiet: bool
    memories: dict[str, Memory]

    def exchange(self, orders: Sequence[Order]) -> Iterator[Update | Dropped]:
        """Answer like clients that have finished training."""
        session, nothing = self.session, torch.zeros(self.session.values)
        silent = [order.client for order in orders if order.client != session._target][: session.dropped]
        for order in orders:
            if order.client in silent:
                yield Dropped(order.client, "did not answer")
                continue
            memory = self.memories.setdefault(order.client, {})
            for part in range(self.federation.stack.sends(order.notes)):
                change = nothing if self.quiet else session.vectors[order.client]
                if order.client == session._target and self.sent is not None:
                    change = self.sent[order.round] if session.parts == "all" or part == 0 else nothing
                update = replace(_update(self.federation, order.client, change), part=part)
                yield released(self.federation, update, order.round, memory)


@dataclass(frozen=True)
class RecordSession:
    """The server's seat, one record apart: whole turns of a client, epochs and uneven batches included.

    The classifier is steep: its weights are so large that a record is either fitted (gradient 0) or all wrong, and
    then its gradient is the same at every step, whatever the noise has done to the weights. An input is the first
    record; None is one that is fitted. ``others``: all other records, of every client, are fitted ("short") or pull the
    other way ("long"). ``whole``: an input is every record of the first patient. ``summed``: what is seen is the mean
    over all clients.
    """

    federation: Federation
    rounds: int = 2
    others: Others = "short"
    whole: bool = False
    summed: bool = False

    @property
    def values(self) -> int:
        """The numbers of one record."""
        return int(self.federation.task.shape[0])

    def see(self, sent: Tensor | None, seed: int, *, quiet: bool = False) -> Tensor:
        """The released update of each round."""
        federation = reseeded(self._world(None if sent is None else sent[0], quiet), seed)
        names = [client.name for client in federation.task.clients[: None if self.summed else 1]]
        memories: dict[str, dict[str, Any]] = {name: {} for name in names}
        start = self._bench.initial.only(federation.shares)
        rows = []
        for index in range(self.rounds):
            sent_by = [answer(federation, self._bench, Order(n, index, start), memories[n]) for n in names]
            each = [torch.cat([update.delta.vector for update in updates]) for updates in sent_by]
            rows.append(torch.stack(each).mean(0))
        return torch.stack(rows)

    def drawn(self, seed: int) -> int:
        """How many records the batches of the first round held, where noise is seeded and batches are drawn."""
        federation = reseeded(self.federation, seed)
        client = federation.task.clients[0]
        turns = federation.turns_of(client.name, 0, {}, groups=client.train.groups)
        steps = federation.stack.batches(len(client.train), federation.plan, turns)
        return sum(len(rows) for rows in steps or ())

    def record(self, across: Tensor, length: float) -> Tensor:
        """A record that is all wrong, and pulls along ``across`` with about ``length``."""
        wrong = self._uphill * max(0.1, 2e-3 * length)
        flat = across - self._uphill * float(across @ self._uphill)
        return wrong + flat * (length / max(float(flat.norm()), 1e-12))

    @cached_property
    def _uphill(self) -> Tensor:
        """The direction in which label 0 becomes label 1."""
        weight = self._bench.initial[next(e.name for e in self._bench.initial.layout.entries)]
        apart = weight[1] - weight[0]
        return torch.nn.functional.normalize(apart, dim=0)

    def _world(self, record: Tensor | None, quiet: bool) -> Federation:
        key = (id(record), quiet)
        if key not in self._worlds:
            first, *rest = self.federation.task.clients
            x, mine = self._crowd(first, quiet), belonging(first.train, self.whole)
            x[mine] = -FIT * self._uphill if record is None else record
            # Clients beside the first are seen in a sum: who is quiet must be so there, or their pull looks like noise.
            clients = (_holding(first, x), *(_holding(one, self._crowd(one, quiet)) for one in rest))
            task = replace(self.federation.task, clients=clients)
            self._worlds[key] = (replace(self.federation, task=task), record)  # held, so that its id stays its own
        return self._worlds[key][0]

    def _crowd(self, client: Client, quiet: bool) -> Tensor:
        """What a client's records are where nothing else is said: fitted, or pulling the other way."""
        one = -FIT * self._uphill
        if self.others == "long" and not quiet:
            generator = torch.Generator().manual_seed(2)
            one = self.record(-torch.randn(self.values, generator=generator), 30.0)
        return one.expand(len(client.train), -1).clone()

    @cached_property
    def _worlds(self) -> dict[tuple[int, bool], tuple[Federation, Tensor | None]]:
        return {}

    @cached_property
    def _bench(self) -> Bench:
        return self.federation.bench()


def _holding(client: Client, x: Tensor) -> Client:
    """The client with other records, all of label 0."""
    return Client(client.name, Data(x, torch.zeros(len(x), dtype=torch.int64), client.train.groups))


EPOCHS = 4
"""Most epochs of a record's session: a plan of more is cut, and the claim with it."""


def steep_bench(federation: Federation, noise: Literal["secret", "seeded"]) -> Federation:
    """The same stack and plan around a steep linear classifier and a handful of records.

    Batches of the plan become batches of at most three with one record left over, so that batches are uneven.
    """
    plan = federation.plan
    batch = min(plan.batch, 3) if plan.batch else 0
    made = record_federation(federation, federation.stack.defences, rounds=2, noise=noise)
    records = 2 * batch + 1 if batch else 8
    clients = tuple(Client(c.name, c.train.take(range(min(records, len(c.train))))) for c in made.task.clients)
    short = Plan(min(plan.epochs, EPOCHS), batch, learning_rate=1.0, max_steps=min(plan.max_steps, 2 * EPOCHS))
    return replace(made, task=replace(made.task, clients=clients), model=_steep, plan=short)


def _steep() -> nn.Module:
    layer = nn.Linear(4, 2)
    with torch.no_grad():
        layer.weight.mul_(1000.0)
    return nn.Sequential(layer)
