"""How long a study will still take: counted work, what a unit of it took so far, and how sure that is.

Work is counted before anything runs: rounds of the cells' own training, rounds of the federations that attacks train to
compare with, steps of searches, and each meeting of an attack with a cell (what it computes besides). A unit's price is
what such units took so far in the same place (network, data, plan, defences). Where none was done yet, it is

    train    a trial round; else by the number of examples
    worlds   a sample of the attack's work there; else a round of the cell's own training there, and what the attack's
             worlds took besides elsewhere
    search   an example's step, timed, times what searches took elsewhere of what was believed of them there; a search
             is counted by the most that it may take, and ends when it finds nothing better: `USUAL` of that is expected
    meet     a sample; else what the same attack took elsewhere; nothing, if it was never met. Its first meeting may
             hold what is made once for all cells, and does not count as soon as there is another

and each has bounds, wider the less is known (`SURE`; how wide was read off recorded runs, tests/study/paces). Kinds err
independently, but for an attack's searches, and its meetings, at several places; distances from what is expected are
added as squares.

The time left is said as one figure where these bounds are within 30 % of it, as a range where they are at most `FAR`
times apart, else by the most; and it is not known before most of it is of kinds that were done, here or elsewhere.
Whatever was there already costs nothing and teaches nothing.

Where several cells are worked on at once, each has a pace of its own, wherever that is; what it tells is added up here.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field
from typing import Any, Literal

What = Literal["train", "worlds", "search", "meet"]
WHOLE: tuple[What, ...] = ("worlds", "meet")
"""What a sample of an attack's work is a piece of: it is counted to the first of these that was planned; one of what it
computes besides, to its meeting."""
Range = tuple[float, float, float]
"""The least, what is expected, and the most."""

USUAL = 0.5
"""The share of what was counted that a search is expected to take, before any has ended."""
SURE: dict[str, tuple[float, float]] = {
    "done": (0.85, 1.15),
    "met": (0.5, 2.0),
    "met once": (0.1, 2.0),
    "tried": (0.75, 1.3),
    "by examples": (0.5, 6.0),
    "worlds elsewhere": (0.7, 1.4),
    "worlds nowhere": (0.7, 2.0),
    "search elsewhere": (0.2, 4.0),
    "search nowhere": (0.05, 4.0),
    "met elsewhere": (0.3, 3.0),
    "sampled": (0.5, 2.0),
}
"""By what a price rests on: the least and the most, as shares of it."""
SOONER, LATER = 6.0, 0.8
"""By how much a search of which little is done may be shorter or longer than it seems: it may end at any moment."""
OWN = 0.25
"""An attack that was never met is expected to compute at most so much besides, as a share of its cell's other work, but
for attacks of which there are samples."""
NARROW, FAR = 1.3 / 0.7, 6.0
"""How far the most may be from the least for one figure, and for a range."""
TRIED = 0.5
"""So much of the time left must be of kinds of work that were done, for it to be said."""


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
    left: tuple[float, float] | None
    """The least and the most, the least being 0 where they are too far apart; None: not known yet."""

    @property
    def about(self) -> float | None:
        """The figure that is as far from the least as from the most, in shares of them; None where that is too far."""
        if self.left is None or self.left[1] > NARROW * self.left[0]:
            return None
        return middle(*self.left)

    def line(self) -> str:
        """In words."""
        if self.left is None:
            left = "time left not known yet"
        elif self.left[0] <= 0 < self.left[1]:
            left = f"at most {duration(self.left[1])} left"
        elif self.about is None:
            left = f"{duration(self.left[0])} to {duration(self.left[1])} left"
        else:
            left = f"{duration(self.about)} left"
        return f"{', '.join(part for part in self.path if part)} ({left})"


def middle(least: float, most: float) -> float:
    """The x with x / least - 1 = 1 - x / most."""
    return 2 * least * most / (least + most) if most > 0 else 0.0


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
    """Seconds of a unit, from a trial: rounds of training, steps of searches, samples of attacks."""
    examples: dict[str, float] = field(default_factory=dict)
    """By place: examples' training steps in a round."""
    first: dict[str, tuple[Kind, float, float]] = field(default_factory=dict)
    """By attack: its first meeting, seconds and units."""

    def add(self, kind: Kind, seconds: float, units: float) -> None:
        """So many units took so long."""
        self.seconds[kind] += seconds
        self.units[kind] += units
        if kind.what == "meet" and units > 0:
            self.first.setdefault(kind.attack, (kind, self.seconds[kind], units))

    def of(self, kind: Kind) -> float:
        """Seconds that are expected of one unit."""
        return self.range(kind)[1]

    def range(self, kind: Kind, left: float = 0.0) -> Range:
        """Seconds of one unit, with bounds. ``left``: how many are to be done, of all cells."""
        if kind.what == "meet":
            return self._meeting(kind)
        if (done := self.units[kind]) > 0:
            price = self.seconds[kind] / done
            if kind.what == "search":
                open_ = left / (left + done)
                return price / (1 + SOONER * open_), price, price * (1 + LATER * open_)
            return _around(price, "done")
        if kind.what == "train":
            return _around(self._round(kind.where), "tried" if kind in self.tried else "by examples")
        return self._world(kind) if kind.what == "worlds" else self._search(kind)

    def knows(self, kind: Kind) -> bool:
        """Whether such work was done anywhere, or a sample of it here."""
        return bool(self._alike(kind)) or self.sampled(kind)

    def sampled(self, kind: Kind) -> bool:
        """Whether a sample of an attack's work here has it in it."""
        holders = WHOLE[: WHOLE.index(kind.what) + 1] if kind.what in WHOLE else ()
        return any(Kind(what, kind.where, kind.attack) in self.tried for what in holders)

    def _meeting(self, kind: Kind) -> Range:
        """As it took here, else by its sample, else as elsewhere, without the first of all where there are more."""
        alike = {k: (self.seconds[k], self.units[k]) for k in self._alike(kind)}
        if kind in self.tried and kind not in alike:
            return _around(self.tried[kind], "sampled")
        if not alike:
            return 0.0, 0.0, 0.0
        where, seconds, units = self.first[kind.attack]
        once = sum(n for _, n in alike.values()) <= units
        if not once:
            alike[where] = alike[where][0] - seconds, alike[where][1] - units
        prices = {k: took / n for k, (took, n) in alike.items() if n > 0}
        if kind in prices:
            return _around(prices[kind], "met once" if once else "met")
        low, high = SURE["met once" if once else "met elsewhere"]
        each = prices.values()
        return low * min(each), sum(each) / len(each), high * max(each)

    def _world(self, kind: Kind) -> Range:
        """A round of training there and what worlds needed besides elsewhere; or a share of it, if they needed less.

        By a sample, where there is one.
        """
        if kind in self.tried:
            return _around(self.tried[kind], "tried")
        here = self.range(Kind("train", kind.where))
        done = self._alike(kind)
        took = sum(self.seconds[k] for k in done)
        trained = sum(self.of(Kind("train", k.where)) * self.units[k] for k in done)
        price = here[1]
        if trained > 0:
            besides = (took - trained) / sum(self.units[k] for k in done)
            price = price + besides if besides > 0 else price * took / trained
        low, _, high = _around(price, "worlds elsewhere" if done else "worlds nowhere")
        unsure = price / here[1] if here[1] > 0 else 1.0
        return min(low, unsure * here[0]), price, max(high, unsure * here[2])

    def _search(self, kind: Kind) -> Range:
        """By an example's step, as wrong as that was elsewhere; the least by where it was most too much."""
        price = USUAL * self.tried.get(kind, 0.0)
        believed = {k: USUAL * self.tried[k] * self.units[k] for k in self._alike(kind) if self.tried.get(k)}
        if not believed:
            return _around(price, "search nowhere")
        off = sum(self.seconds[k] for k in believed) / sum(believed.values())
        low, _, high = _around(price, "search elsewhere")
        return low * min(self.seconds[k] / seconds for k, seconds in believed.items()), price * off, high * off

    def _alike(self, kind: Kind) -> list[Kind]:
        """Where the same work was done."""
        return [k for k in self._done(kind.what) if k.attack == kind.attack]

    def _round(self, where: str) -> float:
        """What a round is believed to take: tried, or by its examples where others were tried or done."""
        done, tried = self._done("train"), {k: s for k, s in self.tried.items() if k.what == "train"}
        both = [k for k in done if k in tried]
        off = sum(done[k] for k in both) / sum(tried[k] for k in both) if both else 1.0  # a trial is not written down
        if (here := tried.get(Kind("train", where))) is not None:
            return off * here
        known = tried | done
        steps = sum(self.examples.get(k.where, 0.0) for k in known)
        return sum(known.values()) / steps * self.examples.get(where, 0.0) if steps else 0.0

    def _done(self, what: What) -> dict[Kind, float]:
        """Seconds of a unit by kind, for all that were done."""
        return {k: self.seconds[k] / n for k, n in self.units.items() if n > 0 and k.what == what}


