"""Layers that the server is not shown: a mitigation that paper 001 discusses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leakline.defences.base import Terms
from leakline.defences.personal_layers import FedBN, _Personal, matching
from leakline.errors import StackError
from leakline.privacy import NoClaim
from leakline.weights import Layout

BATCH_NORM = "batch-norm"


@dataclass(frozen=True)
class HideLayers(_Personal):
    """Chosen layers are neither sent to the server nor held by it (paper 001's discussion, mitigations 1 and 3).

    ``layers`` are patterns over names of layers or of their entries, or "batch-norm" for all normalisation with
    running statistics; ``first = k`` and ``last = k`` stand for that many layers with parameters from either end of
    the model. Give one of the three.

    The paper: an attacker without the current state of "the most important layers" fails; it would aggregate those
    under homomorphic encryption. What the server then sees is what it sees here: neither the state nor the change of
    a hidden layer. What the clients get differs. Under encryption they would share one averaged copy; there is no
    encryption here, so a hidden layer stays at home and each client trains its own, as with `FedPer` (paper 003,
    which chooses upper layers for utility; here any layer may go, the first being what inversion needs most). Use this
    to measure what an attack loses, and take its utility for a floor of what encryption would give.

    In round 0 nothing is hidden but the change: every client starts from the initial model, which the server made.
    """

    layers: tuple[str, ...] = ()
    first: int = 0
    last: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", (self.layers,) if isinstance(self.layers, str) else tuple(self.layers))
        if self.first < 0 or self.last < 0 or sum(map(bool, (self.layers, self.first, self.last))) != 1:
            raise ValueError(
                "give one of layers = [patterns], first = k, last = k, with k at least 1: "
                f"{self.layers}, {self.first}, {self.last}"
            )

    def kept(self, layout: Layout) -> frozenset[str]:
        """The entries that the server is not shown."""
        layers = layout.layers
        count = self.first or self.last
        if count >= len(layers):
            raise StackError(
                f"{count} layers are all that this model has: nothing would be learned together",
                f"hide-layers, layers {', '.join(layers)}",
                f"hide fewer than {len(layers)}",
            )
        if count:
            names = list(layers)
            chosen = names[:count] if self.first else names[-count:]
            return frozenset(name for layer in chosen for name in layers[layer])
        patterns = [pattern for pattern in self.layers if pattern != BATCH_NORM]
        found = matching(layout, patterns, "layers", "hide-layers")
        return found | FedBN().kept(layout) if BATCH_NORM in self.layers else found

    def claim(self, federation: Terms, facts: Sequence[Mapping[str, float]] = ()) -> NoClaim:
        """None: an attack is made harder by an amount that nobody can bound."""
        hidden = federation.layout.size - federation.wire.size
        return NoClaim(
            f"{hidden:,} of {federation.layout.size:,} values are hidden from the server; nothing bounds what the "
            "others tell, nor what an attack can guess of the hidden ones",
            "put dp-sgd (single records) or gaussian-release (whole clients) into the stack",
        )
