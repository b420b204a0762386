"""Results as they may leave the house: no client's or class's name, no path, no text of a failure, no study file.

Names become numbers ("client 1"), the same in every cell, wherever they stand; the texts of failures, which may quote
anything, are left out. Labels of the grid (scenarios, strategies, defences) are the author's own words and stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from leakline.cards import Card
from leakline.readings import Reading
from leakline.results.cell import Cell
from leakline.results.patients import Patients
from leakline.results.results import Results
from leakline.text import scrub

LEFT_OUT = "left out of the shareable form"
_SERVER = "server: "


def shareable(results: Results) -> Results:
    """The same results without names, paths, failures' texts and the study file."""
    hide = _hiding(results)
    cells = tuple(_cell(cell, hide) for cell in results.cells)
    notes = tuple(hide(note) for note in results.notes)
    return replace(results, root=Path(results.name), text="", notes=notes, cells=cells, damage=())


def _hiding(results: Results) -> Callable[[str], str]:
    """A function that puts numbers in the place of names."""
    clients = _clients(results)
    classes = dict.fromkeys(str(c) for cell in results.cells for c in _listed(cell.task.get("classes")))
    named = {name: f"client {i}" for i, name in enumerate(clients, start=1)}
    # A class called "3" cannot be told from a number, and tells nothing.
    named |= {name: f"class {i}" for i, name in enumerate(classes, start=1) if name not in named and len(name) > 2}
    longest = sorted((re.escape(name) for name in named if name), key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(longest)})(?![\w-])") if longest else None

    def hide(text: str) -> str:
        plain = scrub(text) if "/" in text or "\\" in text else text
        return pattern.sub(lambda match: named[match[0]], plain) if pattern is not None else plain

    return hide


def _clients(results: Results) -> Iterable[str]:
    names: dict[str, None] = {}
    for cell in results.cells:
        task = cell.task.get("clients")
        names |= dict.fromkeys(str(name) for name in (task if isinstance(task, Mapping) else ()))
        rows = [row for row in _listed(cell.about.get("partition")) if isinstance(row, Mapping)]
        names |= dict.fromkeys(n for row in rows if not (n := str(row.get("name", ""))).startswith(_SERVER))
        for record in cell.records:
            names |= dict.fromkeys(map(str, _listed(record.get("cohort"))))
            names |= dict.fromkeys(str(entry[0]) for entry in _listed(record.get("dropped")) if entry)
        names |= dict.fromkeys(r.client for r in (*cell.readings, *cell.attacks) if r.client is not None)
    return names


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _cell(cell: Cell, hide: Callable[[str], str]) -> Cell:
    return replace(
        cell,
        error=LEFT_OUT if cell.error else "",
        folder=None,
        about=_deep(_without_paths(cell.about), hide),
        card=None if cell.card is None else _card(cell.card, hide),
        readings=tuple(_reading(r, hide) for r in cell.readings),
        attacks=tuple(_reading(r, hide) for r in cell.attacks),
        records=tuple(_record(r, hide) for r in cell.records),
        damage=tuple("something is damaged" for _ in cell.damage[:1]),
        patients=tuple(_patients(found, hide) for found in cell.patients),
    )


def _patients(found: Patients, hide: Callable[[str], str]) -> Patients:
    """Patients by numbered site and class, without what is known of them besides."""
    each = tuple(replace(p, client=hide(p.client), label=hide(p.label), traits={}) for p in found.each)
    return replace(found, each=each)


def _without_paths(about: Mapping[str, Any]) -> dict[str, Any]:
    """What was run, with the user's own network by no name."""
    federation = dict(about.get("federation", {})) if isinstance(about.get("federation"), Mapping) else {}
    model = federation.get("model")
    if isinstance(model, Mapping) and "path" in model:
        federation["model"] = {"use": "a network of the user's own"}
    return {**about, "federation": federation} if federation else dict(about)


def _card(card: Card, hide: Callable[[str], str]) -> Card:
    dropped = (f"{len(card.dropped)} reasons, {LEFT_OUT}",) if card.dropped else ()
    measured, leaks, utility = (
        tuple(_reading(r, hide) for r in some) for some in (card.measured, card.leaks, card.utility)
    )
    return replace(
        card, title=hide(card.title), dropped=dropped, longer=tuple(map(hide, card.longer)),
        broken=tuple(map(hide, card.broken)), measured=measured, leaks=leaks, utility=utility,
    )  # fmt: skip


def _reading(reading: Reading, hide: Callable[[str], str]) -> Reading:
    client = None if reading.client is None else hide(reading.client)
    return replace(reading, client=client, note=hide(reading.note), about=_deep(reading.about, hide))


def _record(record: Mapping[str, Any], hide: Callable[[str], str]) -> dict[str, Any]:
    dropped = [[hide(str(entry[0])), LEFT_OUT] for entry in _listed(record.get("dropped")) if entry]
    return {**_deep(record, hide), "dropped": dropped}


def _deep(value: Any, hide: Callable[[str], str]) -> Any:
    """Every text of a JSON value, keys included."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, Mapping):
        return {hide(str(k)): _deep(v, hide) for k, v in value.items()}
    return [_deep(v, hide) for v in value] if isinstance(value, list | tuple) else value
