"""Paired worlds: the same federation with and without one client, everything else matched.

A federation publishes its initial model before anybody trains, so whoever makes worlds to compare with starts them
from that one; shuffles, samples and seeded noise are each pair's own.

A client's update of the first round depends on the initial model, its own data and its own random stream, and on
nobody else. So one undefended federation, trained once and kept in the store, yields the published model of *every*
world that differs only in who takes part, in the server's strategy or in a defence that acts at the server: its
updates are put through `federate` again. Where that does not hold (several rounds, defences at the clients) both
worlds are trained in full, once, under their content hashes. Worlds need nothing of each other, so they are trained
side by side.
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
    inside = [replace(_history(lab.federation, pair, initial), rounds=rounds) for pair in range(worlds)]
    outside = [without(world, target, absent) for world in inside]
    made = _replayed if replayable(inside[0]) else _trained
    for pair, published in enumerate(made(lab, inside, outside)):
        for world, models, present in zip((inside[pair], outside[pair]), published, (True, False), strict=True):
            yield World(world, models, present, pair)


def _history(federation: Federation, pair: int, initial: Initial) -> Federation:
    """The same federation by other shuffles, samples and seeded noise; the first pair has the federation's own."""
    if pair == 0:
        return federation
    start = federation.starts_from if initial == "published" else None
    return replace(federation, seed=federation.seed + STRIDE * pair, initial_seed=start)


Published = tuple[Weights, ...]
Histories = Iterator[tuple[Published, Published]]
"""The models of each pair's two worlds."""


def _trained(lab: Lab, inside: Sequence[Federation], outside: Sequence[Federation]) -> Histories:
    """Both histories of each pair, trained in full."""
    return zip(_published(lab, inside), _published(lab, outside), strict=True)


def _published(lab: Lab, worlds: Sequence[Federation]) -> Iterator[Published]:
    """Every model of each history, the initial one first: what a round sent is kept with one client's update of it."""
    first = worlds[0].task.clients[0].name
    keep: Keep = keep_none if worlds[0].rounds == 1 else lambda index, client: client == first
    for world, there in zip(worlds, lab.variants(worlds, keep), strict=True):
        kept = [there.kept(index) for index in range(1, world.rounds)]
        yield initial_weights(world), *(k[0] for k in kept if k is not None), there.final_weights()


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


def alone(federation: Federation, client: Client) -> Federation:
    """The federation of that client only, which nobody judges: it may hold no test data."""
    return replace(bare(federation), task=replace(federation.task, clients=(client,))).but(evaluate="server")


def _replayed(lab: Lab, inside: Sequence[Federation], outside: Sequence[Federation]) -> Histories:
    """Both histories of each pair, from everybody's first updates: trained once for all defences.

    Whoever takes the target's place depends on nobody either, and trains by itself.
    """
    everybody = lab.variants([bare(world) for world in inside], keep_all)
    members = {client.name for client in inside[0].task.clients}
    newcomers = [[c for c in world.task.clients if c.name not in members] for world in outside]
    places = [alone(world, client) for world, new in zip(inside, newcomers, strict=True) for client in new]
    others = iter(lab.variants(places, keep_all))
    for with_target, without_target, there, new in zip(inside, outside, everybody, newcomers, strict=True):
        start, updates = _first_updates(there)
        for _ in new:
            updates |= _first_updates(next(others))[1]
        if missing := {c.name for w in (with_target, without_target) for c in w.task.clients} - set(updates):
            raise ClientLost(f"client {min(missing)} gave no usable update", "paired worlds", "mend it, then run again")
        yield (
            (start, _replay(with_target, start, updates)),
            (start, _replay(without_target, start, updates)),
        )


def _first_updates(lab: Lab) -> tuple[Weights, dict[str, Update]]:
    """What a federation began from, and what its clients answered."""
    kept = lab.kept(0)
    start, updates = kept if kept is not None else (initial_weights(lab.federation), [])
    return start, {update.client: update for update in updates}


@dataclass(frozen=True)
class _Replay:
    """A transport that answers with updates made before."""

    updates: Mapping[str, Update]

    def exchange(self, orders: Sequence[Order]) -> Iterator[Update]:
        """The stored update of each client that is asked."""
        answers: Iterable[Update] = (self.updates[order.client] for order in orders)
        yield from answers


def _replay(federation: Federation, start: Weights, updates: Mapping[str, Update]) -> Weights:
    return next(federate(federation, _Replay(updates), keep=keep_none, state=State(weights=start))).result
