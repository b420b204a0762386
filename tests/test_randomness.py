"""Streams by address, and noise that nobody can draw again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from leakline.messages import Turn
from leakline.randomness import SecretNoise, SeededNoise, Stream

N = 200_000
ALARM = 1e-4  # false-alarm rate of each statistical test on secret noise, which cannot be seeded

address = st.builds(
    Stream, st.integers(0, 2**40), st.integers(-3, 500), st.text("ab|/-1", max_size=5), st.text("ab|/-1", max_size=5)
)


@given(address)
def test_the_same_address_gives_the_same_draws(stream):
    again = replace(stream)
    assert stream.integer() == again.integer()
    assert 0 <= stream.integer() < 2**63
    assert np.array_equal(stream.numpy().random(3), again.numpy().random(3))
    assert torch.equal(torch.rand(3, generator=stream.torch()), torch.rand(3, generator=again.torch()))


@given(address, address)
def test_any_difference_in_the_address_gives_other_draws(one, other):
    assert (one == other) == (one.integer() == other.integer())


def test_neighbouring_addresses_are_not_correlated():
    # 5000 draws from each of 20 neighbours: |r| stays below 5 / sqrt(5000), false-alarm rate 190 * 6e-7 = 1e-4.
    draws = np.stack([Stream(0, r, "a", "train").numpy().normal(size=5000) for r in range(20)])
    off = np.corrcoef(draws)[~np.eye(20, dtype=bool)]
    assert np.abs(off).max() < 5 / np.sqrt(5000)


@pytest.mark.parametrize("noise", [SecretNoise(), SeededNoise(Stream(0, 0, "a", "noise"))], ids=["secret", "seeded"])
def test_noise_is_standard_normal(noise):
    drawn = noise.normal(N).numpy()
    assert drawn.dtype == np.float64
    assert stats.kstest(drawn, "norm").pvalue > ALARM
    # (N - 1) s^2 is chi-square with N - 1 degrees of freedom: +-1.23 % at this alarm rate, so a scale that is wrong
    # by 1 % (2 % in variance) falls outside, as the next test shows.
    low, high = stats.chi2.ppf([ALARM / 2, 1 - ALARM / 2], N - 1)
    assert low < drawn.var(ddof=1) * (N - 1) < high
    assert stats.kstest(noise.uniform(N).numpy(), "uniform").pvalue > ALARM


def test_the_variance_test_finds_an_error_of_one_per_cent():
    drawn = np.random.default_rng(0).normal(size=N) * 1.01
    p = 2 * stats.chi2.sf((N - 1) * drawn.var(ddof=1), N - 1)
    assert p < 1e-6


def test_secret_noise_is_never_drawn_twice():
    one, other = SecretNoise(), SecretNoise()
    draws = [one.normal(64), one.normal(64), other.normal(64), other.normal(64)]
    for i, a in enumerate(draws):
        for b in draws[i + 1 :]:
            assert not torch.isin(a, b).any()


def test_secret_noise_ignores_every_seed():
    def draw():
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        return SecretNoise().normal(32)

    assert not torch.equal(draw(), draw())


@pytest.mark.parametrize("secret", [True, False])
def test_a_turn_s_noise_is_not_used_again_in_another_round_party_or_place(secret):
    turn = Turn(round=0, party="server", memory={}, seed=0, purpose="X", secret=secret)
    others = [turn, replace(turn, round=1), replace(turn, party="a"), replace(turn, purpose="Y")]
    draws = [t.noise().normal(256) for t in others] + [turn.noise("bits").normal(256)]
    for i, a in enumerate(draws):
        for b in draws[i + 1 :]:
            assert not torch.isin(a, b).any()
            # independent normals: |r| < 0.31 with false-alarm rate 1e-6 per pair
            assert abs(np.corrcoef(a, b)[0, 1]) < 0.31
    assert turn.noise().private is secret


def test_seeded_noise_can_be_drawn_again():
    turn = Turn(round=3, party="server", memory={}, seed=5, purpose="X", secret=False)
    assert torch.equal(turn.noise().normal(100), turn.noise().normal(100))


@pytest.mark.parametrize("size", [0, 1, 2, 7])
def test_any_number_of_values_can_be_drawn(size):
    assert SecretNoise().normal(size).shape == (size,)
    assert SecretNoise().uniform(size).shape == (size,)
