"""The round that is best by validation data, which paper 004 reports, beside the last one, which its promise covers."""

from __future__ import annotations

from typing import Any

from leakline.papers.intermediaries.arms import BEST, OWN, arms, difference, percent
from leakline.papers.intermediaries.tables import SEEDS, measures_of, task_of
from leakline.report.papers import Tables
from leakline.results import Cell, Results
from leakline.results.estimate import estimate
from leakline.results.table import Table

CHOSEN = "†"
"""Stands behind whatever was chosen by validation data."""


def best_round(results: Results) -> Table:
    """Utility after the last round, and after the round that the server's validation data call the best."""
    task = task_of(results)
    name = task.shown[0]
    rows: list[tuple[Any, ...]] = []
    for arm in arms(results, (BEST, *OWN)):
        measure = measures_of([arm], task)[0]
        chosen = {c.labels.get("seed"): best for c in arm.cells if (best := _best(c)) is not None}
        if not chosen:
            continue
        then = {c.labels.get("seed"): value for c in arm.cells if (value := _at(c, measure)) is not None}
        rows.append((
            arm.scenario, arm.strategy, arm.name, arm.utility(measure), estimate([r + 1 for r in chosen.values()]),
            percent(list(then.values())), difference(then, arm.by_seed(measure)),
        ))  # fmt: skip
    columns = (
        "scenario", "strategy", "arm", f"{name}, last round", f"best round by validation{CHOSEN}",
        f"{name}, that round{CHOSEN}", f"gained by choosing{CHOSEN}",
    )  # fmt: skip
    note = (
        f"{SEEDS}, percent; {CHOSEN} not covered by any promise: chosen by un-noised validation data. Ours are the "
        "server's own, and who is in them has no promise; the paper's are its clients' own, and it counts nothing for "
        "that. Gained: paired by seed, in points"
    )
    return Table("The best round by validation data", columns, tuple(rows), note)


TABLES: Tables = {"intermediaries/best-round": best_round}


def _by_round(cell: Cell, measure: str) -> dict[int, float]:
    found = (r for r in cell.readings if r.measure == measure and r.client is None and r.round is not None)
    return {int(r.round): float(r.value) for r in found if r.round is not None}


def _best(cell: Cell) -> int | None:
    """The first of the rounds that are best by validation data; None where nobody judged by them."""
    judged = _by_round(cell, "validation")
    return max(judged, key=lambda index: (judged[index], -index)) if judged else None


def _at(cell: Cell, measure: str) -> float | None:
    """A measure in that round."""
    best = _best(cell)
    return None if best is None else _by_round(cell, measure).get(best)
