"""`leakline init`: a folder with a commented study to start from, on embedded data or for your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakline.cli.console import out
from leakline.errors import LeaklineError

EMBEDDED = {"study.toml": "study.toml"}
OWN = {"study.toml": "own.toml", "model.py": "model.py.txt"}


def start(name: str, own: bool, where: Path) -> list[Path]:
    """Write the files of a new study into ``where / name`` and say which; nothing is ever overwritten."""
    from importlib.resources import files

    from leakline.names import is_safe

    if not is_safe(name):
        raise LeaklineError(
            "a study's name is letters, digits, '_', '.' and '-', at most 64 of them", fix="for example hospital-demo"
        )
    folder = where / name
    wanted = OWN if own else EMBEDDED
    there = [file for file in wanted if (folder / file).exists()]
    if there:
        raise LeaklineError(f"{name}/{there[0]} is there already", fix="take another name, or move it away")
    folder.mkdir(parents=True, exist_ok=True)
    for file, source in wanted.items():
        text = (files("leakline.cli") / "starters" / source).read_text(encoding="utf-8")
        (folder / file).write_text(text.replace("@NAME@", name), encoding="utf-8")
    return [folder / file for file in wanted]


def init(
    name: Annotated[str, typer.Argument(help="The study's name; its folder is made here.")],
    own: Annotated[bool, typer.Option("--own", help="For your own image folder and your own model.")] = False,
) -> None:
    """Start a study: a commented study.toml on embedded data, or with --own for your images and your model."""
    for path in start(name, own, Path(".")):
        out.print(str(path))
    if own:
        out.print("\nPut images into images/CLASS/*.png there, and your network into model.py. Then:")
    else:
        out.print("\nThen:")
    trust = " --trust" if own else ""
    out.print(f"  cd {name}\n  leakline check study.toml{trust}\n  leakline run study.toml")
