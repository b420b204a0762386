"""Between the records of somebody's Flower app and leakline's one carrier: named arrays to a vector, and back."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

from leakline.errors import StackError
from leakline.messages import Dropped, Update, problem_with
from leakline.names import printable
from leakline.weights import Entry, Layout, Weights

COUNTER = "num_batches_tracked"
STATISTICS = ("running_mean", "running_var")
EXAMPLES, ARRAYS = "num-examples", "arrays"
"""Flower's own names for the weight of a reply, and for the model in a message."""


@dataclass(frozen=True)
class Bridge:
    """How the arrays of one app lie in a vector: parameters first, then BatchNorm statistics, counters left out.

    A record of arrays does not say which of them are trained. Statistics are told by PyTorch's names for them; an app
    with other names says them in ``buffers``. Whole numbers (counters) do not travel in leakline: they stay as sent.
    """

    layout: Layout
    left_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, arrays: ArrayRecord, buffers: Iterable[str] = ()) -> Bridge:
        """The bridge for a record; a ValueError where an array is neither of floats nor of whole numbers."""
        named, entries, counters = set(buffers), [], []
        for name, array in arrays.items():
            kind = np.dtype(array.dtype).kind
            if name.rpartition(".")[2] == COUNTER or kind in "iub":
                # Flower's mean turns counters into floats, so the name has the first word.
                counters.append(name)
            elif kind == "f":
                buffer = name in named or name.rpartition(".")[2] in STATISTICS
                entries.append(Entry(name, tuple(int(n) for n in array.shape), buffer))
            else:
                raise ValueError(f"tensor {printable(name, 64)} is of type {printable(array.dtype, 20)}")
        if not entries:
            raise StackError(
                "this app sends no arrays of floating-point numbers, and leakline works on those",
                "Flower",
                "trees and other models without weights cannot be recorded or defended here",
            )
        return cls(Layout(tuple(sorted(entries, key=lambda entry: entry.buffer))), tuple(counters))

    def weights(self, arrays: ArrayRecord) -> Weights:
        """The values of a record in this layout."""
        parts = [np.asarray(arrays[e.name].numpy(), dtype=np.float32).ravel() for e in self.layout.entries]
        vector = torch.from_numpy(np.concatenate(parts)) if parts else torch.zeros(0)
        return Weights(self.layout, vector)

    def record(self, weights: Weights, like: ArrayRecord) -> ArrayRecord:
        """``like`` with these values in it: types, and entries that ``weights`` does not hold, stay as there."""
        found = dict(like.items())
        for entry, values in weights.layers():
            found[entry.name] = Array(np.array(values.numpy(), dtype=np.dtype(like[entry.name].dtype)))
        return ArrayRecord(found)

    def update(
        self, content: RecordDict, sent: Weights, client: str, key: str = EXAMPLES, *, several: bool = False
    ) -> Update | Dropped:
        """A reply as an update, checked as if it came from an enemy: anything odd is a dropped client.

        ``sent`` may be a part of the layout: entries that stay at home are not looked at. Steps are not known (0).
        ``several``: other records of arrays may lie beside the model's.
        """
        try:
            arrays, metrics = (model_arrays if several else only_arrays)(content), only_metrics(content, key)
            theirs = Bridge.of(arrays, self.layout.buffers)
            strange = [e for e in theirs.layout.entries if e.name not in self.layout.slices]
            if strange:
                return Dropped(client, f"unknown tensor {printable(strange[0].name, 64)}")
            there = theirs.layout.only(lambda name: name in sent.layout.slices)
            if set(there.entries) == set(sent.layout.entries):
                there = sent.layout
            values = Bridge(there).weights(arrays)
            update = Update(client, values, _examples(metrics, key), 0, _figures(metrics, key))
            if bad := problem_with(update, sent):
                return Dropped(client, bad)
            update = replace(update, delta=values - sent)
            bad = problem_with(update, sent)
            return Dropped(client, bad) if bad else update
        except Exception as error:  # a reply may hold anything at all
            said = str(error) if type(error) is ValueError else type(error).__name__
            return Dropped(client, f"its reply cannot be read: {printable(said, 120)}")


def only_arrays(content: RecordDict) -> ArrayRecord:
    """The one record of arrays in a message."""
    found = list(content.array_records.values())
    if len(found) != 1:
        raise ValueError(f"one record of arrays is needed, there are {len(found)}")
    return found[0]


def model_arrays(content: RecordDict) -> ArrayRecord:
    """The one record of arrays, or where an app sends several the one that has Flower's usual name."""
    found = content.array_records
    return found[ARRAYS] if len(found) > 1 and ARRAYS in found else only_arrays(content)


def only_metrics(content: RecordDict, key: str) -> MetricRecord:
    """The record of metrics that holds the number of examples."""
    found = [record for record in content.metric_records.values() if key in record]
    if len(found) != 1:
        raise ValueError(f"it reports no {printable(key, 40)}")
    return found[0]


def _examples(metrics: MetricRecord, key: str) -> int:
    value = metrics[key]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value  # type: ignore[no-any-return]  # the guard says what is wrong with it


def _figures(metrics: MetricRecord, key: str) -> dict[str, float]:
    return {k: float(v) for k, v in metrics.items() if k != key and isinstance(v, int | float)}


def finite_figures(figures: Any) -> dict[str, float]:
    """Metrics that are one finite number each."""
    return {str(k): float(v) for k, v in dict(figures or {}).items() if isinstance(v, int | float) and math.isfinite(v)}


def node_name(node: int) -> str:
    """A client by its node: all that Flower tells the server about it."""
    return f"node-{node}"
