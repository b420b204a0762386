"""Charts as plain data that `interactive` and `static` draw alike: utility by round, against leakage, against promises.

The menu of all charts is `leakline.report.charts.menu.CHARTS`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from leakline.results import Estimate, Results, Setting
from leakline.results.cell import whole
from leakline.results.settings import Leak, strongest
from leakline.results.table import Table

LIGHT = ("#0072b2", "#c04a00", "#007a5a", "#9a3d83", "#7d5a00", "#4a4f57")
DARK = ("#56b4e9", "#ff9655", "#35cf9f", "#e69ac9", "#f0c04a", "#c3c9d1")
"""Colour-blind safe after Okabe and Ito (2008), darkened or lightened to 3:1 against the page."""
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "star")
DASHES = ("solid", "dash", "dot", "dashdot")
GLYPHS = ("●", "■", "◆", "▲", "✖", "★")


def looks(style: int) -> tuple[int, int, int]:
    """Places in the lists of colours, markers and dashes; the first 36 styles all differ."""
    turn = style // len(LIGHT)
    return style % len(LIGHT), (style + turn) % len(MARKERS), (style + turn) % len(DASHES)


@dataclass(frozen=True)
class Series:
    """Points with their intervals; ``style`` picks colour, marker and dash, and is the defence's place in the study."""

    name: str
    style: int
    x: tuple[float, ...]
    y: tuple[float, ...]
    y_low: tuple[float | None, ...] = ()
    y_high: tuple[float | None, ...] = ()
    x_low: tuple[float | None, ...] = ()
    x_high: tuple[float | None, ...] = ()
    labels: tuple[str, ...] = ()
    """Where each point was measured, for its tooltip."""
    tags: tuple[str, ...] = ()
    """Text beside each point; "" for none."""
    where: tuple[Mapping[str, str], ...] = ()
    """The labels of each point, or one for all of them, by which a page can filter."""


@dataclass(frozen=True)
class Chart:
    """A chart: lines with bands over rounds, or points with bars.

    ``bin`` is the place on the x axis, right of all numbers, for what has no number ("no guarantee").
    """

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    kind: Literal["lines", "points"] = "lines"
    log_x: bool = False
    mark_x: tuple[float, str] | None = None
    bin: tuple[float, str] | None = None
    note: str = ""
    y_range: tuple[float, float] | None = None
    log_y: bool = False
    diagonal: bool = False
    """Whether to draw y = x: what blind guessing gives on a ROC."""
    steps: bool = False
    """Whether lines are steps without marks: a distribution."""
    where: Mapping[str, str] = field(default_factory=dict)
    """The labels that the whole chart speaks of."""


def lines_of(table: Table) -> list[Series]:
    """A line for each column of numbers or estimates against the first column; what is no number is left out."""
    series = []
    for i, name in enumerate(table.columns[1:]):
        cells = [(row[0], row[1 + i].mean if isinstance(row[1 + i], Estimate) else row[1 + i]) for row in table.rows]
        points = [(float(x), float(y)) for x, y in cells if isinstance(x, int | float) and isinstance(y, int | float)]
        if points:
            series.append(Series(name, i, tuple(x for x, _ in points), tuple(y for _, y in points)))
    return series


def curves(results: Results) -> list[Chart]:
    """Utility round by round, one line per defence, the seeds' spread as a band; one chart per strategy."""
    charts: dict[str, list[Series]] = {}
    for setting in results.settings:
        rounds = _rounds(setting, results.headline)
        if len(rounds) > 1:
            x = tuple(float(r + 1) for r in sorted(rounds))
            columns = [rounds[r] for r in sorted(rounds)]
            several = max(len(c) for c in columns) > 1
            series = Series(
                setting.defence, results.defences.index(setting.defence), x, tuple(sum(c) / len(c) for c in columns),
                tuple(min(c) for c in columns) if several else (), tuple(max(c) for c in columns) if several else (),
                where=(where_of(results, setting),),
            )  # fmt: skip
            charts.setdefault(results.place(setting.labels), []).append(series)
    note = "line: mean over seeds; band: lowest to highest seed" if results.seeds > 1 else "one seed"
    every = [v for found in charts.values() for s in found for v in (*s.y, *s.y_low, *s.y_high) if v is not None]
    shares = bool(every) and min(every) >= 0 and max(every) <= 1
    limits = (0.0, 1.0) if shares and max(every) > 0.5 else None
    return [
        Chart(
            f"Utility round by round: {place}", "round", results.headline, tuple(found), note=note, y_range=limits,
            where={k: v for k, v in found[0].where[0].items() if k != "defence"},
        )
        for place, found in charts.items()
    ]  # fmt: skip


