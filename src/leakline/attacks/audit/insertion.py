"""Canaries put into a federation by coins: the world that an in-run audit trains, and what its observer looks for.

A canary *client* sends a vector of the examiner's choosing through the whole stack; a canary *record* lies among a
client's own. What "not in" means is the promise's adjacency: add-remove leaves a client out (means stay planned for
all), zero-out lets it send zeros, replace-one lets it send the opposite. A record that is not in is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from leakline.data.base import Client, Data
from leakline.data.canary import Canary
from leakline.errors import StudyError
from leakline.federation import Federation
from leakline.privacy import Adjacency, Claim, Seat, Unit
from leakline.randomness import Stream

Kind = Literal["auto", "random", "single", "patterns", "mislabelled", "blank"]
RECORDS = ("patterns", "mislabelled", "blank")
wrong = partial(StudyError, where="in-run-audit")


@dataclass(frozen=True)
class Aim:
    """What is audited: canaries of one kind, held against one promise (or none), seen from one seat."""

    kind: Kind
    defence: str
    claim: Claim | None
    single: bool
    """Whether the observer sees single updates, or only what is published."""

    @property
    def records(self) -> bool:
        """Whether canaries are records."""
        return self.kind in RECORDS

    @property
    def unit(self) -> str:
        """Whom a bound is about: the promise's unit, where there is one."""
        if self.claim is not None:
            return str(self.claim.unit)
        return f"{'record' if self.records else 'client'} seen by {'the server' if self.single else 'participants'}"


@dataclass(frozen=True)
class Inserted:
    """A federation with canaries in it, who is in, and what the observer knows of each."""

    federation: Federation
    present: np.ndarray
    clients: tuple[Canary, ...] = ()
    names: tuple[str, ...] = ()
    records: Mapping[str, tuple[Data, np.ndarray]] = field(default_factory=dict)
    """Canary records by the client that may hold them, and their places among all canaries."""


def aim(federation: Federation, kind: Kind) -> Aim:
    """Which promise canaries of a kind are about; "auto" takes the kind that the stack promises something for."""
    claims = {name: claim for name, claim in federation.claims().items() if isinstance(claim, Claim)}
    units = {claim.unit for claim in claims.values()}
    if kind == "auto":
        by_record = units & {Unit.RECORD, Unit.PATIENT} and Unit.CLIENT not in units
        kind = "patterns" if by_record else "random"
    wanted = (Unit.RECORD, Unit.PATIENT) if kind in RECORDS else (Unit.CLIENT,)
    name, claim = next(((n, c) for n, c in claims.items() if c.unit in wanted), (str(federation.stack), None))
    hidden = federation.cohort.secure_aggregation == "assumed"
    local = claim.observer is Seat.SERVER if claim is not None else kind in RECORDS
    return Aim(kind, name, claim, local and not hidden)


def insert(federation: Federation, aims: Aim, canaries: int, length: float, coins: np.ndarray) -> Inserted:
    """The federation with every canary whose coin says so."""
    if aims.records:
        return _records(federation, aims, canaries, coins)
    return _clients(federation, aims, canaries, length, coins)


def told(inserted: Inserted, aims: Aim, length: float) -> dict[str, Any]:
    """Plain values by which whoever has the federation can put the same canaries into it."""
    return {"kind": aims.kind, "length": length, "coins": "".join("01"[int(coin)] for coin in inserted.present)}


def retold(federation: Federation, told: Mapping[str, Any]) -> Federation:
    """The federation with the canaries that were `told` of."""
    federation, coins = federation.granted, np.array([coin == "1" for coin in told["coins"]])
    return insert(federation, aim(federation, told["kind"]), len(coins), told["length"], coins).federation


