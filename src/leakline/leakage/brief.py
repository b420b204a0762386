"""What people read first of an attack: the quoted measures of its strongest rule. Cards, terminals and pages ask here.

An attack may try many rules and keeps its ROC at many rates; all of that is stored, drawn and exported, and none of it
fits on a card. Which measures are quoted, and in which order, `leakline.measures` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from leakline.measures import Measure, measure_of
from leakline.readings import Fact, rule_of

from .guessing import QUOTED_FPRS

PATIENT = "patient"
"""The unit of figures that speak of single patients: they belong to no rule."""
FEW = 6
"""How many figures are shown of an attack that has none of the quoted measures."""


class Named(Protocol):
    """A figure of an attack."""

    @property
    def by(self) -> str:
        """The attack."""

    @property
    def measure(self) -> str:
        """What was measured."""

    @property
    def about(self) -> Mapping[str, Fact]:
        """By which rule, at which rate."""


Figure = TypeVar("Figure", bound=Named)


@dataclass(frozen=True)
class Brief(Generic[Figure]):
    """One attack in short: what to show, by which rule of how many, and how many figures are left out."""

    by: str
    shown: tuple[Figure, ...]
    rule: str
    rules: int
    left_out: int

    @property
    def rest(self) -> str:
        """What is not shown, in words; "" if all is."""
        best = f"the strongest of {self.rules} rules, and the highest of many looks good by luck too; "
        if not self.left_out:
            return ""
        return f"{best if self.rules > 1 else ''}{self.left_out} more figures are in the report"


def only_drawn(figure: Named) -> bool:
    """Whether a figure is a point of a ROC that nobody quotes: kept for its curve and for those who ask for it."""
    return figure.about.get("fpr") not in (None, *QUOTED_FPRS)


def brief(
    figures: Sequence[Figure], value: Callable[[Figure], float], describe: Callable[[str], Measure] = measure_of
) -> list[Brief[Figure]]:
    """Every attack in short, in the order in which they come.

    The strongest rule is the one with the largest AUC, or of the first quoted measure that there is. Where an attack
    wrote the best of its rules with the p-value that is due to such a choice (``about`` has a "choice"), that is shown
    as well. ``describe`` gives the measure of a name.
    """
    briefs = []
    for by in dict.fromkeys(figure.by for figure in figures):
        mine = [figure for figure in figures if figure.by == by]
        shown, rule, rules = _strongest(mine, value, describe)
        drawn = sum(only_drawn(figure) for figure in mine)
        briefs.append(Brief(by, shown, rule, rules, len(mine) - len(shown) - drawn))
    return briefs


def _strongest(
    mine: Sequence[Figure], value: Callable[[Figure], float], describe: Callable[[str], Measure]
) -> tuple[tuple[Figure, ...], str, int]:
    def place(figure: Figure) -> tuple[int, float]:
        return describe(figure.measure).quoted, float(figure.about.get("fpr", 0.0))

    quoted = sorted((f for f in mine if place(f)[0] and not only_drawn(f)), key=place)
    ranked: dict[str, float] = {}
    for figure in quoted:
        if place(figure) == place(quoted[0]) and "choice" not in figure.about:
            rule = rule_of(figure.about)
            ranked[rule] = max(value(figure), ranked.get(rule, value(figure)))
    if not ranked:
        return tuple(mine[:FEW]), "", 1
    top = max(ranked, key=lambda rule: ranked[rule])
    shown = (
        f
        for f in quoted
        if rule_of(f.about) == top
        or f.about.get("unit") == PATIENT
        or ("choice" in f.about and value(f) == ranked[top])
    )  # fmt: skip
    return tuple(shown), top, len(ranked)
