"""`leakline flower attach` and `stop`: a study that was handed to a SuperLink, after its terminal was closed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakline.cli.console import out
from leakline.cli.progress import Progress
from leakline.cli.run import finish, shown

RunArgument = Annotated[Path, typer.Argument(help="The run directory (--out of `leakline run`, or runs/NAME).")]


def attach(run: RunArgument) -> None:
    """Watch a study that is at work on a SuperLink, and end as `leakline run` would have; Ctrl-C leaves it at work."""
    from leakline.flower import need_flower

    need_flower()
    from leakline.flower.transport.drive import attached
    from leakline.flower.transport.submit import Sent
    from leakline.study.run import run_study

    loaded = Sent.kept(run).asked.study()
    with Progress(len(loaded.cells)) as progress:
        left, opens = attached(run, progress=progress.round)
        for note in left.notes[len(loaded.notes) :]:
            out.print(f"note: {note}")
        ended = shown(loaded, run_study(left, run, watch=progress.standing, opens=opens), progress)
    finish(ended, run)


def stop(run: RunArgument) -> None:
    """End a study that is at work on a SuperLink; the same `leakline run` goes on after its last round."""
    from leakline.flower import need_flower

    need_flower()
    from leakline.flower.transport.submit import stop_run

    out.print(f"{run.name}: {stop_run(run)}; the same `leakline run` goes on after the last round")
