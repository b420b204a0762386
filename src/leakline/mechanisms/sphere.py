"""LDP-SGD's randomiser: clip, project the norm, sample the sphere (Duchi et al. 2018; Erlingsson et al. 2020).

Symbols: x the vector to report (d values), L = bound, eps = epsilon, r = min(1, |x| / L), t = tanh(eps / 2).
The report's direction u has density (1 + r t sgn<x, u>) / area: all there is to know about x in u is on which
side of the plane through 0 it lies. That law is what makes audits of this mechanism exact and fast.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from leakline.randomness import Noise

FloatArray = npt.NDArray[np.float64]
SIDES = np.array([[1.0, 1.0, -1.0, -1.0], [1.0, -1.0, 1.0, -1.0]])
"""The sides of the planes of x0 and of x1, in the order of `side_rates`."""


def norm_ratio(x: Tensor, bound: float) -> float:
    """How long x is after clipping, in units of the bound: r = min(1, |x| / L)."""
    return min(1.0, float(torch.linalg.vector_norm(x, dtype=torch.float64)) / bound)


def sphere_report(x: Tensor, bound: float, epsilon: float, noise: Noise) -> Tensor:
    """A random unit vector that leans towards x: Algorithm 1 of paper 002 (float64).

    line 2    z = +x with probability 1/2 + r/2, else -x            (norm projection)
    line 3    u = v or -v, v uniform on the sphere, on the side of z with probability e^eps / (1 + e^eps)

    A zero vector has r = 0: z is a coin and u uniform, which is what the law says; nothing is divided by |x|.
    """
    v = _sphere(x.numel(), noise)
    toward, agree = noise.uniform(2).tolist()
    side = 1.0 if float(torch.dot(x.detach().double().flatten(), v)) >= 0 else -1.0
    side *= 1.0 if toward < 0.5 + norm_ratio(x, bound) / 2 else -1.0
    side *= 1.0 if agree < 1 / (1 + math.exp(-epsilon)) else -1.0
    return v.mul_(side)


def _sphere(size: int, noise: Noise) -> Tensor:
    while True:
        v = noise.normal(size)
        length = torch.linalg.vector_norm(v)
        if length > 0:
            return v.div_(length)


def unbiased_scale(size: int, bound: float, epsilon: float) -> float:
    """What to multiply a report by so that its mean is the clipped vector.

    L sqrt(pi) Gamma((d+1)/2) / Gamma(d/2) (e^eps + 1) / (e^eps - 1)

    because E<x/|x|, u> = r t E|v_1| and E|v_1| = Gamma(d/2) / (sqrt(pi) Gamma((d+1)/2)).
    """
    if not epsilon > 0:
        raise ValueError(f"epsilon must be positive: {epsilon}")
    log_gamma = math.lgamma((size + 1) / 2) - math.lgamma(size / 2)
    return bound * math.sqrt(math.pi) * math.exp(log_gamma) / math.tanh(epsilon / 2)


def printed_scale(size: int, bound: float, epsilon: float) -> float:
    """Paper 002's Algorithm 2, line 4, as printed: `unbiased_scale` divided by d.

    (L sqrt(pi) / 2) Gamma((d-1)/2 + 1) / Gamma(d/2 + 1) (e^eps + 1) / (e^eps - 1)

    Only the step size is affected, but a step d times too short makes every loss-based attack look different.
    """
    return unbiased_scale(size, bound, epsilon) / size


def project_ball(position: Tensor, radius: float) -> Tensor:
    """The nearest point of the ball of this radius about 0 (Algorithm 2, line 5)."""
    norm = float(torch.linalg.vector_norm(position, dtype=torch.float64))
    return position if norm <= radius else position * (radius / norm)


def agreement(r: npt.ArrayLike, epsilon: float) -> FloatArray:
    """Probability that a report lies on the side of its input: (1 + r t) / 2."""
    return np.asarray((1 + np.asarray(r, dtype=np.float64) * math.tanh(epsilon / 2)) / 2)


def plane_projections(size: int, trials: int, rng: np.random.Generator) -> FloatArray:
    """Two coordinates of uniform points on the sphere in d = ``size`` dimensions, exactly, without drawing the rest.

    (n1, n2) / sqrt(n1^2 + n2^2 + c),    n1, n2 standard normal, c chi-square with d - 2 degrees of freedom

    Rows are the two coordinates. In one dimension the second is 0.
    """
    if size < 1:
        raise ValueError(f"a sphere needs at least one dimension, not {size}")
    plane = rng.standard_normal((2, trials))
    if size == 1:
        return np.stack([np.sign(plane[0]), np.zeros(trials)])
    square = plane[0] ** 2 + plane[1] ** 2
    if size > 2:
        square += rng.chisquare(size - 2, trials)
    plane /= np.sqrt(square)
    return plane


def report_cosines(
    cosine: float, ratios: tuple[float, float], secrets: npt.NDArray[np.bool_], size: int, epsilon: float,
    rng: np.random.Generator,
) -> FloatArray:  # fmt: skip
    """cos(u, x0) and cos(u, x1) for reports u of x0 (secret False) or x1 (True), drawn from their exact joint law.

    Everything a white box rule looks at lies in the plane of x0 and x1, so two coordinates of u suffice: a
    trial costs the same in 10 dimensions and in 10 million. ``cosine`` is that of the angle between x0 and x1,
    ``ratios`` their r. Equal in distribution to `sphere_report`; a test compares them.
    """
    plane = plane_projections(size, len(secrets), rng)
    sine = math.sqrt(max(0.0, 1 - cosine**2))
    cosines = np.stack([plane[0], cosine * plane[0] + sine * plane[1]])
    own = np.where(secrets, cosines[1], cosines[0])
    keep = rng.random(len(secrets)) < agreement(np.where(secrets, ratios[1], ratios[0]), epsilon)
    return np.asarray(cosines * np.where((own >= 0) == keep, 1.0, -1.0))


def side_rates(cosine: float, ratios: tuple[float, float], epsilon: float) -> FloatArray:
    """How often a report of x0 (row 0) or of x1 (row 1) lies on which sides of both planes: ++, +-, -+, --.

    Two planes at the angle a cut the sphere into sectors of (pi - a, a, a, pi - a) / 2 pi; the density is 1 + r t s.
    """
    apart = math.acos(max(-1.0, min(1.0, cosine))) / (2 * math.pi)
    sectors, t = np.array([0.5 - apart, apart, apart, 0.5 - apart]), math.tanh(epsilon / 2)
    return np.stack([sectors * (1 + r * t * SIDES[row]) for row, r in enumerate(ratios)])


def shuffled_sides(
    rates: FloatArray, secrets: npt.NDArray[np.bool_], clients: int, rng: np.random.Generator
) -> FloatArray:
    """How many of n reports without names lie on which sides, in each trial; all but the target's are reports of x0."""
    own = np.where(secrets[:, None], *(rng.multinomial(1, row, len(secrets)) for row in rates[::-1]))
    return np.asarray(rng.multinomial(clients - 1, rates[0], len(secrets)) + own, dtype=np.float64)
