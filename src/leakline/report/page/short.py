"""A card that fits a screen: what a privacy officer must read stands on it, the rest is named and one step away."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

MOST_LINES, WIDTH = 25, 80
"""A card's lines on a terminal of so many columns, its title and its last line included."""

Row = tuple[str, str]

_FOLDED: tuple[tuple[str, int], ...] = (
    ("assumes", 0), ("replace-one", 0), ("attack", 2), ("attacks", 2), ("dropped", 1), ("utility", 2), ("audit", 1),
    ("not covered", 2), ("measured", 1), ("attack", 1), ("attacks", 1), ("not covered", 1), ("instead", 0),
    ("utility", 1), ("mind", 1), ("assumed", 1), ("protects", 1), ("against", 1), ("promise", 1), ("in words", 1),
    ("not covered", 0), ("dropped", 0), ("!", 3),
)  # fmt: skip
"""What is left out first where a card is too long: of these labels all lines but so many (of each attack)."""


def short(rows: Sequence[Row], most: int = MOST_LINES, width: int = WIDTH) -> tuple[list[Row], list[Row]]:
    """The rows that fit, in their order, and those that do not; as much as fits is shown."""
    shown, rest = list(enumerate(rows)), list[tuple[int, Row]]()
    for label, kept in _FOLDED:
        if _fits(shown, rest, most, width):
            break
        out = _beyond(shown, label, kept)
        shown, rest = [item for item in shown if item not in out], sorted([*rest, *out])
    while len(shown) > 1 and not _fits(shown, rest, most, width):
        shown, rest = shown[:-1], sorted([*rest, shown[-1]])
    return [row for _, row in shown], [row for _, row in rest]


def height(rows: Sequence[Row], width: int = WIDTH) -> int:
    """Lines that rows take on a terminal, with labels in a column of their own."""
    room = max(width - max((len(label) for label, _ in rows), default=0) - 2, 20)
    return sum(max(len(textwrap.wrap(text, room)), 1) for _, text in rows)


def _fits(shown: Sequence[tuple[int, Row]], rest: Sequence[object], most: int, width: int) -> bool:
    return 1 + height([row for _, row in shown], width) + bool(rest) <= most


def _beyond(shown: Sequence[tuple[int, Row]], label: str, kept: int) -> list[tuple[int, Row]]:
    """Rows of a label beyond the first so many; those of an attack are counted by attack."""
    seen: dict[str, int] = {}
    out = []
    for place, (name, text) in shown:
        if name.partition(" (")[0] == label:
            whose = text.partition(":")[0] if label.startswith("attack") else ""
            seen[whose] = seen.get(whose, 0) + 1
            out += [(place, (name, text))] if seen[whose] > kept else []
    return out
