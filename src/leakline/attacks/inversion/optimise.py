"""Two minimisers over one flat vector, whose state is tensors and numbers, so that a search can stop and go on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

Evaluate = Callable[[Tensor], tuple[float, Tensor]]
"""A value and its gradient at a point."""


@dataclass
class Lbfgs:
    """Limited-memory BFGS (Liu and Nocedal 1989) with backtracking; each step lowers the value or ends the search."""

    memory: int = 30
    moves: list[Tensor] = field(default_factory=list)
    turns: list[Tensor] = field(default_factory=list)

    def step(self, point: Tensor, value: float, slope: Tensor, evaluate: Evaluate) -> tuple[Tensor, float, Tensor, int]:
        """The next point, its value and gradient, and how many evaluations it took; the same point when stuck."""
        used = 0
        for _ in range(2):
            way = -self._times_inverse_hessian(slope)
            along = float(way @ slope)
            if not along < 0:
                self.forget()
                way, along = -slope, -float(slope @ slope)
            pace = 1.0 if self.moves else min(1.0, 1.0 / max(float(slope.abs().sum()), 1e-30))
            for _ in range(12):
                there = point + pace * way
                after, bend = evaluate(there)
                used += 1
                if math.isfinite(after) and after <= value + 1e-4 * pace * along:
                    self._learn(there - point, bend - slope)
                    return there, after, bend, used
                # The parabola through both values and the first slope, kept between a tenth and a half.
                lowest = -along * pace / (2 * ((after - value) / pace - along)) if math.isfinite(after) else 0.1 * pace
                pace = min(max(lowest, 0.1 * pace), 0.5 * pace)
            if not self.moves:
                break
            self.forget()
        return point, value, slope, used

    def forget(self) -> None:
        """Start again from steepest descent: the function has changed."""
        self.moves.clear()
        self.turns.clear()

    def _learn(self, move: Tensor, turn: Tensor) -> None:
        if float(move @ turn) > 1e-10 * float(move.norm() * turn.norm()):
            self.moves.append(move)
            self.turns.append(turn)
            del self.moves[: -self.memory], self.turns[: -self.memory]

    def _times_inverse_hessian(self, slope: Tensor) -> Tensor:
        q, shares = slope.clone(), []
        for move, turn in zip(reversed(self.moves), reversed(self.turns), strict=True):
            share = float(move @ q) / float(move @ turn)
            shares.append(share)
            q -= share * turn
        if self.moves:
            q *= float(self.moves[-1] @ self.turns[-1]) / float(self.turns[-1] @ self.turns[-1])
        for move, turn, share in zip(self.moves, self.turns, reversed(shares), strict=True):
            q += (share - float(turn @ q) / float(move @ turn)) * move
        return q

    def tensors(self) -> dict[str, Tensor]:
        """The state, to be saved."""
        if not self.moves:
            return {}
        return {"moves": torch.stack(self.moves), "turns": torch.stack(self.turns)}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go on from a saved state."""
        self.moves, self.turns = ([*tensors[n].clone()] if n in tensors else [] for n in ("moves", "turns"))


@dataclass
class Adam:
    """Adam (Kingma and Ba 2015) under a learning rate that warms up linearly and falls to zero along a cosine.

    ``signed`` uses the gradient's sign, as Geiping et al. do.
    """

    rate: float
    iterations: int
    warm_up: int = 0
    signed: bool = False
    count: int = 0
    first: Tensor | None = None
    second: Tensor | None = None

    def step(self, point: Tensor, value: float, slope: Tensor, evaluate: Evaluate) -> tuple[Tensor, float, Tensor, int]:
        """The next point, its value and gradient, and how many evaluations it took."""
        there = self.moved(point, slope)
        after, bend = evaluate(there)
        return there, after, bend, 1

    def moved(self, point: Tensor, slope: Tensor) -> Tensor:
        """The next point."""
        way = slope.sign() if self.signed else slope
        self.count += 1
        self.first = 0.9 * (torch.zeros_like(way) if self.first is None else self.first) + 0.1 * way
        self.second = 0.999 * (torch.zeros_like(way) if self.second is None else self.second) + 0.001 * way.square()
        mean, square = self.first / (1 - 0.9**self.count), self.second / (1 - 0.999**self.count)
        return point - self.pace() * mean / (square.sqrt() + 1e-8)

    def pace(self) -> float:
        """The learning rate of the present step."""
        rising = min(1.0, self.count / self.warm_up) if self.warm_up else 1.0
        return self.rate * rising * 0.5 * (1 + math.cos(math.pi * min(1.0, (self.count - 1) / self.iterations)))

    def forget(self) -> None:
        """Nothing is forgotten between levels: moments adapt by themselves."""

    def tensors(self) -> dict[str, Tensor]:
        """The state, to be saved."""
        if self.first is None or self.second is None:
            return {}
        return {"first": self.first, "second": self.second, "count": torch.tensor(self.count)}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go on from a saved state."""
        self.first, self.second = tensors.get("first"), tensors.get("second")
        self.count = int(tensors["count"]) if "count" in tensors else 0
