"""Charts as plotly figures (graph_objects only), for the page when JavaScript is on and for notebooks."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

from leakline.report.charts.chart import DASHES, LIGHT, MARKERS, Chart, Series, looks
from leakline.text import tidy


def plain(text: object) -> str:
    """Text for plotly, which reads a dialect of HTML: printed as it is."""
    return html.escape(tidy(text), quote=False)


def shortened(text: str, most: int = 28) -> str:
    """A name that fits beside a point."""
    whole = tidy(text)
    return whole if len(whole) <= most else f"{whole[: most - 3]}..."


def figure(chart: Chart) -> Any:
    """A plotly figure. ``meta`` names each trace's style, so that a page can put its own colours."""
    import plotly.graph_objects as go

    return go.Figure(_traces(chart), _layout(chart))


def as_json(chart: Chart) -> dict[str, Any]:
    """A figure as plain values without NaN, for a page."""
    return {"data": _finite(_traces(chart)), "layout": _finite(_layout(chart))}


def _traces(chart: Chart) -> list[dict[str, Any]]:
    made = [_line(s, chart.steps) if chart.kind == "lines" else [_points(s)] for s in chart.series]
    return [{"type": "scatter", **trace} for traces in made for trace in traces]


def _line(series: Series, steps: bool) -> list[dict[str, Any]]:
    hue, mark, dash = looks(series.style)
    colour, meta = LIGHT[hue], _meta(series, hue)
    # Plotly keeps what it is given in one group together when a name in the legend is clicked.
    common = {
        "x": list(series.x),
        "legendgroup": str(series.style),
        "meta": meta,
        "hoverinfo": "skip",
        "showlegend": False,
    }
    edge = {**common, "mode": "lines", "line": {"width": 0, "color": colour}}
    band = []
    if series.y_low:
        fill = {"fill": "tonexty", "fillcolor": _see_through(colour), "meta": {**meta, "band": True}}
        band = [{**edge, "y": list(series.y_low)}, {**edge, **fill, "y": list(series.y_high)}]
    line = {
        **common, "y": list(series.y), "name": plain(series.name), "mode": "lines" if steps else "lines+markers",
        "hoverinfo": "x+y+name", "showlegend": True,
        "line": {"color": colour, "width": 2, "dash": DASHES[dash]} | ({"shape": "hv"} if steps else {}),
        "marker": {"color": colour, "size": 6, "symbol": MARKERS[mark]},
    }  # fmt: skip
    return [*band, line]


def _points(series: Series) -> dict[str, Any]:
    hue, mark, _ = looks(series.style)
    colour = LIGHT[hue]
    bars = {"color": colour, "thickness": 1.2, "width": 4, "type": "data", "symmetric": False}
    tagged = any(series.tags)
    words = (
        {"text": [plain(shortened(t)) for t in series.tags], "textposition": "top center", "cliponaxis": False}
        if tagged
        else {}
    )
    return {
        "x": list(series.x), "y": list(series.y), "name": plain(series.name),
        "mode": "markers+text" if tagged else "markers", "hoverinfo": "x+y+text+name", **(words if tagged else {}),
        "hovertext": [plain(label) for label in series.labels], "meta": _meta(series, hue),
        "marker": {"color": colour, "size": 11, "symbol": MARKERS[mark]},
        "error_y": {**bars, "array": _up(series.y, series.y_high), "arrayminus": _up(series.y_low, series.y)},
        "error_x": {**bars, "array": _up(series.x, series.x_high), "arrayminus": _up(series.x_low, series.x)},
    }  # fmt: skip


def is_right(chart: Chart, x: float) -> bool:
    """Whether a point stands in the right half, where a name beside it goes to its left."""
    every = [v for one in chart.series for v in (*one.x, *one.x_low, *one.x_high) if v is not None and math.isfinite(v)]
    if chart.log_x:
        every, x = [math.log10(v) for v in every if v > 0], math.log10(x)
    return x > (min(every) + max(every)) / 2


