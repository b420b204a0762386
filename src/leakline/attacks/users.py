"""Guessing something about users from one row of numbers each: folds over users, learners, honest statistics.

Users are the units: a user is in one fold, intervals come from resampling users, and repeats of the cross-validation
are averaged, since they look at the same people again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from leakline.attacks.verdicts import leaks
from leakline.federation import Federation
from leakline.leakage.guessing import auc, majority_baseline, tpr_at_fprs
from leakline.leakage.interval import Interval
from leakline.readings import Fact, Reading

Learner = Literal["forest", "logistic"]
DEPTH = 10
RESAMPLES, PERMUTATIONS = 2000, 999


def folds_over(labels: Mapping[str, bool], folds: int, rng: np.random.Generator) -> list[tuple[str, ...]]:
    """Users dealt out to folds, class by class, so that each fold has its share of both."""
    dealt: list[list[str]] = [[] for _ in range(folds)]
    turn = 0
    for value in (True, False):
        names = [name for name, label in labels.items() if label == value]
        for i in rng.permutation(len(names)):
            dealt[turn % folds].append(names[i])
            turn += 1
    return [tuple(part) for part in dealt]


def test_share(federation: Federation) -> float:
    """How much local work the clients' test parts are, in units of their training parts."""
    clients = federation.task.clients
    return sum(len(c.test) for c in clients if c.test is not None) / sum(len(c.train) for c in clients)


def forest(x: np.ndarray, y: np.ndarray, asked: np.ndarray, seed: int, trees: int) -> np.ndarray:
    """Share of a random forest's votes for 1 (the paper's: 1000 trees of depth 10), both classes weighing the same."""
    from sklearn.ensemble import RandomForestClassifier

    model = RandomForestClassifier(trees, max_depth=DEPTH, class_weight="balanced", random_state=seed, n_jobs=1)
    return np.asarray(model.fit(x, y).predict_proba(asked)[:, 1])


def logistic(x: np.ndarray, y: np.ndarray, asked: np.ndarray, seed: int, trees: int) -> np.ndarray:
    """Probability of 1 under ridge logistic regression on standardised features, both classes weighing the same.

    A ridge solution lies in the span of the training rows, so it is found there: n unknowns instead of as many as
    the model has weights, and the same answer.
    """
    from sklearn.linear_model import LogisticRegression

    mean, sd = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
    scale = np.where(sd > 0, 1 / np.where(sd > 0, sd, 1) / np.sqrt(x.shape[1]), 0.0)
    rows, others = (x - mean) * scale, (asked - mean) * scale
    kernel = rows @ rows.T
    values, vectors = np.linalg.eigh(kernel)
    keep = values > 1e-10 * max(values[-1], 1e-300)
    if not keep.any():
        return np.full(len(asked), 0.5)
    basis = vectors[:, keep] / np.sqrt(values[keep])
    model = LogisticRegression(C=10.0, class_weight="balanced", solver="newton-cholesky", tol=1e-8, random_state=seed)
    model.fit(kernel @ basis, y)
    return np.asarray(model.predict_proba(others @ rows.T @ basis)[:, 1])


LEARNERS: dict[Learner, Callable[[np.ndarray, np.ndarray, np.ndarray, int, int], np.ndarray]] = {
    "forest": forest,
    "logistic": logistic,
}


def user_readings(
    scores: Mapping[str, np.ndarray],
    labels: np.ndarray,
    users: Sequence[str],
    rng: np.random.Generator,
    note: str = "",
    about: Mapping[str, Fact] | None = None,
) -> list[Reading]:
    """How well scores in [0, 1] tell the users with label 1: every way by itself, and the best with its due p-value.

    ``scores[name]`` and ``labels`` are worlds x users; a world is one drawing of the labels (a trait has one, who
    took part has many). Figures are averaged over worlds, intervals resample users, labels are permuted in each world.
    """
    found: list[Reading] = []
    p_values, best = _p_values(scores, labels, rng)
    base = majority_baseline(labels.ravel()).value
    areas: dict[str, Interval] = {}
    for name, own in scores.items():
        told: dict[str, Fact] = {"rule": name, **(about or {})}
        areas[name] = area = _over_users(own, labels, rng, _area)
        right = _over_users(own, labels, rng, _balanced)
        share = _over_users(own, labels, rng, _accuracy)
        curve = tpr_at_fprs(np.concatenate([_ranks(world) for world in own]), labels.ravel())
        said = f"p = {p_values[name]:.3g}" + (f"; {note}" if note else "")
        found += leaks({"auc": area}, {}, {**told, "p": p_values[name]}, said)
        found += leaks({"balanced-right": right}, {}, told, note)
        common = "chance: always guessing the commoner"
        found.append(
            Reading("right", share.value, share.low, share.high, share.n, chance=base, about=told, note=common)
        )
        found += leaks({}, curve, told, note)
    top = max(areas, key=lambda name: areas[name].value)
    said = f"{top}, the best of {len(areas)}; p = {best:.3g} for the largest of so many"
    chosen: dict[str, Fact] = {"choice": "best", **(about or {}), "chosen": top, "rules": len(areas), "p": best}
    return found + leaks({"auc": areas[top]}, {}, chosen, said)


