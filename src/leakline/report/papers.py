"""The papers that studies are about: each is one folder of `leakline.papers`, found by looking."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from leakline.errors import LeaklineError
from leakline.report.charts.chart import Chart
from leakline.report.verdicts import Verdicts
from leakline.results import Results
from leakline.results.table import Table

Tables = dict[str, Callable[[Results], Table]]
FOLDER = "leakline.papers"


@dataclass(frozen=True)
class Paper:
    """A paper: its built-in studies, and its tables and figures of their results. A folder's value ``PAPER``."""

    name: str
    """What the names of its tables begin with."""
    studies: tuple[str, ...]
    tables: Tables
    charts: Callable[[Results], Mapping[str, Chart]] = lambda results: {}
    rebuilt: Tables = field(default_factory=dict)
    """Tables that apply the final models to the study's data again: exported when asked for, never on a page."""
    number: str = ""
    """What the documentation calls it by: "000" to "004"."""
    verdicts: Callable[[Mapping[str, Results]], Verdicts] = lambda stores: {}
    """What became of its numbers and claims, from the results of its studies by name (without cells: not run)."""


@lru_cache(maxsize=1)
def papers() -> tuple[Paper, ...]:
    """Every paper that has a folder, by name."""
    folders = pkgutil.iter_modules(importlib.import_module(FOLDER).__path__)
    modules = [importlib.import_module(f"{FOLDER}.{folder.name}") for folder in folders if folder.ispkg]
    return tuple(sorted((module.PAPER for module in modules), key=lambda paper: paper.name))


def paper_of(study: str) -> Paper | None:
    """The paper of a built-in study; a copy under another name has none."""
    return next((paper for paper in papers() if study in paper.studies), None)


def tables_of(results: Results, rebuilt: bool = False) -> dict[str, Table]:
    """The paper's tables of a built-in study that have anything to show."""
    paper = paper_of(results.name)
    made = {}
    for name, make in (paper.tables | (paper.rebuilt if rebuilt else {})).items() if paper else ():
        try:
            table = make(results)
        except LeaklineError:
            continue
        if any(cell not in (None, "", "–") for row in table.rows for cell in row[1:]):
            made[name] = table
    return made


def charts_of(results: Results) -> dict[str, Chart]:
    """The paper's figures of a built-in study that have anything to show."""
    paper = paper_of(results.name)
    try:
        return {name: c for name, c in paper.charts(results).items() if any(s.x for s in c.series)} if paper else {}
    except LeaklineError:
        return {}
