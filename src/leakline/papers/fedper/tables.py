"""The figures of paper 003 as tables and as SVG, and the frontier of utility and attack that the paper lacks.

Built from a store of the study `fedper`, or of any study whose clients judge the model and whose attacks are
attribute-inference and user-membership. Figures average over seeds; intervals of attacks are over users.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from leakline.report.charts.chart import Chart, Series
from leakline.report.charts.static import svg
from leakline.results.frames import Estimate, estimate
from leakline.results.stored import Stored, read_study
from leakline.results.table import Table

PAPERS = "sorted+forest"
"""What the paper's attacker is made of: sorted neurons and a random forest."""
GOAL = 0.9
"""The accuracy whose rounds the paper counts."""


def figure_2(root: Path) -> Table:
    """Figure 2: accuracy over users after the last round, as a distribution."""
    found = {d: _quantiles([_last_by_user(c) for c in cells]) for d, cells in _cells(root).items()}
    return _distribution("Figure 2: activity accuracy over users", found)


def figure_3(root: Path) -> Table:
    """Figure 3: mean accuracy over users by round."""
    curves = {d: _mean_curve(cells) for d, cells in _cells(root).items()}
    longest = max((len(c) for c in curves.values()), default=0)
    rows = tuple((i + 1, *(c[i] if i < len(c) else None for c in curves.values())) for i in range(longest))
    return Table("Figure 3: accuracy by round", ("round", *curves), rows, "mean over users and seeds")


def rounds_to_goal(root: Path) -> Table:
    """Figure 3 in words: rounds until 90 % accuracy, and the best that was reached."""
    rows = []
    for defence, cells in _cells(root).items():
        curves = [_curve(c) for c in cells]
        reached = [next((i + 1 for i, v in enumerate(c) if v >= GOAL), None) for c in curves]
        some = [float(r) for r in reached if r is not None]
        rows.append((
            defence, estimate(some), f"{len(some)} of {len(curves)}", estimate([max(c) for c in curves if c]),
            estimate([float(len(c)) for c in curves]),
        ))  # fmt: skip
    columns = ("defence", "rounds to 90 %", "seeds that got there", "best accuracy", "rounds run")
    return Table("Rounds to 90 % accuracy", columns, tuple(rows), "mean over users; over the seeds that got there")


def figure_4(root: Path) -> Table:
    """Figure 4: attribute inference by local epochs, as accuracy like the paper and as AUC."""
    grid: dict[tuple[str, int], dict[str, tuple[Estimate | None, Estimate | None]]] = {}
    chance: dict[str, float] = {}
    defences = list(_cells(root))
    for defence, cells in _cells(root).items():
        for by, epochs in dict.fromkeys(_swept(cells)):
            right, area = (_over_seeds(_lines(cells, by, m, rule=PAPERS, epochs=epochs)) for m in ("right", "auc"))
            grid.setdefault((by, epochs), {})[defence] = (right, area)
            chance[by] = next((line["chance"] for line in _lines(cells, by, "right")), math.nan)
    columns = ("attack", "epochs", "majority", *(f"{d} {what}" for d in defences for what in ("accuracy", "AUC")))
    rows = [
        (by, epochs, chance[by], *(value for d in defences for value in found.get(d, (None, None))))
        for (by, epochs), found in sorted(grid.items())
    ]
    note = "accuracy must be held against the majority (always guessing the commoner value), AUC against 0.5"
    return Table("Figure 4: attribute inference by local epochs", columns, tuple(rows), note)


def figure_5(root: Path) -> Table:
    """Figure 5: how often each user's trait was guessed right, as a distribution over users."""
    found: dict[str, list[float]] = {}
    for defence, cells in _cells(root).items():
        for by in dict.fromkeys(by for by, _ in _swept(cells)):
            users = [_right_by_user(c, by) for c in cells]
            found[f"{defence} {by}"] = _quantiles(users)
    return _distribution("Figure 5: share of right guesses over users", found)


def figure_6(root: Path) -> Table:
    """Figure 6: who took part, guessed from updates."""
    rows = []
    for defence, cells in _cells(root).items():
        for by in dict.fromkeys(str(line["by"]) for c in cells for line in c.attacks if _is_user_level(line)):
            right, area = (_lines(cells, by, measure, rule=PAPERS) for measure in ("right", "auc"))
            best = _over_seeds(_lines(cells, by, "auc", choice="best"))
            rows.append((defence, by, _over_seeds(right), _over_seeds(area), *_ends(area), best))
    columns = ("defence", "attack", "accuracy", "AUC", "AUC lowest", "AUC highest", "AUC of the best attacker")
    note = "half of the users take part: chance is 0.5; lowest and highest: ends of the runs' 95 % intervals over users"
    return Table("Figure 6: user-level membership inference", columns, tuple(rows), note)


