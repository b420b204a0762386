"""Leakage in images: how much a reconstruction shows of what it was made from.

Images are [N, C, H, W]. Everything here is a pure function of complete arrays. A measure without its null
says little: the best of many reconstructions looks like something by luck alone, and in a large client's
images the nearest neighbour is often its own. So `rdlv_max` comes with `rdlv_null`, and `iip` with its
chance level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

Variant = Literal["gaussian", "uniform"]
Moments = tuple[Tensor, Tensor, Tensor]


def ssim(a: Tensor, b: Tensor, data_range: float = 1.0, variant: Variant = "gaussian") -> Tensor:
    """Structural similarity of each pair of images, [N], in [-1, 1]; differentiable (Wang et al. 2004).

    mean over pixels and channels of  (2 m_a m_b + C1)(2 s_ab + C2) / ((m_a^2 + m_b^2 + C1)(s_a^2 + s_b^2 +
    C2)), C1 = (0.01 R)^2, C2 = (0.03 R)^2, R = ``data_range``; means m and (co)variances s within a window.

    "gaussian": 11x11 window of sigma 1.5, as Wang et al.; equals scikit-image's ``structural_similarity``
    with ``gaussian_weights=True, sigma=1.5, use_sample_covariance=False``. "uniform": 7x7 box and sample
    covariances, scikit-image's default and paper 001's variant (its code has images in 0..255 and
    ``data_range=256``, and stretches reconstructions first, see `stretch`). Pixels whose window leaves the
    image are left out in both.
    """
    if len(a) != len(b) and 1 not in (len(a), len(b)):
        raise ValueError(f"as many images on both sides are needed, or one; got {len(a)} and {len(b)}")
    return _similarity(_moments(_wide(a), variant), _moments(_wide(b), variant), data_range, variant)


def pairwise_ssim(targets: Tensor, images: Tensor, data_range: float = 1.0, variant: Variant = "gaussian") -> Tensor:
    """SSIM of every target with every image, [targets, images]."""
    true, made = _moments(_wide(targets), variant), _moments(_wide(images), variant)
    rows = []
    for i in range(len(targets)):
        one: Moments = (true[0][i : i + 1], true[1][i : i + 1], true[2][i : i + 1])
        rows.append(_similarity(one, made, data_range, variant))
    return torch.stack(rows)


def psnr(a: Tensor, b: Tensor, data_range: float = 1.0) -> Tensor:
    """Peak signal-to-noise ratio of each pair in decibels, [N]: 10 log10(R^2 / MSE); infinite if equal."""
    error = (_wide(a) - _wide(b)).square().flatten(1).mean(1)
    return 10 * torch.log10(data_range**2 / error)


def stretch(images: Tensor, low: float = 0.0, high: float = 255.0) -> Tensor:
    """Each image's values spread over [low, high], as paper 001's code does; constant images give ``low``."""
    values = _wide(images)
    least, most = values.amin((1, 2, 3), keepdim=True), values.amax((1, 2, 3), keepdim=True)
    width = torch.where(most > least, most - least, 1.0)
    return low + (high - low) * (values - least) / width


def rdlv(
    target: Tensor, image: Tensor, prior: Tensor, data_range: float = 1.0, variant: Variant = "gaussian"
) -> Tensor:
    """Relative data leakage value of each target, [N] (Hatamizadeh et al. 2023).

    RDLV = (SSIM(T, I) - SSIM(T, P)) / SSIM(T, P)     T target, I reconstruction, P prior

    Zero for the prior itself, positive when the reconstruction shows more than the prior did. **Where
    SSIM(T, P) <= 0** the ratio would be infinite or of the wrong sign; the answer there is the plain gain
    SSIM(T, I) - SSIM(T, P), which has the right sign and the same zero. RDLV <= 0 is no proof of safety:
    another attack may do better.
    """
    return _relative(ssim(target, image, data_range, variant), ssim(target, prior, data_range, variant))


def rdlv_max(
    targets: Tensor, images: Tensor, prior: Tensor, data_range: float = 1.0, variant: Variant = "gaussian"
) -> Tensor:
    """For each target the largest RDLV over all reconstructions, [targets]; ``prior`` is one, or one each."""
    best = pairwise_ssim(targets, images, data_range, variant).amax(1)
    return _relative(best, ssim(targets, prior, data_range, variant))


def rdlv_null(
    targets: Tensor, decoys: Tensor, prior: Tensor, data_range: float = 1.0, variant: Variant = "gaussian"
) -> Tensor:
    """The same maximum over decoys that never saw the targets, [sets, targets].

    ``decoys`` is [sets, M, C, H, W]: reconstructions from other clients' updates or from noise, M as many
    as the attack made, since the maximum grows with M.
    """
    return torch.stack([rdlv_max(targets, one_set, prior, data_range, variant) for one_set in decoys])


def p_value(observed: float, null: Tensor | np.ndarray) -> float:
    """One-sided p-value (1 + #{null >= observed}) / (1 + #null), valid even for few draws."""
    draws = np.asarray(null, dtype=np.float64).ravel()
    return float((1 + (draws >= observed).sum()) / (1 + len(draws)))


def assign(scores: Tensor) -> Tensor:
    """The target that each image is paired with, [images], from scores [targets, images].

    One-to-one with the largest sum of scores (Hungarian method); -1 for an image left over when there are
    more images than targets.
    """
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(scores.detach().cpu().numpy(), maximize=True)
    paired = torch.full((scores.shape[1],), -1)
    paired[torch.as_tensor(columns)] = torch.as_tensor(rows)
    return paired


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of every row of ``a`` with every row of ``b``, [len(a), len(b)]; 0 for a zero vector."""
    return functional.normalize(a.double(), dim=1) @ functional.normalize(b.double(), dim=1).T


@dataclass(frozen=True)
class Identification:
    """How often a reconstruction's nearest neighbour gives its source away.

    ``score`` in [0, 1], higher is more leakage; ``chance`` is its expectation for nearest neighbours drawn at
    random; ``null`` are scores after relabelling the pool at random, and ``p_value`` compares the two.
    """

    score: float
    chance: float
    p_value: float
    null: np.ndarray = field(repr=False)
    nearest: Tensor = field(repr=False)
    cosine: Tensor = field(repr=False)


def iip(
    made: Tensor,
    pool: Tensor,
    owners: Sequence[str],
    client: str,
    *,
    rng: np.random.Generator,
    unique: bool = True,
    draws: int = 1000,
) -> Identification:
    """Image identifiability precision as in paper 001: is the nearest image one of the attacked client's?

    ``made`` [M, D] are embeddings of reconstructions, ``pool`` [P, D] of all clients' images, ``owners``
    whose each is. With ``unique`` a pool image counts once, however many reconstructions point at it. The
    paper does not say what it divides by: M here. Chance is n / P, or n (1 - (1 - 1/P)^M) / M with
    ``unique``, n the client's images.
    """
    if len(owners) != len(pool) or client not in owners:
        raise ValueError(f"owners must name the client of each of {len(pool)} pool images, {client!r} among them")
    own = np.array([owner == client for owner in owners])
    size, count = len(pool), len(made)

    def score(found: np.ndarray) -> float:
        hits = found[own[found]]
        return (len(np.unique(hits)) if unique else len(hits)) / count

    share = own.sum() / size
    chance = own.sum() * (1 - (1 - 1 / size) ** count) / count if unique else share
    return _identify(made, pool, score, float(chance), rng, draws)


def iip_exact(
    made: Tensor, pool: Tensor, truth: Tensor, *, rng: np.random.Generator, draws: int = 1000
) -> Identification:
    """Image identifiability precision (Yin et al. 2021): is the nearest image the very one that was inverted?

    ``truth`` [M] is the pool position of the image that each reconstruction stands for. Chance is 1 / P.
    Where ``truth`` was chosen by looking at the reconstructions (`assign`), the p-value is too small.
    """
    wanted = truth.cpu().numpy()
    if wanted.shape != (len(made),) or wanted.min() < 0 or wanted.max() >= len(pool):
        raise ValueError(f"truth must give a position in 0..{len(pool) - 1} for each of {len(made)} reconstructions")
    return _identify(made, pool, lambda found: float((found == wanted).mean()), 1 / len(pool), rng, draws)


def _wide(images: Tensor) -> Tensor:
    # float32 loses the variance of flat regions in E[x^2] - E[x]^2; Apple's GPUs have nothing wider.
    return images if images.device.type == "mps" else images.double()


def _relative(found: Tensor, known: Tensor) -> Tensor:
    return (found - known) / torch.where(known > 0, known, 1.0)


def _window(variant: Variant, like: Tensor) -> Tensor:
    if variant == "uniform":
        return torch.full((7,), 1 / 7, dtype=like.dtype, device=like.device)
    weights = torch.exp(-0.5 * (torch.arange(-5, 6, dtype=like.dtype, device=like.device) / 1.5) ** 2)
    return weights / weights.sum()


def _blur(images: Tensor, variant: Variant) -> Tensor:
    """Weighted mean within the window around every pixel whose window fits."""
    taps = _window(variant, images)
    if min(images.shape[-2:]) < len(taps):
        raise ValueError(
            f"SSIM with the {variant} window needs images of at least {len(taps)}x{len(taps)}; "
            f"got {images.shape[-2]}x{images.shape[-1]}. Enlarge both images first"
            + (', or use variant="uniform" (7x7)' if variant == "gaussian" else "")
        )
    flat = images.reshape(-1, 1, *images.shape[-2:])
    flat = functional.conv2d(functional.conv2d(flat, taps.view(1, 1, -1, 1)), taps.view(1, 1, 1, -1))
    return flat.view(*images.shape[:-2], *flat.shape[-2:])


def _moments(images: Tensor, variant: Variant) -> Moments:
    """The images, their local means and local variances (not yet corrected for sample size)."""
    if images.ndim != 4:
        raise ValueError(f"images are [N, C, H, W]; got shape {tuple(images.shape)}")
    mean = _blur(images, variant)
    return images, mean, _blur(images.square(), variant) - mean.square()


def _similarity(a: Moments, b: Moments, data_range: float, variant: Variant) -> Tensor:
    (xa, mean_a, var_a), (xb, mean_b, var_b) = a, b
    if xa.shape[1:] != xb.shape[1:]:
        raise ValueError(f"images differ in shape: {tuple(xa.shape[1:])} and {tuple(xb.shape[1:])}")
    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    sample = 49 / 48 if variant == "uniform" else 1.0
    covariance = _blur(xa * xb, variant) - mean_a * mean_b
    closeness = (2 * mean_a * mean_b + c1) * (2 * sample * covariance + c2)
    scale = (mean_a.square() + mean_b.square() + c1) * (sample * (var_a + var_b) + c2)
    return (closeness / scale).flatten(1).mean(1)


def _identify(
    made: Tensor,
    pool: Tensor,
    score: Callable[[np.ndarray], float],
    chance: float,
    rng: np.random.Generator,
    draws: int,
) -> Identification:
    closest, nearest = cosine(made, pool).max(1)
    found = nearest.cpu().numpy()
    null = np.array([score(rng.permutation(len(pool))[found]) for _ in range(draws)])
    observed = score(found)
    return Identification(observed, chance, p_value(observed, null), null, nearest, closest)
