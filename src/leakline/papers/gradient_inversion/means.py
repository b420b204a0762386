"""Means over images with their intervals and baselines, and how the tables of paper 001 say them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from leakline.leakage import clopper_pearson, over_units
from leakline.leakage.interval import mean_interval
from leakline.papers.gradient_inversion.turns import Case, Turn
from leakline.readings import Reading
from leakline.results.estimate import Estimate, estimate
from leakline.results.settings import groups_of
from leakline.text import number

ONE_IMAGE = "one image: no interval"
SHARES = ("iip", "iip-exact")
"""Measures that are shares of images."""


@dataclass(frozen=True)
class Measured:
    """A mean over images with its 95 % interval, and what no leak gives (the prior's SSIM, decoys' RDLV, chance)."""

    value: float
    low: float | None
    high: float | None
    images: int
    chance: float | None = None
    seeds: int = 1

    @property
    def interval(self) -> str:
        """The interval in words."""
        if self.low is None or self.high is None:
            return ONE_IMAGE if self.images == 1 else "not in the store"
        return f"[{number(self.low + 0.0, 3)}, {number(self.high + 0.0, 3)}]"


def measured(found: Sequence[Turn], measure: str) -> Measured | None:
    """The mean of a measure over images, every image the same weight, with an interval over sets of images.

    Student's; of a share, exact where each set is one image, else a jackknife over sets that stays within 0 and 1.

    A set counts once, with all its turns (rounds, seeds), since those are about the same images. Seeds with images of
    their own are draws, which share prior and initial model: with several, `widened`.
    Where there is one set only, the interval is the stored one (over the set's images); of several turns the mean of
    the ends, which is at least as wide as the interval of the mean.
    """
    kept = [turn for turn in found if turn.value(measure) is not None]
    if not kept:
        return None
    sets = groups_of(kept, lambda turn: turn.cluster)
    values = np.array([np.mean([turn.value(measure) for turn in own]) for own in sets.values()])
    sizes = np.array([max(turn.count for turn in own) for own in sets.values()], dtype=np.float64)
    over = _share if measure in SHARES else _student
    low, high = over(values, sizes) if len(sets) > 1 else _ends([turn.readings[measure] for turn in kept])
    if low is not None and high is not None:
        within = (0.0, 1.0) if measure in SHARES else (-math.inf, math.inf)
        low, high = widened((low, high), values, sizes, [_draw(own) for own in sets.values()], within)
    chances = [(turn.readings[measure].chance, turn.count) for turn in kept]
    known = [(chance, size) for chance, size in chances if chance is not None and math.isfinite(chance)]
    chance = sum(c * n for c, n in known) / sum(n for _, n in known) if known else None
    return Measured(float(np.average(values, weights=sizes)), low, high, int(sizes.sum()), chance, _seeds(kept))


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
    sets: dict[str, list[Turn]] = {}
    for turn in ours:
        mine, other = turn.value(measure), others.get(same(turn))
        if mine is not None and other is not None:
            gaps.setdefault(turn.cluster, []).append(mine - other)
            sets.setdefault(turn.cluster, []).append(turn)
    if not gaps:
        return None
    values = np.array([np.mean(g) for g in gaps.values()])
    weights = np.array([float(max(turn.count for turn in own)) for own in sets.values()])
    low: float | None = None
    high: float | None = None
    if len(gaps) > 1:
        low, high = widened(_student(values, weights), values, weights, [_draw(own) for own in sets.values()])
    better, trials = int((values > 0).sum()), int((values != 0).sum())
    p = sum(math.comb(trials, k) for k in range(better, trials + 1)) / 2**trials
    mean = float(np.average(values, weights=weights))
    seeds = _seeds([turn for own in sets.values() for turn in own])
    return Paired(Measured(mean, low, high, int(weights.sum()), seeds=seeds), better, p)


def widened(
    ends: tuple[float, float], values: np.ndarray, sizes: np.ndarray, draws: Sequence[Any],
    within: tuple[float, float] = (-math.inf, math.inf),
) -> tuple[float, float]:  # fmt: skip
    """An interval over sets of images, or where it reaches further, Student's over the means of their draws.

    Images of a draw share prior and initial model, so that sets alone would promise too much where these matter.
    ``draws``: of each set its draw; None for one that several draws have, which then are none.
    """
    names = list(dict.fromkeys(draws))
    if len(names) < 2 or None in names:
        return ends
    own = [np.array([draw == name for draw in draws]) for name in names]
    means = np.array([np.average(values[rows], weights=sizes[rows]) for rows in own])
    low, high = _student(means, np.array([sizes[rows].sum() for rows in own]))
    return max(min(ends[0], low), within[0]), min(max(ends[1], high), within[1])


def p_values(found: Sequence[Turn], measure: str) -> str:
    """The p-values of single turns in a few words."""
    known = sorted(p for turn in found if (p := turn.p(measure)) is not None)
    if len(known) < 2:
        return f"{known[0]:.3g}" if known else ""
    few = sum(p <= 0.05 for p in known)
    return f"{known[0]:.3g} to {known[-1]:.3g}; at most 0.05 in {few} of {len(known)}"


def accuracy(found: Sequence[Case]) -> Measured | None:
    """Test accuracy after the last round: the mean over seeds; one seed's own interval, or the seeds' range."""
    readings = [r for case in found if (r := case.cell.newest("accuracy")) is not None]
    if not readings:
        return None
    values = [float(r.value) for r in readings]
    low, high = _ends(readings) if len(readings) == 1 else (min(values), max(values))
    return Measured(sum(values) / len(values), low, high, readings[0].n or 1, majority(found))


def accuracies(case: Case) -> list[float]:
    """Test accuracy after every round."""
    kept = [r for r in case.cell.readings if r.measure == "accuracy" and r.client is None and r.round is not None]
    return [float(r.value) for r in sorted(kept, key=lambda r: r.round or 0)]


def cost(
    noised: Sequence[Case], free: Sequence[Case], of: Callable[[Sequence[float]], float] = lambda every: every[-1]
) -> Estimate | None:
    """What noise does to the accuracy, paired by seed: after the last round, or ``of`` all rounds' accuracies."""
    before = {case.cell.labels.get("seed"): found for case in free if (found := accuracies(case))}
    pairs = [(found, before.get(case.cell.labels.get("seed"))) for case in noised if (found := accuracies(case))]
    return estimate([of(found) - of(other) for found, other in pairs if other is not None])


def majority(found: Sequence[Case]) -> float | None:
    """What always guessing the commonest class of the server's test data gives."""
    for row in (row for case in found for row in case.cell.holders):
        counts = row.get("counts")
        if row.get("name") == "server: test" and isinstance(counts, list) and sum(counts):
            return float(max(counts) / sum(counts))
    return None


def _seeds(found: Sequence[Turn]) -> int:
    return len({turn.case.cell.labels.get("seed") for turn in found})


def _draw(own: Sequence[Turn]) -> Any:
    """The seed of a set of images; None where several have it."""
    seeds = {turn.case.cell.labels.get("seed") for turn in own}
    return seeds.pop() if len(seeds) == 1 else None


def _student(values: np.ndarray, sizes: np.ndarray) -> tuple[float, float]:
    mean = mean_interval(values, sizes)
    return mean.low, mean.high


def _share(values: np.ndarray, sizes: np.ndarray) -> tuple[float, float]:
    if (sizes == 1).all() and np.isin(values, (0.0, 1.0)).all():
        found = clopper_pearson(int(values.sum()), len(values))
    else:
        found = over_units(lambda rows: float(np.average(values[rows], weights=sizes[rows])), np.arange(len(values)))
    return found.low, found.high


def _ends(readings: Sequence[Reading]) -> tuple[float | None, float | None]:
    known = [(r.low, r.high) for r in readings if r.low is not None and r.high is not None]
    known = [(low, high) for low, high in known if math.isfinite(low) and math.isfinite(high)]
    if len(known) < len(readings):
        return None, None
    return sum(low for low, _ in known) / len(known), sum(high for _, high in known) / len(known)


# --- in words -----------------------------------------------------------------------------------------------------

NOT_SAFE = "RDLV at or below 0 is no proof of safety: another attack may do better"
IMAGES = (
    "means over images [95 % t-interval, a client's images counting together; over draws, if wider]; "
    "n: images; null: the same maximum over decoys that never saw the image; p: against it, which alone shows no leak: "
    "the prior, whose RDLV is 0, may beat decoys too"
)
ABSENT = "no run of this store holds what this shows: run the study's scenarios for it"
LEAK = (
    "SSIM", "SSIM 95 %", "SSIM of the prior", "RDLV", "RDLV 95 %", "null of RDLV", "p of single updates", "n",
)  # fmt: skip
"""What `leak` gives."""


def leak(found: Sequence[Turn]) -> tuple[Any, ...]:
    """What attacked turns give away, with intervals and baselines."""
    likeness, relative = measured(found, "ssim"), measured(found, "rdlv")
    images = relative or likeness
    return (
        value(likeness), interval(likeness), chance(likeness), value(relative), interval(relative), chance(relative),
        p_values(found, "rdlv"), images and images.images,
    )  # fmt: skip


def value(found: Measured | None) -> float | None:
    """The mean."""
    return None if found is None else found.value


def chance(found: Measured | None) -> float | None:
    """The baseline."""
    return None if found is None else found.chance


def interval(found: Measured | None) -> str:
    """The interval in words; nothing where there is no mean."""
    return "" if found is None else found.interval


def noted(rows: Sequence[Any], note: str) -> str:
    """A table's note, or why it has no rows."""
    return note if rows else ABSENT
