"""What crosses the wire: orders and updates as Flower records, arrays and one line of JSON; nothing is pickled.

An order is the head (who, round, notes) and one float32 vector; an answer is the head and one vector for each
update. Names and shapes do not travel: both sides build the same model, so the vector's length says whether it fits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from leakline.messages import Dropped, Order, Update
from leakline.names import printable
from leakline.weights import Layout, Weights

HEAD, VECTORS = "leakline", "vectors"
NEXT = "next-"
"""Marks the second half of an answer: a turn that was taken ahead."""
MOST_PARTS = 10_000
"""A client that answers with more updates than this is not believed."""


def record(head: Mapping[str, Any], vectors: ArrayRecord | None = None, mark: str = "") -> RecordDict:
    """A message's content, or (``mark``) a further half of it."""
    parts: dict[str, Any] = {mark + HEAD: ConfigRecord({"json": json.dumps(dict(head))})}
    if vectors is not None:
        parts[mark + VECTORS] = vectors
    return RecordDict(parts)


def head_of(content: RecordDict, mark: str = "") -> dict[str, Any]:
    """The head of a message, or a ValueError."""
    head = json.loads(str(content[mark + HEAD]["json"]))
    if not isinstance(head, dict):
        raise ValueError("the head is not a table")
    return head


def arrays(vectors: Sequence[Tensor]) -> ArrayRecord:
    """Vectors as a record."""
    return ArrayRecord({str(i): Array(v.detach().contiguous().numpy()) for i, v in enumerate(vectors)})


def vector_of(content: RecordDict, position: int = 0, mark: str = "") -> Tensor:
    """One vector of a message; a ValueError where it is not one of float32."""
    vector = content[mark + VECTORS][str(position)].numpy()
    if vector.dtype != np.float32 or vector.ndim != 1:
        raise ValueError(f"its update is {vector.dtype} of shape {vector.shape}, not a float32 vector")
    # A copy: Flower's buffer is read-only, and torch wants to be able to write.
    return torch.from_numpy(vector.copy())


def order_head(order: Order) -> dict[str, Any]:
    """All of an order but its weights."""
    return {"client": order.client, "round": order.round, "notes": dict(order.notes), "kind": order.kind}


def order_of(head: Mapping[str, Any], layout: Layout, vector: Tensor) -> Order:
    """The order that a message carries."""
    if len(vector) != layout.size:
        raise ValueError(f"{len(vector)} weights came, the model has {layout.size}: the studies differ")
    return Order(head["client"], head["round"], Weights(layout, vector), head["notes"], head["kind"])


def answer_record(updates: Sequence[Update], mark: str = "") -> RecordDict:
    """A client's answer: all its updates in one message."""
    heads = [
        {"client": u.client, "examples": u.examples, "steps": u.steps, "metrics": dict(u.metrics), "part": u.part}
        for u in updates
    ]
    return record({"updates": heads}, arrays([u.delta.vector for u in updates]), mark)


def dropped_record(client: str, reason: str, mark: str = "") -> RecordDict:
    """A client's apology."""
    return record({"client": client, "dropped": reason}, None, mark)


def answers_of(content: RecordDict, order: Order, mark: str = "") -> list[Update | Dropped]:
    """What a reply holds, checked as if it came from an enemy: anything odd is a dropped client, never an error."""
    try:
        head = head_of(content, mark)
        if "dropped" in head:
            return [Dropped(order.client, printable(head["dropped"], 200))]
        heads = head["updates"]
        if not 1 <= len(heads) <= MOST_PARTS:
            raise ValueError(f"{len(heads)} updates came")
        return [_update(vector_of(content, position, mark), order, each) for position, each in enumerate(heads)]
    except Exception as error:  # a reply may hold anything at all
        reason = str(error) if type(error) is ValueError else type(error).__name__
        return [Dropped(order.client, f"its reply cannot be read: {printable(reason, 120)}")]


def _update(vector: Tensor, order: Order, head: Mapping[str, Any]) -> Update:
    if head["client"] != order.client:
        raise ValueError("it answers as somebody else")
    for name in ("examples", "steps", "part"):
        if type(head[name]) is not int:
            raise ValueError(f"{name} is no whole number")
    metrics = {str(k): float(v) for k, v in dict(head["metrics"]).items()}
    layout = order.weights.layout if order.kind == "train" else Layout(())
    if len(vector) != layout.size:
        raise ValueError(f"its update has {len(vector)} values, not {layout.size}")
    return Update(order.client, Weights(layout, vector), head["examples"], head["steps"], metrics, head["part"])
