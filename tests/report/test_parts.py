"""The parts of a report that not every study has: ROC, clients, images, filters, the frontier, other versions."""

from __future__ import annotations

import json
import math
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakline.decide.limits import figures_of
from leakline.errors import DataError, LeaklineError
from leakline.measures import measure_of
from leakline.report.charts.chart import Series, pareto, uncrowded
from leakline.report.charts.menu import CHARTS, save
from leakline.report.charts.roc import roc
from leakline.report.gallery.gallery import MOST_OF_ALL, clean_png, gallery_of
from leakline.report.page.build import build_report
from leakline.report.page.filters import filters_of
from leakline.report.page.words import versions
from leakline.report.papers import charts_of, papers, tables_of
from leakline.report.tables.clients import clients, distribution
from leakline.report.tables.menu import ENDINGS, TABLES, save_all
from leakline.results import Estimate, read
from leakline.results.estimate import estimate, over_seeds


def add_lines(root, name, lines):
    for run in (root / "runs").iterdir():
        with open(run / name, "a") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))


def chunk(name, body):
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(pixels, text=b""):
    """A grey PNG file made by hand, with a text inside."""
    height, width = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels.astype(np.uint8))
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    extra = chunk(b"tEXt", b"Author\0" + text) if text else b""
    body = chunk(b"IHDR", head) + extra + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def with_images(root, noise=(0.0, 0.1, 1.0)):
    """The layout that attacks which reconstruct images agree on."""
    run = next(p for p in sorted((root / "runs").iterdir()) if (p / "end.json").exists())
    folder = run / "media"
    folder.mkdir()
    entries = [{"file": "o.png", "client": "client-1", "round": 0, "kind": "original"}]
    entries.append({"file": "p.png", "client": "client-1", "round": 0, "kind": "prior", "ssim": 0.2, "rdlv": 0.9})
    for level in noise:
        figures = {"ssim": 0.8 - level / 2, "rdlv": level, "noise": level}
        name = f"r-{level}.png"
        entries.append({"file": name, "client": "client-1", "round": 0, "kind": "reconstruction", **figures})
    rng = np.random.default_rng(0)
    for entry in entries:
        (folder / entry["file"]).write_bytes(png(rng.integers(0, 256, (12, 12)), b"Jane Doe"))
    (folder / "media.json").write_text(json.dumps(entries))
    return folder


def test_images_are_shown_by_noise_and_left_out_on_demand(root, read_page):
    with_images(root)
    found = gallery_of(read(root))
    assert found.levels == (0.0, 0.1, 1.0)
    (strip,) = found.strips
    assert [p.kind for p in strip.pictures] == ["original", "prior", *["reconstruction"] * 3]
    page = read_page(build_report(read(root)))
    pictures = [a for tag, a in page.elements if tag == "img"]
    assert len(pictures) == 5
    assert all(a["src"].startswith("data:image/png;base64,") and a["alt"] for a in pictures)
    assert "SSIM 0.80" in page.text
    for options in ({"shareable": True}, {"images": False}):
        page = read_page(build_report(read(root), **options))
        assert not [a for tag, a in page.elements if tag == "img"]
        assert pictures[0]["src"] not in build_report(read(root), **options).read_text()


def test_texts_inside_images_stay_behind(root):
    import base64

    folder = with_images(root)
    assert b"Jane" in (folder / "o.png").read_bytes()
    for strip in gallery_of(read(root)).strips:
        for picture in strip.pictures:
            assert b"Jane" not in base64.b64decode(picture.uri.partition(",")[2])


def test_cleaned_images_have_the_same_pixels(tmp_path):
    from PIL import Image

    pixels = np.random.default_rng(1).integers(0, 256, (9, 7)).astype(np.uint8)
    path = tmp_path / "x.png"
    path.write_bytes(clean_png(png(pixels, b"text")))
    assert (np.asarray(Image.open(path)) == pixels).all()
    Image.fromarray(np.dstack([pixels] * 3)).save(path)
    (tmp_path / "y.png").write_bytes(clean_png(path.read_bytes()))
    assert (np.asarray(Image.open(tmp_path / "y.png"))[..., 0] == pixels).all()