def where_of(results: Results, setting: Setting) -> dict[str, str]:
    """A setting's labels as a page filters by them."""
    return {name: str(setting.labels.get(name, "")) for name in (*results.axes, "defence")}


def _rounds(setting: Setting, measure: str) -> dict[int, list[float]]:
    """The measure of every round, one value per seed."""
    found: dict[int, list[float]] = {}
    for cell in setting.cells:
        mine: dict[int, list[float]] = {}
        for r in whole([r for r in cell.readings if r.measure == measure and r.round is not None]):
            if r.round is not None and math.isfinite(r.value):
                mine.setdefault(r.round, []).append(float(r.value))
        for index, values in mine.items():
            found.setdefault(index, []).append(sum(values) / len(values))
    return found


def tradeoff(results: Results) -> list[Chart]:
    """Utility against what each attack got by its strongest measure, with intervals; one chart per attack."""
    firsts: dict[str, tuple[str, float | None]] = {}
    every = [leak for setting in results.settings for leak in setting.leaks]
    for by in dict.fromkeys(leak.by for leak in every):
        top = strongest([leak for leak in every if leak.by == by])
        if top is not None:
            firsts[by] = (top.label, top.chance)
    charts = []
    for by, (label, chance) in firsts.items():
        points: dict[str, list[tuple[Setting, Leak]]] = {}
        for setting in results.settings:
            got = next((k for k in setting.leaks if (k.by, k.label) == (by, label)), None)
            if got is not None and setting.utility is not None:
                points.setdefault(setting.defence, []).append((setting, got))
        flat = [(s, k) for found in points.values() for s, k in found]
        best = pareto([(k.estimate.mean, _good(results, s)) for s, k in flat])
        named = {id(s) for (s, _), first in zip(flat, best, strict=True) if first}
        series = [
            _points(
                results, d, [s for s, _ in found], [k.estimate.mean for _, k in found], [k.interval for _, k in found],
                named,
            )
            for d, found in points.items()
        ]  # fmt: skip
        if series and chance is not None:
            charts.append(
                Chart(
                    f"Utility against leakage: {by}", label, results.headline, uncrowded(series), "points",
                    mark_x=(chance, "guessing"),
                    note=f"further left: less leaks; {_up(results)}; bars sideways: 95 % intervals of the attack; "
                    f"{_upright(results.settings)}. {_frontier(series)}",
                    where={"attack": by}, y_range=_limits(results, series),
                )
            )  # fmt: skip
    return charts


def promises(results: Results) -> list[Chart]:
    """Utility against the formal epsilon on a log axis, a chart for each unit; no promise stands in its own bin."""
    units = dict.fromkeys(s.unit for s in results.settings if s.epsilon and s.utility)
    return [_promises(results, [s for s in results.settings if s.unit in (unit, "")], unit) for unit in units]


def _promises(results: Results, chosen: Sequence[Setting], unit: str) -> Chart:
    finite = [s.epsilon for s in chosen if s.epsilon is not None and s.epsilon > 0]
    place = 10.0 ** (math.ceil(math.log10(max(*finite, 10.0))) + 1)
    groups: dict[str, list[Setting]] = {}
    for setting in chosen:
        if setting.utility is not None:
            groups.setdefault(setting.defence, []).append(setting)
    flat = [s for settings in groups.values() for s in settings]
    best = pareto([(s.epsilon or math.inf, _good(results, s)) for s in flat])
    named = {id(s) for s, first in zip(flat, best, strict=True) if first}
    series = []
    for defence, settings in groups.items():
        x = [s.epsilon if s.epsilon else place for s in settings]
        series.append(_points(results, defence, settings, x, [(_lower(s), None) for s in settings], named))
    note = "bar to the left: down to the largest lower bound that an audit measured; over 10 a promise is vacuous"
    return Chart(
        f"Utility against the formal promise for one {unit}", f"formal epsilon per {unit}", results.headline,
        uncrowded(series, True), "points", True, (10.0, "vacuous from here"), (place, "no guarantee"),
        f"{note}; {_upright(chosen)}. {_frontier(series)}", _limits(results, series),
    )  # fmt: skip


