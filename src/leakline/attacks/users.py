"""Guessing something about users from one row of numbers each: folds over users, learners, honest statistics.

Users are the units: a user is in one fold, intervals come from leaving users out, and repeats of the cross-validation
are averaged, since they look at the same people again.

Scores out of folds hang together: each was learnt from the labels of all other users. So p-values learn again for
every permutation of the labels, by a rule that makes it cheap: ridge regression, whose scores are a fixed matrix times
the labels (`ridge`, `Refit`). The p-value of a way is that of the ridge rule on the same feature, whatever the
learner (a forest cannot be refitted a thousand times); it asks whether the feature tells anything of the label. How
much further the ridge's AUC strays over permutations than independent scores would is how much wider intervals are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import rankdata

from leakline.attacks.verdicts import leaks
from leakline.federation import Federation
from leakline.leakage.guessing import majority_baseline, newcombe_auc, tpr_at_fprs, unit_interval
from leakline.leakage.interval import Interval
from leakline.readings import Fact, Reading
from leakline.weights import Weights

Learner = Literal["forest", "logistic", "discriminant"]
DEPTH = 10
PERMUTATIONS = 999
RIDGE = 0.4
"""What logistic regression's penalty comes to at even odds: 1 / (C p (1 - p)) with C = 10."""


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

    own, others = _in_their_span(x, asked)
    if not own.size:
        return np.full(len(asked), 0.5)
    model = LogisticRegression(C=10.0, class_weight="balanced", solver="newton-cholesky", tol=1e-8, random_state=seed)
    return np.asarray(model.fit(own, y).predict_proba(others)[:, 1])


def discriminant(x: np.ndarray, y: np.ndarray, asked: np.ndarray, seed: int, trees: int) -> np.ndarray:
    """Probability of 1 by Fisher's linear discriminant, both classes alike likely, on standardised features.

    The covariance within classes is shrunk as Ledoit and Wolf (2004) say, in the span of the training rows: with more
    features than users it has no inverse of its own.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    own, others = _in_their_span(x, asked)
    if not own.size:
        return np.full(len(asked), 0.5)
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto", priors=[0.5, 0.5])
    return np.asarray(model.fit(own, y).predict_proba(others)[:, 1])


def ridge(x: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """The matrix H of ridge regression on standardised features: scores of the users asked are H (y - mean of y)."""
    rows, others = _standardised(x, asked)
    return np.asarray(others @ rows.T @ np.linalg.inv(rows @ rows.T + RIDGE * np.eye(len(rows))))


def _in_their_span(x: np.ndarray, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standardised rows by their principal axes, and the rows asked for along the same."""
    rows, others = _standardised(x, asked)
    kernel = rows @ rows.T
    values, vectors = np.linalg.eigh(kernel)
    keep = values > 1e-10 * max(values[-1], 1e-300)
    basis = vectors[:, keep] / np.sqrt(values[keep])
    return kernel @ basis, others @ rows.T @ basis


