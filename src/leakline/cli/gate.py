"""The gate `--fail-if`: what a pipeline decides by. A condition that comes true ends with exit code 4."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leakline.cli.console import err

if TYPE_CHECKING:
    from leakline.cards import Card
    from leakline.results import Results

FailIf = Annotated[
    list[str],
    typer.Option(
        "--fail-if",
        help='Exit code 4 if this is true of a finished cell: "membership.auc > 0.6", "global-dp: epsilon > 10".',
    ),
]


def check_conditions(conditions: Sequence[str], attacks: Iterable[str]) -> None:
    """Before training: every condition can be read, and the attacks it names are in the study."""
    if conditions:
        from leakline.decide.limits import check_attacks, read_limit

        check_attacks([read_limit(text) for text in conditions], attacks)


def gate(results: Results, conditions: Sequence[str]) -> None:
    """End with exit code 4 if a condition is true of a finished cell."""
    if conditions:
        from leakline.decide.limits import places_of

        stop(conditions, places_of(results))


def gate_cards(cards: Sequence[Card], conditions: Sequence[str]) -> None:
    """`gate` over cards, for commands that make no store."""
    if conditions:
        from leakline.decide.limits import figures_of_card

        stop(conditions, [(card.title, card.title, figures_of_card(card)) for card in cards])


def stop(conditions: Sequence[str], places: Sequence[tuple[str, str, Any]]) -> None:
    """End with exit code 4 if a condition is true of a place: where, what defends it, its figures by name."""
    from leakline.decide.limits import hits, read_limit
    from leakline.text import clean

    if not places:
        err.print("--fail-if: no cell is finished, so nothing can be said")
        raise typer.Exit(4)
    true = hits([read_limit(text) for text in conditions], places)
    for hit in true:
        err.print(clean(f"--fail-if: {hit}"))
    if true:
        raise typer.Exit(4)
