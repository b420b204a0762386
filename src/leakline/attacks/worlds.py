"""Paired worlds: the same federation with and without one client, everything else matched.

A federation publishes its initial model before anybody trains, so whoever makes worlds to compare with starts them
from that one; shuffles, samples and seeded noise are each pair's own.

A client's update of the first round depends on the initial model, its own data and its own random stream, and on
nobody else. So one undefended federation, trained once and kept in the store, yields the published model of *every*
world that differs only in who takes part, in the server's strategy or in a defence that acts at the server: its
updates are put through `federate` again. Where that does not hold (several rounds, defences at the clients) both
worlds are trained in full, once, under their content hashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from leakline.attacks.base import Lab
from leakline.data.base import Client, Data
from leakline.errors import ClientLost, StudyError
from leakline.federation import Federation, State, federate, initial_weights, keep_all, keep_none
from leakline.messages import Keep, Order, Update
from leakline.strategies import Strategy
from leakline.weights import Weights

Absent = Literal["removed", "replaced"]
Initial = Literal["published", "each"]
STRIDE = 1000
"""Between the seeds of worlds, so that cells with neighbouring seeds share none."""


@dataclass(frozen=True)
class World:
    """One history: who took part, the models that were published, and whether the target was there."""

    federation: Federation
    published: tuple[Weights, ...]
    present: bool
    pair: int


def pairs(
    lab: Lab, target: str, worlds: int, absent: Absent, rounds: int, initial: Initial = "published"
) -> Iterator[World]:
    """The worlds of seed 0, 1, ...: each with the target, then without.

    ``initial``: all start from the model that the lab's federation published ("published"), or each pair from a model
    of its own seed ("each").
    """
    for pair in range(worlds):
        inside = replace(_history(lab.federation, pair, initial), rounds=rounds)
        outside = without(inside, target, absent)
        if replayable(inside):
            start, updates = _first_updates(lab, inside, target)
            for world, present in ((inside, True), (outside, False)):
                yield World(world, (start, _replayed(world, start, updates)), present, pair)
        else:
            for world, present in ((inside, True), (outside, False)):
                yield World(world, _published(lab, world), present, pair)


def _history(federation: Federation, pair: int, initial: Initial) -> Federation:
    """The same federation by other shuffles, samples and seeded noise; the first pair has the federation's own."""
    if pair == 0:
        return federation
    start = federation.starts_from if initial == "published" else None
    return replace(federation, seed=federation.seed + STRIDE * pair, initial_seed=start)


def _published(lab: Lab, world: Federation) -> tuple[Weights, ...]:
    """Every model of a history, the initial one first: what a round sent is kept with one client's update of it."""
    first = world.task.clients[0].name
    keep: Keep = keep_none if world.rounds == 1 else lambda index, client: client == first
    there = lab.variant(world, keep=keep)
    kept = [there.kept(index) for index in range(1, world.rounds)]
    return (initial_weights(world), *(k[0] for k in kept if k is not None), there.final_weights())


def without(federation: Federation, target: str, absent: Absent) -> Federation:
    """The same federation without a client; or with one in its place that holds the server's validation data.

    The number of clients that means are planned for stays, as in the promise's game. A defence that divides by those
    who came still tells how many there are, which no client-level promise hides; replacing the client does not.
    """
    others = tuple(c for c in federation.task.clients if c.name != target)
    cohort = federation.cohort
    if absent == "removed":
        cohort = replace(cohort, planned=cohort.planned or len(federation.task.clients))
    else:
        if federation.task.validation is None:
            raise StudyError(
                "nothing can take the target's place: the server holds no validation data",
                "client-inference, absent = replaced",
                "set server_validation = 0.5 in [data]",
            )
        others += (stand_in(target, federation.task.validation),)
    if not others:
        raise StudyError(f"without {target} nobody is left", "client-inference", "use two clients or more")
    return replace(federation, task=replace(federation.task, clients=others), cohort=cohort)


def stand_in(target: str, validation: Data) -> Client:
    """Who takes the target's place: a client with the server's validation data and no test data."""
    return Client(f"{target}.stand-in", validation)


def replayable(federation: Federation) -> bool:
    """Whether first updates alone decide what is published: one round, everybody there, server-side defences."""
    server_side = federation.stack.hooks <= {"admit", "publish"}
    return federation.rounds == 1 and federation.cohort.sampling == "full" and server_side


def bare(federation: Federation) -> Federation:
    """The federation that trains the updates: no defence, plain averaging, the same work at the clients."""
    strategy = Strategy(proximal=federation.strategy.proximal, warm_start=federation.strategy.warm_start)
    return replace(federation, defences=(), strategy=strategy)


def _first_updates(lab: Lab, inside: Federation, target: str) -> tuple[Weights, Mapping[str, Update]]:
    """The initial model and everybody's first update, the stand-in's included: trained once for all defences."""
    everybody = inside.task.clients
    if inside.task.validation is not None:
        everybody += (stand_in(target, inside.task.validation),)
    source = bare(replace(inside, task=replace(inside.task, clients=everybody)))
    kept = lab.variant(source, keep=keep_all).kept(0)
    start, updates = kept if kept is not None else (initial_weights(source), [])
    by_name = {update.client: update for update in updates}
    if missing := {c.name for c in everybody} - set(by_name):
        raise ClientLost(f"client {min(missing)} gave no usable update", "paired worlds", "mend it, then run again")
    return start, by_name


@dataclass(frozen=True)
class _Replay:
    """A transport that answers with updates made before."""

    updates: Mapping[str, Update]

    def exchange(self, orders: Sequence[Order]) -> Iterator[Update]:
        """The stored update of each client that is asked."""
        answers: Iterable[Update] = (self.updates[order.client] for order in orders)
        yield from answers


def _replayed(federation: Federation, start: Weights, updates: Mapping[str, Update]) -> Weights:
    return next(federate(federation, _Replay(updates), keep=keep_none, state=State(weights=start))).result
