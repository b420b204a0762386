"""One number with its interval: what studies, attacks and reports have in common."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

VERDICT = "verdict"
"""The measure of what an audit says in words: 1 is a broken promise, 0.5 a suspicion, 0 a claim no game can test."""


@dataclass(frozen=True)
class Reading:
    """One number: what was measured, by whom, where, with its interval.

    ``chance`` is what blind guessing or no leak would give; ``better`` is the direction that is good for the people
    protected (attacks) or served (utility).
    """

    measure: str
    value: float
    low: float | None = None
    high: float | None = None
    n: int | None = None
    by: str = "utility"
    round: int | None = None
    client: str | None = None
    chance: float | None = None
    better: str = "higher"
    note: str = ""

    def line(self) -> dict[str, Any]:
        """As one line of a store, without what is not known."""
        return {k: v for k, v in asdict(self).items() if v is not None and v != ""}
