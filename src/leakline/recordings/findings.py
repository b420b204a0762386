"""One answer of an audit of recorded rounds, and the chance at which it is wrong."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

Verdict = Literal["broken", "leaks", "holds", "seen", "cannot say"]
ALPHA = 1e-6
"""Chance that a check calls a federation that keeps its claim broken, over all rounds and updates together."""
SKETCH = 512
"""So many values of a vector are held to find the same noise again: rounds may be many, and vectors long."""


@dataclass(frozen=True)
class Finding:
    """One answer: what was looked at, what it came to, the numbers behind it, and which rounds contradict a claim."""

    check: str
    verdict: Verdict
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    rounds: tuple[int, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "rounds": list(self.rounds)}


def rounds_in_words(indices: Iterable[int], most: int = 8) -> str:
    """Rounds by number, the first few of them."""
    held = sorted(set(indices))
    shown = ", ".join(map(str, held[:most])) + (f" and {len(held) - most} more" if len(held) > most else "")
    return f"round{'s' if len(held) > 1 else ''} {shown}"


def sketched(vector: Tensor) -> Tensor:
    """Values at fixed places all over a vector."""
    if len(vector) <= SKETCH:
        return vector.float().clone()
    places = torch.linspace(0, len(vector) - 1, SKETCH).long()
    return vector[places].float()


def same_noise(sketches: Sequence[Tensor], signal: float = 0.0) -> tuple[int, int] | None:
    """The first two of vectors of unit noise that share it, or None.

    Independent standard normals n, m of K values, on top of anything of length up to L = ``signal``, have

        |<n, m>| <= L^2 + 2 L sqrt(x) + 2 sqrt(K x) + x        but with chance 4 exp(-x)

    (Laurent and Massart 2000 for chi-squares; <n, m> is half the difference of two). x is chosen for `ALPHA` over all
    pairs. The same noise has <n, n> about K.
    """
    if len(sketches) < 2:
        return None
    table = torch.stack(list(sketches))
    x = math.log(4 * len(table) * (len(table) - 1) / 2 / ALPHA)
    most = signal**2 + 2 * signal * math.sqrt(x) + 2 * math.sqrt(table.shape[1] * x) + x
    for start in range(0, len(table), 1000):
        products = table[start : start + 1000] @ table.T
        for row, column in (products.abs() > most).nonzero().tolist():
            if column > row + start:
                return row + start, column
    return None
