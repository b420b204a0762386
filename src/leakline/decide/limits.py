"""Decisions over finished cells: figures by name, limits on them, and which settings keep the limits.

A figure is what one setting (a strategy and a defence, seeds pooled) measured or promises: ``accuracy``,
``loss-threshold.auc``, ``membership-inference.tpr at fpr=0.01 (rmia)``, ``epsilon``. An interval is the 95 % t-interval
over seeds where there are several, else the reading's own. Everything here is a pure function of what a store holds.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from leakline.cards import Card
from leakline.errors import LeaklineError
from leakline.measures import measure_of
from leakline.readings import Reading
from leakline.results import Results, Setting
from leakline.results.settings import own_interval, pooled, qualified, utility_of
from leakline.text import clean, number
from leakline.utility.baseline import BLIND, answer_of, is_better, no_better, remark

EPSILON, ABOVE = "epsilon", " above baseline"
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_LIMIT = re.compile(
    r"\s*(?:(?P<defence>.+?):\s+)?(?P<name>\S.*?)\s*(?P<sign><=|>=|<|>)\s*(?P<bound>[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Figure:
    """One named number of a setting with its interval; a formal epsilon has none, because nothing is estimated."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    better: str = "higher"
    seeds: int = 1
    own: tuple[float, float] | None = None
    """Ends of the single runs' own intervals, averaged over runs: what seeds that share a test set cannot show."""
    baseline: float | None = None
    """What a constant answer gets, where this is how useful a model is."""
    blind: str = ""
    """That constant answer in words."""

    @property
    def cautious(self) -> tuple[float, float]:
        """The outer ends of both intervals, or the value where there is none."""
        ends = [v for v in (self.low, self.high, *(self.own or ())) if v is not None]
        return (min(ends), max(ends)) if ends else (self.value, self.value)

    @property
    def text(self) -> str:
        """For people."""
        if self.name == EPSILON:
            return number(self.value) if math.isfinite(self.value) else "no promise"
        if self.is_bound:
            return f"at least {number(self.value, 3)}"
        span = f" [{number(self.low, 3)}, {number(self.high, 3)}]" if self.low is not None else ""
        return number(self.value, 3) + span

    @property
    def above(self) -> float:
        """By how much it is better than a constant answer; infinite where that is not known."""
        if self.baseline is None:
            return math.inf
        return self.value - self.baseline if self.better == "higher" else self.baseline - self.value

    @property
    def is_bound(self) -> bool:
        """Whether only a lower end is known: what an audit certifies."""
        return self.high == math.inf


@dataclass(frozen=True)
class Limit:
    """``NAME SIGN NUMBER``, such as ``membership.auc > 0.6``, for one defence or (with "") for all."""

    name: str
    sign: str
    bound: float
    defence: str = ""

    def holds(self, value: float) -> bool:
        """Whether the comparison is true of a value."""
        return _SIGNS[self.sign](value, self.bound)

    def __str__(self) -> str:
        return f"{self.defence + ': ' if self.defence else ''}{self.name} {self.sign} {self.bound:g}"


def read_limit(text: str, signs: Sequence[str] = ("<=", ">=", "<", ">")) -> Limit:
    """A limit from what a user wrote, optionally ``DEFENCE: NAME SIGN NUMBER``."""
    found = _LIMIT.fullmatch(text)
    if found is None or found["sign"] not in signs:
        raise LeaklineError(
            f"cannot read the limit {clean(text)!r}",
            fix=f'write NAME {" or ".join(signs)} NUMBER, such as "accuracy {signs[-1]} 0.85"',
        )
    return Limit(found["name"], found["sign"], float(found["bound"]), found["defence"] or "")


def figures_of(setting: Setting) -> dict[str, Figure]:
    """All figures of a setting by name; without a finite promise, epsilon is infinite."""
    epsilon = setting.epsilon if setting.epsilon is not None else math.inf
    found = {EPSILON: Figure(EPSILON, epsilon, better="lower", seeds=len(setting.cells))}
    for measure in dict.fromkeys(r.measure for cell in setting.cells for r in cell.readings):
        figure = _utility(measure, setting)
        if figure is not None:
            found |= {f.name: f for f in (figure, _above(figure)) if f is not None}
    for leak in (*setting.leaks, *setting.points):
        pooled_seeds = leak.estimate.seeds > 1
        low, high = (leak.estimate.low, leak.estimate.high) if pooled_seeds else leak.interval
        own = own_interval([r for r in leak.readings if r.client is None])
        found[leak.name] = Figure(leak.name, leak.estimate.mean, low, high, leak.better, leak.estimate.seeds, own)
    for bound in setting.measured:
        # Bounds are not averaged: the largest that any seed's audit certified is what is known to leak.
        found[bound.name] = Figure(bound.name, bound.high, bound.high, math.inf, "lower", len(setting.cells))
    return found


