"""Who is in a sum of gradients: a linear regression of what a client sent on the gradients of all records in question.

A client's update is near -s sum_i m_i g_i, where g_i is the gradient of record i and m_i says whether it was trained
on, and beyond that noise: that of a defence, or what several steps over moving models add. So

    u = sum_i m_i g_i + e,    m_i ~ N(mu, tau^2),    e ~ N(0, sigma^2)

and the membership of all records together is the posterior mean of m, a ridge regression. Asking record by record (the
inner product of u and g_i) mistakes records that look alike for each other; the regression divides what they share
among them. It is the whitened score of Leemann, Pawelczyk, Kasneci 2023 ("Gaussian Membership Inference Privacy"), with
the gradients of the records in question in the place of their covariance. No shadow is trained.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leakline.leakage.interval import FloatArray

RIDGES = (1e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""sigma^2 / tau^2 that are tried, in units of the mean squared length of a gradient over all releases."""
ALONE = 0.1
"""Of them, what is taken where there is one release."""


@dataclass(frozen=True)
class Products:
    """Inner products summed over releases: ``gram[i, j]`` = <g_i, g_j>, ``along[i]`` = <g_i, u>."""

    gram: FloatArray
    along: FloatArray

    def __add__(self, other: Products) -> Products:
        return Products(self.gram + other.gram, self.along + other.along)

    def fit(self, ridge: float) -> tuple[float, FloatArray]:
        """mu, with which nothing is left along the sum of all gradients, and the posterior mean of m less mu."""
        total = self.gram.sum(1)
        mu = float(self.along.sum() / max(total.sum(), np.finfo(float).tiny))
        unit = max(float(self.gram.diagonal().mean()), np.finfo(float).tiny)
        solved = np.linalg.solve(self.gram + ridge * unit * np.eye(len(total)), self.along - mu * total)
        return mu, np.asarray(solved)

    def error(self, m: FloatArray) -> float:
        """||u - sum_i m_i g_i||^2 over the releases, less what does not depend on m."""
        return float(m @ self.gram @ m - 2 * m @ self.along)


def memberships(one: Products, other: Products | None = None) -> FloatArray:
    """The posterior mean of m less mu, for each record; higher: a member. The scale of u is free.

    Releases in two halves: the ridge is the one with which each half tells best what the other will be, since who was
    trained on is all that they have in common. That needs neither shadows nor the defence's noise.
    """
    if other is None:
        return one.fit(ALONE)[1]

    def missed(ridge: float) -> float:
        return sum(judge.error(np.add(*known.fit(ridge))) for known, judge in ((one, other), (other, one)))

    return (one + other).fit(min(RIDGES, key=missed))[1]
