"""The lab: runs what is missing, once, and lets attacks meet what was run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from leakline import cards
from leakline.attacks.base import Attack
from leakline.cards import Card
from leakline.data import table
from leakline.errors import ClientLost, LeaklineError, StackError, StoreError, StudyError
from leakline.federation import Federation, State, federate, initial_weights, keep_none
from leakline.messages import Dropped, Keep, Memory, Order, Round, Update
from leakline.randomness import Stream
from leakline.readings import Reading
from leakline.runtimes.client import reason_of
from leakline.runtimes.local import LocalTransport
from leakline.runtimes.machine import cores
from leakline.study.cells import Cell, Study
from leakline.study.describe import FORMAT, THREADS, describe, description, key_of
from leakline.study.judges import Place, judged, out_of_patience
from leakline.study.store import Run, Store
from leakline.weights import Weights

Progress = Callable[[str, int, int, Mapping[str, float]], None]
"""Called after each round: cell, rounds done, rounds in all, newest figures."""

Opens = Callable[[Federation, dict[str, Memory]], AbstractContextManager[Place]]
"""Opens the place where a federation's clients are, given what they kept when the run was last left."""


Says = Callable[[str], None]
"""Called with a line about how far an attack has come."""


def unsaid(line: str) -> None:
    """Nobody listens."""


def silent(cell: str, done: int, rounds: int, figures: Mapping[str, float]) -> None:
    """No progress."""


@dataclass(frozen=True)
class Lab:
    """The examiner's powers over one federation: run it (once), run its variants, look at what they left."""

    federation: Federation
    store: Store
    run: Run
    workers: int = 0
    says: Says = unsaid

    def stream(self, purpose: str) -> Stream:
        """The examiner's own randomness."""
        return Stream(self.federation.seed, -2, "examiner", purpose)

    def final_weights(self) -> Weights:
        """The last published model."""
        return self.run.final_weights()

    def memories(self) -> dict[str, Memory]:
        """A copy of what the clients kept for themselves when the run ended."""
        loaded = self.run.load()
        return {} if loaded is None else loaded[1]

    def probe(
        self,
        weights: Weights,
        number: int,
        *,
        federation: Federation | None = None,
        clients: Sequence[str] = (),
        memories: dict[str, Memory] | None = None,
    ) -> tuple[Update, ...]:
        """One exchange beyond the run: send chosen weights to clients, and get what crosses the wire.

        ``number`` counts the probes of an attack, so that each has its own randomness. ``federation`` stands in for
        the lab's own where clients should use other data or another plan; ``memories`` (default: a copy of what they
        had at the end of the run) is changed as a round would change it. Nothing is written to the store.
        """
        world = self.federation if federation is None else federation
        kept = self.memories() if memories is None else memories
        index = self.federation.rounds + number
        names = clients or [c.name for c in world.task.clients]
        notes = world.stack.brief(world.turns(index, self._server_memory(world)))
        with LocalTransport(world, self.workers, kept) as transport:
            answers = list(transport.exchange([Order(name, index, weights, notes) for name in names]))
        for one in answers:
            if isinstance(one, Dropped):
                raise ClientLost(f"client {one.client}: {one.reason}", f"probe {number}", "mend it, then run again")
        return tuple(one for one in answers if isinstance(one, Update))

    def _server_memory(self, world: Federation) -> Memory:
        """A copy of what the server's defences had learned when the run ended, for a world with the same ones."""
        loaded = self.run.load() if world.stack.using("brief") and world.defences == self.federation.defences else None
        return {} if loaded is None else loaded[0].memory

    def variant(self, federation: Federation, keep: Keep = keep_none) -> Lab:
        """Another federation's lab, trained if it is not in the store yet."""
        run = train_run(self.store, federation, workers=self.workers, keep=keep)
        return Lab(federation, self.store, run, self.workers)


def train_run(
    store: Store,
    federation: Federation,
    *,
    workers: int = 0,
    keep: Keep = keep_none,
    delta: float = 1e-5,
    title: str = "",
    progress: Progress = silent,
    opens: Opens | None = None,
) -> Run:
    """Train a federation to its end, or go on where it stopped; a finished one is left as it is.

    ``opens``: where its clients are; by default in this process and its workers.
    """
    what = description(federation)
    run = store.run(key_of(what))
    if (end := run.end) is not None and end["status"] == "finished":
        return run
    with run.locked():
        run.open({**what, "partition": [asdict(row) for row in table(federation.task)]})
        loaded = run.load()
        state, memories = loaded if loaded is not None else (State(), {})
        started = time.perf_counter()
        place = LocalTransport(federation, workers, memories) if opens is None else opens(federation, memories)
        with place as transport:
            if state.weights is None:
                state.weights = initial_weights(federation)
            try:
                losses = [r["value"] for r in run.readings() if r["measure"] == "loss" and "client" not in r]
                rounds = federate(federation, transport, keep=keep, state=state)
                while not out_of_patience(losses, federation.judging.patience):
                    round_ = next(rounds, None)
                    if round_ is None:
                        break
                    utility = judged(federation, transport, round_)
                    losses += [r.value for r in utility if r.measure == "loss" and r.client is None]
                    run.keep(round_)
                    run.commit(state, transport.memories, _record(round_), utility)
                    run.log(round=round_.index, seconds=round(time.perf_counter() - started, 3))
                    started = time.perf_counter()
                    figures = {r.measure: r.value for r in utility if r.client is None} | dict(round_.metrics)
                    progress(title, state.next, federation.rounds, figures)
            except LeaklineError as error:
                run.finish("failed", error=str(error), card=_card(title, federation, run, delta).as_dict())
                raise
        early = {"stopped_after": state.next} if state.next < federation.rounds else {}
        run.finish("finished", **early, card=_card(title, federation, run, delta).as_dict())
    return run


