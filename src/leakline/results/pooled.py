"""Settings: cells with their seeds pooled, each with one card, its leaks and its utility.

A promise that differs between seeds (clients dropped, clips that adapted) is pooled to the weakest one: a card must
hold for every seed it speaks for. Measured lower bounds are never averaged into one; their range is shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from leakline.cards import Card, Promise, violations
from leakline.leakage.brief import only_drawn
from leakline.measures import Measure, measure_of
from leakline.readings import BESIDE, Fact, Reading, label_of
from leakline.results.frames import (
    Estimate,
    frame_of,
    headline,
    label_names,
    missing_of,
    pooled_estimate,
    qualified,
)
from leakline.results.stored import Stored, StoredStudy

if TYPE_CHECKING:
    import pandas

    from leakline.results.frames import Missing


@dataclass(frozen=True)
class Leak:
    """What one attack got under one setting, over seeds."""

    by: str
    measure: str
    estimate: Estimate
    low: float | None
    high: float | None
    n: int | None
    chance: float | None
    better: str
    about: Mapping[str, Fact] = field(default_factory=dict, hash=False)

    @property
    def label(self) -> str:
        """The measure with its rule and rate."""
        return label_of(self.measure, self.about)

    @property
    def name(self) -> str:
        """The figure's full name."""
        return qualified(self.by, self.label)

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """Over seeds where there are several, else the reading's own."""
        e = self.estimate
        return (e.low, e.high) if e.seeds > 1 else (self.low, self.high)

    @property
    def is_chance(self) -> bool | None:
        """Whether blind guessing explains it; None if that cannot be said."""
        low, high = self.interval
        if self.chance is None or low is None or high is None:
            return None
        return low <= self.chance <= high


@dataclass(frozen=True)
class Proven:
    """A lower bound that audits proved under one setting: the smallest and the largest over seeds, never a mean."""

    by: str
    measure: str
    label: str
    low: float
    high: float
    n: int | None

    @property
    def name(self) -> str:
        """The figure's full name."""
        return qualified(self.by, self.label)


@dataclass(frozen=True)
class Setting:
    """One square of the grid with its seeds pooled."""

    labels: Mapping[str, Any]
    cells: tuple[Stored, ...]
    card: Card
    varied: bool
    utility: Estimate | None
    leaks: tuple[Leak, ...]
    measured: tuple[Proven, ...]
    points: tuple[Leak, ...] = ()
    """Points of ROC curves that nobody quotes; `leaks` has the others."""

    @property
    def defence(self) -> str:
        """The defence's label."""
        return str(self.labels.get("defence", ""))

    @property
    def elsewhere(self) -> tuple[tuple[str, Any], ...]:
        """All labels but the defence: where it was tried."""
        return tuple((k, v) for k, v in self.labels.items() if k != "defence")

    @property
    def undefended(self) -> bool:
        """Whether no defence was used."""
        return all(cell.federation.get("defences", None) == [] for cell in self.cells)

    @property
    def epsilon(self) -> float | None:
        """The smallest finite epsilon of the stack's leading promises, or None without one."""
        found = [p.epsilon for p in self.card.leading if p.epsilon is not None and math.isfinite(p.epsilon)]
        return min(found) if found else None

    @property
    def worst(self) -> Leak | None:
        """The attack that got furthest: among yes-or-no questions if there are any, else furthest above chance."""
        return strongest(self.leaks)


def strongest(leaks: Sequence[Leak]) -> Leak | None:
    """What got furthest above its chance, among yes-or-no questions if there are any."""
    return max(comparable(leaks), key=lambda leak: leak.estimate.mean - (leak.chance or 0.0), default=None)


def comparable(leaks: Sequence[Leak]) -> list[Leak]:
    """Leaks whose chance is known: the yes-or-no questions (chance one half) if there are any, else all of them."""
    known = [leak for leak in leaks if leak.chance is not None and leak.better == "lower"]
    return [leak for leak in known if leak.chance == 0.5] or known


@dataclass(frozen=True)
class Rebuilt:
    """Images that an attack rebuilt: the client whose are most like the originals, and the mean over all attacked.

    ``guess`` is what an image has that was guessed without the client's update.
    """

    by: str
    client: str
    ssim: float
    guess: float
    mean: Leak


def rebuilt(settings: Sequence[Setting]) -> Rebuilt | None:
    """The client that is worst off where attacks rebuild images, nearer than a guess if any is."""
    found = []
    for setting in settings:
        means = {leak.by: leak for leak in setting.leaks if leak.measure == "ssim" and leak.chance is not None}
        found += [Rebuilt(by, "", m.estimate.mean, m.chance or 0.0, m) for by, m in means.items()]
        for line in (line for cell in setting.cells for line in cell.attacks):
            value, guess, by = line.get("value"), line.get("chance"), str(line.get("by", ""))
            single = line.get("measure") == "ssim" and "client" in line and by in means
            if single and isinstance(value, float) and isinstance(guess, float):
                found.append(Rebuilt(by, str(line["client"]), value, guess, means[by]))
    return max(found, key=lambda image: (image.ssim > image.guess, image.ssim, image.client), default=None)


