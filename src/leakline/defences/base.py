"""The base of all defences: hooks at the places where data crosses a trust boundary, facts, and a promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self

import numpy as np
from torch import Tensor, nn

from leakline.bench.training import Bench, Plan
from leakline.data.base import Task
from leakline.mechanisms.treatment import Treatment
from leakline.messages import Order, Receipt, Turn, Update
from leakline.privacy import Claim, Promise
from leakline.settings import Cohort, Judging
from leakline.strategies import Strategy
from leakline.weights import Layout, Weights

Stage = Literal["aggregate", "model"]
Loss = Callable[[Tensor, Tensor], Tensor]
Reach = Literal["nothing", "each", "all"]
Denominator = Literal["expected", "actual"]
Promises = Promise | tuple[Claim, ...]
"""What a defence may answer: a claim, why there is none, or a claim for each of several units."""


CHOOSING = "choosing settings or a round by test results"
"""What no promise about a run covers: that there were others, and that somebody looked at them."""


@dataclass(frozen=True)
class Wish:
    """A promise that is asked for; ``granted``: the noise for it has been computed."""

    epsilon: float
    delta: float
    granted: bool = False


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
    def model(self) -> object:
        """What is trained, before it is built."""
        ...

    @property
    def judging(self) -> Judging:
        """By what loss, and who judges."""
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
    def judges(self) -> tuple[str, ...]:
        """The clients that judge each round's model and say how good it is."""
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

    denominator: Denominator | None = None
    """What the mean is divided by: a public number ("expected"), or as many as came; None: it does not mind."""

    @property
    def needs_pairs(self) -> bool:
        """Whether a round needs at least two clients."""
        return False

    @property
    def reach(self) -> Reach:
        """What it does at the server, for the sake of other defences' promises.

        "nothing"  nothing
        "each"     `admit` changes each update by itself and `publish` the change, by parameters that are public or
                   learned from what `publish` was shown
        "all"      anything else: a parameter taken from several updates, a count of clients, a memory of updates

        Unless a defence says otherwise, one that acts at the server, or has clients send several updates, is taken
        to do the last: no promise stands beside it.
        """
        return "nothing" if {"split", "brief", "admit", "publish"}.isdisjoint(self.hooks) else "all"

    def divisor(self, turn: Turn) -> float:
        """The public number of updates that a mean is taken over, where `denominator` is "expected"."""
        return turn.expected

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
    def wish(self) -> Wish | None:
        """The promise that is asked for in place of a size of noise, where one is: see `Noised`."""
        return None

    def under(self, delta: float) -> Self:
        """The same with a study's delta for what is asked for without one."""
        return self

    def with_noise(self, noise: float) -> Self:
        """The same with noise of this size, computed for what is asked for."""
        return self

    @property
    def follows(self) -> str:
        """The name of a stack whose run has to be there before one with this defence can begin; "": none has to."""
        return ""

    @property
    def source(self) -> tuple[Defence, ...]:
        """The defences of the stack that it follows."""
        return ()

    @property
    def run(self) -> str:
        """The key of the run that it was told of."""
        return ""

    def following(self, source: Sequence[Defence]) -> Self:
        """The same, knowing the stack that it follows; a ValueError where it cannot follow that one."""
        return self

    def told(self, run: str, facts: Sequence[Mapping[str, float]]) -> Self:
        """The same, told what the rounds of the run of that key wrote down."""
        return self

    @property
    def law(self) -> Law | None:
        """The law of a report, where it is known in closed form."""
        return None

    @property
    def treatment(self) -> Treatment:
        """What it does to gradients and updates at a client, in terms that an attacker may know.

        Settings are no secrets, only the noise itself is. One that acts there and does not say how is not simulated:
        attacks that would have to refuse, before anything is trained.
        """
        silent = {"batches", "gradient", "release"}.isdisjoint(self.hooks)
        return Treatment() if silent else Treatment(unknown=(type(self).__name__,))

    def stated(self, clients: float) -> Mapping[str, float]:
        """What rounds of so many clients can be held against, if noise for a mean of clipped updates is what it adds.

        ``clip`` and ``noise_multiplier``, and for a bound that moves ``quantile``, ``rate`` and ``bits_noise``: words
        of `leakline audit RECORDING`. Empty: nothing that rounds could contradict.
        """
        return {}

    def sends(self, notes: Mapping[str, float]) -> int:
        """At most how many updates a client sends for an order with these notes."""
        return 1

    def accept(self, order: Order, turn: Turn) -> None:
        """Look at what arrives before a client trains on it; raise a `StackError` to refuse."""

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

        A defence answers for itself; whether its promise stands beside the others is for the stack to say. One that
        promises different things to different units returns one claim for each, the largest unit
        first: whoever looks at one of them only must not take the smaller unit's for the larger one's.
        """
        raise TypeError(f"{type(self).__name__} must say what it promises: return a Claim or a NoClaim")


def hooks_of(kind: type[Defence]) -> tuple[str, ...]:
    """The hooks that a kind of defence overrides, in the order of the data's path."""
    names = ("accept", "shares", "kept", "split", "batches", "gradient", "release", "brief", "admit", "publish")
    return tuple(name for name in names if getattr(kind, name) is not getattr(Defence, name))


def beside_updates(federation: Terms) -> tuple[str, ...]:
    """What leaves a client beside its updates, and so outside any promise about them."""
    always = ("the number of examples and of steps, and whether a client answered at all", CHOOSING)
    judged = "exact losses and accuracies: clients judge the model of every round on their own test data"
    return (*always, judged) if federation.judges else always


def splitter(federation: Terms) -> str | None:
    """The name of a defence of the stack that makes a client send several updates a round, or None."""
    return next((type(defence).__name__ for defence in federation.defences if "split" in defence.hooks), None)
