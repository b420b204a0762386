"""Paper 002: lower bounds of LDP-SGD."""

from leakline.papers.ldp_audit import tables, verdicts
from leakline.report.papers import Paper

PAPER = Paper("ldp-audit", ("ldp-audit",), tables.TABLES, number="002", verdicts=verdicts.verdicts)
