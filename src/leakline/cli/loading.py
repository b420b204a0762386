"""How every verb reads a study: code in it that is not leakline's is run only once somebody has agreed to it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakline.cli.console import err

if TYPE_CHECKING:
    from leakline.results import Results
    from leakline.study import Study

TrustOption = Annotated[
    bool, typer.Option("--trust", help="Run the study's own code (files beside it) without asking; asked once else.")
]


def load_study(study: str, preset: str = "", sets: Sequence[str] = (), trust: bool = False) -> Study:
    """A study, with the consent to its foreign code asked for on a terminal and remembered."""
    from leakline.study.consent import Untrusted, remember
    from leakline.study.spec import load

    try:
        loaded = load(study, preset, sets, trust=trust)
    except Untrusted as error:
        if not _agreed(error):
            raise
        remember(error.codes)
        return load_study(study, preset, sets)
    remember(loaded.foreign)
    return loaded


def read_store(root: Path) -> Results:
    """What a run directory or an archive holds; whatever is damaged in it is named on the terminal and left out."""
    from leakline.results import read
    from leakline.results.archive import is_archive, read_archive
    from leakline.text import clean

    results = read_archive(root) if is_archive(root) else read(root)
    for text in results.damaged:
        err.print(clean(f"damaged, left out: {text}"))
    return results


def _agreed(error: Exception) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    err.print(str(error))
    return typer.confirm("run it?", default=False, err=True)
