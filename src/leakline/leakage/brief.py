"""What people read first of an attack: the quoted measures of its strongest rule. Cards, terminals and pages ask here.

A measure is named ``what:rule`` (``auc:loss:inside``). An attack may try many rules and keeps its ROC at many rates;
all of that is stored, drawn and exported, and none of it fits on a card.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from .guessing import QUOTED_FPRS

QUOTED = ("auc", "balanced-accuracy", *(f"tpr@fpr={fpr}" for fpr in QUOTED_FPRS))
FEW = 6
"""How many figures are shown of an attack that has none of the quoted measures."""


class Named(Protocol):
    """A figure of an attack."""

    @property
    def by(self) -> str:
        """The attack."""

    @property
    def measure(self) -> str:
        """The figure's name."""


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


def only_drawn(measure: str) -> bool:
    """Whether a figure is a point of a ROC that nobody quotes: kept for its curve and for those who ask for it."""
    what = measure.partition(":")[0]
    return what.startswith("tpr@fpr=") and what not in QUOTED


def brief(figures: Sequence[Figure], value: Callable[[Figure], float]) -> list[Brief[Figure]]:
    """Every attack in short, in the order in which they come.

    The strongest rule is the one with the largest AUC, or of the first quoted measure that there is. Where an attack
    wrote the best of its rules with the p-value that is due to such a choice (``auc:best``), that is shown as well.
    """
    found = []
    for by in dict.fromkeys(figure.by for figure in figures):
        mine = [figure for figure in figures if figure.by == by]
        shown, rule, rules = _strongest(mine, value)
        drawn = sum(only_drawn(figure.measure) for figure in mine)
        found.append(Brief(by, shown, rule, rules, len(mine) - len(shown) - drawn))
    return found


def _strongest(mine: Sequence[Figure], value: Callable[[Figure], float]) -> tuple[tuple[Figure, ...], str, int]:
    parts = [(figure, *figure.measure.partition(":")[::2]) for figure in mine]
    leading = next((what for what in QUOTED if any(what == w for _, w, _ in parts)), "")
    ranked: dict[str, float] = {}
    for figure, what, rule in parts:
        if what == leading and not _is_choice(rule):
            ranked[rule] = max(value(figure), ranked.get(rule, value(figure)))
    if not ranked:
        return tuple(mine[:FEW]), "", 1
    top = max(ranked, key=lambda rule: ranked[rule])
    shown = [
        figure
        for wanted in QUOTED
        for figure, what, rule in parts
        if what == wanted and (rule == top or (_is_choice(rule) and value(figure) == ranked[top]))
    ]
    return tuple(shown), top, len(ranked)


def _is_choice(rule: str) -> bool:
    return rule.partition(":")[0] == "best"