def figures_of_card(card: Card) -> dict[str, Figure]:
    """The figures of one card, for commands that make cards and no store."""
    finite = [p.epsilon for p in card.promises if p.epsilon is not None]
    found = {EPSILON: Figure(EPSILON, min(finite, default=math.inf), better="lower")}
    for r in (*card.utility, *card.leaks):
        name, useful = qualified(r.by, r.label), r.by == "utility" and r.chance is not None
        beside = (r.chance, answer_of(r)) if useful else (None, "")
        figure = Figure(name, r.value, r.low, r.high, card.measure(r.measure).better, 1, None, *beside)
        found |= {f.name: f for f in (figure, _above(figure)) if f is not None}
    for r in card.measured:
        name, bound = qualified(r.by, r.label), _bound(r)
        if name not in found or bound > found[name].value:
            found[name] = Figure(name, bound, bound, math.inf, "lower")
    return found


def _bound(reading: Reading) -> float:
    return reading.low if reading.low is not None else reading.value


def _utility(measure: str, setting: Setting) -> Figure | None:
    """A utility measure after the last round, over seeds."""
    described = setting.card.measure(measure)
    mean, whole = utility_of(setting.cells, described), pooled(setting.cells, described)
    if mean is None or whole is None:
        return None
    own = own_interval([r for cell in setting.cells for r in cell.final(measure)])
    low, high = (mean.low, mean.high) if mean.seeds > 1 else own or (None, None)
    beside = (None, "") if whole.chance is None else (whole.chance, answer_of(whole))
    return Figure(measure, mean.mean, low, high, described.better, mean.seeds, own, *beside)


def _above(figure: Figure) -> Figure | None:
    """How far a quoted utility figure is above its baseline, with the same intervals moved; up is better."""
    if figure.baseline is None or not measure_of(figure.name).quoted:
        return None

    def moved(*ends: float | None) -> list[float | None]:
        up = figure.better == "higher"
        return [None if e is None else e - base if up else base - e for e in (ends if up else ends[::-1])]

    base = figure.baseline
    low, high = moved(figure.low, figure.high)
    least, most = moved(*figure.own) if figure.own else (None, None)
    own = None if least is None or most is None else (least, most)
    return Figure(f"{figure.name}{ABOVE}", figure.above, low, high, "higher", figure.seeds, own)


def no_better_than(figures: Mapping[str, Figure]) -> str:
    """What `leakline.utility.baseline.no_better` says of a setting's figures."""
    return no_better(_readings(figures))


def remark_on(figures: Mapping[str, Figure]) -> str:
    """What `leakline.utility.baseline.remark` says of a setting's figures."""
    return remark(_readings(figures))


def _readings(figures: Mapping[str, Figure]) -> list[Reading]:
    return [_reading(f) for f in figures.values() if f.baseline is not None]


def _reading(f: Figure) -> Reading:
    return Reading(f.name, f.value, *(f.own or (f.low, f.high)), chance=f.baseline, about={BLIND: f.blind})


STRONGEST = "strongest"
"""In the place of an attack's name: all attacks."""


def named(name: str, figures: Mapping[str, Figure]) -> list[Figure]:
    """The figures that a limit's name means: the one of that name, or else that measure by every rule of the attack.

    ``membership.auc`` is ``membership.auc (loss)``, ``membership.auc (rmia)`` and so on; ``strongest.auc`` those of all
    attacks.
    """
    if name in figures:
        return [figures[name]]
    by, dot, measure = name.partition(".")
    if not dot:
        return []
    return [
        figure
        for key, figure in figures.items()
        if (by == STRONGEST or key.startswith(f"{by}.")) and _bare(key.partition(".")[2]) == measure
    ]


