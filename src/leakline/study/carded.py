"""The privacy card of a run: while it trains, and with what attacks have measured since."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from leakline import cards
from leakline.cards import Card
from leakline.errors import StoreError
from leakline.federation import Federation
from leakline.measures import Measure
from leakline.readings import Reading
from leakline.study.store import Run
from leakline.utility.baseline import quoted


def card_so_far(title: str, federation: Federation, run: Run, delta: float) -> Card:
    """The promise for the rounds that were run, who dropped out, and the last round's utility."""
    records = run.rounds()
    facts = [r["facts"] for r in records]
    done = max(len(records), 1)
    # When to stop was read off the data: the promise of all rounds that were allowed holds, that of fewer need not.
    cut = done < federation.rounds and not federation.judging.patience
    card = cards.formal_card(title, replace(federation, rounds=done) if cut else federation, delta, facts)
    dropped: dict[str, list[int]] = {}
    for record in records:
        for client, reason in record["dropped"]:
            dropped.setdefault(f"{client}: {reason}", []).append(record["round"])
    lines = tuple(f"{who} ({len(rounds)} rounds, first in round {rounds[0]})" for who, rounds in dropped.items())
    longest: dict[str, float] = {}
    for record in records:
        for client, times in record.get("longer", {}).items():
            longest[client] = max(longest.get(client, 0.0), times)
    longer = tuple(
        f"{client} sent updates up to {times:.0f} times as long as the median, and a mean follows them; fedmedian, "
        "fedtrimmed, a defence that clips, or max_norm would not"
        for client, times in longest.items()
    )
    still = [name for record in records for name in record.get("still", ())]
    if still:
        longer += (f"{_few(still)} did not move in the first round: nothing in the loss depends on it",)
    if decay := federation.judging.average:
        longer += (f"utility is of an exponential average of the published models ({decay:g} on the past)",)
    last = [
        Reading.of(r)
        for r in run.readings()
        if r.get("round") == len(records) - 1 and r["by"] == "utility" and "client" not in r
    ]
    return replace(card, dropped=lines, longer=longer, utility=quoted(last))


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def newest(lines: Sequence[Mapping[str, Any]], listed: Collection[str] = ()) -> list[Mapping[str, Any]]:
    """What present attacks measured: an attack with other settings under the same name is another one.

    ``listed`` are the keys (`attack_key`) of the attacks that a study has now; for an attack that it does not name (an
    audit made afterwards), the settings are the last ones that met the run.
    """
    names = {key.rpartition("-")[0] for key in listed}
    measured = [line for line in lines if line.get("measure") != "none"]
    last = {str(line.get("by", "")): str(line.get("attack")) for line in measured}
    chosen = set(listed) | {key for by, key in last.items() if by not in names}
    return [line for line in measured if str(line.get("attack")) in chosen]


def card_of(run: Run, title: str = "", measures: Iterable[Measure] = (), listed: Collection[str] = ()) -> Card:
    """The whole card of a run: the promise, the price, and what audits and attacks have measured since.

    ``measures`` describes those of attacks from outside the package, ``listed`` as for `newest`.
    """
    end = run.end
    if end is None:
        raise StoreError("this run is not finished", run.key, "run the study again: it goes on where it stopped")
    card = replace(Card.from_dict(end["card"]), measures=tuple(measures))
    readings = [
        Reading.of(line) for line in newest(run.attacks(), listed) if "client" not in line
    ]  # fmt: skip
    bounds = tuple(r for r in readings if card.measure(r.measure).is_bound)
    leaks = tuple(r for r in readings if r not in bounds)
    card = replace(card, title=title or card.title, measured=bounds, leaks=leaks)
    return replace(card, broken=cards.violations(card))
