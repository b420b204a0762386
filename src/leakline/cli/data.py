"""`leakline data`: data sets, what is here, and how to bring more."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from leakline.cli.console import OnlyOption, PresetOption, SetOption, StudyArgument, out
from leakline.cli.list import list_
from leakline.cli.loading import TrustOption, load_study
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


@data_app.command("show")
def data_show(
    study: StudyArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="The PNG file to write.")],
    preset: PresetOption = "",
    sets: SetOption = [],  # noqa: B006
    only: OnlyOption = [],  # noqa: B006
    each: Annotated[int, typer.Option(min=1, max=20, help="Examples of each class.")] = 4,
    trust: TrustOption = False,
) -> None:
    """Draw examples of every class as a study's clients hold them: images, masks, signals; of the first scenario."""
    from leakline.report.charts.examples import examples_png

    task = load_study(study, preset, sets, trust).only(only).cells[0].federation().task
    picture = examples_png(task, each)
    try:
        output.write_bytes(picture)
    except OSError as error:
        raise LeaklineError(
            f"{output} cannot be written: {error.strerror}", fix="give -o a file in a folder that is there"
        ) from error
    for remark in task.remarks:
        out.print(f"note: {remark}")
    out.print(f"{output}: training examples as they are: keep the file as you keep the data")
