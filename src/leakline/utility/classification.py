"""Utility of a classifier: pure functions of all logits [N, K] and all labels [N].

Torch tensors or NumPy arrays in, floats out; scikit-learn's conventions, without importing it. A model that
noise has wrecked may give NaN or infinite logits: such a row counts as a wrong answer of no class, and
measures that rest on the values themselves (loss, AUC) answer NaN.
"""

from __future__ import annotations

from math import nan

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

Array = Tensor | np.ndarray

MEASURED = ("accuracy", "balanced_accuracy", "f1", "precision", "auc_micro", "auc_binary", "loss")
"""What `summary` may return; `leakline.measures` describes each."""


def predictions(logits: Array) -> Tensor:
    """The most likely class of each row; K, which is no class, where a logit is not finite."""
    rows = torch.as_tensor(logits)
    return torch.where(rows.isfinite().all(1), rows.argmax(1), rows.shape[1])


def confusion(logits: Array, labels: Array) -> Tensor:
    """Counts [K, K + 1]: rows are true classes, columns predicted ones, the last column "no class"."""
    rows, truth = _pair(logits, labels)
    classes = rows.shape[1]
    cells = truth * (classes + 1) + predictions(rows)
    return torch.bincount(cells, minlength=classes * (classes + 1)).view(classes, classes + 1)


def accuracy(logits: Array, labels: Array) -> float:
    """Share of right answers."""
    counts = confusion(logits, labels)
    return float(counts.diagonal().sum() / counts.sum())


def balanced_accuracy(logits: Array, labels: Array) -> float:
    """Mean recall over the classes that occur among the labels."""
    counts = confusion(logits, labels).double()
    occurs = counts.sum(1) > 0
    return float((counts.diagonal()[occurs] / counts.sum(1)[occurs]).mean())


def macro_precision(logits: Array, labels: Array) -> float:
    """Mean precision over the classes that occur or are predicted; 0 for a class never predicted."""
    hits, occurs, answered = _hits(logits, labels)
    return float((hits / answered.clamp_min(1))[occurs + answered > 0].mean())


def macro_f1(logits: Array, labels: Array) -> float:
    """Mean of F1 = 2 hits / (occurrences + predictions) over the classes that occur or are predicted."""
    hits, occurs, answered = _hits(logits, labels)
    return float((2 * hits / (occurs + answered).clamp_min(1))[occurs + answered > 0].mean())


def cross_entropy(logits: Array, labels: Array) -> float:
    """Mean cross-entropy in nats."""
    rows, truth = _pair(logits, labels)
    return float(functional.cross_entropy(rows.double(), truth))


def binary_auc(scores: Array, positive: Array) -> float:
    """Area under the ROC curve = P(score of a positive > score of a negative), ties counting half.

    From mean ranks (Mann and Whitney 1947). NaN when one side is empty or a score is NaN.
    """
    values, truth = torch.as_tensor(scores).double().flatten(), torch.as_tensor(positive).bool().flatten()
    positives = int(truth.sum())
    negatives = len(truth) - positives
    if not positives or not negatives or bool(values.isnan().any()):
        return nan
    _, place, counts = torch.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    mean_rank = last - (counts - 1) / 2
    rank_sum = float(mean_rank[place[truth]].sum())
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


def micro_auc(logits: Array, labels: Array) -> float:
    """Micro-averaged one-vs-rest AUC: all N K decisions "is row i of class k" as one binary problem.

    The figure beside the ROC curves of paper 000 (C.4, C.5). Scores are softmax probabilities.
    """
    rows, truth = _pair(logits, labels)
    return binary_auc(rows.double().softmax(1), functional.one_hot(truth, rows.shape[1]))


def summary(logits: Array, labels: Array) -> dict[str, float]:
    """All of `MEASURED` at once; "auc_binary" only where there are two classes."""
    rows, truth = _pair(logits, labels)
    two = {"auc_binary": binary_auc(rows.double().diff(dim=1), truth)} if rows.shape[1] == 2 else {}
    return {
        "accuracy": accuracy(logits, labels),
        "balanced_accuracy": balanced_accuracy(logits, labels),
        "f1": macro_f1(logits, labels),
        "precision": macro_precision(logits, labels),
        "auc_micro": micro_auc(logits, labels),
        **two,
        "loss": cross_entropy(logits, labels),
    }


def _pair(logits: Array, labels: Array) -> tuple[Tensor, Tensor]:
    rows, truth = torch.as_tensor(logits).detach().cpu(), torch.as_tensor(labels).cpu().long()
    if rows.ndim != 2 or truth.shape != rows.shape[:1] or not len(rows):
        raise ValueError(
            f"logits [N, K] and labels [N], N > 0, are needed; got {tuple(rows.shape)}, {tuple(truth.shape)}"
        )
    low, high = int(truth.min()), int(truth.max())
    if low < 0 or high >= rows.shape[1]:
        raise ValueError(f"labels must lie in 0..{rows.shape[1] - 1}; got {low}..{high}")
    return rows, truth


def _hits(logits: Array, labels: Array) -> tuple[Tensor, Tensor, Tensor]:
    counts = confusion(logits, labels).double()
    return counts.diagonal(), counts.sum(1), counts.sum(0)[:-1]
