"""The page: one HTML file, made from the store and nothing else, that needs no network and runs nothing foreign.

Every text is cleaned and escaped by jinja2; data for charts go through ``tojson``; the page's policy names
the hashes of its two scripts and its styles and forbids everything else. The same store gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from leakline.report import charts, interactive, static, tables, words
from leakline.report.cardviews import card_views
from leakline.report.charts import Chart
from leakline.report.render import is_number, shown, sort_key
from leakline.report.settings import Pooled, pool
from leakline.report.stored import read_study
from leakline.report.text import clean, scrub, tidy
from leakline.study.store import write_atomically

_TABLES = (tables.utility_of, tables.measures_of, tables.attacks_of, tables.cards_of)
_PLOTLY_STYLE = "/* plotly.js puts its rules here */"
"""plotly.js looks for a style element of its own and would make one, which the policy forbids."""


def build_report(root: Path, out: Path | None = None, shareable: bool = False) -> Path:
    """Write the report of a store to ``out`` (default: ``report.html`` in the store) and say where it is.

    ``shareable`` leaves out the study file, which may quote names of people's data, and every image of their data.
    Reasons of failures stay, without paths.
    """
    pooled = pool(read_study(root))
    page = render_page(pooled, shareable)
    target = out if out is not None else root / "report.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, page.encode("utf-8", "replace"))
    return target


def render_page(pooled: Pooled, shareable: bool = False) -> str:
    """The report as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    from leakline import __version__

    environment = Environment(
        loader=PackageLoader("leakline.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["clean"] = tidy
    environment.filters["shown"] = lambda cell: scrub(shown(cell))
    environment.filters["sort_key"] = lambda cell: scrub(sort_key(cell))
    environment.tests["numeric"] = is_number
    # Everything that becomes Markup is this package's own text, or SVG written by an XML writer.
    script, style, plotly = _asset("page.js"), _asset("page.css"), _plotly()
    drawn = [{**chart, "svg": Markup(chart["svg"])} for chart in _drawn(pooled)]
    interactive_ = bool(drawn)
    scripts = [script, plotly] if interactive_ else [script]
    failed = tables.missing_table_of(pooled)
    return environment.get_template("report.html.jinja").render(
        study=pooled.study, title=pooled.study.title or pooled.study.name, pooled=pooled, version=__version__,
        trained=words.what_was_trained(pooled), short=words.in_short(pooled), glances=words.glances(pooled),
        verdicts=words.VERDICTS, cards=card_views(pooled), charts=drawn, legend=_legend(pooled),
        tables=[make(pooled) for make in _TABLES],
        runs=tables.runs_of(pooled), missing=failed, settings=_settings(pooled),
        text=[] if shareable else [clean(line) for line in scrub(pooled.study.text).splitlines()],
        notes=[scrub(note) for note in pooled.study.notes], shareable=shareable,
        figures={chart["id"]: chart["figure"] for chart in drawn},
        policy=_policy(scripts, [style, _PLOTLY_STYLE]),
        plotly_style=Markup(_PLOTLY_STYLE), plotly_marks=_marks(plotly),
        style=Markup(style), script=Markup(script), plotly=Markup(plotly) if interactive_ else "",
    )  # fmt: skip


def _drawn(pooled: Pooled) -> list[dict[str, Any]]:
    """All charts, each as SVG for everybody and as a figure for those with JavaScript."""
    found = [*charts.curves_of(pooled), *charts.tradeoff_of(pooled), *charts.promises_of(pooled)]
    return [_chart(chart, f"chart-{i}") for i, chart in enumerate(found)]


def _chart(chart: Chart, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "title": chart.title,
        "note": chart.note,
        "svg": static.inline(chart, name),
        "figure": interactive.as_json(chart),
    }


def _legend(pooled: Pooled) -> dict[str, tuple[int, str]]:
    """Each defence's colour and marker."""
    found = {}
    for i, name in enumerate(pooled.defences):
        hue, mark, _ = charts.looks(i)
        found[name] = (hue, charts.GLYPHS[mark])
    return found


def _settings(pooled: Pooled) -> list[tuple[str, str]]:
    """What all runs have in common, as dotted keys; what differs is in the labels."""
    flats = [_flat(c.federation) for c in pooled.study.cells if c.federation]
    if not flats:
        return []
    same = {k: v for k, v in flats[0].items() if all(f.get(k, _flat) == v for f in flats[1:])}
    return [(k, tidy(v)) for k, v in same.items()]


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if name == "task.clients" and isinstance(inner, Mapping):
            found["task.clients"] = ", ".join(str(client) for client in inner)
        elif name != "task.test" and name != "task.validation":
            found |= _flat(inner, name)
    return found


def _policy(scripts: list[str], styles: list[str]) -> str:
    allowed = {"script-src": scripts, "style-src": styles}
    own = "; ".join(f"{kind} {' '.join(_hash(text) for text in texts)}" for kind, texts in allowed.items())
    return f"default-src 'none'; {own}; img-src data:; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return (files("leakline.report") / "templates" / name).read_text(encoding="utf-8").strip()


def _marks(plotly: str) -> list[str]:
    """Ids by which plotly.js knows that styles of its maps, which no chart here needs, are there already."""
    return re.findall(r'getElementById\("([0-9a-f]{64})"\)', plotly)


@lru_cache(maxsize=1)
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    # A browser reads CR LF as LF before it takes the hash.
    text = str(get_plotlyjs()).replace("\r\n", "\n").strip()
    if "</script" in text.lower() or "<!--" in text:
        raise RuntimeError("this plotly.js cannot stand inside a page: it holds an end of script")
    return text
