"""The figures of paper 003 and the frontier, drawn from their tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leakline.papers.fedper.tables import figure_2, figure_3, figure_4, figure_5, figure_6, frontier
from leakline.report.charts.chart import Chart, Series, lines_of
from leakline.results import Estimate, Results
from leakline.results.settings import groups_of
from leakline.results.table import Table


def charts(results: Results) -> dict[str, Chart]:
    """The figures and the frontier."""
    return {
        "fig2": _distribution(figure_2(results), "accuracy"),
        "fig3": _shares(figure_3(results).title, "round", "accuracy", lines_of(figure_3(results))),
        "fig5": _distribution(figure_5(results), "share of right guesses"),
        **_by_epochs(figure_4(results)),
        "fig6": _membership(figure_6(results)),
        **_frontiers(frontier(results)),
    }


def _distribution(table: Table, x: str) -> Chart:
    return _shares(table.title, x, "share of users", [Series(s.name, s.style, s.y, s.x) for s in lines_of(table)])


def _by_epochs(table: Table) -> dict[str, Chart]:
    """Figure 4: one chart for each attack; its accuracies are in every other column."""
    made = {}
    for by, rows in groups_of(table.rows, lambda row: row[0]).items():
        names = [name.removesuffix(" accuracy") for name in table.columns[3::2]]
        accuracies = Table("", ("epochs", *names), tuple((row[1], *row[3::2]) for row in rows))
        title = f"Figure 4: {by} (majority {rows[0][2]:.3f})"
        made[f"fig4-{by}"] = _shares(title, "local epochs", "accuracy of the attack", lines_of(accuracies))
    return made


def _membership(table: Table) -> Chart:
    bars = [
        _point(str(row[0]), i, float(i + 1), row[3].mean, row[4:6])
        for i, row in enumerate(table.rows)
        if isinstance(row[3], Estimate)
    ]
    return _shares("Figure 6: who took part", "defence", "AUC", bars, points=True)


def _frontiers(table: Table) -> dict[str, Chart]:
    styles = {name: i for i, name in enumerate(dict.fromkeys(row[0] for row in table.rows))}
    made = {}
    for (by, epochs), rows in groups_of(table.rows, lambda row: (row[3], row[4])).items():
        spots = [
            _point(str(r[0]), styles[r[0]], r[2].mean, r[5].mean, r[6:8])
            for r in rows
            if isinstance(r[2], Estimate) and isinstance(r[5], Estimate)
        ]
        title = f"Utility against attack: {f'{by}, {epochs} epochs' if epochs else by}"
        key = f"frontier-{by}-{epochs}" if epochs else f"frontier-{by}"
        made[key] = _shares(title, "accuracy", "AUC of the best attacker", spots, points=True)
    return made


def _shares(title: str, x: str, y: str, series: Sequence[Series], points: bool = False) -> Chart:
    return Chart(title, x, y, tuple(series), "points" if points else "lines", y_range=(0.0, 1.0))


def _point(name: str, style: int, x: float, y: float, ends: Sequence[Any]) -> Series:
    low, high = ends
    return Series(name, style, (x,), (y,), (low,), (high,), (x,), (x,))
