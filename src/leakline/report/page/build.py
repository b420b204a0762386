"""The page: one HTML file, made from the store and nothing else, that needs no network and runs nothing foreign.

Every text is cleaned and escaped by jinja2; data for charts go through ``tojson``; the page's policy names
the hashes of its two scripts and its styles and forbids everything else. The same store gives the same bytes.
"""

from __future__ import annotations

import itertools
import re
from functools import lru_cache, partial
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
from leakline.report.page.glossary import glossary, meaning
from leakline.report.page.html import asset, policy, template, write_page
from leakline.report.page.summary import summary
from leakline.report.papers import charts_of, tables_of
from leakline.report.tables import menu as tables
from leakline.report.tables.clients import clients
from leakline.report.tables.patients import exposed
from leakline.results import Results
from leakline.results.share import shareable as anonymous
from leakline.text import clean, scrub, tidy

_TABLES = (tables.utility, tables.measures, tables.attacks, exposed, clients, tables.cards)
_PLOTLY_STYLE = "/* plotly.js puts its rules here */"
"""plotly.js looks for a style element of its own and would make one, which the policy forbids."""


def build_report(results: Results, out: Path | None = None, shareable: bool = False, images: bool = True) -> Path:
    """Write the report of a store to ``out`` (default: ``report.html`` in the store) and say where it is.

    ``shareable`` leaves out the study file, every image, names of clients and classes and the texts of failures
    (see `leakline.results.share`); without ``images`` only the images are left out.
    """
    page = render_page(anonymous(results) if shareable else results, shareable, images and not shareable)
    return write_page(page, out if out is not None else results.root / "report.html")


def render_page(results: Results, shareable: bool = False, images: bool = True) -> str:
    """The report as HTML."""
    from markupsafe import Markup

    from leakline import __version__

    # Everything that becomes Markup is this package's own text, or SVG written by an XML writer.
    script, style, plotly = asset("page.js"), asset("page.css"), _plotly()
    groups = _drawn(results)
    drawn = [chart for _, found in groups for chart in found]
    for chart in drawn:
        chart["svg"] = Markup(chart["svg"])
    scripts = [script, plotly] if drawn else [script]
    failed = tables.missing(results)
    seen = words.glances(results)
    return template("report.html.jinja").render(
        results=results, title=results.title or results.name, version=__version__,
        trained=words.what_was_trained(results), short=words.in_short(results),
        protects=words.who_is_protected(results),
        glances=seen, shared=words.shared_warnings(seen), summary=summary(results),
        verdicts=words.VERDICTS, verdict_order=list(words.VERDICTS), cards=card_views(results), groups=groups,
        legend=_legend(results), glossary=results.once(glossary), meaning=partial(meaning, results),
        tables=[table for make in _TABLES if (table := make(results)).rows or make is not exposed],
        papers=tuple(tables_of(results).values()),
        filters=filters_of(results),
        gallery=gallery_of(results) if images else Gallery(), images=images,
        runs=tables.runs(results), missing=failed, settings=_settings(results),
        text=[] if shareable else [clean(line) for line in scrub(results.text).splitlines()],
        notes=[scrub(note) for note in (*results.notes, *words.versions(results, __version__))],
        shareable=shareable, figures={chart["id"]: chart["figure"] for chart in drawn},
        policy=policy(scripts, [style, _PLOTLY_STYLE]),
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
