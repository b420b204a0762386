"""Clients split into sub-clients: noise level, diversity, and how many parts to make (paper 004, Sec. 2.2).

Symbols: N clients, v parts of each, Delta the updates of the N v sub-clients, C the clip bound, z the noise
multiplier, d the number of values, zeta the noise on the mean (std z C / (N v)).

    xi     = ||zeta|| / ||mean of clipped Delta||            noise level        (eq. 2)
    phi    = sum ||Delta|| / ||mean of clipped Delta||       diversity          (eq. 2)
    lambda = xi / phi = ||zeta|| / sum ||Delta||             intermediary ratio

Eq. 2 prints the norm of the *sum* in both denominators; the released code takes that of the mean, and so do we: with
sums, phi does not depend on v and eq. 3 (xi ~ 1/v, phi ~ v) cannot hold. lambda is the same either way, and falls
like 1/v^2 as long as updates keep their length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

SHOWN = 2**18
"""How many values of each update are held to compare it with the aggregate."""


def deal(examples: int, parts: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Rows dealt out at random into ``parts`` disjoint piles whose sizes differ by at most one.

    Every row is dealt. (The released code drops what does not divide evenly.)
    """
    if not 1 <= parts <= examples:
        raise ValueError(f"{examples} examples cannot make {parts} parts")
    return [np.sort(rows) for rows in np.array_split(rng.permutation(examples), parts)]


def intermediary_ratio(noise: float, norms: float) -> float:
    """Lambda = ||zeta|| / sum ||Delta||: how much noise there is for each unit of update.

    ``noise`` is the norm of the noise on the mean, ``norms`` the sum of the updates' norms before clipping.
    """
    return noise / norms


def paper_parts(parts: int, clients: int, ratio: float) -> int:
    """The paper's rule: v = sqrt(N xi / phi), to the nearest whole number.

    xi and phi are those of the N clients *before* any split (eq. 2). What a round of v parts measures is
    xi_v = xi / v and phi_v = v phi (eq. 3), so lambda = v^2 lambda_v and v_next = v sqrt(N lambda_v). Read without
    that step, the rule would flip between 1 and v from round to round. The paper does not say how it rounds.
    """
    return math.floor(parts * math.sqrt(clients * ratio) + 0.5)


def code_parts(parts: int, clients: int, ratio: float) -> int:
    """The released code's rule: v_next = floor(v sqrt(N lambda)), N counting clients and not sub-clients.

    It can be 0, which the code passes on; whoever calls clamps.
    """
    return math.floor(parts * math.sqrt(clients * ratio))


def public_parts(noise_multiplier: float, values: int, clients: float) -> int:
    """Where the rules come to rest if every update has length C: a number that no data enter.

    With ||zeta|| = z C sqrt(d) / (N v) and sum ||Delta|| = N v C, lambda = z sqrt(d) / (N v)^2; lambda = 1/N at

        v = sqrt(z sqrt(d) / N)        rounded down, at least 1
    """
    return max(1, math.floor(math.sqrt(noise_multiplier * math.sqrt(values) / clients)))


def client_mu(parts: Sequence[float], noise_multiplier: float) -> float:
    """What all rounds together tell of one original client: mu = sqrt(sum of v_t^2) / z.

    A client sends v_t updates, each clipped to C, into a sum with noise z C: it moves it by v_t / z standard
    deviations (exactly, when its parts agree). With v_t = 1 this is the sqrt(T) / z of one sub-client.
    """
    return math.sqrt(sum(v * v for v in parts)) / noise_multiplier


def median_bound(norms: Sequence[float], cap: float) -> float:
    """The released code's clip bound: the median of the raw norms, but at most ``cap``. Not private.

    The lower of the two middle values where their number is even, as torch's median; never 0, which is no bound.
    """
    return max(min(sorted(norms)[(len(norms) - 1) // 2], cap), 1e-12)


def shown_values(size: int) -> Tensor | slice:
    """Which values of a vector are held: all, or a fixed random `SHOWN` of them (the same for every update)."""
    if size <= SHOWN:
        return slice(None)
    return torch.randint(size, (SHOWN,), generator=torch.Generator().manual_seed(size))


def cosine_spread(rows: Tensor, aggregate: Tensor) -> float:
    """Standard deviation over sub-clients of cosine(update, aggregate): Figure 2b of the paper.

    From a random subset of k values a cosine is off by about 1 / sqrt(k), here 0.002. Zero vectors are left out.
    """
    lengths = rows.norm(dim=1).double() * aggregate.norm().double()
    kept = lengths > 0
    if not kept.any():
        return 0.0
    return float(((rows @ aggregate).double()[kept] / lengths[kept]).std(correction=0))