@dataclass(frozen=True)
class Pooled:
    """All that the tables, charts and sentences of a report need."""

    study: StoredStudy
    settings: tuple[Setting, ...]

    @cached_property
    def frame(self) -> pandas.DataFrame:
        """The tidy readings."""
        return frame_of(self.study)

    @cached_property
    def headline(self) -> str:
        """The utility measure to show when there is room for one."""
        return headline(self.study)

    @cached_property
    def better(self) -> str:
        """Which direction of the headline is good."""
        return self.study.measure(self.headline).better

    @cached_property
    def missing(self) -> list[Missing]:
        """What was asked for and is not there."""
        return missing_of(self.study)

    @cached_property
    def defences(self) -> list[str]:
        """The defences' labels, in the order of the study."""
        return list(dict.fromkeys(str(c.labels.get("defence", "")) for c in self.study.cells))

    @cached_property
    def axes(self) -> list[str]:
        """The labels that tell settings apart, the defence aside; one is always left."""
        names = [n for n in label_names(self.study) if n not in ("seed", "defence")]
        values = {n: {repr(c.labels.get(n, "")) for c in self.study.cells} for n in names}
        return [n for n in names if len(values[n]) > 1] or ["strategy"]

    def place(self, labels: Mapping[str, Any]) -> str:
        """Where a defence was tried, in one line."""
        return ", ".join(str(labels.get(n, "")) for n in self.axes)

    def baseline(self, setting: Setting) -> Setting | None:
        """The undefended federation with the same other labels."""
        same = (s for s in self.settings if s.undefended and s.elsewhere == setting.elsewhere)
        return next(same, None)


def pool(study: StoredStudy) -> Pooled:
    """Pool the seeds of every finished cell."""
    groups: dict[tuple[tuple[str, Any], ...], list[Stored]] = {}
    for cell in study.finished:
        groups.setdefault(cell.setting, []).append(cell)
    measure = headline(study)
    settings = (_setting(dict(key), tuple(cells), measure, study.measures) for key, cells in groups.items())
    return Pooled(study, tuple(settings))


def _setting(
    labels: Mapping[str, Any], cells: tuple[Stored, ...], measure: str, measures: Mapping[str, Measure]
) -> Setting:
    completed = [_completed(cell, measures) for cell in cells]
    promises, varied = _weakest([card.promises for card in completed])
    card = Card(
        " ".join(str(v) for v in labels.values()), promises,
        next((c.stamp for c in completed if c.stamp), ""),
        dropped=tuple(dict.fromkeys(d for c in completed for d in c.dropped)),
        broken=tuple(dict.fromkeys(b for c in completed for b in c.broken)), measures=tuple(measures.values()),
    )  # fmt: skip
    every = _leaks(completed, measures)
    return Setting(
        labels, cells, card, varied, _utility(cells, measure_of(measure, measures)),
        tuple(k for k in every if not only_drawn(k)), _measured(completed), tuple(k for k in every if only_drawn(k)),
    )  # fmt: skip


def _completed(cell: Stored, measures: Mapping[str, Measure]) -> Card:
    """A run's card with what attacks measured after it was written."""
    card = cell.card if cell.card is not None else Card("", ())
    readings = [Reading.of(line) for line in cell.attacks]
    bounds = tuple(r for r in readings if measure_of(r.measure, measures).is_bound)
    card = replace(
        card, measured=card.measured + bounds, leaks=card.leaks + tuple(r for r in readings if r not in bounds)
    )
    return replace(card, broken=tuple(dict.fromkeys(card.broken + violations(card))))


def _weakest(stacks: Sequence[tuple[Promise, ...]]) -> tuple[tuple[Promise, ...], bool]:
    """For each defence of the stack the promise that is weakest over seeds, and whether they differed."""

    def weakness(promise: Promise) -> float:
        return math.inf if promise.epsilon is None else promise.epsilon

    length = max((len(s) for s in stacks), default=0)
    columns = [[s[i] for s in stacks if i < len(s)] for i in range(length)]
    return tuple(max(column, key=weakness) for column in columns), any(len(set(column)) > 1 for column in columns)


def _utility(cells: Sequence[Stored], measure: Measure) -> Estimate | None:
    values = []
    for cell in cells:
        lines = [r for r in cell.readings if r["measure"] == measure.name]
        whole = [r for r in lines if r.get("client") is None] or lines
        end = max((r.get("round", -1) for r in whole), default=-1)
        last = [float(r["value"]) for r in whole if r.get("round", -1) == end]
        values += [sum(last) / len(last)] if last else []
    return pooled_estimate(values, measure)


def _leaks(completed: Sequence[Card], measures: Mapping[str, Measure]) -> tuple[Leak, ...]:
    groups: dict[tuple[str, str], list[list[Reading]]] = {}
    for card in completed:
        mine: dict[tuple[str, str], list[Reading]] = {}
        for reading in card.leaks:
            mine.setdefault((reading.by, reading.label), []).append(reading)
        for key, readings in mine.items():
            groups.setdefault(key, []).append([r for r in readings if r.client is None] or readings)
    found = []
    for (by, _), runs in groups.items():
        every = [r for run in runs for r in run]
        first, measure = every[0], measure_of(every[0].measure, measures)
        pooled = pooled_estimate([sum(r.value for r in run) / len(run) for run in runs], measure)
        if pooled is not None:
            lows, highs = [r.low for r in every if r.low is not None], [r.high for r in every if r.high is not None]
            ends = min(lows, default=None), max(highs, default=None)
            about = {k: v for k, v in first.about.items() if k not in BESIDE}
            found.append(Leak(by, first.measure, pooled, *ends, first.n, first.chance, measure.better, about))
    return tuple(found)


def _measured(completed: Sequence[Card]) -> tuple[Proven, ...]:
    groups: dict[tuple[str, str], list[Reading]] = {}
    for card in completed:
        for reading in card.measured:
            groups.setdefault((reading.label, reading.by), []).append(reading)
    found = []
    for (label, by), readings in groups.items():
        bounds = [r.low if r.low is not None else r.value for r in readings]
        found.append(Proven(by, readings[0].measure, label, min(bounds), max(bounds), readings[0].n))
    return tuple(found)
