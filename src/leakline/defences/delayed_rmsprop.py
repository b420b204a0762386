"""DP2-RMSProp: updates are preconditioned before they are clipped, by a preconditioner that lags behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakline.defences.base import Defence, Terms
from leakline.defences.global_dp import parameters
from leakline.messages import Receipt, Turn, Update
from leakline.privacy import NoClaim
from leakline.weights import Weights


@dataclass(frozen=True)
class DelayedRmsProp(Defence):
    """Delayed preconditioning around a defence that clips and noises (Li et al. 2023, arXiv:2212.00309, Alg. 1).

    rounds 0 .. s-1     plain             w <- w + m         m = noised mean of clip_C(delta_i)
                                          G <- G + m
    end of round s-1    learn             A <- gamma A + (1 - gamma) (G / s)^2,   G <- 0
    rounds s .. 2s-1    preconditioned    w <- w + rate m    m = noised mean of clip_C(delta_i / (sqrt(A) + floor))

    and again from round 2s.        s = interval, A = second moment, floor = the paper's epsilon

    It adds no noise: put it *before* global-dp, adaptive-clip or intermediaries in the stack, and it divides before
    they clip and learns from what they have noised, so their promise stands. The preconditioned mean is itself the
    step; it is not multiplied back. Constants are those of paper 004's released code (the original's interval is
    100); like it, A starts as (G / s)^2, not as (1 - gamma) of it. One clip bound serves both phases (the original
    has two), and the server's own learning rate multiplies both. Buffers pass untouched.
    """

    interval: int = 3
    gamma: float = 0.9
    floor: float = 1e-7
    rate: float = 1e-4

    def __post_init__(self) -> None:
        if self.interval < 1:
            raise ValueError(f"interval must be at least 1: {self.interval}")
        if not 0 <= self.gamma < 1:
            raise ValueError(f"gamma must lie in [0, 1): {self.gamma}")
        if not self.floor > 0 or not self.rate > 0:
            raise ValueError(f"floor and rate must be positive: {self.floor}, {self.rate}")

    def admit(self, updates: Iterator[Update], turn: Turn) -> Iterator[Update]:
        """Divide by the square root of the second moment, in its rounds."""
        turn.facts["preconditioned"] = float(self._preconditioned(turn))  # read by whoever measures updates behind it
        if not self._preconditioned(turn):
            yield from updates
            return
        factor: Tensor = 1 / (turn.memory["second"].sqrt() + self.floor)
        for update in updates:
            size = len(factor)
            vector = update.delta.vector
            yield update.with_delta(torch.cat([vector[:size] * factor, vector[size:]]))

    def publish(self, change: Weights, cohort: Sequence[Receipt], turn: Turn) -> Weights:
        """Take a preconditioned step at its own rate, or learn from a plain one."""
        size = parameters(change.layout)
        if self._preconditioned(turn):
            return change.like(torch.cat([change.vector[:size] * self.rate, change.vector[size:]]))
        if (turn.round // self.interval) % 2 == 0:
            self._learn(change.vector[:size], turn)
        return change

    def _preconditioned(self, turn: Turn) -> bool:
        return (turn.round // self.interval) % 2 == 1 and "second" in turn.memory

    def _learn(self, mean: Tensor, turn: Turn) -> None:
        memory = turn.memory
        memory["sum"] = memory.get("sum", torch.zeros_like(mean)) + mean
        memory["count"] = memory.get("count", 0) + 1
        if turn.round % self.interval < self.interval - 1:
            return
        square = (memory.pop("sum") / memory.pop("count")).square()
        memory["second"] = self.gamma * memory["second"] + (1 - self.gamma) * square if "second" in memory else square

    def claim(self, federation: Terms, facts: Sequence[Mapping[str, float]] = ()) -> NoClaim:
        """None of its own: it adds no noise. It leaves alone what a defence behind it promises."""
        return NoClaim(
            "it rescales updates and adds no noise", "put global-dp or intermediaries behind it: their promise stands"
        )
