"""From a client's running averages back to the statistics of its batches.

BatchNorm keeps r_{k+1} = (1 - m) r_k + m s_k, s_k the mean or the unbiased variance of step k's batch, m the
momentum (0.1). A server that knows r_0 and sees r_K solves for what lies between:

    (r_K - (1 - m)^K r_0) / (1 - (1 - m)^K) = sum_k w_k s_k,   w_k = m (1 - m)^(K-1-k) / (1 - (1 - m)^K)

a weighted mean of the batches' statistics, exact for every K; for K = 1 it is the batch's own. Paper 001 (equations
3 and 4) and its code invert a single step, (r_K - (1 - m) r_0) / m, whatever K is: ``reading="paper"``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

Inverse = Literal["exact", "paper"]
Moments = tuple[Tensor, Tensor, int]
"""Mean, biased variance, number of values per channel."""


def shares(steps: int, momentum: float, reading: Inverse = "exact") -> list[float]:
    """The weight of each step's statistics in what `inverse` returns; they sum to 1 in the exact reading."""
    total = momentum if reading == "paper" else 1 - (1 - momentum) ** steps
    return [momentum * (1 - momentum) ** (steps - 1 - k) / total for k in range(steps)]


def inverse(before: Tensor, after: Tensor, steps: int, momentum: float, reading: Inverse = "exact") -> Tensor:
    """The weighted mean of the batches' statistics, from the running average before and after ``steps`` steps."""
    if steps < 1 or not 0 < momentum <= 1:
        raise ValueError(f"at least one step and a momentum in (0, 1] are needed: {steps}, {momentum}")
    kept = (1 - momentum) ** (1 if reading == "paper" else steps)
    return (after.double() - kept * before.double()) / (1 - kept)


def biased(variance: Tensor, count: int) -> Tensor:
    """The biased variance from torch's unbiased one; a negative one, possible under noise, becomes zero."""
    return variance.clamp_min(0) * ((count - 1) / count)


def unbiased(variance: Tensor, count: int) -> Tensor:
    """What a running average is fed; one value per channel has no unbiased variance, and torch refuses it too."""
    return variance * (count / (count - 1))


def mixed(moments: Sequence[Moments], weights: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Weighted sums of the steps' means and of their unbiased variances: what `inverse` finds, simulated."""
    mean = sum((w * m for w, (m, _, _) in zip(weights, moments, strict=True)), moments[0][0].new_zeros(()))
    spread = [w * unbiased(v, n) for w, (_, v, n) in zip(weights, moments, strict=True)]
    return mean, sum(spread, moments[0][0].new_zeros(()))


def running(moments: Sequence[Moments], start: tuple[Tensor, Tensor], momentum: float) -> tuple[Tensor, Tensor]:
    """The running mean and variance after these batches."""
    mean, variance = start
    for batch_mean, batch_variance, count in moments:
        mean = (1 - momentum) * mean + momentum * batch_mean
        variance = (1 - momentum) * variance + momentum * unbiased(batch_variance, count)
    return mean, variance
