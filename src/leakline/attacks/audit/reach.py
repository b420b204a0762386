"""How far a neighbour moves what is seen, in units of the noise that is really there.

Two sessions under one seed that differ in one client's input differ by that input's share alone, where noise is
added and does not depend on it: d = v1 - v0 is then known exactly, without statistics. With noise of covariance S
the release has

    mu >= w d / sd(w noise)        for every direction w; w = d and w = S^-1 d are taken, S from half of the noise

and the only uncertain number is a standard deviation, for which there is an exact (chi-square) upper limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from leakline.attacks.audit.law import LEVEL, FloatArray
from leakline.attacks.audit.session import Session


@dataclass(frozen=True)
class Canary:
    """What the target sends in both worlds, a row for each round; None: it is not there at all."""

    name: str
    zero: Tensor | None
    one: Tensor


@dataclass(frozen=True)
class Reach:
    """A lower bound on mu of the rounds named, and how it was had."""

    low: float
    point: float
    rounds: int
    how: str

    @property
    def of_one(self) -> float:
        """For one release: sqrt(rounds) of them compose."""
        return self.low / math.sqrt(self.rounds)

    @property
    def blur(self) -> float:
        """By how much the uncertain size of the noise lowers the bound."""
        return self.point / self.low if 0 < self.low < math.inf else 1.0


@dataclass(frozen=True)
class Shift:
    """The difference between two worlds, (rounds, values), and in which rounds it does not depend on the noise."""

    change: FloatArray
    exact: tuple[bool, ...]


def shift(session: Session, canary: Canary, seeds: tuple[int, ...] = (1, 2, 3), quiet: bool = False) -> Shift:
    """What the canary moves; exact where it is the same under every seed. ``quiet``: nobody else sends anything."""

    def seen(sent: Tensor | None, seed: int) -> FloatArray:
        return np.asarray(session.see(sent, seed, quiet=quiet).double().numpy())

    rows = np.stack([seen(canary.one, s) - seen(canary.zero, s) for s in seeds])
    apart = np.abs(rows - rows[:1]).max(axis=(0, 2))
    size = np.abs(rows).max(axis=(0, 2))
    return Shift(rows.mean(axis=0), tuple((apart <= 1e-3 * size + 1e-12).tolist()))


class Noise:
    """Noise alone, of many sessions: (sessions, rounds, values), and what is asked of it again and again."""

    def __init__(self, values: FloatArray, alike: bool) -> None:
        self.values = values
        self.alike = alike  # whether the law check found it independent, so that values may be pooled
        self.scale = np.sqrt((values**2).mean(axis=0))  # (rounds, values)
        self.half = len(values) // 2

    @cached_property
    def inverse(self) -> FloatArray:
        """Inverse covariance of all rounds together, from the first half of the sessions; a little ridge."""
        flat = self.values[: self.half].reshape(self.half, -1)
        covariance = flat.T @ flat / self.half
        ridge = 1e-6 * float(np.trace(covariance)) / len(covariance)
        return np.asarray(np.linalg.inv(covariance + max(ridge, 1e-300) * np.eye(len(covariance))))

    def weakest(self) -> FloatArray:
        """The direction with least noise over all rounds, (rounds, values), by the first half of the sessions."""
        flat = self.values[: self.half].reshape(self.half, -1)
        vectors = np.linalg.eigh(flat.T @ flat / self.half)[1]
        return np.asarray(vectors[:, 0].reshape(self.values.shape[1:]))


def reach(moved: Shift, noise: Noise) -> Reach:
    """The strongest bound, relative to the number of rounds that it is about."""
    found = [Reach(0.0, 0.0, 1, "nothing moved")]
    change = np.where(np.array(moved.exact)[:, None], moved.change, 0.0)
    if not np.abs(change).max() > 0:
        return found[0]
    small = 1e-6 * np.abs(change).max()
    bare = (np.abs(change) > small) & (noise.scale <= 1e-9 * max(float(noise.scale.max()), 1e-300))
    if bare.any():
        k, i = (int(x) for x in np.argwhere(bare)[0])
        return Reach(math.inf, math.inf, 1, f"value {i} of round {k} moves and has no noise")
    for k in range(len(change)):
        row = np.zeros_like(change)
        row[k] = change[k]
        found.append(_along(row, row, noise, 1, f"round {k}"))
        if noise.alike:
            found.append(_pooled(row, noise, 1, f"round {k}, pooled noise"))
    if all(moved.exact) and len(change) > 1:
        found.append(_along(change, change, noise, len(change), "all rounds"))
    if all(moved.exact):
        white = (noise.inverse @ change.ravel()).reshape(change.shape)
        found.append(_along(white, change, noise, len(change), "all rounds, whitened"))
    return max(found, key=lambda r: r.of_one)


def _along(w: FloatArray, change: FloatArray, noise: Noise, rounds: int, how: str) -> Reach:
    """Bound along one direction, by the second half of the sessions: the first may have chosen it."""
    seen = noise.values[noise.half :].reshape(len(noise.values) - noise.half, -1) @ w.ravel()
    return _ratio(float((w * change).sum()), float((seen**2).sum()), len(seen), rounds, how)


def _pooled(change: FloatArray, noise: Noise, rounds: int, how: str) -> Reach:
    """Bound with the noise of all values taken as one size, where they do have one size."""
    k = int(np.abs(change).sum(axis=1).argmax())
    x = noise.values[:, k, :]
    level = (x**2).mean(axis=0) / (x**2).mean()
    uneven = float(((level - 1) ** 2).sum()) * len(x) / 2  # chi-square where all values have one size
    if stats.chi2.sf(uneven, x.shape[1] - 1) < 1e-3:
        return Reach(0.0, 0.0, 1, how)
    return _ratio(float(np.linalg.norm(change[k])), float((x**2).sum()), x.size, rounds, how)


def _ratio(moved: float, squares: float, count: int, rounds: int, how: str) -> Reach:
    if moved <= 0:
        return Reach(0.0, 0.0, rounds, how)
    if squares <= 1e-18 * moved**2:
        return Reach(math.inf, math.inf, rounds, how)
    limit = math.sqrt(squares / float(stats.chi2.ppf(LEVEL, count)))
    return Reach(moved / limit, moved / math.sqrt(squares / count), rounds, how)


def sizes(many: bool) -> list[float]:
    """Lengths of canaries: 0.001 to 10,000, in steps of about 1.6, or a few of them."""
    return [float(10 ** (i / 5)) for i in range(-15, 21)] if many else [1.0, 30.0, 1000.0]


def steady(direction: Tensor, length: float, rounds: int) -> Tensor:
    """The same vector in every round."""
    return (direction * (length / max(float(direction.norm()), 1e-12))).expand(rounds, -1).clone()


def rowwise(rows: Tensor, length: float) -> Tensor:
    """A vector of a given length in every round, along the rows."""
    return torch.nn.functional.normalize(rows, dim=1) * length
