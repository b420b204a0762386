"""`leakline archive`: what was measured, in one small file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakline.cli.console import out
from leakline.errors import LeaklineError


def archive(
    stores: Annotated[
        list[Path], typer.Argument(help="Run directories or archives of one study, such as one for each seed.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file, NAME.zip; replaced if it is there.")],
    slim: Annotated[bool, typer.Option("--slim", help="Of single clients keep the last round's figures.")] = False,
) -> None:
    """Put what was measured of finished cells into one file that every other command reads: no models, no images."""
    from leakline.results.archive import SUFFIX, write_archive

    if output.suffix != SUFFIX:
        raise LeaklineError(f"an archive is called NAME{SUFFIX}", where=output.name, fix=f"-o {output.stem}{SUFFIX}")
    cells = write_archive(stores, output, slim)
    out.print(
        f"{output}: {cells} cells, {output.stat().st_size / 2**20:.1f} MB; names of clients and classes are in it"
    )
