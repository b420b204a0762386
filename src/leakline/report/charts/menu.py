"""The menu of charts: each takes a store's directory and gives a list of `Chart`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from leakline.errors import LeaklineError
from leakline.report.charts.chart import Chart, curves, curves_of, promises, promises_of, tradeoff, tradeoff_of
from leakline.report.charts.roc import roc, roc_of
from leakline.report.tables.clients import distribution, distribution_of
from leakline.results.pooled import Pooled

CHARTS: dict[str, Callable[[Path], list[Chart]]] = {
    "clients": distribution,
    "curves": curves,
    "promises": promises,
    "roc": roc,
    "tradeoff": tradeoff,
}
FORMS = ("svg", "png")


def all_of(pooled: Pooled) -> list[tuple[str, list[Chart]]]:
    """Every chart of a study under the heading that a page gives it."""
    return [
        ("The frontier", [*tradeoff_of(pooled), *promises_of(pooled)]),
        ("Round by round", curves_of(pooled)),
        ("Attacks in detail", roc_of(pooled)),
        ("Client by client", distribution_of(pooled)),
    ]


def figures(root: Path, name: str) -> list[Any]:
    """A chart of the menu as plotly figures."""
    from leakline.report.charts.interactive import figure

    return [figure(chart) for chart in CHARTS[name](root)]


def save(root: Path, name: str, folder: Path, form: str = "svg") -> list[Path]:
    """Write a chart of the menu into a folder, one file each, and say which."""
    from leakline.report.charts.static import png, svg

    if name not in CHARTS:
        raise LeaklineError(f"there is no figure {name!r}", fix=f"one of: {', '.join(sorted(CHARTS))}")
    if form not in FORMS:
        raise LeaklineError(f"there is no figure format {form!r}", fix=f"one of: {', '.join(FORMS)}")
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for i, chart in enumerate(CHARTS[name](root)):
        path = folder / f"{name}-{i + 1}.{form}"
        path.write_bytes(png(chart) if form == "png" else svg(chart).encode())
        found.append(path)
    return found
