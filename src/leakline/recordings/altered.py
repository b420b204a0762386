"""Was the model that was sent altered to take clients' data? What its weights show, and what they do not.

A server that cheats puts a layer before the network, or weights into one that is there, whose rows all measure the same
direction h with other thresholds, w_i = c_i h, so that images fall into bins and lie bare in the gradient (Fowl et al.
2022, and leakline's own ``imprint``). No training makes that: rows that start at random and are moved by gradients do
not come to be parallel, and rows that were made equal on purpose have equal thresholds too.

Weights that are chosen to do harm otherwise (trap weights, Boenisch et al. 2023) are not seen by this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakline.recordings.findings import Finding, rounds_in_words
from leakline.weights import Weights

FEWEST_ROWS, FEWEST_COLUMNS = 8, 16
PARALLEL = 1 - 1e-5
"""The cosine from which on two rows point the same way, in float32."""
MOST_VALUES = 2**26


@dataclass(frozen=True)
class Bins:
    """A layer of which so many rows of all measure a direction that another row measures too, at another threshold."""

    round: int
    layer: str
    parallel: int
    rows: int


def bins_in(index: int, weights: Weights) -> Iterator[Bins]:
    """The layers of a model that look like rulers: half of their rows, or more, have a twin."""
    arrays = {entry.name: values for entry, values in weights.layers() if not entry.buffer}
    for name, values in arrays.items():
        if values.dim() < 2 or values.numel() > MOST_VALUES:
            continue
        rows = values.flatten(1)
        if len(rows) < FEWEST_ROWS or rows.shape[1] < FEWEST_COLUMNS:
            continue
        bias = arrays.get(f"{name.removesuffix('weight')}bias") if name.endswith("weight") else None
        twins = parallel_rows(rows, bias if bias is not None and bias.shape == (len(rows),) else None)
        if 2 * twins >= len(rows):
            yield Bins(index, name, twins, len(rows))


def parallel_rows(rows: Tensor, bias: Tensor | None) -> int:
    """How many rows [n, d] have another that is parallel to them, but with another threshold b_i / |w_i|.

    Parallel rows have the same angle to any direction: sorted by that to a random one, they lie side by side.
    """
    lengths = rows.double().norm(dim=1)
    live = torch.nonzero(lengths > 1e-6 * lengths.max().clamp_min(1e-30))[:, 0]
    if len(live) < FEWEST_ROWS or bias is None:
        return 0
    units = rows[live].double() / lengths[live, None]
    first = units @ torch.randn(units.shape[1], generator=torch.Generator().manual_seed(0)).double()
    units, first = units * first.sign()[:, None], first.abs()
    order = first.argsort()
    units, threshold = units[order], (bias[live].double() / lengths[live])[order]
    close = (units[1:] * units[:-1]).sum(1) > PARALLEL
    apart = (threshold[1:] - threshold[:-1]).abs() > 1e-5 * threshold.abs().max().clamp_min(1e-30)
    beside = close & apart
    has = torch.zeros(len(units), dtype=torch.bool)
    has[1:] |= beside
    has[:-1] |= beside
    return int(has.sum())


def altered_findings(bins: Sequence[Bins], jumps: Mapping[int, float]) -> list[Finding]:
    """What was found of rulers, and of rounds that began with another model than the one before ended with."""
    findings = []
    if bins:
        first, rounds = bins[0], sorted({found.round for found in bins})
        text = (
            f"{first.parallel} of {first.rows} rows of {first.layer} measure directions that others measure too, at "
            f"other thresholds ({rounds_in_words(rounds)}): such a layer sorts images into bins, for the server to read"
        )
        numbers = {"rows": float(first.parallel), "of": float(first.rows)}
        findings.append(Finding("altered model", "leaks", text, numbers, tuple(rounds)))
    if jumps:
        worst = max(jumps, key=lambda index: jumps[index])
        text = (
            f"{rounds_in_words(jumps)} began with another model than the one before ended with (round {worst}: "
            f"{jumps[worst]:.2g} of its length away)"
        )
        findings.append(Finding("model sent", "seen", text, {"furthest": jumps[worst]}, tuple(sorted(jumps))))
    return findings


def jump(result: Weights | None, sent: Weights) -> float:
    """How far a round's start is from the last round's end, over its length; 0 where rounding explains it."""
    if result is None or result.layout != sent.layout:
        return 0.0
    apart = float((sent.vector - result.vector).double().norm() / result.vector.double().norm().clamp_min(1e-30))
    return apart if apart > 1e-6 else 0.0