def _record(round_: Round) -> dict[str, Any]:
    return {
        "round": round_.index, "cohort": list(round_.cohort), "facts": dict(round_.facts),
        "metrics": dict(round_.metrics), "dropped": [[d.client, d.reason] for d in round_.dropped],
    }  # fmt: skip


def _card(title: str, federation: Federation, run: Run, delta: float) -> Card:
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
    last = [
        Reading(**r)
        for r in run.readings()
        if r.get("round") == len(records) - 1 and r["by"] == "utility" and "client" not in r
    ]
    return replace(card, dropped=lines, utility=tuple(r for r in last if r.measure == federation.objective.headline))


def card_of(run: Run, title: str = "") -> Card:
    """The whole card of a run: the promise, the price, and what audits and attacks have measured since."""
    end = run.end
    if end is None:
        raise StoreError("this run is not finished", run.key, "run the study again: it goes on where it stopped")
    card = Card.from_dict(end["card"])
    found = [
        Reading(**{k: v for k, v in line.items() if k != "attack"})
        for line in run.attacks()
        if line["measure"] != "none" and "client" not in line
    ]
    bounds = tuple(r for r in found if r.measure.split(":")[0] in ("epsilon", "mu"))
    card = replace(card, title=title or card.title, measured=bounds, leaks=tuple(r for r in found if r not in bounds))
    return replace(card, broken=cards.violations(card))


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
        except LeaklineError as error:
            grid[place]["error"] = str(error)
            save()
            yield Outcome(cell, None, str(error))


def _about(says: Says, cell: str, line: str) -> None:
    says(f"{cell}: {line}")


def grid_entry(study: Study, cell: Cell) -> dict[str, Any]:
    """A cell of the grid that has not been run yet."""
    keys = [attack_key(name, attack) for name, attack in study.attacks_on(cell).items()]
    return {"labels": dict(cell.labels), "run": None, "attacks": keys}


def write_grid(store: Store, study: Study, cells: Sequence[Mapping[str, Any]]) -> None:
    """Write down what was asked and which run each cell is, so that a report can be made at any moment."""
    store.write_study(
        study.text,
        {
            "format": FORMAT,
            "name": study.name,
            "title": study.title,
            "delta": study.delta,
            "notes": list(study.notes),
            "cells": list(cells),
        },
    )


def earlier(store: Store, study: Study) -> list[dict[str, Any]]:
    """The cells of the directory's grid that a narrowed study leaves alone."""
    if not (store.root / "study.json").exists():
        return []
    ours = [dict(cell.labels) for cell in study.cells]
    return [cell for cell in store.grid()["cells"] if cell["run"] is not None and cell["labels"] not in ours]


def check_parts(study: Study) -> None:
    """Build every federation and ask every part whether it can work there, before anything is trained."""
    wrong = []
    for cell in study.cells:
        try:
            check_cell(cell.federation(), study.attacks_on(cell))
        except LeaklineError as error:
            wrong.append(f"{cell.name}: {error}")
    if wrong:
        raise StudyError("\n".join(dict.fromkeys(wrong)))


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
        if hasattr(attack, "check"):
            attack.check(federation)


def wanted(attacks: Mapping[str, Attack], federation: Federation) -> Keep:
    """Which updates the attacks ask to be kept."""
    asks = [attack.wants(federation) for attack in attacks.values() if hasattr(attack, "wants")]
    return lambda index, client: any(ask(index, client) for ask in asks)


def meet(attacks: Mapping[str, Attack], lab: Lab) -> None:
    """Let each attack that has not met this run yet do so, and write its readings down."""
    done = {r["attack"] for r in lab.run.attacks()}
    for name, attack in attacks.items():
        key = attack_key(name, attack)
        if key not in done:
            try:
                readings = examine(attack, lab)
            except LeaklineError:
                raise
            except Exception as error:  # what was trained is kept, and the other cells go on
                raise StackError(
                    f"the attack {name} failed: {reason_of(error)}", lab.run.key, "mend it, and run the study again"
                ) from error
            lab.run.add_attack(key, [replace(r, by=name) for r in readings])


def attack_key(name: str, attack: Attack) -> str:
    """An attack by its name in the study and a hash of its settings."""
    return f"{name}-{key_of({'attack': describe(attack)})[:8]}"


def examine(attack: Attack, lab: Lab) -> list[Reading]:
    """Set the attack's challenges, collect its guesses, compare them with the secrets."""
    guesses: list[Any] = []
    secrets: list[Any] = []
    if hasattr(attack, "guesses"):
        set_ = list(attack.challenges(lab))
        guesses = attack.guesses([(c.view, c.hints) for c in set_], lab.workers or cores()) if set_ else []
        secrets = [c.secret for c in set_]
    else:
        for challenge in attack.challenges(lab):
            guesses.append(attack.guess(challenge.view, challenge.hints))
            secrets.append(challenge.secret)
    return attack.measure(guesses, secrets) if guesses else []
