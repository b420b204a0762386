"""The Gaussian mechanism's exact trade-off between epsilon and delta.

A release that a unit can move by at most mu standard deviations is mu-GDP, and so is any composition of such
releases with mu = sqrt(sum mu_i^2). These conversions are exact and instant, from mu = 1e-12 to thousands.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def _mills(x: FloatArray) -> FloatArray:
    from scipy.special import erfcx

    return np.asarray(math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2)))


def _log_phi(x: FloatArray) -> FloatArray:
    from scipy.special import log_ndtr

    return np.asarray(log_ndtr(x))


def gdp_log_delta(mu: float, epsilon: npt.ArrayLike) -> FloatArray:
    """Logarithm of the exact delta of a mu-GDP mechanism, for one or many epsilons of either sign.

    delta(eps) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)      Balle-Wang 2018, Dong-Roth-Su 2022

    With x1 = eps/mu - mu/2, x2 = eps/mu + mu/2 and Mills' ratio R(x) = Phi(-x)/phi(x), the second term is
    phi(x1) R(x2), because x2^2 - x1^2 = 2 eps: nothing overflows, at any mu. Negative epsilon by the symmetry
    delta(-eps) = 1 - e^-eps (1 - delta(eps)).
    """
    given = np.asarray(epsilon, dtype=np.float64)
    size = np.abs(given)
    if mu == 0:
        positive = np.full_like(size, -np.inf)
    elif math.isinf(mu):
        positive = np.where(np.isinf(size), -np.inf, 0.0)
    else:
        x1, x2 = size / mu - mu / 2, size / mu + mu / 2
        log_phi = -0.5 * x1**2 - 0.5 * math.log(2 * math.pi)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            tail = log_phi + np.log(np.maximum(_mills(np.maximum(x1, 0.0)) - _mills(x2), 0.0))
            first = _log_phi(-x1)
            body = first + np.log1p(-np.exp(np.minimum(log_phi + np.log(_mills(x2)) - first, 0.0)))
        positive = np.where(np.isinf(size), -np.inf, np.where(x1 > 0, tail, body))
    with np.errstate(divide="ignore"):
        negative = np.log(np.maximum(-np.expm1(-size) + np.exp(positive - size), 0.0))
    return np.asarray(np.where(given < 0, negative, positive))


def gdp_delta(mu: float, epsilon: float) -> float:
    """Exact delta at which a mu-GDP mechanism is (epsilon, delta)-DP; see `gdp_log_delta`."""
    check_mu(mu)
    return float(np.exp(gdp_log_delta(mu, epsilon)))


def gdp_epsilon(mu: float, delta: float) -> float:
    """Exact smallest epsilon >= 0 at which a mu-GDP mechanism is (epsilon, delta)-DP.

    The root lies below mu^2/2 - mu Phi^-1(delta), where the first term of delta(eps) alone equals delta.
    """
    check_mu(mu)
    check_delta(delta)
    if mu == 0:
        return 0.0
    if delta == 0 or math.isinf(mu):
        return math.inf
    target = math.log(delta)
    if gdp_log_delta(mu, 0.0) <= target:
        return 0.0
    from scipy.optimize import brentq
    from scipy.special import ndtri

    high = mu * (mu / 2 - float(ndtri(delta)))
    return float(brentq(lambda e: float(gdp_log_delta(mu, e)) - target, 0.0, high, xtol=1e-12, rtol=1e-13))


def gdp_mu(epsilon: float, delta: float) -> float:
    """Largest mu whose mu-GDP mechanisms are (epsilon, delta)-DP: the inverse of `gdp_epsilon` in mu."""
    check_delta(delta)
    if not 0 <= epsilon < math.inf or delta == 0:
        raise ValueError(f"no Gaussian noise gives exactly epsilon = {epsilon!r} at delta = {delta!r}")
    target = math.log(delta)
    low, high = 1e-12, 1.0
    while gdp_log_delta(high, epsilon) < target:
        low, high = high, 2 * high
    if gdp_log_delta(low, epsilon) > target:
        raise ValueError(f"epsilon = {epsilon!r} at delta = {delta!r} would need mu below {low!r}")
    from scipy.optimize import brentq

    def excess(log_mu: float) -> float:
        return float(gdp_log_delta(math.exp(log_mu), epsilon)) - target

    return math.exp(brentq(excess, math.log(low), math.log(high), xtol=1e-14))


def check_mu(mu: float) -> None:
    """Refuse a mu that is negative or not a number."""
    if math.isnan(mu) or mu < 0:
        raise ValueError(f"mu must be zero or more, not {mu!r}")


def check_delta(delta: float) -> None:
    """Refuse a delta outside [0, 1)."""
    if not 0 <= delta < 1:
        raise ValueError(f"delta must lie in [0, 1), not {delta!r}")
