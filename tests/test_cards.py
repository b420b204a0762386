"""The privacy card: both halves, never one epsilon alone."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import tiny
from leakline.cards import Card, formal_card, violations
from leakline.defences import GlobalDP
from leakline.privacy import account, replace_one
from leakline.readings import Reading
from leakline.stack import Stack
from leakline.strategies import MENU

EVEN = MENU["fedavg"]("even")


def card(z: float = 1.0, **changes) -> Card:
    return formal_card(
        "x", tiny.federation(**({"strategy": EVEN, "defences": (GlobalDP(z, 1.0),), "rounds": 4} | changes)), 1e-5
    )


def test_a_card_states_unit_adjacency_observer_bound_assumptions_and_what_is_outside():
    (promise,) = card().promises
    assert (promise.unit, promise.adjacency, promise.observer) == ("client", "add-remove", "client")
    assert promise.epsilon == pytest.approx(10.0, abs=0.01)  # mu = sqrt(4) / 1 = 2
    assert promise.mu == pytest.approx(2.0)
    assert promise.releases == 4
    assert promise.assumptions
    assert promise.outside
    said = dict(card().rows())
    assert "epsilon = 10" in said["promise"]
    assert "one client" in said["protects"]
    assert said["measured"] == "no audit was run"


def test_replace_one_is_the_same_claim_with_twice_the_mu():
    fed = tiny.federation(strategy=EVEN, defences=(GlobalDP(1.0, 1.0),), rounds=1)
    claim = fed.defences[0].claim(fed)
    (promise,) = formal_card("x", fed, 1e-5).promises
    assert promise.replace_one == pytest.approx(account(replace_one(claim), 1e-5).epsilon)
    assert account(replace_one(claim), 1e-5).mu == pytest.approx(2.0)


def test_a_promise_is_stated_at_the_delta_that_was_asked_for():
    asked = GlobalDP(epsilon=3.0, delta=1e-3, clip=1.0)
    (promise,) = card(defences=(asked,)).promises
    assert (promise.epsilon, promise.delta) == (pytest.approx(3.0, rel=1e-3), 1e-3)
    (plain,) = card().promises  # nothing was asked for: the study's
    assert plain.delta == 1e-5


def test_two_of_a_kind_have_each_its_own_delta():
    one, other = GlobalDP(epsilon=3.0, delta=1e-3, clip=1.0), GlobalDP(epsilon=8.0, delta=1e-4, clip=1.0)
    stack = Stack((one, other, GlobalDP(1.0, 1.0)))
    assert [stack.asked_at(f"GlobalDP {n}") for n in (1, 2, 3)] == [1e-3, 1e-4, None]
    assert Stack(()).asked_at("none") is None


def test_where_nothing_is_promised_the_card_says_so_literally():
    for found in (card(strategy=MENU["fedmedian"]()), card(defences=())):
        assert any(text.startswith("none (heuristic): ") for _, text in found.rows())
        assert found.promises[0].epsilon is None
        assert found.stamp == ""  # no noise is claimed, so none needs a stamp


def test_a_vacuous_promise_is_called_one():
    assert any("protects nobody" in text for _, text in card(0.01).rows())
    assert not any("protects nobody" in text for _, text in card(10.0).rows())


def test_a_card_survives_json():
    whole = replace(
        card(), measured=(Reading("epsilon", 1.5, low=1.0, n=100, by="audit", about={"unit": "client"}),),
        leaks=(Reading("auc", 0.6, 0.5, 0.7, 80, by="x", chance=0.5),),
        utility=(Reading("accuracy", 0.9, 0.8, 0.95, 100),), dropped=("a: gone",), broken=("BROKEN",),
    )  # fmt: skip
    again = Card.from_dict(json.loads(json.dumps(whole.as_dict())))
    assert again.rows() == whole.rows()
    assert again.promises == whole.promises


@pytest.mark.parametrize(
    ("reading", "broken"),
    [
        (Reading("epsilon", 20.0, low=15.0, by="audit", about={"delta": 1e-5}), True),
        (Reading("epsilon", 20.0, low=15.0, by="audit"), False),  # at delta = 0 no Gaussian promises anything
        (Reading("epsilon", 20.0, low=11.0, by="audit", about={"delta": 1e-7}), False),  # mu = 2 allows 11.9 there
        (Reading("epsilon", 20.0, low=13.0, by="audit", about={"delta": 1e-7}), True),
        (Reading("epsilon", 20.0, low=9.0, by="audit", about={"delta": 0.01}), True),  # and 6.0 there
        (Reading("epsilon", 20.0, low=5.0, by="audit"), False),  # a point estimate alone breaks nothing
        (Reading("epsilon", 20.0, by="audit"), False),
        (Reading("epsilon", 20.0, low=15.0, by="audit", about={"unit": "client", "delta": 1e-5}), True),
        (
            Reading("epsilon", 20.0, low=15.0, by="audit", about={"unit": "record", "delta": 1e-5}),
            False,
        ),  # another unit
        (Reading("mu", 3.0, low=2.5, by="audit"), True),
        (Reading("mu", 3.0, low=1.5, by="audit"), False),
        (Reading("auc", 0.99, low=0.98, by="audit"), False),
    ],
)
def test_a_lower_bound_above_the_promise_is_a_broken_promise(reading, broken):
    assert bool(violations(replace(card(), measured=(reading,)))) is broken


def test_a_bound_at_a_smaller_delta_breaks_no_promise_that_knows_no_mu():
    promise = replace(card().promises[0], epsilon=2.0, delta=0.01, mu=None)
    measured = [Reading("epsilon", 4.0, low=3.0, by="audit", about={"delta": d}) for d in (1e-5, 0.01, 0.1)]
    told = [violations(replace(card(), promises=(promise,), measured=(reading,))) for reading in measured]
    assert [bool(text) for text in told] == [False, True, True]


def test_hostile_text_is_escaped_in_html():
    bad = replace(card(), title="<script>alert(1)</script>", dropped=("<img src=x>: gone",))
    assert "<script>" not in bad._repr_html_()
    assert "<img" not in bad._repr_html_()
