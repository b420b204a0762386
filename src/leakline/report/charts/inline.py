"""Charts as SVG inside a page, for print and for readers without JavaScript.

Written by hand and not by matplotlib, which takes a quarter of a second for each. No style attribute, which a strict
policy forbids: colours are classes (``f-ink``, ``k-s0``: fill and stroke) that the page's style sheet changes with the
reader's colour scheme.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from leakline.report.charts.chart import Chart, Series, looks
from leakline.report.charts.interactive import is_right, log_ticks, shortened
from leakline.text import tidy

WIDTH, HEIGHT = 440, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 428, 22, 254
"""Edges of the plot."""
_DASHES = ("", "7 3", "2 3", "7 3 2 3")
_STAR = [(0.45 if i % 2 else 1.1, math.pi * (i / 5 - 0.5)) for i in range(10)]
_MARKS = (
    ((-0.9, -0.4), (-0.4, -0.9), (0.4, -0.9), (0.9, -0.4), (0.9, 0.4), (0.4, 0.9), (-0.4, 0.9), (-0.9, 0.4)),
    ((-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)),
    ((0, -1.1), (1.1, 0), (0, 1.1), (-1.1, 0)),
    ((0, -1.0), (1.0, 0.8), (-1.0, 0.8)),
    ((-0.9, -0.9), (0, 0), (0.9, -0.9), (0, 0), (0.9, 0.9), (0, 0), (-0.9, 0.9), (0, 0)),
    tuple((r * math.cos(a), r * math.sin(a)) for r, a in _STAR),
)
"""Outlines of the markers in the order of `chart.MARKERS`, of radius 1."""


@dataclass(frozen=True)
class Axis:
    """A scale: values from ``low`` to ``high`` (their logarithms, if ``log``) onto pixels from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: tuple[tuple[float, str], ...]

    def shows(self, value: float | None) -> bool:
        """Whether a value has a place."""
        return value is not None and math.isfinite(value) and (value > 0 or not self.log)

    def at(self, value: float) -> float:
        """The place of a value."""
        place = math.log10(value) if self.log else value
        return self.start + (place - self.low) / (self.high - self.low) * (self.end - self.start)


def inline(chart: Chart, name: str) -> str:
    """A chart as an SVG element whose ids begin with ``name``; the same chart gives the same text."""
    x, y = _x_axis(chart), _y_axis(chart)
    clip = f'<clipPath id="{name}-clip">{_rect()}</clipPath>'
    drawn = "".join(_drawn(series, chart, x, y) for series in chart.series)
    title = html.escape(tidy(f"{chart.title}: {chart.y} against {chart.x}"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}" '
        f'stroke-linejoin="round" font-size="10px" font-family="sans-serif">'
        f"<defs>{clip}</defs>{_frame(chart, x, y)}"
        f'<g clip-path="url(#{name}-clip)">{_guides(chart, x, y)}{drawn}</g>{_tags(chart, x, y)}</svg>'
    )


def _x_axis(chart: Chart) -> Axis:
    values = [v for s in chart.series for v in (*s.x, *s.x_low, *s.x_high)]
    values += [chart.mark_x[0]] if chart.mark_x is not None else []
    if chart.bin is not None and chart.log_x:
        ticks, texts = log_ticks(chart)
        ends = math.log10(ticks[0] / 2), math.log10(chart.bin[0] * 4)
        return Axis(*ends, LEFT, RIGHT, True, tuple(zip(ticks, texts, strict=True)))
    whole = chart.kind == "lines" and all(float(v).is_integer() for s in chart.series for v in s.x)
    return _axis(values, LEFT, RIGHT, chart.log_x, whole)


def _y_axis(chart: Chart) -> Axis:
    if chart.y_range is not None:
        low, high = chart.y_range[0] - 0.02, chart.y_range[1] + 0.02
        return Axis(low, high, BOTTOM, TOP, False, _ticks(low, high))
    return _axis([v for s in chart.series for v in (*s.y, *s.y_low, *s.y_high)], BOTTOM, TOP, chart.log_y)


