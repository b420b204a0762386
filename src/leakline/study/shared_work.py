"""Which work the cells of a study share: what `leakline check` says of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from leakline.federation import Federation
from leakline.study.describe import description, key_of
from leakline.study.first_round import AT_CLIENT, AT_SERVER

ONCE = ": each process makes them once"


@dataclass
class SharedWork:
    """Counts the work of cells as they are shown, one after another."""

    cells: int = 0
    runs: dict[str, int] = field(default_factory=dict)
    """Rounds, by run."""
    asked: float = 0.0
    """Rounds of worlds, as every attack on every cell asks for them."""
    worlds: dict[object, float] = field(default_factory=dict)
    """The same by what is trained: this is trained once."""
    begins: Counter[str] = field(default_factory=Counter)
    """Runs, by how their clients train in the first round."""
    starts: Counter[str] = field(default_factory=Counter)
    """Runs with a warm start, by what the server trains for it."""

    def see(self, federation: Federation) -> None:
        """One more cell."""
        self.cells += 1
        what = description(federation)
        key = key_of(what)
        if key not in self.runs:
            self.runs[key] = federation.rounds
            self.begins[_begin(federation, what["federation"])] += 1
            if federation.strategy.warm_start:
                kept = {k: what["federation"].get(k) for k in ("task", "model", "warm_start", "seed", "initial_seed")}
                self.starts[key_of(kept)] += 1

    def ask(self, trains: Mapping[Any, float]) -> None:
        """An attack on that cell has federations trained: how many rounds, by what is trained."""
        for what, rounds in trains.items():
            self.asked += rounds
            self.worlds[what] = max(self.worlds.get(what, 0.0), rounds)

    @property
    def first_rounds(self) -> int:
        """First rounds in which clients train as they do in another run."""
        return self.begins.total() - len(self.begins)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "cells": self.cells, "runs": len(self.runs), "rounds": sum(self.runs.values()),
            "rounds_of_worlds": sum(self.worlds.values()), "rounds_of_worlds_asked_for": self.asked,
            "first_rounds_alike": self.first_rounds, "warm_starts_alike": self.starts.total() - len(self.starts),
        }  # fmt: skip

    def lines(self) -> list[str]:
        """In words: what is shared, and what is not."""
        rounds, worlds = sum(self.runs.values()), sum(self.worlds.values())
        lines = [f"{self.cells} cells are {len(self.runs)} runs of {rounds:,} rounds in all"]
        if len(self.runs) < self.cells:
            lines[0] += f"; {self.cells - len(self.runs)} cells are the run of another"
        if worlds:
            shared = self.asked - worlds
            lines.append(f"attacks train worlds of {worlds:,.0f} rounds in all")
            lines[-1] += f"; {shared:,.0f} rounds more are those of another cell or attack" if shared else ""
        if self.first_rounds:
            part = self.first_rounds / rounds
            lines.append(f"{self.first_rounds} first rounds ({part:.0%} of all) are those of another run{ONCE}")
        if alike := self.starts.total() - len(self.starts):
            lines.append(f"{alike} of {self.starts.total()} warm starts are those of another run{ONCE}")
        return lines


def _begin(federation: Federation, settings: Mapping[str, Any]) -> str:
    """What clients answer in the first round, as `first_round` remembers it; one for each run where it does not."""
    alone = federation.stack.using(*AT_CLIENT) or federation.wire != federation.layout
    if alone or federation.cohort.sampling == "poisson":  # who takes part may be secret
        return key_of(settings)
    before = {key: value for key, value in settings.items() if key not in AT_SERVER}
    cohort, strategy = federation.invited(0), federation.strategy
    return key_of({**before, "asked": list(cohort), "mu": strategy.proximal, "warm": strategy.warm_start})
