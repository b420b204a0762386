"""Settings: cells with their seeds pooled, each with one card, its leaks and its utility.

A promise that differs between seeds (clients dropped, clips that adapted) is pooled to the weakest one: a card must
hold for every seed it speaks for. Measured lower bounds are never averaged into one; their range is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from leakline.cards import Card, Promise, number, violations
from leakline.leakage.brief import only_drawn
from leakline.measures import MEASURES, Measure, measure_of
from leakline.readings import BESIDE, Fact, Reading, label_of, too_little
from leakline.results.cell import Cell, whole
from leakline.results.estimate import Estimate, over_seeds
from leakline.utility.baseline import BLIND, answer_of, quoted, remark

_T = TypeVar("_T")
SIGNIFICANT = 0.05
"""A p-value up to which guessing is no explanation: what a 95 % interval that leaves chance out says as well."""


def qualified(by: str, label: str) -> str:
    """A figure's full name: "accuracy" for utility, "loss-threshold.tpr at fpr=0.01" for an attack's."""
    return label if by == "utility" else f"{by}.{label}"


def groups_of(things: Iterable[_T], key: Callable[[_T], Hashable]) -> dict[Any, list[_T]]:
    """Things by a key, in the order in which keys first come."""
    groups: dict[Any, list[_T]] = {}
    for thing in things:
        groups.setdefault(key(thing), []).append(thing)
    return groups


@dataclass(frozen=True)
class Leak:
    """What one attack got under one setting, over seeds."""

    by: str
    measure: str
    estimate: Estimate
    readings: tuple[Reading, ...]
    """Of the whole federation in each seed, or else of its clients."""
    better: str
    """The direction that is good for the people protected."""

    @property
    def about(self) -> Mapping[str, Fact]:
        """What tells it from the attack's other figures."""
        return {key: fact for key, fact in self.readings[0].about.items() if key not in BESIDE}

    @property
    def label(self) -> str:
        """The measure with its rule and rate."""
        return label_of(self.measure, self.about)

    @property
    def low(self) -> float | None:
        """The lowest end of the single runs' own intervals."""
        return min((r.low for r in self.readings if r.low is not None), default=None)

    @property
    def high(self) -> float | None:
        """The highest end of the single runs' own intervals."""
        return max((r.high for r in self.readings if r.high is not None), default=None)

    @property
    def n(self) -> int | None:
        """Trials in one run."""
        return self.readings[0].n

    @property
    def chance(self) -> float | None:
        """What blind guessing gives."""
        return self.readings[0].chance

    @property
    def yes_or_no(self) -> bool:
        """Whether it is how often a yes-or-no question is answered right; a likeness may have a chance of 0.5 too."""
        known = MEASURES.get(self.measure)
        return self.chance == 0.5 and (known is None or known.is_share)

    @property
    def name(self) -> str:
        """The figure's full name."""
        return qualified(self.by, self.label)

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """That of the single runs over their own trials, averaged over runs; where runs have none, over seeds.

        Seeds that happen to agree would say more than their trials know, and seeds that differ hide what each shows.
        """
        return own_interval(self.readings) or (self.estimate.low, self.estimate.high)

    @property
    def p(self) -> float | None:
        """The p-value against blind guessing, the smallest over runs times their number; None where a run has none."""
        values = [r.about.get("p") for r in self.readings]
        known = [float(v) for v in values if isinstance(v, int | float)]
        return min(1.0, len(known) * min(known)) if known and len(known) == len(values) else None

    @property
    def short(self) -> str:
        """Says that the attack was given less work than it is known to need; "" where it was given enough."""
        return next((text for r in self.readings if (text := too_little(r.about))), "")

    @property
    def is_chance(self) -> bool | None:
        """Whether blind guessing explains it: by its p-value where it has one, else by its interval.

        None if that cannot be said, and of an attack that failed with less work than it needs.
        """
        low, high = self.interval
        if self.p is not None:
            explained = self.p > SIGNIFICANT
        elif self.chance is not None and low is not None and high is not None:
            explained = low <= self.chance <= high
        else:
            return None
        return None if explained and self.short else explained


@dataclass(frozen=True)
class Bound:
    """What an audit certified: the smallest and largest lower bound over seeds, and the trials of one."""

    measure: str
    label: str
    by: str
    low: float
    high: float
    n: int | None

    @property
    def name(self) -> str:
        """The figure's full name."""
        return qualified(self.by, self.label)

    @property
    def text(self) -> str:
        """In a few words."""
        same = number(self.low) == number(self.high)
        span = number(self.low) if same else f"{number(self.low)} to {number(self.high)} (over seeds)"
        return f"{self.label} >= {span} ({self.by}, {self.n or '?'} trials)"


