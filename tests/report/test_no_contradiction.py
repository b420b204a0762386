"""Page one, the table below it and the cards say the same of the same readings: chance, p, rebuilt."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakline.cards import Card, Promise
from leakline.readings import Reading
from leakline.report.page.cardviews import card_views
from leakline.report.page.summary import summary
from leakline.report.page.words import glances
from leakline.results import Cell, Results, read
from leakline.results.cell import FINISHED
from leakline.study.carded import card_of, newest
from leakline.study.lab import attack_key
from leakline.study.run import run_study
from leakline.study.spec import parse

CLAIM = "cannot be told"


def results_of(*seeds: list[Reading]) -> Results:
    card = Card("t", (Promise("none", reason="no defence"),))
    about = {"federation": {"defences": [], "task": {"classes": ["a", "b"]}}}
    cells = (
        Cell(
            {"strategy": "s", "defence": "d", "seed": i}, f"r{i}", FINISHED, about=about, card=card, attacks=tuple(rows)
        )
        for i, rows in enumerate(seeds)
    )
    return Results(Path(), "hand", "", 1e-5, (), "", tuple(cells))


def pages(results: Results) -> tuple[str, str, list[str]]:
    """Page one's sentences about attacks, the table's cell, and the card's lines."""
    (glance,), (line,), (view,) = glances(results), summary(results).lines, card_views(results)
    return " ".join(glance.attack), f"{line.attack.text} {line.attack.more}", list(dict(view.rows)["attacks"])


shares = st.floats(0, 1).map(lambda v: round(v, 3))


@st.composite
def readings(draw, measure, by):
    value, reach = draw(shares), draw(st.floats(0.001, 0.4))
    chance = 0.5 if measure == "auc" else draw(st.floats(0.001, 0.999))
    about = {"p": draw(st.floats(0.001, 1.0))} if draw(st.booleans()) else {}
    if draw(st.booleans()):
        about |= {"effort": draw(st.sampled_from([20.0, 1000.0])), "needs": 1000.0, "work": "iterations"}
    span = (value - reach, value + reach) if draw(st.booleans()) or measure == "auc" else (None, None)
    whole = Reading(measure, value, *span, 40, by=by, chance=chance, about=about)
    clients = [("ann", draw(shares)), ("bob", draw(shares))] if measure == "ssim" and draw(st.booleans()) else []
    return [whole, *(replace(whole, value=v, low=None, high=None, client=c) for c, v in clients)]


def run(draw, attacks):
    return [r for measure, by in attacks for r in draw(readings(measure, by))]


@st.composite
def studies(draw):
    every = [("auc", "membership"), ("auc", "clients"), ("ssim", "inversion"), ("ssim", "other")]
    attacks = draw(st.lists(st.sampled_from(every), min_size=1, max_size=4, unique=True))
    return results_of(*(run(draw, attacks) for _ in range(draw(st.integers(1, 3)))))


@given(studies())
def test_page_one_and_the_card_never_contradict_each_other(results):
    first, cell, card = pages(results)
    (setting,) = results.settings
    worst = setting.worst
    if worst is not None and worst.yes_or_no:
        on_card = next(line for line in card if line.startswith(f"{worst.by}: auc"))
        guessed = first.partition("rebuil")[0]
        assert (CLAIM in on_card) == (worst.is_chance is True)
        assert (f"{CLAIM} from guessing" in guessed) == (worst.is_chance is True)
        assert (f"{CLAIM} from guessing" in cell) == (worst.is_chance is True)
        if "better than guessing" in guessed and worst.p is not None:
            assert worst.p <= 0.05
    for line in card:  # no claim of guessing beside a small p, or of an attack that had no time
        p = re.search(r"p = ([0-9.e-]+)", line)
        assert not (CLAIM in line and p and float(p[1]) < 0.05)
        by = line.partition(":")[0]
        assert not (CLAIM in line and any(f"{by}: given" in other for other in card))
    rebuilt = re.search(r"\(?(inversion|other)\)? rebuilt (?!nothing)", first)
    if rebuilt:
        on_card = next(line for line in card if line.startswith(f"{rebuilt[1]}: ssim"))
        assert CLAIM not in on_card
    assert first.count("The strongest of") <= 1
    if "rebuilt nothing: its images" in first:
        assert not any("most for" in line for line in card)
        assert not any(": given" in line and "ssim" in line for line in card)


