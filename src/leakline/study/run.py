"""Running a study: trains what is missing, once, and lets attacks meet what was run."""

from __future__ import annotations

import contextlib
import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from leakline.attacks.base import Attack
from leakline.errors import LeaklineError, StackError, StudyError
from leakline.federation import Federation
from leakline.models import MOST_VALUES, Adapted, Imported, Model, preflight, size_of
from leakline.runtimes.crew import Crew, Hands, Here
from leakline.runtimes.forks import FORKABLE
from leakline.runtimes.local import DEADLINE
from leakline.runtimes.machine import cores
from leakline.study.at_work import at_work, declared
from leakline.study.cells import Cell, Study
from leakline.study.counted import Ledger
from leakline.study.describe import THREADS, description, key_of
from leakline.study.kept_features import kept_in
from leakline.study.lab import attack_key
from leakline.study.one_cell import Work
from leakline.study.pace import Pace, Standing
from leakline.study.parts import Part
from leakline.study.sharing import look_again
from leakline.study.sources import check_source
from leakline.study.store import Run, Store
from leakline.study.train import Opens

WHOLE = Part()
Engine = Callable[[Work, Pace | None], Hands]
"""Says who does the cells, given the work and who counts it (None: nobody)."""
POLL_SECONDS = 0.5
"""How often to look whether another process has let go of a run."""
ATTEMPTS = 2
"""How often a cell is begun whose process dies before it is said to have failed."""


@dataclass
class Outcome:
    """How one cell went."""

    cell: Cell
    run: Run | None
    error: str = ""
    trained: bool = False
    of: int = 1
    """How many cells there are, in this part."""


def run_study(
    study: Study,
    out: Path,
    *,
    workers: int = 0,
    at_once: int = 1,
    part: Part = WHOLE,
    watch: Callable[[Standing], None] | None = None,
    opens: Opens | None = None,
    deadline: float = DEADLINE,
    engine: Engine | None = None,
) -> Iterator[Outcome]:
    """Train what is missing and let every attack meet every cell; yields cell by cell, failures included.

    A cell that another process is working on comes last: by then it is there, or this process goes on with it.
    ``at_once``: how many cells, each in a process of its own, which share the cores. ``part``: these cells only.
    ``watch`` is told, often, what is being done and how long it will still take. ``engine``: who does the cells
    elsewhere (`on_ray`); then ``workers`` are those of a cell there.
    """
    engine, here = engine or partial(hands_here, at_once), engine is None
    workers = workers or (share_of(at_once) if here else 1)
    with kept_in(out):
        yield from _run_study(study, out, workers, part, watch, opens, deadline, engine, here)