@dataclass(frozen=True)
class Setting:
    """One square of the grid with its seeds pooled."""

    labels: Mapping[str, Any]
    cells: tuple[Cell, ...]
    card: Card
    varied: bool
    utility: Estimate | None
    leaks: tuple[Leak, ...]
    measured: tuple[Bound, ...]
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
        return None if self._best is None else self._best.epsilon

    @property
    def unit(self) -> str:
        """Whom that epsilon is for; "" without one."""
        return "" if self._best is None else self._best.unit

    @property
    def _best(self) -> Promise | None:
        finite = [p for p in self.card.leading if p.epsilon is not None and math.isfinite(p.epsilon)]
        return min(finite, key=lambda p: p.epsilon if p.epsilon is not None else math.inf, default=None)

    @property
    def proved(self) -> Bound | None:
        """The largest epsilon that an audit certified."""
        bounds = [b for b in self.measured if b.measure == "epsilon"]
        return max(bounds, key=lambda b: b.high, default=None)

    @property
    def remark(self) -> str:
        """Says that the model, or its headline, is no better than a constant answer; "" where it is or is not known."""
        return remark(self.card.utility)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The card's stamp, and the promises that were measured to be broken."""
        return ((self.card.stamp,) if self.card.stamp else ()) + self.card.broken

    @property
    def worst(self) -> Leak | None:
        """The attack that got furthest: among yes-or-no questions if there are any, else furthest above chance."""
        return strongest(self.leaks)


def strongest(leaks: Sequence[Leak]) -> Leak | None:
    """What got furthest above its chance, among yes-or-no questions if there are any.

    What can be told from guessing goes first: of many figures over few trials the largest is large by chance.
    """

    def far(leak: Leak) -> tuple[bool, float]:
        above = leak.estimate.mean - (leak.chance or 0.0)
        return leak.is_chance is False and above > 0, above

    return max(comparable(leaks), key=far, default=None)


def comparable(leaks: Sequence[Leak]) -> list[Leak]:
    """Leaks whose chance is known: the yes-or-no questions (chance one half) if there are any, else all of them."""
    known = [leak for leak in leaks if leak.chance is not None and leak.better == "lower"]
    return [leak for leak in known if leak.yes_or_no] or known


@dataclass(frozen=True)
class Rebuilt:
    """Images that an attack rebuilt: the client whose are most like the originals, and the mean over all attacked.

    ``guess`` is what an image has that was guessed without the client's update. ``again``: the share of the client's
    images that are found again among all images, where somebody looked; ``again_mean`` that of all attacked.
    ``seat``: where the attacker sits. ``ends``: the interval over the client's ``count`` images. ``nearest``: the image
    of the client's that is most like its original, and whether that very one is found again.
    """

    by: str
    client: str
    ssim: float
    guess: float
    mean: Leak
    again: float | None = None
    seat: str = "server"
    again_mean: float | None = None
    ends: tuple[float | None, float | None] = (None, None)
    count: int = 0
    nearest: float | None = None
    nearest_again: bool | None = None


def rebuilt(settings: Sequence[Setting], seat: str = "") -> Rebuilt | None:
    """The client that is worst off where attacks rebuild images, nearer than a guess if any is; of one seat, or any."""
    found = []
    for setting in settings:
        means = {leak.by: leak for leak in setting.leaks if leak.measure == "ssim" and leak.chance is not None}
        found += [_rebuilt(m.readings[0], by, "", m.estimate.mean, m, setting) for by, m in means.items()]
        for r in (r for cell in setting.cells for r in cell.attacks):
            if r.measure == "ssim" and r.client is not None and r.chance is not None and r.by in means:
                found.append(_rebuilt(r, r.by, r.client, r.value, means[r.by], setting))
    kept = [image for image in found if seat in ("", image.seat)]
    return max(kept, key=lambda image: (image.ssim > image.guess, image.ssim, image.client), default=None)


def _rebuilt(reading: Reading, by: str, client: str, value: float, mean: Leak, setting: Setting) -> Rebuilt:
    same = [r for cell in setting.cells for r in cell.attacks if r.by == by and r.measure == "iip-exact"]
    mine = (r.value for r in same if (r.client or "") == client and r.round == reading.round)
    nearest, found = (reading.about.get(name) for name in ("nearest", "nearest-again"))
    return Rebuilt(
        by, client, value, reading.chance or 0.0, mean, next(mine, None), str(reading.about.get("seat", "server")),
        next((r.value for r in same if r.client is None), None), (reading.low, reading.high), reading.n or 0,
        float(nearest) if nearest is not None else None, bool(found) if found is not None else None,
    )  # fmt: skip


def pool(cells: Iterable[Cell], measure: str, measures: Mapping[str, Measure]) -> tuple[Setting, ...]:
    """Pool the seeds of cells, with ``measure`` as their utility."""
    groups = groups_of(cells, lambda cell: cell.setting)
    return tuple(_setting(dict(key), tuple(seeds), measure, measures) for key, seeds in groups.items())


