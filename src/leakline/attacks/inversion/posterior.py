"""What is left to be known under noise: the images' posterior, as the nearest Gaussian of independent unknowns.

    q = N(m, diag s^2)  minimises  F(m, s) = E_q[-log p(update | images)] + KL(q || N(0, I)),    z ~ N(0, I) a priori

F is the free energy (Jordan et al. 1999; reparametrised as by Kingma and Welling 2014), an upper bound of -log
p(update). The answer is the mean image of q. The likeliest image (the lowest -log p(update | images) - log p(images))
is another thing where noise is loud: a network with normalisation answers to a pale, dark image so much more strongly
that some such image fits the noise itself, better than the client's own image does. It is alone in that, and an average
over q does not follow it; the client's image has company.

Unknowns are amplitudes of frequencies (`Belief`), which noise blurs one by one: independent pixels would not do.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

SPREAD = 0.1
"""The standard deviation s to begin with, of 1 a priori. From 0.1, 0.3 and 1, and from the likeliest image or from the
prior, 400 steps lead to the same image (fundus photographs that no reported figure uses); from 1 s falls too slowly
where noise is faint."""
HELD = 0.98
"""How much of the averages over draws each new one leaves."""


def around(unknowns: Tensor, images: int) -> Tensor:
    """Where to begin: m at a point, and log s of the first ``images`` unknowns (labels have none)."""
    return torch.cat([unknowns, torch.full((images,), math.log(SPREAD))])


def mean(point: Tensor, images: int) -> Tensor:
    """m: the unknowns of the mean image, since images are linear in them."""
    return point[: len(point) - images]


def free_energy(
    surprise: Callable[[Tensor], tuple[float, Tensor]], point: Tensor, noise: Tensor
) -> tuple[float, float, Tensor]:
    """-log p(update | images) at m + s ``noise``, the free energy by this one draw, and its gradient by (m, log s).

    ``surprise`` gives value and gradient at unknowns. Infinity where there is none.
    """
    images = len(noise)
    m, s = mean(point, images), point[-images:].exp()
    value, slope = surprise(torch.cat([m[:images] + s * noise, m[images:]]))
    if not math.isfinite(value):
        return math.inf, math.inf, torch.zeros_like(point)
    divergence = (m[:images].square() + s.square() - 1).sum() / 2 - s.log().sum()
    by_mean = torch.cat([slope[:images] + m[:images], slope[images:]])
    by_spread = slope[:images] * noise * s + s.square() - 1  # of log s
    return value, value + float(divergence), torch.cat([by_mean, by_spread])
