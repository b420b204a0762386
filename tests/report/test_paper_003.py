"""Paper 003's figures from a store that was really run."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from xml.etree import ElementTree

import pytest

from leakline.papers.fedper import tables as paper_003
from leakline.readings import Reading
from leakline.report.charts.menu import save
from leakline.results import Estimate, Results, read
from leakline.results.table import FORMS, render

STUDY = """
name = "people"
seeds = [0, 1]
noise = "seeded"
[data]
use = "motion"
subjects = 12
trials = 3
seconds = 3.0
window = 50
stride = 50
partition = { use = "by-column", column = "subject" }
client_test = 0.34
server_test = 0.0
[model]
use = "motion-cnn"
channels = [2, 2]
hidden = [4, 4]
[training]
rounds = 3
epochs = 1
batch = 16
learning_rate = 0.1
evaluate = "clients"
[defences]
vanilla = []
fedper = [{ use = "fedper", private = ["dense*"] }]
clipped = [{ use = "gaussian-release", noise_multiplier = 0.1, clip = 1.0 }]
[[attacks]]
name = "gender"
use = "attribute-inference"
trait = "gender"
server = "passive"
folds = 3
repeats = 1
trees = 5
epochs = [1, 2]
[[attacks]]
name = "took-part"
use = "user-membership"
folds = 3
worlds = 1
trees = 5
"""


@pytest.fixture(scope="module")
def people(tmp_path_factory) -> Results:
    from leakline.study.run import run_study
    from leakline.study.spec import parse

    root = tmp_path_factory.mktemp("people") / "store"
    assert [o.error for o in run_study(parse(STUDY), root, workers=1)] == [""] * 6
    return read(root)


PLANTED = """
[[attacks]]
name = "planted"
use = "attribute-inference"
trait = "planted"
server = "passive"
folds = 3
repeats = 1
trees = 5
[scenarios."effect 0".data]
plant = { use = "strength", effect = 0.0, of = "wlk" }
[scenarios."effect 2".data]
plant = { use = "strength", effect = 2.0, of = "wlk" }
"""


def test_a_planted_trait_has_its_ceiling_beside_it_and_seeds_are_pooled_by_fishers_method(tmp_path):
    from scipy.stats import chi2

    from leakline.study.run import run_study
    from leakline.study.spec import parse

    text = STUDY[: STUDY.index("[[attacks]]")].replace("rounds = 3", "rounds = 1") + PLANTED
    study = parse(text).only(["defence=vanilla"])
    assert [o.error for o in run_study(study, tmp_path / "store", workers=1)] == [""] * 4
    results = read(tmp_path / "store")
    table = paper_003.planted(results)
    assert [row[0] for row in table.rows] == [0.0, 2.0]
    assert [row[1] for row in table.rows] == pytest.approx([0.5, 0.9214], abs=1e-4)
    for row in table.rows:
        p = [float(one) for one in row[7].split(", ")]
        fisher = chi2.sf(-2 * sum(math.log(one) for one in p), 2 * len(p))
        assert float(row[8]) == pytest.approx(fisher, rel=0.06)  # p is printed with two digits
        assert row[4].seeds == 2
    assert not paper_003.planted(results.where(seed=7)).rows


def test_folds_are_pooled_within_repeats_and_the_interval_is_over_repeats(tmp_path):
    from leakline.study.run import run_study
    from leakline.study.spec import parse

    text = STUDY[: STUDY.index("[[attacks]]")].replace("client_test = 0.34", "client_test = 0.5")
    study = parse(text, sets=["data.fold=0,1", "data.seed=each"]).only(["defence=vanilla"])
    assert [o.error for o in run_study(study, tmp_path / "store", workers=1)] == [""] * 4
    results = read(tmp_path / "store")
    ((arm, folds, repeats, accuracy, low, high, gain),) = paper_003.folds(results).rows
    assert gain is None  # against itself
    last = {(c.labels["seed"], c.labels["data.fold"]): paper_003.curve(c)[-1] for c in results.cells}
    assert (arm, folds, repeats, accuracy.seeds) == ("vanilla", 2, 2, 2)
    assert accuracy.mean == pytest.approx(sum(last.values()) / 4)
    assert (low, high) == (min(last.values()), max(last.values()))
    lacking = [c for c in results.cells if (c.labels["seed"], c.labels["data.fold"]) != (1, 1)]
    assert (
        paper_003.folds(replace(results, cells=tuple(lacking))).rows[0][2] == 1
    )  # a repeat without one of its folds does not count


def test_a_cross_validation_beside_other_runs_has_rows_of_its_own(people):
    """Scenarios fold-0 and fold-1, in which FedPer is one and three points ahead in two repeats."""
    from leakline.papers.fedper.verdicts import verdicts
    from leakline.report.verdicts import NOT_REPRODUCED, NOT_RUN, REPRODUCED, UNDECIDED, nothing

    def stores(results):
        names = ("fedper-split", "fedper-planted", "fedper-mobiact")
        return {"fedper": results, **{name: nothing(name) for name in names}}

    def rows(results):
        return verdicts(stores(results))["Section 3.2: utility, MotionSense"]

    one = next(c for c in people.finished.cells if c.labels["defence"] == "vanilla")
    cells = []
    for fold, seed, (arm, gain) in product((0, 1), (0, 1), (("vanilla", 0.0), ("fedper", 0.02))):
        value = 0.5 + 0.1 * fold + gain + (0.01 if seed and gain else -0.01 if gain else 0.0)
        labels = {"scenario": f"fold-{fold}", "defence": arm, "seed": seed}
        cells.append(replace(one, labels=labels, readings=(Reading("accuracy", value, round=0),), attacks=()))
    both = replace(people, cells=(*people.cells, *cells))
    table = {row[0]: row[1:] for row in paper_003.folds(both).rows}
    assert table["vanilla"][:2] == table["fedper"][:2] == (2, 2)
    assert table["fedper"][5].mean == pytest.approx(0.02)
    assert table["fedper"][5].sd == pytest.approx(0.01 * 2**0.5)
    assert paper_003.unfolded(both).cells == people.cells
    assert paper_003.figure_3(both) == paper_003.figure_3(people)
    (plain, *_, crossed), before = [r for r in rows(both) if r.what.startswith("FedPer is")], rows(people)
    assert [r.what for r in rows(both)] == [r.what for r in before]
    assert rows(both)[:4] == before[:4]
    assert plain.what != crossed.what
    assert (crossed.ours, crossed.seeds, crossed.verdict) == ("0.020", 2, UNDECIDED)  # two repeats
    assert {r.verdict for r in before[4:]} == {NOT_RUN}
    assert {REPRODUCED, NOT_REPRODUCED}.isdisjoint(r.verdict for r in rows(both)[5:])


def test_a_cross_validated_difference_has_an_interval_over_repeats_and_users(people):
    """Repeats agree to a tenth of a point, three users do not: FedPer gains -3, 2 and 7 points for them."""
    from leakline.papers.fedper.verdicts import _points

    one, users = people.finished.cells[0], {"a": -0.03, "b": 0.02, "c": 0.07}
    cells = []
    for fold, seed, arm in product((0, 1), (0, 1, 2), ("vanilla", "fedper")):
        more = 0.001 * (seed - 1)
        own = {user: 0.5 + (gap + more if arm == "fedper" else 0.0) for user, gap in users.items()}
        readings = [Reading("accuracy", 0.0, round=0, client=user) for user in own]  # rounds before do not count
        readings += [Reading("accuracy", value, round=1, client=user) for user, value in own.items()]
        readings += [Reading("accuracy", sum(own.values()) / 3, round=1)]
        labels = {"scenario": f"fold-{fold}", "defence": arm, "seed": seed}
        cells.append(replace(one, labels=labels, readings=tuple(readings), attacks=()))
    found = paper_003.crossed(replace(people, cells=tuple(cells)), "fedper", "vanilla")
    assert (found.mean, found.sd, found.seeds) == pytest.approx((0.02, 0.001, 3))
    half = 4.302653 * (0.05**2 + 0.001**2) ** 0.5 / 3**0.5  # Student's over three users, and over three repeats
    assert (found.low, found.high) == pytest.approx((0.02 - half, 0.02 + half), rel=1e-5)
    alone = paper_003.crossed(
        replace(people, cells=tuple(c for c in cells if c.labels["seed"] == 0)), "fedper", "vanilla"
    )
    assert (alone.seeds, alone.low) == (1, None)  # one repeat has no interval, however many people
    lost = replace(cells[0], readings=tuple(r for r in cells[0].readings if r.client != "c"))  # dropped, one fold
    fewer = paper_003.crossed(replace(people, cells=(lost, *cells[1:])), "fedper", "vanilla")
    assert fewer.mean == pytest.approx(0.02)
    sure = replace(found, low=0.01, high=0.03)
    assert "size is outside" in _points("", 10.0, "", sure, 3).note
    assert _points("", 2.0, "", sure, 3).note == _points("", 10.0, "", found, 3).note == ""


def test_what_was_not_run_on_mobiact_says_so_whatever_stood_in_for_it(people):
    from leakline.papers.fedper.verdicts import verdicts
    from leakline.report.verdicts import NOT_RUN, nothing

    stores = {"fedper": people, "fedper-split": nothing("fedper-split"), "fedper-planted": nothing("fedper-planted")}
    for second in (nothing("fedper-mobiact"), people):  # none, and one of made-up motion
        rows = verdicts({**stores, "fedper-mobiact": second})["MobiAct"]
        assert len(rows) == 8
        assert all(row.ours == row.verdict == NOT_RUN and "fedper-mobiact" in row.note for row in rows)
    named = [{**c.about, "federation": {**c.federation, "task": {**c.task, "name": "mobiact"}}} for c in people.cells]
    cells = tuple(replace(c, about=about) for c, about in zip(people.cells, named, strict=True))
    there = replace(people, cells=cells)
    found = {row.what: row for row in verdicts({**stores, "fedper-mobiact": there})["MobiAct"]}
    assert found["FedPer is more accurate than plain averaging (difference)"].verdict != NOT_RUN
    assert found["FedPer with two private layers is more accurate than plain averaging (difference)"].verdict == NOT_RUN


def test_figure_2_is_the_distribution_of_the_last_rounds_accuracies(people):
    table = paper_003.figure_2(people)
    assert table.columns == ("share of users", "vanilla", "fedper", "clipped")
    assert [row[0] for row in table.rows][-1] == 1.0
    cells = [c for c in people.cells if c.labels["defence"] == "fedper"]
    lists = [
        sorted(r.value for r in c.readings if r.measure == "accuracy" and r.client and r.round == 2) for c in cells
    ]
    assert [row[2] for row in table.rows] == pytest.approx([(a + b) / 2 for a, b in zip(*lists, strict=True)])


def test_figure_3_has_every_round_and_rounds_to_the_goal_say_when_nobody_got_there(people):
    table = paper_003.figure_3(people)
    assert [row[0] for row in table.rows] == [1, 2, 3]
    words = paper_003.rounds_to_goal(people)
    assert [row[0] for row in words.rows] == ["vanilla", "fedper", "clipped"]
    for row in words.rows:
        assert isinstance(row[3], Estimate)
        assert (row[1] is None) == (row[2] == "0 of 2")


def test_figure_4_has_the_majority_beside_the_accuracy(people):
    table = paper_003.figure_4(people)
    assert [(row[0], row[1]) for row in table.rows] == [("gender", 1), ("gender", 2)]
    assert all(row[2] == 0.5 for row in table.rows)
    assert all(isinstance(cell, Estimate) for row in table.rows for cell in row[3:])


def test_figures_5_and_6_and_the_frontier(people):
    assert paper_003.figure_5(people).columns[1:] == ("vanilla gender", "fedper gender", "clipped gender")
    assert len(paper_003.figure_5(people).rows) == 12
    six = paper_003.figure_6(people)
    assert [(row[0], row[1]) for row in six.rows] == [(d, "took-part") for d in ("vanilla", "fedper", "clipped")]
    assert all(row[4] <= row[3].mean <= row[5] for row in six.rows)
    table = paper_003.frontier(people)
    promised = {row[0]: row[1] for row in table.rows}
    assert promised["vanilla"] == promised["fedper"] == "none"
    assert promised["clipped"] > 100
    assert all(row[8].count(",") == 1 for row in table.rows)


@pytest.mark.parametrize("name", paper_003.TABLES)
def test_every_table_renders_in_every_form(people, name):
    table = paper_003.TABLES[name](people)
    for form in FORMS:
        assert render(table, form)


def test_every_figure_is_sound_svg(people, tmp_path):
    found = {path.stem: path.read_text() for path in save(people, "fedper", tmp_path)}
    assert {"fig2", "fig3", "fig4-gender", "fig5", "fig6", "frontier-gender-1", "frontier-took-part"} <= set(found)
    for text in found.values():
        assert ElementTree.fromstring(text).tag.endswith("svg")
