"""How long a study will still take: counted work, and what a unit of it took so far.

Work is counted before anything runs: rounds of the cells' own training, rounds of the federations that attacks train to
compare with, steps of searches, and each meeting of an attack with a cell (what it computes besides). A unit's price is
what such units took so far in the same place (network, data, plan, defences); where none was done yet, it is

    worlds   what a round of the cell's own training takes there, times what worlds took of it elsewhere
    train    a trial round and what rounds take besides elsewhere (judging, writing), else by the number of examples
    search   examples' steps of a timed pass, times what searches took of it elsewhere
    meet     what the same attack took elsewhere

Of searches and meetings nothing is known before the first: how soon a search ends depends on what it finds. Until then
the time left is the least that it can be. Whatever was there already costs nothing and teaches nothing.

Where several cells are worked on at once, each has a pace of its own, wherever that is; what it tells is added up here.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field
from typing import Any, Literal

What = Literal["train", "worlds", "search", "meet"]


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
    at_least: bool = False
    """Whether some of the work is of a kind that nobody knows the price of yet."""

    def line(self) -> str:
        """In words."""
        shown = ", ".join(part for part in self.path if part)
        return (
            shown
            if self.left is None
            else f"{shown} ({'at least ' if self.at_least else ''}{duration(self.left)} left)"
        )


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
    """Seconds of a unit, from a trial."""
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
        return self._before(kind) * self._off(kind) if self.knows(kind) else 0.0

    def knows(self, kind: Kind) -> bool:
        """Whether anything is known of such work."""
        alike = any(k.attack == kind.attack for k in self._done(kind.what))
        return alike or kind.what in ("train", "worlds")

    def _before(self, kind: Kind) -> float:
        """What a unit is believed to take, before any was done there."""
        if kind in self.tried:
            return self.tried[kind] + (self._besides() if kind.what == "train" else 0.0)
        if kind.what == "worlds":
            return self.of(Kind("train", kind.where))
        if kind.what == "train":
            known = {k: s for k, s in {**self.tried, **self._done("train")}.items() if k.what == "train"}
            steps = sum(self.examples.get(k.where, 0.0) for k in known)
            return sum(known.values()) / steps * self.examples.get(kind.where, 0.0) if steps else 0.0
        alike = {k: s for k, s in self._done(kind.what).items() if k.attack == kind.attack}
        return sum(alike.values()) / len(alike) if alike else 0.0

    def _off(self, kind: Kind) -> float:
        """By how much beliefs about worlds and searches were wrong elsewhere."""
        done = [k for k in self._done(kind.what) if k.attack == kind.attack and kind.what in ("worlds", "search")]
        believed = sum(self._before(k) * self.units[k] for k in done)
        return sum(self.seconds[k] for k in done) / believed if believed > 0 else 1.0

    def _besides(self) -> float:
        """What a round of training takes beside clients' turns, from places where both are known."""
        known = [s - self.tried[k] for k, s in self._done("train").items() if k in self.tried]
        return max(sum(known) / len(known), 0.0) if known else 0.0

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
        self._mark = self.clock()

    def end(self, cell: str, kind: Kind) -> None:
        """All of it is done, also where less was needed than was counted."""
        now, units = self.clock(), self.left.pop((cell, kind), 0.0)
        if units and self.prices.units[kind] + (kind.what != "worlds") > 0:
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

    @property
    def seconds_left(self) -> float:
        """What is left at the prices so far, shared by those at work, less what has passed since anything was done."""
        cells: dict[str, float] = defaultdict(float)
        for (cell, kind), units in self.left.items():
            cells[cell] += units * self.prices.of(kind)
        counted = max(sum(cells.values()) / self.at_once, max(cells.values(), default=0.0))
        return max(counted - (self.clock() - self._mark), 0.0)

    def standing(self, *detail: str) -> Standing:
        """Where the study stands now."""
        spent, left = self.clock() - self._start, self.seconds_left
        known = any(self.prices.units.values())
        share = spent / (spent + left) if known and spent + left > 0 else 0.0
        open_ = any(units > 0 and not self.prices.knows(kind) for (_, kind), units in self.left.items())
        return Standing((*self.path, *detail), share, left if known else None, open_)

    def show(self, *detail: str) -> None:
        """Tell whoever watches."""
        self.tell(self.standing(*detail))
