"""Paper 003: personal layers, attribute and membership inference."""

from leakline.papers.fedper import charts, tables, verdicts
from leakline.report.papers import Paper

PAPER = Paper(
    "fedper",
    ("fedper", "fedper-split", "fedper-planted", "fedper-mobiact"),
    tables.TABLES,
    charts.charts,
    number="003",
    verdicts=verdicts.verdicts,
)
