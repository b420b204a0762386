"""What the verbs share: two consoles, a card on the terminal, arguments and options that several of them take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from leakline.cards import Card

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


def print_card(card: Card, whole: bool = False) -> None:
    """A card on the terminal: what fits on a screen, unless all of it is asked for."""
    from rich.table import Table

    from leakline.report.page.short import short

    rows, rest = (card.rows(), []) if whole else short(card.rows())
    if rest:
        kinds = ", ".join(dict.fromkeys(label.partition(" (")[0] for label, _ in rest))
        rows.append(("more", f"{len(rest)} more in the report ({kinds})"))
    table = Table(show_header=False, box=None, padding=(0, 1), pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row("WARNING" if label == "!" else label, text, style="bold red" if label == "!" else None)
    out.rule(card.title, align="left")
    out.print(table)


def value_of(text: str) -> Any:
    """A value from the command line as TOML reads it; what TOML cannot read is text."""
    import tomllib

    try:
        return tomllib.loads(f"v = {text}")["v"]
    except (ValueError, RecursionError):
        return text