def frontier(root: Path) -> Table:
    """What the paper lacks: each defence's utility beside what the attacks got, with intervals over users."""
    rows = []
    for defence, cells in _cells(root).items():
        accuracy = estimate([c[-1] for c in (_curve(cell) for cell in cells) if c])
        epsilon = next((p.epsilon for c in cells if c.card for p in c.card.promises if p.epsilon is not None), None)
        for by in dict.fromkeys(str(line["by"]) for c in cells for line in c.attacks):
            best = _lines(cells, by, "auc", choice="best")
            for epochs in dict.fromkeys(_about(line).get("epochs") for line in best):
                here = [line for line in best if _about(line).get("epochs") == epochs]
                rows.append((
                    defence, "none" if epsilon is None else epsilon, accuracy, by,
                    "" if epochs is None else f"{epochs:g}", _over_seeds(here), *_ends(here), _p_values(here),
                ))  # fmt: skip
    columns = ("defence", "epsilon", "accuracy", "attack", "epochs", "AUC", "lowest", "highest", "p-values")
    note = (
        "AUC: the best of the features and learners tried, so above 0.5 by chance; p-values allow for that; "
        "lowest and highest: ends of the runs' 95 % intervals over users"
    )
    return Table("Utility against attack", columns, tuple(rows), note)


TABLES: dict[str, Callable[[Path], Table]] = {
    "fedper/fig2": figure_2,
    "fedper/fig3": figure_3,
    "fedper/fig4": figure_4,
    "fedper/fig5": figure_5,
    "fedper/fig6": figure_6,
    "fedper/rounds": rounds_to_goal,
    "fedper/frontier": frontier,
}
"""All of them, to be joined to `leakline.report.tables.menu.TABLES`."""


def charts(root: Path) -> dict[str, Chart]:
    """The figures and the frontier, to be drawn by `leakline.report.charts.static.svg`."""
    found = {
        "fig2": _from_table(figure_2(root), "accuracy", "share of users", flip=True),
        "fig3": _from_table(figure_3(root), "round", "accuracy"),
        "fig5": _from_table(figure_5(root), "share of right guesses", "share of users", flip=True),
    }
    table = figure_4(root)
    for by in dict.fromkeys(row[0] for row in table.rows):
        rows = [row for row in table.rows if row[0] == by]
        series = []
        for i, name in enumerate(table.columns[3::2]):
            points = [(float(r[1]), r[3 + 2 * i].mean) for r in rows if isinstance(r[3 + 2 * i], Estimate)]
            if points:
                x, y = zip(*points, strict=True)
                series.append(Series(name.removesuffix(" accuracy"), i, x, y))
        base = rows[0][2]
        title = f"Figure 4: {by} (majority {base:.3f})"
        found[f"fig4-{by}"] = Chart(title, "local epochs", "accuracy of the attack", tuple(series), y_range=(0.0, 1.0))
    bars = [
        _point(str(row[0]), i, float(i + 1), row[3].mean, row[4], row[5])
        for i, row in enumerate(figure_6(root).rows)
        if isinstance(row[3], Estimate)
    ]
    found["fig6"] = Chart("Figure 6: who took part", "defence", "AUC", tuple(bars), kind="points", y_range=(0.0, 1.0))
    table = frontier(root)
    places = {name: i for i, name in enumerate(dict.fromkeys(row[0] for row in table.rows))}
    for by, epochs in dict.fromkeys((row[3], row[4]) for row in table.rows):
        spots = [
            _point(str(r[0]), places[r[0]], r[2].mean, r[5].mean, r[6], r[7])
            for r in table.rows
            if (r[3], r[4]) == (by, epochs) and isinstance(r[2], Estimate) and isinstance(r[5], Estimate)
        ]
        name = f"{by}, {epochs} epochs" if epochs else str(by)
        found[f"frontier-{by}{'-' + epochs if epochs else ''}"] = Chart(
            f"Utility against attack: {name}", "accuracy", "AUC of the best attacker", tuple(spots), kind="points",
            y_range=(0.0, 1.0),
        )  # fmt: skip
    return found


def figures(root: Path) -> dict[str, str]:
    """Every chart as an SVG file, by name."""
    return {name: svg(chart, name) for name, chart in charts(root).items() if chart.series}


