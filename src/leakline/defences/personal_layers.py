"""Personal layers: parts of the model that are trained at home and never leave it (FedPer, FedBN)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from leakline.defences.base import Defence, Terms
from leakline.errors import StackError
from leakline.privacy import NoClaim
from leakline.weights import Layout


class _Personal(Defence):
    """What FedPer and FedBN have in common: a check, and no promise."""

    def check(self, federation: Terms) -> None:
        """Refuse, before training, a choice of layers that keeps nothing or everything."""
        self.kept(federation.layout)
        _ = federation.wire

    def claim(self, federation: Terms, facts: Sequence[Mapping[str, float]] = ()) -> NoClaim:
        """None: fewer values are sent, and nothing bounds what those tell."""
        stays = federation.layout.size - federation.wire.size
        return NoClaim(
            f"{stays:,} of {federation.layout.size:,} values stay at home; nothing bounds what the others tell",
            "put gaussian-release (local) or global-dp (trusted server) behind it in the stack",
        )


@dataclass(frozen=True)
class FedPer(_Personal):
    """Upper layers stay private: each client trains its own, only the rest is averaged (Arivazhagan et al. 2019).

    ``private`` are patterns over names of layers or of their entries (["dense*"], ["head.weight"]); ``last = k``
    stands for the last k layers that have parameters, in the order of the model. Give one of the two.

    A client's private layers live in its own memory between rounds, and in the checkpoint of a simulated run, so
    that it can go on; no update and no kept file holds them. A client that comes for the first time, in whatever
    round, starts from the private layers of the initial model (its random ones, from the study's seed, the same
    for everybody), next to the shared layers as they stand then: nobody hands it somebody else's.

    Paper 003 says "2 conv + 3 dense", shares the two convolutions and calls two dense layers private. Its studies have
    both readings: ``private = ["dense*"]``, since only convolutions are said to travel, and ``last = 2``.
    """

    private: tuple[str, ...] = ()
    last: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "private", tuple(self.private))  # a study file gives a list
        if bool(self.private) == bool(self.last) or self.last < 0:
            raise ValueError(
                f"give private = [patterns] or last = k with k at least 1, one of the two: {self.private}, {self.last}"
            )

    def kept(self, layout: Layout) -> frozenset[str]:
        """The entries that stay at home."""
        layers = layout.layers
        shown = ", ".join(layers)
        if self.last >= len(layers):
            raise StackError(
                f"last = {self.last} keeps every layer at the clients: nothing would be learned together",
                f"fedper, layers {shown}",
                f"last must be below {len(layers)}",
            )
        if self.last:
            chosen = list(layers)[-self.last :]
            return frozenset(name for layer in chosen for name in layers[layer])
        return matching(layout, self.private, "private", "fedper")


@dataclass(frozen=True)
class FedBN(_Personal):
    """Batch normalisation stays private: its scales, shifts and statistics never leave (Li et al. 2021).

    Found by the running statistics in the model, so layers without them (GroupNorm) are shared. A new client starts
    from the initial model's normalisation, as with `FedPer`.
    """

    def kept(self, layout: Layout) -> frozenset[str]:
        """Every entry of every layer that keeps running statistics."""
        normal = {
            layer: names
            for layer, names in layout.layers.items()
            if any(name.rpartition(".")[2] == "running_mean" for name in names)
        }
        if not normal:
            raise StackError(
                "fedbn keeps batch normalisation at home, and this model has none",
                "fedbn",
                'use a model with it (norm = "batch"), or fedper',
            )
        return frozenset(name for names in normal.values() for name in names)


def matching(layout: Layout, patterns: Sequence[str], setting: str, defence: str) -> frozenset[str]:
    """The entries that patterns name, themselves or by their layer; refuses a pattern without a match, or all."""
    layers = layout.layers
    shown = ", ".join(layers)
    found: set[str] = set()
    for pattern in patterns:
        hits = {
            name
            for layer, names in layers.items()
            for name in names
            if fnmatchcase(name, pattern) or fnmatchcase(layer, pattern)
        }
        if not hits:
            raise StackError(f"{setting} = {pattern!r} matches no layer", defence, f"the layers are: {shown}")
        found |= hits
    if len(found) == len(layout.entries):
        raise StackError(
            f"{setting} = {list(patterns)} matches every layer: nothing would be learned together",
            defence,
            f"leave one of these out: {shown}",
        )
    return frozenset(found)
