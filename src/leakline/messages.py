"""What crosses the wire between server and clients, and what one round leaves behind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from leakline.randomness import Noise, SecretNoise, SeededNoise, Stream
from leakline.weights import Weights

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
    sampled: bool = False
    """Whether clients are Poisson-sampled, so that the size of a cohort is itself a secret."""
    secret: bool = True
    facts: dict[str, float] = field(default_factory=dict)
    """Numbers to be written down with the round."""

    def noise(self, what: str = "noise") -> Noise:
        """A source of protective noise: the operating system's, or a seeded one if the study says so."""
        return SecretNoise() if self.secret else SeededNoise(self.stream(what))

    def stream(self, what: str) -> Stream:
        """A stream for choices that protect nobody (splits, samples)."""
        return Stream(self.seed, self.round, self.party, f"{self.purpose}/{what}")


def problem_with(update: Update, sent: Weights) -> str | None:
    """Why an update must not be combined, or None: the guard on the server's side of the wire."""
    if update.delta.layout != sent.layout:
        theirs = {e.name: e.shape for e in update.delta.layout.entries}
        ours = {e.name: e.shape for e in sent.layout.entries}
        for name in ours:
            if name not in theirs:
                return f"tensor {name} is missing"
            if theirs[name] != ours[name]:
                return f"tensor {name} has shape {theirs[name]}, not {ours[name]}"
        return f"unknown tensor {next((n for n in theirs if n not in ours), 'order')}"
    if not isinstance(update.examples, int) or update.examples <= 0:
        return f"reports {update.examples} examples"
    if update.examples > MOST_EXAMPLES:
        return f"reports {update.examples} examples, more than {MOST_EXAMPLES}"
    if not isinstance(update.steps, int) or update.steps < 0:
        return f"reports {update.steps} steps"
    if update.delta.vector.numel():
        low, high = (float(v) for v in update.delta.vector.aminmax())  # one pass, no copy; NaN if any entry is
        if not (math.isfinite(low) and math.isfinite(high)):
            return "its update holds NaN or infinite values"
        if max(-low, high) > LARGEST:
            return f"its update holds values beyond {LARGEST:g}"
    return None


LARGEST = 1e12
"""A change larger than this ends any model; squares of it still sum up in single precision."""

MOST_EXAMPLES = 10**8
"""A client that claims more examples than this would be the model under a weighted mean."""
