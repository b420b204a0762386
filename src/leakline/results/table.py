"""Tables in the forms that a paper, a sheet, a script or a terminal takes; every cell escaped for its language."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leakline.errors import LeaklineError
from leakline.results.estimate import Estimate
from leakline.text import clean, csv_cell, latex, markdown, number

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Table:
    """A table of plain values; an `Estimate` is one cell to people and five columns to programs."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        wrong = [len(row) for row in self.rows if len(row) != len(self.columns)]
        if wrong:
            raise ValueError(f"a row of {wrong[0]} cells in a table of {len(self.columns)} columns")

    def _repr_html_(self) -> str:
        """For a notebook."""
        heads = "".join(f"<th>{html.escape(clean(c))}</th>" for c in self.columns)
        rows = "".join(f"<tr>{''.join(f'<td>{html.escape(shown(c))}</td>' for c in row)}</tr>" for row in self.rows)
        note = f"<p>{html.escape(clean(self.note))}</p>" if self.note else ""
        return f"<table><caption>{html.escape(clean(self.title))}</caption><tr>{heads}</tr>{rows}</table>{note}"

    def frame(self) -> pandas.DataFrame:
        """The table for programs: numbers stay numbers, an estimate is five columns."""
        import pandas as pd

        heads, rows = flat(self)
        return pd.DataFrame(rows, columns=pd.Index(_different(heads)))


def shown(cell: Any) -> str:
    """A cell as people read it."""
    if isinstance(cell, Estimate):
        if cell.sd is None:
            return f"{number(cell.mean, 3)} (1 seed)"
        return f"{number(cell.mean, 3)} ± {number(cell.sd, 3)} [{number(cell.low, 3)}, {number(cell.high, 3)}]"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int | float):
        return number(cell)
    return clean(cell) or "–"


def is_number(cell: Any) -> bool:
    """Whether a cell is aligned to the right."""
    return isinstance(cell, int | float | Estimate) and not isinstance(cell, bool)


def sort_key(cell: Any) -> float | str:
    """What a table is sorted by when its column is asked for."""
    if isinstance(cell, Estimate):
        return cell.mean
    return cell if isinstance(cell, int | float) else clean(cell)


def flat(table: Table) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows with every estimate spread over mean, sd, low, high and seeds."""
    spread = [any(isinstance(row[i], Estimate) for row in table.rows) for i in range(len(table.columns))]
    heads: list[str] = []
    for name, wide in zip(table.columns, spread, strict=True):
        heads += [name, *(f"{name} {part}" for part in ("sd", "low", "high", "seeds"))] if wide else [name]
    rows = []
    for row in table.rows:
        cells: list[Any] = []
        for cell, wide in zip(row, spread, strict=True):
            if isinstance(cell, Estimate):
                cells += [cell.mean, cell.sd, cell.low, cell.high, cell.seeds]
            else:
                cells += [cell, None, None, None, None] if wide else [cell]
        rows.append(cells)
    return heads, rows


def as_csv(table: Table) -> str:
    """Comma-separated values, full precision; no cell is a formula."""
    heads, rows = flat(table)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([csv_cell(h) for h in heads])
    writer.writerows([csv_cell(cell) for cell in row] for row in rows)
    return out.getvalue()


def as_markdown(table: Table) -> str:
    """A table of pipes."""
    heads = [markdown(c) or " " for c in table.columns]
    body = [[markdown(shown(cell)) for cell in row] for row in table.rows]
    lines = [
        f"**{markdown(table.title)}**",
        "",
        _pipes(heads),
        _pipes(["---:" if _numeric(table, i) else "---" for i in range(len(heads))]),
    ]
    lines += [_pipes(row) for row in body]
    return "\n".join([*lines, *(["", markdown(table.note)] if table.note else [])]) + "\n"


def as_latex(table: Table) -> str:
    """A floating table for the package booktabs."""
    align = "".join("r" if _numeric(table, i) else "l" for i in range(len(table.columns)))
    body = [" & ".join(latex(shown(cell)) for cell in row) + r" \\" for row in table.rows]
    note = rf" {latex(table.note)}" if table.note else ""
    return "\n".join([
        "% needs \\usepackage{booktabs} and \\usepackage[T1]{fontenc}, \\usepackage{textcomp}",
        r"\begin{table}", r"\centering", rf"\caption{{{latex(table.title)}.{note}}}",
        rf"\begin{{tabular}}{{{align}}}", r"\toprule",
        " & ".join(latex(c) for c in table.columns) + r" \\", r"\midrule", *body, r"\bottomrule",
        r"\end{tabular}", r"\end{table}", "",
    ])  # fmt: skip


def as_text(table: Table) -> str:
    """Columns of plain text, for a terminal."""
    body = [[clean(c) for c in table.columns], *([shown(cell) for cell in row] for row in table.rows)]
    widths = [max(len(row[i]) for row in body) for i in range(len(table.columns))]
    right = [_numeric(table, i) for i in range(len(table.columns))]
    lines = [
        "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)).rstrip()
        for row in body
    ]
    lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join([clean(table.title), "", *lines, *(["", clean(table.note)] if table.note else [])]) + "\n"


def as_parquet(table: Table) -> bytes:
    """A parquet file: numbers stay numbers, columns of mixed kinds become text."""
    import pyarrow as pa
    from pyarrow import parquet

    heads, rows = flat(table)
    columns = [_typed([row[i] for row in rows]) for i in range(len(heads))]
    out = io.BytesIO()
    parquet.write_table(pa.table([pa.array(c) for c in columns], names=_different(heads)), out)
    return out.getvalue()


FORMS: dict[str, Callable[[Table], str | bytes]] = {
    "csv": as_csv,
    "latex": as_latex,
    "markdown": as_markdown,
    "parquet": as_parquet,
    "text": as_text,
}


def render(table: Table, form: str) -> str | bytes:
    """A table in one of `FORMS`."""
    if form not in FORMS:
        raise LeaklineError(f"there is no format {clean(form)!r}", fix=f"one of: {', '.join(FORMS)}")
    return FORMS[form](table)


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _numeric(table: Table, column: int) -> bool:
    cells = [row[column] for row in table.rows if row[column] is not None]
    return bool(cells) and all(is_number(cell) for cell in cells)


def _typed(values: list[Any]) -> list[Any]:
    kinds = {type(v) for v in values if v is not None}
    if kinds <= {int, float}:
        return [None if v is None else float(v) for v in values] if float in kinds else values
    # Lone surrogates, which JSON can smuggle in, are no UTF-8.
    return [None if v is None else str(v).encode("utf-8", "replace").decode() for v in values]


def _different(heads: Sequence[str]) -> list[str]:
    found: list[str] = []
    for head in heads:
        name, number_ = head.encode("utf-8", "replace").decode(), 1
        while name in found:
            number_ += 1
            name = f"{head} ({number_})"
        found.append(name)
    return found
