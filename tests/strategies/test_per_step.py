"""FedNova in the order under which a promise holds: divide by the steps, then clip, average, noise."""

from __future__ import annotations

import math

import pytest
import torch

import tiny
from leakline.bench.training import Plan
from leakline.defences import GlobalDP, Intermediaries
from leakline.privacy import Claim, NoClaim
from leakline.strategies import MENU, PerStep, Strategy

UNEVEN = tiny.task((4, 8, 20))
"""1, 2 and 5 steps of batches of 4."""


def run(strategy, *defences):
    fed = tiny.federation(task=UNEVEN, strategy=strategy, defences=defences, rounds=1)
    return fed, tiny.run(fed)[0]


def test_with_tau_eff_given_and_nothing_clipped_both_forms_agree():
    tau = (1 + 2 + 5) / 3
    for weighting in ("even", "examples"):
        _, ours = run(MENU["fednova"](weighting, steps=tau))
        fed, theirs = run(MENU["fednova"](weighting))
        weights = torch.tensor([4.0, 8.0, 20.0] if weighting == "examples" else [1.0] * 3)
        measured = float((weights * torch.tensor([1.0, 2.0, 5.0])).sum() / weights.sum())
        start = fed.bench().initial.vector
        assert torch.allclose((ours.result.vector - start) / tau, (theirs.result.vector - start) / measured, atol=1e-6)


def test_updates_are_clipped_per_step_and_the_noise_is_taken_as_often_as_the_step():
    z, clip, tau = 0.5, 0.01, 2.5
    fed, got = run(MENU["fednova"]("even", steps=tau), GlobalDP(z, clip))
    rows = [u.delta.vector.double() / u.steps for u in got.updates]  # what is kept is what crossed the wire
    assert [u.steps for u in got.updates] == [1, 2, 5]
    mean = torch.stack([row * min(1.0, clip / float(row.norm())) for row in rows]).mean(0)
    noise = fed.turns(0, {})[0].noise().normal(len(mean)) * (z * clip / 3)
    assert torch.allclose((got.result.vector - got.sent.vector).double(), tau * (mean + noise), atol=1e-6)


@pytest.mark.parametrize("length", [1e-3, 1.0, 1e6])
def test_one_client_moves_the_result_by_at_most_tau_c_over_n_whatever_its_steps(length):
    clip, tau, n = 0.5, 7.0, 4
    strategy, defence = MENU["fednova"]("even", steps=tau), GlobalDP(0.0, clip)
    others = tiny.random_updates(n - 1, steps=None)
    turn = tiny.federation(defences=(defence,)).turns(0, {})[0]
    layout = others[0].delta.layout
    for steps in (1, 3, 100):
        results = []
        for vector in (torch.zeros(50), torch.full((50,), length)):
            updates = [*others, tiny.update(vector, "x", 5, steps, layout)]
            admitted = defence.admit(strategy.receive(iter(updates)), turn)
            step, _ = strategy.optimiser.step(strategy.combine(admitted).vector, {}, 0)
            results.append(step)
        moved = float((results[1] - results[0]).norm())
        expected = tau / n * min(clip, length * math.sqrt(50) / steps)
        assert moved <= tau * clip / n * (1 + 1e-5)
        assert moved == pytest.approx(expected, rel=1e-3)


def test_the_promise_holds_in_this_form_only():
    def claim(strategy, **settings):
        return tiny.federation(defences=(GlobalDP(1.0, 1.0, **settings),), strategy=strategy).claims()["GlobalDP"]

    plain = claim(MENU["fedavg"]("even"))
    assert claim(MENU["fednova"]("even", steps=5)) == plain
    assert isinstance(plain, Claim)
    assert isinstance(claim(MENU["fednova"]("even")), NoClaim)
    assert isinstance(claim(MENU["fednova"]("examples", steps=5)), NoClaim)
    assert isinstance(claim(MENU["fednova"]("even", steps=5), at="model"), NoClaim)


def test_it_trains_with_intermediaries_and_a_local_epoch_each():
    fed = tiny.federation(
        task=UNEVEN, strategy=MENU["fednova"]("even", steps=2), defences=(Intermediaries(0.1, 0.05, parts=2),),
        plan=Plan(epochs=1, batch=2, learning_rate=0.1), rounds=3,
    )  # fmt: skip
    assert all(torch.isfinite(r.result.vector).all() for r in tiny.run(fed))


def test_settings():
    assert isinstance(MENU["fednova"]("even", steps=2).combine, PerStep)
    assert not isinstance(MENU["fednova"]("even").combine, PerStep)
    with pytest.raises(ValueError, match="-1"):
        MENU["fednova"](steps=-1)


def test_noise_that_is_scaled_with_tau_eff() -> None:
    """Without noise both ways are one; with it the released code's is tau_eff times as large (facts of paper 004)."""
    uneven = tiny.federation(task=tiny.task((8, 16, 24)), rounds=1, plan=Plan(epochs=1, batch=4, learning_rate=1e-3))
    plain, scaled = (MENU["fednova"]("even", noise=noise) for noise in ("plain", "scaled"))

    def result(strategy: Strategy, std: float) -> torch.Tensor:
        defence = GlobalDP(std, 1e3, denominator="actual")
        return tiny.run(uneven.but(strategy=strategy, defences=(defence,)))[-1].result.vector

    silent = [result(strategy, 0.0) for strategy in (plain, scaled)]
    assert torch.allclose(*silent, atol=1e-6)
    added = [result(strategy, 1e-3) - still for strategy, still in zip((plain, scaled), silent, strict=True)]
    tau_eff = (2 + 4 + 6) / 3  # batches of four
    assert torch.allclose(added[1], tau_eff * added[0], rtol=1e-3)
    with pytest.raises(ValueError, match="noise"):
        MENU["fednova"](noise="loud")