def _point(name: str, style: int, x: float, y: float, low: float | None, high: float | None) -> Series:
    return Series(name, style, (x,), (y,), (low,), (high,), (x,), (x,))


def _from_table(table: Table, x: str, y: str, flip: bool = False) -> Chart:
    series = []
    for i, name in enumerate(table.columns[1:]):
        points = [(float(row[0]), float(row[1 + i])) for row in table.rows if row[1 + i] is not None]
        if points:
            first, second = zip(*points, strict=True)
            series.append(Series(name, i, second if flip else first, first if flip else second))
    return Chart(table.title, x, y, tuple(series), y_range=(0.0, 1.0))


def _cells(root: Path) -> dict[str, list[Stored]]:
    """Finished cells by what tells them apart besides the seed, in the study's order."""
    study = read_study(root)
    varied = [
        name
        for name in dict.fromkeys(k for c in study.cells for k in c.labels if k not in ("seed", "defence"))
        if len({str(c.labels.get(name)) for c in study.cells}) > 1
    ]
    found: dict[str, list[Stored]] = {}
    for cell in study.finished:
        name = " ".join(str(cell.labels.get(k, "")) for k in ("defence", *varied))
        found.setdefault(name, []).append(cell)
    return found


def _curve(cell: Stored) -> list[float]:
    """Mean accuracy over users, round by round."""
    return [r["value"] for r in cell.readings if r["measure"] == "accuracy" and "client" not in r]


def _mean_curve(cells: Sequence[Stored]) -> list[float]:
    """Over seeds; one that stopped early counts with its last value."""
    curves = [c for c in (_curve(cell) for cell in cells) if c]
    longest = max((len(c) for c in curves), default=0)
    return [sum(c[min(i, len(c) - 1)] for c in curves) / len(curves) for i in range(longest)]


def _last_by_user(cell: Stored) -> list[float]:
    own = [r for r in cell.readings if r["measure"] == "accuracy" and "client" in r]
    last = max((r["round"] for r in own), default=0)
    return [r["value"] for r in own if r["round"] == last]


def _right_by_user(cell: Stored, by: str) -> list[float]:
    """Of the largest number of epochs, where there are several."""
    lines = _lines([cell], by, "found-out")
    most = max((_about(line).get("epochs", 0) for line in lines), default=0)
    return [line["value"] for line in lines if _about(line).get("epochs", 0) == most]


def _quantiles(parts: Sequence[Sequence[float]]) -> list[float]:
    """Values in order, averaged over seeds place by place."""
    rows = [sorted(part) for part in parts if part]
    return [sum(values) / len(values) for values in zip(*rows, strict=False)] if rows else []


def _distribution(title: str, found: Mapping[str, Sequence[float]]) -> Table:
    users = max((len(v) for v in found.values()), default=0)
    rows = tuple(
        ((i + 1) / users, *(values[i] if i < len(values) else None for values in found.values())) for i in range(users)
    )
    return Table(title, ("share of users", *found), rows, "a share of users has at most this value; mean over seeds")


def _swept(cells: Sequence[Stored]) -> list[tuple[str, int]]:
    """Attacks and numbers of epochs."""
    found = [(line, _about(line)) for c in cells for line in c.attacks if line["measure"] == "auc"]
    return [
        (str(line["by"]), int(a["epochs"])) for line, a in found if a.get("rule") == PAPERS and "epochs" in a
    ]  # fmt: skip


def _is_user_level(line: Mapping[str, Any]) -> bool:
    about = _about(line)
    return bool(line["measure"] == "auc" and about.get("rule") == PAPERS and "epochs" not in about)


def _about(line: Mapping[str, Any]) -> Mapping[str, Any]:
    about: Mapping[str, Any] = line.get("about", {})
    return about


def _lines(cells: Sequence[Stored], by: str, measure: str, **about: Any) -> list[Mapping[str, Any]]:
    """An attack's lines of a measure that are about this."""
    every = (line for cell in cells for line in cell.attacks if (line.get("by"), line["measure"]) == (by, measure))
    return [line for line in every if all(_about(line).get(key) == value for key, value in about.items())]


def _over_seeds(lines: Sequence[Mapping[str, Any]]) -> Estimate | None:
    return estimate([line["value"] for line in lines])


def _ends(lines: Sequence[Mapping[str, Any]]) -> tuple[float | None, float | None]:
    known = [line for line in lines if "low" in line]
    return min((line["low"] for line in known), default=None), max((line["high"] for line in known), default=None)


def _p_values(lines: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{_about(line)['p']:.3g}" for line in lines if "p" in _about(line))
