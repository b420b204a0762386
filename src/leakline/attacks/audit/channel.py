"""What a seat sees of a defence stack when one client sends one of two inputs.

A channel calls the real hooks of the real defence objects, in the order in which a federation calls them, so what
is measured is the implementation and not a formula about it:

    ReleaseChannel    the server's seat: the update as it crosses the wire       release
    PublishChannel    a participant's seat: the published change of the model    release, admit, combine, publish
    LocalChannel      the server's seat, when what differs is one record         gradient, release

A mechanism neither knows nor cares what the numbers mean, so the game is played on a small copy of the wire: every
entry keeps its name, its place and whether it is a buffer, and shrinks to a few values. That makes a trial cost
microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor

from leakline.bench.training import Bench
from leakline.data.base import Client, Data
from leakline.federation import Federation, State, federate, keep_none
from leakline.messages import Dropped, Memory, Order, Update
from leakline.privacy import Seat
from leakline.runtimes.client import answer
from leakline.weights import Entry, Layout, Weights, write

OTHERS = 0.1
"""Length of the updates of the clients that the game is not about."""


Part = Literal["all", "one"]


class Channel(Protocol):
    """Something that turns one of two inputs into what a seat sees."""

    @property
    def seat(self) -> Seat:
        """Who looks."""
        ...

    @property
    def layout(self) -> Layout:
        """What an input and a view are made of."""
        ...

    def see(self, change: Tensor, trial: int, memory: Memory | None = None) -> Tensor:
        """What the seat sees of one release of ``change``; trials differ in their randomness."""
        ...


@dataclass(frozen=True)
class ReleaseChannel:
    """The server's seat: one client's update after the stack's `release` hooks."""

    federation: Federation
    target: str = ""
    seat: Seat = Seat.SERVER

    @property
    def layout(self) -> Layout:
        """The part of the model that travels."""
        return self.federation.wire

    def see(self, change: Tensor, trial: int, memory: Memory | None = None) -> Tensor:
        """The released update."""
        name = self.target or self.federation.task.clients[0].name
        own: Memory = {} if memory is None else memory
        return released(self.federation, _update(self.federation, name, change), trial, own).delta.vector


@dataclass(frozen=True)
class PublishChannel:
    """A participant's seat: how the published model changed in a round in which the target sent ``change``.

    The rest of the cohort sends short vectors that the observer knows, all different (a defence may compare
    clients) and at right angles to a canary. ``dropped`` of them do not answer. ``parts`` says whether the input
    goes into every part of a client that splits itself, or into one.
    """

    federation: Federation
    target: str = ""
    dropped: int = 0
    parts: Part = "all"
    seat: Seat = Seat.CLIENT

    @property
    def layout(self) -> Layout:
        """The part of the model that travels."""
        return self.federation.wire

    @cached_property
    def _silent(self) -> tuple[str, ...]:
        names = [c.name for c in self.federation.task.clients if c.name != self._target]
        return tuple(names[: self.dropped])

    @property
    def _target(self) -> str:
        return self.target or self.federation.task.clients[0].name

    @cached_property
    def others(self) -> dict[str, Tensor]:
        """What everybody but the target sends."""
        generator = torch.Generator().manual_seed(0)
        found = {}
        for client in self.federation.task.clients:
            vector = torch.randn(self.layout.size, generator=generator)
            for buffer in (False, True):
                rows = torch.cat([torch.full((e.size,), e.buffer == buffer) for e in self.layout.entries])
                vector[rows] -= vector[rows].mean() if rows.any() else 0.0
            found[client.name] = vector * (OTHERS / max(float(vector.norm()), 1e-12))
        return found

    def see(self, change: Tensor, trial: int, memory: Memory | None = None) -> Tensor:
        """The change of the published model."""
        start = Weights.zeros(self.layout)
        state = State(next=trial, weights=start, memory={} if memory is None else memory)
        cohort = _Cohort(self, change)
        round_ = next(federate(self._endless, cohort, keep=keep_none, state=state))
        return round_.result.vector

    @cached_property
    def _endless(self) -> Federation:
        return replace(self.federation, rounds=2**62)


