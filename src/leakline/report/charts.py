"""The menu of charts, as plain data that `interactive` and `static` draw alike. Studies add theirs to `CHARTS`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from leakline.report.settings import Leak, Pooled, Setting, pool
from leakline.report.stored import read_study

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


def curves(root: Path) -> list[Chart]:
    """Utility round by round, one line per defence, the seeds' spread as a band; one chart per strategy."""
    return curves_of(pool(read_study(root)))


def curves_of(pooled: Pooled) -> list[Chart]:
    """`curves` of settings pooled already."""
    charts: dict[str, list[Series]] = {}
    for setting in pooled.settings:
        rounds = _rounds(setting, pooled.headline)
        if rounds:
            x = tuple(float(r + 1) for r in sorted(rounds))
            columns = [rounds[r] for r in sorted(rounds)]
            several = max(len(c) for c in columns) > 1
            series = Series(
                setting.defence, pooled.defences.index(setting.defence), x, tuple(sum(c) / len(c) for c in columns),
                tuple(min(c) for c in columns) if several else (), tuple(max(c) for c in columns) if several else (),
            )  # fmt: skip
            charts.setdefault(pooled.place(setting.labels), []).append(series)
    note = "line: mean over seeds; band: lowest to highest seed"
    every = [v for found in charts.values() for s in found for v in (*s.y, *s.y_low, *s.y_high) if v is not None]
    shares = bool(every) and min(every) >= 0 and max(every) <= 1
    limits = (0.0, 1.0) if shares and max(every) > 0.5 else None
    return [
        Chart(f"Utility round by round: {place}", "round", pooled.headline, tuple(found), note=note, y_range=limits)
        for place, found in charts.items()
    ]


def _rounds(setting: Setting, measure: str) -> dict[int, list[float]]:
    """The measure of every round, one value per seed."""
    found: dict[int, list[float]] = {}
    for cell in setting.cells:
        mine: dict[int, list[float]] = {}
        lines = [r for r in cell.readings if r["measure"] == measure and isinstance(r.get("round"), int)]
        for line in [r for r in lines if r.get("client") is None] or lines:
            if math.isfinite(line["value"]):
                mine.setdefault(line["round"], []).append(float(line["value"]))
        for index, values in mine.items():
            found.setdefault(index, []).append(sum(values) / len(values))
    return found


def tradeoff(root: Path) -> list[Chart]:
    """Utility against what each attack got, with intervals; one chart per attack."""
    return tradeoff_of(pool(read_study(root)))


def tradeoff_of(pooled: Pooled) -> list[Chart]:
    """`tradeoff` of settings pooled already."""
    firsts: dict[str, tuple[str, float | None]] = {}
    for setting in pooled.settings:
        for leak in setting.leaks:
            if leak.chance is not None:
                firsts.setdefault(leak.by, (leak.measure, leak.chance))
    charts = []
    for by, (measure, chance) in firsts.items():
        points: dict[str, list[tuple[Setting, Leak]]] = {}
        for setting in pooled.settings:
            got = next((k for k in setting.leaks if (k.by, k.measure) == (by, measure)), None)
            if got is not None and setting.utility is not None:
                points.setdefault(setting.defence, []).append((setting, got))
        series = [
            _points(
                pooled, d, [s for s, _ in found], [k.estimate.mean for _, k in found], [k.interval for _, k in found]
            )
            for d, found in points.items()
        ]  # fmt: skip
        if series and chance is not None:
            note = "further left: less leaks; higher: more useful; bars: 95 % intervals over seeds"
            charts.append(
                Chart(
                    f"Utility against leakage: {by}",
                    f"{by}: {measure}",
                    pooled.headline,
                    tuple(series),
                    "points",
                    mark_x=(chance, "guessing"),
                    note=note,
                )
            )
    return charts


def promises(root: Path) -> list[Chart]:
    """Utility against the formal epsilon on a log axis; what promises nothing stands in its own bin."""
    return promises_of(pool(read_study(root)))


def promises_of(pooled: Pooled) -> list[Chart]:
    """`promises` of settings pooled already."""
    finite = [s.epsilon for s in pooled.settings if s.epsilon is not None and s.epsilon > 0]
    if not any(s.utility for s in pooled.settings) or not finite:
        return []
    place = 10.0 ** (math.ceil(math.log10(max(*finite, 10.0))) + 1)
    groups: dict[str, list[Setting]] = {}
    for setting in pooled.settings:
        if setting.utility is not None:
            groups.setdefault(setting.defence, []).append(setting)
    series = []
    for defence, settings in groups.items():
        x = [s.epsilon if s.epsilon else place for s in settings]
        series.append(_points(pooled, defence, settings, x, [(_lower(s), None) for s in settings]))
    note = "bar to the left: down to the largest lower bound that an audit measured; over 10 a promise is vacuous"
    return [
        Chart(
            "Utility against the formal promise",
            "formal epsilon",
            pooled.headline,
            tuple(series),
            "points",
            True,
            (10.0, "vacuous from here"),
            (place, "no guarantee"),
            note,
        )
    ]


def _lower(setting: Setting) -> float | None:
    found = [high for measure, _, _, high, _ in setting.measured if measure.split(":")[0] == "epsilon" and high > 0]
    return max(found) if found and setting.epsilon else None


def _points(
    pooled: Pooled,
    defence: str,
    settings: Sequence[Setting],
    x: Sequence[float],
    spans: Sequence[tuple[float | None, float | None]],
) -> Series:
    kept = [s.utility for s in settings if s.utility is not None]
    return Series(
        defence, pooled.defences.index(defence), tuple(x), tuple(u.mean for u in kept),
        tuple(u.low for u in kept), tuple(u.high for u in kept), tuple(low for low, _ in spans),
        tuple(high for _, high in spans), tuple(pooled.place(s.labels) for s in settings),
    )  # fmt: skip


CHARTS: dict[str, Callable[[Path], list[Chart]]] = {"curves": curves, "promises": promises, "tradeoff": tradeoff}


def figures(root: Path, name: str) -> list[Any]:
    """A chart of the menu as plotly figures."""
    from leakline.report.interactive import figure

    return [figure(chart) for chart in CHARTS[name](root)]
