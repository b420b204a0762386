"""What crosses the wire between server and clients, and what one round leaves behind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from leakline.names import printable
from leakline.randomness import Noise, SecretNoise, SeededNoise, Stream
from leakline.weights import Layout, Weights

Memory = dict[str, Any]
"""What a party keeps between rounds: tensors and plain numbers by name, so that it can be saved."""


@dataclass(frozen=True)
class Order:
    """Server to client: train from these weights. ``notes`` are small numbers that ride along."""

    client: str
    round: int
    weights: Weights
    notes: Mapping[str, float] = field(default_factory=dict)
    kind: Literal["train", "evaluate"] = "train"


@dataclass(frozen=True)
class Update:
    """Client to server: how the weights changed (``delta``), from how many examples, in how many steps.

    ``part`` counts the sub-clients of one client, 0 when it did not split itself. The answer to an evaluation has
    an empty ``delta`` and its figures in ``metrics``.
    """

    client: str
    delta: Weights
    examples: int
    steps: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    part: int = 0

    def with_delta(self, vector: Tensor) -> Update:
        """The same update with another change."""
        return replace(self, delta=self.delta.like(vector))


@dataclass(frozen=True)
class Receipt:
    """What is left of an update once its change has been combined: who, and how much work."""

    client: str
    examples: int
    steps: int
    part: int = 0


@dataclass(frozen=True)
class Dropped:
    """A client that did not count in a round, and why."""

    client: str
    reason: str


@dataclass(frozen=True)
class Round:
    """One round: what was sent, what crossed the wire, what came out.

    ``updates`` are the kept ones, exactly as they crossed the wire (see ``keep`` of `federate`); ``cohort`` names
    everybody who counted. ``facts`` are the numbers that defences wrote down (std, clip, distance, ...).
    """

    index: int
    sent: Weights
    updates: tuple[Update, ...]
    cohort: tuple[str, ...]
    dropped: tuple[Dropped, ...]
    result: Weights
    facts: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    longer: Mapping[str, float] = field(default_factory=dict)
    """Clients whose updates were many times as long as the median, and how many times, where that is not bounded."""
    still: tuple[str, ...] = ()
    """Of the first round: what should be trained, and did not move at all."""


@dataclass
class Turn:
    """What a defence's hook may use besides its argument."""

    round: int
    party: str
    memory: Memory
    """This defence's own memory at this party."""
    seed: int
    purpose: str
    """Which defence of the stack: part of the address of its randomness."""
    expected: float = 0.0
    """How many clients a round has on average; 0 where it is not known (at a client)."""
    values: int = 0
    """How many values travel; 0 where it is not known (at a client)."""
    secret: bool = True
    facts: dict[str, float] = field(default_factory=dict)
    """Numbers to be written down with the round."""
    groups: Tensor | None = None
    """Which examples of a client that trains belong together (a patient's), where its data say so."""
    units: Tensor | None = None
    """Which unit each example of the batch in hand belongs to, for `gradient`: set by whoever forms the batches."""

    def noise(self, what: str = "noise") -> Noise:
        """A source of protective noise: the operating system's, or a seeded one if the study says so."""
        return SecretNoise() if self.secret else SeededNoise(self.stream(what))

    def stream(self, what: str) -> Stream:
        """A stream for choices that protect nobody (splits, samples)."""
        return Stream(self.seed, self.round, self.party, f"{self.purpose}/{what}")


def problem_with(update: Update, sent: Weights) -> str | None:
    """Why an update must not be combined, or None: types first, since a reply may hold anything at all."""
    return _wrong_types(update, sent) or _wrong_values(update, sent)


def _wrong_types(update: Update, sent: Weights) -> str | None:
    if not isinstance(update.delta, Weights):
        return f"its update is a {type(update.delta).__name__}, not weights"
    vector = update.delta.vector
    if not isinstance(vector, Tensor) or not isinstance(update.delta.layout, Layout):
        return "its weights are no named vector"
    if vector.dtype != torch.float32 or vector.layout != torch.strided or vector.device != sent.vector.device:
        return f"its update is {vector.dtype} ({vector.layout}) on {vector.device}, not a plain float32 vector"
    for name in ("examples", "steps", "part"):
        value = getattr(update, name)
        if type(value) is not int:
            return f"reports {printable(repr(value), 40)} {name}, not a whole number"
    if not isinstance(update.metrics, Mapping) or len(update.metrics) > MOST_METRICS:
        return f"its metrics are no table of at most {MOST_METRICS} numbers"
    for name, number in update.metrics.items():
        if type(name) is not str or type(number) not in (int, float):
            return f"its metric {printable(name, 40)} is a {type(number).__name__}, not a number"
    return None


def _wrong_values(update: Update, sent: Weights) -> str | None:
    if update.delta.layout != sent.layout:
        return _wrong_layout(update.delta.layout, sent.layout)
    if update.delta.vector.shape != sent.vector.shape:
        return f"its update has shape {tuple(update.delta.vector.shape)}, not {tuple(sent.vector.shape)}"
    if update.examples <= 0:
        return f"reports {_count(update.examples)} examples"
    if update.examples > MOST_EXAMPLES:
        return f"reports {_count(update.examples)} examples, more than {MOST_EXAMPLES}"
    if not 0 <= update.steps <= MOST_STEPS:
        return f"reports {_count(update.steps)} steps"
    if update.delta.vector.numel():
        low, high = (float(v) for v in update.delta.vector.detach().aminmax())  # one pass, no copy; NaN if any is
        if not (math.isfinite(low) and math.isfinite(high)):
            return "its update holds NaN or infinite values"
        if max(-low, high) > LARGEST:
            return f"its update holds values beyond {LARGEST:g}"
    return None


def _count(number: int) -> str:
    """A whole number in a message: Python will not print those of thousands of digits."""
    return str(number) if abs(number) < 10**15 else "far too many"


def _wrong_layout(theirs: Layout, ours: Layout) -> str:
    shapes = {e.name: e.shape for e in theirs.entries}
    for entry in ours.entries:
        if entry.name not in shapes:
            return f"tensor {entry.name} is missing"
        if shapes[entry.name] != entry.shape:
            return f"tensor {entry.name} has shape {shapes[entry.name]}, not {entry.shape}"
    known = {entry.name for entry in ours.entries}
    return f"unknown tensor {printable(next((n for n in shapes if n not in known), 'order'), 64)}"


LARGEST = 1e12
"""A change larger than this ends any model; squares of it still sum up in single precision."""

MOST_EXAMPLES = 10**8
"""A client that claims more examples than this would be the model under a weighted mean."""


MOST_STEPS = 10**6
"""A client that claims more steps than this would lose everybody else under FedNova."""

MOST_METRICS = 100
"""A client that reports more figures than this is not believed."""


Keep = Callable[[int, str], bool]
"""Which updates a `Round` holds on to, by (round, client)."""
