"""How long a study will still take: counted work, and what a unit of it took so far.

Work is counted before anything runs: rounds of the cells' own training, rounds of the federations that attacks train to
compare with, steps of searches, and each meeting of an attack with a cell (what it computes besides). A unit's price is
what such units took so far in the same place (network, data, plan, defences). Where none was done yet, it is

    train    a trial round; else by the number of examples
    worlds   a round of the cell's own training there
    search   an example's step, timed; a search is counted by the most that it may take, and ends when it finds nothing
             better: `USUAL` of that is expected
    meet     what the same attack took elsewhere

times what the same kind of work took elsewhere of what was believed of it there.

The time left is said once most of it is of kinds that were tried: before that it is not known. Whatever was there
already costs nothing and teaches nothing.

Where several cells are worked on at once, each has a pace of its own, wherever that is; what it tells is added up here.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field
from typing import Any, Literal

What = Literal["train", "worlds", "search", "meet"]

USUAL = 0.5
"""The share of what was counted that a search is expected to take, before any has ended."""
TRIED = 0.5
"""So much of the time left must be of kinds of work that were tried, for it to be said."""


@dataclass(frozen=True)
class Kind:
    """Units of work that take the same time: what is done, for which attack, where."""

    what: What
    where: str
    attack: str = ""


@dataclass(frozen=True)
class Standing:
    """Where a study stands: what is being done, from the outside in, the share of the time, and seconds left."""

    path: tuple[str, ...]
    share: float
    left: float | None
    """None: not known yet."""

    def line(self) -> str:
        """In words."""
        shown = ", ".join(part for part in self.path if part)
        return f"{shown} ({'time left not known yet' if self.left is None else f'{duration(self.left)} left'})"


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@dataclass
class Prices:
    """What units took, and what is believed of those that were not done yet."""

    seconds: dict[Kind, float] = field(default_factory=lambda: defaultdict(float))
    units: dict[Kind, float] = field(default_factory=lambda: defaultdict(float))
    tried: dict[Kind, float] = field(default_factory=dict)
    """Seconds of a unit, from a trial: rounds of training, steps of searches."""
    examples: dict[str, float] = field(default_factory=dict)
    """By place: examples' training steps in a round."""

    def add(self, kind: Kind, seconds: float, units: float) -> None:
        """So many units took so long."""
        self.seconds[kind] += seconds
        self.units[kind] += units

    def of(self, kind: Kind) -> float:
        """Seconds of one unit."""
        if self.units[kind] > 0:
            return self.seconds[kind] / self.units[kind]
        return self._believed(kind) * self._off(kind)

    def knows(self, kind: Kind) -> bool:
        """Whether such work was done anywhere: then what it took there corrects what is believed of it here."""
        return any(k.attack == kind.attack for k in self._done(kind.what))

    def _believed(self, kind: Kind) -> float:
        """What a unit is believed to take, before any was done there."""
        if kind.what == "train":
            return self._round(kind.where)
        if kind.what == "worlds":
            return self.of(Kind("train", kind.where))
        if kind.what == "search":
            return USUAL * self.tried.get(kind, 0.0)
        alike = [s for k, s in self._done("meet").items() if k.attack == kind.attack]
        return sum(alike) / len(alike) if alike else 0.0

    def _round(self, where: str) -> float:
        """What a round is believed to take: tried, or by its examples where others were tried or done."""
        known = {k: s for k, s in {**self._done("train"), **self.tried}.items() if k.what == "train"}
        if (here := self.tried.get(Kind("train", where))) is not None:
            return here
        steps = sum(self.examples.get(k.where, 0.0) for k in known)
        return sum(known.values()) / steps * self.examples.get(where, 0.0) if steps else 0.0

    def _off(self, kind: Kind) -> float:
        """By how much beliefs about such work were wrong elsewhere."""
        done = [k for k in self._done(kind.what) if k.attack == kind.attack and (k in self.tried or k.what == "worlds")]
        believed = sum(self._believed(k) * self.units[k] for k in done)
        return sum(self.seconds[k] for k in done) / believed if believed > 0 else 1.0

    def _done(self, what: What) -> dict[Kind, float]:
        """Seconds of a unit by kind, for all that were done."""
        return {k: self.seconds[k] / n for k, n in self.units.items() if n > 0 and k.what == what}


