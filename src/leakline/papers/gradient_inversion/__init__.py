"""Paper 001: gradient inversion."""

from leakline.papers.gradient_inversion import charts, figures, tables, verdicts
from leakline.report.papers import Paper

PAPER = Paper(
    "gradient-inversion", ("gradient-inversion",), tables.TABLES | figures.FIGURES, charts.charts, number="001",
    verdicts=verdicts.verdicts,
)  # fmt: skip
