"""The report as a reader meets it in a real Chromium: quiet, alone, usable by keyboard, readable without scripts."""

# Expressions for the page are kept in one line.
# ruff: noqa: E501

from __future__ import annotations

import json
import os
import shutil
import struct
import zlib
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser

STUDY = """
name = "seen"
title = "Two strategies, two defences"
seeds = [0, 1]
noise = "seeded"
[data]
use = "digits"
clients = 3
[model]
use = "mlp"
hidden = [8]
[training]
rounds = 3
batch = 64
learning_rate = 0.2
[strategies]
fedavg = { use = "fedavg", weighting = "even" }
fedmedian = { use = "fedmedian" }
[defences]
none = []
global-dp = [{ use = "global-dp", noise_multiplier = 1.0, clip = 1.0 }]
[[attacks]]
use = "loss-threshold"
records = 100
[[attacks]]
use = "loss-threshold"
name = "again"
records = 60
"""


def png(level):
    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    rows = b"".join(b"\0" + bytes((x * 16 + y * level) % 256 for x in range(16)) for y in range(16))
    head = struct.pack(">IIBBBBB", 16, 16, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    """A report with everything in it: two strategies, two defences, two attacks, images, a failed cell."""
    from leakline.report.page.build import build_report
    from leakline.results import read
    from leakline.study.files import read_json, write_json
    from leakline.study.run import run_study
    from leakline.study.spec import parse

    root = tmp_path_factory.mktemp("seen") / "seen"
    assert not [o.error for o in run_study(parse(STUDY), root, workers=1) if o.error]
    for run in (root / "runs").iterdir():
        (run / "media").mkdir()
        entries = [{"file": "o.png", "client": "client-1", "round": 0, "kind": "original"}]
        entries += [
            {"file": f"r{i}.png", "client": "client-1", "round": 0, "kind": "reconstruction", "ssim": 0.9 - i / 3, "noise": i / 2}
            for i in range(3)
        ]  # fmt: skip
        for i, entry in enumerate(entries):
            (run / "media" / entry["file"]).write_bytes(png(i + 1))
        (run / "media" / "media.json").write_text(json.dumps(entries))
    grid = read_json(root / "study.json")
    grid["cells"].append({"labels": {"strategy": "fedavg", "defence": "none", "seed": 9}, "run": None, "error": "gone"})
    write_json(root / "study.json", grid)
    return build_report(read(root))


def scroll(tab):
    """Let every chart come near the screen."""
    for y in range(0, tab.run("document.documentElement.scrollHeight"), 600):
        tab.run(f"window.scrollTo(0, {y}); new Promise(r => setTimeout(r, 60))")
    tab.wait(lambda: tab.run("document.querySelectorAll('.live .main-svg').length") > 0, "a chart")
    tab.run("window.scrollTo(0, 0)")


def keep(tab, name):
    folder = os.environ.get("LEAKLINE_PICTURES")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tab.picture(Path(folder) / f"{name}.png")


def visible_rows(tab):
    return tab.run(
        "Array.from(document.querySelectorAll('table.data tbody tr')).filter(r => !r.classList.contains('out')).length"
    )


@pytest.mark.parametrize("width", [1440, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_quiet_alone_and_within_the_screen(tab, page, width, scheme):
    one = tab(page, width, scheme)
    scroll(one)
    keep(one, f"{scheme}-{width}")
    assert one.complaints == []
    assert [url for url in one.requests if not url.startswith(("data:", page.resolve().as_uri()))] == []
    assert one.run("document.documentElement.scrollWidth") <= width
    # Charts that are folded away are not drawn.
    shown = "Array.from(document.querySelectorAll('.holder')).filter(h => !h.closest('details:not([open])'))"
    assert one.run(f"{shown}.length") > 4
    one.wait(lambda: one.run(f"{shown}.every(h => h.classList.contains('on'))"), "the charts")
    assert one.run("getComputedStyle(document.body).backgroundColor") == {
        "light": "rgb(246, 247, 249)", "dark": "rgb(18, 21, 26)",
    }[scheme]  # fmt: skip


def test_the_policy_stops_what_does_not_belong(tab, page):
    one = tab(page)
    assert one.run("fetch('http://127.0.0.1:9/x').then(() => 'went out', () => 'stopped')") == "stopped"
    assert any("Content Security Policy" in text for text in one.complaints)
    assert (
        one.run(
            "var s = document.createElement('script'); s.textContent = 'window.bad = 1'; document.body.append(s); typeof window.bad"
        )
        == "undefined"
    )


def test_filters_reach_cards_charts_and_tables(tab, page):
    one = tab(page)
    scroll(one)
    before = visible_rows(one)
    box = "document.querySelector('#filters input[name=defence][value=\"global-dp\"]')"
    one.run(f"{box}.click()")
    assert 0 < visible_rows(one) < before
    cards = "Array.from(document.querySelectorAll('.card')).filter(c => c.offsetParent).length"
    assert one.run(f"{cards} > 0 && {cards} < document.querySelectorAll('.card').length")
    traces = "Array.from(document.querySelectorAll('.live')).filter(b => b.data).flatMap(b => b.data.map(t => t.name)).filter(n => n)"
    assert "none" in one.run(traces)
    assert "global-dp" not in one.run(traces)
    assert "table rows shown" in one.run("document.getElementById('shown-count').textContent")
    one.run("document.querySelector('#filters input[name=strategy][value=fedmedian]').click()")
    assert one.run("Array.from(document.querySelectorAll('figure')).some(f => !f.offsetParent)")
    one.run("document.querySelector('#filters input[name=attack][value=again]').click()")
    column = "Array.from(document.querySelectorAll('table.data')).flatMap(t => { var i = Array.from(t.tHead.rows[0].cells).findIndex(h => h.dataset.filter === 'attack'); return i < 0 ? [] : Array.from(t.tBodies[0].rows).filter(r => !r.classList.contains('out')).map(r => r.cells[i].dataset.key); })"
    assert set(one.run(column)) == {"loss-threshold"}
    strips = "Array.from(document.querySelectorAll('.strip')).filter(s => s.offsetParent).map(s => JSON.parse(s.dataset.where)[0])"
    assert {(w["strategy"], w["defence"]) for w in one.run(strips)} == {("fedavg", "none")}
    narrow = "Array.from(document.querySelectorAll('.live')).filter(b => b.dataset.drawn && b.offsetParent && Math.abs(b.querySelector('.main-svg').clientWidth - b.clientWidth) > 2).length"
    one.wait(lambda: one.run(narrow) == 0, "charts to fill their cards")
    keep(one, "filtered")
    one.run("document.getElementById('show-all').click()")
    assert visible_rows(one) == before
    assert one.complaints == []


def test_tables_sort_both_ways_by_keyboard_only(tab, page):
    one = tab(page)
    find = "Array.from(document.querySelectorAll('table.data')).find(t => t.caption.textContent.startsWith('What the attacks got'))"
    index = one.run(f"Array.from({find}.tHead.rows[0].cells).findIndex(h => h.textContent === 'value')")
    values = f"Array.from({find}.tBodies[0].rows).map(r => Number(r.cells[{index}].dataset.key))"
    for _ in range(200):
        one.key("Tab", 9)
        if one.run(f"document.activeElement === {find}.tHead.rows[0].cells[{index}].querySelector('button')"):
            break
    else:
        pytest.fail("the Tab key does not reach the heading")
    one.key("Enter", 13)
    assert one.run(values) == sorted(one.run(values))
    assert one.run(f"{find}.tHead.rows[0].cells[{index}].getAttribute('aria-sort')") == "ascending"
    one.key(" ", 32)
    assert one.run(values) == sorted(one.run(values), reverse=True)
    assert one.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_the_first_tab_skips_to_the_findings(tab, page):
    one = tab(page)
    one.key("Tab", 9)
    assert one.run("document.activeElement.className") == "skip"
    one.key("Enter", 13)
    assert one.run("location.hash") == "#glance"


def test_the_slider_shows_one_noise_level_at_a_time(tab, page):
    one = tab(page)
    shown = (
        "Array.from(document.querySelectorAll('[data-noise]')).filter(p => p.offsetParent).map(p => p.dataset.noise)"
    )
    assert set(one.run(shown)) == {"0.0"}
    one.run("document.getElementById('noise').focus()")
    one.key("ArrowRight", 39)
    assert set(one.run(shown)) == {"0.5"}
    assert one.run("document.getElementById('noise-shown').textContent") == "0.5"
    one.run("document.getElementById('every-noise').click()")
    assert set(one.run(shown)) == {"0.0", "0.5", "1.0"}
    assert one.run("Array.from(document.images).every(i => i.complete && i.naturalWidth === 16)")


def test_readable_without_scripts(tab, page):
    one = tab(page, 1440, "light", False)
    keep(one, "no-scripts")
    html = one.call("DOM.getDocument", depth=0)["root"]["nodeId"]

    def box(selector):
        node = one.call("DOM.querySelector", nodeId=html, selector=selector)["nodeId"]
        try:
            return one.call("DOM.getBoxModel", nodeId=node)["model"]["height"] if node else 0
        except RuntimeError:  # an element that is not shown has no box
            return 0

    assert box(".static svg") > 100
    assert box(".live") == 0
    assert box("#filters") == 0
    assert box("[data-noise='1.0']") > 100
    assert one.complaints == []


def test_print_holds_the_charts_and_few_pages(tab, page):
    one = tab(page)
    scroll(one)
    data = one.print()
    assert data.startswith(b"%PDF")
    pages = data.count(b"/Type /Page\n") or data.count(b"/Type /Page ") or data.count(b"/Type/Page")
    assert 2 <= pages <= 14
    one.media("light", "print")
    assert one.run("getComputedStyle(document.querySelector('.static')).display") == "block"
    assert one.run("getComputedStyle(document.querySelector('.live')).display") == "none"
    assert one.run("getComputedStyle(document.getElementById('filters')).display") == "none"
    keep(one, "print")
    if os.environ.get("LEAKLINE_PICTURES"):
        (Path(os.environ["LEAKLINE_PICTURES"]) / "print.pdf").write_bytes(data)


SEEN = """
(function () {
  function light(c) {
    var v = c.map(x => { x /= 255; return x <= 0.04045 ? x / 12.92 : Math.pow((x + 0.055) / 1.055, 2.4); });
    return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2];
  }
  function rgb(text) { var m = text.match(/[\\d.]+/g).map(Number); return m.length > 3 && m[3] === 0 ? null : m.slice(0, 3); }
  function behind(e) { for (; e; e = e.parentElement) { var c = rgb(getComputedStyle(e).backgroundColor); if (c) { return c; } } return [255, 255, 255]; }
  var found = [];
  document.querySelectorAll("body *").forEach(function (e) {
    var text = Array.from(e.childNodes).some(n => n.nodeType === 3 && n.textContent.trim());
    if (!text || !e.offsetParent || e.closest("svg, .live") || e.classList.contains("glyph")) { return; }
    var a = light(rgb(getComputedStyle(e).color)), b = light(behind(e));
    var ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) { found.push(e.tagName + "." + e.className + " " + ratio.toFixed(2)); }
  });
  return found;
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_on_the_screen_has_contrast(tab, page, scheme):
    one = tab(page, 1440, scheme)
    one.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert one.run(SEEN) == []


def test_controls_have_names(tab, page):
    one = tab(page)
    nameless = """Array.from(document.querySelectorAll('input, button, a, summary, [role=region]')).filter(e =>
        !(e.textContent.trim() || e.getAttribute('aria-label') || (e.labels && e.labels.length))).length"""
    assert one.run(nameless) == 0
    assert one.run("document.documentElement.lang") == "en"
    assert one.run("Array.from(document.images).every(i => i.alt)")


@pytest.fixture(scope="module")
def hostile(page, tmp_path_factory):
    """Every output of a store whose texts try to break out: report, what is shared, figures."""
    from hostile_store import poison
    from leakline.report.charts.menu import CHARTS, save
    from leakline.report.page.build import build_report
    from leakline.results import read

    folder = tmp_path_factory.mktemp("hostile")
    root = Path(shutil.copytree(page.parent, folder / "store"))
    poison(root)
    results = read(root)
    pages = [build_report(results), build_report(results, folder / "shared.html", shareable=True)]
    return [*pages, *(path for name in CHARTS for path in save(results, name, folder / "figures", "svg"))]


def test_hostile_names_stay_text_in_every_output(tab, hostile):
    assert len(hostile) > 3
    for path in hostile:
        one = tab(path)
        assert one.complaints == [], path.name
        assert [url for url in one.requests if not url.startswith(("data:", path.resolve().as_uri()))] == []
        assert one.mine("Page.javascriptDialogOpening") == []
        assert one.run("typeof window.bad") == "undefined"
        assert one.run("document.querySelectorAll('iframe, base, object, embed, [onerror], [onload]').length") == 0
        assert one.run("location.href") == path.resolve().as_uri()
