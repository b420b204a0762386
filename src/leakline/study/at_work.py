"""The grid of a run directory: which cell is which run. Any number of processes may work on one grid at once.

Whoever works in a directory has a file there that says so (`claims.present`). A grid may be replaced by whoever is
alone; while others are there it may only grow, by cells of the same study. Each change is made to the grid as it then
is, under the claim ``grid``, so nobody overwrites what another wrote.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from leakline import __version__
from leakline.attacks.base import Attack
from leakline.errors import StoreError, StudyError
from leakline.measures import Measure, own_measures
from leakline.names import printable
from leakline.study.cells import Cell, Study
from leakline.study.claims import check_disk, claimed, others, present
from leakline.study.describe import FORMAT
from leakline.study.files import NEW, is_there, make_folder, sweep
from leakline.study.lab import attack_key
from leakline.study.store import Store, digest_of

Entry = dict[str, Any]
"""A cell of the grid: its labels, its run (None: not known yet), the keys of its attacks, why it failed."""


class Grid:
    """The grid of a study in a directory that this process works in (see `at_work`)."""

    def __init__(self, store: Store, study: Study) -> None:
        self.store, self.study = store, study

    def set_run(self, cell: Cell, key: str) -> None:
        """Say which run a cell is, before it is trained: a killed one can then still be told by its labels."""
        self._change(cell, lambda entry: {**entry, "run": key})

    def set_error(self, cell: Cell, error: str) -> None:
        """Say why a cell failed; "" takes back what an earlier attempt said."""
        plain = {"error": error} if error else {}
        self._change(cell, lambda entry: {k: v for k, v in entry.items() if k != "error"} | plain)

    def _change(self, cell: Cell, change: Callable[[Entry], Entry]) -> None:
        with claimed(self.store.root, "grid", wait=True):
            there = self.store.grid()
            cells = [change(e) if e["labels"] == _labels(cell) else e for e in there["cells"]]
            if cells != there["cells"]:
                self.store.write_study(self.study.text, {**there, "cells": cells})


@contextlib.contextmanager
def at_work(store: Store, study: Study, runs: Sequence[str] = ()) -> Iterator[Grid]:
    """Work on a study in a directory, alone or with others. ``runs``: the key of each cell's run, where known."""
    if store.exists:
        store.grid()  # refuses what another version wrote
    make_folder(store.root)
    with contextlib.ExitStack() as here:
        with claimed(store.root, "grid", wait=True):  # for as long as it takes to write one file
            alone = not _others(store)
            sweep(store.root, "study.toml", "study.json", "now", "twice", f"{NEW}twice", ".grid", ".working")
            check_disk(store.root)
            entries = [_entry(study, cell, key) for cell, key in zip(study.cells, runs or _unknown(study), strict=True)]
            _write(store, study, entries, alone)
            here.enter_context(present(store.root))
        yield Grid(store, study)


def _unknown(study: Study) -> list[None]:
    return [None] * len(study.cells)


def _others(store: Store) -> bool:
    """Whether others are at work in a directory; they must have the same version of leakline."""
    there = others(store.root)
    for holder in there:
        if holder.version != __version__:
            raise StoreError(
                f"leakline {printable(holder.version, 20)} is at work in this directory ({holder}), and this is "
                f"leakline {__version__}",
                store.root.name,
                "wait for it, or have one version everywhere",
            )
    return bool(there)


def _labels(cell: Cell) -> dict[str, Any]:
    labels: dict[str, Any] = json.loads(json.dumps(dict(cell.labels)))  # as they will be read
    return labels


def _entry(study: Study, cell: Cell, run: str | None) -> Entry:
    keys = [attack_key(name, attack) for name, attack in study.attacks_on(cell).items()]
    return {"labels": _labels(cell), "run": run, "attacks": keys}


def _write(store: Store, study: Study, entries: Sequence[Entry], alone: bool) -> None:
    """Write down what was asked and which run each cell is, so that a report can be made at any moment."""
    measures = declared(attack for cell in study.cells for attack in study.attacks_on(cell).values())
    cells = list(entries)
    if store.exists and not alone:
        there = store.grid()
        _check_same(there, study, entries)
        theirs = [entry["labels"] for entry in there["cells"]]
        cells = [*there["cells"], *(entry for entry in entries if entry["labels"] not in theirs)]
        measures = {**store.measures(), **measures}
    elif store.exists and study.narrowed:
        cells += _earlier(store, entries)
        measures = {**store.measures(), **measures}
    store.write_study(
        study.text,
        {
            "format": FORMAT,
            "name": study.name,
            "title": study.title,
            "delta": study.delta,
            "notes": list(study.notes),
            "measures": [measure.line() for measure in measures.values()],
            "cells": cells,
        },
    )


def _check_same(there: Mapping[str, Any], study: Study, entries: Sequence[Entry]) -> None:
    """Refuse another study than the one that others are at work on: its cells would take the place of theirs."""
    ours = {str(entry["labels"]): entry for entry in entries}
    pairs = [(entry, ours[str(entry["labels"])]) for entry in there["cells"] if str(entry["labels"]) in ours]
    other_cells = any(
        None not in (a["run"], b["run"]) and (a["run"], a["attacks"]) != (b["run"], b["attacks"]) for a, b in pairs
    )
    if there.get("text") != digest_of(study.text) or there.get("delta") != study.delta or other_cells:
        raise StoreError(
            "another process is at work on another study in this directory",
            there.get("name", ""),
            "wait for it, or give another directory with --out",
        )


def _earlier(store: Store, entries: Sequence[Entry]) -> list[Entry]:
    """The cells of the directory's grid that were run and that a narrowed study leaves alone."""
    ours = [entry["labels"] for entry in entries]
    return [
        entry
        for entry in store.grid()["cells"]
        if entry["run"] is not None
        and entry["labels"] not in ours
        and is_there(store.run(entry["run"]).path / "run.json")
    ]


def declared(attacks: Iterable[Attack]) -> dict[str, Measure]:
    """The measures that attacks bring along, by name."""
    try:
        return own_measures(measure for attack in attacks for measure in attack.measures)
    except ValueError as error:
        raise StudyError(str(error), "[[attacks]]", "give the attack's own measure another name") from error
