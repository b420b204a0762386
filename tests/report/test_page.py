"""The page: safe, self-contained, complete, and true to the store."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from xml.etree import ElementTree

import pytest

from hostile_store import ATTACKS_ON_TEXT, poison
from leakline.report.charts import static
from leakline.report.charts.chart import DARK, LIGHT, Chart, Series, looks
from leakline.report.charts.inline import inline
from leakline.report.charts.interactive import as_json, plain
from leakline.report.charts.menu import CHARTS, figures
from leakline.report.page.build import build_report
from leakline.report.page.summary import Summary, summary
from leakline.report.page.words import glances, in_short
from leakline.results import read

TAGS = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "template",
    "body",
    "a",
    "div",
    "header",
    "p",
    "bdi",
    "h1",
    "h2",
    "h3",
    "strong",
    "nav",
    "ul",
    "li",
    "main",
    "section",
    "span",
    "dl",
    "dt",
    "dd",
    "details",
    "summary",
    "article",
    "figure",
    "figcaption",
    "table",
    "caption",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "pre",
    "footer",
    "script",
    "svg",
    "g",
    "path",
    "defs",
    "use",
    "text",
    "clippath",
    "rect",
    "h4",
    "form",
    "fieldset",
    "legend",
    "label",
    "input",
    "button",
    "output",
    "img",
    "br",
}


def check_page(page):
    """Nothing but our own elements, no handler, no style attribute, no address; the policy allows our scripts only."""
    assert {tag for tag, _ in page.elements} <= TAGS
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        assert not [k for k in attributes if k.startswith("on") or k in ("style", "srcset", "action", "formaction")]
        assert attributes.get("src", "data:image/png;base64,").startswith("data:image/png;base64,")
        assert attributes.get("href", "#").startswith("#")
    (policy,) = [a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "*" not in policy
    for tag, attributes, text in page.raw:
        if attributes.get("type") == "application/json":
            json.loads(text, parse_constant=pytest.fail)
        else:
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            (kind,) = [part for part in policy.split("; ") if part.startswith(f"{tag}-src")]
            assert f"'sha256-{digest}'" in kind
    assert [tag for tag, _, _ in page.raw].count("script") <= 3
    assert all(c.isprintable() or c == "\n" for c in "".join(page.words))


def test_the_page_is_safe_and_says_what_the_store_says(root, read_page):
    path = build_report(read(root))
    assert path == root / "report.html"
    page = read_page(path)
    check_page(page)
    for text in (
        "Two clients, two rounds",
        "no formal guarantee",
        "blind guessing: 50",
        "NOT PRIVATE",
        "loss-threshold",
        "What is missing",
    ):
        assert text in page.text
    accuracy = read(root).frame.query("measure == 'accuracy' and round == 1 and defence == 'global-dp'")["value"].mean()
    assert f"Accuracy {100 * accuracy:.1f} %, against" in page.text
    for run in read(root).frame["run"].unique():
        assert run in page.text
    outside = "".join(page.words) + "".join(text for _, a, text in page.raw if a.get("type"))
    assert str(root) not in outside
    assert str(root.parent) not in outside


def test_the_same_store_gives_the_same_bytes(root, tmp_path):
    first = build_report(read(root), tmp_path / "new" / "a.html").read_bytes()
    assert first == build_report(read(root), tmp_path / "b.html").read_bytes()


def test_hostile_names_do_not_get_out(root, read_page):
    poison(root)
    page = read_page(build_report(read(root)))
    check_page(page)
    (data,) = [json.loads(text) for _, a, text in page.raw if a.get("type") == "application/json"]
    titles = [figure["layout"]["xaxis"]["title"]["text"] for figure in data.values()]
    named = [trace.get("name", "") for figure in data.values() for trace in figure["data"]]
    assert not [text for text in titles + named if "<" in text]
    assert "alert(1)" in page.text
    assert "/home/jane" not in build_report(read(root)).read_text()


@pytest.mark.parametrize("first", range(0, len(ATTACKS_ON_TEXT), 12))
@pytest.mark.parametrize("kind", ["lines", "points"])
def test_hostile_names_in_figures(first, kind):
    names = ATTACKS_ON_TEXT[first : first + 12]
    spans = ((0.0, 0.1), (0.2, 0.3), (0.5, 1.5), (1.5, 2.5)) if kind == "points" else ((0.0, 0.1), (0.2, 0.3))
    series = tuple(
        Series(n, i, (1.0, 2.0), (0.1, 0.2), *spans, labels=(n, n), tags=(n, ""), where=({n: n}, {n: n}))
        for i, n in enumerate(names)
    )
    chart = Chart(
        names[0], names[1], names[2], series, kind, mark_x=(1.0, names[3]), note=names[4], where={names[5]: names[6]}
    )
    root = ElementTree.fromstring(static.svg(chart))
    assert {e.tag.rpartition("}")[2] for e in root.iter()} <= {
        "svg",
        "g",
        "path",
        "defs",
        "use",
        "text",
        "style",
        "clipPath",
        "rect",
        "metadata",
        "title",
        "RDF",
        "Work",
        "type",
        "format",
    }
    assert static.png(chart, 30).startswith(b"\x89PNG")
    inside = inline(chart, "c")
    assert not [e for e in ElementTree.fromstring(inside).iter() if {"style", "onload", "onerror"} & set(e.attrib)]
    assert "<script" not in inside
    assert "<img" not in inside
    assert not [name for name in names if "<" in plain(name)]
    assert json.loads(json.dumps(as_json(chart)))["data"][-1]["y"] == [0.1, 0.2]


def test_an_unfinished_study_still_reports(root, edit, read_page):
    run = read(root).frame["run"].iloc[0]
    (root / "runs" / run / "end.json").unlink()
    edit(
        root / "study.json", lambda grid: grid["cells"][1].update(run=None, error="no space in /home/jane/secret/runs")
    )
    page = read_page(build_report(read(root)))
    check_page(page)
    assert "2 things are missing" in page.text
    assert "unfinished after 2 of 2 rounds" in page.text
    assert "no space in runs" in page.text
    assert "jane" not in page.text


def test_a_study_without_any_run_still_reports(root, edit, read_page):
    edit(root / "study.json", lambda grid: [cell.update(run=None) for cell in grid["cells"]])
    page = read_page(build_report(read(root)))
    check_page(page)
    assert "No run has finished yet." in page.text
    assert "Nothing has been trained yet." in page.text


def test_shareable_leaves_the_study_file_out(root, read_page):
    (root / "study.toml").write_text('path = "/home/Jane Doe/patients"\n# the study of Dr X\n')
    page = read_page(build_report(read(root)))
    assert "Dr X" in page.text
    assert "Jane" not in page.text
    page = read_page(build_report(read(root), shareable=True))
    check_page(page)
    assert "Dr X" not in page.text


def test_a_measurement_above_the_promise_is_loud(root, edit):
    frame = read(root).frame
    for run in frame[frame["defence"] == "global-dp"]["run"].unique():
        line = {"measure": "epsilon", "value": 900, "low": 800, "n": 50, "by": "audit", "attack": "audit-1"}
        with open(root / "runs" / run / "attacks.jsonl", "a") as file:
            file.write(json.dumps(line | {"about": {"delta": 1e-5}}) + "\n")
    found = {g.defence: g for g in glances(read(root))}
    assert any("BROKEN" in text for text in found["global-dp"].warnings)
    assert "BROKEN" in build_report(read(root)).read_text()


def test_seeds_with_different_promises_show_the_weakest(root, edit):
    frame = read(root).frame
    run = frame[frame["defence"] == "global-dp"]["run"].iloc[0]
    edit(
        root / "runs" / run / "end.json",
        lambda end: end["card"]["promises"][0].update(epsilon=5000.0, verdict="vacuous"),
    )
    (setting,) = [s for s in read(root).settings if s.defence == "global-dp"]
    assert setting.varied
    assert setting.epsilon == 5000.0
    assert "differed between seeds" in build_report(read(root)).read_text()


@pytest.mark.parametrize(
    ("verdict", "epsilon", "advantage", "words"),
    [
        (
            "vacuous",
            697.0,
            1.0,
            "vacuous (epsilon = 697): it would still hold if an attacker were right up to more than 99 of 100",
        ),
        ("strong", 0.5, 0.2, "strong (epsilon = 0.5): whatever an attacker does, it is right at most 60 of 100 times"),
    ],
)
def test_promises_in_plain_words(root, edit, verdict, epsilon, advantage, words):
    frame = read(root).frame
    for run in frame[frame["defence"] == "global-dp"]["run"].unique():
        change = {"epsilon": epsilon, "verdict": verdict, "advantage": advantage}
        edit(root / "runs" / run / "end.json", lambda end, c=change: end["card"]["promises"][0].update(c))
    results = read(root)
    (found,) = [g for g in glances(results) if g.defence == "global-dp"]
    assert words in found.promise[0]
    assert ("global-dp" in in_short(results)) == (verdict == "strong")


def test_charts_of_a_store(made):
    (curves,) = CHARTS["curves"](read(made))
    frame = read(made).frame.query("measure == 'accuracy' and defence == 'none'")
    line = next(s for s in curves.series if s.name == "none")
    assert line.x == (1.0, 2.0)
    assert line.y == pytest.approx(tuple(frame.groupby("round")["value"].mean()))
    assert line.y_low == pytest.approx(tuple(frame.groupby("round")["value"].min()))
    (promise,) = CHARTS["promises"](read(made))
    places = {s.name: s.x[0] for s in promise.series}
    assert promise.bin == (places["none"], "no guarantee")
    assert places["global-dp"] < places["none"]
    drawn = {name: len(figures(read(made), name)) for name in CHARTS}
    assert drawn == {"clients": 0, "curves": 1, "exposure": 0, "promises": 1, "roc": 2, "tradeoff": 1}


def contrast(a, b):
    def light(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((light(a), light(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_colours_reach_wcag_aa(root):
    css = build_report(read(root)).read_text().partition("<style>")[2].partition("</style>")[0]
    for scheme, series in zip(re.findall(r":root \{(.*?)\}", css, re.S)[:2], (LIGHT, DARK), strict=True):
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", scheme))
        assert tuple(colours[f"s{i}"] for i in range(6)) == series
        for ground in ("page", "paper"):
            assert min(contrast(colours[ink], colours[ground]) for ink in ("ink", "soft", "link")) >= 4.5
            assert min(contrast(colour, colours[ground]) for colour in (*series, colours["axis"])) >= 3
        for badge in ("none", "vacuous", "weak", "moderate", "strong"):
            assert contrast(colours[badge], colours[f"{badge}-back"]) >= 4.5
    assert len({looks(i) for i in range(36)}) == 36


def test_the_first_screen_says_that_choosing_is_not_counted(root):
    page = build_report(read(root)).read_text()
    assert "no promise counts that" in page
    (alone,) = [line for line in summary(read(root)).lines if line.defence == "global-dp"]
    assert not Summary((alone,), "accuracy", False).choosing  # nothing to choose from
