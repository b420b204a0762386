"""The figures of paper 000: accuracy by round (B.2, B.3) and ROC curves (C.4, C.5), as numbers and as charts.

ROC curves need the final model's outputs on the test data. These are not stored: the study file in the store is read
again, the cell whose hash is that of the run is rebuilt, and its final weights are applied. So they are made only when
asked for, and never for a page.
"""

from __future__ import annotations

import tomllib
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from leakline.errors import LeaklineError, StoreError
from leakline.leakage.guessing import Roc, roc
from leakline.measures import measure_of
from leakline.papers.metric_privacy import printed
from leakline.papers.metric_privacy.sizes import PAPER_SIZE
from leakline.papers.metric_privacy.tables import accuracies, named, of_scenario
from leakline.report.charts.chart import Chart, Series
from leakline.report.papers import Tables
from leakline.results import Cell, Results
from leakline.results.estimate import over_seeds
from leakline.results.settings import groups_of
from leakline.results.table import Table

if TYPE_CHECKING:
    from leakline.federation import Federation

GRID = np.linspace(0, 1, 101)
BY_ROUND = {
    "B2": ("homogeneous", "homogeneous clients"),
    "B3": ("non-iid", "non-iid clients"),
    f"B2-{PAPER_SIZE}": (PAPER_SIZE, "homogeneous clients, at the paper's size"),
}
"""The scenario of each figure of accuracy by round, and its words."""


def _by_round(results: Results, scenario: str, title: str) -> Table:
    """Accuracy by round, over seeds."""
    rows = []
    for labels, cells in of_scenario(results, scenario).by("strategy", "defence").items():
        runs = [accuracies(c) for c in cells.cells]
        for at in range(max(map(len, runs))):
            share = over_seeds(measure_of("accuracy"), [run[at] for run in runs if at < len(run)])
            rows.append((*labels, at + 1, share))
    return Table(title, ("strategy", "defence", "round", "accuracy"), tuple(rows), "mean over seeds")


def _title(figure: str) -> str:
    return f"Figure {figure[0]}.{figure[1]}"


_TITLES = {figure: f"{_title(figure)}: accuracy by round, {words}" for figure, (_, words) in BY_ROUND.items()}
FIGURES: Tables = {
    f"metric-privacy/{figure}": named(_by_round, f"{_TITLES[figure]}.", scenario, _TITLES[figure])
    for figure, (scenario, _) in BY_ROUND.items()
}


def figure_c4(results: Results) -> Table:
    """Figure C.4: micro-averaged one-vs-rest ROC curves on the test data, homogeneous clients."""
    return _roc_table(results, "homogeneous", "Figure C.4: ROC curves, homogeneous clients")


def figure_c5(results: Results) -> Table:
    """Figure C.5: micro-averaged one-vs-rest ROC curves on the test data, non-iid clients."""
    return _roc_table(results, "non-iid", "Figure C.5: ROC curves, non-iid clients")


REBUILT: Tables = {"metric-privacy/C4": figure_c4, "metric-privacy/C5": figure_c5}


def charts(results: Results) -> dict[str, Chart]:
    """B.2 and B.3: one chart for each defence, one line for each strategy, mean over seeds."""
    made = {}
    for figure, (scenario, words) in BY_ROUND.items():
        for defence, inside in of_scenario(results, scenario).by("defence").items():
            series = []
            for strategy, cells in sorted(inside.by("strategy").items(), key=lambda some: printed.place_of(some[0])):
                values = [mean(some) for some in zip(*map(accuracies, cells.cells), strict=False)]
                x = tuple(float(r) for r in range(1, len(values) + 1))
                name, style = printed.STRATEGIES.get(strategy, strategy), printed.place_of(strategy)
                series.append(Series(name, style, x, tuple(values)))
            title = f"{_title(figure)}: {printed.SHOWN.get(defence, defence)}, {words}"
            made[f"{figure}-{defence}"] = Chart(title, "round", "accuracy", tuple(series), note="mean over seeds")
    return made


def roc_charts(results: Results) -> dict[str, Chart]:
    """C.4 and C.5: one chart for each strategy, one line for each defence with its AUC; rebuilds every model."""
    made = {}
    for figure, scenario in (("C4", "homogeneous"), ("C5", "non-iid")):
        for strategy, cells in groups_of(_first_seed(results, scenario), lambda c: c.label("strategy")).items():
            series = []
            for style, cell in enumerate(cells):
                curve, area = micro_roc(results, cell)
                defence = cell.label("defence")
                name = f"{printed.SHOWN.get(defence, defence)} (AUC {area:.3f})"
                series.append(Series(name, style, tuple(curve.fpr.tolist()), tuple(curve.tpr.tolist())))
            title = f"Figure {figure[0]}.{figure[1]}: {printed.STRATEGIES.get(strategy, strategy)}, {scenario} clients"
            made[f"{figure}-{strategy}"] = Chart(
                title, "false positives", "true positives", tuple(series), diagonal=True, steps=True
            )
    return made


def micro_roc(results: Results, cell: Cell) -> tuple[Roc, float]:
    """The curve and its area over all decisions "is image i of class k", by softmax probabilities."""
    import torch

    from leakline.study.store import Store
    from leakline.utility.classification import micro_auc

    federation = federation_of(results, cell)
    test = federation.task.test
    if test is None or cell.key is None:
        raise StoreError("this run has no test data of the server's", cell.key or "", "set server_test in [data]")
    outputs = federation.bench().outputs(Store(results.root).run(cell.key).final_weights(), test)
    truth = torch.nn.functional.one_hot(test.y, outputs.shape[1]).bool()
    curve = roc(outputs.double().softmax(1).flatten().numpy(), truth.flatten().numpy())
    return curve, micro_auc(outputs, test.y)


def federation_of(results: Results, cell: Cell) -> Federation:
    """The federation that a stored cell was: the one among the study's presets whose hash is the run's."""
    from leakline.study.describe import description, key_of
    from leakline.study.spec import parse

    presets = tomllib.loads(results.text).get("presets", {}) if results.text else {}
    known = ("scenario", "strategy", "defence", "seed")
    sets = [f"{name}={_toml(value)}" for name, value in cell.labels.items() if name not in known]
    for preset in presets or ("",):
        try:
            study = parse(results.text, "study.toml", preset, sets)
            same = next((c for c in study.cells if dict(c.labels) == dict(cell.labels)), None)
            federation = same.federation() if same is not None else None
        except LeaklineError:
            continue
        if federation is not None and key_of(description(federation)) == cell.key:
            return federation
    raise StoreError(
        "the run's model cannot be applied here: its data or settings are not to be had, or the version is another",
        cell.key or "",
        "set LEAKLINE_DATA as it was for the run",
    )


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _first_seed(results: Results, scenario: str) -> list[Cell]:
    """One cell for each strategy and defence: a curve is one model's."""
    return [seeds.cells[0] for seeds in of_scenario(results, scenario).by("strategy", "defence").values()]


def _roc_table(results: Results, scenario: str, title: str) -> Table:
    rows = []
    for cell in _first_seed(results, scenario):
        curve, area = micro_roc(results, cell)
        tpr = np.interp(GRID, curve.fpr, curve.tpr)
        labels = (cell.labels.get("strategy"), cell.labels.get("defence"))
        rows += [(*labels, area, float(x), float(y)) for x, y in zip(GRID, tpr, strict=True)]
    columns = ("strategy", "defence", "AUC", "false positive rate", "true positive rate")
    return Table(title, columns, tuple(rows), "one model each (the first seed), at 101 false positive rates")
