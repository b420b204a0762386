"""What the tables of paper 000 take from a store: finished cells, figures of the last round, who holds what."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from leakline.errors import StoreError
from leakline.readings import Reading
from leakline.results.frames import Estimate
from leakline.results.stored import Stored, read_study

CLASSES = 4


def finished(root: Path, scenario: str = "") -> list[Stored]:
    """Finished cells; those of one scenario where the study has scenarios."""
    cells = read_study(root).finished
    return [c for c in cells if not scenario or c.labels.get("scenario", scenario) in (scenario, "")]


def group(cells: Iterable[Stored], *labels: str) -> dict[tuple[str, ...], list[Stored]]:
    """Cells by the values of some labels."""
    found: dict[tuple[str, ...], list[Stored]] = {}
    for cell in cells:
        found.setdefault(tuple(str(cell.labels.get(name, "")) for name in labels), []).append(cell)
    return found


def by_setting(cells: Iterable[Stored]) -> dict[tuple[str, ...], list[Stored]]:
    """Cells by strategy and defence."""
    return group(cells, "strategy", "defence")


def final(cell: Stored, measure: str) -> float:
    """A figure of the last round, or NaN."""
    lines = [line for line in cell.readings if line["measure"] == measure and "client" not in line]
    return float(lines[-1]["value"]) if lines else math.nan


def accuracies(cell: Stored) -> list[float]:
    """Accuracy by round: of the clients' test data by examples where clients judged, else of the server's."""
    held = {p["name"]: int(p["test"]) for p in holders(cell)}
    own: dict[int, list[tuple[float, int]]] = {}
    whole: dict[int, float] = {}
    for line in cell.readings:
        if line["measure"] == "accuracy" and "client" in line:
            own.setdefault(int(line["round"]), []).append((float(line["value"]), held.get(str(line["client"]), 1)))
        elif line["measure"] == "accuracy":
            whole[int(line["round"])] = float(line["value"])
    if own:
        return [sum(a * n for a, n in own[r]) / sum(n for _, n in own[r]) for r in sorted(own)]
    return [whole[r] for r in sorted(whole)]


def holders(cell: Stored) -> list[Mapping[str, Any]]:
    """The stored rows of who holds what."""
    found = cell.about.get("partition", [])
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []


def partition(cells: Iterable[Stored]) -> dict[str, tuple[int, ...]]:
    """Who holds how many of each class, from the first run that says so."""
    for cell in cells:
        if rows := holders(cell):
            if any(len(row["counts"]) != CLASSES for row in rows):
                raise StoreError(
                    f"this run has {len(rows[0]['counts'])} classes, the paper's table has {CLASSES}",
                    fix="ask for it of a run of metric-privacy or client-inference",
                )
            return {str(row["name"]): tuple(int(n) for n in row["counts"]) for row in rows}
    return {}


def totals(parts: list[tuple[int, ...]]) -> tuple[Any, ...]:
    """The sum over all classes, and the sum of each."""
    if not parts:
        return (None,) * 5
    classes = [sum(column) for column in zip(*parts, strict=True)]
    return (sum(classes), *classes)


def attack_figure(cells: Iterable[Stored], measure: str, **about: str) -> Estimate | None:
    """A figure over worlds, with the attack's own t-interval; of the first attack that gives it."""
    for line in (line for cell in cells for line in cell.attacks):
        told = line.get("about", {})
        if line["measure"] == measure and about == {key: told.get(key) for key in about}:
            reading = Reading.of(line)
            if reading.low is None or reading.high is None or "sd" not in told:
                return Estimate(reading.value)
            return Estimate(reading.value, float(told["sd"]), reading.low, reading.high, reading.n or 1)
    return None


def interval(line: Mapping[str, Any] | None) -> str:
    """A value with its interval, as text."""
    if line is None:
        return ""
    value = f"{float(line['value']):.3f}"
    low, high = line.get("low"), line.get("high")
    return value if low is None or high is None else f"{value} [{float(low):.3f}, {float(high):.3f}]"
