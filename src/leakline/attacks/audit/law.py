"""The law of the noise itself: what is seen when nobody sends anything, held against what is claimed of it.

No distinguisher is needed. Where a claim has Gaussian events, noise alone must be normal, in every round and every
value, and independent of the noise beside it and before it. Arrays are (sessions, rounds, values).

`LEVEL` is the level of every single test: an audit makes some hundreds of them, and together they raise a false
alarm less often than once in a thousand audits. Where a normal approximation stands for a test's law, `FAR` standard
deviations are asked for, which leaves room for its error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

FloatArray = npt.NDArray[np.float64]

LEVEL = 1e-6
FAR = 7.0
FEWEST = 8
"""Values of a round below which its noise is not compared with its own size."""


@dataclass(frozen=True)
class Departure:
    """How noise departs from its law; ``certain``: no claim of Gaussian noise allows it."""

    text: str
    certain: bool


def departures(noise: FloatArray) -> list[Departure]:
    """What is wrong with noise that should be normal, independent, and of one size in the first round.

    In later rounds its size may follow memory (a clip bound that moves), so a round is there measured in its own size.
    """
    spread = noise.std(axis=0)
    live = spread > 1e-9 * max(float(spread.max()), 1e-300)
    if not live.any():
        return []
    found = _missing(live)
    first = noise[:, 0, live[0]]
    if first.size:
        found += _shape(first / _rms(first, 0), "the first round") + _steady(first / _rms(first, 0))
    rounds = [k for k in range(noise.shape[1]) if live[k].sum() >= FEWEST]
    level = {k: _own_size(noise[:, k, live[k]]) for k in rounds}
    later = [k for k in rounds if k > 0]
    if later:
        found += _later([level[k] for k in later])
    found += _between_values(noise, live)
    found += _between_rounds(noise, live)
    return found


def _rms(x: FloatArray, axis: int) -> FloatArray:
    return np.asarray(np.sqrt((x**2).mean(axis=axis, keepdims=True)))


def _own_size(x: FloatArray) -> FloatArray:
    """Values in units of their own scale, then of their session's size in this round."""
    scaled = x / _rms(x, 0)
    return np.asarray(scaled / np.maximum(_rms(scaled, 1), 1e-300))


def _missing(live: npt.NDArray[np.bool_]) -> list[Departure]:
    bare = [k for k in range(len(live)) if not live[k].any()]
    return [Departure(f"round {k} leaves without noise, other rounds do not", True) for k in bare[:1]]


def _shape(x: FloatArray, where: str) -> list[Departure]:
    """Kolmogorov and Smirnov's test of values of unit variance, and their fourth moment."""
    flat = x.ravel()
    test = stats.kstest(flat, "norm")
    fourth = float((flat**4).mean())
    excess = (fourth - 3) / np.sqrt(96 / len(flat))  # var(z^4) = 96 about a known mean and variance
    if test.pvalue < LEVEL or abs(excess) > FAR:
        return [
            Departure(
                f"the noise of {where} is not normal (fourth moment {fourth:.2f}, not 3; Kolmogorov-Smirnov p = "
                f"{test.pvalue:.1g}, n = {len(flat)})",
                True,
            )
        ]
    return []


def _steady(x: FloatArray) -> list[Departure]:
    """Whether all sessions have noise of one size: squared lengths of D values are chi-square, variance 2 D."""
    values = x.shape[1]
    energy = (x**2).sum(axis=1)
    dispersion = float(((energy - values) ** 2).mean() / (2 * values))
    if (dispersion - 1) / np.sqrt((2 + 12 / values) / len(x)) > FAR and not _correlated(x):
        return [
            Departure(
                f"the size of the noise changes from one first round to the next (dispersion {dispersion:.2f}, not 1)",
                True,
            )
        ]
    return []


def _later(rounds: list[FloatArray]) -> list[Departure]:
    """Squares of D normal values over their sum are Beta(1/2, (D - 1)/2), whatever their size."""
    for x in rounds:
        values = x.shape[1]
        share = (x**2 / values).ravel()
        if stats.kstest(share, stats.beta(0.5, (values - 1) / 2).cdf).pvalue < LEVEL:
            return [Departure("the noise of later rounds is not normal, even in units of its own size", True)]
    return []


def _correlated(x: FloatArray) -> bool:
    if x.shape[1] < 2:
        return False
    apart = np.asarray(np.corrcoef(x.T)) - np.eye(x.shape[1])
    return bool(np.abs(apart).max() > FAR / np.sqrt(len(x)))


def _between_values(noise: FloatArray, live: npt.NDArray[np.bool_]) -> list[Departure]:
    everywhere = live.all(axis=0)
    if everywhere.sum() < 2:
        return []
    rounds = [noise[:, k, everywhere] / _rms(noise[:, k, everywhere], 0) for k in range(noise.shape[1])]
    x = np.concatenate(rounds)
    matrix = np.abs(np.corrcoef(x.T) - np.eye(x.shape[1]))
    return _verdict(float(matrix.max()), len(x), "values of one round")


def _between_rounds(noise: FloatArray, live: npt.NDArray[np.bool_]) -> list[Departure]:
    found: list[Departure] = []
    strongest, lag, count = 0.0, 0, 1
    for a in range(noise.shape[1]):
        for b in range(a + 1, noise.shape[1]):
            both = live[a] & live[b]
            if not both.any():
                continue
            x, y = noise[:, a, both], noise[:, b, both]
            r = float((x / _rms(x, 0) * y / _rms(y, 0)).mean())
            if abs(r) * np.sqrt(x.size) > abs(strongest) * np.sqrt(count):
                strongest, lag, count = r, b - a, x.size
    found += _verdict(strongest, count, f"rounds {lag} apart")
    return found


def _verdict(r: float, count: int, between: str) -> list[Departure]:
    """A correlation that chance does not explain; noise that is the same or the opposite is certain.

    Where sizes vary, products have heavier tails than normal ones: a correlation below 0.02 is let pass.
    """
    if abs(r) < max(FAR / np.sqrt(count), 0.02):
        return []
    same = abs(r) > 0.999
    words = "is the same" if same and r > 0 else "is the same with the other sign" if same else "is correlated"
    return [Departure(f"noise {words} between {between} (correlation {r:.3f})", same)]


def size_follows(few: FloatArray, many: FloatArray) -> Departure | None:
    """Whether the first round's noise has another size where fewer clients came: under sampling that tells who came."""
    a, b = few[:, 0].ravel(), many[:, 0].ravel()
    low, high = float((a**2).mean()), float((b**2).mean())
    if min(low, high) <= 0:
        return Departure("noise is missing where few clients came", True) if max(low, high) > 0 else None
    far = abs(np.log(low / high)) / np.sqrt(2 / len(a) + 2 / len(b))
    if far <= FAR:
        return None
    return Departure(
        f"the size of the noise tells how many clients came: {np.sqrt(low / high):.3g} times where only one did", True
    )
