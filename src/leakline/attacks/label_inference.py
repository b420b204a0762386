"""Label inference: how many examples of each class a client holds (a hospital's case mix), from one update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from leakline.attacks.base import Attack, Challenge, Effort, Lab
from leakline.attacks.class_shares import FOLDS, Shares, counts_of, drawn, learnt
from leakline.bench.training import Plan
from leakline.data.base import Client, Data
from leakline.errors import StudyError
from leakline.federation import Federation
from leakline.leakage.interval import clopper_pearson, mean_interval
from leakline.messages import Keep, Update
from leakline.privacy import Seat
from leakline.readings import Reading
from leakline.views import ServerView, need_single_updates
from leakline.weights import Weights

TOGETHER = 8
"""How many simulated clients answer at a time: whole updates wait in memory until their last layer is taken."""


NEEDED = 24
"""Simulated clients with which docs/case-mix.md's figures were made."""


@dataclass(frozen=True)
class Simulated:
    """What the server made itself: updates (last layer) of simulated clients with known shares [K, C], by fold."""

    shares: np.ndarray
    folds: np.ndarray
    updates: tuple[Weights, ...]


@dataclass(frozen=True)
class CaseMix:
    """What the examiner knows: how many examples of each class a client holds, and the public shares.

    ``counts`` is None where nobody knows (of a recording): then the guess itself is all there is.
    """

    client: str
    index: int
    examples: int
    counts: np.ndarray | None
    public: np.ndarray
    classes: tuple[str, ...]


