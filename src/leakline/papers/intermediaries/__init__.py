"""Paper 004: intermediaries."""

from leakline.papers.intermediaries import best_round, figures, inside, tables, verdicts
from leakline.report.papers import Paper

PAPER = Paper(
    "intermediaries", ("intermediaries-classification", "intermediaries-segmentation"),
    tables.TABLES | inside.TABLES | best_round.TABLES | figures.FIGURES, figures.charts, number="004",
    verdicts=verdicts.verdicts,
)  # fmt: skip
