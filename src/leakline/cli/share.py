"""`leakline share`: a folder with what may leave the house, and nothing else of a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakline.cli.console import out
from leakline.cli.loading import read_store
from leakline.errors import LeaklineError


def share(
    directory: Annotated[Path, typer.Argument(help="What `leakline run` wrote.")],
    folder: Annotated[Path, typer.Argument(help="A new folder for the page and the tables.")],
) -> None:
    """Write the report and every table without names of clients and classes, paths, failures, images or models."""
    from leakline.report.page.build import build_report
    from leakline.report.tables.menu import save_all
    from leakline.results.share import shareable

    if folder.exists():
        raise LeaklineError(f"{folder.name} is there already", fix="give a new folder, so that nothing else lies in it")
    results = shareable(read_store(directory))
    for path in [*save_all(results, "csv", folder), build_report(results, folder / "report.html", shareable=True)]:
        out.print(str(path))
