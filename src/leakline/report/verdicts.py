"""What became of a paper's numbers and claims: one row each, the paper's beside ours, and a verdict by one rule.

reproduced       a number: the paper's value (with twice its printed spread) meets our 95 % interval, which is no wider
                 than a tenth of that value to either side (or twice its spread); or it is as near as the row
                 says. A claim: our interval lies on its side of the line.
not reproduced   a number: they do not meet. A claim: our interval lies on the other side.
undecided        our interval cannot tell: it is too wide, has both sides in it, or there is one seed and so none.
                 So are all numbers of runs on other data or at another size than the paper's: only claims are judged.
cannot be        the number is impossible, or follows from no run: the row says why.
not run          the store has no cell for it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leakline.results import Cell, Estimate, Results
from leakline.results.table import Table, shown

REPRODUCED, NOT_REPRODUCED, UNDECIDED = "reproduced", "not reproduced", "undecided"
CANNOT_BE, NOT_RUN = "cannot be", "not run"
VERDICTS = (REPRODUCED, NOT_REPRODUCED, UNDECIDED, CANNOT_BE, NOT_RUN)
WIDEST = 0.1
"""The share of the paper's value to either side beyond which our interval decides nothing."""
_PRINTED = re.compile(r"([-+]?[\d.]+)(?: ± ([\d.]+))?( \(!\))?")


@dataclass(frozen=True)
class Row:
    """One number or claim of a paper with what became of it; ``n``: test examples, worlds, users or trials of a run."""

    what: str
    paper: str
    ours: str = NOT_RUN
    interval: str = ""
    n: int | None = None
    seeds: int | None = None
    verdict: str = NOT_RUN
    note: str = ""


Verdicts = Mapping[str, Sequence[Row]]
"""A paper's rows by table."""


def number_row(what: str, paper: Any, ours: Any, n: int | None = None, other: str = "") -> Row:
    """A printed number (as a number, or as text with its spread) beside an estimate, a number or nothing.

    ``other``: in what ours was run otherwise than the paper's; then it is shown and not judged.
    """
    printed = shown(paper)
    if found := _PRINTED.fullmatch(printed):
        value, spread, wrong = float(found[1]), float(found[2] or 0), bool(found[3])
        if wrong:
            return Row(what, printed, *_own(ours, n), CANNOT_BE, "no masks have such an IoU beside such a Dice")
        if other and ours not in (None, ""):
            return Row(what, printed, *_own(ours, n), UNDECIDED, other)
        if isinstance(ours, Estimate):
            alone = "one seed" if ours.low is None else ""
            return Row(what, printed, *_own(ours, n), _meets(value, 2 * spread, ours), alone)
        if isinstance(ours, int | float):
            same = REPRODUCED if abs(ours - value) <= max(2 * spread, 1e-9) else NOT_REPRODUCED
            return Row(what, printed, *_own(ours, n), same)
    if ours is None or ours == "":
        return Row(what, printed, n=None)
    alone = "one seed" if _PRINTED.fullmatch(shown(ours)) else ""
    return Row(what, printed, *_own(ours, n), UNDECIDED, alone)


def claim_row(what: str, paper: str, ours: Estimate | None, n: int | None = None, line: float = 0.0) -> Row:
    """A claim that something lies above a line, beside what was measured of it."""
    if ours is None:
        return Row(what, paper)
    if ours.low is None or ours.high is None:
        return Row(what, paper, *_own(ours, n), UNDECIDED, "one seed")
    verdict = REPRODUCED if ours.low > line else NOT_REPRODUCED if ours.high < line else UNDECIDED
    return Row(what, paper, *_own(ours, n), verdict)


def bound_row(
    what: str, paper: float, value: float | None, low: float | None, n: int | None, within: float, seeds: int = 1
) -> Row:
    """A printed estimate beside one of ours that has only a lower end: reproduced within a stated distance."""
    if value is None:
        return Row(what, f"{paper:g}")
    verdict = REPRODUCED if abs(value - paper) <= within else NOT_REPRODUCED
    lower = "" if low is None else f">= {low:.3f}"
    return Row(what, f"{paper:g}", f"{value:.3f}", lower, n, seeds, verdict, f"reproduced within {within:g}")


def impossible(what: str, paper: str, why: str) -> Row:
    """What no run can show."""
    return Row(what, paper, "", verdict=CANNOT_BE, note=why)


def rows_of(table: Table, n: int | None = None, other: str = "") -> list[Row]:
    """The rows of a table that has the paper's column and ours side by side: "X (paper)", "X (ours)"."""
    pairs = [i for i, name in enumerate(table.columns) if name.endswith(" (paper)")]
    heads = [i for i, name in enumerate(table.columns) if not name.endswith((" (paper)", " (ours)"))]
    rows = []
    for row in table.rows:
        place = ", ".join(str(row[i]) for i in heads if row[i] not in (None, ""))
        for i in pairs:
            if row[i] not in (None, ""):
                what = f"{place}, {table.columns[i].removesuffix(' (paper)')}"
                rows.append(number_row(what, row[i], row[i + 1], n, other))
    return rows


def otherwise(results: Results, data: str, **plan: Any) -> str:
    """In what the finished cells differ from the paper's data and training, in words; "" where they do not."""
    said: dict[str, None] = {}
    for cell in results.finished.cells:
        here = {"rounds": cell.federation.get("rounds"), **dict(cell.federation.get("plan") or {})}
        name = str(cell.task.get("name", ""))
        said |= {f"data {name}": None} if name != data else {}
        said |= {
            f"{key} {here.get(key)}, the paper {value}": None for key, value in plan.items() if here.get(key) != value
        }
    return "; ".join(said)


def examples(cells: Iterable[Cell], measure: str) -> int | None:
    """On how many test examples a measure of the last round stands."""
    newest = (cell.newest(measure) for cell in cells)
    return next((r.n for r in newest if r is not None and r.n), None)


def tally(verdicts: Verdicts) -> Counter[str]:
    """How many rows of each verdict."""
    return Counter(row.verdict for rows in verdicts.values() for row in rows)


def as_table(title: str, rows: Sequence[Row]) -> Table:
    """The rows of one of a paper's tables."""
    columns = ("what", "paper", "ours", "95 % interval", "n", "seeds", "verdict", "remark")
    body = tuple((r.what, r.paper, r.ours, r.interval, r.n, r.seeds, r.verdict, r.note) for r in rows)
    return Table(title, columns, body)


def nothing(study: str) -> Results:
    """Results of a study of which there is no store."""
    from pathlib import Path

    return Results(Path(), study, "", 0.0, (), "", ())


def _meets(value: float, around: float, ours: Estimate) -> str:
    if ours.low is None or ours.high is None:
        return UNDECIDED
    if value + around < ours.low or value - around > ours.high:
        return NOT_REPRODUCED
    wide = (ours.high - ours.low) / 2 > max(WIDEST * abs(value), around)
    return UNDECIDED if wide else REPRODUCED


def _own(ours: Any, n: int | None) -> tuple[str, str, int | None, int | None]:
    if isinstance(ours, Estimate):
        span = "" if ours.low is None or ours.high is None else f"[{ours.low:.3f}, {ours.high:.3f}]"
        return f"{ours.mean:.3f}", span, n, ours.seeds
    return (NOT_RUN if ours is None or ours == "" else shown(ours)), "", n, None
