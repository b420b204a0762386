"""Running a study: trains what is missing, once, and lets attacks meet what was run."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from leakline.attacks.base import Attack
from leakline.errors import LeaklineError, StudyError
from leakline.federation import Federation
from leakline.messages import Keep
from leakline.models import MOST_VALUES, Adapted, Imported, Model, preflight, size_of
from leakline.runtimes.client import reason_of
from leakline.runtimes.local import DEADLINE
from leakline.study.at_work import at_work, declared
from leakline.study.cells import Cell, Study
from leakline.study.counted import Counted, Ledger, place_of
from leakline.study.describe import THREADS, description, key_of
from leakline.study.kept_features import kept_in
from leakline.study.lab import Lab, attack_key, meet
from leakline.study.pace import Pace, Standing
from leakline.study.sharing import look_again
from leakline.study.store import Busy, Run, Store
from leakline.study.train import Opens, silent, train_run

POLL_SECONDS = 0.5
"""How often to look whether another process has let go of a run."""


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
    watch: Callable[[Standing], None] | None = None,
    opens: Opens | None = None,
    deadline: float = DEADLINE,
) -> Iterator[Outcome]:
    """Train what is missing and let every attack meet every cell; yields cell by cell, failures included.

    A cell that another process is working on comes last: by then it is there, or this process goes on with it.
    ``watch`` is told, often, what is being done and how long it will still take.
    """
    with kept_in(out):
        yield from _run_study(study, out, workers, watch, opens, deadline)


def _run_study(
    study: Study,
    out: Path,
    workers: int,
    watch: Callable[[Standing], None] | None,
    opens: Opens | None,
    deadline: float,
) -> Iterator[Outcome]:
    torch.set_num_threads(THREADS)
    store, pace = Store(out), Pace(watch or unwatched)
    ledger = Ledger(pace, store, workers)
    keys = check_parts(study, partial(_count, ledger, study) if watch else None)
    if watch and opens is None:
        ledger.try_places()
    places = {cell.name: (f"cell {i} of {len(study.cells)}", cell.name) for i, cell in enumerate(study.cells, 1)}
    with at_work(store, study, keys) as grid:
        left = deque(zip(study.cells, keys, strict=True))
        # Cells that differ in their attacks alone are one run, which keeps what any of them asks for.
        meeting = {key: [a for c, k in left if k == key for a in study.attacks_on(c).values()] for key in keys}
        while left:
            cell, key = _next_free(left, store, pace)
            try:
                federation = cell.federation().granted
                counted = Counted(pace, cell.name, places[cell.name], place_of(federation)) if watch else None
                if counted is not None:
                    counted.train()
                before = store.run(key).end
                run = train_run(
                    store,
                    federation,
                    workers=workers,
                    keep=wanted(meeting[key], federation),
                    delta=study.delta,
                    title=cell.name,
                    progress=silent if counted is None else counted.round,
                    opens=opens,
                    deadline=deadline,
                )
                lab = Lab(federation, store, run, workers, counted=counted)
                meet(study.attacks_on(cell), lab)
            except Busy:
                left.append((cell, key))
                continue
            except Exception as error:  # whatever goes wrong in one cell, the others go on
                told = str(error) if isinstance(error, LeaklineError) else f"this cell failed: {reason_of(error)}"
                grid.set_error(cell, told)
                pace.drop(cell.name)
                yield Outcome(cell, None, told)
                continue
            pace.drop(cell.name)
            grid.set_error(cell, "")
            yield Outcome(cell, run, trained=before is None or before["status"] != "finished")


def unwatched(standing: Standing) -> None:
    """Nobody watches, and nothing is counted."""


def _count(ledger: Ledger, study: Study, cell: Cell, key: str, federation: Federation) -> None:
    attacks = {name: (attack_key(name, attack), attack) for name, attack in study.attacks_on(cell).items()}
    ledger.count(cell.name, key, federation, attacks)


def _next_free(left: deque[tuple[Cell, str]], store: Store, pace: Pace) -> tuple[Cell, str]:
    """Take the first cell that no other process is working on; wait where there is none."""
    told = False
    while True:
        for _ in range(len(left)):
            cell, key = left.popleft()
            if not store.run(key).held:
                return cell, key
            left.append((cell, key))
        if not told:
            pace.start(f"{len(left)} cells are being worked on by another process: waiting for it")
            told = True
        time.sleep(POLL_SECONDS)


def check_parts(study: Study, see: Callable[[Cell, str, Federation], None] | None = None) -> list[str]:
    """Build every federation and ask every part whether it can work there, before anything is trained.

    Returns the key of each cell's run; ``see`` is shown each federation that is as it should be.
    """
    look_again()
    wrong: dict[str, list[str]] = {}
    keys: list[str] = []
    seen: set[str] = set()
    for cell in study.cells:
        try:
            federation = cell.federation()
            if (model := model_of(federation)) not in seen:
                check_model(federation)
                seen.add(model)
            federation = federation.granted
            check_cell(federation, study.attacks_on(cell))
            keys.append(key_of(description(federation)))
            if see is not None:
                see(cell, keys[-1], federation)
        except (LeaklineError, ValueError) as error:
            wrong.setdefault(str(error), []).append(cell.name)
    if wrong:
        raise StudyError("\n".join(said_once(wrong, len(study.cells))))
    return keys


def said_once(wrong: Mapping[str, Sequence[str]], cells: int) -> list[str]:
    """Each problem once, with the cells that have it: what is wrong with the data is wrong with them all."""
    lines = []
    for text, names in wrong.items():
        many = f"all {cells} cells" if len(names) == cells > 1 else f"{names[0]} and {len(names) - 1} more cells"
        lines.append(f"{many if len(names) > 1 else names[0]}: {text}")
    return lines


WIDE = 20_000
"""A setting of a network that may make it too large to be made."""


def model_of(federation: Federation) -> str:
    """A federation's network and what it must fit, in one text."""
    task = federation.task
    return f"{federation.model!r} {task.shape} {task.classes} {task.kind}"


def check_model(federation: Federation) -> None:
    """Refuse a network that is too large to be made, or that does not take these inputs or give such outputs."""
    task, model = federation.task, federation.model
    model = model.model if isinstance(model, Adapted) else model
    classes = len(task.classes)
    if isinstance(model, Model) and not isinstance(model, Imported):
        # Asking for the size without the memory takes seconds at its first use, so only where it could matter.
        large = any(int(text) >= WIDE for text in re.findall(r"\d+", repr(model)))
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


def wanted(attacks: Iterable[Attack], federation: Federation) -> Keep:
    """Which updates the attacks ask to be kept."""
    asks = [attack.wants(federation) for attack in attacks]
    return lambda index, client: any(ask(index, client) for ask in asks)
