"""The lab: runs what is missing, once, and lets attacks meet what was run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from leakline import cards
from leakline.attacks.base import Attack
from leakline.cards import Card
from leakline.errors import LeaklineError, StoreError
from leakline.federation import Federation, Keep, State, federate, initial_weights, keep_none
from leakline.leakage.interval import clopper_pearson
from leakline.messages import Round
from leakline.randomness import Stream
from leakline.readings import Reading
from leakline.runtimes.local import LocalTransport
from leakline.study.describe import FORMAT, THREADS, describe, description, key_of
from leakline.study.spec import Cell, Study
from leakline.study.store import Run, Store
from leakline.weights import Weights

Progress = Callable[[str, int, int, Mapping[str, float]], None]
"""Called after each round: cell, rounds done, rounds in all, newest figures."""


def silent(cell: str, done: int, rounds: int, figures: Mapping[str, float]) -> None:
    """No progress."""


@dataclass(frozen=True)
class Lab:
    """The examiner's powers over one federation: run it (once), run its variants, look at what they left."""

    federation: Federation
    store: Store
    run: Run
    workers: int = 0

    def stream(self, purpose: str) -> Stream:
        """The examiner's own randomness."""
        return Stream(self.federation.seed, -2, "examiner", purpose)

    def final_weights(self) -> Weights:
        """The last published model."""
        return self.run.final_weights()

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
) -> Run:
    """Train a federation to its end, or go on where it stopped; a finished one is left as it is."""
    what = description(federation)
    run = store.run(key_of(what))
    if (end := run.end) is not None and end["status"] == "finished":
        return run
    with run.locked():
        run.open(what)
        loaded = run.load()
        state, memories = loaded if loaded is not None else (State(), {})
        started = time.perf_counter()
        with LocalTransport(federation, workers, memories) as transport:
            if state.weights is None:
                state.weights = initial_weights(federation)
            try:
                for round_ in federate(federation, transport, keep=keep, state=state):
                    utility = _utility(federation, transport, round_)
                    run.keep(round_)
                    run.commit(state, transport.memories, _record(round_), utility)
                    run.log(round=round_.index, seconds=round(time.perf_counter() - started, 3))
                    started = time.perf_counter()
                    figures = {r.measure: r.value for r in utility} | dict(round_.metrics)
                    progress(title, state.next, federation.rounds, figures)
            except LeaklineError as error:
                run.finish("failed", error=str(error), card=_card(title, federation, run, delta).as_dict())
                raise
        run.finish("finished", card=_card(title, federation, run, delta).as_dict())
    return run


def _record(round_: Round) -> dict[str, Any]:
    return {
        "round": round_.index, "cohort": list(round_.cohort), "facts": dict(round_.facts),
        "metrics": dict(round_.metrics), "dropped": [[d.client, d.reason] for d in round_.dropped],
    }  # fmt: skip


def _utility(federation: Federation, transport: LocalTransport, round_: Round) -> list[Reading]:
    test = federation.task.test
    if test is None or federation.wire != federation.layout:
        return []
    figures = federation.objective.summary(transport.outputs(round_.result, test), test.y)
    facts = federation.objective.facts
    found = []
    for name, value in figures.items():
        low, high = _share(value, len(test)) if name == "accuracy" else (None, None)
        better = "higher" if name not in facts or facts[name].higher_is_better else "lower"
        found.append(Reading(name, value, low, high, len(test), round=round_.index, better=better))
    return found


def _share(value: float, n: int) -> tuple[float, float]:
    found = clopper_pearson(round(value * n), n)
    return found.low, found.high


def _card(title: str, federation: Federation, run: Run, delta: float) -> Card:
    records = run.rounds()
    facts = [r["facts"] for r in records]
    done = max(len(records), 1)
    card = cards.formal_card(
        title, replace(federation, rounds=done) if done < federation.rounds else federation, delta, facts
    )
    dropped: dict[str, list[int]] = {}
    for record in records:
        for client, reason in record["dropped"]:
            dropped.setdefault(f"{client}: {reason}", []).append(record["round"])
    lines = tuple(f"{who} ({len(rounds)} rounds, first in round {rounds[0]})" for who, rounds in dropped.items())
    last = [Reading(**r) for r in run.readings() if r.get("round") == len(records) - 1 and r["by"] == "utility"]
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
        if line["measure"] != "none"
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


def run_study(study: Study, out: Path, *, workers: int = 0, progress: Progress = silent) -> Iterator[Outcome]:
    """Train what is missing and let every attack meet every cell; yields cell by cell, failures included."""
    torch.set_num_threads(THREADS)
    store = Store(out)
    grid: list[dict[str, Any]] = [{"labels": dict(cell.labels), "run": None} for cell in study.cells]

    def save() -> None:
        store.write_study(
            study.text,
            {
                "format": FORMAT,
                "name": study.name,
                "title": study.title,
                "delta": study.delta,
                "notes": list(study.notes),
                "cells": grid,
            },
        )

    save()
    for place, cell in enumerate(study.cells):
        try:
            federation = cell.federation()
            before = store.run(key_of(description(federation))).end
            run = train_run(
                store,
                federation,
                workers=workers,
                keep=wanted(study, federation),
                delta=study.delta,
                title=cell.name,
                progress=progress,
            )
            grid[place]["run"] = run.key
            save()
            meet(study, Lab(federation, store, run, workers))
            yield Outcome(cell, run, trained=before is None or before["status"] != "finished")
        except LeaklineError as error:
            grid[place]["error"] = str(error)
            save()
            yield Outcome(cell, None, str(error))


def wanted(study: Study, federation: Federation) -> Keep:
    """Which updates the study's attacks ask to be kept."""
    asks = [attack.wants(federation) for attack in study.attacks.values() if hasattr(attack, "wants")]
    return lambda index, client: any(ask(index, client) for ask in asks)


def meet(study: Study, lab: Lab) -> None:
    """Let each attack that has not met this run yet do so, and write its readings down."""
    done = {r["attack"] for r in lab.run.attacks()}
    for name, attack in study.attacks.items():
        key = f"{name}-{key_of({'attack': describe(attack)})[:8]}"
        if key not in done:
            readings = examine(attack, lab)
            lab.run.add_attack(key, [replace(r, by=name) for r in readings])


def examine(attack: Attack, lab: Lab) -> list[Reading]:
    """Set the attack's challenges, collect its guesses, compare them with the secrets."""
    guesses, secrets = [], []
    for challenge in attack.challenges(lab):
        guesses.append(attack.guess(challenge.view, challenge.hints))
        secrets.append(challenge.secret)
    return attack.measure(guesses, secrets) if guesses else []
