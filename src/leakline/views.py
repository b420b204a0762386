"""What each seat can see of a federation: the only thing an attacker is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from leakline.data.base import Data
from leakline.federation import Federation
from leakline.messages import Update
from leakline.training import Bench, Plan
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
    """The server: also single updates as they crossed the wire, by round."""

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
