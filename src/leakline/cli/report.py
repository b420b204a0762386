"""`leakline report`: one HTML file of a run directory or of a recording."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from leakline.cli import gate
from leakline.cli.console import out
from leakline.cli.loading import read_store
from leakline.errors import LeaklineError
from leakline.recordings import is_recording


def report(
    directory: Annotated[Path, typer.Argument(help="What `leakline run` wrote, or a recording.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where the page goes (default: DIR/report.html).")
    ] = None,
    shareable: Annotated[
        bool, typer.Option(help="No study file, images, names of clients and classes or failures.")
    ] = False,
    images: Annotated[bool, typer.Option("--images/--no-images", help="Images that attacks reconstructed.")] = True,
    fail_if: gate.FailIf = [],  # noqa: B006
) -> None:
    """Write the report of a run directory or of a recording: one HTML file that needs no network."""
    if is_recording(directory):
        out.print(str(_of_recording(directory, output, shareable or not images, fail_if)))
        return
    from leakline.report.page.build import build_report

    results = read_store(directory)
    out.print(str(build_report(results, output, shareable, images)))
    gate.gate(results, fail_if)


def _of_recording(directory: Path, output: Path | None, shareable: bool, fail_if: Sequence[str]) -> Path:
    """The page of a recording."""
    from leakline.report.page.recording import build_recording_report

    if fail_if:
        raise LeaklineError("--fail-if is for studies", fix="`leakline audit DIR` ends with 3 where a claim is broken")
    return build_recording_report(directory, output, shareable)
