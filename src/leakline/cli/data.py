"""`leakline data`: data sets, what is here, and how to bring more."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from leakline.cli.console import out
from leakline.cli.list import list_
from leakline.errors import LeaklineError

data_app = typer.Typer(no_args_is_help=True, help="Data sets: what is here, and how to bring more.")


@data_app.command("list")
def data_list() -> None:
    """Data sets, and whether they can be loaded here."""
    list_("datasets")


@data_app.command("prepare")
def data_prepare(
    name: Annotated[str, typer.Argument(help="Which data set.")],
    source: Annotated[Path, typer.Option(help="The official distribution, downloaded and unpacked.")],
    to: Annotated[Path | None, typer.Option(help="Folder for the result (default: $LEAKLINE_DATA).")] = None,
) -> None:
    """Turn a data set's official distribution into the file that leakline reads."""
    from leakline.data.prepare import PREPARE

    if name not in PREPARE:
        raise LeaklineError(f"nothing is known about preparing {name!r}", fix=f"one of: {', '.join(sorted(PREPARE))}")
    folder = to or (Path(os.environ["LEAKLINE_DATA"]) if os.environ.get("LEAKLINE_DATA") else None)
    if folder is None:
        raise LeaklineError("no folder to write to", fix="give --to FOLDER, or set LEAKLINE_DATA")
    out.print(str(PREPARE[name](source, folder)))
