"""The base of all defences: ten hooks at the places where data crosses a trust boundary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from torch import Tensor, nn

from leakline.messages import Order, Receipt, Turn, Update
from leakline.privacy import Claim, Promise
from leakline.weights import Layout, Weights

if TYPE_CHECKING:
    from leakline.bench.training import Plan
    from leakline.federation import Federation

Stage = Literal["aggregate", "model"]
Loss = Callable[[Tensor, Tensor], Tensor]
Promises = Promise | tuple[Claim, ...]
"""What a defence may answer: a claim, why there is none, or a claim for each of several units."""


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

    def check(self, federation: Federation) -> None:
        """Raise, before anything is trained, what cannot work with this federation."""
        return

    def settled(self, federation: Federation) -> Defence:
        """The same defence with whatever it computes from a federation's public size written out.

        An audit plays on a small copy, where a rule over the number of values would come to something else.
        """
        return self

    def claim(self, federation: Federation, facts: Sequence[Mapping[str, float]] = ()) -> Promises:
        """The promise: from the settings alone before round 0, and with the facts of the rounds afterwards.

        A defence that promises different things to different units returns one claim for each, the largest unit
        first: whoever looks at one of them only must not take the smaller unit's for the larger one's.
        """
        raise TypeError(f"{type(self).__name__} must say what it promises: return a Claim or a NoClaim")


def hooks_of(defence: Defence | type[Defence]) -> tuple[str, ...]:
    """The hooks that a defence uses, in the order of the data's path."""
    kind = defence if isinstance(defence, type) else type(defence)
    names = ("shares", "kept", "split", "batches", "gradient", "release", "brief", "admit", "publish")
    return tuple(name for name in names if getattr(kind, name) is not getattr(Defence, name))
