"""The work of a study, counted before it runs, and one cell's part of it while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from leakline.attacks.base import Attack
from leakline.federation import Federation
from leakline.runtimes.machine import cores
from leakline.study.pace import WHOLE, Kind, Pace, What
from leakline.study.store import Store
from leakline.study.timing import Samples, Steps, place_of, trial_round

TRIALS, WORTH = 6, 20
"""How many places are tried beforehand at most, and how many rounds must be done in one to be worth it."""


class Ledger:
    """Counts the work of a study's cells into a `Pace`."""

    def __init__(self, pace: Pace, store: Store, workers: int = 0) -> None:
        self.pace, self.store, self.workers = pace, store, workers
        self._seen: set[object] = set()
        self.steps = Steps()
        self._places: dict[str, Federation] = {}
        self._attacks: dict[tuple[str, str], Attack] = {}
        """By place and name."""

    def count(self, cell: str, key: str, federation: Federation, attacks: Mapping[str, tuple[str, Attack]]) -> None:
        """Count what a cell still asks for. ``attacks``: the key in the store and the attack itself, by name."""
        where, run = place_of(federation), self.store.run(key)
        self._places.setdefault(where, federation)
        rows = sum(len(client.train) for client in federation.task.clients) / len(federation.task.clients)
        self.pace.prices.examples[where] = federation.local_plan.epochs * rows * federation.expected()
        end = run.end
        if key not in self._seen and (end is None or end["status"] != "finished"):
            self._seen.add(key)
            self.pace.plan(cell, Kind("train", where), max(federation.rounds - len(run.rounds()), 0))
        met = run.met()
        for name, (attack_key, attack) in attacks.items():
            if attack_key not in met:
                self._count_attack(cell, where, name, attack, federation)

    def _count_attack(self, cell: str, where: str, name: str, attack: Attack, federation: Federation) -> None:
        self._attacks[where, name] = attack
        bare = place_of(replace(federation, defences=()))  # the names of worlds say which defences count
        for what, rounds in attack.trains(federation).items():
            if (bare, federation.seed, what) not in self._seen:
                self._seen.add((bare, federation.seed, what))
                self.pace.plan(cell, Kind("worlds", where, name), rounds)
        if passes := attack.passes(federation):
            kind = Kind("search", where, name)
            if kind not in self.pace.prices.tried:
                seconds = self.steps.searched(attack, federation, where)
                self.pace.prices.tried[kind] = seconds / passes / (self.workers or cores())
            self.pace.plan(cell, kind, passes)
        self.pace.plan(cell, Kind("meet", where, name), 1.0)

    def try_places(self) -> None:
        """Time a round where many are to come, if there are several such places."""
        rounds: dict[str, float] = {}
        for (_, kind), units in self.pace.left.items():
            if kind.what in ("train", "worlds"):
                rounds[kind.where] = rounds.get(kind.where, 0.0) + units
        worth = [where for where, units in rounds.items() if units >= WORTH]
        for where in worth[:TRIALS] if len(worth) > 1 else ():
            self.pace.start("looking how long a round takes")
            if (took := trial_round(self._places[where], self.workers)) is not None:
                self.pace.prices.tried[Kind("train", where)] = took

    def try_attacks(self) -> None:
        """Time a piece of what attacks do where nothing else tells how long that takes."""
        samples = Samples(self.workers)
        left: dict[Kind, float] = {}
        for (_, kind), units in self.pace.left.items():
            left[kind] = max(left.get(kind, 0.0), units)  # of one cell
        for (where, name), attack in self._attacks.items():
            kinds = [kind for what in WHOLE if (kind := Kind(what, where, name)) in left]
            if not kinds:
                continue
            self.pace.start(f"looking how long {name} takes")
            if (took := samples.of(attack, self._places[where])) is not None:
                kind = kinds[-1] if took.besides else kinds[0]
                self.pace.prices.tried[kind] = took.seconds / left[kind]