def test_what_the_issue_saw():
    """iip-exact 0.250 beside a chance of 0.0048, p = 0.001 in each seed; seeds differ, so their t-interval is wide."""
    seeds = [
        [Reading("iip-exact", v, v - 0.2, v + 0.2, 4, by="inversion", chance=0.0048, about={"p": 0.001})]
        for v in (0.25, 0.5, 0.0)
    ]
    _, _, (line,) = pages(results_of(*seeds))
    assert line == "inversion: iip-exact 0.250 ± 0.250 [0.050, 0.450]; chance 0.0048; p = 0.003"


def test_three_seeds_do_not_hide_what_one_shows():
    """0.598 [0.530, 0.667] became "48 to 64" by the spread of three seeds; their trials say more than their spread."""
    seeds = [[Reading("auc", v, v - 0.069, v + 0.069, 400, by="mia", chance=0.5)] for v in (0.598, 0.52, 0.61)]
    first, _, (line,) = pages(results_of(*seeds))
    assert "That is better than guessing (95 % interval 51 to 64)" in first
    assert CLAIM not in line
    alike = [[Reading("auc", 0.51, 0.41, 0.61, 100, by="mia", chance=0.5)] for _ in range(2)]
    first, _, (line,) = pages(results_of(*alike))  # two seeds that agree by luck prove nothing
    assert f"{CLAIM} from guessing (95 % interval 41 to 61)" in first
    assert CLAIM in line


def test_the_real_store_is_read_without_contradiction(made):
    for glance, line, view in zip(
        glances(read(made)), summary(read(made)).lines, card_views(read(made)), strict=True
    ):  # fmt: skip
        setting = next(s for s in read(made).settings if s.defence == view.defence)
        said = [CLAIM in " ".join(glance.attack), CLAIM in line.attack.more]
        assert said == [setting.worst.is_chance is True] * 2


STUDY = """
name = "edited"
[data]
use = "digits"
limit = 200
clients = 2
[model]
use = "mlp"
hidden = [4]
[training]
rounds = 1
[[attacks]]
use = "loss-threshold"
records = RECORDS
"""


def test_an_edited_attack_leaves_its_old_readings_behind(tmp_path):
    for records in (20, 30, 20):
        study = parse(STUDY.replace("RECORDS", str(records)))
        (outcome,) = run_study(study, tmp_path, workers=1)
        assert not outcome.error
        listed = [attack_key(name, attack) for name, attack in study.attacks_on(outcome.cell).items()]
        readings = card_of(outcome.run, listed=listed).leaks
        assert {r.n for r in readings if r.measure == "auc"} == {records}
        assert len({r.label for r in readings}) == len(readings)
    assert {r.n for r in card_of(outcome.run).leaks if r.measure == "auc"} == {
        30
    }  # without a list: the last that met it


@pytest.mark.parametrize(
    ("listed", "kept"), [((), ["b-2", "c-1"]), (("b-1",), ["b-1", "c-1"]), (("b-1", "c-9"), ["b-1"])]
)
def test_which_readings_are_the_present_ones(listed, kept):
    lines = [{"by": k[0], "attack": k, "measure": "auc"} for k in ("b-1", "c-1", "b-2")]
    assert sorted(line["attack"] for line in newest(lines, listed)) == kept


def test_what_can_be_told_from_guessing_stands_before_what_is_larger_over_few_trials():
    lucky = Reading("auc", 0.9, 0.15, 1.0, n=8, by="clients", chance=0.5)
    sure = Reading("auc", 0.7, 0.65, 0.75, n=900, by="membership", chance=0.5)
    (setting,) = results_of([lucky, sure]).settings
    assert setting.worst.by == "membership"
    (setting,) = results_of([lucky, replace(sure, value=0.4, low=0.35, high=0.45)]).settings
    assert setting.worst.by == "clients"  # below guessing is told from it too, and tells nothing