def _setting(
    labels: Mapping[str, Any], cells: tuple[Cell, ...], measure: str, measures: Mapping[str, Measure]
) -> Setting:
    completed = [_completed(cell, measures) for cell in cells]
    promises, varied = _weakest([card.promises for card in completed])
    card = Card(
        " ".join(str(v) for v in labels.values()), promises,
        next((c.stamp for c in completed if c.stamp), ""),
        dropped=tuple(dict.fromkeys(d for c in completed for d in c.dropped)),
        broken=tuple(dict.fromkeys(b for c in completed for b in c.broken)), measures=tuple(measures.values()),
        utility=quoted([r for n in _measures(cells) if (r := pooled(cells, measure_of(n, measures))) is not None]),
        chosen=next((c.chosen for c in completed if c.chosen), ""),
    )  # fmt: skip
    every = _leaks(completed, measures)
    return Setting(
        labels, cells, card, varied, utility_of(cells, measure_of(measure, measures)),
        tuple(k for k in every if not only_drawn(k)), _measured(completed),
        tuple(k for k in every if only_drawn(k)),
    )  # fmt: skip


def _completed(cell: Cell, measures: Mapping[str, Measure]) -> Card:
    """A run's card with what attacks measured after it was written."""
    card = cell.card if cell.card is not None else Card("", ())
    bounds = tuple(r for r in cell.attacks if measure_of(r.measure, measures).is_bound)
    leaks = tuple(r for r in cell.attacks if not measure_of(r.measure, measures).is_bound)
    card = replace(card, measured=card.measured + bounds, leaks=card.leaks + leaks)
    return replace(card, broken=tuple(dict.fromkeys(card.broken + violations(card))))


def _weakest(stacks: Sequence[tuple[Promise, ...]]) -> tuple[tuple[Promise, ...], bool]:
    """For each defence of the stack the promise that is weakest over seeds, and whether they differed."""

    def weakness(promise: Promise) -> float:
        return math.inf if promise.epsilon is None else promise.epsilon

    length = max((len(s) for s in stacks), default=0)
    columns = [[s[i] for s in stacks if i < len(s)] for i in range(length)]
    return tuple(max(column, key=weakness) for column in columns), any(len(set(column)) > 1 for column in columns)


def utility_of(cells: Sequence[Cell], measure: Measure) -> Estimate | None:
    """A utility measure after the last round, over seeds."""
    runs = [[float(r.value) for r in cell.final(measure.name)] for cell in cells]
    return over_seeds(measure, [sum(values) / len(values) for values in runs if values])


def pooled(cells: Sequence[Cell], measure: Measure) -> Reading | None:
    """A utility measure after the last round as one reading: its mean over seeds, beside what a constant answer gets.

    Its interval is that of the single runs over their test examples, averaged over runs: it asks whether these models
    are better than the constant answer, and two seeds' t-interval would not know. Where runs have none, over seeds.
    """
    mean = utility_of(cells, measure)
    ends = [r for cell in cells for r in cell.final(measure.name)]
    if mean is None:
        return None
    low, high = own_interval(ends) or (mean.low, mean.high)
    chances = [r.chance for r in ends if r.chance is not None]
    known = bool(chances) and len(chances) == len(ends)
    answers = {answer_of(r) for r in ends}
    return Reading(
        measure.name, mean.mean, low, high, ends[0].n,
        chance=sum(chances) / len(chances) if known else None,
        about={BLIND: answers.pop() if len(answers) == 1 else "always answering the commonest class"} if known else {},
    )  # fmt: skip


def own_interval(readings: Sequence[Reading]) -> tuple[float, float] | None:
    """The ends of single runs' own intervals, averaged over runs; None where one has none."""
    spans = [(r.low, r.high) for r in readings if r.low is not None and r.high is not None]
    if not spans or len(spans) < len(readings):
        return None
    return sum(low for low, _ in spans) / len(spans), sum(high for _, high in spans) / len(spans)


def _measures(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(r.measure for cell in cells for r in cell.readings))


def _leaks(completed: Sequence[Card], measures: Mapping[str, Measure]) -> list[Leak]:
    groups: dict[tuple[str, str], list[list[Reading]]] = {}
    for card in completed:
        for key, readings in groups_of(card.leaks, lambda r: (r.by, r.label)).items():
            groups.setdefault(key, []).append(whole(readings))
    leaks = []
    for runs in groups.values():
        every = tuple(r for run in runs for r in run)
        measure = measure_of(every[0].measure, measures)
        pooled = over_seeds(measure, [sum(r.value for r in run) / len(run) for run in runs])
        if pooled is not None:
            leaks.append(Leak(every[0].by, every[0].measure, pooled, every, measure.better))
    return leaks


def _measured(completed: Sequence[Card]) -> tuple[Bound, ...]:
    bounds = []
    for same in groups_of((r for card in completed for r in card.measured), lambda r: (r.label, r.by)).values():
        lows = [r.low if r.low is not None else r.value for r in same]
        bounds.append(Bound(same[0].measure, same[0].label, same[0].by, min(lows), max(lows), same[0].n))
    return tuple(bounds)
