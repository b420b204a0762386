"""Who took part, at the level of records: loss threshold, LiRA and RMIA with shadow federations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from leakline.attacks.base import Attack, Challenge, Effort, Lab
from leakline.attacks.verdicts import leaks
from leakline.attacks.worlds import STRIDE
from leakline.data.base import Client, Data
from leakline.errors import StudyError
from leakline.federation import Federation
from leakline.leakage.guessing import auc, over_units, tpr_at_fprs
from leakline.leakage.likelihood import confidence, lira_offline, lira_online, rmia
from leakline.privacy import Seat
from leakline.readings import Reading
from leakline.views import PublicView
from leakline.weights import Weights

Score = Literal["loss", "lira-online", "lira-offline", "rmia"]
NEEDED = 16
"""Shadow federations with which the attack was shown to find members; with fewer it may fail for want of them."""


@dataclass(frozen=True)
class ShadowModels:
    """What the attacker holds: the records in question, others that nobody trained on, and its shadow models.

    ``taken[s, i]`` says whether shadow model s trained on record i: the attacker trained it and knows.
    """

    records: Data
    population: Data
    shadows: tuple[PublicView, ...]
    taken: np.ndarray


@dataclass(frozen=True)
class TrueMembers:
    """Which records were trained on, and whose they are."""

    member: np.ndarray
    owner: tuple[str, ...]


@dataclass(frozen=True)
class RecordMembership(Attack):
    """Was this record trained on? Loss threshold, LiRA (online, offline) and RMIA against one federation.

    Half of ``records`` are training records of the clients, half come from their test parts, equally many of each
    client. ``shadows`` federations like the one attacked (clients, defences, rounds, work) are trained with other
    seeds and stored under their hashes; in each a random half of the records in question takes part, in the next the
    other half, so every record is in half of them and clients keep their sizes. That makes the attacker strong: it
    knows all other data. ``on = "model"`` looks at the published model (anybody's seat); "update" at each client's
    own model as the server sees it, the published one plus the update of one more ordinary round.

    Scores: loss, -loss (Yeom et al. 2018); lira-online and lira-offline (Carlini et al. 2022); rmia (Zarifzadeh et al.
    2024, ratio 2). Intervals resample clients, since records of one client share its training.
    """

    records: int = 400
    shadows: int = NEEDED
    on: Literal["model", "update"] = "model"
    scores: tuple[Score, ...] = ("loss", "lira-online", "lira-offline", "rmia")

    @property
    def seat(self) -> Seat:  # type: ignore[override]
        """Anybody sees the model, only the server a single update."""
        return Seat.PUBLIC if self.on == "model" else Seat.SERVER

    def __post_init__(self) -> None:
        if self.shadows < 4 or self.shadows % 2:
            raise ValueError(f"shadows must be even and at least 4: {self.shadows}")
        if self.records < 4 or not self.scores:
            raise ValueError(f"at least 4 records and a score are needed: {self.records}, {self.scores}")

    # the examiner's half

    def check(self, federation: Federation) -> None:
        """Refuse, before training, what cannot be asked of this federation."""
        if self.on == "update" and federation.cohort.secure_aggregation == "assumed":
            raise _wrong("under secure aggregation nobody sees single updates", 'set on = "model"')
        if federation.wire != federation.layout:
            raise _wrong("some layers stay at the clients: nobody sees a whole model", "attack it with user-membership")
        if federation.objective.name != "cross-entropy":
            raise _wrong(f"the loss {federation.objective.name!r} gives no probabilities", "use a classification task")
        for client in federation.task.clients:
            held = 0 if client.test is None else len(client.test)
            if min(held - 1, len(client.train)) < self._each(federation):
                raise _wrong(
                    f"{client.name} has {len(client.train)} training and {held} other records; "
                    f"{self._each(federation)} of each are asked for, and one more to compare with",
                    "lower records, or raise client_test in [data]",
                )

    def effort(self, federation: Federation) -> Effort:
        """Shadow federations, beside those with which it was shown to find members."""
        return Effort(self.shadows, NEEDED, "shadow federations")

    def trains(self, federation: Federation) -> dict[str, float]:
        """Rounds for the shadow federations, as many as the cell's own each."""
        return {f"shadows/{federation.strategy}/{federation.defences}": float(self.shadows * federation.rounds)}

    def _each(self, federation: Federation) -> int:
        return max(1, self.records // (2 * len(federation.task.clients)))

    def challenges(self, lab: Lab) -> Iterator[Challenge]:
        """All records at once for the published model, client by client for updates."""
        self.check(lab.federation)
        rng = lab.stream("record-membership").numpy()
        drawn = {c.name: _Drawn.of(c, self._each(lab.federation), rng) for c in lab.federation.task.clients}
        worlds = [_Seen.of(lab, self.on)]
        taken: dict[str, list[np.ndarray]] = {name: [] for name in drawn}
        rounds = len(lab.cohorts())
        for number in range(self.shadows):
            for name, own in drawn.items():
                half = taken[name][-1] if number % 2 else own.half(rng)
                taken[name].append(~half if number % 2 else half)
            clients = tuple(Client(name, own.world(taken[name][-1])) for name, own in drawn.items())
            shadow = lab.federation.but(
                task=replace(lab.federation.task, clients=clients, test=None), rounds=rounds,
                seed=lab.federation.seed + STRIDE * (number + 1), evaluate="server", patience=0,
            )  # fmt: skip
            worlds.append(_Seen.of(lab.variant(shadow), self.on))
        bench = lab.federation.bench()
        loss = lab.federation.objective.per_example_loss
        groups = [[name] for name in drawn] if self.on == "update" else [list(drawn)]
        for names in groups:
            views = [PublicView(seen.weights(names[0]), lambda: bench, loss) for seen in worlds]
            records, population = (
                _together([getattr(drawn[name], part) for name in names]) for part in ("records", "population")
            )
            mask = np.concatenate([np.stack(taken[name]) for name in names], axis=1)
            member = np.concatenate([drawn[name].member for name in names])
            owner = tuple(name for name in names for _ in drawn[name].member)
            yield Challenge(
                views[0], ShadowModels(records, population, tuple(views[1:]), mask), TrueMembers(member, owner)
            )

    # the attacker's half

    def guess(self, view: PublicView, hints: ShadowModels) -> dict[str, np.ndarray]:
        """A score for each record, higher for members."""
        losses = view.losses(hints.records).double().numpy()
        q = confidence(losses)
        p = np.stack([confidence(shadow.losses(hints.records).numpy()) for shadow in hints.shadows])
        found: dict[str, np.ndarray] = {"loss": -losses}
        found["lira-online"] = lira_online(q, p, hints.taken)
        found["lira-offline"] = lira_offline(q, p, hints.taken)
        if "rmia" in self.scores:
            others = np.stack([confidence(shadow.losses(hints.population).numpy()) for shadow in hints.shadows])
            found["rmia"] = rmia(q, p, hints.taken, confidence(view.losses(hints.population).numpy()), others)
        return {name: found[name] for name in self.scores}

    # the comparison

    def measure(self, guesses: Sequence[Mapping[str, np.ndarray]], secrets: Sequence[TrueMembers]) -> list[Reading]:
        """AUC and ROC of every score."""
        member = np.concatenate([s.member for s in secrets])
        owners = np.array([name for s in secrets for name in s.owner])
        where = "on updates" if self.on == "update" else "on the model"
        found: list[Reading] = []
        for name in self.scores:
            scores = np.concatenate([g[name] for g in guesses])
            area = auc(scores, member)
            if len(set(owners)) > 1:
                area = over_units(lambda rows, s=scores: auc(s[rows], member[rows]).value, owners)  # type: ignore[misc]
            note = where if name == "loss" else f"{self.shadows} shadow federations, {where}"
            found += leaks({"auc": area}, tpr_at_fprs(scores, member), {"rule": name}, note)
        return found


@dataclass(frozen=True)
class _Drawn:
    """The records in question of one client, what else it always trains on, and what it never does."""

    always: Data
    records: Data
    member: np.ndarray
    population: Data

    @classmethod
    def of(cls, client: Client, each: int, rng: np.random.Generator) -> _Drawn:
        assert client.test is not None
        inside, outside = rng.permutation(len(client.train)), rng.permutation(len(client.test))
        records = _together([client.train.take(inside[:each]), client.test.take(outside[:each])])
        return cls(
            _plain(client.train.take(inside[each:])),
            records,
            np.arange(2 * each) < each,
            _plain(client.test.take(outside[each:])),
        )

    def half(self, rng: np.random.Generator) -> np.ndarray:
        """A random half of the records in question."""
        chosen = np.zeros(len(self.member), dtype=bool)
        chosen[rng.permutation(len(chosen))[: len(chosen) // 2]] = True
        return chosen

    def world(self, taken: np.ndarray) -> Data:
        """What the client trains on in a world where these records take part."""
        return _together([self.always, self.records.take(np.flatnonzero(taken))])


@dataclass(frozen=True)
class _Seen:
    """What a seat sees of one world: the published model, and with updates each client's own."""

    model: Weights
    own: Mapping[str, Weights]

    @classmethod
    def of(cls, lab: Lab, on: str) -> _Seen:
        model = lab.final_weights()
        updates = lab.probe(model, 0) if on == "update" else ()
        return cls(model, {u.client: model + u.delta for u in updates})

    def weights(self, name: str) -> Weights:
        return self.own.get(name, self.model)


def _plain(data: Data) -> Data:
    return Data(data.x, data.y)


def _together(parts: Sequence[Data]) -> Data:
    return Data(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]))


def _wrong(what: str, fix: str) -> StudyError:
    return StudyError(what, "membership-inference", fix)
