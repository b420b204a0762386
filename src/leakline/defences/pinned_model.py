"""A client that looks at the model it is sent before it trains it: the check that a server which cheats must pass."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from leakline.defences.base import Defence, Terms
from leakline.errors import StackError
from leakline.messages import Order, Turn
from leakline.privacy import NoClaim
from leakline.weights import Layout, Weights


@dataclass(frozen=True)
class PinnedModel(Defence):
    """Clients refuse a model whose architecture, or whose first weights, are not those that were agreed on.

    ``architecture`` is the agreed fingerprint (`architecture_of`) of the entries that travel, their names and shapes.
    Left empty, a client takes the first model it is sent for agreed and holds every later one against that:
    enough against a server that turns, not against one that cheats from the start. ``weights``: the agreed fingerprint
    (`weights_of`) of the weights of round 0, or "" for any.

    It sees added and changed layers. It does not see weights that were chosen to do harm within the agreed architecture
    after round 0, where nobody but the server knows what they should be.
    """

    architecture: str = ""
    weights: str = ""

    def accept(self, order: Order, turn: Turn) -> None:
        """Compare what came with what was agreed."""
        came = architecture_of(order.weights.layout)
        agreed = self.architecture or str(turn.memory.setdefault("architecture", came))
        if came != agreed:
            raise _refusal(f"the model's architecture is {came}, and {agreed} was agreed on", order)
        if self.weights and order.round == 0 and (first := weights_of(order.weights)) != self.weights:
            raise _refusal(f"the first weights are {first}, and {self.weights} were agreed on", order)

    def settled(self, federation: Terms) -> PinnedModel:
        """With the federation's own architecture as the agreed one."""
        return self if self.architecture else replace(self, architecture=architecture_of(federation.wire))

    def claim(self, federation: Terms, facts: Sequence[Mapping[str, float]] = ()) -> NoClaim:
        """None: it keeps a model out, and says nothing about what an honest one gives away."""
        return NoClaim(
            "a client that checks its model still sends updates as they are",
            "layers that nobody agreed on are refused before anything is trained",
        )


def architecture_of(layout: Layout) -> str:
    """A fingerprint of names and shapes, in whatever order an engine sends them."""
    return _short("\n".join(sorted(f"{e.name} {tuple(e.shape)}" for e in layout.entries)).encode())


def weights_of(weights: Weights) -> str:
    """A fingerprint of every value, in order."""
    return _short(weights.vector.contiguous().numpy().tobytes())


def _short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _refusal(what: str, order: Order) -> StackError:
    return StackError(
        f"pinned-model: {what}", f"{order.client}, round {order.round}", "ask who runs the server what was added"
    )
