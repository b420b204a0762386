"""The page: one HTML file, made from the store and nothing else, that needs no network and runs nothing foreign.

Every text is cleaned and escaped by jinja2; data for charts go through ``tojson``; the page's policy names
the hashes of its two scripts and its styles and forbids everything else. The same store gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from leakline.decide.compare import flat
from leakline.report.charts import chart as charts
from leakline.report.charts import interactive
from leakline.report.charts.chart import Chart
from leakline.report.charts.inline import inline
from leakline.report.charts.menu import headed
from leakline.report.gallery.gallery import Gallery, gallery_of
from leakline.report.page import words
from leakline.report.page.cardviews import card_views
from leakline.report.page.filters import filters_of
from leakline.report.page.summary import summary
from leakline.report.papers import charts_of, tables_of
from leakline.report.tables import menu as tables
from leakline.report.tables.clients import clients
from leakline.results import Results
from leakline.results.table import is_number, shown, sort_key
from leakline.study.store import write_atomically
from leakline.text import clean, scrub, tidy

_TABLES = (tables.utility, tables.measures, tables.attacks, clients, tables.cards)
_PLOTLY_STYLE = "/* plotly.js puts its rules here */"
"""plotly.js looks for a style element of its own and would make one, which the policy forbids."""


def build_report(results: Results, out: Path | None = None, shareable: bool = False, images: bool = True) -> Path:
    """Write the report of a store to ``out`` (default: ``report.html`` in the store) and say where it is.

    ``shareable`` leaves out the study file, which may quote names of people's data, and every image of their data;
    without ``images`` only the images are left out. Reasons of failures stay, without paths.
    """
    page = render_page(results, shareable, images and not shareable)
    target = out if out is not None else results.root / "report.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, page.encode("utf-8", "replace"))
    return target


def render_page(results: Results, shareable: bool = False, images: bool = True) -> str:
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
    groups = _drawn(results)
    drawn = [chart for _, found in groups for chart in found]
    for chart in drawn:
        chart["svg"] = Markup(chart["svg"])
    scripts = [script, plotly] if drawn else [script]
    failed = tables.missing(results)
    seen = words.glances(results)
    return environment.get_template("report.html.jinja").render(
        results=results, title=results.title or results.name, version=__version__,
        trained=words.what_was_trained(results), short=words.in_short(results),
        protects=words.who_is_protected(results),
        glances=seen, shared=words.shared_warnings(seen), summary=summary(results),
        verdicts=words.VERDICTS, verdict_order=list(words.VERDICTS), cards=card_views(results), groups=groups,
        legend=_legend(results),
        tables=[make(results) for make in _TABLES], papers=tuple(tables_of(results).values()),
        filters=filters_of(results),
        gallery=gallery_of(results) if images else Gallery(), images=images,
        runs=tables.runs(results), missing=failed, settings=_settings(results),
        text=[] if shareable else [clean(line) for line in scrub(results.text).splitlines()],
        notes=[scrub(note) for note in (*results.notes, *words.versions(results, __version__))],
        shareable=shareable, figures={chart["id"]: chart["figure"] for chart in drawn},
        policy=_policy(scripts, [style, _PLOTLY_STYLE]),
        plotly_style=Markup(_PLOTLY_STYLE), plotly_marks=_marks(plotly),
        style=Markup(style), script=Markup(script), plotly=Markup(plotly) if drawn else "",
    )  # fmt: skip


def _drawn(results: Results) -> list[tuple[str, list[dict[str, Any]]]]:
    """All charts by heading, each as SVG for everybody and as a figure for those with JavaScript."""
    found = [*headed(results), ("The paper's figures", list(charts_of(results).values()))]
    numbers = itertools.count()
    return [(name, [_chart(chart, f"chart-{next(numbers)}") for chart in some]) for name, some in found if some]


def _chart(chart: Chart, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "title": chart.title,
        "note": chart.note,
        "where": [{tidy(k): tidy(v) for k, v in chart.where.items()}],
        "svg": inline(chart, name),
        "figure": interactive.as_json(chart),
    }


def _legend(results: Results) -> dict[str, tuple[int, str]]:
    """Each defence's colour and marker."""
    found = {}
    for i, name in enumerate(results.defences):
        hue, mark, _ = charts.looks(i)
        found[name] = (hue, charts.GLYPHS[mark])
    return found


def _settings(results: Results) -> list[tuple[str, str]]:
    """What all runs have in common, as dotted keys; what differs is in the labels."""
    flats = [flat(c.federation) for c in results.cells if c.federation]
    if not flats:
        return []
    same = {k: v for k, v in flats[0].items() if all(f.get(k, flat) == v for f in flats[1:])}
    return [(k, tidy(v)) for k, v in same.items()]


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