def _p_values(
    scores: Mapping[str, np.ndarray], labels: np.ndarray, rng: np.random.Generator
) -> tuple[dict[str, float], float]:
    """One-sided permutation p-values of the mean AUC: of each way by itself, and of the largest among all.

    Labels are permuted against the finished out-of-fold scores. The classifiers had been trained on the true labels
    of the other users, which ties the scores together a little; the test that trains again for every permutation
    would cost a thousand times as much.
    """
    shuffled = np.stack([rng.permuted(np.tile(world, (PERMUTATIONS, 1)), axis=1) for world in labels])
    # Row 0 is the truth: it counts among its own permutations, so that p is never 0.
    tried = np.concatenate([labels[:, None], shuffled], axis=1).astype(np.float64)
    areas = {
        name: np.mean([_area(own, said, 1 - said) for own, said in zip(scores[name], tried, strict=True)], axis=0)
        for name in scores
    }
    largest = np.max(list(areas.values()), axis=0)
    return {name: _share_above(own) for name, own in areas.items()}, _share_above(largest)


def _share_above(values: np.ndarray) -> float:
    return float((values >= values[0] - 1e-12).mean())


def _over_users(scores: np.ndarray, labels: np.ndarray, rng: np.random.Generator, statistic: Statistic) -> Interval:
    """A statistic averaged over worlds, with a percentile bootstrap over users, who move in all worlds at once."""
    users = labels.shape[1]
    draws = rng.multinomial(users, np.full(users, 1 / users), size=RESAMPLES).astype(np.float64)
    weights = np.concatenate([np.ones((1, users)), draws])
    with np.errstate(invalid="ignore", divide="ignore"):  # a draw may lack one of the labels; it is left out
        values = np.stack(
            [statistic(own, weights * truth, weights * ~truth) for own, truth in zip(scores, labels, strict=True)]
        )
        judged = ~np.isnan(values)
        mean = np.where(judged, values, 0).sum(0) / judged.sum(0)
    low, high = np.nanquantile(mean[1:], [0.025, 0.975])
    if low == high and statistic is _area:
        # Resampling people who all agree cannot say how sure that is; one world's pairs can, and more are no others.
        return auc(scores[0], labels[0])
    return Interval(float(mean[0]), float(low), float(high), users, "bootstrap over users")


Statistic = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Of one world: scores, then weights of users with label 1 and of users with label 0, one row per draw."""


def _area(scores: np.ndarray, ones: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """AUC of weighted users: sum of w_i v_j [s_i > s_j] over all pairs, ties half, by the total weight of pairs."""
    wins = (scores[:, None] > scores) + 0.5 * (scores[:, None] == scores)
    return np.asarray(((ones @ wins) * zeros).sum(1) / (ones.sum(1) * zeros.sum(1)))


def _balanced(scores: np.ndarray, ones: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """Mean over both labels of the share guessed right at a score of one half."""
    said = (scores >= 0.5).astype(np.float64)
    return np.asarray((ones @ said / ones.sum(1) + zeros @ (1 - said) / zeros.sum(1)) / 2)


def _accuracy(scores: np.ndarray, ones: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    said = (scores >= 0.5).astype(np.float64)
    return np.asarray((ones @ said + zeros @ (1 - said)) / (ones + zeros).sum(1))


def _ranks(scores: np.ndarray) -> np.ndarray:
    """Scores as shares of users below, so that worlds can be laid together."""
    return np.asarray((scores[:, None] > scores).mean(1) + 0.5 * (scores[:, None] == scores).mean(1))
