"""One number with its interval: what studies, attacks and reports have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

Fact = str | float

BESIDE = frozenset({
    "p", "sd", "iterations", "seconds", "rules", "chosen", "decoys", "pool", "exposed", "labels", "ceiling", "defence",
    "situation", "releases", "promised", "confidence", "delta", "angle", "ratio_1", "ratio_2", "moved", "seat", "blind",
    "effort", "needs", "work", "misfit", "worlds", "patients", "risk", "parameters", "records", "known",
    "nearest", "nearest-again",
})  # fmt: skip
"""Keys of ``about`` that were found with the number. All others tell one figure of an attack from another."""


@dataclass(frozen=True)
class Reading:
    """One number: what was measured, by whom, where, with its interval.

    ``measure`` is a word of `leakline.measures`, which knows its meaning and which direction is good. ``about`` says
    what the number is about (the rule, the rate fpr, the unit, the epochs ...) and what was found with it (`BESIDE`:
    p, sd, iterations, seconds ...). ``chance`` is what blind guessing or no leak would give; of utility, what the best
    constant answer gets (`leakline.utility.baseline`). ``note`` is a sentence for people; nothing is read out of it.
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
    about: Mapping[str, Fact] = field(default_factory=dict, hash=False)
    note: str = ""

    @property
    def label(self) -> str:
        """The figure's name as people read and type it."""
        return label_of(self.measure, self.about)

    def line(self) -> dict[str, Any]:
        """As one line of a store, without what is not known."""
        return {k: v for k, v in asdict(self).items() if v is not None and v != "" and v != {}}

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Reading:
        """The inverse of `line`; other keys of a store's line are left out."""
        return cls(**{f.name: line[f.name] for f in fields(cls) if f.name in line})


def too_little(about: Mapping[str, Fact]) -> str:
    """Says that an attack was given less work than it is known to need, so that its failure says nothing; else ""."""
    given, needed = about.get("effort"), about.get("needs")
    if not isinstance(given, int | float) or not isinstance(needed, int | float) or given >= needed:
        return ""
    return f"given {work_of(about)}"


def work_of(about: Mapping[str, Fact]) -> str:
    """How much work an attack was given beside how much it is known to need; "" where it does not say."""
    given, needed = about.get("effort"), about.get("needs")
    if not isinstance(given, int | float) or not isinstance(needed, int | float):
        return ""
    return f"{given:,g} {about.get('work', 'steps')} where it is known to need {needed:,g}"


def label_of(measure: str, about: Mapping[str, Fact] | None = None) -> str:
    """A figure's name: ``auc (loss)``, ``tpr at fpr=0.01 (rmia)``, ``mu per client``, ``auc (best, epochs=2)``."""
    told = dict(about or {})
    unit, fpr = told.pop("unit", ""), told.pop("fpr", None)
    rule = rule_of(told)
    per = f" per {unit}" if unit else ""
    rate = f" at fpr={fpr:g}" if isinstance(fpr, int | float) else ""
    return f"{measure}{per}{rate}{f' ({rule})' if rule else ''}"


def rule_of(about: Mapping[str, Fact]) -> str:
    """What tells the ways of an attack apart, in words: all of ``about`` but the unit, the rate and what is beside."""
    kept = {k: v for k, v in about.items() if k not in BESIDE and k not in ("unit", "fpr")}
    return ", ".join(v if isinstance(v, str) else f"{k}={v:g}" for k, v in kept.items())
