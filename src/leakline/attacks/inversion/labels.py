"""Which labels a turn had, and in which step: from the last layer's bias, public images, and what an objective says.

For the cross-entropy of a softmax the last bias has the gradient  g_b = mean_i(p_i - onehot(y_i)). With n_c images of
class c, and Q_c the mean prediction for images of class c,

    g_b = sum_c n_c / N (Q_c - e_c)        e_c = onehot(c)

so every way to have N labels predicts a g_b of its own, and the nearest are candidates. Q comes from public images,
sent through the network as the client sends its own (in training mode, in batches of its size). On random weights all
Q_c are alike; on trained ones they are not, and a Q that is the same for all classes counts labels wrongly.

Where the batch's own moments in BatchNorm layers are known, they say more. The mean prediction p of this very batch
gives the shares without any class means, s = p - g_b, and the last layers' moments say what p was: what they say is
learnt from batches of public images (`batch_mean`). A network's trained head shows each image's class in them.

Which labels met in which step is not in the sum of the steps. There are few ways to deal them out, and a wrong one
leaves an objective that cannot fall: candidates are tried, and the one that gets furthest is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations_with_replacement, product

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from leakline.attacks.class_shares import FOLDS, Shares, drawn, learnt
from leakline.attacks.inversion.deals import deals
from leakline.attacks.inversion.twin import Twin
from leakline.data.base import Data

MOST_COUNTS = 20_000
"""So many ways to have N labels are looked at one by one; beyond, those around the solution of the equations."""
NEXT = 5
"""So many counts are candidates at most."""
LAST = 2
"""Of so many normalisation layers, the last ones, moments tell a batch's mean prediction."""
BATCHES, SHOWN = 150, 2400
"""So many public batches teach what moments say of predictions, of so many images in all at most."""
FEWEST = 24
"""With fewer batches nothing is learnt."""


