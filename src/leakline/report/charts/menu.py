"""The menu of charts: each is a function of `Results` that gives a list of `Chart`. Papers bring theirs as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from leakline.errors import LeaklineError
from leakline.report.charts.chart import Chart, curves, promises, tradeoff
from leakline.report.charts.roc import roc
from leakline.report.papers import papers
from leakline.report.tables.clients import distribution
from leakline.report.tables.patients import exposure_map
from leakline.results import Results

CHARTS: dict[str, Callable[[Results], list[Chart]]] = {
    "clients": distribution,
    "curves": curves,
    "exposure": exposure_map,
    "promises": promises,
    "roc": roc,
    "tradeoff": tradeoff,
}
FORMS = ("svg", "png")


def headed(results: Results) -> list[tuple[str, list[Chart]]]:
    """Every chart of a study under the heading that a page gives it."""
    return [
        ("The frontier", [*tradeoff(results), *promises(results)]),
        ("Round by round", curves(results)),
        ("Attacks in detail", roc(results, every=False)),
        ("Patient by patient", exposure_map(results)),
        ("Client by client", distribution(results)),
    ]


def figures(results: Results, name: str) -> list[Any]:
    """A chart of the menu as plotly figures."""
    from leakline.report.charts.interactive import figure

    return [figure(chart) for chart in CHARTS[name](results)]


def charts_by_name(results: Results, name: str) -> Mapping[str, Chart]:
    """A chart of the menu, or all figures of a paper, each by the name of its file."""
    of_papers = {paper.name: paper.charts for paper in papers()}
    if name in CHARTS:
        return {f"{name}-{i}": chart for i, chart in enumerate(CHARTS[name](results), start=1)}
    if name not in of_papers:
        raise LeaklineError(f"there is no figure {name!r}", fix=f"one of: {', '.join([*CHARTS, *of_papers])}")
    return {key: chart for key, chart in of_papers[name](results).items() if chart.series}


def save(results: Results, name: str, folder: Path, form: str = "svg") -> list[Path]:
    """Write a chart of the menu, or all figures of a paper, into a folder, one file each, and say which."""
    from leakline.report.charts.static import png, svg

    if form not in FORMS:
        raise LeaklineError(f"there is no figure format {form!r}", fix=f"one of: {', '.join(FORMS)}")
    charts = charts_by_name(results, name)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for key, chart in charts.items():
        paths.append(folder / f"{key}.{form}")
        paths[-1].write_bytes(png(chart) if form == "png" else svg(chart).encode())
    return paths
