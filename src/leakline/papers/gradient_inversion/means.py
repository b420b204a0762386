"""Means over images with their intervals and baselines, for the tables of paper 001."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from leakline.leakage.interval import mean_interval
from leakline.papers.gradient_inversion.store import Setting, Turn, dicts, finite, groups_of
from leakline.text import number

ONE_IMAGE = "one image: no interval"


@dataclass(frozen=True)
class Measured:
    """A mean over images with its 95 % interval, and what no leak gives (the prior's SSIM, decoys' RDLV, chance)."""

    value: float
    low: float | None
    high: float | None
    images: int
    chance: float | None = None

    @property
    def interval(self) -> str:
        """The interval in words."""
        if self.low is None or self.high is None:
            return ONE_IMAGE if self.images == 1 else "not in the store"
        return f"[{number(self.low + 0.0, 3)}, {number(self.high + 0.0, 3)}]"


def measured(found: Sequence[Turn], measure: str) -> Measured | None:
    """The mean of a measure over images, every image the same weight, with Student's interval over sets of images.

    A set counts once, with all its turns (rounds, seeds), since those are about the same images.
    Where there is one set only, the interval is the stored one (over the set's images); of several turns the mean of
    the ends, which is at least as wide as the interval of the mean.
    """
    kept = [turn for turn in found if turn.value(measure) is not None]
    if not kept:
        return None
    sets = groups_of(kept, lambda turn: turn.cluster)
    values = np.array([np.mean([turn.value(measure) for turn in own]) for own in sets.values()])
    sizes = np.array([max(turn.count for turn in own) for own in sets.values()], dtype=np.float64)
    low, high = _student(values, sizes) if len(sets) > 1 else _ends([turn.lines[measure] for turn in kept])
    chances = [(finite(turn.lines[measure].get("chance")), turn.count) for turn in kept]
    known = [(chance, size) for chance, size in chances if chance is not None]
    chance = sum(c * n for c, n in known) / sum(n for _, n in known) if known else None
    return Measured(float(np.average(values, weights=sizes)), low, high, int(sizes.sum()), chance)


@dataclass(frozen=True)
class Paired:
    """What one attack got more than another from the same updates, and for how many images."""

    difference: Measured
    better: int
    p: float
    """Of the sign test, one-sided: so many or more images where the first is better, if neither were."""


def paired(
    ours: Sequence[Turn], theirs: Sequence[Turn], measure: str, same: Callable[[Turn], Any] = lambda turn: turn.place
) -> Paired | None:
    """The mean difference over the images that both have, with Student's interval over them.

    ``same`` tells which two turns belong together.
    """
    others = {same(turn): turn.value(measure) for turn in theirs}
    gaps: dict[str, list[float]] = {}
    sizes: dict[str, int] = {}
    for turn in ours:
        mine, other = turn.value(measure), others.get(same(turn))
        if mine is not None and other is not None:
            gaps.setdefault(turn.cluster, []).append(mine - other)
            sizes[turn.cluster] = max(sizes.get(turn.cluster, 1), turn.count)
    if not gaps:
        return None
    values, weights = np.array([np.mean(g) for g in gaps.values()]), np.array([float(sizes[k]) for k in gaps])
    low, high = _student(values, weights) if len(gaps) > 1 else (None, None)
    better, trials = int((values > 0).sum()), int((values != 0).sum())
    p = sum(math.comb(trials, k) for k in range(better, trials + 1)) / 2**trials
    return Paired(Measured(float(np.average(values, weights=weights)), low, high, int(weights.sum())), better, p)


def p_values(found: Sequence[Turn], measure: str) -> str:
    """The p-values of single turns in a few words."""
    known = sorted(p for turn in found if (p := turn.p(measure)) is not None)
    if len(known) < 2:
        return f"{known[0]:.3g}" if known else ""
    few = sum(p <= 0.05 for p in known)
    return f"{known[0]:.3g} to {known[-1]:.3g}; at most 0.05 in {few} of {len(known)}"


def accuracy(found: Sequence[Setting]) -> Measured | None:
    """Test accuracy after the last round: the mean over seeds; one seed's own interval, or the seeds' range."""
    lines = []
    for setting in found:
        own = [r for r in setting.cell.readings if r["measure"] == "accuracy" and "client" not in r]
        lines += own[-1:]
    if not lines:
        return None
    values = [float(line["value"]) for line in lines]
    low, high = _ends(lines) if len(lines) == 1 else (min(values), max(values))
    return Measured(sum(values) / len(values), low, high, int(lines[0].get("n") or 1), majority(found))


def majority(found: Sequence[Setting]) -> float | None:
    """What always guessing the commonest class of the server's test data gives."""
    for setting in found:
        for row in dicts(setting.cell.about.get("partition")):
            counts = row.get("counts")
            if row.get("name") == "server: test" and isinstance(counts, list) and sum(counts):
                return float(max(counts) / sum(counts))
    return None


def _student(values: np.ndarray, sizes: np.ndarray) -> tuple[float, float]:
    mean = mean_interval(values, sizes)
    return mean.low, mean.high


def _ends(lines: Sequence[Mapping[str, Any]]) -> tuple[float | None, float | None]:
    ends = [(finite(line.get("low")), finite(line.get("high"))) for line in lines]
    known = [(low, high) for low, high in ends if low is not None and high is not None]
    if len(known) < len(lines):
        return None, None
    return sum(low for low, _ in known) / len(known), sum(high for _, high in known) / len(known)
