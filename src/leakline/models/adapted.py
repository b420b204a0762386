"""Any network with a part of it trained: the rest is a public constant that never travels.

``train`` names what is trained, by patterns over the names of parameters and buffers; ``lora`` puts adapters of rank r
beside linear and convolution layers:

    y = W x + B (A x)        W frozen, A (r x in) random, B (out x r) zero at the start

so that outputs are unchanged until something is learned (Hu et al. 2022, arXiv:2106.09685, with their alpha = r). A
convolution's A is a convolution of the same kernel, stride and padding into r channels, its B one of 1x1; with g
groups each group has its own pair. Adapters are ordinary layers, so DP-SGD takes per-example gradients of them as of
any other. A layer that is trained as a whole gets no adapter.

What is frozen is the same for everybody, in every run and in every world that an attack compares: it comes from a
file, from training on the server's public part, or from seed 0, never from the study's seed. What is trained starts
from the study's seed, unless a file or the public part has it. A normalisation layer whose running statistics are not
trained computes as in evaluation (`FixedNorm`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from leakline.errors import StackError
from leakline.models.base import Kind, Model, Shape
from leakline.models.own import made
from leakline.models.weights_file import WeightsFile
from leakline.weights import Weights, write

CONSTANTS = 0
"""The seed of frozen weights that neither a file nor the public part gives."""

Convolutions = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Lora:
    """Adapters of rank ``rank`` on the linear and convolution layers whose names match."""

    rank: int = 4
    layers: tuple[str, ...] = ("*",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))  # a study file gives a list
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1: {self.rank}")
        if not self.layers:
            raise ValueError('layers must name some: ["*"] for all')


@dataclass(frozen=True)
class Adapted:
    """A model of which a part is trained; with neither ``train`` nor ``lora`` all of it is.

    ``weights``: a file that gives some or all of its values. ``pretrain``: the whole network is first trained on the
    server's public part (server_validation) by the plan of warm starts, whatever is frozen afterwards.
    """

    model: Model | Callable[..., nn.Module]
    train: tuple[str, ...] = ()
    lora: Lora | None = None
    weights: WeightsFile | None = None
    pretrain: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "train", tuple(self.train))

    def whole(self, shape: Shape, classes: int, kind: Kind = "classification") -> nn.Module:
        """The network before anything is frozen: the file's values, the others from a seed that is always the same."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(CONSTANTS)
            network = made(self.model, shape, classes, kind)
        if self.weights is not None:
            self.weights.put(network)
        return network

    def build(
        self, shape: Shape, classes: int, kind: Kind = "classification", public: Weights | None = None
    ) -> nn.Module:
        """The network with its constants, its trained part at its start; ``public`` is what pretraining came to."""
        network = self.whole(shape, classes, kind)
        fresh = made(self.model, shape, classes, kind).state_dict()
        if public is not None:
            write(network, public)
        given = set(fresh) if public is not None else set() if self.weights is None else self.weights.names
        names = _trained(network, self.train) if self.train or self.lora is not None else set(fresh)
        with torch.no_grad():
            for name, value in network.state_dict().items():
                if name in names and name not in given:
                    value.copy_(fresh[name])
        freeze(network, names)
        if self.lora is not None:
            network = adapt(network, self.lora)
        if not any(p.requires_grad for p in network.parameters()):
            raise StackError("nothing of the model is trained", "model", "let train match a weight")
        return network


def _trained(network: nn.Module, patterns: Sequence[str]) -> set[str]:
    """The entries that patterns name, themselves or by their layer; refuses a pattern without a match."""
    names = list(network.state_dict())
    chosen: set[str] = set()
    for pattern in patterns:
        hits = {n for n in names if fnmatchcase(n, pattern) or fnmatchcase(n.rpartition(".")[0] or n, pattern)}
        if not hits:
            layers = dict.fromkeys(n.rpartition(".")[0] or n for n in names)
            raise StackError(f"train = {pattern!r} matches no layer", "model", f"the layers are: {', '.join(layers)}")
        chosen |= hits
    return chosen


