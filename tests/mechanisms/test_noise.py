"""Gaussian noise on a grid."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from leakline.mechanisms import add_gaussian, lattice
from leakline.randomness import SecretNoise, SeededNoise, Stream

N = 200_000


def sources():
    return {"secret": SecretNoise(), "seeded": SeededNoise(Stream(0, 0, "server", "test"))}


@pytest.mark.parametrize("source", ["secret", "seeded"])
@pytest.mark.parametrize("std", [1e-4, 0.3, 50.0])
def test_the_noise_has_the_promised_scale_and_not_two_thirds_or_three_halves_of_it(source, std):
    change = torch.linspace(-1, 1, N) * std
    noise = (add_gaussian(change, std, sources()[source]).double() - change.double()).numpy()
    # KS at N = 200 000, false-alarm rate 1e-4 per test.
    assert stats.kstest(noise, "norm", args=(0, std)).pvalue > 1e-4
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(noise, "norm", args=(0, std * wrong)).pvalue < 1e-12


def low_bits(release: torch.Tensor) -> np.ndarray:
    """The two lowest mantissa bits of the values in [1/4, 1/2), where float32 noise on 0 has bits to spare."""
    values = release.numpy()
    values = values[(values >= 0.25) & (values < 0.5)]
    return np.bincount(values.view(np.uint32) & 3, minlength=4) / len(values)


def test_plain_float32_noise_betrays_the_input_by_its_low_bits():
    g = torch.Generator().manual_seed(0)
    zero, one = (low_bits(f + torch.randn(N, generator=g)) for f in (0.0, 1.0))
    assert np.abs(zero - one).sum() / 2 > 0.3  # the attack works where nothing is done against it


@pytest.mark.parametrize("batch", [1000, N])
def test_on_the_grid_the_low_bits_tell_nothing(batch):
    noise = SecretNoise()

    def release(f):
        parts = [add_gaussian(torch.full((batch,), f), 1.0, noise) for _ in range(N // batch)]
        return low_bits(torch.cat(parts))

    zero, one = release(0.0), release(1.0)
    # About 18 500 and 16 400 values fall into the window. A total variation of 0.03 over four equally likely cells is a
    # chi-square of at least 31 with 3 degrees of freedom: false-alarm rate below 1e-6.
    assert np.abs(zero - one).sum() / 2 < 0.03


def test_every_released_value_lies_on_the_grid():
    std, size = 0.7, 500
    release = add_gaussian(torch.rand(size), std, SecretNoise()).double() / lattice(std, size)
    assert torch.equal(release, release.round())


@pytest.mark.parametrize("std", [1e-6, 1.0, 1e3])
@pytest.mark.parametrize("size", [1, 100, 6_500_000])
def test_the_grid_moves_the_input_by_less_than_a_millionth_of_the_noise(std, size):
    grid = lattice(std, size)
    assert math.log2(grid).is_integer()
    assert grid * math.sqrt(size) / 2 <= 0.5e-6 * std


def test_no_noise_is_the_identity():
    change = torch.rand(10)
    assert torch.equal(add_gaussian(change, 0.0, SecretNoise()), change)


@pytest.mark.parametrize("source", ["secret", "seeded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_input_is_not_written_to_and_the_type_is_kept(source, dtype):
    change = torch.rand(100, dtype=dtype)
    kept = change.clone()
    release = add_gaussian(change, 1.0, sources()[source])
    assert torch.equal(change, kept)
    assert release.dtype == dtype
    assert not torch.equal(release, change)


@pytest.mark.parametrize("std", [-1.0, float("nan"), float("inf")])
def test_a_standard_deviation_must_be_finite_and_not_negative(std):
    with pytest.raises(ValueError, match="standard deviation"):
        add_gaussian(torch.zeros(1), std, SecretNoise())
