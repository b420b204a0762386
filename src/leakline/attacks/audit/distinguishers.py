"""Distinguishers: from what a seat sees to a score, higher where world 1 is likelier.

For any mechanism: the matched filter, and a learned likelihood ratio. For LDP-SGD: the rules of paper 002 and the
optimal ones. The paper's g1 is world 0 here and its g2 world 1, so a false positive is hers too (eq. 2).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtr
from torch import Tensor

from leakline.attacks.audit.crafters import Pair
from leakline.mechanisms.sphere import SIDES

FloatArray = npt.NDArray[np.float64]


def features(views: Tensor, pair: Pair) -> FloatArray:
    """Two numbers per view: its coordinate along the pair's difference, and log of the length of the rest."""
    direction = pair.direction
    along = views.double() @ direction
    rest = torch.linalg.vector_norm(views.double() - along[:, None] * direction, dim=1)
    return np.stack([along.numpy(), np.log(np.maximum(rest.numpy(), 1e-300))])


def matched_filter(views: Tensor, pair: Pair) -> FloatArray:
    """The coordinate along the pair's difference: the likelihood ratio's own order for Gaussian noise of one size."""
    return np.asarray((views.double() @ pair.direction).numpy())


def learned_ratio(views: Tensor, pair: Pair, known0: Tensor, known1: Tensor) -> FloatArray:
    """Log likelihood ratio of two normal laws fitted to known views of each world.

    Sees means and scales, so it also notices a mechanism whose noise grows with the update.
    """
    given = features(views, pair)
    return np.asarray(_log_normal(given, features(known1, pair)) - _log_normal(given, features(known0, pair)))


def _log_normal(given: FloatArray, fitted: FloatArray) -> FloatArray:
    centre = fitted.mean(axis=1, keepdims=True)
    spread = np.maximum(fitted.std(axis=1, keepdims=True), 1e-9 * (1 + np.abs(centre)))
    return np.asarray((-0.5 * ((given - centre) / spread) ** 2 - np.log(spread)).sum(axis=0))


def side_score(views: Tensor, pair: Pair) -> FloatArray:
    """Above 0 only in the region <x0, u> < 0 <= <x1, u>, which attains epsilon at any angle; see `report_ratio`."""
    one, zero = (views.double() @ x.double() for x in (pair.one, pair.zero))
    return np.asarray(torch.where((one >= 0) & (zero < 0), 0.5, -0.5).numpy())


# --- LDP-SGD, white box: cosines of the report with both gradients, rows (g1, g2) -----------------------------------


def cosine_rule(cosines: FloatArray) -> npt.NDArray[np.bool_]:
    """Eq. (5) of paper 002: guess g2 where the report is closer to it. A forced guess on every report."""
    return np.asarray(cosines[1] > cosines[0])


def report_ratio(cosines: FloatArray, ratios: tuple[float, float], epsilon: float) -> FloatArray:
    """Exact log likelihood ratio of a report: log (1 + r2 t sgn<g2, u>) / (1 + r1 t sgn<g1, u>).

    It is 0 where both signs agree (for equal norms): there is nothing to know, and an optimal rule stays silent.
    The region <g1, u> < 0 < <g2, u> attains epsilon at any angle (facts 3c): that the cosine rule finds less
    says something about the rule, not about the mechanism.
    """
    t = math.tanh(epsilon / 2)
    one = np.log1p(ratios[1] * t * np.where(cosines[1] >= 0, 1.0, -1.0))
    zero = np.log1p(ratios[0] * t * np.where(cosines[0] >= 0, 1.0, -1.0))
    return np.asarray(one - zero)


def mean_ratio(cosines: FloatArray, ratios: tuple[float, float], epsilon: float, clients: int, size: int) -> FloatArray:
    """Log likelihood ratio of n times a mean of n reports of which one is the target's.

    The black box knows the learning rate and the scale, so theta_t - theta_(t+1) gives it the mean exactly
    (where the ball's projection is not active). The other n - 1 reports are taken as N(0, I/d) each, which for
    large d they nearly are whatever their inputs. Given y = a + noise, a is N(y/n, (n-1)/(n d)), so

        E sgn<g, a> = 2 Phi(<g/|g|, y> sqrt(d / (n (n - 1)))) - 1

    takes the place of the sign in `report_ratio`; n = 1 gives that back.
    """
    if clients == 1:
        return report_ratio(cosines, ratios, epsilon)
    t = math.tanh(epsilon / 2)
    lean = 2 * ndtr(cosines * math.sqrt(size / (clients * (clients - 1)))) - 1
    return np.asarray(np.log1p(ratios[1] * t * lean[1]) - np.log1p(ratios[0] * t * lean[0]))


def shuffled_ratio(counts: FloatArray, ratios: tuple[float, float], epsilon: float) -> FloatArray:
    """Exact log likelihood ratio of n reports without names, of which the others' are known to be reports of g1.

    Each of them may be the target's, so it is the log of the mean over reports of the ratio of one (`report_ratio`).
    Rows of ``counts``: how many lie on which sides of both planes, in the order of `leakline.mechanisms.sphere.SIDES`.
    """
    single = np.exp(report_ratio(SIDES, ratios, epsilon))
    return np.asarray(np.log(counts @ single / counts.sum(axis=1)))


# --- LDP-SGD, black box: losses before and after, signs of the step -------------------------------------------------


def loss_rule(before: float, after: FloatArray) -> npt.NDArray[np.bool_]:
    """Eq. (4): guess g1 where the loss on x1 did not grow."""
    return np.asarray(after > before)


def change_rule(
    before1: float, after1: FloatArray, before2: float, after2: FloatArray
) -> npt.NDArray[np.bool_]:  # fmt: skip
    """Eq. (6): guess g1 where the loss on x1 moved at least as much as that on x2."""
    return np.asarray(np.abs(after1 - before1) < np.abs(after2 - before2))


def sign_count_rule(signs: FloatArray, reading: str = "sound") -> npt.NDArray[np.bool_]:
    """Eq. (7): the sum of the signs of theta_(t+1) - theta_t.

    Descent along g1 = +lambda makes parameters fall, so g1 is guessed where the sum is negative. The paper prints
    the other sign (``reading = "paper"``): every guess is then turned round, and eq. (3) finds less than nothing.
    """
    return np.asarray(signs < 0) if reading == "paper" else np.asarray(signs > 0)
