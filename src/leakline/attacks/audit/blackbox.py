"""Black-box trials of LDP-SGD: the loss after a server step along a random report, for many reports at once.

A report is a uniform direction v or its opposite, so one v with the losses on both of its sides answers a trial in each
world, of every adversary that shares the model: half the noise of one draw per trial, and nothing approximated.
Trials of one world stay independent; those of two worlds or two adversaries share v, which no bound minds (each
rate has its own limit, and limits are joined by Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from leakline.attacks.audit.stacks import Losses
from leakline.mechanisms.sphere import agreement

FloatArray = npt.NDArray[np.float64]
CHUNK = 50
"""Directions per block: small enough to stay in the cache."""


@dataclass(frozen=True)
class Sides:
    """What a block of directions v came to.

    along    <g, v> for each gradient asked for: one row each
    plus     losses after a report +v (the model moves by -step v): one row per loss function
    minus    losses after a report -v
    signs    sum over parameters of sgn(v_i)
    """

    along: FloatArray
    plus: FloatArray
    minus: FloatArray
    signs: FloatArray

    def rows(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """All four arrays; directions lie along the last axis."""
        return self.along, self.plus, self.minus, self.signs

    def after(self, row: int, side: FloatArray) -> FloatArray:
        """Losses of one function after reports ``side`` v, side being +1 or -1."""
        return np.asarray(np.where(side > 0, self.plus[row], self.minus[row]))


def play(
    starts: Sequence[Tensor], losses: Sequence[tuple[int, Losses]], gradients: Tensor, trials: int, step: float,
    generator: torch.Generator, clients: int = 1,
) -> Sides:  # fmt: skip
    """Draw ``trials`` directions and evaluate each loss on both sides of them.

    ``starts`` are model vectors, ``losses`` pairs of (which start, function), ``gradients`` rows g. The model moves
    by step / n times the sum of n reports. The other n - 1 are drawn together as N(0, (n - 1) / d I), which in
    thousands of dimensions they are to one part in d, whatever their inputs (their common lean is the same in both
    worlds). Two threads share the work, each with a stream of its own, so results do not depend on the machine.
    """
    halves = [trials - trials // 2, trials // 2]
    seeds = torch.randint(2**62, (2,), generator=generator).tolist()

    def half(count: int, seed: int) -> Sides:
        return one_thread(starts, losses, gradients, count, step, torch.Generator().manual_seed(seed), clients)

    with ThreadPoolExecutor(2) as pool:
        a, b = pool.map(half, halves, seeds)
    return Sides(*(np.concatenate(both, axis=-1) for both in zip(a.rows(), b.rows(), strict=True)))


def one_thread(
    starts: Sequence[Tensor], losses: Sequence[tuple[int, Losses]], gradients: Tensor, trials: int, step: float,
    generator: torch.Generator, clients: int,
) -> Sides:  # fmt: skip
    """`play` without the second thread."""
    size = starts[0].numel()
    along: list[Tensor] = []
    plus: list[Tensor] = []
    minus: list[Tensor] = []
    signs: list[Tensor] = []
    if trials == 0:
        none = np.zeros((len(losses), 0))
        return Sides(np.zeros((len(gradients), 0)), none, none, np.zeros(0))
    drawn = torch.empty(CHUNK, size)
    for at in range(0, trials, CHUNK):
        v = drawn[: min(CHUNK, trials - at)].normal_(generator=generator)
        length = torch.linalg.vector_norm(v, dim=1)
        along.append((v @ gradients.T).T / length)
        signs.append((2 * torch.count_nonzero(v > 0, dim=1) - size).double()[None])
        k = step / clients / length
        if clients > 1:
            # rest is as likely as -rest, so the side -v may be played with -rest: both sides of one vector again.
            rest = torch.randn(v.shape, generator=generator).mul_(math.sqrt((clients - 1) / size) * step / clients)
            v, k = rest.addcmul_(v, k[:, None]), torch.ones_like(k)
        found = [f.sides(starts[which], v, k) for which, f in losses]
        plus.append(torch.stack([a for a, _ in found]) if found else v.new_zeros(0, len(v)))
        minus.append(torch.stack([b for _, b in found]) if found else v.new_zeros(0, len(v)))
    return Sides(_joined(along), _joined(plus), _joined(minus), _joined(signs)[0])


def _joined(parts: list[Tensor]) -> FloatArray:
    return np.asarray(torch.cat(parts, dim=1).double().numpy())


def report_sides(along: FloatArray, ratio: float, epsilon: float, rng: np.random.Generator) -> FloatArray:
    """Which side of v each report of g lies on (+1 or -1), given <g, v>."""
    keep = rng.random(len(along)) < agreement(ratio, epsilon)
    return np.where((along >= 0) == keep, 1.0, -1.0)
