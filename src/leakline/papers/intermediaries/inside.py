"""The honest competitor of paper 004: DP-SGD inside each hospital, a promise to its patients and not to itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leakline.papers.intermediaries.arms import INSIDE, NETWORKS, arms, percent
from leakline.papers.intermediaries.tables import NO_PROMISE, SEEDS, measures_of, task_of
from leakline.report.papers import Tables
from leakline.results import Cell, Results
from leakline.results.settings import groups_of
from leakline.results.table import Table


def inside(results: Results) -> Table:
    """What a promise to one patient (or record) costs, beside promises to a whole client; both units named."""
    task = task_of(results)
    rows: list[tuple[Any, ...]] = []
    for arm in sorted([*arms(results), *arms(results, NETWORKS)], key=lambda a: (a.strategy, a.mu or 0.0, a.split)):
        first, second = measures_of([arm], task)
        epsilon = "" if arm.client_epsilon is None else f"{arm.client_epsilon:,.1f}" + "*" * arm.from_data
        unit = "nobody" if arm.z is None else "client"
        rows.append((
            arm.scenario, arm.strategy, arm.name, unit, epsilon, results.delta if epsilon else None,
            arm.utility(first), arm.utility(second),
        ))  # fmt: skip
    cells = results.finished.where(scenario=lambda name: str(name).startswith(INSIDE)).cells
    for (scenario, strategy, name), some in groups_of(cells, _setting).items():
        given = _inner(some[0])
        first, second = (_utility(some, measure) for measure in _measures(some, task.measures))
        rows.append((scenario, strategy, name, *_promise(given), first, second))
    columns = (
        "scenario", "strategy", "arm", "promised to one", "epsilon of that unit", "delta", task.shown[0], task.shown[1]
    )  # fmt: skip
    note = (
        f"{SEEDS}, percent, after the last round; a promise to a client holds for each of its patients too, one to a "
        "patient or record says nothing of a client; scenarios of the latter have a network, a recipe and rounds of "
        "their own, small-network that network and promises to a client (-slow: at Table 1's rate; -deep: that and "
        f"as many levels; large-network-fast: Table 1's network at the rate of the small one); * {NO_PROMISE}"
    )
    return Table("A promise to patients inside each client, beside one to the client", columns, tuple(rows), note)


TABLES: Tables = {"intermediaries/inside": inside}


def _setting(cell: Cell) -> tuple[str, str, str]:
    return cell.label("scenario"), cell.label("strategy"), cell.label("defence")


def _inner(cell: Cell) -> Mapping[str, Any]:
    """The settings of the DP-SGD of a cell; none where it has none."""
    return next((d for d in cell.defences if str(d.get("use", "")).endswith(":DpSgd")), {})


def _promise(given: Mapping[str, Any]) -> tuple[str, str, float | None]:
    """To whom, its epsilon, and at which delta; DP-SGD without noise promises nobody anything."""
    if given.get("epsilon") is None:
        return "nobody", "", None
    return str(given.get("unit", "record")), f"{float(given['epsilon']):,.1f}", given.get("delta")


def _measures(cells: list[Cell], wanted: tuple[str, str]) -> tuple[str, str]:
    has = {r.measure for cell in cells for r in cell.readings}
    return ("auc_micro" if wanted[0] == "auc_binary" and "auc_binary" not in has else wanted[0]), wanted[1]


def _utility(cells: list[Cell], measure: str) -> Any:
    return percent([float(r.value) for cell in cells if (r := cell.newest(measure)) is not None])
