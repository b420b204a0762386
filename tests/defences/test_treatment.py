"""What a defence says of itself to whoever simulates a client: held against what its hooks really do."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

import tiny
from leakline.defences import MENU, Defence, DpSgd, GaussianNoise, GaussianRelease, LdpSgd, PercentileGaussian
from leakline.mechanisms.treatment import Act, Treatment
from leakline.stack import Stack
from leakline.weights import Entry, Layout

LAYOUT = Layout((Entry("dense.weight", (200, 200)), Entry("norm.running_mean", (4000,), buffer=True)))
SIZES = (40_000, 4_000)
RELEASES = {
    "gaussian-release": GaussianRelease(0.01, 0.7),
    "gaussian-release, no clip": GaussianRelease(1e-9, 1e6),
    "gaussian-noise": GaussianNoise(0.02),
    "percentile": PercentileGaussian(2.0),
    "percentile, little": PercentileGaussian(0.01),
    "percentile, parameters only": PercentileGaussian(1.0, buffers="out"),
    "ldp-sgd": LdpSgd(2.0, 0.5),
    "ldp-sgd as printed": LdpSgd(2.0, 0.5, reading="paper"),
}


def heavy_tailed(seed: int) -> torch.Tensor:
    """Values as updates have them: most near zero, few large."""
    g = torch.Generator().manual_seed(seed)
    return 0.01 * torch.randn(LAYOUT.size, generator=g) ** 3


def parts(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return values[: SIZES[0]], values[SIZES[0] :]


@pytest.mark.parametrize("name", RELEASES)
def test_an_update_leaves_as_the_treatment_says(name):
    """The factor within 5 standard errors of its projection, the noise within 8 % (44,000 values)."""
    defence, update = RELEASES[name], heavy_tailed(1)
    turn = Stack((defence,)).turns(0, "a", {}, seed=3, secret=False)[0]
    sent = defence.release(tiny.update(update, "a", 1, 1, LAYOUT), turn).delta.vector
    first, second = parts(update)
    squares = [v.double().square().sum() for v in (first, second)]
    factors = defence.treatment.factors(squares[0], squares[1], SIZES, sent)
    stds = defence.treatment.stds(sent, SIZES)
    for before, after, factor, std in zip((first, second), parts(sent), factors, stds, strict=True):
        rest = after.double() - float(factor) * before.double()
        assert float(rest.std()) == pytest.approx(std, rel=0.08, abs=1e-9)
        assert abs(float(rest @ before.double())) <= 5 * float(std * before.norm()) + 1e-6


@pytest.mark.parametrize("name", RELEASES)
def test_noise_that_was_judged_once_is_a_number_and_changes_nothing(name):
    sent = heavy_tailed(2)
    treatment = Treatment(updates=(*RELEASES[name].treatment.updates, Act(clip=0.5)))
    heard = treatment.heard(sent, SIZES[0])
    assert all(isinstance(act.noise, float) for act in heard.updates)
    squares = [part.double().square().sum() for part in parts(heavy_tailed(3))]
    assert heard.stds(sent, SIZES) == treatment.stds(sent, SIZES)
    assert heard.factors(*squares, SIZES, sent) == treatment.factors(*squares, SIZES, sent)
    assert heard.stds(0 * sent, SIZES) == treatment.stds(sent, SIZES)  # it does not look again


def test_every_defence_of_the_menu_says_what_it_does():
    settings = {
        "dp-sgd": {"noise_multiplier": 1.0, "clip": 1.0},
        "ldp-sgd": {"epsilon": 1.0},
        "percentile-gaussian": {"sigma0": 1.0},
        "fedper": {"last": 1},
        "hide-layers": {"first": 1},
        "gaussian-release": {"noise_multiplier": 1.0, "clip": 1.0},
        "dp2-rmsprop": {"interval": 1, "rate": 0.01},
        "replayed-noise": {"sigmas": (1.0,), "clip": 1.0},
    }
    # Whom distributed-dp's sampling takes nobody knows: it says so, and attacks that would have to know refuse it.
    for name, kind in ((name, kind) for name, kind in MENU.items() if name != "distributed-dp"):
        noised = settings.get(name, {"noise_multiplier": 1.0, "clip": 1.0})
        defence = kind(**(noised if set(noised) <= set(kind.__dataclass_fields__) else {}))
        assert not defence.treatment.unknown, name
        acts = {"gradient", "release"} & set(defence.hooks)
        assert bool(acts) == (defence.treatment != Treatment()), name


def test_who_does_not_say_is_unknown_and_so_are_records_drawn_at_random():
    @dataclass(frozen=True)
    class Halves(Defence):
        def release(self, update, turn):
            return update.with_delta(update.delta.vector / 2)

    assert Halves().treatment.unknown == ("Halves",)
    assert Stack((GaussianNoise(0.1), Halves())).treatment.unknown == ("Halves",)
    assert DpSgd(1.0, 1.0, rate=0.1).treatment.unknown
    assert Stack().treatment == Treatment()


def test_acts_follow_each_other():
    """Noise, then a clip that meets it: |u|^2 + d std^2 is what it sees, and it scales the noise too."""
    stack = Stack((GaussianNoise(0.5), GaussianRelease(0.1, 2.0))).treatment
    assert [act.clip for act in stack.updates] == [math.inf, 2.0]
    seen = torch.zeros(110)
    square = torch.tensor(9.0, dtype=torch.float64)
    both = stack.factors(square, torch.zeros_like(square), (100, 10), seen)
    assert float(both[0]) == pytest.approx(2 / math.sqrt(9 + 110 * 0.25))
    inner = 2 / math.sqrt(110 * 0.25)
    assert stack.stds(seen, (100, 10)) == pytest.approx([math.hypot(0.5 * inner, 0.2)] * 2)
    assert stack.quiet.stds(seen, (100, 10)) == (0.0, 0.0)
    assert float(Act(scale=3.0).factor(square, 1)) == 3.0
