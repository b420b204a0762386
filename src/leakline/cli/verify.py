"""`leakline verify`: every seal, count and card of a run directory looked at again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakline.cli.console import err, out


def verify(directory: Annotated[Path, typer.Argument(help="What `leakline run` wrote.")]) -> None:
    """Look at every seal, line and card of a run directory again. Exit code 2 if anything is wrong."""
    from leakline.study.verify import verify as look
    from leakline.text import clean

    verified = look(directory)
    for text in verified.problems:
        err.print(clean(text))
    for text in verified.unchecked:
        out.print(clean(f"not checked: {text}"))
    if verified.problems:
        raise typer.Exit(2)
    out.print(f"{verified.runs} runs: every seal fits, and nothing is missing")
