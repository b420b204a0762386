"""The figures of paper 000: accuracy by round (B.2, B.3) and ROC curves (C.4, C.5), as numbers and as SVG.

ROC curves need the final model's outputs on the test data. These are not stored: the study is read again from the
run directory, the cell whose hash is that of the run is rebuilt, and its final weights are applied.
"""

from __future__ import annotations

import io
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leakline.errors import LeaklineError, StoreError
from leakline.leakage.guessing import Roc, roc
from leakline.papers.metric_privacy import printed
from leakline.papers.metric_privacy.store import accuracies, finished
from leakline.results.frames import estimate
from leakline.results.stored import Stored, read_study
from leakline.results.table import Table
from leakline.study.store import Store

if TYPE_CHECKING:
    from leakline.federation import Federation

GRID = np.linspace(0, 1, 101)
_ORDER = (*printed.DEFENCES, printed.CONTROL)


def figure_b2(root: Path) -> Table:
    """Figure B.2: accuracy by round, homogeneous clients."""
    return _curves(root, "homogeneous", "Figure B.2: accuracy by round, homogeneous clients")


def figure_b3(root: Path) -> Table:
    """Figure B.3: accuracy by round, non-iid clients."""
    return _curves(root, "non-iid", "Figure B.3: accuracy by round, non-iid clients")


def figure_c4(root: Path) -> Table:
    """Figure C.4: micro-averaged one-vs-rest ROC curves on the test data, homogeneous clients."""
    return _roc_table(root, "homogeneous", "Figure C.4: ROC curves, homogeneous clients")


def figure_c5(root: Path) -> Table:
    """Figure C.5: micro-averaged one-vs-rest ROC curves on the test data, non-iid clients."""
    return _roc_table(root, "non-iid", "Figure C.5: ROC curves, non-iid clients")


TABLES = {
    "metric-privacy/B2": figure_b2,
    "metric-privacy/B3": figure_b3,
    "metric-privacy/C4": figure_c4,
    "metric-privacy/C5": figure_c5,
}


def accuracy_svg(root: Path, scenario: str = "homogeneous") -> str:
    """B.2 or B.3 as SVG: one panel per defence, one line per strategy, mean over seeds."""
    panels: dict[str, list[tuple[str, list[float], list[float]]]] = {}
    for _, strategy, defence, values in _by_round(root, scenario):
        x = [float(r) for r in range(1, len(values) + 1)]
        panels.setdefault(defence, []).append((strategy, x, values))
    return _svg({printed.SHOWN.get(d, d): panels[d] for d in _known(panels)}, "round", "accuracy")


def roc_svg(root: Path, scenario: str = "homogeneous") -> str:
    """C.4 or C.5 as SVG: one panel per strategy, one line per defence with its AUC."""
    panels: dict[str, list[tuple[str, list[float], list[float]]]] = {}
    for cell in _first_seed(root, scenario):
        strategy, defence = str(cell.labels.get("strategy")), str(cell.labels.get("defence"))
        curve, area = micro_roc(root, cell)
        label = f"{printed.SHOWN.get(defence, defence)} (AUC {area:.3f})"
        panel = printed.STRATEGIES.get(strategy, strategy)
        panels.setdefault(panel, []).append((label, curve.fpr.tolist(), curve.tpr.tolist()))
    return _svg(panels, "false positive rate", "true positive rate")


def micro_roc(root: Path, cell: Stored) -> tuple[Roc, float]:
    """The curve and its area over all decisions "is image i of class k", by softmax probabilities."""
    import torch

    from leakline.utility.classification import micro_auc

    federation = federation_of(root, cell)
    test = federation.task.test
    if test is None or cell.key is None:
        raise StoreError("this run has no test data of the server's", cell.key or "", "set server_test in [data]")
    outputs = federation.bench().outputs(Store(root).run(cell.key).final_weights(), test)
    truth = torch.nn.functional.one_hot(test.y, outputs.shape[1]).bool()
    curve = roc(outputs.double().softmax(1).flatten().numpy(), truth.flatten().numpy())
    return curve, micro_auc(outputs, test.y)


