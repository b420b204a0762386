"""Gradient inversion as an attack on the menu: the server's seat, one client's update, images out. Paper 001."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from leakline.attacks.base import Artefact, Attack, Challenge, Effort, Lab, Says
from leakline.attacks.inversion import scene
from leakline.attacks.inversion.belief import Belief
from leakline.attacks.inversion.dense import first_dense, reconstruction
from leakline.attacks.inversion.embedding import load
from leakline.attacks.inversion.intercepted import Intercepted, Labels, norm_momenta, problem_of
from leakline.attacks.inversion.judge import Reconstruction, Secret, readings
from leakline.attacks.inversion.objective import Terms
from leakline.attacks.inversion.problem import Problem
from leakline.attacks.inversion.schedule import Far, Search
from leakline.attacks.inversion.search import Found, searches
from leakline.attacks.inversion.settle import most_trials, settled
from leakline.attacks.inversion.statistics import Inverse
from leakline.attacks.inversion.variants import SETTINGS, VARIANTS, Method, Variant
from leakline.data.base import Data
from leakline.errors import StudyError
from leakline.federation import Federation
from leakline.mechanisms.treatment import Treatment
from leakline.messages import Keep, Update
from leakline.privacy import Seat
from leakline.readings import Reading
from leakline.views import ServerView, need_single_updates
from leakline.weights import Weights

EARLY = 0.45
"""The share of its iterations at which a restart ends as a rule where noise is weighed: the mean of 24 settings of
paper 001's desk study, 0.18 where it is loudest to 1 where it is faintest; without noise most go on to the last."""
EVALUATION, WEIGHED = 2.8, 1.3
"""What an evaluation takes that matches updates, in training steps on as many images, and how much more where noise is
weighed (small and residual networks, one image and eight, a quiet core: 2.2 to 3.6, and 1.1 to 1.5)."""


@dataclass(frozen=True)
class Start:
    """What the attacker is told besides its view: public images, what clients do, where to keep notes."""

    prior: Tensor
    client: str
    index: int
    wrong: Weights | None = None
    treatment: Treatment = field(default_factory=Treatment)
    belief: Belief | None = None
    public: Data | None = None
    notes: Path | None = None
    says: Says = lambda line, share=None: None


