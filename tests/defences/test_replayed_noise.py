"""Replayed noise: the standard deviations that are given, drawn anew; no noise is no defence; bad input."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import chi2

import tiny
from leakline.attacks.audit import audit
from leakline.defences import AdaptiveClip, GlobalDP, MetricPrivacy, ReplayedNoise
from leakline.errors import LeaklineError, StackError
from leakline.federation import Federation, federate
from leakline.messages import Receipt
from leakline.privacy import NoClaim
from leakline.stack import Stack
from leakline.weights import Entry, Layout, Weights

FALSE_ALARM = 1e-6


def federation(*defences, rounds: int = 3, **more) -> Federation:
    return tiny.federation(defences=defences, rounds=rounds, noise="seeded", **more)


def test_each_round_has_its_own_standard_deviation():
    """Chi-squared in every round, over all of them together: a false alarm in 1 of a million runs."""
    sigmas, size = (0.5, 3.0, 0.02, 1.0), 20_000
    world = federation(ReplayedNoise(1e6, sigmas=sigmas), rounds=4)
    zeros = Weights.zeros(Layout((Entry("w", (size,)),)))
    low, high = chi2.ppf([FALSE_ALARM / 8, 1 - FALSE_ALARM / 8], size)
    for index, std in enumerate(sigmas):
        facts: dict[str, float] = {}
        turns = world.turns(index, {}, facts)
        noise = world.stack.publish(zeros, "aggregate", [Receipt("a", 1, 1)] * 3, turns).vector.double()
        assert low < float(noise.square().sum()) / std**2 < high
        assert facts == {"noise_std": std}


def test_no_noise_and_a_clip_that_nobody_meets_is_no_defence_bit_for_bit():
    plain, silent = federation(), federation(ReplayedNoise(1e9, sigmas=[0.0, 0.0, 0.0]))
    for one, other in zip(tiny.run(plain), tiny.run(silent), strict=True):
        assert torch.equal(one.result.vector, other.result.vector)


@pytest.mark.parametrize("at", ["aggregate", "model"])
def test_no_noise_is_global_dp_without_noise_bit_for_bit(at):
    dp, silent = (GlobalDP(0.0, 0.05, at=at), ReplayedNoise(0.05, at=at, sigmas=(0.0,) * 3))
    for one, other in zip(tiny.run(federation(dp)), tiny.run(federation(silent)), strict=True):
        assert torch.equal(one.result.vector, other.result.vector)


def test_the_same_standard_deviations_are_drawn_anew():
    dp = GlobalDP(1.0, 0.5)
    first = tiny.run(federation(dp))[0]
    again = tiny.run(federation(ReplayedNoise(0.5, sigmas=(first.facts["noise_std"],) * 3)))[0]
    silent = tiny.run(federation(GlobalDP(0.0, 0.5)))[0]
    one, other = (round_.result.vector - silent.result.vector for round_ in (first, again))
    assert not torch.allclose(one, other)
    # Two independent noises of n values: their correlation is about N(0, 1/n); 5.5 of its standard deviations are
    # passed in 4 of 100 million runs.
    assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < min(1.0, 5.5 / math.sqrt(one.numel()))


def test_it_promises_nothing_and_no_promise_stands_beside_it():
    claims = federation(GlobalDP(1.0, 0.5), ReplayedNoise(0.5, sigmas=(1.0, 1.0, 1.0))).claims()
    assert all(isinstance(claim, NoClaim) for claim in claims.values())
    assert "copied from a list" in claims["ReplayedNoise"].reason
    of = ReplayedNoise(0.5, of="m").following((MetricPrivacy(1.0, 0.5),))
    assert 'copied from the run of "m"' in of.claim(federation(of)).reason


def test_an_audit_asks_of_the_round_with_the_least_noise():
    given = ReplayedNoise(0.5, sigmas=(0.3, 0.1, 0.2))
    settled = given.settled(federation(given))
    stds = [round_.facts["noise_std"] for round_ in federate(federation(settled, rounds=5))]
    assert stds == [0.1] * 5
    audited = audit(given, trials=2_000, rounds=3, wide=False)
    assert not audited.broken  # it promises nothing


def test_a_source_is_told_of_by_its_facts():
    of = ReplayedNoise(0.5, of="m").following((MetricPrivacy(1.0, 0.5),))
    world = federation(of, rounds=2).told("0123", [{"noise_std": 0.25, "distance": 2.0}, {"noise_std": 0.5}])
    assert [round_.facts["noise_std"] for round_ in federate(world)] == [0.25, 0.5]
    with pytest.raises(StackError, match='"m" added no noise in round 1'):
        of.told("0123", [{"noise_std": 0.25}, {}])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ((), "adds no noise that could be added again"),
        ((GlobalDP(0.0, 0.5),), "adds no noise"),
        ((AdaptiveClip(1.0, 0.5),), "adds no noise that could be added again"),  # its clip moves
        ((ReplayedNoise(0.5, sigmas=(1.0,)),), "adds no noise"),
        ((GlobalDP(1.0, 0.5), GlobalDP(1.0, 0.5)), "adds noise more than once"),
        ((GlobalDP(1.0, 0.7),), r'clip is 0.5 here and 0.7 in "m"'),
        ((MetricPrivacy(1.0, 0.5, reading="paper"),), "at is 'aggregate' here and 'model'"),
        ((GlobalDP(1.0, 0.5, denominator="actual"),), "denominator is 'expected' here"),
    ],
)
def test_what_cannot_be_followed_is_refused(source, said):
    with pytest.raises(ValueError, match=said):
        ReplayedNoise(0.5, of="m").following(source)


def test_an_epsilon_that_is_asked_for_is_noise_too():
    asked = GlobalDP(clip=0.5, epsilon=8.0)
    world = federation(ReplayedNoise(0.5, of="m").following((asked,)), strategy=tiny.federation().strategy)
    assert world.stack.follower is not None
    assert Stack(world.stack.follower.source).wishful


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "neither of nor sigmas"),
        ({"of": "m", "sigmas": (1.0,)}, "of and sigmas are both given"),
        ({"sigmas": (1.0, -1.0)}, "not negative: -1.0"),
        ({"sigmas": (math.nan,)}, "finite"),
    ],
)
def test_bad_settings(settings, said):
    with pytest.raises(ValueError, match=said):
        ReplayedNoise(0.5, **settings)


def test_another_number_of_rounds_and_patience_are_refused_before_training():
    with pytest.raises(StackError, match="2 standard deviations for 3 rounds"):
        (world := federation(ReplayedNoise(0.5, sigmas=(1.0, 1.0)))).stack.check(world)
    of = ReplayedNoise(0.5, of="m").following((MetricPrivacy(1.0, 0.5),))
    with pytest.raises(StackError, match="may end early"):
        (world := federation(of, patience=2)).stack.check(world)
    with pytest.raises(StackError, match='nobody has said what of = "m" is'):
        (world := federation(ReplayedNoise(0.5, of="m"))).stack.check(world)
    with pytest.raises(LeaklineError, match="two defences of a stack follow"):
        Stack((of, of))
