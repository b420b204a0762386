"""What each seat can see of a federation: the only thing an attacker is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from leakline.bench.training import Bench, Plan
from leakline.data.base import Data
from leakline.errors import StackError
from leakline.federation import Federation
from leakline.messages import Update
from leakline.weights import Weights


@dataclass(frozen=True)
class PublicView:
    """Anybody: the final model, its architecture and its loss."""

    weights: Weights
    build: Callable[[], Bench] = field(repr=False)
    per_example_loss: Callable[[Tensor, Tensor], Tensor] = field(repr=False)

    @cached_property
    def bench(self) -> Bench:
        """A model of the same architecture to put weights into."""
        return self.build()

    def outputs(self, data: Data) -> Tensor:
        """The model's outputs."""
        return self.bench.outputs(self.weights, data)

    def losses(self, data: Data) -> Tensor:
        """The model's loss on each example."""
        return self.per_example_loss(self.outputs(data), data.y)


@dataclass(frozen=True)
class ClientView(PublicView):
    """A participant: every published model, in order, and the local recipe; ``weights`` is the last one."""

    published: tuple[Weights, ...] = ()
    plan: Plan = Plan()


@dataclass(frozen=True)
class ServerView(ClientView):
    """The server: also updates as it saw them, by round: single ones, or one of `EVERYBODY` (see `visible`)."""

    sent: tuple[Weights, ...] = ()
    updates: tuple[tuple[Update, ...], ...] = ()


def public_view(federation: Federation, weights: Weights) -> PublicView:
    """The public's view of a finished federation."""
    return PublicView(weights, federation.bench, federation.objective.per_example_loss)


def client_view(federation: Federation, published: Sequence[Weights]) -> ClientView:
    """A participant's view of some published models."""
    return ClientView(
        published[-1],
        federation.bench,
        federation.objective.per_example_loss,
        tuple(published),
        federation.local_plan,
    )


EVERYBODY = "everybody"
"""Whose update a server sees under secure aggregation."""


def visible(federation: Federation, updates: Sequence[Update]) -> tuple[Update, ...]:
    """What the server's seat sees of a round's updates: each, or under secure aggregation only all of them together.

    The sum is handed out as the mean that the strategy takes of it, with the examples of all; who took part, and with
    how many steps, is not in it. Figures that clients send beside their updates are taken to be summed too.
    """
    if federation.cohort.secure_aggregation == "none" or not updates:
        return tuple(updates)
    total = federation.strategy.combine(iter(updates))
    return (Update(EVERYBODY, total, sum(u.examples for u in updates), 0),)


def need_single_updates(federation: Federation, who: str) -> None:
    """Refuse an attack on single updates where the server does not see any."""
    if federation.cohort.secure_aggregation != "none":
        raise StackError(
            f"{who} looks at single updates, and under secure aggregation the server sees only their sum",
            'secure_aggregation = "assumed"',
            'leave the attack out, or set secure_aggregation = "none"',
        )