@dataclass(frozen=True)
class GradientInversion(Attack):
    """A client's training images, reconstructed by the server from one update (paper 001).

    ``variant`` names settings of the engine (see `VARIANTS`); ``iterations`` and ``restarts`` override theirs (0: as
    they are). ``rounds`` are attacked, for ``clients`` (all, if none are named) whose images are not more
    than ``most_images``; of the ways to have labels and to deal them out to steps at most ``deals`` are tried.
    ``reading``: the exact K-step inverse of running averages, or the paper's one-step formula.
    Clients may train with SGD or Adam; of one step of Adam, bounds of the gradients are matched (see `adam`).
    ``embedding``: weights (safetensors) of the network that looks for reconstructions among all images; without them
    one is trained on the server's public images. ``settings`` stand in the place of the variant's by name: any field
    of `Terms` or `Search`.

    What the attacker may lack:
      checkpoint  "right": the weights that were sent; "wrong": another random model's
      prior       "public": the mean of the server's validation (or test) images; "wrong": the mean of brain phantoms;
                  "none": flat grey with noise; "flat": mid grey
      statistics  "sent", or "none": the attacker ignores them (a federation under fedbn does not send them at all)
      labels      "restored" from the last layer where that can be; "unknown": searched for
      rate        "known", or "unknown": then updates are matched by cosine
      defences    "known": the simulated client clips and scales as the stack's clients do, and noise of known law is
                  allowed for; "unknown": the update is taken as it came
      grey        one channel for networks that take three
    """

    variant: Variant = "grad+bn"
    rounds: tuple[int, ...] = (0,)
    clients: tuple[str, ...] = ()
    iterations: int = 0
    restarts: int = 0
    reading: Inverse = "exact"
    checkpoint: Literal["right", "wrong"] = "right"
    prior: scene.Prior = "public"
    statistics: Literal["sent", "none"] = "sent"
    labels: Literal["restored", "unknown"] = "restored"
    rate: Literal["known", "unknown"] = "known"
    defences: Literal["known", "unknown"] = "known"
    grey: bool = True
    most_images: int = 32
    deals: int = 12
    embedding: str = ""
    seed: int = 0
    settings: Mapping[str, bool | int | float | str | tuple[float, ...]] = field(default_factory=dict, hash=False)
    seat: ClassVar[Seat] = Seat.SERVER

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise ValueError(f"variant must be one of {', '.join(VARIANTS)}: {self.variant!r}")
        for name in ("rounds", "clients"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # a study file gives lists
        if not self.rounds or any(index < 0 for index in self.rounds):
            raise ValueError(f"rounds must be one or more, from 0 on: {self.rounds}")
        if self.iterations < 0 or self.restarts < 0 or min(self.most_images, self.deals) < 1:
            raise ValueError(f"iterations and restarts of 0 or more, most_images and deals of 1 or more: {self}")
        if unknown := self.settings.keys() - SETTINGS.keys():
            raise ValueError(f"there is no setting {min(unknown)!r}; there are: {', '.join(sorted(SETTINGS))}")

    @property
    def method(self) -> Method:
        """The variant's settings with this attack's own in their place."""
        chosen = VARIANTS[self.variant]
        terms, search = replace(chosen.terms, **self._set(Terms)), replace(chosen.search, **self._set(Search))
        if self.iterations:
            search = replace(search, iterations=self.iterations)
        if self.restarts:
            search = replace(search, restarts=self.restarts)
        if self.rate == "unknown" and terms.update:
            terms = replace(terms, distance="cosine")
        blind = self.statistics == "none" or chosen.statistics == "none"
        if blind:
            terms = replace(terms, statistics=0.0)
            if not terms.update + terms.exposed + terms.label:
                raise ValueError(f"{self.variant} matches statistics only: statistics = 'none' leaves nothing")
        labels: Labels = "trainable" if self.labels == "unknown" else chosen.labels
        return Method(terms, search, "none" if blind else chosen.statistics, labels)

    def _set(self, part: type) -> dict[str, Any]:
        return {name: value for name, value in self.settings.items() if SETTINGS[name] is part}

    # the examiner's half

    def wants(self, federation: Federation) -> Keep:
        """The updates that the federation must keep for this attack."""
        return lambda index, client: index in self.rounds and client in self._targets(federation)

    def check(self, federation: Federation) -> None:
        """Refuse, before training, what cannot be inverted."""
        need_single_updates(federation, "gradient-inversion")
        for name in self.clients:
            if name not in federation.clients:
                known = ", ".join(list(federation.clients)[:8])
                raise _wrong(f"there is no client {name!r}", f"one of: {known}")
            if (count := len(federation.clients[name].train)) > self.most_images:
                raise _wrong(
                    f"{name} has {count} images, more than most_images = {self.most_images}: every one is searched for "
                    "at once, and memory grows with them",
                    "name clients with fewer images, or raise most_images",
                )
        if not self._targets(federation):
            raise _wrong(
                f"no client has at most {self.most_images} images", "raise most_images, or give some client fewer"
            )
        if max(self.rounds) >= federation.rounds:
            raise _wrong(f"round {max(self.rounds)} of {federation.rounds} does not exist", "rounds count from 0")
        if federation.task.kind != "classification" or len(federation.task.shape) != 3:
            raise _wrong("it inverts images with class labels", "use a classification task of images")
        if federation.plan.augment != "none":
            raise _wrong(
                "clients train on moved versions of their images, other ones in every step: it simulates clients that "
                "do not",
                'augment = "none" in [training], or membership-inference, which trains as clients do',
            )
        if self.defences == "known" and (silent := federation.stack.treatment.unknown):
            raise _wrong(
                f"it does what the clients do, and {silent[0]} does not say what it does to gradients or updates",
                'give the defence a `treatment`, or set defences = "unknown": the update is then taken as it came',
            )
        bench = federation.bench()
        dense = self._reads and first_dense(bench.model, federation.task.shape) is not None
        if self.method.terms.statistics and not norm_momenta(bench.model) and not dense:
            raise _wrong(
                "it matches BatchNorm's statistics, and the model has none",
                'use norm = "batch", or variant = "geiping" or "dlg", or statistics = "none"',
            )
        scene.prior_of(federation, self.prior, self.grey, self.seed)
        if self.embedding:
            load(self.embedding, federation.task.shape)

    def passes(self, federation: Federation) -> float:
        """The searches' price in examples' training steps, if none ends early."""
        return sum(self.passes_by(federation).values())

    def passes_by(self, federation: Federation) -> dict[int, float]:
        """By images in a step: one alone costs far more than its share of a batch."""
        each = EVALUATION * (WEIGHED if self._weighs(federation) else 1.0) if self.method.terms.update else 1.0
        found: dict[int, float] = {}
        for name in self._targets(federation):
            images, plan = len(federation.clients[name].train), federation.plan_of(name)
            evaluations = sum(self._evaluations(federation, images))
            at = min(images, plan.batch or images)
            found[at] = found.get(at, 0.0) + each * len(self.rounds) * plan.epochs * images * evaluations
        return found

    def usual(self, federation: Federation) -> float:
        """Trials of labels in full, and all iterations but where noise is weighed."""
        early, usual, most = self._early if self._weighs(federation) else 1.0, 0.0, 0.0
        for images in (len(federation.clients[name].train) for name in self._targets(federation)):
            searched, trials = self._evaluations(federation, images)
            usual += images * (early * searched + trials)
            most += images * (searched + trials)
        return usual / most if most else 1.0

    @property
    def _early(self) -> float:
        """The share of its evaluations at which a restart ends as a rule where noise is weighed: it makes all draws."""
        how = self.method.search
        return (EARLY * how.iterations + how.draws) / (how.iterations + how.draws)

    def _weighs(self, federation: Federation) -> bool:
        return self._believes and federation.stack.loudness > 0 and self.defences == "known"

    @property
    def _believes(self) -> bool:
        """Whether public images teach it what to believe of others, without which noise is matched and not weighed."""
        return self.variant == "grad+bn" and self.prior == "public" and self.rate == "known"

    def _evaluations(self, federation: Federation, images: int) -> tuple[int, int]:
        """Of a search for so many images, and of trials of labels: one image's are tried only under noise."""
        how, ways = self.method.search, self.deals
        if images == 1:
            ways = min(ways, len(federation.task.classes)) if federation.stack.loudness else 1
        return how.restarts * (how.iterations + (how.draws if self._weighs(federation) else 0)), most_trials(ways)

    def effort(self, federation: Federation) -> Effort:
        """Iterations over all restarts; the variant's own are those that its published figures were made with."""
        given, usual = self.method.search, VARIANTS[self.variant].search
        return Effort(given.iterations * given.restarts, usual.iterations * usual.restarts, "iterations")

    def _targets(self, federation: Federation) -> tuple[str, ...]:
        names = self.clients or tuple(federation.clients)
        return tuple(n for n in names if len(federation.clients[n].train) <= self.most_images)

    def challenges(self, lab: Lab) -> Iterator[Challenge]:
        """One question per attacked client and round: what are its images?"""
        federation = lab.federation
        self.check(federation)
        prior = scene.prior_of(federation, self.prior, self.grey, self.seed)
        belief = scene.belief_of(federation, self.grey) if self._believes else None
        shown = scene.public(federation) if self.prior == "public" else None
        wrong = scene.other_weights(federation) if self.checkpoint == "wrong" else None
        for index in self.rounds:
            kept = lab.kept(index)
            if kept is None:
                raise _wrong(f"the updates of round {index} were not kept", "run the study with another --out")
            sent, updates = kept
            there = set(lab.cohorts()[index]) & set(self._targets(federation))
            if lost := sorted(there - {update.client for update in updates}):
                raise _wrong(
                    f"the update of {lost[0]} in round {index} was not kept: the run was made for an attack on others",
                    "run the study with another --out",
                )
            for client in dict.fromkeys(update.client for update in updates):
                if client not in self._targets(federation):
                    continue
                parts = tuple(update for update in updates if update.client == client)
                view = ServerView(
                    sent, federation.bench, federation.objective.per_example_loss, (sent,),
                    federation.plan_of(client), (sent,), (parts,),
                )  # fmt: skip
                notes = lab.notes(f"round-{index:04d}", client)
                hints = Start(prior, client, index, wrong, self._treatment(federation), belief, shown, notes, lab.says)
                secret = scene.truth(federation, client, index, prior, self.seed, self.embedding)
                yield Challenge(view, hints, secret)

    def _treatment(self, federation: Federation) -> Treatment:
        return federation.stack.treatment if self.defences == "known" else Treatment()

    # the attacker's half

    def guess(self, view: ServerView, hints: Start) -> Reconstruction:
        """The images, from the weights that were sent and the update that came back."""
        (found,) = self.guesses([(view, hints)], 1)
        return found

    def guesses(self, asked: Iterable[tuple[ServerView, Start]], workers: int) -> list[Reconstruction]:
        """The same for several updates: by algebra where that shows something, else with all restarts side by side."""
        questions = list(asked)
        whole = [self._reads and len(view.updates[0]) == 1 for view, _ in questions]  # parts are searched one by one
        made = [reconstruction(v, h.prior, h.index) if w else None for w, (v, h) in zip(whole, questions, strict=True)]
        searched = iter(self._search([q for q, done in zip(questions, made, strict=True) if done is None], workers))
        return [next(searched) if done is None else done for done in made]

    def _search(self, questions: Sequence[tuple[ServerView, Start]], workers: int) -> list[Reconstruction]:
        if not questions:
            return []
        asked_of = [(view, hints, update) for view, hints in questions for update in view.updates[0]]
        told = [hints for _, hints, _ in asked_of]
        problems = [self._problem(*each) for each in asked_of]
        trials = sum(p.canvas.count * most_trials(1 + len(p.others)) for p in problems)
        how, weighed = self.method.search, any(p.terms.likelihood for p in problems)
        most, usual = (how.iterations + how.draws, self._early) if weighed else (how.iterations, 1.0)
        lines = [partial(self._say, hints) for hints in told]
        far = Far(lines, [p.canvas.count for p in problems], how.restarts, trials, usual, most)
        told[0].says(f"{self.variant}: the search begins", 0.0)
        problems = settled(problems, how, seed=self.seed, workers=workers, tried=far.tried)
        folders = [_notes(hints.notes, update.part) for _, hints, update in asked_of]
        found = searches(problems, how, seed=self.seed, workers=workers, checkpoints=folders, progress=far.searched)
        pairs = iter(zip(found, problems, strict=True))
        return [_together([next(pairs) for _ in view.updates[0]]) for view, _ in questions]

    def _say(self, hints: Start, line: str, share: float) -> None:
        hints.says(f"{self.variant} of {hints.client}: {line}", share)

    @property
    def _reads(self) -> bool:
        """Whether a first dense layer is read by algebra: by our own variant, from the model that was really sent."""
        return self.variant == "grad+bn" and self.checkpoint == "right" and self.rate == "known"

    def _problem(self, view: ServerView, hints: Start, update: Update) -> Problem:
        chosen = self.method
        if chosen.terms.statistics and not norm_momenta(view.bench.model):
            chosen = replace(chosen, terms=replace(chosen.terms, statistics=0.0))  # a dense layer that showed nothing
        sent = view.sent[0] if hints.wrong is None else hints.wrong
        seen = Intercepted(view.bench, sent, update.delta, view.plan, update.examples, hints.index, hints.treatment)
        return problem_of(
            seen, hints.prior, chosen.terms, reading=self.reading, labels=chosen.labels,
            statistics=chosen.statistics, rate=1.0 if self.rate == "unknown" else None,
            belief=hints.belief, public=hints.public, deals=self.deals,
        )  # fmt: skip

    # the comparison

    def measure(self, guesses: Sequence[Reconstruction], secrets: Sequence[Secret]) -> list[Reading | Artefact]:
        """SSIM, PSNR and RDLV with its null for each client and round, and over all; and the pictures.

        Of turns whose images nobody knows, the objective that was reached.
        """
        return readings(guesses, secrets)


def _notes(folder: Path | None, part: int) -> Path | None:
    """Where the search of one part of a client keeps its notes: a client that did not split itself has one part."""
    return folder if folder is None or part == 0 else folder / f"part-{part}"


def _together(parts: Sequence[tuple[Found, Problem]]) -> Reconstruction:
    """One client's reconstruction from those of its parts."""
    made = [found for found, _ in parts]
    truths = [problem.truth for _, problem in parts]
    known, surprises = sum(t for t in truths if t is not None), [found.surprise for found in made]
    misfit = sum(s for s in surprises if s is not None) / known if known and None not in [*truths, *surprises] else None
    return Reconstruction(
        torch.cat([found.images for found in made]), sum(found.objective for found in made) / len(made),
        sum(found.iterations for found in made), sum(found.seconds for found in made),
        tuple(name for _, problem in parts for name in problem.evidence.inputs),
        tuple(label for found in made for label in found.classes), misfit,
    )  # fmt: skip


def _wrong(what: str, fix: str) -> StudyError:
    return StudyError(what, "gradient-inversion", fix)