def freeze(network: nn.Module, trained: set[str]) -> None:
    """Make constants of all parameters and buffers but these; see `leakline.weights.constants`."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name in trained)
    for prefix, module in list(network.named_modules()):
        own = [n for n, b in module.named_buffers(recurse=False) if b.is_floating_point()]
        fixed = [n for n in own if f"{prefix}.{n}".lstrip(".") not in trained]
        for name in fixed:
            module.register_buffer(name, getattr(module, name), persistent=False)
        if fixed:
            module.fixed_buffers = tuple(fixed)
        if "running_mean" in fixed and isinstance(module, nn.modules.batchnorm._NormBase):
            _put(network, prefix, FixedNorm(module))


class FixedNorm(nn.Module):
    """BatchNorm or InstanceNorm with the statistics that it has: in training as in evaluation, record by record."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, like: nn.modules.batchnorm._NormBase) -> None:
        super().__init__()
        self.eps, self.fixed_buffers = like.eps, ("running_mean", "running_var")
        self.weight, self.bias = like.weight, like.bias
        for name in self.fixed_buffers:
            self.register_buffer(name, getattr(like, name), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Scale and shift each channel."""
        statistics = self.running_mean, self.running_var
        return nn.functional.batch_norm(x, *statistics, self.weight, self.bias, training=False, eps=self.eps)


class Adapter(nn.Module):
    """A frozen layer with a path of rank r beside it."""

    def __init__(self, base: nn.Module, rank: int) -> None:
        super().__init__()
        self.base: Any = base
        if isinstance(base, nn.Linear):
            self.down: Any = nn.Linear(base.in_features, rank, bias=False)
            self.up: Any = nn.Linear(rank, base.out_features, bias=False)
        else:
            assert isinstance(base, Convolutions)
            kind: Any = next(kind for kind in Convolutions if isinstance(base, kind))
            groups = base.groups
            self.down = kind(
                base.in_channels, rank * groups, base.kernel_size, base.stride, base.padding, base.dilation, groups,
                bias=False, padding_mode=base.padding_mode,
            )  # fmt: skip
            self.up = kind(rank * groups, base.out_channels, 1, groups=groups, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """W x + B (A x)."""
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out

    @property
    def weight(self) -> Tensor:
        """W + B A: the layer's weight as one, for networks that read it past the layer, and for merging."""
        base, down, up = self.base.weight, self.down.weight, self.up.weight
        groups = getattr(self.base, "groups", 1)
        left = up.flatten(1).view(groups, len(base) // groups, -1)
        right = down.flatten(1).view(groups, -1, down[0].numel())
        whole: Tensor = base + (left @ right).view_as(base)
        return whole

    @property
    def bias(self) -> Tensor | None:
        """The frozen layer's own."""
        bias: Tensor | None = self.base.bias
        return bias


def adapt(network: nn.Module, lora: Lora) -> nn.Module:
    """The network with adapters on its layers of these names that are not trained as a whole."""
    layers = {n: m for n, m in network.named_modules() if isinstance(m, (nn.Linear, *Convolutions))}
    if not layers:
        raise StackError("lora needs linear or convolution layers, and this model has none", "model", "leave it out")
    chosen: set[str] = set()
    for pattern in lora.layers:
        hits = {name for name in layers if fnmatchcase(name, pattern)}
        if not hits:
            raise StackError(
                f"lora: {pattern!r} matches no linear or convolution layer", "model", f"they are: {', '.join(layers)}"
            )
        chosen |= hits
    for name, layer in layers.items():
        weight = layer.weight
        if name in chosen and isinstance(weight, Tensor) and not weight.requires_grad:
            adapter = Adapter(layer, lora.rank)
            if not name:
                return adapter
            _put(network, name, adapter)
    return network


def merged(network: nn.Module) -> nn.Module:
    """The network with every adapter added into its layer: the same function, without the second path."""
    with torch.no_grad():
        for name, adapter in [(n, m) for n, m in network.named_modules() if isinstance(m, Adapter)]:
            adapter.base.weight.copy_(adapter.weight)
            if not name:
                return adapter.base  # type: ignore[no-any-return]
            _put(network, name, adapter.base)
    return network


def _put(network: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module in the place of another."""
    parent, _, own = name.rpartition(".")
    setattr(network.get_submodule(parent), own, module)