class Pace:
    """Work that is left, what is being done, and who is told. ``clock`` counts seconds."""

    def __init__(self, tell: Callable[[Standing], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.tell, self.clock = tell, clock
        self.at_once = 1
        """How many cells are worked on at once."""
        self.prices = Prices()
        self.left: dict[tuple[str, Kind], float] = defaultdict(float)
        """Units that are left, by cell and kind."""
        self.path: list[str] = []
        self._start = self._mark = clock()
        self._heard: dict[str, Prices] = {}
        """By cell: what whoever works on it has said so far that units took."""

    def plan(self, cell: str, kind: Kind, units: float) -> None:
        """Count work that a cell will ask for."""
        if units > 0:
            self.left[cell, kind] += units

    def start(self, *path: str) -> None:
        """Something else is being done from now on, and nothing of it was done until now."""
        self.path, self._mark = list(path), self.clock()
        self.show()

    def did(self, cell: str, kind: Kind, units: float, *detail: str) -> None:
        """So many units more are done since the last time that anything was."""
        now = self.clock()
        self.prices.add(kind, now - self._mark, units)
        self._mark = now
        self.left[cell, kind] = max(self.left[cell, kind] - units, 0.0)
        self.show(*detail)

    def skip(self, cell: str, kind: Kind, units: float) -> None:
        """So many units need not be done: they were there."""
        self.left[cell, kind] = max(self.left[cell, kind] - units, 0.0)

    def end(self, cell: str, kind: Kind) -> None:
        """All of it is done, also where less was needed than was counted."""
        now, units = self.clock(), self.left.pop((cell, kind), 0.0)
        if kind.what == "meet" or self.prices.units[kind] > 0:
            self.prices.add(kind, now - self._mark, units)
            self._mark = now

    def drop(self, cell: str) -> None:
        """A cell asks for nothing more: it is done, or it failed."""
        for key in [key for key in self.left if key[0] == cell]:
            del self.left[key]
        self.forget(cell)

    def of_cell(self, cell: str) -> dict[str, Any]:
        """One cell's work as plain values: what is left of it, and what units took (that of all cells)."""
        left = [[*astuple(kind), units] for (whose, kind), units in self.left.items() if whose == cell]
        return {
            "left": left,
            "took": [
                [*astuple(kind), self.prices.seconds[kind], units] for kind, units in self.prices.units.items() if units
            ],
        }

    def expect(self, cell: str, work: Mapping[str, Any]) -> None:
        """Take over one cell's work, as somebody else counted it."""
        self.left |= {(cell, Kind(what, where, attack)): units for what, where, attack, units in work["left"]}

    def hear(self, cell: str, work: Mapping[str, Any], *path: str) -> None:
        """What another process says of the cell that it works on: its own pace's `of_cell`, and what it is doing."""
        before = self._heard.setdefault(cell, Prices())
        for what, where, attack, seconds, units in work["took"]:
            kind = Kind(what, where, attack)
            new = seconds - before.seconds[kind], units - before.units[kind]
            self.prices.add(kind, *new)
            before.add(kind, *new)
        for key in [key for key in self.left if key[0] == cell]:
            del self.left[key]
        self.expect(cell, work)
        self.start(*path)

    def forget(self, cell: str) -> None:
        """Whoever worked on a cell does so no more; the next one's pace begins anew."""
        self._heard.pop(cell, None)

    def _expected(self) -> dict[tuple[str, Kind], float]:
        """Seconds that are expected of all that is left, by cell and kind."""
        prices = {kind: self.prices.of(kind) for _, kind in self.left}
        return {(cell, kind): units * prices[kind] for (cell, kind), units in self.left.items()}

    @property
    def seconds_left(self) -> float:
        """What is left at the prices so far, shared by those at work, less what has passed since anything was done."""
        cells: dict[str, float] = defaultdict(float)
        for (cell, _), seconds in self._expected().items():
            cells[cell] += seconds
        counted = max(sum(cells.values()) / self.at_once, max(cells.values(), default=0.0))
        return max(counted - (self.clock() - self._mark), 0.0)

    def standing(self, *detail: str) -> Standing:
        """Where the study stands now."""
        expected = self._expected()
        counted = sum(expected.values())
        tried = sum(seconds for (_, kind), seconds in expected.items() if self.prices.knows(kind))
        known = any(self.prices.units.values()) and tried >= TRIED * counted
        spent, left = self.clock() - self._start, self.seconds_left
        share = spent / (spent + left) if known and spent + left > 0 else 0.0
        return Standing((*self.path, *detail), share, left if known else None)

    def show(self, *detail: str) -> None:
        """Tell whoever watches."""
        self.tell(self.standing(*detail))
