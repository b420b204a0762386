"""Running a study: trains what is missing, once, and lets attacks meet what was run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from leakline.attacks.base import Attack
from leakline.errors import LeaklineError, StudyError
from leakline.federation import Federation
from leakline.measures import Measure, own_measures
from leakline.messages import Keep
from leakline.models import MOST_VALUES, Imported, Model, preflight, size_of
from leakline.runtimes.client import reason_of
from leakline.study.cells import Cell, Study
from leakline.study.describe import FORMAT, THREADS, description, key_of
from leakline.study.lab import Lab, Says, attack_key, meet, unsaid
from leakline.study.store import Run, Store
from leakline.study.train import Opens, Progress, silent, train_run


@dataclass
class Outcome:
    """How one cell went."""

    cell: Cell
    run: Run | None
    error: str = ""
    trained: bool = False


def run_study(
    study: Study,
    out: Path,
    *,
    workers: int = 0,
    progress: Progress = silent,
    says: Says = unsaid,
    opens: Opens | None = None,
) -> Iterator[Outcome]:
    """Train what is missing and let every attack meet every cell; yields cell by cell, failures included."""
    torch.set_num_threads(THREADS)
    store = Store(out)
    if store.exists:
        store.grid()  # refuses what another version wrote
    grid: list[dict[str, Any]] = [grid_entry(study, cell) for cell in study.cells]
    grid += earlier(store, study) if study.narrowed else []

    def save() -> None:
        write_grid(store, study, grid)

    check_parts(study)
    save()
    for place, cell in enumerate(study.cells):
        try:
            federation = cell.federation()
            run = store.run(key_of(description(federation)))
            before = run.end
            grid[place]["run"] = run.key  # before training, so that a killed run can still be told by its labels
            save()
            run = train_run(
                store,
                federation,
                workers=workers,
                keep=wanted(study.attacks_on(cell), federation),
                delta=study.delta,
                title=cell.name,
                progress=progress,
                opens=opens,
            )
            lab = Lab(federation, store, run, workers, partial(_about, says, cell.name))
            meet(study.attacks_on(cell), lab)
            yield Outcome(cell, run, trained=before is None or before["status"] != "finished")
        except Exception as error:  # whatever goes wrong in one cell, the others go on
            told = str(error) if isinstance(error, LeaklineError) else f"this cell failed: {reason_of(error)}"
            grid[place]["error"] = told
            save()
            yield Outcome(cell, None, told)


def _about(says: Says, cell: str, line: str) -> None:
    says(f"{cell}: {line}")


def grid_entry(study: Study, cell: Cell) -> dict[str, Any]:
    """A cell of the grid that has not been run yet."""
    keys = [attack_key(name, attack) for name, attack in study.attacks_on(cell).items()]
    return {"labels": dict(cell.labels), "run": None, "attacks": keys}


def write_grid(store: Store, study: Study, cells: Sequence[Mapping[str, Any]]) -> None:
    """Write down what was asked and which run each cell is, so that a report can be made at any moment."""
    measures = declared(attack for cell in study.cells for attack in study.attacks_on(cell).values())
    if study.narrowed and store.exists:
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
            "cells": list(cells),
        },
    )


def earlier(store: Store, study: Study) -> list[dict[str, Any]]:
    """The cells of the directory's grid that a narrowed study leaves alone."""
    if not store.exists:
        return []
    ours = [dict(cell.labels) for cell in study.cells]
    return [cell for cell in store.grid()["cells"] if cell["run"] is not None and cell["labels"] not in ours]


def check_parts(study: Study) -> None:
    """Build every federation and ask every part whether it can work there, before anything is trained."""
    wrong = []
    seen: set[str] = set()
    for cell in study.cells:
        try:
            federation = cell.federation()
            if (model := _model_of(federation)) not in seen:
                check_model(federation)
                seen.add(model)
            check_cell(federation, study.attacks_on(cell))
        except (LeaklineError, ValueError) as error:
            wrong.append(f"{cell.name}: {error}")
    if wrong:
        raise StudyError("\n".join(dict.fromkeys(wrong)))


WIDE = 20_000
"""A setting of a network that may make it too large to be made."""


def _model_of(federation: Federation) -> str:
    task = federation.task
    return f"{federation.model!r} {task.shape} {task.classes} {task.kind}"


def check_model(federation: Federation) -> None:
    """Refuse a network that is too large to be made, or that does not take these inputs or give such outputs."""
    task, model = federation.task, federation.model
    classes = len(task.classes)
    if isinstance(model, Model):
        # Asking for the size without the memory takes seconds at its first use, so only where it could matter.
        large = not isinstance(model, Imported) and any(int(text) >= WIDE for text in re.findall(r"\d+", repr(model)))
        if large and size_of(model, task.shape, classes, task.kind) > MOST_VALUES:
            raise StudyError(f"the network would have more than {MOST_VALUES:,} values", "model", "make it smaller")
        for finding in preflight(federation.bench().model, task.shape, classes, task.kind):
            if finding.kind == "output":
                raise StudyError(f"the network does not fit: {finding.message}", "model", finding.fix)


def check_cell(federation: Federation, attacks: Mapping[str, Attack]) -> None:
    """Ask every part of a federation, and what will meet it, whether it can work there."""
    if unknown := [name for name, _ in federation.batches if name not in federation.clients]:
        raise StudyError(
            f"there is no client {unknown[0]!r}",
            "[training] batches",
            f"one of: {', '.join([*federation.clients][:9])}",
        )
    federation.stack.check(federation)
    for attack in attacks.values():
        attack.check(federation)
    declared(attacks.values())


def declared(attacks: Iterable[Attack]) -> dict[str, Measure]:
    """The measures that attacks bring along, by name."""
    try:
        return own_measures(measure for attack in attacks for measure in attack.measures)
    except ValueError as error:
        raise StudyError(str(error), "[[attacks]]", "give the attack's own measure another name") from error


def wanted(attacks: Mapping[str, Attack], federation: Federation) -> Keep:
    """Which updates the attacks ask to be kept."""
    asks = [attack.wants(federation) for attack in attacks.values()]
    return lambda index, client: any(ask(index, client) for ask in asks)
