"""The base of all defences: hooks at the places where data crosses a trust boundary, facts, and a promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Literal, Protocol

import numpy as np
from torch import Tensor, nn

from leakline.bench.training import Bench, Plan
from leakline.data.base import Task
from leakline.messages import Order, Receipt, Turn, Update
from leakline.privacy import Claim, Promise
from leakline.settings import Cohort
from leakline.strategies import Strategy
from leakline.weights import Layout, Weights

Stage = Literal["aggregate", "model"]
Loss = Callable[[Tensor, Tensor], Tensor]
Promises = Promise | tuple[Claim, ...]
"""What a defence may answer: a claim, why there is none, or a claim for each of several units."""


class Terms(Protocol):
    """What a promise may look at: the public terms of a federation. A `leakline.Federation` has them all."""

    @property
    def rounds(self) -> int:
        """How many rounds there are."""
        ...

    @property
    def task(self) -> Task:
        """Who holds how much; a promise may ask for sizes and names, never for values."""
        ...

    @property
    def plan(self) -> Plan:
        """The clients' local recipe."""
        ...

    @property
    def strategy(self) -> Strategy:
        """How updates become the next model."""
        ...

    @property
    def cohort(self) -> Cohort:
        """Who takes part in a round."""
        ...

    @property
    def defences(self) -> tuple[Defence, ...]:
        """The stack, in order."""
        ...

    @property
    def layout(self) -> Layout:
        """The whole model."""
        ...

    @property
    def wire(self) -> Layout:
        """The part of it that travels."""
        ...

    def expected(self) -> float:
        """How many clients a round has on average."""
        ...

    def plan_of(self, client: str) -> Plan:
        """The recipe of one client."""
        ...

    def bench(self) -> Bench:
        """A fresh model."""
        ...


class Law(Protocol):
    """The law of a report that is a random direction: see `leakline.mechanisms.sphere`."""

    @property
    def epsilon(self) -> float:
        """How much a report may tell."""
        ...

    @property
    def clip(self) -> float:
        """The longest update that is reported as it is."""
        ...

    def scale(self, size: int) -> float:
        """Length of a report of ``size`` values."""
        ...


class Defence:
    """Acts at boundaries, and says what it promises.

    A subclass is a frozen dataclass that overrides the hooks it needs; the others do nothing. In a stack,
    `release` and `admit` run first to last, `publish` last to first: who looks at the updates first sees the
    result last. Mathematics belongs into `mechanisms`; a hook only wires.
    """

    at: Stage = "aggregate"
    """Where `publish` acts: on the combined change, or on what the server's optimiser made of it."""

    needs_pairs: ClassVar[bool] = False
    """Whether a round needs at least two clients."""

    @property
    def hooks(self) -> tuple[str, ...]:
        """The hooks that this object uses, in the order of the data's path."""
        return hooks_of(type(self))

    @property
    def steady(self) -> bool:
        """Whether clients are told the same numbers in every round."""
        return "brief" not in self.hooks

    @property
    def loudness(self) -> float:
        """How much noise is added, in this defence's own unit; 0 where none is, or where it has no size."""
        return 0.0

    @property
    def law(self) -> Law | None:
        """The law of a report, where it is known in closed form."""
        return None

    def sends(self, notes: Mapping[str, float]) -> int:
        """At most how many updates a client sends for an order with these notes."""
        return 1

    def shares(self, name: str) -> bool:
        """May this entry of the weights leave the client?"""
        return True

    def kept(self, layout: Layout) -> frozenset[str]:
        """The entries that stay at the clients, for whoever must see the whole model to say."""
        return frozenset(entry.name for entry in layout.entries if not self.shares(entry.name))

    def split(self, examples: int, order: Order, turn: Turn) -> list[np.ndarray] | None:
        """Which rows train separately, or None for all together."""
        return None

    def batches(self, examples: int, plan: Plan, turn: Turn) -> Iterator[Tensor] | None:
        """The rows of each local step, or None: as the plan has them. Asked of the owner of `gradient` only."""
        return None

    def gradient(self, model: nn.Module, x: Tensor, y: Tensor, loss: Loss, turn: Turn) -> Tensor:
        """Fill the parameters' ``grad`` from one batch and return the loss. One owner per stack."""
        value = loss(model(x), y)
        value.backward()  # type: ignore[no-untyped-call]
        return value.detach()

    def release(self, update: Update, turn: Turn) -> Update:
        """Last touch before an update leaves the client."""
        return update

    def brief(self, notes: dict[str, float], turn: Turn) -> dict[str, float]:
        """Small numbers that ride with the weights to every client."""
        return notes

    def admit(self, updates: Iterator[Update], turn: Turn) -> Iterator[Update]:
        """Updates as they arrive at the server, one after another; whoever needs all of them makes a list."""
        return updates

    def publish(self, change: Weights, cohort: Sequence[Receipt], turn: Turn) -> Weights:
        """The combined change before it leaves the server."""
        return change

    def check(self, federation: Terms) -> None:
        """Refuse, before anything is trained, a federation in which this cannot work: raise a `StackError`."""

    def settled(self, federation: Terms) -> Defence:
        """The same defence with whatever it computes from a federation's public size written out.

        An audit plays on a small copy, where a rule over the number of values would come to something else.
        """
        return self

    def unsampled(self) -> Defence:
        """The same defence without sampling of records.

        An audit asks what one step hides; what sampling adds to that is the accountant's business.
        """
        return self

    def claim(self, federation: Terms, facts: Sequence[Mapping[str, float]] = ()) -> Promises:
        """The promise: from the settings alone before round 0, and with the facts of the rounds afterwards.

        A defence that promises different things to different units returns one claim for each, the largest unit
        first: whoever looks at one of them only must not take the smaller unit's for the larger one's.
        """
        raise TypeError(f"{type(self).__name__} must say what it promises: return a Claim or a NoClaim")


def hooks_of(kind: type[Defence]) -> tuple[str, ...]:
    """The hooks that a kind of defence overrides, in the order of the data's path."""
    names = ("shares", "kept", "split", "batches", "gradient", "release", "brief", "admit", "publish")
    return tuple(name for name in names if getattr(kind, name) is not getattr(Defence, name))


def splitter(federation: Terms) -> str | None:
    """The name of a defence of the stack that makes a client send several updates a round, or None."""
    return next((type(defence).__name__ for defence in federation.defences if "split" in defence.hooks), None)
