"""LDP-SGD's randomiser against its own law: unbiased, zero-safe, and the exact 2-plane sampler equals the naive one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from leakline.mechanisms.sphere import (
    agreement,
    norm_ratio,
    plane_projections,
    printed_scale,
    project_ball,
    report_cosines,
    sphere_report,
    unbiased_scale,
)
from leakline.randomness import SecretNoise, SeededNoise, Stream


def seeded(seed: int) -> SeededNoise:
    return SeededNoise(Stream(seed, 0, "client", "test"))


def naive(x: torch.Tensor, bound: float, epsilon: float, trials: int, seed: int) -> np.ndarray:
    """Algorithm 1 of paper 002 line by line, in NumPy, many times."""
    rng = np.random.default_rng(seed)
    g = x.double().numpy()
    g = g * min(1.0, bound / max(np.linalg.norm(g), 1e-300))
    z = np.where(rng.random((trials, 1)) < 0.5 + np.linalg.norm(g) / (2 * bound), g, -g)
    v = rng.standard_normal((trials, len(g)))
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    side = np.sign((z * v).sum(1))
    keep = rng.random(trials) < math.exp(epsilon) / (1 + math.exp(epsilon))
    return v * (side * np.where(keep, 1, -1))[:, None]


@pytest.mark.parametrize(("size", "trials"), [(3, 15_000), (10, 15_000), (1000, 4_000)])
@pytest.mark.parametrize("ratio", [1.0, 0.4])
def test_the_scaled_report_is_unbiased(size: int, trials: int, ratio: float) -> None:
    x = torch.randn(size, generator=torch.Generator().manual_seed(size))
    x *= ratio / x.norm()
    noise = seeded(size)
    scale = unbiased_scale(size, 1.0, 1.0)
    total, along = torch.zeros(size, dtype=torch.float64), []
    for _ in range(trials):
        report = sphere_report(x, 1.0, 1.0, noise) * scale
        total += report
        along.append(float(report @ x.double()) / ratio)
    # Along x: mean r with the sample's own error. 4.5 standard errors: false alarm 7e-6 per case.
    assert abs(np.mean(along) - ratio) < 4.5 * np.std(along) / math.sqrt(trials)
    # Across x: each coordinate of the mean is centred; the sum of squares is near its expectation.
    rest = total / trials - x.double() / ratio * np.mean(along)
    expected = scale**2 / trials * (size - 1) / size
    assert float(rest @ rest) < expected * (1 + 6 * math.sqrt(2 / max(size - 1, 1)) + 12 / (size - 1))


def test_the_printed_constant_is_short_by_exactly_d() -> None:
    for size in (2, 3, 10, 1000, 10_650):
        printed = (
            math.sqrt(math.pi) / 2
            * math.exp(math.lgamma((size - 1) / 2 + 1) - math.lgamma(size / 2 + 1))
            * (math.exp(2.0) + 1) / (math.exp(2.0) - 1)
        )  # fmt: skip
        assert printed_scale(size, 1.0, 2.0) == pytest.approx(printed, rel=1e-9)
        assert unbiased_scale(size, 1.0, 2.0) / printed == pytest.approx(size, rel=1e-9)


def test_reports_agree_with_their_input_as_often_as_the_law_says() -> None:
    x = torch.tensor([0.3, -0.4, 0.0, 0.0, 0.0])
    noise = seeded(5)
    hits = sum(float(sphere_report(x, 1.0, 2.0, noise) @ x.double()) >= 0 for _ in range(20_000))
    p = float(agreement(0.5, 2.0))
    assert p == pytest.approx((1 + 0.5 * math.tanh(1.0)) / 2)
    assert abs(hits - 20_000 * p) < 4.5 * math.sqrt(20_000 * p * (1 - p))  # false alarm 7e-6


def test_a_zero_vector_is_reported_as_a_uniform_direction() -> None:
    noise = seeded(6)
    reports = torch.stack([sphere_report(torch.zeros(3), 1.0, 4.0, noise) for _ in range(5_000)])
    assert torch.allclose(reports.norm(dim=1), torch.ones(5_000, dtype=torch.float64))
    # A coordinate on the sphere in 3 dimensions is uniform in [-1, 1]; false alarm 1e-4.
    assert stats.kstest(reports[:, 0].numpy(), stats.uniform(-1, 2).cdf).pvalue > 1e-4


@pytest.mark.parametrize(("angle", "ratios"), [(math.pi / 2, (1.0, 1.0)), (0.4, (1.0, 0.3)), (math.pi, (0.7, 0.7))])
def test_the_exact_law_equals_the_naive_sampler(angle: float, ratios: tuple[float, float]) -> None:
    size, trials, epsilon = 200, 20_000, 2.0
    x0, x1 = torch.zeros(size), torch.zeros(size)
    x0[0] = ratios[0]
    x1[0], x1[1] = ratios[1] * math.cos(angle), ratios[1] * math.sin(angle)
    for world, x in enumerate((x0, x1)):
        drawn = naive(x, 1.0, epsilon, trials, 11 + world)
        by_hand = np.stack([drawn @ (v / v.norm()).numpy() for v in (x0, x1)])
        secrets = np.full(trials, world == 1)
        exact = report_cosines(math.cos(angle), ratios, secrets, size, epsilon, np.random.default_rng(21 + world))
        for statistic in (lambda c: c[0], lambda c: c[1], lambda c: c[1] - c[0], lambda c: np.sign(c[0]) * c[1]):
            # 4 statistics x 2 worlds x 3 cases at 1e-5: false alarm below 3e-4 in all, seeds fixed.
            assert stats.ks_2samp(statistic(by_hand), statistic(exact)).pvalue > 1e-5
        agree = ((by_hand[0] >= 0) & (by_hand[1] >= 0)).mean(), ((exact[0] >= 0) & (exact[1] >= 0)).mean()
        assert abs(agree[0] - agree[1]) < 4.5 * math.sqrt(0.5 / trials)


def test_the_exact_law_of_the_module_equals_its_own_sampler_in_small_dimensions() -> None:
    for size in (1, 2, 3):
        plane = plane_projections(size, 20_000, np.random.default_rng(size))
        assert np.all((plane**2).sum(0) <= 1 + 1e-12)
        v = np.random.default_rng(9).standard_normal((20_000, size))
        v /= np.linalg.norm(v, axis=1, keepdims=True)
        assert stats.ks_2samp(v[:, 0], plane[0]).pvalue > 1e-4
    with pytest.raises(ValueError, match="dimension"):
        plane_projections(0, 5, np.random.default_rng(0))


def test_secret_noise_serves_too_and_bad_values_are_refused() -> None:
    report = sphere_report(torch.ones(8), 1.0, 1.0, SecretNoise())
    assert float(report.norm()) == pytest.approx(1.0)
    assert norm_ratio(torch.tensor([3.0, 4.0]), 10.0) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="-1"):
        unbiased_scale(3, 1.0, -1.0)


def test_projection_onto_a_ball() -> None:
    assert torch.allclose(project_ball(torch.tensor([3.0, 4.0]), 1.0), torch.tensor([0.6, 0.8]))
    inside = torch.tensor([0.1, 0.2])
    assert project_ball(inside, 1.0) is inside
