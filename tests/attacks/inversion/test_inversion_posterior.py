"""The posterior under noise, in closed form; what it finds in images is in `test_inversion_noise`."""

from __future__ import annotations

import math

import pytest
import torch

from leakline.attacks.inversion.optimise import Adam
from leakline.attacks.inversion.posterior import around, free_energy, mean

torch.set_num_threads(1)


def linear(values=40, images=6, labels=2, std=0.5):
    """Of y = A z + N(0, std^2): -log p(y | z) and its gradient, A and y."""
    g = torch.Generator().manual_seed(0)
    a = torch.randn(values, images + labels, generator=g) / math.sqrt(values)
    y = a @ torch.randn(images + labels, generator=g) + std * torch.randn(values, generator=g)

    def surprise(z):
        left = a @ z - y
        return float(left.square().sum() / (2 * std**2)), a.T @ left / std**2

    return surprise, a, y


def test_of_a_linear_network_the_posterior_is_the_gaussian_one():
    """Of independent Gaussians the nearest to N(m, L^-1) has its mean, and variances 1 / L_ii (Bishop 2006, 10.1.2).

    Unknown labels have no prior and no spread: a ridge of 0 beside one of 1.
    """
    images, std = 6, 0.5
    surprise, a, y = linear(std=std, images=images)
    precision = a.T @ a / std**2 + torch.diag(torch.tensor([1.0] * images + [0.0] * 2))
    want = torch.linalg.solve(precision, a.T @ y / std**2)
    g = torch.Generator().manual_seed(1)
    point = around(torch.zeros(len(want)), images)
    adam = Adam(0.05, 4000, 50)
    for _ in range(4000):
        *_, slope = free_energy(surprise, point, torch.randn(images, generator=g))
        point = adam.moved(point, slope)
    assert mean(point, images) == pytest.approx(want, abs=0.05)
    assert point[-images:].exp() == pytest.approx(precision.diagonal()[:images].rsqrt(), rel=0.1)


def test_the_free_energy_bounds_the_evidence_and_its_gradient_is_right():
    """Averaged over draws F is -log p(y) and, at its lowest, what parts of the posterior that go together add."""
    images, std = 4, 0.5
    surprise, a, y = linear(std=std, images=images, labels=0)
    covariance = a @ a.T + std**2 * torch.eye(len(y))
    # The surprise leaves out the noise's own normalisation, so the evidence does too.
    evidence = float(y @ torch.linalg.solve(covariance, y) / 2 + torch.logdet(covariance / std**2) / 2)
    precision = a.T @ a / std**2 + torch.eye(images)
    best = torch.linalg.solve(precision, a.T @ y / std**2)
    point = torch.cat([best, -precision.diagonal().log() / 2])
    g = torch.Generator().manual_seed(2)
    draws = torch.randn(4000, images, generator=g)
    energies = torch.tensor([free_energy(surprise, point, draw)[1] for draw in draws])
    gap = float(precision.diagonal().log().sum() - torch.logdet(precision)) / 2  # of independent parts, at their best
    spread = float(energies.std()) / math.sqrt(len(energies))
    assert gap >= 0
    assert float(energies.mean()) == pytest.approx(evidence + gap, abs=5 * spread)  # one false alarm in a million
    draw = draws[0]
    *_, slope = free_energy(surprise, point, draw)
    for i in range(len(point)):
        step = torch.zeros(len(point))
        step[i] = 1e-2
        up, down = (free_energy(surprise, point + sign * step, draw)[1] for sign in (1, -1))
        assert (up - down) / 2e-2 == pytest.approx(float(slope[i]), rel=0.02, abs=0.02)


def test_where_there_is_no_number_a_draw_says_so():
    value, energy, slope = free_energy(lambda z: (math.inf, z), around(torch.zeros(3), 2), torch.zeros(2))
    assert (value, energy) == (math.inf, math.inf)
    assert not slope.any()
