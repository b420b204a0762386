"""The command line: check, run, list, report, export, data, doctor.

Heavy imports happen inside the commands, so that ``leakline --help`` answers at once.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from leakline import __version__
from leakline.cli import audit as cli_audit
from leakline.cli import decide as cli_decide
from leakline.cli import flower as cli_flower
from leakline.cli import init as cli_init
from leakline.cli import recorded as cli_recorded
from leakline.errors import LeaklineError

if TYPE_CHECKING:
    from leakline.cards import Card

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="What does a federated-learning system promise, and what does it really leak?",
)  # fmt: skip
data_app = typer.Typer(no_args_is_help=True, help="Data sets: what is here, and how to bring more.")
app.add_typer(data_app, name="data")
cli_audit.register(app)
cli_recorded.register(app)
cli_decide.register(app)
cli_flower.register(app)
cli_init.register(app)
out = Console(highlight=False, soft_wrap=True, emoji=False, markup=False)
err = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False, markup=False)

StudyArgument = Annotated[str, typer.Argument(help="A .toml file, or the name of a built-in study.")]
PresetOption = Annotated[
    str, typer.Option(help='"desk" (minutes) or "paper" (the paper\'s own size), where a study has them.')
]
SetOption = Annotated[list[str], typer.Option("-s", "--set", help="key=v1,v2: override a key; several values sweep.")]
OnlyOption = Annotated[
    list[str], typer.Option("--only", help="label=v1,v2: these cells only, such as strategy=fedavg or seed=0.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main() -> None:
    """Entry point: errors that a user can mend end with exit code 2 and no traceback."""
    # `model = "model:build"` means a file beside the study; behind all others, so that it hides no installed package.
    sys.path.append(os.getcwd())
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


def print_card(card: Card) -> None:
    """A card on the terminal."""
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 1), pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in card.rows():
        table.add_row("WARNING" if label == "!" else label, text, style="bold red" if label == "!" else None)
    out.rule(card.title, align="left")
    out.print(table)


@app.command()
def check(
    study: StudyArgument,
    preset: PresetOption = "",
    sets: SetOption = [],  # noqa: B006
    only: OnlyOption = [],  # noqa: B006
    as_json: JsonOption = False,
) -> None:
    """Validate a study without training: partition, model, every formal card, time, memory and disk."""
    from leakline.study.check import check_study
    from leakline.study.spec import load

    found = check_study(load(study, preset, sets).only(only))
    if as_json:
        out.print_json(json.dumps(found.as_dict()))
    else:
        found.show(out, print_card)
    if found.problems:
        raise typer.Exit(2)


@app.command()
def run(
    study: StudyArgument,
    preset: PresetOption = "",
    out_dir: Annotated[Path | None, typer.Option("--out", help="Where results go (default: runs/NAME).")] = None,
    sets: SetOption = [],  # noqa: B006
    only: OnlyOption = [],  # noqa: B006
    workers: Annotated[
        int, typer.Option(help="Worker processes; 0 takes one per core. Results do not depend on it.")
    ] = 0,
    fail_if: cli_decide.FailIf = [],  # noqa: B006
    on: cli_flower.OnOption = "local",
    superlink: cli_flower.SuperlinkOption = "",
    certificate: cli_flower.CertificateOption = None,
    insecure: cli_flower.InsecureOption = False,
    deadline: cli_flower.DeadlineOption = 3600.0,
) -> None:
    """Train what is missing, attack, measure, report. The same command goes on after an interruption."""
    from leakline.report.page.build import build_report
    from leakline.study.carded import card_of
    from leakline.study.run import declared, run_study
    from leakline.study.spec import load

    loaded = load(study, preset, sets).only(only)
    cli_decide.check_conditions(fail_if, loaded.every_attack)
    cli_flower.check_place(on)
    root = out_dir if out_dir is not None else Path("runs") / loaded.name
    for note in loaded.notes:
        out.print(f"note: {note}")
    shown: set[str] = set()
    measures = declared(a for cell in loaded.cells for a in loaded.attacks_on(cell).values()).values()
    failures, broken = 0, False
    with _Progress(len(loaded.cells)) as progress:
        link = (superlink, certificate, insecure)
        left, opens = cli_flower.train(on, loaded, (preset, sets, only), root, link, deadline, progress.round)
        for note in left.notes[len(loaded.notes) :]:
            out.print(f"note: {note}")
        for outcome in run_study(left, root, workers=workers, progress=progress.round, says=progress.say, opens=opens):
            progress.cell(
                outcome.cell.name,
                "failed" if outcome.error else "trained" if outcome.trained else "already there",
            )
            if outcome.error:
                failures += 1
                err.print(f"{outcome.cell.name} failed\n{outcome.error}")
            elif outcome.run is not None and outcome.run.end is not None:
                label = " ".join(str(v) for k, v in outcome.cell.labels.items() if k != "seed")
                if label not in shown:
                    shown.add(label)
                    card = card_of(outcome.run, outcome.cell.name, measures)
                    broken |= bool(card.broken)
                    print_card(card)
    page = build_report(root)
    out.print(f"\n{len(loaded.cells) - failures} of {len(loaded.cells)} cells done; report: {page}")
    if broken:
        err.print("a measured bound exceeds its promise: see the card")
        raise typer.Exit(3)
    cli_decide.gate(root, fail_if)
    if failures:
        raise typer.Exit(1)


class _Progress:
    """A live bar on a terminal; otherwise a plain line now and then."""

    def __init__(self, cells: int) -> None:
        self.cells, self.done, self.last = cells, 0, 0.0
        self.started = time.monotonic()
        self.rounds_done = 0
        self.bar: Any = None

    def __enter__(self) -> _Progress:
        if out.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed:.1f}/{task.total:.0f} cells"),
                TimeRemainingColumn(),
            )
            self.bar = Progress(*columns, console=out, transient=True)
            self.bar.start()
            self.task = self.bar.add_task("starting", total=self.cells)
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def round(self, cell: str, done: int, rounds: int, figures: Mapping[str, float]) -> None:
        shown = next((f"{k} {v:.3f}" for k, v in figures.items()), "")
        if self.bar is not None:
            self.bar.update(
                self.task,
                description=f"{cell}: round {done}/{rounds} {shown}",
                completed=self.done + done / rounds,
            )
        elif time.monotonic() - self.last > 30:
            self.last = time.monotonic()
            out.print(f"{cell}: round {done}/{rounds} {shown}{self._left(done / rounds)}")

    def say(self, line: str) -> None:
        if self.bar is not None:
            self.bar.update(self.task, description=line)
        elif time.monotonic() - self.last > 30:
            self.last = time.monotonic()
            out.print(line)

    def cell(self, name: str, how: str) -> None:
        self.done += 1
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done)
        elif time.monotonic() - self.last > 30 or self.done == self.cells:
            self.last = time.monotonic()
            out.print(f"{name}: {how}{self._left(0)}")

    def _left(self, part: float) -> str:
        share = (self.done + part) / self.cells
        spent = time.monotonic() - self.started
        return f" ({spent * (1 - share) / share / 60:.1f} min left)" if share > 0 and spent > 5 else ""


MENUS = (
    "strategies",
    "defences",
    "attacks",
    "datasets",
    "partitioners",
    "models",
    "losses",
    "studies",
    "tables",
)


@app.command("list")
def list_(what: Annotated[str, typer.Argument(help=" | ".join(MENUS))], as_json: JsonOption = False) -> None:
    """What there is to choose from, one line each."""
    from leakline.study.menus import menu

    if what not in MENUS:
        raise LeaklineError(f"there is no list of {what!r}", fix=f"one of: {', '.join(MENUS)}")
    rows = menu(what)
    if as_json:
        out.print_json(json.dumps(rows))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        extra = "; ".join(f"{k}: {v}" for k, v in row.items() if k not in ("name", "what") and v)
        out.print(f"{row['name']:<{width}}  {row['what']}" + (f"  [{extra}]" if extra else ""))


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(help="What `leakline run` wrote, or a recording.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where the page goes (default: DIR/report.html).")
    ] = None,
    shareable: Annotated[bool, typer.Option(help="Leave out the study file and all images of people's data.")] = False,
    images: Annotated[bool, typer.Option("--images/--no-images", help="Images that attacks reconstructed.")] = True,
    fail_if: cli_decide.FailIf = [],  # noqa: B006
) -> None:
    """Write the report of a run directory or of a recording: one HTML file that needs no network."""
    if cli_recorded.is_recorded(directory):
        out.print(str(cli_recorded.report_recording(directory, output, shareable or not images, fail_if)))
        return
    from leakline.report.page.build import build_report

    out.print(str(build_report(directory, output, shareable, images)))
    cli_decide.gate(directory, fail_if)


@app.command()
def export(
    directory: Annotated[Path, typer.Argument(help="What `leakline run` wrote.")],
    table: Annotated[str, typer.Option(help="Which table; `leakline list tables` names them; or all.")] = "utility",
    figure: Annotated[str, typer.Option(help="A figure instead: clients, curves, promises, roc or tradeoff.")] = "",
    form: Annotated[
        str, typer.Option("--format", help="csv, latex, markdown, text or parquet; of a figure, svg or png.")
    ] = "markdown",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A file (or, for figures, a folder) instead of the terminal.")
    ] = None,
) -> None:
    """A table or figure of a run in the form that a paper, a sheet or a script takes."""
    if figure:
        from leakline.report.charts.menu import save

        for path in save(directory, figure, output or Path("."), "svg" if form == "markdown" else form):
            out.print(str(path))
        return
    from leakline.report.tables.menu import TABLES, render, save_all

    if table == "all":
        for path in save_all(directory, form, output or Path(".")):
            out.print(str(path))
        return
    if table not in TABLES:
        raise LeaklineError(f"there is no table {table!r}", fix=f"one of: {', '.join(sorted(TABLES))}")
    rendered = render(TABLES[table](directory), form)
    if isinstance(rendered, bytes) and output is None:
        raise LeaklineError(f"{form} is not text", fix="give a file: -o table.parquet")
    if output is None:
        sys.stdout.write(rendered if isinstance(rendered, str) else "")
    else:
        output.write_bytes(rendered if isinstance(rendered, bytes) else rendered.encode())


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


@app.command()
def doctor() -> None:
    """Versions, devices, threads, disk, data: what a bug report or a colleague needs to know."""
    from leakline.study.menus import doctor as look

    rows, healthy = look()
    for name, text in rows:
        out.print(f"{name:<14} {text}")
    if not healthy:
        raise typer.Exit(1)


if __name__ == "__main__":
    main()
