"""`leakline compare`: two runs, or two cells of one run, side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakline.cli.console import JsonOption, out
from leakline.cli.gate import FailIf, stop
from leakline.cli.loading import read_store
from leakline.errors import LeaklineError

if TYPE_CHECKING:
    from leakline.decide.compare import Pair


def compare(
    left: Annotated[str, typer.Argument(help="A run directory, or with --in the labels of a cell.")],
    right: Annotated[str, typer.Argument(help="What to compare it with.")],
    inside: Annotated[
        Path | None,
        typer.Option("--in", help='A run directory: LEFT and RIGHT are then labels in it, such as "none" "global-dp".'),
    ] = None,
    fail_if: FailIf = [],  # noqa: B006
    as_json: JsonOption = False,
) -> None:
    """Two runs, or two cells of one run: settings that differ, utility and leak side by side, and if it matters.

    Conditions of --fail-if are held against the right-hand side.
    """
    pairs = _within(inside, left, right) if inside is not None else _between(Path(left), Path(right))
    if as_json:
        out.print_json(json.dumps([pair.as_dict() for pair in pairs], allow_nan=False))
    else:
        for pair in pairs:
            _show(pair)
    if fail_if:
        right_side = [(f"{p.right} {p.where}".strip(), p.where or p.right, p.rows) for p in pairs]
        stop(fail_if, [(w, d, {n: b for n, _, b in rows if b is not None}) for w, d, rows in right_side])


def _within(root: Path, left: str, right: str) -> list[Pair]:
    from leakline.decide.compare import find_setting, pair

    results = read_store(root)
    return [pair(left, find_setting(results, left), right, find_setting(results, right))]


def _between(left: Path, right: Path) -> list[Pair]:
    from leakline.decide.compare import matching, pair

    a, b = read_store(left), read_store(right)
    matches = matching(a, b)
    if not matches:
        raise LeaklineError(
            "no finished cell has the same labels in both directories",
            f"{left.name} and {right.name}",
            "run the same study twice, or compare two cells of one run: leakline compare --in RUN none global-dp",
        )
    names = (left.name, right.name) if left.name != right.name else (str(left), str(right))
    marks = [" ".join(str(v) for v in s.labels.values()) for s, _ in matches]
    return [pair(names[0], s, names[1], t, mark) for mark, (s, t) in zip(marks, matches, strict=True)]


def _show(pair: Pair) -> None:
    from rich.table import Table as Grid

    from leakline.text import clean

    table = pair.narrow()
    out.rule(clean(table.title), align="left")
    out.print("Settings that differ" if pair.settings else "No setting differs")
    if pair.settings:
        widths = Grid("setting", clean(pair.left), clean(pair.right), box=None, pad_edge=False)
        for key, a, b in pair.settings:
            widths.add_row(clean(key), clean(a), clean(b))
        out.print(widths)
    out.print()
    grid = Grid(*(clean(c) for c in table.columns), box=None, pad_edge=False)
    for row in table.rows:
        grid.add_row(*(clean(cell) for cell in row), style=None if row[1] else "bold")
    out.print(grid)
    out.print(f"\n{table.note}\n")
