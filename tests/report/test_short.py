"""A card fits a screen, whatever it holds; and every word of a report has its meaning in it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leakline.cards import Card
from leakline.measures import MEASURES
from leakline.readings import Reading
from leakline.report.page.build import render_page
from leakline.report.page.glossary import RULES, glossary, meaning
from leakline.report.page.short import MOST_LINES, height, short
from leakline.results import read

LABELS = ("!", "assumed", "protects", "against", "promise", "in words", "replace-one", "assumes", "not covered",
          "measured", "mind", "audit", "attack", "utility", "dropped")  # fmt: skip
texts = st.text("abc :", min_size=1, max_size=300)
rows = st.lists(st.tuples(st.sampled_from(LABELS), texts), max_size=60)


@given(rows)
def test_a_card_has_at_most_twenty_five_lines_and_loses_nothing(rows):
    shown, rest = short(rows)
    assert sorted([*shown, *rest]) == sorted(rows)
    assert [row for row in rows if row in shown] == shown or len(set(rows)) < len(rows)
    if len(shown) > 1:
        assert 1 + height(shown) + bool(rest) <= MOST_LINES
    if 1 + height(rows) <= MOST_LINES:
        assert not rest


def test_what_must_be_read_stays():
    """Six promises' worth of small print do not push out promise, warning, attack and utility."""
    must = [("!", "BROKEN: x"), ("promise", "epsilon = 1"), ("in words", "right 60 of 100 times"),
            ("attack", "a: auc 0.9"), ("attack", "b: ssim 0.8"), ("utility", "accuracy 0.9")]  # fmt: skip
    small = [("assumes", "y" * 70)] * 9 + [("not covered", "z" * 150)] * 6 + [("attack", "a: tpr 0.1")] * 9
    shown, rest = short([*must, *small])
    assert not set(must) - set(shown)
    assert {label for label, _ in rest} == {"assumes", "not covered", "attack"}


def test_an_attack_without_time_says_so_before_its_figures():
    """So a short card keeps it: figures alone would look like safety."""
    for effort, first in ((9.0, True), (3000.0, False)):
        about = {"effort": effort, "needs": 3000.0, "work": "iterations"}
        leaks = tuple(Reading(m, 0.6, by="inversion", about=about) for m in ("ssim", "rdlv", "iip", "psnr"))
        said = [text for label, text in Card("t", (), leaks=leaks).rows() if label == "attack"]
        assert [("known to need" in text) for text in said].index(True) == (0 if first else len(said) - 1)


def test_every_word_of_the_report_is_explained_in_it(made):
    results = read(made)
    known = dict(glossary(results))
    used = {r.measure for cell in results.cells for r in (*cell.readings, *cell.attacks)}
    assert used <= known.keys()
    assert all(text.endswith(".") for text in known.values())
    page = render_page(results)
    assert all(text.partition("'")[0].partition('"')[0] in page for text in known.values())
    assert all(measure.meaning for measure in MEASURES.values())
    assert meaning(results, "tpr at fpr=0.01 (rmia)") == MEASURES["tpr"].meaning
    assert meaning(results, "defence") == ""


def test_every_rule_of_membership_is_explained():
    from typing import get_args

    from leakline.attacks.record_membership import Score

    assert set(get_args(Score)) <= RULES.keys()


def test_units_of_epsilon_do_not_share_a_column(made):
    from leakline.report.tables.menu import cards

    assert "epsilon" not in cards(read(made)).columns
