"""Limits, gates, comparisons: by hand-made figures, and on a store that was really run."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakline.cards import Card, Promise
from leakline.decide.choose import choose, judge
from leakline.decide.compare import BEYOND, SAME, UNKNOWN, WITHIN, differences, find_setting, matching, pair, verdict
from leakline.decide.limits import (
    Figure,
    Limit,
    check_attacks,
    figures_of,
    figures_of_card,
    hits,
    named,
    no_better_than,
    pick,
    places_of,
    read_limit,
)
from leakline.errors import LeaklineError
from leakline.readings import Reading
from leakline.results import read


@pytest.fixture
def results(made):
    return read(made)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("membership.auc > 0.6", Limit("membership.auc", ">", 0.6)),
        ("mia.tpr at fpr=0.01 (rmia)>=.05", Limit("mia.tpr at fpr=0.01 (rmia)", ">=", 0.05)),
        ("  accuracy<1e-3 ", Limit("accuracy", "<", 0.001)),
        ("global-dp: epsilon <= 10", Limit("epsilon", "<=", 10.0, "global-dp")),
        ("audit.mu per client > -1", Limit("audit.mu per client", ">", -1.0)),
    ],
)
def test_limits_are_read(text, limit):
    assert read_limit(text) == limit
    assert read_limit(str(limit)) == limit


@pytest.mark.parametrize("text", ["", "auc", "auc = 1", "auc > x", "> 1", "auc >", "auc > 1 2", "auc > nan"])
def test_what_is_no_limit_is_refused(text):
    with pytest.raises(LeaklineError, match="cannot read"):
        read_limit(text)


def test_max_takes_no_lower_limit():
    with pytest.raises(LeaklineError, match="<="):
        read_limit("auc >= 1", ("<=", "<"))


@given(st.text(max_size=40))
def test_any_text_is_a_limit_or_a_clear_error(text):
    said = ""
    try:
        read_limit(text)
    except LeaklineError as error:
        said = str(error)
    assert "\x1b" not in said


def test_figures_are_what_the_frame_says(made, results):
    frame = read(made).frame
    for where, defence, figures in places_of(results):
        mine = frame[frame["defence"] == defence]
        last = mine[(mine["measure"] == "accuracy") & (mine["round"] == 1)]["value"]
        assert figures["accuracy"].value == pytest.approx(last.mean())
        assert figures["loss-threshold.auc"].value == pytest.approx(mine[mine["measure"] == "auc"]["value"].mean())
        low, high = figures["loss-threshold.auc"].cautious
        assert low <= mine[mine["measure"] == "auc"]["low"].mean()
        assert high >= mine[mine["measure"] == "auc"]["high"].mean()
        assert math.isfinite(figures["epsilon"].value) == (defence == "global-dp")
        assert where.endswith(defence)


def test_a_gate_judges_the_value_and_names_the_cell(results):
    found = places_of(results)
    assert hits([read_limit("loss-threshold.auc > 1")], found) == []
    assert {h.limit.name for h in hits([read_limit("loss-threshold.auc > -1")], found)} == {"loss-threshold.auc"}
    (hit,) = hits([read_limit("epsilon > 1e9")], found)
    assert hit.where == "fedavg none"
    assert "no promise" in str(hit)
    assert hits([read_limit("global-dp: epsilon > 1e9")], found) == []


def test_a_figure_that_one_cell_lacks_is_a_hit(results):
    found = places_of(results)
    where, defence, figures = found[0]
    less = [(where, defence, {k: v for k, v in figures.items() if k != "loss-threshold.auc"}), *found[1:]]
    (hit,) = hits([read_limit("loss-threshold.auc > 1")], less)
    assert "was not measured" in str(hit)


def test_unknown_names_get_the_nearest(results):
    with pytest.raises(LeaklineError, match=r"did you mean 'loss-threshold\.auc'"):
        hits([read_limit("loss-treshold.auc > 0.6")], places_of(results))
    with pytest.raises(LeaklineError, match="did you mean 'global-dp'"):
        hits([read_limit("global: epsilon > 0.6")], places_of(results))
    with pytest.raises(LeaklineError, match="did you mean 'membership'"):
        check_attacks([read_limit("membershp.auc > 0.6")], ["membership", "audit"])
    check_attacks([read_limit("accuracy > 0.6"), read_limit("audit.mu per client > 3")], ["audit"])


def test_figures_of_a_card():
    bound = Reading("epsilon", 2.0, low=1.5, by="audit", about={"unit": "client"})
    card = Card("t", (Promise("a", epsilon=3.0), Promise("b")), measured=(bound, replace(bound, low=1.7)))
    found = figures_of_card(card)
    assert found["epsilon"].value == 3.0
    assert found["audit.epsilon per client"].value == 1.7
    assert found["audit.epsilon per client"].is_bound
    assert figures_of_card(Card("t", ()))["epsilon"].value == math.inf


@pytest.mark.parametrize(
    ("limit", "kept", "says"),
    [
        ("a <= 0.6", True, ""),
        ("a <= 0.55", False, "the estimate alone would do"),
        ("a <= 0.4", False, "up to 0.600, wanted <= 0.4 (0.200 missing)"),
        ("a >= 0.4", True, ""),
        ("a >= 0.45", False, "down to 0.400"),
    ],
)
def test_limits_meet_the_cautious_end(limit, kept, says):
    judged = judge(read_limit(limit), Figure("a", 0.5, 0.45, 0.55, own=(0.4, 0.6)))
    assert judged.kept == kept
    assert says in judged.missing


def test_what_was_not_measured_is_not_kept():
    judged = judge(read_limit("a <= 1"), None)
    assert not judged.kept
    assert judged.short == math.inf
    assert "not measured" in judged.missing


def without_baselines(results):
    """As a store has it whose test data were elsewhere: nobody knows what a constant answer would get."""
    cells = [replace(c, readings=tuple(replace(r, chance=None, about={}) for r in c.readings)) for c in results.cells]
    return replace(results, cells=tuple(cells))


def test_choosing_puts_the_most_useful_first_and_else_the_nearest(results):
    results = without_baselines(results)
    ranked = choose(results, [read_limit("loss-threshold.auc <= 1.5"), read_limit("accuracy >= -1")])
    assert all(c.kept for c in ranked)
    values = [c.figures["accuracy"].value for c in ranked]
    assert values == sorted(values, reverse=True)
    ranked = choose(results, [read_limit("epsilon <= 1e9"), read_limit("accuracy >= 2")])
    assert [c.kept for c in ranked] == [False, False]
    assert ranked[0].defence == "global-dp"  # misses one limit, the undefended one both
    with pytest.raises(LeaklineError, match="accuracy"):
        choose(results, [read_limit("acuracy >= 2")])


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        (Figure("x", 0.5, 0.4, 0.6), Figure("x", 0.7, 0.65, 0.8), BEYOND),
        (Figure("x", 0.5, 0.4, 0.66), Figure("x", 0.7, 0.65, 0.8), WITHIN),
        (Figure("x", 0.5), Figure("x", 0.7, 0.65, 0.8), UNKNOWN),
        (Figure("x", 0.5), Figure("x", 0.5), SAME),
        (Figure("epsilon", 0.5), Figure("epsilon", 0.6), "exact: a formal bound"),
        (Figure("x", 1.0, 1.0, math.inf), Figure("x", 9.0, 9.0, math.inf), "not known: lower bounds"),
        (None, Figure("x", 1.0), "only one side was measured"),
    ],
)
def test_verdicts(a, b, says):
    assert verdict(a, b) == says
    assert verdict(b, a) == says


def test_two_cells_of_a_store(results):
    one, two = find_setting(results, "none"), find_setting(results, "strategy=fedavg,defence=global-dp")
    found = pair("none", one, "global-dp", two)
    keys = {key for key, _, _ in found.settings}
    assert {"defences.0.clip", "defences.0.noise_multiplier"} <= keys
    assert not [k for k in keys if k.startswith(("task", "model", "plan", "seed"))]
    assert {n for n, _, _ in found.rows} >= {"epsilon", "accuracy", "loss-threshold.auc"}
    assert len(found.table().rows) == len(found.rows)
    json.dumps(found.as_dict(), allow_nan=False)
    with pytest.raises(LeaklineError, match="fits 2 settings"):
        find_setting(results, "fedavg")
    with pytest.raises(LeaklineError, match="there are: fedavg none, fedavg global-dp"):
        find_setting(results, "metric")


def test_a_store_against_itself_and_a_changed_one(root, results, edit):
    other = read(root)
    assert all(differences(a, b) == [] for a, b in matching(results, other))
    assert all(figures_of(a) == figures_of(b) for a, b in matching(results, other))
    for run in (root / "runs").iterdir():
        edit(run / "run.json", lambda about: about["federation"]["plan"].update(batch=7))
        edit(run / "run.json", lambda about: about["versions"].update(torch="0.1"))
    changed = read(root)
    a, b = matching(results, changed)[0]
    assert [(k, y) for k, _, y in differences(a, b)] == [("plan.batch", "7"), ("version of torch", "0.1")]


def test_a_model_that_answers_blindly_keeps_no_limit(results):
    """Under noise this network learns nothing: it keeps both limits, and may not be recommended."""
    limits = [read_limit("loss-threshold.auc <= 1.5"), read_limit("accuracy >= -1")]
    assert all(c.kept for c in choose(without_baselines(results), limits))
    ranked = choose(results, limits)
    assert [(c.defence, c.kept) for c in ranked] == [("none", True), ("global-dp", False)]
    assert all(j.kept for c in ranked for j in c.judged)
    (said,) = ranked[1].missing
    assert re.fullmatch("the model is (no|not measurably) better than always answering 3", said)


def blind(value, low, high, baseline=0.734, name="accuracy", better="higher"):
    return Figure(name, value, low, high, better, baseline=baseline, blind="always answering sick")


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        ([blind(0.734, 0.667, 0.794)], "no better than always answering sick"),
        ([blind(0.77, 0.70, 0.83)], "not measurably better than always answering sick"),
        ([blind(0.87, 0.80, 0.93)], ""),
        ([blind(0.734, 0.667, 0.794), blind(0.5, 0.46, 0.54, 0.5, "balanced_accuracy")], "no better than"),
        ([blind(0.734, 0.667, 0.794), blind(0.68, 0.60, 0.75, 0.5, "balanced_accuracy")], ""),
        ([blind(0.381, 0.25, 0.52, 0.619), blind(0.93, 0.85, 0.99, 0.5, "auc_binary")], "no better than"),
        ([blind(0.734, None, None)], "no better than"),
        ([blind(0.74, None, None)], ""),
        ([blind(0.3, 0.2, 0.4, 0.7, "loss", "lower")], ""),  # a loss alone is nobody's headline
        ([Figure("accuracy", 0.1, 0.0, 0.2)], ""),  # no baseline is known
    ],
)
def test_when_a_model_is_no_better_than_a_constant_answer(figures, says):
    told = no_better_than({f.name: f for f in figures})
    assert told.startswith(says)
    assert bool(told) == bool(says)


def test_a_floor_that_a_constant_answer_passes_is_a_hit():
    places = [("fedavg noisy", "noisy", {"accuracy": blind(0.734, 0.667, 0.794)})]
    (hit,) = hits([read_limit("accuracy < 0.7")], places)
    assert str(hit) == (
        "fedavg noisy: accuracy is 0.734 [0.667, 0.794], no better than always answering sick (0.734) "
        "(fails if accuracy < 0.7)"
    )
    assert hits([read_limit("accuracy > 0.9")], places) == []  # a ceiling asks for nothing
    assert hits([read_limit("accuracy < 0.7")], [("p", "d", {"accuracy": blind(0.8, 0.75, 0.9)})]) == []
    assert hits([read_limit("loss > 1")], [("p", "d", {"loss": blind(0.9, 0.8, 1.0, 0.8, "loss", "lower")})])


def test_a_floor_is_a_hit_where_the_page_says_not_measurably_better():
    unsure, finds = blind(0.8, 0.7, 0.9), blind(0.7, 0.6, 0.8, 0.5, "balanced_accuracy")
    (hit,) = hits([read_limit("accuracy < 0.7")], [("p", "d", {"accuracy": unsure})])
    assert "0.800 [0.700, 0.900], not measurably better than always answering sick (0.734)" in str(hit)
    both = {f.name: f for f in (unsure, finds)}
    assert hits([read_limit("accuracy < 0.7"), read_limit("balanced_accuracy < 0.6")], [("p", "d", both)]) == []


def test_how_far_above_its_baseline_a_figure_is_can_be_asked_for(results):
    for _, _, figures in places_of(results):
        accuracy, above = figures["accuracy"], figures["accuracy above baseline"]
        assert above.value == pytest.approx(accuracy.value - accuracy.baseline)
        assert above.cautious == pytest.approx(tuple(end - accuracy.baseline for end in accuracy.cautious))
    assert len(hits([read_limit("accuracy above baseline <= 0.5")], places_of(results))) == 2
    reading = Reading("accuracy", 0.8, 0.7, 0.9, chance=0.75, about={"blind": "always answering sick"})
    assert figures_of_card(Card("t", (), utility=(reading,)))["accuracy above baseline"].value == pytest.approx(0.05)


RULES = {
    name: Figure(name, value, value - 0.05, value + 0.05, "lower")
    for name, value in {
        "mia.auc (loss)": 0.5,
        "mia.auc (rmia)": 0.7,
        "mia.tpr at fpr=0.1 (rmia)": 0.9,
        "ci.auc": 0.6,
    }.items()
}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("mia.auc", ["mia.auc (loss)", "mia.auc (rmia)"]),
        ("mia.auc (loss)", ["mia.auc (loss)"]),
        ("mia.tpr at fpr=0.1", ["mia.tpr at fpr=0.1 (rmia)"]),
        ("strongest.auc", ["mia.auc (loss)", "mia.auc (rmia)", "ci.auc"]),
        ("strongest.right", []),
        ("auc", []),
    ],
)
def test_a_measure_without_a_rule_is_that_of_every_rule(name, meant):
    assert [f.name for f in named(name, RULES)] == meant


def test_of_many_rules_the_one_that_keeps_a_limit_least_is_judged():
    assert pick(read_limit("mia.auc <= 0.6"), RULES).name == "mia.auc (rmia)"
    assert pick(read_limit("mia.auc >= 0.6"), RULES).name == "mia.auc (loss)"
    assert pick(read_limit("other.auc >= 0.6"), RULES) is None
    (hit,) = hits([read_limit("strongest.auc > 0.6")], [("p", "d", RULES)])
    assert str(hit).startswith("p: mia.auc (rmia) is 0.700")
    assert hits([read_limit("strongest.auc > 0.8")], [("p", "d", RULES)]) == []
    check_attacks([read_limit("strongest.auc > 0.6")], ["mia"])


def test_an_unknown_name_gets_at_most_three_suggestions():
    many = {f"mia.auc (rule {i})": Figure(f"mia.auc (rule {i})", 0.5) for i in range(40)}
    with pytest.raises(LeaklineError) as caught:
        hits([read_limit("mia.uac > 0.6")], [("p", "d", many)])
    assert "did you mean 'mia.auc'" in str(caught.value)
    assert str(caught.value).count("rule ") <= 2
    assert "40 in all" in str(caught.value)


def test_no_promise_is_further_away_than_any_promise(results):
    """The undefended setting misses one limit, the defended one both: by a little, and not by everything."""
    ranked = choose(without_baselines(results), [read_limit("epsilon <= 6"), read_limit("accuracy >= 0.05")])
    assert [c.defence for c in ranked] == ["global-dp", "none"]
    assert ranked[1].judged[0].short == math.inf