def federation_of(root: Path, cell: Stored) -> Federation:
    """The federation that a stored cell was: the one among the study's presets whose hash is the run's."""
    from leakline.study.describe import description, key_of
    from leakline.study.spec import parse

    text = read_study(root).text
    presets = tomllib.loads(text).get("presets", {}) if text else {}
    known = ("scenario", "strategy", "defence", "seed")
    sets = [f"{name}={_toml(value)}" for name, value in cell.labels.items() if name not in known]
    for preset in presets or ("",):
        try:
            study = parse(text, "study.toml", preset, sets)
            found = next((c for c in study.cells if dict(c.labels) == dict(cell.labels)), None)
            federation = found.federation() if found is not None else None
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


def _by_round(root: Path, scenario: str) -> list[tuple[str, str, str, list[float]]]:
    """Scenario, strategy, defence, and the mean over seeds of the accuracy by round."""
    found: dict[tuple[str, str], list[list[float]]] = {}
    for cell in finished(root, scenario):
        key = (str(cell.labels.get("strategy")), str(cell.labels.get("defence")))
        found.setdefault(key, []).append(accuracies(cell))
    rows = []
    for (strategy, defence), runs in found.items():
        rounds = min(len(r) for r in runs)
        rows.append((scenario, strategy, defence, [sum(r[i] for r in runs) / len(runs) for i in range(rounds)]))
    return rows


def _curves(root: Path, scenario: str, title: str) -> Table:
    found: dict[tuple[str, str, int], list[float]] = {}
    for cell in finished(root, scenario):
        for at, value in enumerate(accuracies(cell), start=1):
            found.setdefault((str(cell.labels.get("strategy")), str(cell.labels.get("defence")), at), []).append(value)
    rows = tuple((*key, estimate(values)) for key, values in found.items())
    return Table(title, ("strategy", "defence", "round", "accuracy"), rows, "mean over seeds")


def _first_seed(root: Path, scenario: str) -> list[Stored]:
    """One cell for each strategy and defence: a curve is one model's."""
    found: dict[tuple[Any, Any], Stored] = {}
    for cell in finished(root, scenario):
        found.setdefault((cell.labels.get("strategy"), cell.labels.get("defence")), cell)
    return list(found.values())


def _roc_table(root: Path, scenario: str, title: str) -> Table:
    rows = []
    for cell in _first_seed(root, scenario):
        curve, area = micro_roc(root, cell)
        tpr = np.interp(GRID, curve.fpr, curve.tpr)
        labels = (cell.labels.get("strategy"), cell.labels.get("defence"))
        rows += [(*labels, area, float(x), float(y)) for x, y in zip(GRID, tpr, strict=True)]
    columns = ("strategy", "defence", "AUC", "false positive rate", "true positive rate")
    return Table(title, columns, tuple(rows), "one model each (the first seed), at 101 false positive rates")


def _known(panels: dict[str, Any]) -> list[str]:
    return [d for d in _ORDER if d in panels] + [d for d in panels if d not in _ORDER]


def _svg(panels: dict[str, list[tuple[str, list[float], list[float]]]], x: str, y: str) -> str:
    """Panels of lines, drawn without a display and without the date, so that equal numbers give equal files."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    columns = min(3, max(len(panels), 1))
    rows = -(-max(len(panels), 1) // columns)
    with rc_context({"svg.hashsalt": "leakline", "font.size": 8}):
        figure = Figure(figsize=(3.4 * columns, 2.8 * rows), layout="constrained")
        for place, (title, lines) in enumerate(panels.items(), start=1):
            axes = figure.add_subplot(rows, columns, place)
            for label, xs, ys in lines:
                axes.plot(xs, ys, label=label, linewidth=1.2)
            axes.set(title=title, xlabel=x, ylabel=y)
            axes.legend(fontsize=6, frameon=False)
        out = io.StringIO()
        FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None})
    return out.getvalue()