@dataclass(frozen=True)
class _Cohort:
    """A transport whose clients send what the game says."""

    channel: PublishChannel
    change: Tensor

    def exchange(self, orders: Sequence[Order]) -> Iterator[Update | Dropped]:
        """Answer like clients that have finished training."""
        channel, federation = self.channel, self.channel.federation
        nothing, others = torch.zeros(channel.layout.size), channel.others
        for order in orders:
            if order.client in channel._silent:
                yield Dropped(order.client, "did not answer")
                continue
            mine = order.client == channel._target
            for part in range(federation.stack.sends(order.notes)):
                sent = (
                    (self.change if channel.parts == "all" or part == 0 else nothing) if mine else others[order.client]
                )
                update = replace(_update(federation, order.client, sent), part=part)
                yield released(federation, update, order.round, {})


@dataclass(frozen=True)
class LocalChannel:
    """The server's seat, one record apart: a client trains one step on its data, and on data with one record changed.

    An input is a record here (its values, flattened), not an update; a record acts through a gradient, so a linear
    classifier is really trained. Made by `record_bench`. ``whole``: all records of the first one's patient are that
    one, and change together; ``summed``: what is seen is the mean over all clients.
    """

    federation: Federation
    seat: Seat = Seat.SERVER
    whole: bool = False
    summed: bool = False

    @property
    def layout(self) -> Layout:
        """One record."""
        return Layout((Entry("record", self.federation.task.shape),))

    def see(self, change: Tensor, trial: int, memory: Memory | None = None) -> Tensor:
        """The released update of the client that holds the record."""
        federation = self._worlds.get(id(change))
        if federation is None:
            client = self.federation.task.clients[0]
            x, y, mine = client.train.x.clone(), client.train.y.clone(), belonging(client.train, self.whole)
            x[mine], y[mine] = change.view(x.shape[1:]), y[0].clone()
            holder = Client(client.name, replace(client.train, x=x, y=y))
            task = replace(self.federation.task, clients=(holder, *self.federation.task.clients[1:]))
            federation = self._worlds[id(change)] = replace(self.federation, task=task)
            self._held.append(change)  # so that the id stays its own
        start = self._bench.initial.only(federation.shares)
        seen = []
        for client in federation.task.clients[: None if self.summed else 1]:
            own = {} if memory is None else memory.setdefault(client.name, {}) if self.summed else memory
            updates = answer(federation, self._bench, Order(client.name, trial, start), own)
            seen.append(torch.cat([update.delta.vector for update in updates]))
        return torch.stack(seen).mean(0)

    def records(self, size: float) -> tuple[Tensor, Tensor]:
        """A record that the initial model already fits, so that its gradient is 0, and one that it gets all wrong."""
        weight = self._bench.initial["0.weight"]
        label = int(self.federation.task.clients[0].train.y[0])
        wrong = weight[1 - label] - weight[label]
        wrong = wrong * (size / float(wrong.norm()))
        return -wrong, wrong

    def pull(self, record: Tensor) -> Tensor:
        """Where a step without any defence goes on this record alone: what an observer looks for in an update."""
        model, client = self._bench.model, self.federation.task.clients[0]
        write(model, self._bench.initial)
        loss = self._bench.loss(model(record.view(1, -1)), client.train.y[:1])
        found = torch.autograd.grad(loss, list(model.parameters()))
        return -torch.cat([g.flatten() for g in found])

    @cached_property
    def _worlds(self) -> dict[int, Federation]:
        return {}

    @cached_property
    def _held(self) -> list[Tensor]:
        return []

    @cached_property
    def _bench(self) -> Bench:
        return self.federation.bench()


def belonging(data: Data, whole: bool) -> Tensor:
    """Which records are exchanged: the first, or all of the first one's patient."""
    if whole and data.groups is not None:
        return data.groups == data.groups[0]
    return torch.arange(len(data)) == 0


def _update(federation: Federation, name: str, change: Tensor) -> Update:
    examples = max(1, len(federation.clients[name].train))
    return Update(name, Weights(federation.wire, change.to(torch.float32)), examples, 1, {"loss": 0.0})


def released(federation: Federation, update: Update, index: int, memory: Memory) -> Update:
    """An update after the stack's `release` hooks, as a client calls them."""
    return federation.stack.release(update, federation.turns_of(update.client, index, memory))


@dataclass(frozen=True)
class Fixed:
    """A channel made of a plain function: (change, trial) -> view. For mechanisms outside of a federation."""

    mechanism: Callable[[Tensor, int], Tensor]
    entries: tuple[Entry, ...] = field(default=(Entry("vector", (16,)),))
    seat: Seat = Seat.SERVER

    @property
    def layout(self) -> Layout:
        """As given."""
        return Layout(self.entries)

    def see(self, change: Tensor, trial: int, memory: Memory | None = None) -> Tensor:
        """What the function returns."""
        return self.mechanism(change, trial)
