"""The audit against split clients: a hospital is not covered by what a sub-client is promised."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

import tiny
from leakline.attacks.audit import audit, small
from leakline.attacks.audit.channel import PublishChannel
from leakline.attacks.audit.crafters import canary
from leakline.defences import DelayedRmsProp, Intermediaries
from leakline.privacy import Claim
from leakline.strategies import MENU as STRATEGIES

LEAN = {"noise": "seeded", "buffers": False, "clients": 2, "wide": False}
"""Two clients are enough for a game, and there is none about buffers or a third client that drops out."""


def bounds(found, quantity="mu"):
    """The strongest bound of each unit on one release."""
    best: dict[str, float] = {}
    for f in found.findings:
        if f.quantity == quantity:
            best[f.question.unit] = max(best.get(f.question.unit, 0.0), f.low)
    return best


def test_with_four_parts_a_hospital_shows_four_times_as_far_as_a_sub_client():
    # Bounds hold together at confidence 0.9999: a right implementation fails the two upper limits once in 10,000.
    found = audit(Intermediaries(1.0, 1.0, parts=4), trials=2400, confidence=0.9999, **LEAN)
    low = bounds(found)
    assert 0.4 < low["sub-client"] <= 1.0
    assert 3.0 < low["client"] <= 4.0  # far beyond the 1 / z that the paper prints for it
    assert not found.broken
    assert any(label == "mind" for label, _ in found.card.rows())


@dataclass(frozen=True)
class Boastful(Intermediaries):
    """Prints a sub-client's promise as the client's, as paper 004 does."""

    def claim(self, federation, facts=()):
        client, part = super().claim(federation, facts)
        assert isinstance(client, Claim)
        return replace(client, events=part.events)


def test_the_papers_reading_is_caught():
    found = audit(Boastful(1.0, 1.0, parts=4), trials=1600, **LEAN)
    assert found.broken


def test_all_parts_or_one_carry_the_canary_through_the_real_hooks():
    fed = tiny.federation(
        defences=(Intermediaries(1e-9, 1.0, parts=4),), strategy=STRATEGIES["fedavg"]("even"), noise="seeded"
    )
    for parts, expected in (("all", 4.0), ("one", 1.0)):
        channel = PublishChannel(fed, parts=parts)
        pair = canary(channel.layout)
        moved = (channel.see(pair.one, 1) - channel.see(pair.zero, 1)).double().norm() * 12
        assert abs(float(moved) - expected) < 1e-3


def test_the_small_copy_keeps_the_number_that_the_public_rule_came_to():
    fed = tiny.federation(
        defences=(Intermediaries(2.0, 1.0, parts="public", smallest=1),),
        strategy=STRATEGIES["fedavg"]("even"),
        model=lambda: nn.Linear(4, 2000),
    )
    (settled,) = small(fed).defences
    assert settled.parts == 8
    assert fed.claims()["Intermediaries per client"].events[0].mu == 4.0


def test_a_preconditioner_in_front_changes_nothing_that_an_audit_could_see():
    stack = [DelayedRmsProp(2), Intermediaries(1.0, 1.0, parts=2)]
    found = audit(stack, trials=2000, confidence=0.9999, **LEAN)
    assert not found.broken
    assert bounds(found)["client"] > 1.2


def test_the_game_is_deterministic_given_a_seed():
    fed = tiny.federation(defences=(Intermediaries(1.0, 1.0, parts=2),), strategy=STRATEGIES["fedavg"]("even"))
    channel = PublishChannel(fed)
    pair = canary(channel.layout)
    assert torch.equal(channel.see(pair.one, 5), channel.see(pair.one, 5))
