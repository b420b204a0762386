"""What a card shows of an attack: the quoted measures of its strongest rule, and nothing that is only drawn."""

from __future__ import annotations

from leakline.cards import Card
from leakline.leakage.brief import QUOTED, brief, only_drawn
from leakline.leakage.guessing import CURVE_FPRS
from leakline.readings import Reading


def figures(by, rules, whats=("auc", "balanced-accuracy", *(f"tpr@fpr={fpr}" for fpr in CURVE_FPRS))):
    return [Reading(f"{what}:{rule}", area, by=by, chance=0.5) for rule, area in rules.items() for what in whats]


def short(found):
    return brief(found, lambda r: r.value)


def test_the_strongest_rule_with_its_quoted_measures():
    (one,) = short(figures("client-inference", {"loss:inside": 0.6, "own:inside": 0.8, "paper": 0.7}))
    assert [r.measure for r in one.shown] == [f"{what}:own:inside" for what in QUOTED]
    assert (one.rule, one.rules) == ("own:inside", 3)
    assert one.left_out == 8  # of two rules; points of curves are not figures to read
    assert "strongest of 3 rules" in one.rest
    assert "8 more figures" in one.rest


def test_the_best_of_many_comes_with_the_p_value_that_is_due():
    found = figures("users", {"raw:epochs=1": 0.6, "sorted:epochs=3": 0.9})
    found += [Reading(f"auc:best:epochs={e}", v, by="users", note="p") for e, v in ((1, 0.6), (3, 0.9))]
    (one,) = short(found)
    assert [r.measure for r in one.shown][:2] == ["auc:sorted:epochs=3", "auc:best:epochs=3"]
    assert one.rules == 2


def test_an_attack_without_quoted_measures_shows_its_first_figures():
    (one,) = short([Reading(f"ssim:{i}", i / 10, by="inversion") for i in range(9)])
    assert [r.measure for r in one.shown] == [f"ssim:{i}" for i in range(6)]
    assert one.rest == "3 more figures are in the report"
    assert short([]) == []


def test_nothing_is_left_out_of_a_small_attack():
    (one,) = short([Reading(what, 0.5, by="loss-threshold") for what in ("auc", "tpr@fpr=0.01", "tpr@fpr=0.5")])
    assert [r.measure for r in one.shown] == ["auc", "tpr@fpr=0.01"]
    assert one.rest == ""


def test_only_drawn():
    assert only_drawn("tpr@fpr=0.001:loss")
    assert not any(only_drawn(f"{what}:loss") for what in QUOTED)
    assert not only_drawn("ssim")


def test_a_card_of_many_rules_is_short_and_keeps_every_reading():
    rules = {f"{a}:{b}": 0.5 for a in ("loss", "own", "fresh", "paper") for b in ("inside", "disjoint")}
    leaks = tuple(figures("client-inference", rules) + figures("second", {"": 0.5}))
    found = Card("x", (), leaks=leaks)
    lines = [text for label, text in found.rows() if label == "attack"]
    assert len(lines) == 4 + 1 + 4
    assert len(found.as_dict()["leaks"]) == len(leaks)