def _meta(series: Series, hue: int) -> dict[str, Any]:
    """What the page's script needs: which colour of the scheme, and the labels to filter by."""
    where = [{tidy(k): tidy(v) for k, v in labels.items()} for labels in series.where]
    return {"style": hue, "where": where} if where else {"style": hue}


def _layout(chart: Chart) -> dict[str, Any]:
    axis = {
        "gridcolor": "#d5d9df",
        "linecolor": "#7a828d",
        "zeroline": False,
        "ticks": "outside",
        "tickcolor": "#7a828d",
    }
    x: dict[str, Any] = {
        **axis,
        "title": {"text": plain(shortened(chart.x, 36))},
        "tickangle": 0,
        "type": "log" if chart.log_x else "linear",
    }
    y: dict[str, Any] = {
        **axis,
        "title": {"text": plain(shortened(chart.y, 30))},
        "type": "log" if chart.log_y else "linear",
    }
    if chart.y_range is not None:
        y["range"] = [chart.y_range[0] - 0.02, chart.y_range[1] + 0.02]
    layout: dict[str, Any] = {
        # An empty template in place of plotly's own, which would be most of the page's data.
        "template": {}, "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "height": 310,
        "margin": {"l": 64, "r": 16, "t": 28, "b": 52},
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#22272e"},
        "hovermode": "closest", "dragmode": False, "showlegend": False,
        "xaxis": x, "yaxis": y, "shapes": [], "annotations": [],
    }  # fmt: skip
    if chart.diagonal:
        low = min((v for s in chart.series for v in (*s.x, *s.y) if v > 0), default=0.001) if chart.log_y else 0.0
        line = {"dash": "dot", "width": 1.5, "color": "#6b7280"}
        layout["shapes"].append({"type": "line", "x0": low, "y0": low, "x1": 1, "y1": 1, "line": line})
    if chart.bin is not None and chart.log_x:
        ticks, texts = log_ticks(chart)
        x |= {
            "tickvals": ticks,
            "ticktext": [*(plain(t) for t in texts[:-1]), plain(texts[-1]).replace(" ", "<br>")],
            "range": [math.log10(ticks[0]) - 0.3, math.log10(chart.bin[0]) + 0.6],
        }
    if chart.mark_x is not None:
        at, label = chart.mark_x
        where = math.log10(at) if chart.log_x else at
        line = {
            "type": "line",
            "x0": at,
            "x1": at,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"dash": "dot", "width": 1.5, "color": "#6b7280"},
        }
        layout["shapes"].append(line)
        layout["annotations"].append(
            {
                "x": where,
                "yref": "paper",
                "y": 1,
                "text": plain(label),
                "showarrow": False,
                "xanchor": "center",
                "yanchor": "bottom",
            }
        )
    return layout


def log_ticks(chart: Chart) -> tuple[list[float], list[str]]:
    """Powers of ten that cover a chart's x values, and the bin at their right."""
    assert chart.bin is not None
    values = [v for s in chart.series for v in (*s.x, *s.x_low) if v is not None and 0 < v < chart.bin[0]]
    lowest = math.floor(math.log10(min([*values, 1.0])))
    highest = round(math.log10(chart.bin[0])) - 1
    step = max(1, math.ceil((highest - lowest + 1) / 5))
    powers = list(range(lowest, highest + 1, step))
    return [10.0**p for p in powers] + [chart.bin[0]], [f"{10.0**p:,g}" if -4 < p < 5 else f"1e{p}" for p in powers] + [
        chart.bin[1]
    ]


def _up(low: Sequence[float | None], high: Sequence[float | None]) -> list[float]:
    """Lengths of bars; none where an end is not known."""
    return [max(b - a, 0.0) if a is not None and b is not None else 0.0 for a, b in zip(low, high, strict=True)]


def _see_through(colour: str) -> str:
    r, g, b = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({r},{g},{b},0.16)"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
