r"""Class shares from the last layer of one update: what simulated clients with known shares teach about a real one.

In cross-entropy training one step over n examples with labels y and predictions p has the last bias's gradient

    g_c = mean_i p_ic - s_c        s_c  the share of class c among the n examples

so the update tells the shares up to the mean prediction, which images of one's own show well enough: then the shares
are linear in the update, with slope one over the learning rate. After many steps predictions have moved, and how is not
written down in closed form; but it can be simulated. So the map from update to shares is learnt from simulated clients
(as many examples, the same plan, shares drawn at random) by ridge regression; after one step it is the line above.

The interval comes from the same simulated clients, which are made of FOLDS separate parts of the public images: what is
learnt and chosen on clients of the other parts is held against those of the part left out, whose images it has never
seen, and the k-th largest error bounds the error on one more client like them (by rank, as in conformal prediction;
Vovk et al. 2005). It holds for a client whose examples are like the public ones class by class, and not beyond.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

FOLDS = 3
"""Into how many parts the public images are cut, so that errors are measured on images that nothing was learnt from."""

PENALTIES = tuple(10.0**e for e in range(-8, 2))
"""What ridge regressions try, relative to the mean squared length of the features."""


Rule = tuple[str, float]
"""Features and penalty."""


@dataclass(frozen=True)
class Shares:
    """Estimated shares [C] of one client, how far off each may be, and by which features they were found."""

    shares: np.ndarray
    reach: float
    rule: str


def learnt(
    features: Mapping[str, np.ndarray],
    shares: np.ndarray,
    folds: np.ndarray,
    asked: Mapping[str, np.ndarray],
    miss: float,
) -> Shares:
    """The shares of one client from its features, learnt on K simulated clients with ``shares`` [K, C].

    ``features`` are kinds of rows [K, d] to choose from, ``asked`` the client's own [d], ``folds`` [K] the parts of the
    public images. ``miss``: how often the interval may be wrong; with fewer than 1 / miss - 1 simulated clients it says
    nothing, and is [0, 1].
    """
    grams = {name: _gram(np.concatenate([rows, asked[name][None]])) for name, rows in features.items()}
    grams |= {f"{name}, squared": gram + gram**2 / 4 for name, gram in grams.items()}
    errors: list[float] = []
    for fold in np.unique(folds):
        kept, out = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        rule = _chosen(grams, shares, folds, kept)
        guesses = _fit(grams, shares, kept, out, rule)
        errors += [float(np.abs(on_simplex(g) - s).max()) for g, s in zip(guesses, shares[out], strict=True)]
    every = np.arange(len(shares))
    rule = _chosen(grams, shares, folds, every)
    (guess,) = _fit(grams, shares, every, np.array([len(shares)]), rule)
    return Shares(on_simplex(guess), _rank(errors, miss), rule[0])


def drawn(
    labels: np.ndarray, rows: np.ndarray, examples: int, classes: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Shares drawn evenly from all there are, and so many of the ``rows``: each once before any comes twice.

    ``labels`` are those of all public examples; a class that none of the rows has is taken from all of them.
    """
    counts = counts_of(rng.dirichlet(np.ones(classes)), examples)
    chosen = []
    for c in np.flatnonzero(counts):
        mine = rows[labels[rows] == c] if (labels[rows] == c).any() else np.flatnonzero(labels == c)
        repeats = [rng.permutation(mine) for _ in range(-(-int(counts[c]) // len(mine)))]
        chosen.append(np.concatenate(repeats)[: counts[c]])
    return counts / examples, np.concatenate(chosen)


def _gram(rows: np.ndarray) -> np.ndarray:
    """Inner products of rows around the mean of all but the last, which is the client asked for, in their own scale."""
    away = rows - rows[:-1].mean(0)
    return np.asarray(away @ away.T) / max(float(np.square(away[:-1]).sum(1).mean()), 1e-300)


def _chosen(grams: Mapping[str, np.ndarray], shares: np.ndarray, folds: np.ndarray, among: np.ndarray) -> Rule:
    """The features and the penalty with the smallest squared error on folds left out, of the clients ``among``."""

    def error(rule: Rule) -> float:
        total = 0.0
        for fold in np.unique(folds[among]):
            kept, out = among[folds[among] != fold], among[folds[among] == fold]
            total += float(np.square(_fit(grams, shares, kept, out, rule) - shares[out]).sum())
        return total

    return min(((name, penalty) for name in grams for penalty in PENALTIES), key=error)


def _fit(
    grams: Mapping[str, np.ndarray], shares: np.ndarray, kept: np.ndarray, asked: np.ndarray, rule: Rule
) -> np.ndarray:
    """What a ridge regression on the clients ``kept`` says about those ``asked`` for."""
    name, penalty = rule
    gram = grams[name]
    centre = np.eye(len(kept)) - 1 / len(kept)
    inner = gram[np.ix_(kept, kept)]
    mean = shares[kept].mean(0)
    weights = np.linalg.solve(centre @ inner @ centre + penalty * np.eye(len(kept)), shares[kept] - mean)
    return np.asarray((gram[np.ix_(asked, kept)] - inner.mean(0)) @ centre @ weights + mean)


def _rank(errors: Sequence[float], miss: float) -> float:
    """The error that one more client exceeds with chance at most ``miss``: the ceil((K + 1)(1 - miss))-th smallest."""
    place = math.ceil((len(errors) + 1) * (1 - miss) - 1e-9)
    return 1.0 if place > len(errors) else sorted(errors)[place - 1]


def on_simplex(point: np.ndarray) -> np.ndarray:
    """The nearest shares: none below 0, 1 in sum (Duchi et al. 2008)."""
    ordered = np.sort(point)[::-1]
    above = (np.cumsum(ordered) - 1) / np.arange(1, len(point) + 1)
    last = int(np.flatnonzero(ordered > above)[-1])
    return np.asarray(np.maximum(point - above[last], 0.0))


def counts_of(shares: np.ndarray, examples: int) -> np.ndarray:
    """Whole numbers of examples with sum ``examples``, nearest to the shares (largest remainders)."""
    exact = shares * examples
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: examples - int(counts.sum())]] += 1
    return np.asarray(counts)
