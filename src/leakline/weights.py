"""One carrier for everything that travels: a float32 vector with named slices."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Entry:
    """One named slice of the vector; ``buffer`` marks state that is not trained (BatchNorm statistics)."""

    name: str
    shape: tuple[int, ...]
    buffer: bool = False

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Names and shapes, in the order in which they lie in the vector.

    Only floating-point state that is trained travels. Integer counters (BatchNorm's ``num_batches_tracked``) stay where
    they are: noise would make nonsense of them, and `Update.steps` says what they say. What is frozen (`constants`) is
    public and the same everywhere: it is in the network, and in no vector.
    """

    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.entries]
        if len(set(names)) != len(names):
            raise ValueError(f"two entries share a name: {sorted(n for n in names if names.count(n) > 1)[:3]}")

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """The layout of a model: parameters that ask for gradients first, then floating-point buffers."""
        parameters = [Entry(n, tuple(p.shape)) for n, p in model.named_parameters() if p.requires_grad]
        kept = set(model.state_dict())
        buffers = [
            Entry(n, tuple(b.shape), buffer=True)
            for n, b in model.named_buffers()
            if n in kept and b.is_floating_point()
        ]
        return cls(tuple(parameters + buffers))

    @cached_property
    def size(self) -> int:
        """Length of the vector."""
        return sum(entry.size for entry in self.entries)

    @cached_property
    def slices(self) -> Mapping[str, slice]:
        """Where each entry lies."""
        places, start = {}, 0
        for entry in self.entries:
            places[entry.name] = slice(start, start + entry.size)
            start += entry.size
        return places

    @cached_property
    def buffers(self) -> tuple[str, ...]:
        """Names of the entries that are not trained."""
        return tuple(entry.name for entry in self.entries if entry.buffer)

    @cached_property
    def layers(self) -> Mapping[str, tuple[str, ...]]:
        """Entries by layer, in the order of the model: "conv1" -> ("conv1.weight", "conv1.bias")."""
        layers: dict[str, tuple[str, ...]] = {}
        for entry in self.entries:
            layer = entry.name.rpartition(".")[0] or entry.name
            layers[layer] = (*layers.get(layer, ()), entry.name)
        return layers

    def only(self, keep: Callable[[str], bool]) -> Layout:
        """The entries whose names satisfy ``keep``."""
        return Layout(tuple(entry for entry in self.entries if keep(entry.name)))


@dataclass(frozen=True)
class Weights:
    """A vector and the names of its parts. Treat the vector as read-only: make a new one to change it."""

    layout: Layout
    vector: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        if self.vector.shape != (self.layout.size,) or self.vector.dtype != torch.float32:
            raise ValueError(
                f"a float32 vector of {self.layout.size} values is needed, "
                f"not {self.vector.dtype} of shape {tuple(self.vector.shape)}"
            )

    @classmethod
    def zeros(cls, layout: Layout) -> Weights:
        """All zeros."""
        return cls(layout, torch.zeros(layout.size))

    def like(self, vector: Tensor) -> Weights:
        """The same names over another vector."""
        return Weights(self.layout, vector)

    def __add__(self, other: Weights) -> Weights:
        return self.like(self.vector + self._same(other).vector)

    def __sub__(self, other: Weights) -> Weights:
        return self.like(self.vector - self._same(other).vector)

    def __mul__(self, factor: float) -> Weights:
        return self.like(self.vector * factor)

    __rmul__ = __mul__

    def __getitem__(self, name: str) -> Tensor:
        entry = next(e for e in self.layout.entries if e.name == name)
        return self.vector[self.layout.slices[name]].view(entry.shape)

    def __or__(self, other: Weights) -> Weights:
        """Both together, in the order of ``self`` then ``other``; a name may stand on one side only."""
        return Weights(Layout(self.layout.entries + other.layout.entries), torch.cat([self.vector, other.vector]))

    def layers(self) -> Iterator[tuple[Entry, Tensor]]:
        """Each entry with its values in shape."""
        for entry in self.layout.entries:
            yield entry, self.vector[self.layout.slices[entry.name]].view(entry.shape)

    def norm(self) -> float:
        """Euclidean norm."""
        return float(torch.linalg.vector_norm(self.vector))

    def only(self, keep: Callable[[str], bool]) -> Weights:
        """The part whose names satisfy ``keep``."""
        layout = self.layout.only(keep)
        if layout == self.layout:
            return self
        parts = [self.vector[self.layout.slices[entry.name]] for entry in layout.entries]
        return Weights(layout, torch.cat(parts) if parts else self.vector.new_zeros(0))

    def arranged(self, layout: Layout) -> Weights:
        """The same values in the order of ``layout``, which must hold the same names."""
        if layout == self.layout:
            return self
        return Weights(layout, torch.cat([self.vector[self.layout.slices[e.name]] for e in layout.entries]))

    def _same(self, other: Weights) -> Weights:
        if other.layout != self.layout:
            raise ValueError("these weights have different layouts")
        return other


def constants(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What of a model is frozen: parameters without gradients, and those in a layer's ``fixed_buffers``."""
    yield from ((name, p.detach()) for name, p in model.named_parameters() if not p.requires_grad)
    for prefix, module in model.named_modules():
        for name in getattr(module, "fixed_buffers", ()):
            yield f"{prefix}.{name}".lstrip("."), getattr(module, name)


def digest_of(model: nn.Module) -> str:
    """A hash of the frozen values, by name; empty where nothing is frozen."""
    digest, frozen = hashlib.sha256(), False
    for name, value in constants(model):
        frozen = True
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}\0".encode())
        digest.update(value.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32] if frozen else ""


def unmoved(change: Weights) -> tuple[str, ...]:
    """The trained entries that a change leaves exactly as they were.

    An adapter's first matrix (``down``) has a zero gradient while its second (``up``) is zero, as it is at the start:
    it counts with the second.
    """
    moves = {e.name: bool(values.any()) for e, values in change.layers() if not e.buffer}
    late = ".down.weight"
    return tuple(
        name for name, moved in moves.items()
        if not moved and not (name.endswith(late) and moves.get(f"{name.removesuffix(late)}.up.weight"))
    )  # fmt: skip


def read(model: nn.Module, out: Tensor | None = None) -> Weights:
    """A model's floating-point state as one vector (on the CPU), in natural memory order."""
    layout = Layout.of(model)
    vector = torch.empty(layout.size) if out is None else out
    state = model.state_dict()
    for name, place in layout.slices.items():
        # view + copy_ instead of flatten: a channels-last tensor must land in natural order.
        vector[place].view(state[name].shape).copy_(state[name])
    return Weights(layout, vector)


def write(model: nn.Module, weights: Weights) -> None:
    """Put weights into a model; a negative running variance (possible under noise) is clamped to zero."""
    state = model.state_dict()
    with torch.no_grad():
        for entry, values in weights.layers():
            state[entry.name].copy_(values.clamp_min(0) if entry.name.endswith("running_var") else values)
