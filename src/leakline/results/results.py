"""`Results`: all that a store holds, read once, and the one way to ask it.

A query narrows results to results: ``results.where(defence="none", measure="accuracy", client=None).last()``. What is
left is grouped with `by` and pooled with `over_seeds`. Tables, charts and sentences are functions of `Results`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from leakline.measures import Measure, measure_of
from leakline.names import label_text
from leakline.readings import Reading
from leakline.results.cell import FINISHED, NOT_RUN, UNFINISHED, UNREADABLE, Cell, last, whole
from leakline.results.estimate import Estimate, estimate, over_seeds
from leakline.results.settings import Setting, pool

if TYPE_CHECKING:
    import pandas

_T = TypeVar("_T")
LABELS = ("scenario", "strategy", "defence", "seed")
_FIELDS = ("measure", "attack", "client", "round")
"""What a query can ask of a reading besides what it is about."""


@dataclass(frozen=True)
class Missing:
    """Something the study asked for that the store does not hold."""

    labels: Mapping[str, Any]
    what: str
    why: str = ""
    run: str | None = None


@dataclass(frozen=True)
class Results:
    """A study as it was asked for, and its cells with all that was measured of them."""

    root: Path
    name: str
    title: str
    delta: float
    notes: tuple[str, ...]
    text: str
    """The study file."""
    cells: tuple[Cell, ...]
    loose: tuple[str, ...] = ()
    """Runs that no cell of the grid points to: variants that attacks asked for, runs under way, older settings."""
    measures: Mapping[str, Measure] = field(default_factory=dict, repr=False)
    """What attacks from outside the package measure, as the store describes it."""
    damage: tuple[str, ...] = ()
    """What of the study's own files is damaged."""
    _made: dict[Callable[[Results], Any], Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, make: Callable[[Results], _T]) -> _T:
        """What a function makes of these results, made when first asked for."""
        if make not in self._made:
            self._made[make] = make(self)
        made: _T = self._made[make]
        return made

    def measure(self, name: str) -> Measure:
        """What a measure of this study means."""
        return measure_of(name, self.measures)

    def where(self, **wanted: Any) -> Results:
        """The cells with these labels, and of their readings those with this measure, attack, client or round.

        A name that is neither is one of what readings are about (``rule="loss"``). A wanted value is one value, a
        tuple of several, or a function that says whether a value will do. Utility is what the attack "utility"
        measured. A label that a cell does not have is "", what a reading is not about is None.
        """
        asked = {name: value for name, value in wanted.items() if self._of_readings(name)}
        labels = {name: value for name, value in wanted.items() if name not in asked}
        cells = [c for c in self.cells if all(_fits(c.labels.get(k, ""), value) for k, value in labels.items())]
        if asked:
            cells = [c.only(lambda r: all(_fits(_field(r, k), v) for k, v in asked.items())) for c in cells]
        return replace(self, cells=tuple(cells))

    def by(self, *names: str) -> dict[Any, Results]:
        """Results by the values of labels or of readings' fields, in the order in which they first come.

        A key is one value for one name, and else a tuple.
        """
        asked = [name for name in names if self._of_readings(name)]
        keys: dict[tuple[Any, ...], None] = {}
        for cell in self.cells:
            for reading in (*cell.readings, *cell.attacks) if asked else (None,):
                keys[tuple(_field(reading, n) if n in asked else cell.labels.get(n, "") for n in names)] = None
        found = {key: self.where(**dict(zip(names, key, strict=True))) for key in keys}
        return found if len(names) != 1 else {key[0]: some for key, some in found.items()}

    def _of_readings(self, name: str) -> bool:
        return name in _FIELDS or name not in self.labels

    def last(self, rounds: int = 1) -> Results:
        """Only what was measured in the last round, or rounds, of each measure."""
        return self._each(lambda readings: last(readings, rounds))

    def whole(self) -> Results:
        """Only what was measured of the whole federation, in cells where it was, else of its clients."""
        return self._each(whole)

    def _each(self, keep: Callable[[Sequence[Reading]], Sequence[Reading]]) -> Results:
        cells = (replace(c, readings=tuple(keep(c.readings)), attacks=tuple(keep(c.attacks))) for c in self.cells)
        return replace(self, cells=tuple(cells))

    @property
    def every(self) -> list[Reading]:
        """All readings that are left, utility before attacks within each cell."""
        return [r for cell in self.cells for r in (*cell.readings, *cell.attacks)]

    def over_seeds(self) -> Estimate | None:
        """The mean over cells, of each the mean of its readings; within the range of their measure, if it is one."""
        runs = [[float(r.value) for r in (*cell.readings, *cell.attacks)] for cell in self.cells]
        means = [sum(values) / len(values) for values in runs if values]
        measures = {r.measure for r in self.every}
        return over_seeds(self.measure(*measures), means) if len(measures) == 1 else estimate(means)

    def ends(self) -> tuple[float | None, float | None]:
        """The lowest and highest end of the single runs' own intervals."""
        lows, highs = (
            [r.low for r in self.every if r.low is not None],
            [r.high for r in self.every if r.high is not None],
        )
        return min(lows, default=None), max(highs, default=None)

    @cached_property
    def finished(self) -> Results:
        """Only the cells whose training came to its end."""
        return replace(self, cells=tuple(cell for cell in self.cells if cell.status == FINISHED))

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """The finished cells with their seeds pooled."""
        return pool(self.finished.cells, self.headline, self.measures)

    @property
    def seeds(self) -> int:
        """How many seeds the settings were run with, at most."""
        return max((len(setting.cells) for setting in self.settings), default=1)

    @cached_property
    def frame(self) -> pandas.DataFrame:
        """Every reading as one row of a pandas frame: see `leakline.results.frame`."""
        from leakline.results.frame import frame_of

        return frame_of(self)

    @cached_property
    def headline(self) -> str:
        """The utility measure to show when there is room for one; "" if nothing was measured."""
        for cell in self.finished.cells:
            if cell.card is not None and cell.card.utility:
                return cell.card.utility[0].measure
        known = dict.fromkeys(r.measure for cell in self.cells for r in cell.readings)
        return next((m for m in ("accuracy", "dice", *known) if m in known), "")

    @cached_property
    def better(self) -> str:
        """Which direction of the headline is good."""
        return self.measure(self.headline).better

    @cached_property
    def defences(self) -> list[str]:
        """The defences' labels, in the order of the study."""
        return list(dict.fromkeys(cell.label("defence") for cell in self.cells))

    @cached_property
    def labels(self) -> list[str]:
        """The labels of the grid in order: scenario first, then sweeps, strategy, defence; the seed last."""
        known = dict.fromkeys(name for cell in self.cells for name in cell.labels)
        return ["scenario", *(name for name in known if name not in LABELS), "strategy", "defence", "seed"]

    @cached_property
    def axes(self) -> list[str]:
        """The labels that tell settings apart, the defence aside; one is always left."""
        names = [n for n in self.labels if n not in ("seed", "defence")]
        values = {n: {repr(c.labels.get(n, "")) for c in self.cells} for n in names}
        return [n for n in names if len(values[n]) > 1] or ["strategy"]

    def place(self, labels: Mapping[str, Any]) -> str:
        """Where a defence was tried, in one line."""
        return ", ".join(label_text(n, labels.get(n, "")) for n in self.axes)

    def settings_of(self, defence: str) -> list[Setting]:
        """The settings of one defence."""
        return [s for s in self.settings if s.defence == defence]

    def baseline(self, setting: Setting) -> Setting | None:
        """The undefended federation with the same other labels."""
        same = (s for s in self.settings if s.undefended and s.elsewhere == setting.elsewhere)
        return next(same, None)

    @cached_property
    def missing(self) -> list[Missing]:
        """What was asked for and is not there: cells that failed or never ended, attacks that did not meet one."""
        attacks = tuple(dict.fromkeys(r.by for cell in self.cells for r in cell.attacks))
        gaps = [gap for cell in self.cells for gap in _missing(cell, attacks)]
        return [*(Missing({}, "damaged", what) for what in self.damage), *gaps]

    @cached_property
    def damaged(self) -> list[str]:
        """One line for each thing that is damaged or missing in the store's files."""
        found = [f"{cell.key}: {what}" for cell in self.cells for what in (cell.damage or _unread(cell))]
        return [*self.damage, *dict.fromkeys(found)]


