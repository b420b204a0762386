"""What became of Table 1 of paper 004, of its epsilons, and of its claim that a split helps."""

from __future__ import annotations

import math
from collections.abc import Mapping

from leakline.papers.intermediaries import printed
from leakline.papers.intermediaries.arms import arms, difference, of_table_1
from leakline.papers.intermediaries.tables import counterpart, measures_of, table_1, task_of
from leakline.privacy.gdp import gdp_epsilon
from leakline.report.verdicts import Row, Verdicts, claim_row, examples, impossible, number_row, otherwise, rows_of
from leakline.results import Results

DATA = {"intermediaries-classification": "rsna-ich", "intermediaries-segmentation": "prostate"}
"""The paper's data sets by study."""


def verdicts(stores: Mapping[str, Results]) -> Verdicts:
    """Both halves of Table 1, what is printed as epsilon, and what is left at equal privacy of one client."""
    found: dict[str, list[Row]] = {"Table 1: epsilon": _epsilons()}
    for name in DATA:
        results = stores[name]
        task = task_of(results)
        first = measures_of(arms(results), task)[0]
        n = examples(of_table_1(results).cells, first)
        other = otherwise(of_table_1(results), DATA[name], rounds=printed.ROUNDS)
        rows = [row for row in rows_of(table_1(results), n, other) if "epsilon" not in row.what]
        found[f"Table 1: {task.name}"] = rows
        found[f"What the paper concludes: {task.name}"] = _claims(results, task, n)
    return found


def _epsilons() -> list[Row]:
    """The paper's epsilon is that of one sub-client, whatever v; in closed form, no run enters."""
    rows = []
    for task in (printed.CLASSIFICATION, printed.SEGMENTATION):
        for z, paper in zip(task.z, task.epsilon, strict=True):
            ours = round(gdp_epsilon(math.sqrt(printed.ROUNDS) / z, task.delta), 1)
            rows.append(number_row(f"{task.name}, z = {z:g}, one sub-client", paper, ours))
            whole = gdp_epsilon(4 * math.sqrt(printed.ROUNDS) / z, task.delta)
            why = f"Theorem 1 changes the unit: a client in 4 parts has {whole:,.0f}"
            rows.append(impossible(f"{task.name}, z = {z:g}, the same for one client with v parts", f"{paper:g}", why))
    return rows


def _claims(results: Results, task: printed.Task, n: int | None) -> list[Row]:
    """Intermediaries against DP alone: at equal z as the paper has it, and at equal privacy of one client."""
    rows, every = [], [a for a in arms(results) if a.z is not None]
    for strategy, name in printed.STRATEGIES.items():
        own = [a for a in every if a.strategy == strategy]
        for at, z in enumerate(task.z):
            plain = next((a for a in own if not a.split and a.z is not None and math.isclose(a.z, z)), None)
            ruled = next((a for a in own if a.parts == "paper" and a.z is not None and math.isclose(a.z, z)), None)
            what = f"{name}, z = {z:g}: intermediaries gain {task.shown[0]}"
            gained = task.ours[strategy][at][0][0] - task.plain[strategy][at][0][0]
            measure = measures_of(own, task)[0]
            ours = difference(ruled.by_seed(measure), plain.by_seed(measure)) if ruled and plain else None
            rows.append(claim_row(f"{what} at equal z", f"{gained:+.2f} points", ours, n))
            honest = None if ruled is None else counterpart(ruled, own)
            left = difference(ruled.by_seed(measure), honest.by_seed(measure)) if ruled and honest else None
            rows.append(claim_row(f"{what} at equal privacy of one client", "the same (its unit: a part)", left, n))
    return rows