@dataclass
class Counted:
    """One cell's part of the work: who trains or attacks there tells it how far it is."""

    pace: Pace
    cell: str
    place: tuple[str, ...]
    """How the cell is shown: its number among all, and its name."""
    where: str
    attack: str = ""
    worlds: int = 0
    """Federations that the attack has had trained so far, to compare with."""
    _told: int = field(default=0, repr=False)
    _every: int = field(default=0, repr=False)
    _lane: int = field(default=0, repr=False)
    _whole: float = field(default=0.0, repr=False)

    def kind(self, what: What) -> Kind:
        """Such work, in this cell's place, for the present attack."""
        return Kind(what, self.where, "" if what == "train" else self.attack)

    def train(self) -> None:
        """The cell's own training begins."""
        self.pace.start(*self.place, "training")

    def round(self, title: str, done: int, rounds: int, figures: Mapping[str, float]) -> None:
        """A round of the cell's own training is done."""
        shown = next((f"{name} {value:.3f}" for name, value in figures.items()), "")
        self.pace.did(self.cell, self.kind("train"), 1.0, f"round {done} of {rounds}", shown)

    def meets(self, attack: str) -> Counted:
        """An attack begins."""
        self.pace.start(*self.place, attack)
        return Counted(self.pace, self.cell, self.place, self.where, attack)

    def met(self) -> None:
        """The attack is done; what it was counted for and did not do teaches nothing of what that would have taken."""
        for what in ("worlds", "search"):
            if (self.cell, self.kind(what)) in self.pace.left:
                self.pace.end(self.cell, self.kind(what))
        self.pace.end(self.cell, self.kind("meet"))

    def world(self, rounds: int) -> None:
        """The attack asks for one more federation of so many rounds."""
        self.worlds, self._told = self.worlds + 1, 0
        self._every = max(self.worlds, self.worlds - 1 + round(self.pace.left[self.cell, self.kind("worlds")] / rounds))

    def world_round(self, title: str, done: int, rounds: int, figures: Mapping[str, float]) -> None:
        """A round of that federation is done."""
        self._told += 1
        shown = f"federation {self.worlds} of {self._every} to compare with"
        self.pace.did(self.cell, self.kind("worlds"), 1.0, shown, f"round {done} of {rounds}")

    def world_is_there(self, rounds: int) -> None:
        """That federation is there; what of it was not trained now was there before."""
        if rounds > self._told:
            self.pace.skip(self.cell, self.kind("worlds"), rounds - self._told)

    def probed(self, rounds: float) -> None:
        """An exchange beyond the run, of so many rounds' worth of examples."""
        if self.pace.left[self.cell, self.kind("worlds")] > 0:
            self.worlds += 1
            self.pace.did(self.cell, self.kind("worlds"), rounds, f"exchange {self.worlds}")

    def watched(self, rounds: int, done: int, every: int, lanes: int) -> None:
        """A federation of so many rounds was trained beside others, to compare with: the ``done``-th of ``every``.

        ``lanes`` of them run side by side and end at about the same time, so the first that ends stands for all.
        """
        line, kind = f"{done} of {every} federations to compare with", self.kind("worlds")
        if (there := done - 1 - self.worlds) > 0:  # trained before, by an earlier attack or another day
            self.pace.skip(self.cell, kind, there * rounds)
        first = self._lane == 0
        beside = min(lanes, every - done + 1) if first else 0
        self.worlds, self._lane = done, (self._lane + 1) % lanes
        if self.pace.left.get((self.cell, kind), 0.0) > 0 or not first:
            self.pace.did(self.cell, kind, beside * rounds, line)
        else:
            self.pace.show(line)

    def said(self, line: str, share: float | None = None) -> None:
        """The attack says how far it is: in words, and perhaps as a share of its search, or of what it trains itself.

        0 is where a search begins.
        """
        kind = self.kind("search" if (self.cell, self.kind("search")) in self.pace.left else "worlds")
        if share is None:
            self.pace.show(line)
            return
        if share == 0:
            self.pace.prepared(self.kind("meet"), line)
            return
        self._whole = self._whole or self.pace.left[self.cell, kind]
        done = max(share * self._whole - (self._whole - self.pace.left[self.cell, kind]), 0.0)
        self.pace.did(self.cell, kind, done, line)