@given(st.binary(max_size=80))
def test_what_is_no_png_is_refused(data):
    with pytest.raises(DataError):
        clean_png(b"\x89PNG\r\n\x1a\n" + data)
    with pytest.raises(DataError):
        clean_png(data)


def test_strips_by_attack_round_and_client(root, tmp_path, read_page):
    run = sorted((root / "runs").iterdir())[0]
    folder = run / "media" / "invert-1" / "round-0002" / "north"
    folder.mkdir(parents=True)
    (folder / "strip.png").write_bytes(png(np.zeros((6, 18)), b"Jane"))
    (run / "media" / "invert-1" / "round-0002" / "south").symlink_to(folder)
    line = {"measure": "ssim", "value": 0.42, "by": "invert", "client": "north", "round": 2, "attack": "invert-1"}
    with open(run / "attacks.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    (strip,) = gallery_of(read(root)).strips
    assert (strip.client, strip.round) == ("north", "2")
    assert strip.pictures[0].caption == "SSIM 0.42"
    assert "original, prior, reconstruction" in read_page(build_report(read(root))).text


def test_damaged_and_hostile_media_lists(root, tmp_path, read_page):
    folder = with_images(root)
    secret = tmp_path / "secret.png"
    secret.write_bytes(png(np.zeros((4, 4))))
    (folder / "link.png").symlink_to(secret)
    (folder / "big.png").write_bytes(png(np.zeros((4, 3000))))
    (folder / "svg.png").write_bytes(b"<svg onload=alert(1)>")
    good = {"client": "<script>alert(1)</script>", "round": 1, "kind": "original"}
    names = ["../../secret.png", str(secret), "link.png", "big.png", "svg.png", "none.png", "", "a/b.png"]
    entries = [{**good, "file": name} for name in names] + [
        3,
        {"file": "o.png", "kind": "<b>"},
        {**good, "file": "o.png"},
    ]
    (folder / "media.json").write_text(json.dumps(entries))
    found = gallery_of(read(root))
    assert sum(len(s.pictures) for s in found.strips) == 1
    page = read_page(build_report(read(root)))
    assert "Not shown" in page.text
    assert "<script>alert" not in build_report(read(root)).read_text().replace("\\u003c", "")
    (folder / "media.json").write_text("{")
    assert gallery_of(read(root)).strips == ()


def test_a_page_does_not_grow_without_end(root):
    folder = with_images(root)
    noisy = np.random.default_rng(0).integers(0, 256, (600, 600))
    (folder / "o.png").write_bytes(png(noisy))
    entry = {"file": "o.png", "client": "c", "round": 0, "kind": "reconstruction"}
    (folder / "media.json").write_text(json.dumps([entry] * (MOST_OF_ALL // 300_000)))
    found = gallery_of(read(root))
    assert any("too large" in text for text in found.left_out)
    assert build_report(read(root)).stat().st_size < 12e6


def test_roc_needs_two_points_and_has_two_forms(root):
    line = {"measure": "tpr", "attack": "other-1", "n": 50}
    points = [(0.1, 0.3, 0.2, 0.45), (0.01, 0.05, 0.0, 0.2)]
    add_lines(root, "attacks.jsonl", [
        {**line, "by": "other", "about": {"rule": "x", "fpr": f}, "value": v, "low": a, "high": b, "chance": f}
        for f, v, a, b in points
    ])  # fmt: skip
    linear, log = (chart for chart in roc(read(root), every=False) if chart.where["attack"] == "other")
    assert linear.series[0].x == (0.0, 0.01, 0.1, 1.0)
    assert linear.series[0].y == (0.0, 0.05, 0.3, 1.0)
    assert linear.diagonal
    assert log.log_x
    assert log.log_y
    assert log.series[0].y_low == (0.001, 0.2)  # a rate of zero has no logarithm
    assert linear.where == {"strategy": "fedavg", "attack": "other"}
    assert "ROC, log-log" in build_report(read(root)).read_text()


def test_an_attack_by_scores_leaves_a_whole_curve_and_its_quoted_figures_alone_are_listed(made):
    linear, _ = roc(read(made), every=False)
    for one in linear.series:
        # 100 records: 50 zeros, which resolve rates from 1/50 up; 1 and 10 % are always written
        assert one.x == (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
        assert list(one.y) == sorted(one.y)
        assert all(a <= y <= b for a, y, b in zip(one.y_low, one.y, one.y_high, strict=True))
    listed = {leak.label for s in read(made).settings for leak in s.leaks}
    assert listed == {"auc", "tpr at fpr=0.01", "tpr at fpr=0.1"}
    assert "loss-threshold.tpr at fpr=0.5" in figures_of(read(made).settings[0])  # limits may still name it


def test_the_page_draws_the_strongest_rule_and_an_export_draws_all(root):
    for rule, area in (("weak", 0.55), ("good", 0.8)):
        lines = [("auc", area, 0.5, {}), ("tpr", 0.1, 0.01, {"fpr": 0.01}), ("tpr", 0.4, 0.1, {"fpr": 0.1})]
        add_lines(root, "attacks.jsonl", [
            {"by": "many", "measure": m, "value": v, "chance": c, "about": {"rule": rule, **a}, "attack": "many-1"}
            for m, v, c, a in lines
        ])  # fmt: skip
    titles = [c.title for c in roc(read(root), every=False) if c.where["attack"] == "many"]
    assert titles == ["ROC: many (good), fedavg", "ROC, log-log: many (good), fedavg"]
    assert len([c for c in roc(read(root)) if c.where["attack"] == "many"]) == 4
    text = build_report(read(root)).read_text()
    assert "the strongest of 2 rules" in text


def test_the_client_that_is_worst_off(root):
    assert clients(read(root)).rows == ()
    lines = [
        {"measure": "right", "value": v, "by": "who", "client": c, "attack": "who-1"}
        for c, v in (("a", 0.5), ("b", 0.9), ("c", 0.6))
    ]
    add_lines(root, "attacks.jsonl", lines)
    add_lines(root, "readings.jsonl", [
        {"measure": "accuracy", "value": v, "round": r, "client": c, "by": "utility"}
        for c, v, r in (("a", 0.1, 0), ("a", 0.8, 1), ("b", 0.2, 0), ("b", 0.7, 1))
    ])  # fmt: skip
    table = clients(read(root))
    found = {(row[1], row[2]): row[4:] for row in table.rows}
    assert found["none", "who"][0] == "b"
    assert found["none", "who"][1].mean == pytest.approx(0.9)
    assert found["none", "who"][2:] == (0.6, 3)
    assert found["none", "utility"][0] == "b"  # served worst, after the last round
    charts = {chart.title: chart for chart in distribution(read(root))}
    line = charts["Spread over clients: who.right, fedavg"].series[0]
    assert line.x == (0.5, 0.5, 0.6, 0.9)
    assert line.y == pytest.approx((0, 1 / 3, 2 / 3, 1))
    assert "The client that is worst off" in build_report(read(root)).read_text()


def test_filters_are_the_labels_with_a_choice(root, edit):
    assert [(f.name, f.values) for f in filters_of(read(root))] == [("defence", ("none", "global-dp"))]

    def spread(grid):
        for i, cell in enumerate(grid["cells"]):
            cell["labels"]["scenario"] = f"s{i % 2}"

    edit(root / "study.json", spread)
    assert {f.name: f.values for f in filters_of(read(root))}["scenario"] == ("s0", "s1")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_the_frontier_is_what_nothing_beats(points):
    first = pareto(points)
    assert any(first)
    for mine, kept in zip(points, first, strict=True):
        beaten = [p for p in points if p[0] <= mine[0] and p[1] >= mine[1] and p != mine]
        assert kept == (not beaten)


def test_names_on_top_of_each_other_are_left_out():
    near = Series("a", 0, (0.5, 0.501, 0.9), (0.5, 0.5, 0.9), tags=("one", "two", "three"))
    (found,) = uncrowded([near])
    assert found.tags == ("one", "", "three")
    (found,) = uncrowded([replace(near, x=(1.0, 1e3, 1e6), y=(0.1, 0.5, 0.9))], True)
    assert found.tags == ("one", "two", "three")


def test_shares_stay_between_zero_and_one():
    wide = Estimate(0.9, 0.1, -0.2, 1.4, 2)
    assert wide.within(0, 1) == Estimate(0.9, 0.1, 0.0, 1.0, 2)
    assert Estimate(0.9).within(0, 1) == Estimate(0.9)
    values = [0.05, 0.95]
    for name, least, most in (("accuracy", 0, 1), ("loss", 0, math.inf), ("nobody-knows", -math.inf, math.inf)):
        assert over_seeds(measure_of(name), values) == estimate(values).within(least, most)
    assert over_seeds(measure_of("accuracy"), []) is None


def test_a_store_of_another_version_says_so(root, edit, read_page):
    assert versions(read(root), read(root).cells[0].about["versions"]["leakline"]) == []
    run = read(root).frame["run"].iloc[0]
    edit(root / "runs" / run / "run.json", lambda about: about["versions"].update(leakline="0.0.1"))
    assert "1 run was made by leakline 0.0.1" in read_page(build_report(read(root))).text


@pytest.mark.parametrize("paper", papers(), ids=lambda paper: paper.name)
def test_a_papers_tables_of_another_store_do_not_stop_its_report(made, paper):
    assert all(table.startswith(f"{paper.name}/") for table in (*paper.tables, *paper.rebuilt))
    for study in paper.studies:
        results = replace(read(made), name=study)
        assert set(tables_of(results, rebuilt=True)) <= set(paper.tables) | set(paper.rebuilt)
        assert isinstance(charts_of(results), dict)
    assert tables_of(read(made)) == charts_of(read(made)) == {}


def test_a_paper_is_a_folder_with_its_studies_in_it():
    import leakline.papers
    from leakline.study.spec import built_in

    folders = {p.name: p for p in Path(leakline.papers.__path__[0]).iterdir() if (p / "__init__.py").is_file()}
    found = {path.parent.name: [] for path in built_in().values() if path.parent.name in folders}
    for name, path in built_in().items():
        if path.parent.name in folders:
            found[path.parent.name].append(name)
    assert set(found) == set(folders)
    assert sorted(map(sorted, found.values())) == sorted(sorted(paper.studies) for paper in papers())


@pytest.mark.parametrize("form", ENDINGS)
def test_all_tables_at_once(made, tmp_path, form):
    found = save_all(read(made), form, tmp_path / "out")
    assert sorted(p.stem for p in found) == sorted(TABLES)
    assert all(p.stat().st_size for p in found)
    with pytest.raises(LeaklineError, match="no format"):
        save_all(read(made), "docx", tmp_path)


@pytest.mark.parametrize("form", ["svg", "png"])
def test_every_figure_as_a_file(made, tmp_path, form):
    for name in CHARTS:
        first = [p.read_bytes() for p in save(read(made), name, tmp_path / "a", form)]
        assert first == [p.read_bytes() for p in save(read(made), name, tmp_path / "b", form)]
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert files == [f"{name}.{form}" for name in ("curves-1", "promises-1", "roc-1", "roc-2", "tradeoff-1")]
    start = b"\x89PNG" if form == "png" else b"<?xml"
    assert all(Path(tmp_path / "a" / f).read_bytes().startswith(start) for f in files)
    with pytest.raises(LeaklineError, match="no figure format"):
        save(read(made), "curves", tmp_path, "gif")
    with pytest.raises(LeaklineError, match="no figure"):
        save(read(made), "curvse", tmp_path)
