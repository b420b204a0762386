"""`leakline flower node`: what a hospital's engineer checks, and starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakline.cli.console import err, out
from leakline.cli.loading import TrustOption, load_study
from leakline.errors import LeaklineError


def node(
    file: Annotated[Path, typer.Argument(help="The node's own file, such as north.toml.")],
    check: Annotated[bool, typer.Option("--check", help="Look at everything, and start nothing.")] = False,
    study: Annotated[str, typer.Option(help="A study to hold this node's data and policy against.")] = "",
    preset: Annotated[str, typer.Option(help="A study's preset.")] = "",
    new: Annotated[bool, typer.Option("--new", help="Write such a file, and a key pair, to begin with.")] = False,
    trust: TrustOption = False,
) -> None:
    """Check a node (versions, keys, SuperLink, clock, data, disk, policy) and start it.

    What is wrong ends the command with exit code 2 before anything is started. A SuperLink that does not answer yet
    is waited for.
    """
    from leakline.flower import need_flower

    need_flower()
    from leakline.flower.node.checks import look
    from leakline.flower.node.settings import read_node
    from leakline.flower.node.start import become, write_new
    from leakline.flower.transport.submit import Asked

    if new:
        made, public = write_new(file, file.stem)
        out.print(f"{made}: fill it in; {public}: have it registered at the SuperLink")
        return
    settings = read_node(file)
    asked = Asked(load_study(study, preset, trust=trust).text, preset) if study else None
    wrong = []
    for line in look(settings, asked):
        out.print(f"{line.name:<10} {line.verdict:<6} {line.text}")
        wrong += [line.name] * (line.verdict == "wrong" and (check or line.name != "superlink"))
    if wrong:
        raise LeaklineError(f"{len(wrong)} of these are wrong: {', '.join(dict.fromkeys(wrong))}", file.name)
    if not check:
        err.print(f"starting the SuperNode of {settings.client}")
        become(settings)
