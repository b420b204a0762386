"""`leakline papers`: what became of the papers' numbers, from stores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakline.cli.console import out
from leakline.cli.loading import read_store


def papers(
    stores: Annotated[
        list[Path] | None, typer.Argument(help="What `leakline run` wrote of papers' studies; none: all is not run.")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the pages.")] = Path("docs/papers"),
    readme: Annotated[
        Path | None, typer.Option(help="A file with the lines `papers: begin` and `papers: end` for the summary.")
    ] = None,
) -> None:
    """One page a paper, table by table: the paper's number, ours, n, seeds, interval, verdict; nothing by hand."""
    from leakline.report.paper_pages import pages, put, summary

    found = [read_store(store) for store in stores or []]
    made = pages(found)
    block = None
    if readme is not None:
        folder = f"{output.name}/" if output.resolve().parent == readme.resolve().parent else f"{output.as_posix()}/"
        block = put(readme.read_text("utf-8"), summary(found, folder))
    output.mkdir(parents=True, exist_ok=True)
    for name, text in made.items():
        (output / name).write_bytes(text.encode())
        out.print(str(output / name))
    if readme is not None and block is not None:
        readme.write_bytes(block.encode())
        out.print(str(readme))
