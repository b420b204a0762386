"""Secure aggregation as an observer's setting: the same weights, and a server that sees only sums."""

from __future__ import annotations

import pytest
import torch

import tiny
from leakline.attacks import MENU as ATTACKS
from leakline.cards import Card, formal_card
from leakline.defences import GaussianRelease, GlobalDP, MetricPrivacy
from leakline.errors import LeaklineError, StackError
from leakline.strategies import MENU as STRATEGIES
from leakline.study.describe import description, key_of
from leakline.study.spec import parse
from leakline.views import EVERYBODY, need_single_updates, visible


def test_the_numbers_are_the_same_and_the_server_sees_one_update():
    plain, hidden = tiny.federation(), tiny.federation(secure_aggregation="assumed")
    for open_, closed in zip(tiny.run(plain), tiny.run(hidden), strict=True):
        assert torch.equal(open_.result.vector, closed.result.vector)
        assert [u.client for u in visible(plain, open_.updates)] == ["a", "b", "c"]
        (seen,) = visible(hidden, closed.updates)
        assert seen.client == EVERYBODY
        assert seen.examples == sum(u.examples for u in closed.updates)
        assert not seen.metrics
        torch.testing.assert_close(closed.sent.vector + seen.delta.vector, closed.result.vector)
    assert visible(hidden, ()) == ()


def test_the_card_says_that_it_was_assumed():
    release = GaussianRelease(1.0, clip=1.0)
    card = formal_card("x", tiny.federation(secure_aggregation="assumed", defences=(release,)), 1e-5)
    rows = card.rows()
    assert any(label == "assumed" and text.startswith("secure aggregation") for label, text in rows)
    assert any(label == "against" and "only the sum of updates" in text for label, text in rows)
    assert Card.from_dict(card.as_dict()) == card
    open_ = formal_card("x", tiny.federation(defences=(release,)), 1e-5)
    assert not any(label == "assumed" for label, _ in open_.rows())


@pytest.mark.parametrize("defence", [GlobalDP(1.0, clip=1.0), MetricPrivacy(1.0, clip=1.0)])
def test_what_a_server_could_not_do_with_a_sum_is_refused(defence):
    with pytest.raises(StackError, match="only their sum"):
        tiny.federation(secure_aggregation="assumed", defences=(defence,))


@pytest.mark.parametrize("name", ["fedmedian", "fedtrimmed"])
def test_combinations_that_are_no_mean_are_refused(name):
    with pytest.raises(StackError, match="only their sum"):
        tiny.federation(secure_aggregation="assumed", strategy=STRATEGIES[name]())
    tiny.federation(secure_aggregation="assumed", strategy=STRATEGIES["fedadam"]())


@pytest.mark.parametrize("name", ["attribute-inference", "user-membership"])
def test_attacks_on_single_updates_refuse_with_the_reason(name):
    attack = ATTACKS[name](trait="sex") if name == "attribute-inference" else ATTACKS[name]()
    with pytest.raises(LeaklineError, match=f"{name} looks at single updates"):
        attack.check(tiny.federation(secure_aggregation="assumed"))
    need_single_updates(tiny.federation(), name)


def test_older_runs_keep_their_keys_and_hidden_ones_get_their_own():
    plain, hidden = tiny.federation(), tiny.federation(secure_aggregation="assumed")
    assert "secure_aggregation" not in description(plain)["federation"]
    assert key_of(description(plain)) != key_of(description(hidden))


def test_a_study_can_ask_for_it():
    text = """
name = "x"
[data]
use = "digits"
limit = 40
clients = 2
[model]
use = "small-cnn"
[training]
rounds = 1
secure_aggregation = "%s"
"""
    assert parse(text % "assumed").cells[0].federation().cohort.secure_aggregation == "assumed"
    with pytest.raises(LeaklineError, match="secure_aggregation"):
        parse(text % "yes")


def test_only_the_two_words_are_understood():
    with pytest.raises(ValueError, match="secure_aggregation"):
        tiny.federation(secure_aggregation="flower")