def _upright(settings: Sequence[Setting]) -> str:
    """What bars up and down are."""
    seeds = max((len(s.cells) for s in settings), default=1)
    return f"bars up and down: 95 % t-intervals over {seeds} seeds" if seeds > 1 else "one seed, so no bars up and down"


def _frontier(series: Sequence[Series]) -> str:
    names = [tag for one in series for tag in one.tags if tag]
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"On the frontier, where nothing else is better in both: {shown}"


def uncrowded(series: Sequence[Series], log: bool = False) -> tuple[Series, ...]:
    """The same series with names only at points that stand apart: names on top of each other cannot be read."""
    x, y = (sorted(v for v in values if v is not None) for values in _spans(series, log))
    width, height = max(x[-1] - x[0], 1e-12), max(y[-1] - y[0], 1e-12)
    taken: list[tuple[float, float]] = []
    made = []
    for one in series:
        tags = []
        for a, b, tag in zip(one.x, one.y, one.tags, strict=True):
            at = ((math.log10(a) if log else a) / width, b / height)
            free = all(abs(at[0] - c) > 0.45 or abs(at[1] - d) > 0.09 for c, d in taken)
            taken += [at] if tag and free else []
            tags.append(tag if free else "")
        made.append(replace(one, tags=tuple(tags)))
    return tuple(made)


def _spans(series: Sequence[Series], log: bool) -> tuple[list[float | None], list[float | None]]:
    x = [v for one in series for v in (*one.x, *one.x_low, *one.x_high)]
    y = [v for one in series for v in (*one.y, *one.y_low, *one.y_high)]
    return [math.log10(v) if log and v else v for v in x], y


def _limits(results: Results, series: Sequence[Series]) -> tuple[float, float] | None:
    """Room around shares; other measures find their own."""
    _, values = _spans(series, False)
    known = [v for v in values if v is not None]
    measure = results.measure(results.headline)
    if not measure.is_share or not known:
        return None
    room = max(0.05, 0.1 * (max(known) - min(known)))
    return measure.cut(min(known) - room), measure.cut(max(known) + room)


def pareto(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Which points (leak, utility) no other beats: none leaks no more, is no less useful, and differs."""
    return [
        not any(
            leak <= mine[0] and good >= mine[1] and (leak, good) != mine for leak, good in points
        )
        for mine in points
    ]  # fmt: skip


def _good(results: Results, setting: Setting) -> float:
    """Utility with the good direction up."""
    mean = setting.utility.mean if setting.utility is not None else math.nan
    return mean if results.better == "higher" else -mean


def _up(results: Results) -> str:
    return "higher: more useful" if results.better == "higher" else "lower: more useful"


def _lower(setting: Setting) -> float | None:
    proved = setting.proved
    return proved.high if proved is not None and proved.high > 0 and setting.epsilon else None


def _points(
    results: Results,
    defence: str,
    settings: Sequence[Setting],
    x: Sequence[float],
    spans: Sequence[tuple[float | None, float | None]],
    named: set[int],
) -> Series:
    kept = [s.utility for s in settings if s.utility is not None]
    places = [results.place(s.labels) for s in settings]
    several = len({results.place(s.labels) for s in results.settings}) > 1
    names = [f"{defence} with {place}" if several else defence for place in places]
    tags = [name if id(s) in named else "" for s, name in zip(settings, names, strict=True)]
    return Series(
        defence, results.defences.index(defence), tuple(x), tuple(u.mean for u in kept),
        tuple(u.low for u in kept), tuple(u.high for u in kept), tuple(low for low, _ in spans),
        tuple(high for _, high in spans), tuple(places), tuple(tags), tuple(where_of(results, s) for s in settings),
    )  # fmt: skip
