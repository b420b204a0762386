"""A game for additive noise whose law is not the claimed one: its own likelihood ratio, learned from noise alone.

Where the law check sees noise that is not normal, a Gaussian's distinguisher may still be content: Laplace noise of
the same standard deviation hides a spread-out change less well, noise on a lattice hides nothing finer than its
steps. With p the law of noise in units of its size s (the same for all values), and d what a canary moves,

    score(x) = sum over rounds and values of log p((x - d) / s) - log p(x / s)

is the best rule there is if values are independent, and a valid one if they are not: fresh sessions judge it.
"""

from __future__ import annotations

import numpy as np
import torch

from leakline.attacks.audit.law import FloatArray
from leakline.attacks.audit.reach import Canary, Noise, shift
from leakline.attacks.audit.session import Session

EDGES = np.linspace(-8.0, 8.0, 801)
"""Cells of the learned law: a fiftieth of a standard deviation, so that a lattice shows."""
JUDGES = 1000
"""Fresh sessions of each world."""


def scores(session: Session, canary: Canary, noise: Noise, first: int) -> tuple[FloatArray, FloatArray]:
    """Scores of fresh sessions of both worlds, in which nobody else sends anything; ``first`` numbers their seeds."""
    moved = shift(session, canary, quiet=True)
    d = np.where(np.array(moved.exact)[:, None], moved.change, 0.0)
    size = np.maximum(noise.scale, 1e-300)
    live = noise.scale > 1e-9 * float(noise.scale.max())
    counts = np.histogram((noise.values / size)[:, live], EDGES)[0] + 0.5
    law = np.log(counts / counts.sum())

    def log_p(x: FloatArray) -> FloatArray:
        cell = np.clip(np.searchsorted(EDGES, x / size) - 1, 0, len(law) - 1)
        return np.asarray(law[cell] * live)

    def score(x: FloatArray) -> float:
        return float((log_p(x - d) - log_p(x)).sum())

    def seen(sent: torch.Tensor | None, begin: int) -> FloatArray:
        views = (session.see(sent, begin + i, quiet=True).double().numpy() for i in range(JUDGES))
        return np.array([score(view) for view in views])

    return seen(canary.zero, first), seen(canary.one, first + JUDGES)


def bare_sessions(session: Session, canary: Canary, noise: Noise, first: int) -> tuple[int, int] | None:
    """In how many of how many sessions a release had no noise and showed the canary; None: in none.

    Continuous noise never repeats itself: a row that two sessions share was not noised. That alone may be a
    release that says nothing; it tells where, with the canary there, sessions share another row.
    """
    for k in range(noise.values.shape[1]):
        if (plain := _repeated(noise.values[:, k])) is None:
            continue
        views = [session.see(canary.one, first + i, quiet=True)[k].double().numpy() for i in range(JUDGES)]
        told = _repeated(np.stack(views))
        if told is not None and np.abs(told[0] - plain[0]).max() > 1e-6 * float(noise.scale.max()):
            return told[1], JUDGES
    return None


def _repeated(rows: FloatArray) -> tuple[FloatArray, int] | None:
    """The row that occurs most often and how often, if more than once and not always."""
    values, counts = np.unique(rows, axis=0, return_counts=True)
    most = int(counts.argmax())
    return (values[most], int(counts[most])) if 1 < counts[most] < len(rows) else None
