"""What crosses the wire between server and clients, and what one round leaves behind."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from leakline.errors import ClientLost
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


Keep = Callable[[int, str], bool]
"""Which updates a `Round` holds on to, by (round, client)."""


@dataclass
class Arrivals:
    """The answers of a round as they arrive: each is checked and written down before anybody works with it."""

    index: int
    sent: Weights
    keep: Keep
    stop: bool
    receipts: list[Receipt] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    kept: list[Update] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def checked(self, answers: Iterable[Update | Dropped]) -> Iterator[Update]:
        """The usable ones, as they come."""
        for answer in answers:
            bad = answer.reason if isinstance(answer, Dropped) else problem_with(answer, self.sent)
            if isinstance(answer, Dropped) or bad is not None:
                self._drop(Dropped(answer.client, bad or ""))
                continue
            self.receipts.append(Receipt(answer.client, answer.examples, answer.steps, answer.part))
            self.losses.append(answer.metrics.get("loss", float("nan")))
            if self.keep(self.index, answer.client):
                self.kept.append(answer)
            yield answer

    def _drop(self, lost: Dropped) -> None:
        if self.stop:
            fix = 'mend it, or set on_bad_client = "drop"'
            raise ClientLost(f"client {lost.client}: {lost.reason}", f"round {self.index}", fix)
        self.dropped.append(lost)

    @property
    def cohort(self) -> tuple[str, ...]:
        """Everybody who counted."""
        return tuple(dict.fromkeys(receipt.client for receipt in self.receipts))

    def metrics(self) -> dict[str, float]:
        """The mean of the losses that clients reported."""
        known = [value for value in self.losses if value == value]
        return {"train_loss": sum(known) / len(known)} if known else {}

    def too_few(self, needed: int, asked: int) -> ClientLost:
        """Why the round cannot end."""
        first = f"; {self.dropped[0].client}: {self.dropped[0].reason}" if self.dropped else ""
        return ClientLost(
            f"only {len(self.cohort)} of {asked} clients gave a usable answer, {needed} are needed{first}",
            f"round {self.index}; the model of round {self.index - 1} stands",
            "mend the clients, or lower min_clients",
        )
