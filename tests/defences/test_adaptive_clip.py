"""A clip bound that follows a private quantile."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import tiny
from leakline.defences import AdaptiveClip
from leakline.mechanisms import split_budget
from leakline.messages import Receipt, Turn
from leakline.privacy import NoClaim
from leakline.strategies import MENU

EVEN = MENU["fedavg"](weighting="even")


def play(defence: AdaptiveClip, rounds: int, clients: int = 100) -> list[dict[str, float]]:
    """Rounds of clients whose norms are log-normal; returns what was written down."""
    rng = np.random.default_rng(0)
    memory: dict = {}
    facts = []
    for index in range(rounds):
        turn = Turn(index, "server", memory, seed=0, purpose="x", expected=clients, secret=False)
        norms = rng.lognormal(size=clients)
        updates = [tiny.update(torch.tensor([float(n), 0.0]), f"c{i}") for i, n in enumerate(norms)]
        admitted = list(defence.admit(iter(updates), turn))
        assert max(u.delta.norm() for u in admitted) <= turn.memory["clip"]
        mean = admitted[0].delta.like(torch.stack([u.delta.vector for u in admitted]).mean(0))
        defence.publish(mean, [Receipt(u.client, 1, 1) for u in updates], turn)
        facts.append({**turn.facts, "fitted": float((norms <= turn.facts["clip"]).mean()), "next": memory["clip"]})
    return facts


@pytest.mark.parametrize(
    ("start", "quantile", "z"), [(0.05, 0.3, 0.5), (20.0, 0.5, 0.0), (20.0, 0.8, 0.5), (0.05, 0.5, 0.5)]
)
def test_the_bound_comes_to_the_quantile_from_both_sides_with_and_without_noise(start, quantile, z):
    facts = play(AdaptiveClip(z, start, quantile=quantile), 100)
    late = np.mean([f["fitted"] for f in facts[-30:]])
    # 30 rounds of 100 Bernoulli draws (std 0.05) and noise of std 5/100: 7 standard errors are 0.09; seeded anyway.
    assert late == pytest.approx(quantile, abs=0.09)


def test_a_round_s_noise_is_for_the_bound_that_its_updates_were_clipped_to():
    z, n = 1.0, 100
    facts = play(AdaptiveClip(z, 1.0), 5, n)
    share = split_budget(z, max(n / 20, z))
    for f, following in zip(facts, facts[1:], strict=False):
        assert f["noise_std"] == pytest.approx(share * f["clip"] / n)
        assert following["clip"] == f["next"] != f["clip"]


def test_without_noise_the_step_is_that_of_andrew_et_al():
    (fact,) = play(AdaptiveClip(0.0, 1.0, quantile=0.5, rate=0.2), 1)
    assert fact["unclipped_noised"] == pytest.approx(fact["fitted"])
    assert fact["next"] == pytest.approx(math.exp(-0.2 * (fact["fitted"] - 0.5)))


@pytest.mark.parametrize("clients", [2, 4, 100, 1000])
def test_updates_and_bits_together_spend_exactly_what_is_claimed(clients):
    z = 1.3
    defence = AdaptiveClip(z, 1.0)
    bits = defence._bits_std(clients)
    assert math.hypot(1 / split_budget(z, bits), 1 / (2 * bits)) == pytest.approx(1 / z)


def test_the_bound_survives_from_round_to_round_in_a_federation():
    fed = tiny.federation(defences=(AdaptiveClip(0.5, 0.1),), strategy=EVEN, rounds=4)
    rounds = tiny.run(fed)
    assert len({r.facts["clip"] for r in rounds}) == 4
    assert rounds[0].facts["clip"] == 0.1


def test_bits_that_overspend_the_budget_are_refused():
    with pytest.raises(ValueError, match="bits"):
        AdaptiveClip(2.0, 1.0, bits_noise=0.5)
    with pytest.raises(ValueError, match="quantile"):
        AdaptiveClip(2.0, 1.0, quantile=1.0)


def test_the_papers_reading_is_the_un_noised_median_and_promises_nothing():
    """What paper 004's released code calls adaptive clipping: against its equation, with the cap."""
    for cap, z in ((25.0, 0.0), (25.0, 0.8), (1e-3, 0.8)):
        fed = tiny.federation(
            task=tiny.task((4, 8, 12, 20)), strategy=EVEN, defences=(AdaptiveClip(z, reading="paper", cap=cap),)
        )
        for round_ in tiny.run(fed):
            rows = [u.delta.vector.double() for u in round_.updates]
            bound = min(float(torch.stack(rows).norm(dim=1).median()), cap)  # torch's median: the lower of two
            std = z * bound / 4
            assert round_.facts["clip"] == pytest.approx(bound, rel=1e-6)
            assert round_.facts["noise_std"] == pytest.approx(std, rel=1e-6)
            mean = torch.stack([row * min(1.0, bound / float(row.norm())) for row in rows]).mean(0)
            noise = fed.turns(round_.index, {})[0].noise().normal(len(mean)) * std
            assert torch.allclose((round_.result.vector - round_.sent.vector).double(), mean + noise, atol=1e-6)
    (said,) = fed.claims().values()
    assert isinstance(said, NoClaim)
    assert "un-noised median" in said.reason


def test_the_papers_reading_with_sampling_and_wrong_settings():
    fed = tiny.federation(
        strategy=EVEN, defences=(AdaptiveClip(1.0, reading="paper"),), sampling="poisson", participation=0.3, rounds=8
    )
    assert all(torch.isfinite(r.result.vector).all() for r in tiny.run(fed))
    for wrong in ({"reading": "loud"}, {"cap": 0.0}):
        with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
            AdaptiveClip(1.0, **wrong)
