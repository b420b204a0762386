"""Fixed clipping and noise, and when nothing may be promised."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import tiny
from leakline.cards import formal_card
from leakline.defences import AdaptiveClip, Defence, GlobalDP
from leakline.federation import federate
from leakline.messages import Dropped, Receipt, Turn
from leakline.privacy import Adjacency, Claim, NoClaim, Seat, Unit, account
from leakline.runtimes.local import LocalTransport
from leakline.strategies import MENU
from leakline.weights import Weights

EVEN = MENU["fedavg"](weighting="even")


def claim_of(defence: Defence, **changes):
    changes = {"strategy": EVEN, "rounds": 1} | changes
    stack = changes.pop("defences", (defence,))
    return defence.claim(tiny.federation(defences=stack, **changes))


@pytest.mark.parametrize("kind", [GlobalDP, AdaptiveClip])
def test_the_worked_example_of_paper_000(kind):
    claim = claim_of(kind(noise_multiplier=0.01, clip=5.0))
    assert account(claim, 1e-5).epsilon == pytest.approx(5425.5, abs=0.5)
    assert (claim.unit, claim.adjacency, claim.observer) == (Unit.CLIENT, Adjacency.ADD_REMOVE, Seat.CLIENT)
    twenty = claim_of(kind(noise_multiplier=0.01, clip=5.0), rounds=20)
    assert account(twenty, 1e-5).epsilon == pytest.approx(101906, abs=1)
    assert twenty.releases == 20


def batchnorm_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


@dataclass(frozen=True)
class Doubles(Defence):
    """Changes updates after whoever stood before it."""

    def admit(self, updates, turn):
        return (u.with_delta(u.delta.vector * 2) for u in updates)

    def claim(self, federation, facts=()):
        return NoClaim("a test")


DP = GlobalDP(1.0, 1.0)
REFUSED = {
    "weighted mean": (DP, {"strategy": MENU["fedavg"]()}, "weighted by examples"),
    "weighted fedprox": (DP, {"strategy": MENU["fedprox"]()}, "weighted by examples"),
    "median": (DP, {"strategy": MENU["fedmedian"]()}, "median"),
    "trimmed": (DP, {"strategy": MENU["fedtrimmed"]()}, "trimmed mean"),
    "nova": (DP, {"strategy": MENU["fednova"]("even")}, "step count"),
    "after fedyogi": (replace(DP, at="model"), {"strategy": MENU["fedyogi"]("even")}, "stateful server optimiser"),
    "after fedadam": (replace(DP, at="model"), {"strategy": MENU["fedadam"]("even")}, "stateful server optimiser"),
    "after fedavgm": (replace(DP, at="model"), {"strategy": MENU["fedavgm"]("even")}, "stateful server optimiser"),
    "after a long step": (
        replace(DP, at="model"),
        {"strategy": MENU["fedavg"]("even", 2.0)},
        "scales a client's influence",
    ),
    "clear buffers": (replace(DP, buffers="clear"), {"model": batchnorm_net}, "BatchNorm statistics"),
    "not last": (DP, {"defences": (DP, Doubles())}, "after they were clipped"),
    "no noise": (GlobalDP(0.0, 1.0), {}, "no noise"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("kind", [GlobalDP, AdaptiveClip])
def test_where_one_client_s_influence_is_not_bounded_nothing_is_promised(case, kind):
    defence, changes, reason = REFUSED[case]
    if kind is AdaptiveClip:
        own = AdaptiveClip(defence.noise_multiplier, defence.clip, defence.at, defence.buffers)
        changes = {
            k: tuple(own if d is defence else d for d in v) if k == "defences" else v for k, v in changes.items()
        }
        defence = own
    claim = claim_of(defence, **changes)
    assert isinstance(claim, NoClaim)
    assert reason in claim.reason
    assert claim.instead


KEPT = {
    "before fedyogi": (DP, {"strategy": MENU["fedyogi"]("even")}),
    "before fedavgm": (DP, {"strategy": MENU["fedavgm"]("even")}),
    "after a plain step": (replace(DP, at="model"), {}),
    "covered buffers": (DP, {"model": batchnorm_net}),
    "clear buffers that do not exist": (replace(DP, buffers="clear"), {}),
    "last of a stack": (DP, {"defences": (Doubles(), DP)}),
    "a warm start": (DP, {"strategy": MENU["fedopt"]("even")}),
}


@pytest.mark.parametrize("case", KEPT)
def test_where_it_is_bounded_the_promise_stands(case):
    defence, changes = KEPT[case]
    claim = claim_of(defence, **changes)
    assert isinstance(claim, Claim)
    assert account(claim, 1e-5).mu == pytest.approx(1.0)


def test_sampling_is_claimed_for_poisson_and_not_for_cohorts_of_fixed_size():
    poisson = claim_of(DP, sampling="poisson", participation=0.5)
    fixed = claim_of(DP, sampling="fixed", participation=0.5)
    assert poisson.events[0].rate == 0.5
    assert fixed.events[0].rate == 1.0
    assert any("no amplification" in text for text in fixed.assumptions)


def clip_and_noise(fed, **kw):
    return tiny.run(fed, **kw)


def test_the_published_change_is_the_mean_of_clipped_updates_plus_the_noise():
    dp = GlobalDP(2.0, 0.05)
    fed = tiny.federation(defences=(dp,), strategy=EVEN, rounds=1)
    (round_,) = tiny.run(fed)
    clipped = [u.delta.vector * min(1.0, 0.05 / u.delta.norm()) for u in round_.updates]
    turn = fed.turns(0, {})[0]
    noise = turn.noise().normal(round_.sent.layout.size).float() * (2.0 * 0.05 / 3)
    expected = round_.sent.vector + torch.stack(clipped).mean(0) + noise
    assert torch.allclose(round_.result.vector, expected, atol=1e-6)
    assert round_.facts["noise_std"] == pytest.approx(2.0 * 0.05 / 3)
    assert all(u.delta.norm() > 0.05 for u in round_.updates)  # what crossed the wire was not clipped yet


def test_when_clients_drop_out_the_noise_is_that_of_who_remains():
    fed = tiny.federation(defences=(GlobalDP(2.0, 0.5),), strategy=EVEN, task=tiny.task((8,) * 5))
    with LocalTransport(fed, 1) as inner:
        rounds = list(federate(fed, tiny.Corrupting(inner, "b", lambda u: Dropped("b", "gone"))))
    assert [r.facts["noise_std"] for r in rounds] == pytest.approx([2.0 * 0.5 / 4] * 2)
    assert all(r.cohort == ("a", "c", "d", "e") for r in rounds)


def turn_of(fed, memory=None, **changes):
    return replace(fed.turns(0, {} if memory is None else memory)[0], **changes)


def test_under_poisson_sampling_the_denominator_is_fixed():
    fed = tiny.federation(
        defences=(GlobalDP(1.0, 1.0),), strategy=EVEN, sampling="poisson", participation=0.5, task=tiny.task((4,) * 8),
        rounds=12,
    )  # fmt: skip
    rounds = tiny.run(fed)
    assert {r.facts["noise_std"] for r in rounds} == {1.0 / 4}
    assert len({len(r.cohort) for r in rounds}) > 1
    zero = Weights.zeros(fed.wire)
    receipts = [Receipt("a", 4, 1)] * 6
    change = zero.like(torch.ones(fed.wire.size))
    seeded = turn_of(fed)
    noised = fed.defences[0].publish(change, receipts, seeded)
    noise = fed.defences[0].publish(zero, receipts, turn_of(fed))
    assert torch.allclose((noised - noise).vector, torch.full((fed.wire.size,), 6 / 4), atol=1e-6)


@pytest.mark.parametrize("defence", [GlobalDP(1.0, 0.5), AdaptiveClip(1.0, 0.5)])
def test_an_empty_cohort_still_publishes_noise(defence):
    fed = tiny.federation(defences=(defence,), strategy=EVEN, sampling="poisson", participation=0.05, rounds=8)
    rounds = tiny.run(fed)
    empty = [r for r in rounds if not r.cohort]
    assert empty
    for r in empty:
        step = (r.result - r.sent).vector
        # 15 normals: their root mean square lies within a factor 3 of the scale with probability > 1 - 1e-5
        assert 1 / 3 < float(step.square().mean().sqrt()) / r.facts["noise_std"] < 3


def test_buffers_left_clear_are_neither_clipped_nor_noised_and_covered_ones_are():
    for buffers, touched in (("clear", False), ("covered", True)):
        fed = tiny.federation(
            model=batchnorm_net, strategy=EVEN, rounds=1, defences=(GlobalDP(1.0, 1e-3, buffers=buffers),)
        )
        (round_,) = tiny.run(fed)
        plain = torch.stack([u.delta.vector for u in round_.updates]).mean(0)
        change = (round_.result - round_.sent).vector
        place = fed.wire.slices["1.running_mean"]
        assert torch.allclose(change[place], plain[place], atol=1e-7) is not touched
        assert not torch.allclose(change[: place.start], plain[: place.start], atol=1e-5)


def test_seeded_noise_is_stamped_on_the_card_and_secret_noise_is_not():
    seeded = formal_card("x", tiny.federation(defences=(DP,), strategy=EVEN), 1e-5)
    secret = formal_card("x", tiny.federation(defences=(DP,), strategy=EVEN, noise="secret"), 1e-5)
    assert "NOT PRIVATE" in seeded.stamp
    assert secret.stamp == ""
    assert any("NOT PRIVATE" in text for _, text in seeded.rows())


def test_secret_noise_differs_between_equal_runs_and_seeded_noise_does_not():
    for noise, same in (("secret", False), ("seeded", True)):
        fed = tiny.federation(defences=(DP,), strategy=EVEN, noise=noise)
        one, other = tiny.run(fed), tiny.run(fed)
        assert torch.equal(one[-1].result.vector, other[-1].result.vector) is same


@pytest.mark.parametrize("z", [-1.0, float("nan")])
def test_a_noise_multiplier_must_not_be_negative(z):
    with pytest.raises(ValueError, match="noise_multiplier"):
        GlobalDP(z, 1.0)


@pytest.mark.parametrize("clip", [0.0, -1.0, float("nan")])
def test_a_clip_must_be_positive(clip):
    with pytest.raises(ValueError, match="clip"):
        GlobalDP(1.0, clip)


def test_a_defence_without_a_claim_says_so():
    class Silent(Defence):
        pass

    with pytest.raises(TypeError, match="must say what it promises"):
        Silent().claim(tiny.federation())


def test_the_turn_s_expected_number_is_the_server_s_alone():
    fed = tiny.federation(defences=(DP,), sampling="poisson", participation=0.5)
    assert fed.turns(0, {})[0].sampled
    assert fed.turns(0, {})[0].expected == 1.5
    assert fed.turns_of("a", 0, {})[0].expected == 0
    assert isinstance(fed.turns_of("a", 0, {})[0], Turn)
    assert math.isclose(fed.expected(), 1.5)
