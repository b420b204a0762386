"""Paper 000: metric privacy, and client inference."""

from leakline.papers.metric_privacy import charts, tables, verdicts
from leakline.report.papers import Paper

PAPER = Paper(
    "metric-privacy", ("metric-privacy", "client-inference"), tables.TABLES | charts.FIGURES, charts.charts,
    charts.REBUILT, number="000", verdicts=verdicts.verdicts,
)  # fmt: skip