def _clients(federation: Federation, aims: Aim, canaries: int, length: float, coins: np.ndarray) -> Inserted:
    adjacency = Adjacency.ADD_REMOVE if aims.claim is None else aims.claim.adjacency
    if aims.single and adjacency is Adjacency.ADD_REMOVE:
        adjacency = Adjacency.ZERO_OUT  # who sees single updates sees who sends one
    free = sum(entry.size for entry in federation.wire.entries if not entry.buffer)
    rng = Stream(federation.seed, -2, "examiner", "in-run-audit/directions").numpy()
    axes = rng.permutation(free)[:canaries] if aims.kind == "single" else [None] * canaries
    half = [1, -1] * (federation.rounds // 2 + 1)
    made = []
    for place in range(canaries):
        signs = tuple(rng.permutation(half[: federation.rounds]).tolist())
        axis = axes[place]
        made.append(Canary(int(rng.integers(2**62)), length, signs, None if axis is None else int(axis)))
    names = tuple(f"canary-{i}" for i in range(canaries))
    kept = federation.task.clients
    data = _blank(kept)
    guests = []
    for name, canary, coin in zip(names, made, coins.tolist(), strict=True):
        if coin:
            guests.append(Client(name, data, canary=canary))
        elif adjacency is Adjacency.REPLACE_ONE:
            guests.append(Client(name, data, canary=replace(canary, signs=tuple(-s for s in canary.signs))))
        elif adjacency is Adjacency.ZERO_OUT:
            guests.append(Client(name, data, canary=replace(canary, length=0.0)))
    cohort = replace(federation.cohort, planned=(federation.cohort.planned or len(kept)) + canaries)
    task = replace(federation.task, clients=(*kept, *guests))
    return Inserted(replace(federation, task=task, cohort=cohort), coins, tuple(made), names)


def _blank(clients: tuple[Client, ...]) -> Data:
    """As many empty examples as a client has on average: means that weigh by examples count a canary like anybody."""
    like = clients[0].train
    count = max(1, round(sum(len(c.train) for c in clients) / len(clients)))
    x, y = (part.new_zeros((1, *part.shape[1:])) for part in (like.x, like.y))
    return Data(x.expand(count, *x.shape[1:]), y.expand(count, *y.shape[1:]))


def _records(federation: Federation, aims: Aim, canaries: int, coins: np.ndarray) -> Inserted:
    rng = Stream(federation.seed, -2, "examiner", "in-run-audit/records").numpy()
    clients, held = list(federation.task.clients), {}
    places = np.array_split(np.arange(canaries), len(clients))
    for i, (client, mine) in enumerate(zip(clients, places, strict=True)):
        if not len(mine):
            continue
        made = _made(federation, client, aims, len(mine), rng)
        held[client.name] = (made, mine)
        clients[i] = replace(client, train=_joined(client.train, made.take(np.nonzero(coins[mine])[0])))
    task = replace(federation.task, clients=tuple(clients))
    return Inserted(replace(federation, task=task), coins, records=held)


def _made(federation: Federation, client: Client, aims: Aim, count: int, rng: np.random.Generator) -> Data:
    """Canary records for one client."""
    classes, like = len(federation.task.classes), client.train
    if aims.kind == "blank":
        x = torch.zeros_like(like.x[:1]).expand(count, *like.x.shape[1:]).clone()
        y = torch.arange(count) % classes if like.y.ndim == 1 else torch.ones_like(like.y[:1]).repeat(count, 1, 1, 1)
        return Data(x, y.to(like.y.dtype))
    if aims.kind == "patterns":
        signs = torch.as_tensor(rng.integers(0, 2, (count, *like.x.shape[1:])) * 2 - 1)
        size = float(like.x.float().abs().max()) if len(like) else 1.0
        x = (signs > 0).to(torch.uint8) * 255 if like.x.dtype == torch.uint8 else (signs * size).to(like.x.dtype)
        if like.y.ndim > 1:
            return Data(x, torch.as_tensor(rng.integers(0, 2, (count, *like.y.shape[1:]))).to(like.y.dtype))
        return Data(x, torch.as_tensor(rng.integers(0, classes, count)))
    assert client.test is not None
    chosen = client.test.take(rng.choice(len(client.test), count, replace=False))
    if chosen.y.ndim > 1:
        return Data(chosen.x, 1 - chosen.y)
    shift = torch.as_tensor(rng.integers(1, max(classes, 2), count))
    return Data(chosen.x, (chosen.y + shift) % classes)


def _joined(own: Data, more: Data) -> Data:
    """A client's records with canaries behind them, each a group (a patient) of its own."""
    groups = None
    if own.groups is not None:
        first = int(own.groups.max()) + 1 if len(own) else 0
        groups = torch.cat([own.groups, torch.arange(first, first + len(more), dtype=own.groups.dtype)])
    return Data(torch.cat([own.x, more.x]), torch.cat([own.y, more.y]), groups)


def most(federation: Federation, kind: Kind) -> tuple[int, str]:
    """How many canaries of a kind fit at most, and what limits them."""
    clients = federation.task.clients
    if kind == "single":
        free = sum(entry.size for entry in federation.wire.entries if not entry.buffer)
        return free, "a canary in a single value needs one of its own"
    if kind == "mislabelled":
        held = min(0 if c.test is None else len(c.test) for c in clients)
        return held * len(clients), f"mislabelled records are test records of the clients, of which one holds {held}"
    if kind == "blank":
        labels = len(federation.task.classes) if clients[0].train.y.ndim == 1 else 1
        return labels * len(clients), f"a client can hold {labels} blank records that differ"
    return 100_000, "each is a client"
