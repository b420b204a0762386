"""An update as a row of numbers that a classifier can learn from: raw, with sorted neurons, or as moments of neurons.

Hidden neurons can be renumbered without changing a network, so Ganju et al. (2018) want features that do not depend on
the numbering. Clients of a federation all start from one broadcast model, so their neurons are numbered alike already
and the raw change is a fair competitor: an attack should try all three.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from leakline.messages import Update
from leakline.weights import Weights

Feature = Literal["raw", "sorted", "moments"]
Row = np.ndarray
SHRINK = 0.1
"""Chosen among 0.01, 0.1 and 1 on a planted trait (docs/fedper.md), where AUC differed by 0.03."""


def raw(sent: Weights, delta: Weights, output: str) -> Row:
    """The change as it is."""
    return np.asarray(delta.vector.numpy(), dtype=np.float32)


def sorted_neurons(sent: Weights, delta: Weights, output: str) -> Row:
    """The change with each layer's neurons (or channels) in the order of the sum of their incoming weights.

    The order is that of the returned model, sent + delta; the next layer's inputs are reordered with it, in blocks
    where channels were flattened. Classes keep their places (``output`` names the layer that gives them). For chains
    of layers; across a skip connection the order of the layer before is used.
    """
    model = sent + delta
    order: Tensor | None = None
    parts: list[Tensor] = []
    for layer, names in delta.layout.layers.items():
        matrix = next((name for name in names if delta[name].dim() >= 2), None)
        own = order
        if matrix is not None:
            weights = _inputs(model[matrix], order)
            own = None if layer == output else torch.argsort(weights.flatten(1).sum(1), stable=True)
        for name in names:
            values = delta[name]
            if name == matrix:
                values = _inputs(values, order)
            if own is not None and values.dim() and len(values) == len(own):
                values = values[own]
            parts.append(values.flatten())
        order = own if matrix is not None else order
    return np.asarray(torch.cat(parts).numpy(), dtype=np.float32)


def moments(sent: Weights, delta: Weights, output: str) -> Row:
    """For each layer, how six figures of a neuron's change are distributed over its neurons.

    A fixed member of the DeepSets family (Zaheer et al. 2017): rho(sum over neurons of phi(neuron)), with phi =
    (mean, standard deviation, smallest, largest, length, change of bias) of the incoming weights and their mean,
    standard deviation and extremes over neurons in place of a trained network: two dozen people cannot train one.
    """
    found: list[Tensor] = []
    for names in delta.layout.layers.values():
        matrix = next((name for name in names if delta[name].dim() >= 2), None)
        if matrix is None:
            continue
        neurons = delta[matrix].flatten(1)
        bias = next((delta[n] for n in names if n != matrix and delta[n].shape == neurons.shape[:1]), None)
        figures = torch.stack(
            [
                neurons.mean(1), neurons.std(1, correction=0), neurons.amin(1), neurons.amax(1),
                torch.linalg.vector_norm(neurons, dim=1), torch.zeros(len(neurons)) if bias is None else bias,
            ]
        )  # fmt: skip
        found += [figures.mean(1), figures.std(1, correction=0), figures.amin(1), figures.amax(1)]
    return np.asarray(torch.cat(found).numpy(), dtype=np.float32) if found else raw(sent, delta, output)


FEATURES: dict[Feature, Callable[[Weights, Weights, str], Row]] = {
    "raw": raw,
    "sorted": sorted_neurons,
    "moments": moments,
}


def rows_of(feature: Feature, sent: Weights, updates: Sequence[Update], output: str) -> dict[str, Row]:
    """One row for each client; the mean where a client sent its update in parts.

    A client whose tuning diverged answers with values that are not finite. It is asked about like any other: such
    values count as no change, and huge ones are cut off where learners can still tell them from one another.
    """
    found: dict[str, list[Row]] = {}
    for update in updates:
        row = FEATURES[feature](sent, update.delta, output)
        found.setdefault(update.client, []).append(np.clip(np.nan_to_num(row, posinf=0.0, neginf=0.0), -1e6, 1e6))
    return {client: np.mean(rows, axis=0) if len(rows) > 1 else rows[0] for client, rows in found.items()}


def over_rounds(rounds: Sequence[Mapping[str, Row]]) -> dict[str, Row]:
    """A client's mean, over the rounds it took part in, of its row less everybody's mean, by that round's spread.

    The spread is the root mean square of those differences, one number a round: early rounds with their large updates
    must not drown the rest. A client that lasts in nothing is at 0.
    """
    total: dict[str, Row] = {}
    count: Counter[str] = Counter()
    for rows in rounds:
        centre = np.mean(list(rows.values()), axis=0, dtype=np.float64)
        apart = {client: row - centre for client, row in rows.items()}
        spread = np.sqrt(np.mean([np.mean(np.square(row)) for row in apart.values()])) or 1.0
        for client, row in apart.items():
            total[client] = total.get(client, 0.0) + row / spread
            count[client] += 1
    return {client: row / count[client] for client, row in total.items()}


def along(rows: Mapping[str, Row], change: Row) -> dict[str, Row]:
    """How far each row lies along a change that is looked for, whitened: one number each, (S + t I)^-1 w times the row.

    w is the change, S the covariance of the rows, t its mean eigenvalue in their span times `SHRINK`: Fisher's
    direction for who knows the difference of means and need not guess it from labels.
    """
    x = np.stack([np.asarray(row, dtype=np.float64) for row in rows.values()])
    x = x - x.mean(0)
    kernel = x @ x.T / len(x)
    t = SHRINK * float(np.trace(kernel)) / len(x) or 1.0
    inner = np.linalg.solve(kernel + t * np.eye(len(x)), x @ change)
    direction = (change - x.T @ inner / len(x)) / t
    return {client: row[None] for client, row in zip(rows, x @ direction, strict=True)}


def _inputs(values: Tensor, order: Tensor | None) -> Tensor:
    """A layer's weights with its inputs renumbered as the layer before was; flattened channels move in blocks."""
    if order is None or values.shape[1] % len(order):
        return values
    block = values.shape[1] // len(order)
    places = (order[:, None] * block + torch.arange(block)).flatten()
    return values[:, places]
