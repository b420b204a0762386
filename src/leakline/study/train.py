"""Training one federation into the store, or going on where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

from leakline.data import table
from leakline.errors import LeaklineError
from leakline.federation import Federation, State, federate, initial_weights, keep_none
from leakline.messages import Keep, Memory, Round
from leakline.runtimes.local import DEADLINE, LocalTransport
from leakline.study.averages import averaged
from leakline.study.carded import card_so_far
from leakline.study.describe import description, key_of
from leakline.study.first_round import FirstRound
from leakline.study.judges import Place, judged, out_of_patience
from leakline.study.store import Run, Store

Progress = Callable[[str, int, int, Mapping[str, float]], None]
"""Called after each round: cell, rounds done, rounds in all, newest figures."""

Opens = Callable[[Federation, dict[str, Memory]], AbstractContextManager[Place]]
"""Opens the place where a federation's clients are, given what they kept when the run was last left."""


def silent(cell: str, done: int, rounds: int, figures: Mapping[str, float]) -> None:
    """No progress."""


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
    wait: bool = False,
    deadline: float = DEADLINE,
) -> Run:
    """Train a federation to its end, or go on where it stopped; a finished one is left as it is.

    ``opens``: where its clients are; by default in this process and its workers. ``wait``: for another process that
    is training it; otherwise `Busy` is raised. ``deadline``: of a client's turn in a worker, in seconds.
    """
    federation = federation.granted
    what = description(federation)
    run = store.run(key_of(what))
    if _is_finished(run) and (end := run.end) is not None and end.get("delta") == delta:
        return run
    with run.locked(wait=wait):
        if _is_finished(run):  # perhaps by another process, until now
            _account_again(run, federation, delta, title)
            return run
        run.sweep("training")
        run.open({**what, "partition": [asdict(row) for row in table(federation.task)]})
        loaded = run.load()
        state, memories = loaded if loaded is not None else (State(), {})
        started = time.perf_counter()
        bench = None
        if opens is None:
            here = LocalTransport(federation, workers, memories, deadline)
            place: AbstractContextManager[Place] = FirstRound(here)
            bench = here.bench
        else:
            place = opens(federation, memories)
        with place as transport:
            if state.weights is None:
                state.weights = initial_weights(federation, bench)
            try:
                losses = [r["value"] for r in run.readings() if r["measure"] == "loss" and "client" not in r]
                rounds = federate(federation, transport, keep=keep, state=state)
                while not out_of_patience(losses, federation.judging.patience):
                    round_ = next(rounds, None)
                    if round_ is None:
                        break
                    utility = judged(federation, transport, averaged(round_, state, federation.judging.average))
                    losses += [r.value for r in utility if r.measure == "loss" and r.client is None]
                    run.kept.add(round_)
                    run.commit(state, transport.memories, _record(round_), utility)
                    run.log(round=round_.index, seconds=round(time.perf_counter() - started, 3))
                    started = time.perf_counter()
                    figures = {r.measure: r.value for r in utility if r.client is None} | dict(round_.metrics)
                    progress(title, state.next, federation.rounds, figures)
            except LeaklineError as error:
                run.finish(
                    "failed", error=str(error), delta=delta, card=card_so_far(title, federation, run, delta).as_dict()
                )
                raise
        early = {"stopped_after": state.next} if state.next < federation.rounds else {}
        run.finish("finished", **early, delta=delta, card=card_so_far(title, federation, run, delta).as_dict())
    return run


def _is_finished(run: Run) -> bool:
    return (end := run.end) is not None and end["status"] == "finished"


def _account_again(run: Run, federation: Federation, delta: float, title: str) -> None:
    """The same run under another delta has another epsilon, and nothing to train."""
    end = run.end
    assert end is not None
    if end.get("delta") != delta:
        card = card_so_far(title or str(end["card"]["title"]), federation, run, delta).as_dict()
        kept = {k: v for k, v in end.items() if k not in ("status", "lines")}
        run.finish("finished", **{**kept, "delta": delta, "card": card})


def _record(round_: Round) -> dict[str, Any]:
    longer = {"longer": dict(round_.longer)} if round_.longer else {}
    return {
        "round": round_.index, "cohort": list(round_.cohort), "facts": dict(round_.facts),
        "metrics": dict(round_.metrics), "dropped": [[d.client, d.reason] for d in round_.dropped],
        **longer, **({"still": list(round_.still)} if round_.still else {}),
    }  # fmt: skip