def share_of(at_once: int) -> int:
    """How many workers each of so many cells may have; 0, as many as it likes, for one."""
    return 0 if at_once == 1 else max(1, cores() // at_once)


def _run_study(
    study: Study,
    out: Path,
    workers: int,
    part: Part,
    watch: Callable[[Standing], None] | None,
    opens: Opens | None,
    deadline: float,
    engine: Engine,
    here: bool,
) -> Iterator[Outcome]:
    torch.set_num_threads(THREADS)
    store, pace = Store(out), Pace(watch or unwatched)
    ledger = Ledger(pace, store, workers)
    keys = check_parts(study, partial(_count, ledger, study) if watch else None)
    work = Work(study, keys, store, workers, opens, deadline)
    numbers = part.cells(work.groups)
    for left_out in set(range(len(keys))).difference(numbers):
        pace.drop(study.cells[left_out].name)
    if watch and opens is None and here:
        ledger.try_places()
        ledger.try_attacks()
    # Who is to do the cells comes first, so that no directory is made where nobody can; and ends first.
    with (
        contextlib.closing(engine(work, pace if watch else None)) as hands,
        at_work(store, study, keys) as grid,
        contextlib.closing(hands),
    ):
        for number, told in _done(work, numbers, hands, pace):
            cell, error = study.cells[number], str(told.get("error", ""))
            pace.drop(cell.name)
            grid.set_error(cell, error)
            run = None if error else store.run(keys[number])
            yield Outcome(cell, run, error, told["how"] == "trained", len(numbers))


def hands_here(at_once: int, work: Work, pace: Pace | None) -> Hands:
    """Who does the cells on this machine: this process, or several."""
    if at_once == 1:
        return Here(lambda number, tells: work.do(number, pace))
    if not FORKABLE or any(cell.federation().engine.device != "cpu" for cell in work.study.cells):
        raise StudyError(
            "several cells at once need Linux, and federations that are trained on the CPU",
            work.study.name,
            "leave --cells out",
        )
    return Crew(lambda number, tells: work.tell(number, pace, tells), at_once)


def _done(work: Work, numbers: Sequence[int], hands: Hands, pace: Pace) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Give all cells to whoever is free; yields each with how it went, in the order in which they are done."""
    left, busy, deaths = deque(numbers), set[int](), Counter[int]()
    waiting = False
    while left or busy:
        pace.at_once = max(hands.size, 1)
        while hands.free and (number := _next_free(work, left, busy)) is not None:
            hands.give(number)
            busy.add(number)
        if not busy and not waiting:
            pace.start(f"{len(left)} cells are being worked on by another process: waiting for it")
        waiting = not busy
        for heard in hands.hear(POLL_SECONDS):
            number, told = heard.number, heard.told
            cell = work.study.cells[number].name
            if "work" in told:
                ended = len(numbers) - len(left) - len(busy)
                path = (f"{ended} of {len(numbers)} cells done", *told.get("path", (cell,)))
                pace.hear(cell, told["work"], *path)
            if not heard.ended:
                continue
            busy.discard(number)
            pace.forget(cell)
            deaths[number] += heard.ended == "died"
            if heard.ended == "died" and deaths[number] >= ATTEMPTS:
                yield number, {"how": "failed", "error": _died(cell, told["died"])}
            elif heard.ended == "died" or told["how"] == "busy":
                left.append(number)
            else:
                yield number, told


def _died(cell: str, of: str) -> str:
    fix = "work on fewer cells at once, or give it more memory; what was finished is kept"
    return str(StackError(f"its process died {ATTEMPTS} times ({of})", cell, fix))


def unwatched(standing: Standing) -> None:
    """Nobody watches, and nothing is counted."""


def _count(ledger: Ledger, study: Study, cell: Cell, key: str, federation: Federation) -> None:
    attacks = {name: (attack_key(name, attack), attack) for name, attack in study.attacks_on(cell).items()}
    ledger.count(cell.name, key, federation, attacks)


def _next_free(work: Work, left: deque[int], busy: Collection[int]) -> int | None:
    """Take the first cell whose run nobody is working on, here or elsewhere; None where there is none.

    Cells that are one run are done in their order, so that its title and its attacks are those of one process; a
    cell that follows another is done when that one is.
    """
    first: dict[str, int] = {}
    for number in sorted([*left, *busy]):
        first.setdefault(work.keys[number], number)
    for _ in range(len(left)):
        number = left.popleft()
        source = work.sources.get(number)
        waits = source is not None and (source in left or source in busy or work.store.run(work.keys[source]).held)
        if not waits and first[work.keys[number]] == number and not work.store.run(work.keys[number]).held:
            return number
        left.append(number)
    return None


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
            check_source(study, cell, federation)
            if found := cell_mistakes(federation, study.attacks_on(cell)):
                for error in found:
                    wrong.setdefault(str(error), []).append(cell.name)
                continue
            keys.append(key_of(description(federation)))
            if see is not None:
                see(cell, keys[-1], federation)
        except (LeaklineError, ValueError) as error:
            wrong.setdefault(str(error), []).append(cell.name)
    if wrong:
        raise StudyError("\n".join(said_once(wrong, len(study.cells))))
    return keys


def said_once(said: Mapping[str, Sequence[str]], count: int, what: str = "cells") -> list[str]:
    """Each text once, with those it is said of: what is wrong with the data is wrong with all cells."""
    lines = []
    for text, names in said.items():
        many = f"all {count} {what}" if len(names) == count > 1 else f"{names[0]} and {len(names) - 1} more {what}"
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
    """Refuse a federation in which some part, or what will meet it, cannot work."""
    for error in cell_mistakes(federation, attacks):
        raise error


def cell_mistakes(federation: Federation, attacks: Mapping[str, Attack]) -> list[LeaklineError | ValueError]:
    """Ask every part of a federation, and each attack that will meet it, whether it can work there."""
    found: list[LeaklineError | ValueError] = []
    asked: list[Callable[[], object]] = [
        lambda: _check_batches(federation),
        lambda: federation.stack.check(federation),
        *(partial(attack.check, federation) for attack in attacks.values()),
        lambda: declared(attacks.values()),
    ]
    for ask in asked:
        try:
            ask()
        except (LeaklineError, ValueError) as error:
            found.append(error)
    return found


def _check_batches(federation: Federation) -> None:
    if unknown := [name for name, _ in federation.batches if name not in federation.clients]:
        raise StudyError(
            f"there is no client {unknown[0]!r}",
            "[training] batches",
            f"one of: {', '.join([*federation.clients][:9])}",
        )
