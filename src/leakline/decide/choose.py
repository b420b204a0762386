"""Which defences keep the limits that somebody set, judged by the cautious end of each interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leakline.decide.limits import Figure, Limit, check_names, no_better_than, pick, places_of, remark_on
from leakline.results import Results
from leakline.text import number


@dataclass(frozen=True)
class Judged:
    """One limit against one setting's figure; ``worst`` is the end of the interval that was held against it."""

    limit: Limit
    figure: Figure | None
    worst: float | None

    @property
    def kept(self) -> bool:
        """Whether even the cautious end keeps the limit."""
        return self.worst is not None and self.limit.holds(self.worst)

    @property
    def short(self) -> float:
        """By which share of the limit it is missed; 0 if kept, infinite if it was not measured."""
        if self.kept:
            return 0.0
        if self.worst is None or not math.isfinite(self.worst):
            return math.inf
        return abs(self.worst - self.limit.bound) / max(abs(self.limit.bound), 1e-12)

    @property
    def missing(self) -> str:
        """What is missing, in words; "" if the limit is kept."""
        if self.kept:
            return ""
        if self.figure is None or self.worst is None:
            return f"{self.limit.name} was not measured"
        if not math.isfinite(self.worst):
            return f"{self.figure.name}: {self.figure.text}, wanted {self.limit.sign} {self.limit.bound:g}"
        value = self.figure.value
        most = "up to" if self.limit.sign[0] == "<" else "down to"
        text = f"{self.figure.name} {number(value, 3)}, {most} {number(self.worst, 3)}"
        if self.worst == value:
            text = f"{self.figure.name} is {self.figure.text}"
        gap = abs(self.worst - self.limit.bound)
        better = "; the estimate alone would do: more seeds or trials may settle it" if self.limit.holds(value) else ""
        return f"{text}, wanted {self.limit.sign} {self.limit.bound:g} ({number(gap, 3)} missing{better})"


@dataclass(frozen=True)
class Candidate:
    """One setting against all limits."""

    where: str
    defence: str
    figures: Mapping[str, Figure]
    judged: tuple[Judged, ...]

    @property
    def useless(self) -> str:
        """Says that the model is no better than a constant answer; "" where it is, or where that is not known."""
        return no_better_than(self.figures)

    @property
    def remark(self) -> str:
        """Says of a model that is worth something that its headline is no better than a constant answer; else ""."""
        return "" if self.useless else remark_on(self.figures)

    @property
    def missing(self) -> tuple[str, ...]:
        """What is missing, in words."""
        worth = (f"the model is {self.useless}",) if self.useless else ()
        return (*(j.missing for j in self.judged if j.missing), *worth)

    @property
    def kept(self) -> bool:
        """Whether every limit is kept, by a model that is better than a constant answer."""
        return not self.missing

    @property
    def bare(self) -> tuple[str, ...]:
        """Figures that have no interval, so that the value itself was held against the limit."""
        found = (j.figure for j in self.judged if j.figure is not None and j.limit.name != "epsilon")
        return tuple(f.name for f in found if f.low is None and f.own is None)


def choose(results: Results, limits: Sequence[Limit]) -> list[Candidate]:
    """All settings, the best first: those that keep every limit by utility, then the others by how little they miss.

    A model that is no better than a constant answer keeps no limit worth keeping: it comes after all others. What was
    not measured or not promised is infinitely far from its limit, and comes after what misses several by a little.
    """
    places = places_of(results)
    check_names(limits, places)
    candidates = [
        Candidate(
            where, defence, figures,
            tuple(judge(limit, pick(limit, figures)) for limit in limits if limit.defence in ("", defence)),
        )
        for where, defence, figures in places
    ]  # fmt: skip
    sign = 1 if results.better == "higher" else -1

    def rank(one: Candidate) -> tuple[bool, bool, bool, int, float, float]:
        utility = one.figures.get(results.headline)
        useful = sign * utility.value if utility is not None else -math.inf
        missed = [j.short for j in one.judged if not j.kept]
        far = math.inf in missed  # no promise is infinitely far from any
        return (not one.kept, bool(one.useless), far, len(missed), max(missed, default=0.0), -useful)

    return sorted(candidates, key=rank)


def judge(limit: Limit, figure: Figure | None) -> Judged:
    """Hold the end of the interval that is worst for the limit against it: high for "at most", low for "at least"."""
    if figure is None or math.isnan(figure.value):
        return Judged(limit, None, None)
    low, high = figure.cautious
    return Judged(limit, figure, high if limit.sign[0] == "<" else low)
