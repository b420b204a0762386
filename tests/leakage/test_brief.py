"""What a card shows of an attack: the quoted measures of its strongest rule, and nothing that is only drawn."""

from __future__ import annotations

from leakline.cards import Card
from leakline.leakage.brief import brief, only_drawn
from leakline.leakage.guessing import CURVE_FPRS, QUOTED_FPRS
from leakline.measures import Measure, measure_of
from leakline.readings import Reading

QUOTED = ("auc", "balanced-right", *(f"tpr at fpr={fpr:g}" for fpr in QUOTED_FPRS))
"""What is quoted of an attack, in this order."""


def figures(by, rules):
    whats = [("auc", {}), ("balanced-right", {}), *(("tpr", {"fpr": fpr}) for fpr in CURVE_FPRS)]
    return [
        Reading(what, area, by=by, chance=0.5, about={**({"rule": rule} if rule else {}), **about})
        for rule, area in rules.items()
        for what, about in whats
    ]


def short(found):
    return brief(found, lambda r: r.value)


def test_the_strongest_rule_with_its_quoted_measures():
    (one,) = short(figures("client-inference", {"loss, inside": 0.6, "own, inside": 0.8, "paper": 0.7}))
    assert [r.label for r in one.shown] == [f"{what} (own, inside)" for what in QUOTED]
    assert (one.rule, one.rules) == ("own, inside", 3)
    assert one.left_out == 8  # of two rules; points of curves are not figures to read
    assert "strongest of 3 rules" in one.rest
    assert "8 more figures" in one.rest


def test_the_best_of_many_comes_with_the_p_value_that_is_due():
    tried = (("raw", 1, 0.6), ("sorted", 3, 0.9))
    found = [Reading("auc", v, by="users", about={"rule": rule, "epochs": e}) for rule, e, v in tried]
    found += [Reading("auc", v, by="users", about={"choice": "best", "epochs": e, "p": 0.1}) for _, e, v in tried]
    (one,) = short(found)
    assert [r.label for r in one.shown] == ["auc (sorted, epochs=3)", "auc (best, epochs=3)"]
    assert one.rules == 2


def test_an_attack_without_quoted_measures_shows_its_first_figures():
    (one,) = short([Reading("ssim", i / 10, by="inversion", about={"layer": f"{i}"}) for i in range(9)])
    assert [r.label for r in one.shown] == [f"ssim ({i})" for i in range(6)]
    assert one.rest == "3 more figures are in the report"
    assert short([]) == []


def test_nothing_is_left_out_of_a_small_attack():
    curve = [Reading("tpr", 0.5, by="loss-threshold", about={"fpr": fpr}) for fpr in (0.01, 0.5)]
    (one,) = short([Reading("auc", 0.5, by="loss-threshold"), *curve])
    assert [r.label for r in one.shown] == ["auc", "tpr at fpr=0.01"]
    assert one.rest == ""


def test_only_drawn():
    drawn = [r.label for r in figures("x", {"loss": 0.5}) if only_drawn(r)]
    assert drawn == [f"tpr at fpr={fpr:g} (loss)" for fpr in CURVE_FPRS if fpr not in QUOTED_FPRS]
    assert not only_drawn(Reading("ssim", 0.5))


def test_a_measure_from_outside_is_quoted_as_its_attack_says():
    own = Measure("guessed-pins", "Share of PINs guessed.", 0.0, 1.0, "lower", quoted=1)
    found = [Reading(m, v, by="pins") for m, v in (("tries", 3.0), ("guessed-pins", 0.2))]
    assert len(short(found)[0].shown) == 2
    (one,) = brief(found, lambda r: r.value, lambda name: measure_of(name, {own.name: own}))
    assert [r.measure for r in one.shown] == ["guessed-pins"]


def test_a_card_of_many_rules_is_short_and_keeps_every_reading():
    rules = {f"{a}, {b}": 0.5 for a in ("loss", "own", "fresh", "paper") for b in ("inside", "disjoint")}
    leaks = tuple(figures("client-inference", rules) + figures("second", {"": 0.5}))
    found = Card("x", (), leaks=leaks)
    lines = [text for label, text in found.rows() if label == "attack"]
    assert len(lines) == 4 + 1 + 4
    assert len(found.as_dict()["leaks"]) == len(leaks)
