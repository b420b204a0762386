"""A game over several rounds at once, for releases that do not simply add noise, by a rule learned from views.

Features of each round: the coordinate along the canary, its square, and the logarithm of the length of the rest. A
linear discriminant of them, fitted to pilot sessions, notices means and sizes and what memory makes of them later on;
fresh sessions judge it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from leakline.attacks.audit.law import FloatArray
from leakline.attacks.audit.reach import Canary
from leakline.attacks.audit.session import Session

PILOT, JUDGES = 150, 600
"""Sessions of each world that a rule is fitted to, and that judge it."""


def play(session: Session, canary: Canary, first: int) -> tuple[FloatArray, FloatArray]:
    """Scores that the learned rule gives to fresh sessions of both worlds; ``first`` numbers their seeds."""
    seeds = iter(range(first, first + 2 * (PILOT + JUDGES)))
    inputs = (canary.zero, canary.one)
    pilots = [torch.stack([session.see(x, next(seeds)) for _ in range(PILOT)]) for x in inputs]
    rule = _Rule(canary, *pilots)
    zero, one = (np.concatenate([rule(session.see(x, next(seeds))[None]) for _ in range(JUDGES)]) for x in inputs)
    return zero, one


class _Rule:
    """A linear discriminant; the higher a score, the more it says world 1."""

    def __init__(self, canary: Canary, zero: Tensor, one: Tensor) -> None:
        self.direction = _direction(canary, zero, one)
        both = [self._features(views) for views in (zero, one)]
        self.centre = np.concatenate(both).mean(axis=0)
        self.scale = np.maximum(np.concatenate(both).std(axis=0), 1e-12)
        a, b = ((f - self.centre) / self.scale for f in both)
        within = (np.cov(a.T) + np.cov(b.T)) / 2
        self.weights = np.linalg.solve(within + 1e-3 * np.eye(len(within)), b.mean(axis=0) - a.mean(axis=0))

    def __call__(self, views: Tensor) -> FloatArray:
        given = (self._features(views) - self.centre) / self.scale
        return np.asarray(given @ self.weights)

    def _features(self, views: Tensor) -> FloatArray:
        x = views.double()
        along = (x * self.direction).sum(dim=2)
        rest = torch.linalg.vector_norm(x - along[..., None] * self.direction, dim=2).clamp_min(1e-300)
        return torch.cat([along, along**2, rest.log()], dim=1).numpy()


def _direction(canary: Canary, zero: Tensor, one: Tensor) -> Tensor:
    """Along the canary where views are laid out like it, else along the difference of the pilots' means."""
    rows = torch.zeros(one.shape[1:], dtype=torch.float64)
    sent = canary.one.double()
    if sent.shape[0] == rows.shape[0] and sent.shape[1] <= rows.shape[1]:
        rows[:, : sent.shape[1]] = sent
    else:
        rows = (one.double().mean(dim=0)) - zero.double().mean(dim=0)
    return torch.nn.functional.normalize(rows, dim=1, eps=1e-300)
