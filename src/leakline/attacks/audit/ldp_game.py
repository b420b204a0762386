"""Paper 002's games of LDP-SGD: what each box sees of a block of trials, and what it is told."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt

from leakline.attacks.audit.blackbox import Sides, report_sides
from leakline.attacks.audit.crafters import SIX, Pair
from leakline.attacks.base import Challenge
from leakline.mechanisms.sphere import norm_ratio, report_cosines, shuffled_sides, side_rates
from leakline.readings import Fact

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
NOTHING: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class White:
    """A white box's view: cosines of each report with both gradients; one block of trials."""

    cosines: FloatArray
    clients: int = 1


@dataclass(frozen=True)
class Black:
    """A black box's view: losses on x1 (and x2) before and after the step, and the signs of the step."""

    before: tuple[float, float]
    after: tuple[FloatArray, FloatArray]
    signs: FloatArray


@dataclass(frozen=True)
class Shuffled:
    """Who sees the reports of a round without names: how many lie on which sides of both gradients' planes."""

    counts: FloatArray


@dataclass(frozen=True)
class Known:
    """What both boxes are told: which adversary, the law's parameters, and which rule to use."""

    adversary: str
    rule: str
    epsilon: float
    size: int
    ratios: tuple[float, float]
    cosine: float = -1.0
    reading: Literal["sound", "paper"] = "sound"


@dataclass(frozen=True)
class Label:
    """What a block of trials belongs to in the paper's figures and tables."""

    adversary: str
    box: Literal["white", "black", "shuffled"]
    rule: str
    extra: Mapping[str, float] = field(default_factory=dict, hash=False)
    """What is varied in a figure: the norm, the server's step, the number of clients, or of those who are shuffled."""
    beside: Mapping[str, float] = field(default_factory=dict, hash=False, compare=False)
    delta: float = 0.0

    @property
    def about(self) -> dict[str, Fact]:
        """What tells this line from others."""
        return {"adversary": self.adversary, "box": self.box, "rule": self.rule, **self.extra}


@dataclass
class Game:
    """The blocks of one measurement."""

    epsilon: float
    bound: float
    size: int
    trials: int
    rng: np.random.Generator
    reading: Literal["sound", "paper"]

    def known(self, pair: Pair, rule: str) -> Known:
        """What a box is told of a pair."""
        ratios = (norm_ratio(pair.zero, self.bound), norm_ratio(pair.one, self.bound))
        return Known(pair.name, rule, self.epsilon, self.size, ratios, pair.cosine, self.reading)

    def bits(self) -> BoolArray:
        """Which gradient is reported in each trial: half of them each."""
        return np.asarray(self.rng.permutation(self.trials) % 2 == 1)

    def white(self, pair: Pair, extra: Mapping[str, float] = NOTHING) -> Iterator[Challenge]:
        """Single reports, judged by the paper's cosine rule and by the likelihood ratio."""
        known, bits = self.known(pair, "cosine"), self.bits()
        view = White(report_cosines(known.cosine, known.ratios, bits, self.size, self.epsilon, self.rng))
        about = _about(known)
        yield Challenge(view, known, (bits, Label(pair.name, "white", "cosine", extra, about)))
        if extra:
            return  # a flip: both rules are one
        best = replace(known, rule="optimal")
        yield Challenge(view, best, (bits, Label(pair.name, "white", "optimal", extra, about)))

    def inverted(self, pair: Pair, clients: int) -> Challenge:
        """A black box that divides the public step out of the model's change: it sees the mean report itself."""
        known, bits = self.known(pair, "optimal"), self.bits()
        cosines = report_cosines(known.cosine, known.ratios, bits, self.size, self.epsilon, self.rng)
        if clients > 1:
            plane = self.rng.standard_normal((2, self.trials)) * math.sqrt((clients - 1) / self.size)
            sine = math.sqrt(max(0.0, 1 - known.cosine**2))
            cosines = cosines + np.stack([plane[0], known.cosine * plane[0] + sine * plane[1]])
        label = Label(pair.name, "black", "inverted", {"clients": clients}, _about(known))
        return Challenge(White(cosines, clients), known, (bits, label))

    def shuffled(self, pair: Pair, clients: int, delta: float) -> Challenge:
        """A round's reports without names: their counts by sector, drawn from their exact law."""
        known, bits = self.known(pair, "optimal"), self.bits()
        rates = side_rates(known.cosine, known.ratios, self.epsilon)
        view = Shuffled(shuffled_sides(rates, bits, clients, self.rng))
        label = Label(pair.name, "shuffled", "optimal", {"crowd": clients}, _about(known), delta)
        return Challenge(view, known, (bits, label))

    def black(
        self, pair: Pair, place: int, sides: Sides, before: Sequence[float],
        extra: Mapping[str, float] = NOTHING, step: float = 0.0,
    ) -> Challenge:  # fmt: skip
        """Losses after the server's step, judged by the paper's rule for this adversary."""
        known = self.known(pair, RULES[pair.name])
        row = 2 if pair.name == "collusion" else 0
        worlds = [report_sides(sides.along[2 * place + w], known.ratios[w], self.epsilon, self.rng) for w in (0, 1)]
        side, bits = np.concatenate(worlds), np.repeat([False, True], len(worlds[0]))
        twice = Sides(*(np.concatenate([a, a], axis=-1) for a in sides.rows()))
        after1 = twice.after(row, side)
        after2 = twice.after(1, side) if known.rule == "loss change" else after1
        # The model moves against the report, so the signs of the step are those of -u.
        view = Black((before[row], before[1]), (after1, after2), -side * twice.signs)
        about = _about(known) | ({"moved": step} if step else {})
        return Challenge(view, known, (bits, Label(pair.name, "black", known.rule, extra, about)))


RULES = {name: "loss" for name in SIX} | {"benign": "loss change", "dummy gradient": "sign count"}
"""Table 1 of paper 002: which black-box rule goes with which adversary."""


def _about(known: Known) -> dict[str, float]:
    return {
        "angle": math.degrees(math.acos(max(-1.0, min(1.0, known.cosine)))),
        "ratio_1": known.ratios[0],
        "ratio_2": known.ratios[1],
    }