def _around(price: float, basis: str) -> Range:
    low, high = SURE[basis]
    return low * price, price, high * price


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

    def prepared(self, meeting: Kind, *detail: str) -> None:
        """What a search needs was made: the first time for all cells, so that this is no meeting's price."""
        now = self.clock()
        if self.prices.knows(meeting):
            self.prices.add(meeting, now - self._mark, 0.0)
        self._mark = now
        self.show(*detail)

    def skip(self, cell: str, kind: Kind, units: float) -> None:
        """So many units need not be done: they were there."""
        self.left[cell, kind] = max(self.left[cell, kind] - units, 0.0)

    def end(self, cell: str, kind: Kind) -> None:
        """All of it is done, also where less was needed than was counted: what was done took the place of all."""
        units = self.left.pop((cell, kind), 0.0)
        if kind.what == "meet":
            now = self.clock()
            self.prices.add(kind, now - self._mark, units)
            self._mark = now
        elif self.prices.units[kind] > 0:
            self.prices.add(kind, 0.0, units)

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

    def _expected(self) -> dict[tuple[str, Kind], Range]:
        """Seconds of all that is left, by cell and kind."""
        units: dict[Kind, float] = defaultdict(float)
        for (_, kind), count in self.left.items():
            units[kind] += count
        prices = {kind: self.prices.range(kind, count) for kind, count in units.items()}
        found = {(cell, kind): _times(prices[kind], count) for (cell, kind), count in self.left.items()}
        cells: dict[str, float] = defaultdict(float)
        for (cell, kind), (_, seconds, _) in found.items():
            cells[cell] += 0.0 if self.prices.sampled(kind) else seconds
        return {
            (cell, kind): (0.0, 0.0, OWN * cells[cell])
            if kind.what == "meet" and not self.prices.knows(kind)
            else range_
            for (cell, kind), range_ in found.items()
        }

    @property
    def seconds_left(self) -> Range:
        """What is left at the prices so far, shared by those at work, less what has passed since anything was done."""
        cells: dict[str, float] = defaultdict(float)
        below: dict[object, float] = defaultdict(float)
        above: dict[object, float] = defaultdict(float)
        for (cell, kind), (low, seconds, high) in self._expected().items():
            cells[cell] += seconds
            alone = (kind.what, kind.attack) if kind.what in ("search", "meet") else kind
            below[alone] += seconds - low
            above[alone] += high - seconds
        total = sum(cells.values())
        shared = max(total / self.at_once, max(cells.values(), default=0.0)) / total if total > 0 else 1.0
        passed = self.clock() - self._mark
        ends = total - math.hypot(*below.values()), total, total + math.hypot(*above.values())
        low, expected, high = (max(shared * end - passed, 0.0) for end in ends)
        return low, expected, high

    def standing(self, *detail: str) -> Standing:
        """Where the study stands now."""
        expected = self._expected()
        counted = sum(seconds for _, seconds, _ in expected.values())
        done = sum(seconds for (_, kind), (_, seconds, _) in expected.items() if self.prices.knows(kind))
        known = any(self.prices.units.values()) and done >= TRIED * counted
        low, _, high = self.seconds_left
        spent, left = self.clock() - self._start, middle(low, high)
        share = spent / (spent + left) if known and spent + left > 0 else 0.0
        return Standing((*self.path, *detail), share, (low if high <= FAR * low else 0.0, high) if known else None)

    def show(self, *detail: str) -> None:
        """Tell whoever watches."""
        self.tell(self.standing(*detail))


def _times(price: Range, units: float) -> Range:
    low, expected, high = price
    return low * units, expected * units, high * units
