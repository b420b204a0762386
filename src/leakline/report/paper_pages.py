"""Pages of what became of each paper, and their summary: functions of stores alone, the same bytes every time.

No clock, path or order of reading enters: what was run is said by the stores' own labels, versions and counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from inspect import getdoc

from leakline.errors import LeaklineError
from leakline.report import verdicts as rules
from leakline.report.papers import Paper, papers
from leakline.report.verdicts import NOT_RUN, VERDICTS, Verdicts, as_table, nothing, tally
from leakline.results import Results
from leakline.results.table import Table, as_markdown
from leakline.text import markdown

MADE = "<!-- made by `leakline papers`; what is typed here is lost when the page is made again -->"
BEGIN, END = "<!-- papers: begin -->", "<!-- papers: end -->"
"""Between these lines of a README the summary is put."""


def pages(stores: Sequence[Results]) -> dict[str, str]:
    """File names and texts: one page a paper, and `index.md` with the summary."""
    by_study = _by_study(stores)
    made, counted = {}, []
    for paper in _numbered():
        own = {study: by_study.get(study) or nothing(study) for study in paper.studies}
        found = paper.verdicts(own)
        counted.append((paper, found))
        made[f"{paper.number}-{paper.name}.md"] = _page(paper, own, found)
    made["index.md"] = f"{MADE}\n\n# The five papers: what became of their numbers\n\n{_rules()}\n\n{_summary(counted)}"
    return made


def summary(stores: Sequence[Results], folder: str = "") -> str:
    """The table of verdicts alone, with links into a folder."""
    by_study = _by_study(stores)
    found = [
        (paper, paper.verdicts({study: by_study.get(study) or nothing(study) for study in paper.studies}))
        for paper in _numbered()
    ]
    return _summary(found, folder)


def put(text: str, block: str) -> str:
    """A README with the summary between its two lines."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise LeaklineError("this file has no place for the summary", fix=f"write the lines {BEGIN} and {END} into it")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{block}{END}{rest.partition(END)[2]}"


def _by_study(stores: Sequence[Results]) -> dict[str, Results]:
    known = {study for paper in papers() for study in paper.studies}
    found: dict[str, Results] = {}
    for results in stores:
        if results.name not in known:
            raise LeaklineError(
                f"{results.name!r} is no study of a paper", fix=f"stores of: {', '.join(sorted(known))}"
            )
        if results.name in found:
            raise LeaklineError(f"two stores of {results.name!r}", fix="give one: a page has one figure for a number")
        found[results.name] = results
    return found


def _numbered() -> list[Paper]:
    return sorted((paper for paper in papers() if paper.number), key=lambda paper: paper.number)


def _rules() -> str:
    """The rule of the verdicts, as the module states it."""
    words = (getdoc(rules) or rules.__doc__ or "").split("\n\n", 1)[1]
    items = re.split(r"\n(?=\S)", words.strip())
    lines = []
    for item in items:
        name, _, text = item.partition("  ")
        lines.append(f"- **{name.strip()}**: {' '.join(text.split())}")
    return "\n".join(lines)


def _page(paper: Paper, stores: Mapping[str, Results], found: Verdicts) -> str:
    parts = [MADE, f"# Paper {paper.number}: {paper.name}", _counts(found), _stores(stores)]
    for title, rows in found.items():
        parts.append(f"## {markdown(title)}\n\n{_bare(as_table(title, rows))}")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _bare(table: Table) -> str:
    """A table without the bold line of its title."""
    return as_markdown(table).split("\n", 2)[2]


def _counts(found: Verdicts) -> str:
    counted = tally(found)
    total = sum(counted.values())
    told = ", ".join(f"{counted[verdict]} {verdict}" for verdict in VERDICTS if counted[verdict])
    return f"{total} numbers and claims: {told}. [What the words mean](index.md)."


def _stores(stores: Mapping[str, Results]) -> str:
    rows = []
    for study, results in stores.items():
        done = results.finished.cells
        if not done:
            rows.append((study, NOT_RUN, f"0 of {len(results.cells)}" if results.cells else "0", "", "", "", ""))
            continue
        seeds = sorted({str(cell.labels.get("seed", 0)) for cell in done})
        data = sorted({str(cell.task.get("name", "")) for cell in done})
        rounds = sorted({cell.rounds for cell in done})
        span = str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
        versions = sorted({f"{c.versions.get('leakline')}, torch {c.versions.get('torch')}" for c in done})
        cells = f"{len(done)} of {len(results.cells)}"
        rows.append(
            (study, ", ".join(data), cells, span, ", ".join(seeds), "; ".join(versions), "; ".join(results.notes))
        )
    columns = ("study", "data", "cells finished", "rounds", "seeds", "leakline", "notes")
    return f"## What was run\n\n{_bare(Table('', columns, tuple(rows)))}"


def _summary(found: Sequence[tuple[Paper, Verdicts]], folder: str = "") -> str:
    rows = []
    for paper, verdicts in found:
        counted = tally(verdicts)
        rows.append((
            f"[{paper.number}: {paper.name}]({folder}{paper.number}-{paper.name}.md)",
            *(counted[verdict] for verdict in VERDICTS),
        ))  # fmt: skip
    heads = ("paper", *VERDICTS)
    lines = [heads, ("---", *("---:" for _ in VERDICTS)), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