def _missing(cell: Cell, attacks: tuple[str, ...]) -> list[Missing]:
    if cell.status != FINISHED:
        what = {NOT_RUN: "not run", UNFINISHED: "unfinished"}.get(cell.status, cell.status)
        done = f" after {cell.rounds} of {cell.wanted or '?'} rounds" if cell.rounds else ""
        again = "the same command goes on where it stopped" if cell.status in (NOT_RUN, UNFINISHED) else ""
        return [Missing(cell.labels, what + done, cell.error or again, cell.key)]
    gaps = [Missing(cell.labels, "damaged", what, cell.key) for what in cell.damage]
    gaps += [Missing(cell.labels, "trained, but an attack failed", cell.error, cell.key)] if cell.error else []
    if not cell.error:
        met = {r.by for r in cell.attacks}
        absent = [a for a in (attacks if cell.asked is None else cell.asked) if a not in met]
        gaps += [Missing(cell.labels, f"no reading of {a}", "it has not met this run yet", cell.key) for a in absent]
    return gaps if cell.readings else [*gaps, Missing(cell.labels, "no utility readings", "", cell.key)]


def _unread(cell: Cell) -> tuple[str, ...]:
    return (cell.error,) if cell.status == UNREADABLE else ()


def _field(reading: Reading | None, name: str) -> Any:
    if name in _FIELDS:
        return getattr(reading, "by" if name == "attack" else name)
    return None if reading is None else reading.about.get(name)


def _fits(value: Any, wanted: Any) -> bool:
    if callable(wanted):
        return bool(wanted(value))
    return value in wanted if isinstance(wanted, tuple) else value == wanted
