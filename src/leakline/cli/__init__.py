"""The command line: one verb a file, put together here.

`console` holds what the verbs share, `gate` the conditions of ``--fail-if``, `progress` the bar of long commands.
Heavy imports happen inside the commands, so that ``leakline --help`` answers at once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from leakline import __version__
from leakline.cli import (
    archive,
    attach,
    attack,
    audit,
    check,
    choose,
    compare,
    data,
    doctor,
    export,
    flower,
    init,
    node,
    papers,
    recommend,
    report,
    run,
    schema,
    share,
    superlink,
    verify,
)
from leakline.cli.console import err, out
from leakline.cli.list import list_
from leakline.cli.verb import Verb
from leakline.errors import LeaklineError

app = typer.Typer(
    no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="What does a federated-learning system promise, and what does it really leak?",
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(audit.audit)
app.command()(attack.attack)
app.command()(compare.compare)
app.command()(choose.choose)
app.command()(recommend.recommend)
app.command()(init.init)
app.command()(check.check)
app.command()(run.run)
app.command("list")(list_)
app.command()(report.report)
app.command()(export.export)
app.command()(archive.archive)
app.command()(papers.papers)
app.command()(share.share)
app.command()(verify.verify)
app.command()(schema.schema)
app.command()(doctor.doctor)
app.add_typer(data.data_app, name="data")
app.add_typer(flower.flower_app, name="flower")
for verb in (node.node, attach.attach, attach.stop, superlink.register, superlink.proxy):
    flower.flower_app.command()(verb)
for group in (app, data.data_app, flower.flower_app):
    for info in group.registered_commands:
        info.cls = Verb


def main() -> None:
    """Entry point: errors that a user can mend end with exit code 2 and no traceback."""
    try:
        app(standalone_mode=True)
    except LeaklineError as error:
        err.print(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        err.print("stopped; the same command goes on where it was")
        sys.exit(130)
    except OSError as error:
        what = f"{error.strerror or error}: {Path(str(error.filename or '')).name}"
        err.print(str(LeaklineError(what, fix="check the path, its permissions and the free space")))
        sys.exit(2)
    except Exception as error:  # what nobody foresaw: a damaged or hostile input, or a bug
        if os.environ.get("LEAKLINE_TRACEBACK"):
            raise
        what = f"{type(error).__name__}: {ascii(str(error))[1:161]}"
        fix = "something that was read is not what it should be, or this is a bug: LEAKLINE_TRACEBACK=1 shows where"
        err.print(str(LeaklineError(what, fix=fix)))
        sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"leakline {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train federations under privacy defences, attack them, and print both halves on one card."""
