"""Paper 002's privacy test of LDP-SGD: six adversaries, two boxes, the paper's rules and the optimal ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from leakline.attacks.audit import distinguishers as rules
from leakline.attacks.audit.blackbox import play
from leakline.attacks.audit.crafters import SIX, craft, dummy_gradient
from leakline.attacks.audit.ldp_game import Black, BoolArray, FloatArray, Game, Known, Label, Shuffled, White
from leakline.attacks.audit.scene import draw_scene, malicious_model
from leakline.attacks.audit.stacks import stacked_losses
from leakline.attacks.base import Attack, Challenge, Lab
from leakline.defences import Law
from leakline.errors import StackError
from leakline.federation import Federation
from leakline.leakage.epsilon import ErrorCounts, count_errors, lower_bound, point_epsilon, pool
from leakline.leakage.ranks import lower_bound_from_scores
from leakline.privacy import Seat
from leakline.randomness import Stream
from leakline.readings import Reading, rule_of

RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True)
class LdpDistinguish(Attack):
    """Paper 002's six adversaries against LDP-SGD, each with a white and a black box, its rules and optimal ones.

    ``measurements`` pairs of images (the paper: ten measurements), ``trials`` K for each, half in each world. White
    boxes are played on the exact law of the two cosines, black boxes on reports drawn in full. ``clients``: Table 3.
    ``steps``: the black box's server step, times these (the paper does not say its learning rate; the rule's power
    hangs on it). ``norms``: Figure 3. ``crowds``: numbers of clients whose reports a trusted shuffler strips of their
    names (Sec. 4.3), judged at ``shuffle_delta``; the others hold the first gradient, and the examiner tells so.
    ``together``: all bounds of a cell hold at once at the stated confidence (Bonferroni over its lines), instead of
    each by itself. The value of a reading is the mean of eq. (3) over measurements, which is what
    the paper plots and is biased upwards; its lower end is a valid bound from the pooled counts.
    """

    measurements: int = 10
    trials: int = 10_000
    confidence: float = 0.95
    clients: tuple[int, ...] = (1, 2, 4, 10)
    steps: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0)
    norms: tuple[float, ...] = RATIOS
    crowds: tuple[int, ...] = (10, 100, 1_000, 10_000)
    shuffle_delta: float = 1e-5
    together: bool = False
    reading: Literal["sound", "paper"] = "sound"
    seat: ClassVar[Seat] = Seat.SERVER

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", tuple(self.clients))  # a study file gives lists
        object.__setattr__(self, "steps", tuple(self.steps))
        object.__setattr__(self, "norms", tuple(self.norms))
        object.__setattr__(self, "crowds", tuple(self.crowds))
        if self.measurements < 1 or self.trials < 40:
            raise ValueError(f"at least 1 measurement of 40 trials: {self.measurements}, {self.trials}")
        if any(n < 1 for n in self.crowds) or not 0 < self.shuffle_delta < 1:
            raise ValueError(f"crowds need clients and a delta in (0, 1): {self.crowds}, {self.shuffle_delta}")

    def check(self, federation: Federation) -> None:
        """Refuse a stack that this game does not know the law of."""
        self._law(federation)

    def _law(self, federation: Federation) -> Law:
        law = federation.stack.law
        if law is None:
            raise StackError(
                "these rules know the law of ldp-sgd alone", "attacks", "use the attack audit for other stacks"
            )
        if not federation.strategy.optimiser.stateless:
            raise StackError("paper 002's server takes a plain step", "strategies", "use fedavg")
        return law

    def challenges(self, lab: Lab) -> Iterator[Challenge]:
        """Every block of trials of every figure and table."""
        yield from self.games(lab.federation)

    def games(self, federation: Federation) -> Iterator[Challenge]:
        """The same, from a federation; nothing is trained but the malicious model."""
        law = self._law(federation)
        bench = federation.bench()
        size = bench.initial.layout.size
        step = federation.strategy.optimiser.gain * law.scale(size)
        for m in range(self.measurements):
            # Data set and epsilon are in the address: cells of a study must not share their luck.
            purpose = f"ldp-distinguish {federation.task.name} {law.epsilon:g}"
            rng = Stream(federation.seed, m, "examiner", purpose).numpy()
            generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
            scene = draw_scene(federation, bench, rng, law.clip)
            malicious = malicious_model(federation, bench, int(scene.y1[0]), seed=m)
            pairs = [craft(name, scene, malicious) for name in SIX]
            game = Game(law.epsilon, law.clip, size, self.trials, rng, self.reading)
            for pair in pairs:
                yield from game.white(pair)
            f1, f2 = stacked_losses(scene, scene.x1, scene.y1), stacked_losses(scene, scene.x2, scene.y2)
            starts = [scene.weights.vector, malicious.vector]
            gradients = torch.stack([v for pair in pairs for v in (pair.zero, pair.one)])
            sides = play(starts, [(0, f1), (0, f2), (1, f1)], gradients, self.trials // 2, step, generator)
            before = [float(f(starts[i][None])) for i, f in ((0, f1), (0, f2), (1, f1))]
            for i, pair in enumerate(pairs):
                yield game.black(pair, i, sides, before)
            for ratio in self.norms:
                pair = dummy_gradient(size, law.clip, ratio)
                yield from game.white(pair, {"norm": ratio})
            if m == 0:
                flip = SIX.index("gradient flip")
                for times in self.steps:
                    far = play(starts[:1], [(0, f1)], gradients, self.trials // 2, step * times, generator)
                    yield game.black(pairs[flip], flip, far, before, {"step": times}, step * times)
                for n in self.clients:
                    many = play(starts[:1], [(0, f1), (0, f2)], gradients, self.trials // 2, step, generator, n)
                    yield game.black(pairs[0], 0, many, before, {"clients": n})
                    yield game.inverted(pairs[0], n)
                for n in self.crowds:
                    yield game.shuffled(pairs[0], n, self.shuffle_delta)
                    yield game.shuffled(pairs[flip], n, self.shuffle_delta)

    def guess(self, view: White | Black | Shuffled, hints: Known) -> BoolArray | FloatArray:
        """A guess for every trial: True for g2; of several reports a score, so that one may stay silent."""
        if isinstance(view, Shuffled):
            return rules.shuffled_ratio(view.counts, hints.ratios, hints.epsilon)
        if isinstance(view, White):
            if hints.rule == "cosine":
                return rules.cosine_rule(view.cosines)
            if view.clients > 1:
                return rules.mean_ratio(view.cosines, hints.ratios, hints.epsilon, view.clients, hints.size)
            score = rules.report_ratio(view.cosines, hints.ratios, hints.epsilon)
            return _most_telling(score, hints)
        if hints.rule == "sign count":
            return rules.sign_count_rule(view.signs, hints.reading)
        if hints.rule == "loss change":
            return rules.change_rule(view.before[0], view.after[0], view.before[1], view.after[1])
        return rules.loss_rule(view.before[0], view.after[0])

    def measure(self, guesses: Sequence[Any], secrets: Sequence[Any]) -> list[Reading]:
        """For each line of a figure: mean of eq. (3), and the bound of the pooled counts, or of scores at all ranks."""
        blocks: dict[str, list[tuple[Any, BoolArray]]] = {}
        labels: dict[str, Label] = {}
        for guess, (bits, label) in zip(guesses, secrets, strict=True):
            line = rule_of(label.about)
            blocks.setdefault(line, []).append((guess, bits))
            labels.setdefault(line, label)
        confidence = 1 - (1 - self.confidence) / len(blocks) if self.together else self.confidence
        shared = f"; bounds of all {len(blocks)} lines hold together" if self.together else ""
        return [
            _counted(labels[line], [count_errors(*block) for block in trials], confidence, shared)
            if trials[0][0].dtype == bool
            else _scored(labels[line], trials, confidence, shared)
            for line, trials in blocks.items()
        ]


def _scored(label: Label, trials: list[tuple[Any, BoolArray]], confidence: float, shared: str) -> Reading:
    scores, bits = (np.concatenate(part) for part in zip(*trials, strict=True))
    rng = np.random.default_rng(len(scores))
    bound = lower_bound_from_scores(scores[~bits], scores[bits], label.delta, confidence, rng=rng)
    at = {"delta": label.delta} if label.delta else {}
    note = f"eq. (3) at the best of all ranks; bound at all of them, ceiling {bound.ceiling:.3g}{shared}"
    return Reading(
        "estimated-epsilon", bound.point, bound.low, n=bound.trials, chance=0.0,
        about={**label.about, **label.beside, **at, "ceiling": bound.ceiling}, note=note,
    )  # fmt: skip


def _counted(label: Label, counts: list[ErrorCounts], confidence: float, shared: str) -> Reading:
    points = [point_epsilon(c) for c in counts]
    finite = [p for p in points if math.isfinite(p)]
    bound = lower_bound(pool(counts), 0.0, confidence)
    lost = f" ({len(points) - len(finite)} more were infinite)" if len(finite) < len(points) else ""
    note = (
        f"mean of {len(finite)} estimates by eq. (3){lost}; bound of pooled counts, ceiling {bound.ceiling:.3g}{shared}"
    )
    return Reading(
        "estimated-epsilon", float(np.mean(finite)) if finite else bound.low, bound.low, n=bound.trials,
        chance=0.0, about={**label.about, **label.beside, "ceiling": bound.ceiling}, note=note,
    )  # fmt: skip


def _most_telling(score: FloatArray, known: Known) -> BoolArray:
    """Guess g2 in the region where the likelihood ratio is most extreme, fixed by the law alone."""
    t = math.tanh(known.epsilon / 2)
    signs = [(-1, 1), (1, -1)] + ([(1, 1), (-1, -1)] if known.cosine > -1 + 1e-9 else [])
    values = [math.log1p(known.ratios[1] * t * b) - math.log1p(known.ratios[0] * t * a) for a, b in signs]
    if max(values) >= -min(values):
        return np.asarray(score >= max(values) - 1e-9)
    return np.asarray(score > min(values) + 1e-9)