@dataclass(frozen=True)
class LabelInference(Attack):
    """The class counts of each client (a hospital's case mix), from the last layer of one update.

    The server simulates ``worlds`` clients of its public images, as large as the attacked one, with shares drawn at
    random, lets each train as the client did (through the client's side of the stack), and learns from them how shares
    show in the last layer's change: see `leakline.attacks.class_shares`. After one step that is the known formula of
    the last bias; after several epochs it is whatever simulation says. ``confidence``: how often the interval, one
    reach for all classes of a client, should hold the truth.

    ``rounds`` are attacked, for ``clients`` (all, if none are named). Clients with the same number of examples and the
    same plan share their simulations. Personal layers are not known to the server: simulated clients start theirs anew.
    """

    rounds: tuple[int, ...] = (0,)
    clients: tuple[str, ...] = ()
    worlds: int = NEEDED
    confidence: float = 0.95
    seed: int = 0
    seat: ClassVar[Seat] = Seat.SERVER

    def __post_init__(self) -> None:
        for name in ("rounds", "clients"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # a study file gives lists
        if not self.rounds or any(index < 0 for index in self.rounds):
            raise ValueError(f"rounds must be one or more, from 0 on: {self.rounds}")
        if not 0.5 <= self.confidence < 1:
            raise ValueError(f"confidence must lie in [0.5, 1): {self.confidence}")
        fewest = max(2 * FOLDS, round(1 / (1 - self.confidence)) - 1)
        if self.worlds < fewest:
            raise ValueError(f"an interval of {self.confidence:g} needs {fewest} worlds at least: {self.worlds}")

    # the examiner's half

    def wants(self, federation: Federation) -> Keep:
        """The updates that the federation must keep for this attack."""
        return lambda index, client: index in self.rounds and client in self._targets(federation)

    def effort(self, federation: Federation) -> Effort:
        """Simulated clients, beside those with which it was shown to find case mixes."""
        return Effort(self.worlds, NEEDED, "simulated clients")

    def trains(self, federation: Federation) -> dict[str, float]:
        """Rounds' worth of training for the simulated clients, one set for each size of client."""
        sizes = {len(federation.clients[name].train) for name in self._targets(federation)}
        everybody = sum(len(client.train) for client in federation.task.clients)
        name = f"labels/{self}/{federation.strategy}/{federation.defences}"
        return {name: len(self.rounds) * self.worlds * sum(sizes) / max(everybody, 1)}

    def check(self, federation: Federation) -> None:
        """Refuse, before training, a task without classes, or a server without public examples of each."""
        need_single_updates(federation, "label-inference")
        if federation.task.kind != "classification" or len(federation.task.classes) < 2:
            raise _wrong("it counts classes, and the task has none", "use a classification task")
        if unknown := sorted(set(self.clients) - set(federation.clients)):
            raise _wrong(f"there is no client {unknown[0]!r}", f"one of: {', '.join(list(federation.clients)[:8])}")
        if max(self.rounds) >= federation.rounds:
            raise _wrong(f"round {max(self.rounds)} of {federation.rounds} does not exist", "rounds count from 0")
        public = _public(federation)
        counts = np.bincount(public.labels(), minlength=len(federation.task.classes))
        if (fewest := int(counts.min())) < FOLDS:
            name = federation.task.classes[int(counts.argmin())]
            raise _wrong(
                f"the server holds {fewest} public examples of {name}, and simulated clients need {FOLDS}",
                "raise server_validation in [data]",
            )
        _last_layer(federation)

    def _targets(self, federation: Federation) -> tuple[str, ...]:
        return self.clients or tuple(federation.clients)

    def challenges(self, lab: Lab) -> Iterator[Challenge]:
        """One question per attacked client and round: how many of each class?"""
        federation = lab.federation
        self.check(federation)
        public, classes = _public(federation), len(federation.task.classes)
        known = np.bincount(public.labels(), minlength=classes) / len(public)
        simulations = _Simulations(lab, self, public)
        for index in self.rounds:
            kept = lab.kept(index)
            if kept is None:
                raise _wrong(f"the updates of round {index} were not kept", "run the study with another --out")
            sent, updates = kept
            for name in dict.fromkeys(u.client for u in updates if u.client in self._targets(federation)):
                parts = tuple(u for u in updates if u.client == name)
                view = ServerView(
                    sent, federation.bench, federation.objective.per_example_loss, (sent,),
                    federation.plan_of(name), (sent,), (parts,),
                )  # fmt: skip
                examples, held = sum(u.examples for u in parts), federation.clients[name].train
                hints = simulations.of(sent, index, examples, federation.plan_of(name))
                counts = None if held.y.is_meta else np.bincount(held.labels(), minlength=classes)
                yield Challenge(view, hints, CaseMix(name, index, examples, counts, known, federation.task.classes))

    # the attacker's half

    def guess(self, view: ServerView, hints: Simulated) -> Shares:
        """The shares, from the update's last layer and the simulated clients'."""
        mine = _features(_joined(view.updates[0], hints.updates[0]))
        rows = [_features(update) for update in hints.updates]
        features = {kind: np.stack([row[kind] for row in rows]) for kind in mine}
        return learnt(features, hints.shares, hints.folds, mine, 1 - self.confidence)

    # the comparison

    def measure(self, guesses: Sequence[Shares], secrets: Sequence[CaseMix]) -> list[Reading]:
        """How near the shares are (1 is exact), whether all counts are, and whether the interval holds the truth.

        Chance is what the public shares say of a client. Means are over clients: rounds of one client come first.
        Where the truth is not known there is the guess, class by class, with its interval.
        """
        judged: dict[str, list[dict[str, float]]] = {}
        readings: list[Reading] = []
        for guess, secret in zip(guesses, secrets, strict=True):
            if secret.counts is None:
                readings += _guessed(guess, secret)
                continue
            figures = _figures(guess, secret, secret.counts)
            judged.setdefault(secret.client, []).append(figures)
            readings.append(
                Reading(
                    "shares-right", figures["right"], n=int(secret.counts.sum()), round=secret.index,
                    client=secret.client, chance=figures["blind"], about={"chosen": guess.rule},
                    note=_words(guess, secret, secret.counts),
                )
            )  # fmt: skip
        if not judged:
            return readings
        names = next(iter(judged.values()))[0]
        over = {name: [float(np.mean([f[name] for f in rounds])) for rounds in judged.values()] for name in names}
        count, mean, blind = len(judged), mean_interval(over["right"]), float(np.mean(over["blind"]))
        low, high = (mean.low, min(mean.high, 1.0)) if count > 1 else (None, None)
        off = f"mean over clients: {1 - mean.value:.3f} of the examples in a wrong class, blind {1 - blind:.3f}"
        readings.append(Reading("shares-right", mean.value, low, high, count, chance=blind, note=off))
        for measure, name, note in (
            ("counts-right", "exact", "every class's count, to the example"),
            ("shares-held", "held", f"the interval promises {self.confidence:.0%}"),
        ):
            rate = clopper_pearson(round(sum(over[name])), count)
            chance = float(np.mean(over["lucky"])) if name == "exact" else None
            value = float(np.mean(over[name]))
            readings.append(Reading(measure, value, rate.low, rate.high, count, chance=chance, note=note))
        return readings


class _Simulations:
    """Simulated clients by what they started from, how many examples they have and how they train."""

    def __init__(self, lab: Lab, attack: LabelInference, public: Data) -> None:
        self.lab, self.attack, self.public = lab, attack, public
        self.done: dict[tuple[int, int, Plan], Simulated] = {}
        self.probes = 0

    def of(self, sent: Weights, index: int, examples: int, plan: Plan) -> Simulated:
        """Clients of ``examples`` public images, trained from ``sent`` as in round ``index``."""
        key = (index, examples, plan)
        if key not in self.done:
            self.done[key] = self._simulated(
                sent, examples, replace(plan, learning_rate=plan.rate(index), decay_every=0)
            )
        return self.done[key]

    def _simulated(self, sent: Weights, examples: int, plan: Plan) -> Simulated:
        federation, worlds = self.lab.federation, self.attack.worlds
        rng = self.lab.stream(f"label-inference/{self.attack.seed}/{examples}").numpy()
        order = rng.permutation(len(self.public))
        folds = np.arange(worlds) % FOLDS
        labels, classes = self.public.labels(), len(federation.task.classes)
        made = [drawn(labels, order[fold::FOLDS], examples, classes, rng) for fold in folds]
        wanted, updates = _last_layer(federation), list[Weights]()
        for at in range(0, worlds, TOGETHER):
            clients = tuple(
                Client(f"simulated-{at + i}", self.public.take(rows))
                for i, (_, rows) in enumerate(made[at : at + TOGETHER])
            )
            world = replace(federation, task=replace(federation.task, clients=clients), plan=plan, batches=())
            answers = self.lab.probe(sent, self.probes, federation=world, memories={})
            self.probes += 1
            for client in clients:
                parts = tuple(u for u in answers if u.client == client.name)
                updates.append(_joined(parts, parts[0].delta.only(lambda name: name in wanted)))
            self.lab.says(f"label-inference: {len(updates)} of {worlds} clients of {examples} examples simulated")
        return Simulated(np.stack([shares for shares, _ in made]), folds, tuple(updates))


def _joined(parts: Sequence[Update], like: Weights) -> Weights:
    """The entries of ``like`` in the mean of a client's parts, weighted by examples; most clients have one part."""
    total = sum(part.examples for part in parts)
    names = like.layout.slices
    each = [part.delta.only(lambda name: name in names) * (part.examples / total) for part in parts]
    return like.like(sum((w.vector for w in each[1:]), each[0].vector))


def _features(change: Weights) -> dict[str, np.ndarray]:
    """The bias alone, and the layer with its weights."""
    whole = change.vector.numpy().astype(np.float64)
    biases = [v.numpy().astype(np.float64).ravel() for e, v in change.layers() if len(e.shape) == 1]
    return {"bias": np.concatenate(biases), "layer": whole} if biases else {"layer": whole}


def _last_layer(federation: Federation) -> tuple[str, ...]:
    """The trained entries of the last layer that travels."""
    trained = federation.wire.only(lambda name: name not in federation.wire.buffers)
    return list(trained.layers.values())[-1]


def _public(federation: Federation) -> Data:
    for data in (federation.task.validation, federation.task.test):
        if data is not None and len(data):
            return data
    raise _wrong("the server has no examples to simulate clients with", "set server_validation = 0.1 in [data]")


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    """The share of examples that stand in a wrong class: half of the sum of differences."""
    return float(np.abs(a - b).sum() / 2)


def _guessed(guess: Shares, secret: CaseMix) -> list[Reading]:
    """The guess of one client, class by class."""
    note = f"by its own word within {guess.reach:.3f}, all classes together; chance is the public share"
    return [
        Reading(
            "share", float(share), max(0.0, float(share) - guess.reach), min(1.0, float(share) + guess.reach),
            secret.examples, round=secret.index, client=secret.client, chance=float(public), about={"class": name},
            note=note,
        )
        for name, share, public in zip(secret.classes, guess.shares, secret.public, strict=True)
    ]  # fmt: skip


def _figures(guess: Shares, secret: CaseMix, truth: np.ndarray) -> dict[str, float]:
    """How one guess, and a blind one, did."""
    examples = int(truth.sum())
    true, counts = truth / examples, counts_of(guess.shares, examples)
    return {
        "right": 1 - _apart(counts / examples, true),
        "blind": 1 - _apart(secret.public, true),
        "exact": float((counts == truth).all()),
        "lucky": float((counts_of(secret.public, examples) == truth).all()),
        # Shares are whole numbers of examples: half of one is rounding.
        "held": float(np.abs(guess.shares - true).max() <= guess.reach + 0.5 / examples),
    }


def _words(guess: Shares, secret: CaseMix, truth: np.ndarray) -> str:
    true = truth / truth.sum()
    each = [f"{name} {g:.3f} (truly {t:.3f})" for name, g, t in zip(secret.classes, guess.shares, true, strict=True)]
    return f"{', '.join(each[:6])}{', ...' if len(each) > 6 else ''}; each within {guess.reach:.3f} by its own word"


def _wrong(what: str, fix: str) -> StudyError:
    return StudyError(what, "label-inference", fix)