def _axis(values: Iterable[float | None], start: float, end: float, log: bool, whole: bool = False) -> Axis:
    known = [v for v in values if v is not None and math.isfinite(v) and (v > 0 or not log)]
    places = [math.log10(v) for v in known] if log else known
    low, high = (min(places), max(places)) if places else (0.0, 1.0)
    room = 0.05 * (high - low) or abs(high) * 0.05 or 0.5
    low, high = low - room, high + room
    return Axis(low, high, start, end, log, _powers(low, high) if log else _ticks(low, high, whole))


def _ticks(low: float, high: float, whole: bool = False) -> tuple[tuple[float, str], ...]:
    """About five round numbers."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough)
    step = max(round(step), 1) if whole else step
    digits = max(0, 1 - math.floor(math.log10(step)))
    first, last = math.ceil(low / step), math.floor(high / step)
    return tuple((i * step, f"{round(i * step, digits) + 0.0:g}") for i in range(first, last + 1))


def _powers(low: float, high: float) -> tuple[tuple[float, str], ...]:
    first, last = math.ceil(low), math.floor(high)
    if first >= last:
        return tuple((10**p, f"{10**p:.2g}") for p, _ in _ticks(low, high))
    return tuple((10.0**p, f"{10.0**p:g}") for p in range(first, last + 1, max(1, (last - first + 1) // 5)))


def _frame(chart: Chart, x: Axis, y: Axis) -> str:
    """Grid, axes, ticks and names."""
    across = [(x.at(value), text) for value, text in x.ticks]
    up = [(y.at(value), text) for value, text in y.ticks]
    grid = "".join(f"M{_n(p)},{TOP}V{BOTTOM}" for p, _ in across) + "".join(f"M{LEFT},{_n(p)}H{RIGHT}" for p, _ in up)
    marks = "".join(f"M{_n(p)},{BOTTOM}v4" for p, _ in across) + "".join(f"M{LEFT},{_n(p)}h-4" for p, _ in up)
    texts = [_text(p, BOTTOM + 16, text, "middle") for p, text in across]
    texts += [_text(LEFT - 7, p + 3.5, text, "end") for p, text in up]
    texts.append(_text((LEFT + RIGHT) / 2, HEIGHT - 8, shortened(chart.x, 48), "middle"))
    turned = f' transform="rotate(-90 14 {(TOP + BOTTOM) / 2:g})"'
    texts.append(_text(14, (TOP + BOTTOM) / 2, shortened(chart.y, 36), "middle", turned))
    if chart.mark_x is not None and x.shows(chart.mark_x[0]):
        texts.append(_text(x.at(chart.mark_x[0]), TOP - 5, tidy(chart.mark_x[1]), "middle"))
    axes = f"M{LEFT},{TOP}V{BOTTOM}H{RIGHT}"
    return f"{_path(grid, 'k-grid', 0.8)}{_path(axes + marks, 'k-axis', 0.8)}{''.join(texts)}"


def _guides(chart: Chart, x: Axis, y: Axis) -> str:
    """What blind guessing gives: dotted lines."""
    d = ""
    if chart.mark_x is not None and x.shows(chart.mark_x[0]):
        d += f"M{_n(x.at(chart.mark_x[0]))},{TOP}V{BOTTOM}"
    if chart.diagonal:
        low = min((v for s in chart.series for v in (*s.x, *s.y) if v > 0), default=0.001) if chart.log_y else 0.0
        d += _line(x, y, (low, 1.0), (low, 1.0))
    return _path(d, "k-axis", 1.2, "1.5 2.5") if d else ""


def _drawn(series: Series, chart: Chart, x: Axis, y: Axis) -> str:
    hue, mark, dash = looks(series.style)
    if chart.kind == "points":
        bars = "".join(_bars(series, i, x, y) for i in range(len(series.x)))
        return (_path(bars, f"k-s{hue}", 1.2) if bars else "") + _marks(series.x, series.y, x, y, mark, hue, 4.5)
    band = ""
    if series.y_low:
        edges = _line(x, y, series.x, series.y_low) + _line(x, y, series.x[::-1], series.y_high[::-1]).replace(
            "M", "L", 1
        )
        band = f'<path d="{edges}Z" class="f-s{hue}" opacity="0.16"/>'
    line = _path(_line(x, y, series.x, series.y, chart.steps), f"k-s{hue}", 1.8, _DASHES[dash])
    every = max(1, len(series.x) // 20)
    marks = "" if chart.steps else _marks(series.x[::every], series.y[::every], x, y, mark, hue, 2.6)
    return band + line + marks


def _line(x: Axis, y: Axis, across: Sequence[float], up: Sequence[float | None], steps: bool = False) -> str:
    points = [
        (x.at(a), y.at(b)) for a, b in zip(across, up, strict=True) if b is not None and x.shows(a) and y.shows(b)
    ]
    if steps:
        return "".join(f"{'H' if i else 'M'}{_n(a)}{'V' if i else ','}{_n(b)}" for i, (a, b) in enumerate(points))
    return "".join(f"{'L' if i else 'M'}{_n(a)},{_n(b)}" for i, (a, b) in enumerate(points))


def _bars(series: Series, i: int, x: Axis, y: Axis) -> str:
    """The interval of a point in both directions, with caps."""
    if not (x.shows(series.x[i]) and y.shows(series.y[i])):
        return ""
    across, up = x.at(series.x[i]), y.at(series.y[i])
    d = ""
    for ends, axis in (((series.x_low, series.x_high), x), ((series.y_low, series.y_high), y)):
        for end in (values[i] for values in ends if i < len(values)):
            if end is not None and axis.shows(end):
                place = axis.at(end)
                if abs(place - (across if axis is x else up)) >= 0.5:
                    d += f"M{_n(across)},{_n(up)}" + (
                        f"H{_n(place)}m0,-2.5v5" if axis is x else f"V{_n(place)}m-2.5,0h5"
                    )
    return d


def _marks(across: Sequence[float], up: Sequence[float], x: Axis, y: Axis, mark: int, hue: int, size: float) -> str:
    outline = [(size * a, size * b) for a, b in _MARKS[mark]]
    steps = "".join(f"l{_n(b[0] - a[0])},{_n(b[1] - a[1])}" for a, b in zip(outline, outline[1:], strict=False))
    d = "".join(
        f"M{_n(x.at(a) + outline[0][0])},{_n(y.at(b) + outline[0][1])}{steps}z"
        for a, b in zip(across, up, strict=True)
        if x.shows(a) and y.shows(b)
    )
    return f'<path d="{d}" class="f-s{hue} k-s{hue}"/>' if d else ""


def _tags(chart: Chart, x: Axis, y: Axis) -> str:
    """Names beside points, on the side that has room."""
    texts = []
    for series in chart.series if chart.kind == "points" else ():
        for a, b, tag in zip(series.x, series.y, series.tags, strict=False):
            if tag and x.shows(a) and y.shows(b):
                right = is_right(chart, a)
                place = x.at(a) + (-6 if right else 6), y.at(b) - 5
                texts.append(_text(*place, shortened(tag), "end" if right else "start", ' font-size="8px"'))
    return "".join(texts)


def _rect() -> str:
    return f'<rect x="{LEFT}" y="{TOP - 6}" width="{RIGHT - LEFT + 6}" height="{BOTTOM - TOP + 6}"/>'


def _path(d: str, colour: str, width: float, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path d="{d}" class="{colour}" fill="none" stroke-width="{width}"{dashed}/>'


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{_n(x)}" y="{_n(y)}" class="f-ink" text-anchor="{anchor}"{more}>{html.escape(text)}</text>'


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
