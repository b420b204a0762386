"""Charts as files for papers, by matplotlib: SVG and PNG."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from leakline.report.charts.chart import LIGHT, Chart, Series, looks
from leakline.report.charts.interactive import is_right, log_ticks, lowest, shortened
from leakline.text import tidy

_INK, _LINE, _GRID = "#22272e", "#7a828d", "#d5d9df"
_MARKS = ("o", "s", "D", "^", "X", "*")
_DASHES = ("-", "--", ":", "-.")


def svg(chart: Chart, name: str = "chart") -> str:
    """A chart as a stand-alone SVG file; the same chart gives the same bytes."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.StringIO()
    with styled(name), any_letter():
        about = {"Date": None, "Creator": None, "Title": tidy(chart.title)}
        _drawing(chart, FigureCanvasSVG).savefig(out, format="svg", metadata=about)
    return out.getvalue()


def png(chart: Chart, dots: int = 200) -> bytes:
    """A chart as a PNG file on white, so many dots per inch; the same chart gives the same bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    out = io.BytesIO()
    with styled("chart"), any_letter():
        drawing = _drawing(chart, FigureCanvasAgg)
        drawing.savefig(out, format="png", dpi=dots, facecolor="white", metadata={"Software": None})
    return out.getvalue()


@contextlib.contextmanager
def any_letter() -> Iterator[None]:
    """A letter that the font lacks becomes a box (or, in SVG, the reader's own font shows it): nothing to warn of."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        yield


def styled(name: str) -> Any:
    """Our colours and letters for as long as something is drawn; ``name`` seeds the marks in an SVG."""
    import matplotlib as mpl

    return mpl.rc_context({
        "svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif", "font.size": 10,
        "text.color": _INK, "text.parse_math": False, "axes.labelcolor": _INK, "axes.edgecolor": _LINE,
        "xtick.color": _LINE, "ytick.color": _LINE, "xtick.labelcolor": _INK, "ytick.labelcolor": _INK,
        "grid.color": _GRID, "axes.grid": True, "axes.axisbelow": True, "axes.spines.top": False,
        "axes.spines.right": False,
    })  # fmt: skip


def _drawing(chart: Chart, canvas: Any) -> Any:
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(5.6, 3.5), layout="constrained")
    canvas(drawing)
    drawing.patch.set_alpha(0)
    axes = drawing.add_subplot()
    axes.patch.set_alpha(0)
    handles = [_draw(axes, series, chart) for series in chart.series]
    _dress(axes, chart)
    if handles:
        # A name that begins with "_" would be left out of a legend.
        names = [("\u200b" if s.name.startswith("_") else "") + tidy(s.name) for s in chart.series]
        drawing.legend(handles, names, loc="outside upper left", ncols=min(len(names), 4), frameon=False)
    return drawing


def _draw(axes: Any, series: Series, chart: Chart) -> Any:
    hue, place, dashes = looks(series.style)
    colour, mark = LIGHT[hue], _MARKS[place]
    if chart.kind == "lines":
        if series.y_low:
            axes.fill_between(series.x, series.y_low, series.y_high, color=colour, alpha=0.16, linewidth=0)
        every = max(1, len(series.x) // 20)
        return axes.plot(
            series.x,
            series.y,
            color=colour,
            linestyle=_DASHES[dashes],
            linewidth=1.8,
            marker="" if chart.steps else mark,
            drawstyle="steps-post" if chart.steps else "default",
            markersize=4,
            markevery=every,
        )[0]
    for x, y, tag in zip(series.x, series.y, series.tags, strict=False):
        if tag:
            side = "right" if is_right(chart, x) else "left"
            away = (-5 if side == "right" else 5, 4)
            axes.annotate(
                shortened(tag), (x, y), xytext=away, textcoords="offset points", ha=side, va="bottom", fontsize=8
            )  # fmt: skip
    bars = {
        "yerr": [_length(series.y_low, series.y), _length(series.y, series.y_high)],
        "xerr": [_length(series.x_low, series.x), _length(series.x, series.x_high)],
    }
    return axes.errorbar(series.x, series.y, **bars, color=colour, fmt=mark, markersize=7, elinewidth=1.2, capsize=2)[0]


def _length(low: Sequence[float | None], high: Sequence[float | None]) -> list[float]:
    return [max(b - a, 0.0) if a is not None and b is not None else 0.0 for a, b in zip(low, high, strict=True)]


def _dress(axes: Any, chart: Chart) -> None:
    axes.set_xlabel(shortened(chart.x, 48))
    axes.set_ylabel(shortened(chart.y, 36))
    if chart.y_range is not None:
        axes.set_ylim(chart.y_range[0] - 0.02, chart.y_range[1] + 0.02)
    if chart.diagonal:
        low = lowest(chart)
        axes.plot([low, 1], [low, 1], color=_LINE, linestyle=":", linewidth=1.2)
    if chart.log_y:
        axes.set_yscale("log")
    if chart.log_x:
        axes.set_xscale("log")
    elif chart.kind == "lines" and all(float(v).is_integer() for one in chart.series for v in one.x):
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if chart.bin is not None:
        ticks, texts = log_ticks(chart)
        axes.set_xticks(ticks, [tidy(t) for t in texts])
        axes.set_xlim(ticks[0] / 2, chart.bin[0] * 4)
        axes.minorticks_off()
    if chart.mark_x is not None:
        at, label = chart.mark_x
        axes.axvline(at, color=_LINE, linestyle=":", linewidth=1.2)
        axes.annotate(
            tidy(label),
            (at, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            va="bottom",
            ha="center",
        )
