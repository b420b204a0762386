"""The price of choosing: against exact laws of small mechanisms, an independent accountant, and its limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import logsumexp

from leakline.privacy import Adjacency, Claim, Gaussian, Pure, Seat, Unit
from leakline.privacy.selection import ORDERS, best_of, chosen_epsilon, epsilon_of, renyi


def divergence(p, q):
    """Exact Renyi divergence of two discrete laws, the larger of both directions, at all orders."""
    a = ORDERS[:, None]
    ways = [logsumexp(a * np.log(x) + (1 - a) * np.log(y), axis=1) / (ORDERS - 1) for x, y in ((p, q), (q, p))]
    return np.maximum(*ways)


def best_law(law, mean):
    """The law of the largest of a geometric number of draws: P(best <= y) = G(F(y)), G(x) = g x / (1 - (1 - g) x)."""
    cumulative, g = np.minimum(np.cumsum(law), 1.0), 1 / mean
    generated = g * cumulative / (1 - (1 - g) * cumulative)
    return np.diff(np.concatenate([[0.0], generated]))


@pytest.mark.parametrize("mean", [1.0, 2.0, 10.0, 100.0])
def test_the_bound_holds_for_exact_laws(mean):
    rng = np.random.default_rng(0)
    for _ in range(40):
        outcomes = rng.integers(2, 7)
        law = rng.dirichlet(np.ones(outcomes)) + 1e-4
        other = law * np.exp(rng.uniform(-1, 1, outcomes) * rng.choice([0.1, 0.5, 2.0]))
        law, other = law / law.sum(), other / other.sum()
        exact = divergence(best_law(law, mean), best_law(other, mean))
        assert (exact <= best_of(divergence(law, other), mean) + 1e-9).all()


def test_the_bound_is_not_idle():
    """Choosing must cost something: a rare good outcome is what the best of many runs shows."""
    law, other = np.array([0.99, 0.01]), np.array([0.98, 0.02])
    one, hundred = (divergence(best_law(law, m), best_law(other, m))[0] for m in (1.0, 100.0))
    assert hundred > 3 * one


@pytest.mark.parametrize("event", [Gaussian(0.7, 3), Gaussian(1 / 1.1, 100, 0.03), Gaussian(0.4, 5, 0.2, 3)])
def test_renyi_agrees_with_dp_accounting(event):
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    rate = 1 - (1 - event.rate) ** event.copies if event.rate < 1 else 1.0
    noise = GaussianDpEvent(1 / (event.copies * event.mu))
    accountant = RdpAccountant(orders=[float(a) for a in ORDERS])
    accountant.compose(PoissonSampledDpEvent(rate, noise) if rate < 1 else noise, event.times)
    assert epsilon_of(renyi([event]), 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-6)


def test_limits():
    claim = Claim(Unit.RECORD, Adjacency.ADD_REMOVE, Seat.SERVER, (Gaussian(0.5, 4), Pure(0.1, 2)))
    one = renyi(claim.events)
    epsilons = [chosen_epsilon([claim], 0.1, mean, 1e-5) for mean in (1, 2, 8, 64)]
    assert epsilons == sorted(epsilons)
    assert epsilon_of(one, 1e-5) == pytest.approx(epsilons[0])  # a single run is no choice
    # A score with next to no noise is what a tested unit pays for, however private the training is.
    assert chosen_epsilon([claim], 10.0, 8, 1e-5) > 5 * epsilons[2]
    # The dearest setting is what is paid for, whichever is chosen.
    dear = Claim(Unit.RECORD, Adjacency.ADD_REMOVE, Seat.SERVER, (Gaussian(1.5, 4),))
    assert chosen_epsilon([claim, dear], 0.1, 8, 1e-5) == chosen_epsilon([dear], 0.1, 8, 1e-5)
    assert math.isclose(epsilon_of(renyi([Pure(0.3)]), 1e-9), 0.3, rel_tol=0.2)
    with pytest.raises(ValueError, match="on average"):
        best_of(one, 0.5)
