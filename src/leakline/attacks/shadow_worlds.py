"""The records in question, whose they are, and federations in which coins decide which of them take part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from leakline.attacks.worlds import STRIDE, Initial
from leakline.data.base import Client, Data
from leakline.federation import Federation


@dataclass(frozen=True)
class Asked:
    """The records in question, client by client, in one order; ``patient`` numbers the people they belong to.

    Where nobody says whose a record is, each is a patient of its own. One who is at several clients counts once for
    each. ``always`` is what a client trains on in every world.
    """

    owners: tuple[str, ...]
    records: tuple[Data, ...]
    always: tuple[Data, ...]
    member: np.ndarray
    owner: np.ndarray
    patient: np.ndarray
    group: np.ndarray
    """Of each record the data set's own number for its patient, or -1."""
    known: bool
    """Whether records say whose they are."""

    @property
    def patients(self) -> int:
        """How many people the records belong to."""
        return int(self.patient.max()) + 1

    @classmethod
    def of(cls, clients: Sequence[Client], each: int, rng: np.random.Generator) -> Asked:
        """At most ``each`` training records and as many others of each client, patients whole and at random.

        One patient of each client is never asked about, so that no client is ever left without data.
        """
        records, always = list[Data](), list[Data]()
        member, patient, owner = list[np.ndarray](), list[np.ndarray](), list[str]()
        for client in clients:
            assert client.test is not None
            units = units_of(client.train)
            inside = _drawn(units, each, len(units) - 1, rng)
            outside = _drawn(units_of(client.test), each, len(units_of(client.test)), rng)
            rows_in, rows_out = (np.concatenate([*found, np.array([], dtype=np.int64)]) for found in (inside, outside))
            records.append(_together([client.train.take(rows_in), client.test.take(rows_out)]))
            always.append(client.train.take(np.setdiff1d(np.arange(len(client.train)), rows_in)))
            member.append(np.arange(len(records[-1])) < len(rows_in))
            owner += [client.name] * len(records[-1])
            sizes = [len(rows) for rows in (*inside, *outside)]
            before = patient[-1][-1] + 1 if patient else 0
            patient.append(before + np.repeat(np.arange(len(sizes)), sizes))
        groups = [r.groups.numpy() if r.groups is not None else np.full(len(r), -1) for r in records]
        return cls(
            tuple(c.name for c in clients), tuple(records), tuple(always),
            np.concatenate(member), np.array(owner), np.concatenate(patient), np.concatenate(groups),
            all(r.groups is not None for r in records),
        )  # fmt: skip

    def worlds(self, federation: Federation, coins: np.ndarray, rounds: int, initial: Initial) -> list[Federation]:
        """A federation for each row of coins, one per patient: like the one given, but of other seeds, unjudged.

        ``initial``: from the model that the federation published, or each from one of its own seed.
        """
        start = federation.starts_from if initial == "published" else None
        ends = np.cumsum([len(data) for data in self.records])
        found = []
        for number, row in enumerate(coins):
            taken = np.split(row[self.patient], ends[:-1])
            clients = tuple(
                Client(name, _together([always, records.take(np.flatnonzero(mine))]))
                for name, always, records, mine in zip(self.owners, self.always, self.records, taken, strict=True)
            )
            task = replace(federation.task, clients=clients, test=None)
            seed = federation.seed + STRIDE * (number + 1)
            judged = "auto" if federation.private else "server"
            found.append(
                federation.but(
                    task=task, rounds=rounds, seed=seed, initial_seed=start, evaluate=judged, patience=0,
                    convolutions="batch-last",
                )
            )  # fmt: skip
        return found


def dealt(clients: Sequence[Client], data: Data, rng: np.random.Generator) -> tuple[Client, ...]:
    """Clients whose own test parts are shares of ``data``, patients whole, at random."""
    units = units_of(data)
    order = rng.permutation(len(units))
    shares = [[units[at] for at in order[place :: len(clients)]] for place in range(len(clients))]
    rows = [np.concatenate([*share, np.array([], dtype=np.int64)]) for share in shares]
    return tuple(replace(c, test=data.take(own)) for c, own in zip(clients, rows, strict=True))


def units_of(data: Data) -> list[np.ndarray]:
    """The rows of each patient; each row by itself where nobody says."""
    if data.groups is None:
        return [np.array([row]) for row in range(len(data))]
    order = np.argsort(data.groups.numpy(), kind="stable")
    cuts = np.flatnonzero(np.diff(data.groups.numpy()[order])) + 1
    return [rows for rows in np.split(order, cuts) if len(rows)]


def _drawn(units: list[np.ndarray], each: int, most: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Random patients, at most so many, one after another as long as their records together are at most ``each``."""
    found: list[np.ndarray] = []
    for at in rng.permutation(len(units))[: max(most, 0)]:
        if not found or sum(map(len, found)) + len(units[at]) <= each:
            found.append(units[at])
    return found


def _together(parts: Sequence[Data]) -> Data:
    grouped = all(p.groups is not None for p in parts)
    groups = torch.cat([p.groups for p in parts if p.groups is not None]) if grouped else None
    return Data(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]), groups)
