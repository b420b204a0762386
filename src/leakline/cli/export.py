"""`leakline export`: a table or a figure for a paper, a sheet or a script."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from leakline.cli.console import out
from leakline.cli.loading import read_store
from leakline.errors import LeaklineError


def export(
    directory: Annotated[Path, typer.Argument(help="What `leakline run` wrote.")],
    table: Annotated[str, typer.Option(help="Which table; `leakline list tables` names them; or all.")] = "utility",
    figure: Annotated[str, typer.Option(help="A figure instead: curves, tradeoff, ..., or a paper.")] = "",
    form: Annotated[
        str, typer.Option("--format", help="csv, latex, markdown, text or parquet; of a figure, svg or png.")
    ] = "markdown",
    against: Annotated[
        str, typer.Option(help='Of table paired: compare with the cells of this label, such as "defence=dp-sgd".')
    ] = "",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A file (or, for figures, a folder) instead of the terminal.")
    ] = None,
) -> None:
    """A table or figure of a run in the form that a paper, a sheet or a script takes."""
    if figure:
        from leakline.report.charts.menu import save

        for path in save(read_store(directory), figure, output or Path("."), "svg" if form == "markdown" else form):
            out.print(str(path))
        return
    from leakline.report.tables.menu import every_table, render, save_all
    from leakline.report.tables.paired import paired_against

    tables = every_table()
    if table not in ("all", *tables):
        raise LeaklineError(f"there is no table {table!r}", fix=f"one of: {', '.join(sorted(tables))}")
    results = read_store(directory)
    if table == "all":
        for path in save_all(results, form, output or Path(".")):
            out.print(str(path))
        return
    if against and table != "paired":
        raise LeaklineError("--against belongs to --table paired", fix="add it, or leave --against out")
    made = paired_against(results, against) if against else tables[table](results)
    rendered = render(made, form)
    if isinstance(rendered, bytes) and output is None:
        raise LeaklineError(f"{form} is not text", fix="give a file: -o table.parquet")
    if output is None:
        sys.stdout.write(rendered if isinstance(rendered, str) else "")
    else:
        output.write_bytes(rendered if isinstance(rendered, bytes) else rendered.encode())