def pick(limit: Limit, figures: Mapping[str, Figure]) -> Figure | None:
    """Of the figures that a limit names the one that keeps it least, by the cautious end of its interval."""
    most = limit.sign[0] == "<"
    meant = [f for f in named(limit.name, figures) if not math.isnan(f.value)]
    if not meant:
        return None
    return max(meant, key=lambda f: f.cautious[1]) if most else min(meant, key=lambda f: f.cautious[0])


def _bare(label: str) -> str:
    """A figure's label without its rule."""
    return label.partition(" (")[0]


Places = Sequence[tuple[str, str, Mapping[str, Figure]]]
"""Where, the defence, its figures."""


def check_names(limits: Sequence[Limit], places: Places) -> None:
    """Refuse a name that no setting has, with the nearest that some setting has."""
    known = list(dict.fromkeys(name for _, _, figures in places for name in figures))
    tried = list(dict.fromkeys(defence for _, defence, _ in places))
    for limit in limits:
        if limit.defence and limit.defence not in tried:
            raise _unknown("defence", limit.defence, tried)
        if not any(named(limit.name, figures) for _, _, figures in places):
            raise _unknown("figure", limit.name, known)


def check_attacks(limits: Sequence[Limit], attacks: Iterable[str]) -> None:
    """Before anything is trained: refuse ``attack.measure`` of an attack that the study does not have."""
    known = list(attacks)
    for limit in limits:
        by, dot, _ = limit.name.partition(".")
        if dot and by not in (*known, STRONGEST):
            raise _unknown("attack", by, known)


def _unknown(kind: str, name: str, known: Sequence[str]) -> LeaklineError:
    near = get_close_matches(name, dict.fromkeys((*known, *map(_bare, known))), n=3, cutoff=0.4)
    some = near or list(known)[:3]
    listed = " or ".join(repr(clean(n)) for n in some) or "nothing yet"
    rest = f" ({len(known)} in all: `leakline export RUN --table attacks` lists them)" if len(known) > 3 else ""
    fix = f"did you mean {listed}?{rest}" if near else f"there is {listed}{rest}"
    return LeaklineError(f"there is no {kind} {clean(name)!r} here", fix=fix)


@dataclass(frozen=True)
class Hit:
    """A condition that came true, or that could not be looked at."""

    limit: Limit
    where: str
    figure: Figure | None

    def __str__(self) -> str:
        got = f"{self.figure.name} is {self.figure.text}" if self.figure else f"{self.limit.name} was not measured"
        if self.figure is not None and not self.limit.holds(self.figure.value):
            better = "no better" if self.figure.above <= 0 else "not measurably better"
            got += f", {better} than {self.figure.blind} ({number(self.figure.baseline, 3)})"
        return f"{self.where}: {got} (fails if {self.limit})"


def hits(limits: Sequence[Limit], places: Places) -> list[Hit]:
    """Which conditions are true of which (place, defence, figures), judged by the value, not by an interval's end.

    A figure that one setting lacks counts as a hit: a gate that opens because nothing was measured is no gate. So does
    a floor under a figure of utility that is at most a constant answer's, or that cannot be told from it while the
    whole model is no better (`no_better_than`).
    """
    check_names(limits, places)
    return [
        Hit(limit, where, worst)
        for limit in limits
        for where, defence, figures in places
        if limit.defence in ("", defence) and _is_hit(limit, worst := _worst(limit, figures), figures)
    ]


def _worst(limit: Limit, figures: Mapping[str, Figure]) -> Figure | None:
    """Of the figures that a condition names the one that is nearest to making it true."""
    meant = named(limit.name, figures)
    return max(meant, key=lambda f: f.value if limit.sign[0] == ">" else -f.value, default=None)


def _is_hit(limit: Limit, figure: Figure | None, figures: Mapping[str, Figure]) -> bool:
    if figure is None or math.isnan(figure.value) or limit.holds(figure.value):
        return True
    floor = limit.sign[0] == ("<" if figure.better == "higher" else ">")
    return floor and (figure.above <= 0 or _no_better(figure, figures))


def _no_better(figure: Figure, figures: Mapping[str, Figure]) -> bool:
    """Whether a figure of utility cannot be told from a constant answer's, and neither can the model."""
    judged = figure.baseline is not None and figure.better == "higher" and not is_better(_reading(figure))
    return judged and bool(no_better_than(figures))


def places_of(results: Results) -> Places:
    """Every finished setting: where, its defence, its figures."""
    return [(f"{results.place(s.labels)} {s.defence}", s.defence, figures_of(s)) for s in results.settings]