def class_means(network: nn.Module, public: Data, classes: int, size: int, channels: int) -> tuple[Tensor, float]:
    """Q [classes, classes], the mean prediction for public images of each class, and how far single ones are from it.

    In training mode, in batches of ``size``. The second is the root mean square of |p_i - Q_c|.
    """
    order = torch.randperm(len(public), generator=torch.Generator().manual_seed(0))[:512]
    size = max(2, min(size, len(order)))
    order = order[: len(order) // size * size]
    with torch.no_grad():
        shown = torch.cat([_predictions(network, public.inputs(rows), channels) for rows in order.view(-1, size)])
    y = public.y[order]
    member = functional.one_hot(y, classes).to(shown.dtype)
    count = member.sum(0)[:, None]
    means = torch.where(count > 0, member.T @ shown / count.clamp_min(1), shown.mean(0))
    return means, float((shown - means[y]).square().sum(1).mean().sqrt())


def batch_mean(
    twin: Twin, public: Data, classes: int, size: int, channels: int, observed: Mapping[str, tuple[Tensor, Tensor]]
) -> Shares | None:
    """The mean prediction of a batch of ``size`` whose moments in normalisation layers were ``observed``.

    Ridge regression on public batches with class shares drawn at random (`class_shares.learnt`: its reach is the error
    that one more batch exceeds in 5 of 100 cases). It is linear or nearly so, so that means over several steps' moments
    give the mean over steps. None where moments or public images are too few.
    """
    count = min(BATCHES, SHOWN // size)
    if size < 2 or count < FEWEST or len(public) < FOLDS * size:
        return None
    rng = np.random.default_rng(0)
    order, folds, labels = rng.permutation(len(public)), np.arange(count) % FOLDS, public.labels()
    shown, rows = [], []
    for fold in folds:
        _, mine = drawn(labels, order[fold::FOLDS], size, classes, rng)
        with torch.no_grad():
            shown.append(_predictions(twin, public.inputs(torch.as_tensor(mine)), channels).mean(0).double().numpy())
        names = [name for name in twin.seen.moments if name in observed][-LAST:]
        if not names:
            return None
        moments = [twin.seen.moments[name] for name in names]
        rows.append(_moments([(mean, biased * n / max(n - 1, 1)) for mean, biased, n in moments]))
    asked, made = _moments([observed[name] for name in names]), np.stack(rows)
    spread = made.std(0) + 1e-3 * made.std() + 1e-12
    return learnt({"moments": made / spread}, np.stack(shown), folds, {"moments": asked / spread}, 0.05)


def _moments(pairs: Sequence[tuple[Tensor, Tensor]]) -> np.ndarray:
    """Means and standard deviations of all channels in one row."""
    flat = [part for mean, variance in pairs for part in (mean, variance.clamp_min(0).sqrt())]
    return torch.cat(flat).double().numpy()


def _predictions(network: nn.Module, x: Tensor, channels: int) -> Tensor:
    return torch.softmax(network(x.expand(-1, channels, -1, -1) if x.shape[1] == 1 else x), 1)


def ranked_counts(
    bias: Tensor, images: int, means: Tensor, left: Tensor | None = None
) -> list[tuple[float, tuple[int, ...]]]:
    """Numbers of images by class, the nearest to ``bias`` first, each with its distance.

    ``left`` [classes]: what a clip of examples leaves of those of each class; None: all.
    """
    classes = len(bias)
    lines = means.double() - torch.eye(classes, dtype=torch.float64)
    lines = lines if left is None else left.double()[:, None] * lines
    found = []
    for counts in _counts(bias.double(), images, lines):
        share = torch.tensor(counts, dtype=torch.float64) / images
        found.append((float((share @ lines - bias.double()).norm()), counts))
    return sorted(found)


def _counts(bias: Tensor, images: int, lines: Tensor) -> Iterator[tuple[int, ...]]:
    classes = len(bias)
    if math.comb(images + classes - 1, images) <= MOST_COUNTS:
        for labels in combinations_with_replacement(range(classes), images):
            yield tuple(labels.count(c) for c in range(classes))
        return
    # The equations sum to 0 = 0: that all shares make 1 takes the place of the one that is lost.
    left, right = torch.cat([lines.T, torch.ones_like(lines[:1])]), torch.cat([bias, bias.new_ones(1)])
    share = torch.linalg.lstsq(left, right[:, None], driver="gelsd").solution[:, 0].clamp_min(0)
    share = share / share.sum().clamp_min(1e-12) * images
    whole = share.floor().long()
    order = (share - whole).argsort(descending=True)
    whole[order[: images - int(whole.sum())]] += 1
    yield tuple(whole.tolist())
    for lose, win in product(range(classes), repeat=2):
        if lose != win and whole[lose] > 0:
            near = whole.clone()
            near[lose] -= 1
            near[win] += 1
            yield tuple(near.tolist())


def candidates(
    ranked: Sequence[tuple[float, tuple[int, ...]]],
    steps: Sequence[Sequence[int]],
    images: int,
    most: int,
    slack: float = 0.0,
) -> list[Tensor]:
    """At most so many label vectors [images]: the best counts' deals first, then those of the next best counts.

    The next best counts are taken in where they are at most twice as far off as the best, off by what half an image
    makes, or further than the best by no more than ``slack``: noise, learning between steps, unequal predictions.
    """
    epoch = _one_epoch(steps)
    best = ranked[0][0]
    near = [counts for far, counts in ranked[:NEXT] if far <= max(2 * best, 0.5 / images, best + slack)]
    found: list[Tensor] = []
    for counts in near:
        for way in deals(counts, [len(rows) for rows in epoch], most):
            labels = torch.zeros(images, dtype=torch.int64)
            for rows, dealt in zip(epoch, way, strict=True):
                labels[list(rows)] = torch.repeat_interleave(torch.arange(len(dealt)), torch.tensor(dealt))
            found.append(labels)
            if len(found) == most:
                return found
    return found


def _one_epoch(steps: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """The steps until every image has been seen; later ones see the same images again."""
    seen: set[int] = set()
    epoch = []
    for rows in steps:
        if seen & set(rows):
            break
        seen |= set(rows)
        epoch.append(rows)
    return epoch