def _standardised(x: np.ndarray, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, sd = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
    scale = np.where(sd > 0, 1 / np.where(sd > 0, sd, 1) / np.sqrt(x.shape[1]), 0.0)
    return (x - mean) * scale, (asked - mean) * scale


LEARNERS: dict[Learner, Callable[[np.ndarray, np.ndarray, np.ndarray, int, int], np.ndarray]] = {
    "forest": forest,
    "logistic": logistic,
    "discriminant": discriminant,
}


def output_of(model: Weights) -> str:
    """The layer that gives the classes."""
    return model.layout.entries[-1].name.rpartition(".")[0]


@dataclass(frozen=True, eq=False)
class Refit:
    """A ridge rule before it has seen labels: the users ``asked`` score H (y - mean of y), y those of ``learn``."""

    asked: tuple[str, ...]
    learn: tuple[str, ...]
    hat: np.ndarray


@dataclass(frozen=True)
class Guess:
    """What the attacker says of one fold: scores by way and user, and of each feature the rule that can be refitted."""

    scores: Mapping[str, Mapping[str, float]]
    refits: Mapping[str, Sequence[Refit]]


def user_readings(
    scores: Mapping[str, np.ndarray],
    labels: np.ndarray,
    users: Sequence[str],
    refits: Mapping[str, Sequence[tuple[int, Refit]]],
    rng: np.random.Generator,
    note: str = "",
    about: Mapping[str, Fact] | None = None,
) -> list[Reading]:
    """How well scores in [0, 1] tell the users with label 1: every way by itself, and the best with its due p-value.

    ``scores[way]`` and ``labels`` are worlds x users; a world is one drawing of the labels (a trait has one, who
    took part has many). A way is named feature+learner; ``refits[feature]`` are its rules, each with its world.
    Figures are averaged over worlds, intervals leave users out, labels are permuted in each world.
    """
    found: list[Reading] = []
    p_values, best, strays = _p_values(refits, labels, users, rng)
    base = majority_baseline(labels.ravel()).value
    areas: dict[str, Interval] = {}
    for name, own in scores.items():
        feature = name.partition("+")[0]
        told: dict[str, Fact] = {"rule": name, **(about or {})}
        p, stray = p_values[feature], strays[feature]
        areas[name] = area = _over_users(own, labels, stray, _area)
        right = _over_users(own, labels, stray, _balanced)
        share = _over_users(own, labels, stray, _accuracy)
        curve = tpr_at_fprs(np.concatenate([_ranks(world) for world in own]), labels.ravel(), copies=len(own))
        said = f"p = {p:.3g}" + (f"; {note}" if note else "")
        found += leaks({"auc": area}, {}, {**told, "p": p}, said)
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
    refits: Mapping[str, Sequence[tuple[int, Refit]]],
    labels: np.ndarray,
    users: Sequence[str],
    rng: np.random.Generator,
) -> tuple[dict[str, float], float, dict[str, float]]:
    """One-sided permutation p-values of the ridge rule's mean AUC, refitted each time; and how far it strays.

    Of each feature by itself, of the largest among all, and for each the standard deviation of its AUC over
    permutations by that of independent scores, sqrt((n + 1) / (12 n1 n0 W)) for W worlds.
    """
    shuffled = np.stack([rng.permuted(np.tile(world, (PERMUTATIONS, 1)), axis=1) for world in labels])
    # Row 0 is the truth: it counts among its own permutations, so that p is never 0.
    tried = np.concatenate([labels[:, None], shuffled], axis=1).astype(np.float64)
    areas = {feature: _refitted(rules, tried, users) for feature, rules in refits.items()}
    largest = np.max(list(areas.values()), axis=0)
    ones, n = labels.sum(1), labels.shape[1]
    alone = np.sqrt(((n + 1) / (12 * ones * (n - ones))).sum()) / len(labels)
    strays = {feature: max(1.0, float(own[1:].std() / alone)) for feature, own in areas.items()}
    return {feature: _share_above(own) for feature, own in areas.items()}, _share_above(largest), strays


def _refitted(rules: Sequence[tuple[int, Refit]], tried: np.ndarray, users: Sequence[str]) -> np.ndarray:
    """The mean AUC over worlds for each row of labels (worlds x rows x users)."""
    place = {user: i for i, user in enumerate(users)}
    scores = np.zeros(tried.shape)
    for world, rule in rules:
        learn, asked = ([place[name] for name in names] for names in (rule.learn, rule.asked))
        known = tried[world][:, learn]
        scores[world][:, asked] += (known - known.mean(1, keepdims=True)) @ rule.hat.T
    ranks = rankdata(scores, axis=2)
    ones = tried.sum(2)
    wins = (ranks * tried).sum(2) - ones * (ones + 1) / 2
    return np.asarray((wins / (ones * (tried.shape[2] - ones))).mean(0))


def _share_above(values: np.ndarray) -> float:
    return float((values >= values[0] - 1e-12).mean())


def _over_users(scores: np.ndarray, labels: np.ndarray, strays: float, statistic: Statistic) -> Interval:
    """A statistic averaged over worlds; the interval leaves out users, each from all worlds at once.

    Around the AUC it holds Newcombe's for one world as well, which does not trust a spread of nearly nothing.
    """
    users = labels.shape[1]
    weights = np.concatenate([np.ones((1, users)), 1 - np.eye(users)])
    with np.errstate(invalid="ignore", divide="ignore"):  # without a user a world may lack one of the labels
        values = np.stack(
            [statistic(own, weights * truth, weights * ~truth) for own, truth in zip(scores, labels, strict=True)]
        )
        judged = ~np.isnan(values)
        mean = np.where(judged, values, 0).sum(0) / judged.sum(0)
    value, left = float(mean[0]), mean[1:][~np.isnan(mean[1:])]
    found = unit_interval(value, left, users, inflation=strays)
    if statistic is not _area:
        return found
    ones = float(labels.sum(1).mean())
    low, high = newcombe_auc(value, ones, users - ones)
    return Interval(value, min(low, found.low), max(high, found.high), users, found.method)


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
