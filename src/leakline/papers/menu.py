"""Which paper's figures belong into the report of which study; its tables are in `leakline.report.tables.menu`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from leakline.errors import LeaklineError
from leakline.papers.fedper import tables as paper_003
from leakline.papers.gradient_inversion import charts as paper_001_charts
from leakline.papers.intermediaries import figures as paper_004_figures
from leakline.report.charts.chart import Chart
from leakline.report.tables.menu import STUDIES

CHARTS: dict[str, Callable[[Path], dict[str, Chart]]] = {
    "fedper": paper_003.charts,
    "gradient-inversion": paper_001_charts.charts,
    "intermediaries": paper_004_figures.charts,
}


def charts_for(root: Path, study: str) -> list[Chart]:
    """The paper's figures of a built-in study that have anything to show."""
    make = CHARTS.get(STUDIES.get(study, ""))
    try:
        return [chart for chart in make(root).values() if any(s.x for s in chart.series)] if make else []
    except LeaklineError:
        return []
