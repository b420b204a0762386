"""`leakline compare`, `leakline choose` and the gate `--fail-if`: what a pipeline or a board decides by.

A condition that comes true ends with exit code 4, and so does `choose` when no setting keeps the limits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leakline.errors import LeaklineError

if TYPE_CHECKING:
    from leakline.cards import Card
    from leakline.decide.choose import Candidate
    from leakline.decide.compare import Pair
    from leakline.results import Results

FailIf = Annotated[
    list[str],
    typer.Option(
        "--fail-if",
        help='Exit code 4 if this is true of a finished cell: "membership.auc > 0.6", "global-dp: epsilon > 10".',
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def check_conditions(conditions: Sequence[str], attacks: Iterable[str]) -> None:
    """Before training: every condition can be read, and the attacks it names are in the study."""
    if conditions:
        from leakline.decide.limits import check_attacks, read_limit

        check_attacks([read_limit(text) for text in conditions], attacks)


def gate(results: Results, conditions: Sequence[str]) -> None:
    """End with exit code 4 if a condition is true of a finished cell."""
    if conditions:
        from leakline.decide.limits import places_of

        _stop(conditions, places_of(results))


def gate_cards(cards: Sequence[Card], conditions: Sequence[str]) -> None:
    """`gate` over cards, for commands that make no store."""
    if conditions:
        from leakline.decide.limits import figures_of_card

        _stop(conditions, [(card.title, card.title, figures_of_card(card)) for card in cards])


def _stop(conditions: Sequence[str], found: Sequence[tuple[str, str, Any]]) -> None:
    from leakline.cli import err
    from leakline.decide.limits import hits, read_limit
    from leakline.text import clean

    if not found:
        err.print("--fail-if: no cell is finished, so nothing can be said")
        raise typer.Exit(4)
    true = hits([read_limit(text) for text in conditions], found)
    for hit in true:
        err.print(clean(f"--fail-if: {hit}"))
    if true:
        raise typer.Exit(4)


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
    from leakline.cli import out

    pairs = _within(inside, left, right) if inside is not None else _between(Path(left), Path(right))
    if as_json:
        out.print_json(json.dumps([pair.as_dict() for pair in pairs], allow_nan=False))
    else:
        for pair in pairs:
            _show(pair)
    if fail_if:
        right_side = [(f"{p.right} {p.where}".strip(), p.where or p.right, p.rows) for p in pairs]
        _stop(fail_if, [(w, d, {n: b for n, _, b in rows if b is not None}) for w, d, rows in right_side])


def _within(root: Path, left: str, right: str) -> list[Pair]:
    from leakline.decide.compare import find_setting, pair
    from leakline.results import read

    results = read(root)
    return [pair(left, find_setting(results, left), right, find_setting(results, right))]


def _between(left: Path, right: Path) -> list[Pair]:
    from leakline.decide.compare import matching, pair
    from leakline.results import read

    a, b = read(left), read(right)
    found = matching(a, b)
    if not found:
        raise LeaklineError(
            "no finished cell has the same labels in both directories",
            f"{left.name} and {right.name}",
            "run the same study twice, or compare two cells of one run: leakline compare --in RUN none global-dp",
        )
    names = (left.name, right.name) if left.name != right.name else (str(left), str(right))
    marks = [" ".join(str(v) for v in s.labels.values()) for s, _ in found]
    return [pair(names[0], s, names[1], t, mark) for mark, (s, t) in zip(marks, found, strict=True)]


def _show(pair: Pair) -> None:
    from rich.table import Table as Grid

    from leakline.cli import out
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


def choose(
    target: Annotated[str, typer.Argument(help="A run directory, or a study whose results are in runs/NAME.")],
    at_most: Annotated[
        list[str], typer.Option("--max", help='"NAME<=NUMBER": at most this, such as "client-inference.auc<=0.55".')
    ] = [],  # noqa: B006
    at_least: Annotated[
        list[str], typer.Option("--min", help='"NAME>=NUMBER": at least this, such as "accuracy>=0.85".')
    ] = [],  # noqa: B006
    as_json: JsonOption = False,
) -> None:
    """From finished cells, name the defences that keep the limits, or the nearest and what it misses.

    Limits are held against the cautious end of each 95 % interval. Exit code 4 if no cell keeps them all.
    """
    from leakline.cli import out
    from leakline.decide.choose import choose as rank
    from leakline.decide.limits import read_limit
    from leakline.results import read

    limits = [read_limit(t, ("<=", "<")) for t in at_most] + [read_limit(t, (">=", ">")) for t in at_least]
    if not limits:
        raise LeaklineError(
            "no limit was given", fix='for example --max "loss-threshold.auc<=0.55" --min "accuracy>=0.85"'
        )
    results = read(_root(target))
    if not results.settings:
        raise LeaklineError("no cell of this study is finished", results.name, "run it first")
    ranked = rank(results, limits)
    if as_json:
        out.print_json(json.dumps([_plain(c) for c in ranked], allow_nan=False))
    else:
        _advise(ranked, [str(limit) for limit in limits], len(results.missing))
    if not ranked[0].kept:
        raise typer.Exit(4)


def _advise(ranked: Sequence[Candidate], limits: Sequence[str], missing: int) -> None:
    from leakline.cli import out
    from leakline.text import clean

    kept, rest = [c for c in ranked if c.kept], [c for c in ranked if not c.kept]
    out.print(f"Limits: {clean('; '.join(limits))}")
    out.print(
        "Each limit is held against the cautious end: high for at most, low for at least, of the wider of two 95 % "
        "intervals, over seeds and of the single runs.\n"
    )
    if kept:
        out.print(f"{len(kept)} of {len(ranked)} settings keep all limits, the most useful first:")
    else:
        out.print(f"None of the {len(ranked)} settings keeps all limits. The nearest first:")
    for one in (kept or rest)[:10]:
        out.print(clean(f"  {one.where}: {', '.join(_figure(one))}; formal epsilon: {one.figures['epsilon'].text}"))
        for judged in one.judged:
            if judged.missing:
                out.print(clean(f"    {judged.missing}"))
        for name in one.bare:
            out.print(clean(f"    {name} has no interval (one seed): its value alone was judged"))
    if kept and rest:
        out.print("\nThe others:")
        for one in rest[:10]:
            out.print(clean(f"  {one.where}: {'; '.join(j.missing for j in one.judged if j.missing)}"))
    out.print("\nAn attack that failed proves nothing about a better one; only a formal epsilon does.")
    if missing:
        out.print(f"{missing} things are missing from this study: only finished cells were looked at.")


def _figure(one: Candidate) -> list[str]:
    return [f"{j.limit.name} {j.figure.text}" for j in one.judged if j.figure is not None]


def _plain(one: Candidate) -> dict[str, Any]:
    import math

    return {
        "where": one.where, "defence": one.defence, "kept": one.kept,
        "limits": [
            {
                "limit": str(j.limit), "kept": j.kept, "missing": j.missing,
                "judged": j.worst if j.worst is not None and math.isfinite(j.worst) else None,
            }
            for j in one.judged
        ],
    }  # fmt: skip


def _root(target: str) -> Path:
    given = Path(target)
    if given.is_dir():
        return given
    from leakline.study.spec import find, load

    find(target)
    return Path("runs") / load(target).name


def register(app: typer.Typer) -> None:
    """Put the commands on the command line."""
    app.command("compare")(compare)
    app.command("choose")(choose)
