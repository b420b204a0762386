"""Networks and losses of many kinds, listed before any of them was tried: which must be right, which must be refused.

`SOUND`: an example's gradient is its own. The clipped sum has to be right to 1e-5, or the model refused before
training. `COUPLED`: what one example contributes depends on another, in its batch or in an earlier one. Refused, all.
"""

# ruff: noqa: E501 (one network a line reads better than one broken over ten)
from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

N = 8
"""Examples in a batch."""


@dataclass(frozen=True)
class Case:
    """A network, a batch for it, and a loss."""

    name: str
    build: Callable[[], nn.Module]
    x: Callable[[], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    y: Callable[[], Tensor] = lambda: torch.arange(N) * 7 % 3
    random: bool = False
    """Whether it draws at random in training, so that a gradient cannot be computed twice by other means."""


class Net(nn.Module):
    """A forward pass written as a function of the module, and its parts."""

    def __init__(self, run: Callable[[Any, Tensor], Any], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def normal(*shape: int, seed: int = 0) -> Callable[[], Tensor]:
    """A batch of standard normals."""
    return lambda: torch.randn(N, *shape, generator=torch.Generator().manual_seed(seed))


def words(length: int = 5, entries: int = 9) -> Callable[[], Tensor]:
    """A batch of indices, with repetitions."""
    return lambda: torch.randint(0, entries, (N, length), generator=torch.Generator().manual_seed(1))


def masks() -> Tensor:
    """Targets of a segmentation."""
    return (torch.rand(N, 1, 6, 6, generator=torch.Generator().manual_seed(2)) > 0.6).float()


ROW, IMAGE, SIGNAL = normal(4), normal(2, 6, 6), normal(6, 4)
"""Vectors of 4; images of 2 channels, 6 x 6; sequences of 6 steps, 4 features."""


def quiet(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Old interfaces warn that they are old."""

    def built() -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return build()

    return built


def net(run: Callable[[Any, Tensor], Any], **parts: Callable[[], Any]) -> Callable[[], nn.Module]:
    """Parts are built anew for each network."""
    return lambda: Net(run, **{name: make() for name, make in parts.items()})


def linear(inner: int = 4, outer: int = 3, **options: Any) -> Callable[[], nn.Linear]:
    return lambda: nn.Linear(inner, outer, **options)


def head(features: int) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(features, 3))


def images(*layers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Layers, an average over positions, a dense layer."""
    return lambda: nn.Sequential(
        *(layer() for layer in layers), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LazyLinear(3)
    )


# --- layers ----------------------------------------------------------------------------------------------------------

LAYERS = [
    Case("linear", linear(), ROW),
    Case("linear without bias", linear(bias=False), ROW),
    Case("perceptron", lambda: nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 3)), ROW),
    Case("layer norm", lambda: nn.Sequential(nn.Linear(4, 9), nn.LayerNorm(9), nn.GELU(), nn.Linear(9, 3)), ROW),
    Case("RMS norm", lambda: nn.Sequential(nn.Linear(4, 9), nn.RMSNorm(9), nn.Linear(9, 3)), ROW),
    Case("PReLU", lambda: nn.Sequential(nn.Linear(4, 9), nn.PReLU(9), nn.Linear(9, 3)), ROW),
    Case("bilinear", net(lambda m, x: m.a(x, x.flip(1)), a=lambda: nn.Bilinear(4, 4, 3)), ROW),
    Case("convolution, group norm", images(lambda: nn.Conv2d(2, 6, 3), lambda: nn.GroupNorm(3, 6)), IMAGE),
    Case("grouped convolution", images(lambda: nn.Conv2d(2, 6, 3, groups=2)), IMAGE),
    Case("depthwise separable", images(lambda: nn.Conv2d(2, 2, 3, groups=2), lambda: nn.Conv2d(2, 5, 1)), IMAGE),
    Case("dilated, strided", images(lambda: nn.Conv2d(2, 5, 2, stride=2, dilation=2)), IMAGE),
    Case("circular padding", images(lambda: nn.Conv2d(2, 5, 3, padding=1, padding_mode="circular")), IMAGE),
    Case("same, reflected", images(lambda: nn.Conv2d(2, 5, 3, padding="same", padding_mode="reflect")), IMAGE),
    Case("convolution over time", lambda: nn.Sequential(nn.Conv1d(6, 5, 2), nn.ReLU(), head(15)), SIGNAL),
    Case("convolution in space", lambda: nn.Sequential(nn.Conv3d(1, 3, 2), nn.ReLU(), head(24)), normal(1, 3, 3, 3)),
    Case("transposed convolution", images(lambda: nn.ConvTranspose2d(2, 4, 3, stride=2, output_padding=1)), IMAGE),
    Case(
        "transposed, output_size by name",
        net(
            lambda m, x: m.h(m.a(x, output_size=[12, 12])),
            a=lambda: nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1),
            h=lambda: head(432),
        ),
        IMAGE,
    ),
    Case(
        "transposed, output_size by place",
        net(
            lambda m, x: m.h(m.a(x, [12, 12])),
            a=lambda: nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1),
            h=lambda: head(432),
        ),
        IMAGE,
    ),
    Case("instance norm, affine", images(lambda: nn.Conv2d(2, 4, 3), lambda: nn.InstanceNorm2d(4, affine=True)), IMAGE),
    Case("local response norm", images(lambda: nn.Conv2d(2, 4, 3), lambda: nn.LocalResponseNorm(2)), IMAGE),
    Case("embedding", lambda: nn.Sequential(nn.Embedding(9, 4), head(20)), words()),
    Case("embedding, padding_idx", lambda: nn.Sequential(nn.Embedding(9, 4, padding_idx=2), head(20)), words()),
    Case("embedding, sparse", lambda: nn.Sequential(nn.Embedding(9, 4, sparse=True), head(20)), words()),
    Case("embedding, max_norm", lambda: nn.Sequential(nn.Embedding(9, 4, max_norm=1.0), head(20)), words()),
    Case("bag of embeddings", lambda: nn.Sequential(nn.EmbeddingBag(9, 4, mode="mean"), nn.Linear(4, 3)), words()),
    Case(
        "bag, sparse sum",
        lambda: nn.Sequential(nn.EmbeddingBag(9, 4, mode="sum", sparse=True), nn.Linear(4, 3)),
        words(),
    ),
    Case(
        "LSTM",
        net(lambda m, x: m.h(m.a(x)[0][:, -1]), a=lambda: nn.LSTM(4, 5, batch_first=True), h=linear(5)),
        SIGNAL,
    ),
    Case(
        "GRU, time first",
        net(lambda m, x: m.h(m.a(x.transpose(0, 1))[0][-1]), a=lambda: nn.GRU(4, 5), h=linear(5)),
        SIGNAL,
    ),
    Case(
        "RNN both ways",
        net(
            lambda m, x: m.h(m.a(x)[0].mean(1)),
            a=lambda: nn.RNN(4, 5, batch_first=True, bidirectional=True, num_layers=2),
            h=linear(10),
        ),
        SIGNAL,
    ),
    Case("LSTM cell in a loop", lambda: Looped(), SIGNAL),
    Case(
        "attention",
        net(
            lambda m, x: m.h(m.a(x, x, x)[0].mean(1)),
            a=lambda: nn.MultiheadAttention(4, 2, batch_first=True),
            h=linear(),
        ),
        SIGNAL,
    ),
    Case(
        "attention, time first",
        net(
            lambda m, x: m.h(m.a(*[x.transpose(0, 1)] * 3, need_weights=False)[0].mean(0)),
            a=lambda: nn.MultiheadAttention(4, 2),
            h=linear(),
        ),
        SIGNAL,
    ),
    Case(
        "transformer",
        net(
            lambda m, x: m.h(m.a(x)[:, 0]),
            a=lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True),
            h=linear(),
        ),
        SIGNAL,
    ),
    Case("small vision transformer", lambda: Vision(), IMAGE),
    Case("residual block", lambda: Block(), IMAGE),
    Case(
        "u-net",
        lambda: SmallUNet(),
        normal(1, 6, 6),
        F.binary_cross_entropy_with_logits,
        masks,
    ),
    Case("mixed pooling", images(lambda: nn.Conv2d(2, 4, 3), lambda: nn.MaxPool2d(2, 1), nn.Hardswish), IMAGE),
]


class Looped(nn.Module):
    """A cell called as often as there are steps."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(len(x), 5)
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
        return self.head(h)


class Vision(nn.Module):
    """Patches, a token of its own, positions, attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(2, 8, 3, stride=3)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 5, 8))
        self.block = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(x), -1, -1), h], 1) + self.places
        return self.head(self.block(h)[:, 0])


class Block(nn.Module):
    """A residual block with in-place sums."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.skip = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(2, 4, 1)
        self.norm, self.relu, self.head = nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.b(self.relu(self.norm(self.a(x))))
        h += self.skip(x)
        return self.head(self.relu(h).mean((2, 3)))


class SmallUNet(nn.Module):
    """Down, up, and a connection across."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(6, 4, 2, stride=2), nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x))
        deep = torch.relu(self.b(F.max_pool2d(h, 2)))
        return self.out(torch.cat([h, self.up(deep)], 1))


# --- weights that are made, shared, frozen, hidden ---------------------------------------------------------------------


def pruned(layer: nn.Module, name: str = "weight") -> nn.Module:
    return prune.l1_unstructured(layer, name, amount=0.4)


def tied() -> nn.Module:
    made = Net(lambda m, x: m.b(torch.tanh(m.a(x)))[:, :3], a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    made.b.weight = made.a.weight
    return made


def tied_words() -> nn.Module:
    made = Net(lambda m, x: m.b(torch.tanh(m.a(x).mean(1)))[:, :3], a=nn.Embedding(9, 4), b=nn.Linear(4, 9))
    made.b.weight = made.a.weight
    return made


def two_names() -> nn.Module:
    shared = nn.Linear(4, 4)
    return Net(lambda m, x: m.h(m.b(torch.tanh(m.a(x)))), a=shared, b=shared, h=nn.Linear(4, 3))


def frozen(pick: Callable[[str], bool]) -> Callable[[], nn.Module]:
    def built() -> nn.Module:
        made = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        for name, parameter in made.named_parameters():
            parameter.requires_grad_(not pick(name))
        return made

    return built


def hidden_in_a_list() -> nn.Module:
    made = Net(lambda m, x: m.h(torch.tanh(F.linear(x, m.kept[0]))), a=nn.Linear(4, 4), h=nn.Linear(4, 3))
    made.kept = [made.a.weight]
    return made


class Standardised(nn.Conv2d):
    """Standardises its weight where the subclass is not looked for."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, weight / (1 + weight.abs().mean()), bias)


class Doubled(nn.Linear):
    """Another weight than it holds, by a property of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, 2 * self.weight, self.bias)


def own_forward() -> nn.Module:
    made = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    made[0].forward = lambda x: torch.tanh(F.linear(x, 3 * made[0].weight))
    return made


WEIGHTS = [
    Case("old weight norm, dense", quiet(lambda: nn.utils.weight_norm(nn.Linear(4, 3))), ROW),
    Case("old weight norm, convolution", quiet(images(lambda: nn.utils.weight_norm(nn.Conv2d(2, 4, 3)))), IMAGE),
    Case("weight norm", lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 5)), nn.Linear(5, 3)), ROW),
    Case("old spectral norm", quiet(lambda: nn.utils.spectral_norm(nn.Linear(4, 3))), ROW),
    Case("spectral norm", lambda: parametrizations.spectral_norm(nn.Linear(4, 3)), ROW),
    Case("orthogonal", lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 4)), nn.Linear(4, 3)), ROW),
    Case("pruned", lambda: nn.Sequential(pruned(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 3)), ROW),
    Case("pruned channels", images(lambda: prune.ln_structured(nn.Conv2d(2, 4, 3), "weight", 0.5, 2, 0)), IMAGE),
    Case("pruned bias", lambda: pruned(nn.Linear(4, 3), "bias"), ROW),
    Case("tied", tied, ROW),
    Case("tied words", tied_words, words()),
    Case("a layer under two names", two_names, ROW),
    Case("a layer used twice", net(lambda m, x: m.h(m.a(torch.tanh(m.a(x)))), a=linear(4, 4), h=linear()), ROW),
    Case("frozen layer", frozen(lambda name: name.startswith("0")), ROW),
    Case("frozen bias", frozen(lambda name: name.endswith("bias")), ROW),
    Case("only a bias is trained", frozen(lambda name: name != "2.bias"), ROW),
    Case("a layer that is never called", net(lambda m, x: m.h(x), a=linear(), h=linear()), ROW),
    Case("a layer whose output is detached", net(lambda m, x: m.h(x) + m.a(x).detach(), a=linear(), h=linear()), ROW),
    Case("own parameter", net(lambda m, x: m.h(x * m.s), s=lambda: nn.Parameter(torch.ones(4)), h=linear()), ROW),
    Case(
        "list of parameters",
        net(
            lambda m, x: m.h(sum(torch.tanh(x * p) for p in m.s)),
            s=lambda: nn.ParameterList([torch.randn(4) for _ in range(3)]),
            h=linear(),
        ),
        ROW,
    ),
    Case("weight by function", net(lambda m, x: F.linear(torch.tanh(x), m.a.weight), a=linear()), ROW),
    Case("weight by function besides", net(lambda m, x: m.a(x) + F.linear(x**2, m.a.weight), a=linear()), ROW),
    Case(
        "weight by function, in training only",
        net(lambda m, x: m.a(x) + (F.linear(x**2, m.a.weight) if m.training else 0), a=linear()),
        ROW,
    ),
    Case(
        "weight by function, where an example opens a gate",
        net(lambda m, x: torch.where(x[:, :1] > 1.2, F.linear(x**2, m.a.weight), m.a(x)), a=linear()),
        ROW,
    ),
    Case(
        "weight by function, for the rows that open a gate",
        net(lambda m, x: m.a(x).index_add(0, (x[:, 0] > 1.2).nonzero()[:, 0],
                                          F.linear(x[x[:, 0] > 1.2] ** 2, m.a.weight)), a=linear()),
        ROW,
    ),
    Case("weight in a list", hidden_in_a_list, ROW),
    Case("convolution by another method", images(lambda: Standardised(2, 4, 3)), IMAGE),
    Case("dense layer with a forward of its own", lambda: Doubled(4, 3), ROW),
    Case("forward replaced on the object", own_forward, ROW),
    Case("double precision", lambda: nn.Linear(4, 3).double(), lambda: ROW().double()),
    Case("half precision", lambda: nn.Linear(4, 3).bfloat16(), lambda: ROW().bfloat16()),
    Case(
        "complex parameter",
        net(lambda m, x: m.h((x * m.s).abs()), s=lambda: nn.Parameter(torch.randn(4) + 1j), h=linear()),
        ROW,
    ),
]  # fmt: skip


# --- forward passes ----------------------------------------------------------------------------------------------------


def gradient_hook() -> nn.Module:
    made = nn.Linear(4, 3)
    made.weight.register_hook(lambda g: 3 * g)
    return made


def late_hook() -> nn.Module:
    made = nn.Linear(4, 3)

    def halve(parameter: Tensor) -> None:
        parameter.grad = parameter.grad / 2

    made.weight.register_post_accumulate_grad_hook(halve)
    return made


def module_hook(which: str, act: Callable[..., Any]) -> Callable[[], nn.Module]:
    def built() -> nn.Module:
        made = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
        getattr(made[1], which)(act)
        return made

    return built


def experts(m: Any, x: Tensor) -> Tensor:
    """Each row goes to the expert that it chooses."""
    out = x.new_zeros(len(x), 3)
    for expert, chosen in ((m.a, x[:, 0] > 0), (m.b, x[:, 0] <= 0)):
        out[chosen] = expert(x[chosen])
    return out


def sorted_rows(m: Any, x: Tensor) -> Tensor:
    """Rows in the order of their length and back again, as packed sequences are."""
    order = x.norm(dim=1).argsort(descending=True)
    return m.h(torch.tanh(m.a(x[order])))[order.argsort()]


def row_by_row(m: Any, x: Tensor) -> Tensor:
    """A number of layers that depends on the example."""
    return torch.stack([m.h(torch.tanh(m.a(v)) if float(v[0]) > 0 else v) for v in x])


class Sign(torch.autograd.Function):
    """Straight through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g


def counted(m: Any, x: Tensor) -> Tensor:
    m.steps += 1
    return m.h(x) / (1 + 0.1 * m.steps)


def watched(m: Any, x: Tensor) -> Tensor:
    """Keeps a running mean that nothing reads in training."""
    if m.training:
        m.seen.lerp_(x.detach().mean(0), 0.1)
    return m.h(x) if m.training else m.h(x - m.seen)


def writes_later(m: Any, x: Tensor) -> Tensor:
    h = torch.tanh(m.a(x))
    out = m.h(h)
    h.mul_(0.5)
    return out


def lazy() -> nn.Module:
    made = nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.LazyLinear(3))
    made(ROW())
    return made


def deep_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Dropout(0.5), nn.Linear(20, 3))


FORWARD = [
    Case("gradient hook", gradient_hook, ROW),
    Case("hook after accumulation", late_hook, ROW),
    Case("backward hook of a module", module_hook("register_full_backward_hook", lambda m, a, b: (2 * a[0],)), ROW),
    Case("backward pre-hook", module_hook("register_full_backward_pre_hook", lambda m, g: (2 * g[0],)), ROW),
    Case("forward hook", module_hook("register_forward_hook", lambda m, a, out: torch.tanh(out)), ROW),
    Case("forward pre-hook", module_hook("register_forward_pre_hook", lambda m, a: (2 * a[0],)), ROW),
    Case("called by name", net(lambda m, x: m.h(input=torch.tanh(m.a(input=x))), a=linear(4, 4), h=linear()), ROW),
    Case("experts", net(experts, a=linear(), b=linear()), ROW),
    Case("rows sorted and put back", net(sorted_rows, a=linear(4, 5), h=linear(5)), ROW),
    Case("row by row", net(row_by_row, a=linear(4, 4), h=linear()), ROW),
    Case(
        "positions folded into examples",
        net(lambda m, x: m.a(x.reshape(-1, 4)).view(len(x), -1, 3).mean(1), a=linear()),
        SIGNAL,
    ),
    Case("positions before examples", net(lambda m, x: torch.tanh(m.a(x.transpose(0, 1))).mean(0), a=linear()), SIGNAL),
    Case("in-place activations", lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(True), nn.Linear(5, 3)), ROW),
    Case("in-place sum", net(lambda m, x: m.h(m.a(x).add_(x).tanh_()), a=linear(4, 4), h=linear()), ROW),
    Case("a layer's input written over later", net(writes_later, a=linear(4, 4), h=linear()), ROW),
    Case("view written over", net(lambda m, x: m.h(m.a(x).view(-1, 2, 2).mul_(2).flatten(1)), a=linear(4, 4), h=linear()), ROW),
    Case("straight through", net(lambda m, x: m.h(Sign.apply(m.a(x))), a=linear(4, 4), h=linear()), ROW),
    Case("checkpointed", net(lambda m, x: m.h(checkpoint(m.a, x, use_reentrant=False)), a=linear(4, 4), h=linear()), ROW),
    Case("a branch without gradients", lambda: Branch(), ROW),
    Case("Fourier features", net(lambda m, x: m.h(torch.fft.rfft(m.a(x)).abs()), a=linear(4, 4), h=linear(3)), ROW),
    Case("lazy layers", lazy, ROW),
    Case("traced graph", lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))), ROW),
    Case("script", quiet(lambda: torch.jit.script(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))), ROW),
    Case("channels last", images(lambda: nn.Conv2d(2, 4, 3)), lambda: IMAGE().contiguous(memory_format=torch.channels_last)),
    Case("input with holes", images(lambda: nn.Conv2d(2, 4, 3)), lambda: normal(6, 6, 2)().movedim(3, 1)),
    Case("counter that scales", net(counted, h=linear(), steps=lambda: torch.zeros(())), ROW),
    Case("statistics that training does not read", net(watched, h=linear(), seen=lambda: torch.zeros(4)), ROW),
    Case("returns a tuple", net(lambda m, x: (m.h(x), x), h=linear()), ROW),
    Case("returns a dict", net(lambda m, x: {"out": m.h(x)}, h=linear()), ROW),
    Case("squeezes its output", net(lambda m, x: m.h(x).squeeze(), h=linear(4, 1)), ROW,
         F.binary_cross_entropy_with_logits, lambda: (torch.arange(N) % 2).float()),
    Case("dropout", deep_dropout, ROW, random=True),
    Case("dropout of channels", images(lambda: nn.Conv2d(2, 4, 3), lambda: nn.Dropout2d(0.3)), IMAGE, random=True),
    Case("alpha dropout", lambda: nn.Sequential(nn.Linear(4, 9), nn.AlphaDropout(0.3), nn.Linear(9, 3)), ROW, random=True),
    Case("dropout by function", net(lambda m, x: m.h(F.dropout(x, 0.4, m.training)), h=linear()), ROW, random=True),
    Case("dropout always", net(lambda m, x: m.h(F.dropout(x, 0.4)), h=linear()), ROW, random=True),
    Case("noise on activations", net(lambda m, x: m.h(x + 0.1 * torch.randn_like(x)), h=linear()), ROW, random=True),
    Case("depth at random", net(lambda m, x: m.h(m.a(x) if torch.rand(()) < 0.7 else x), a=linear(4, 4), h=linear()),
         ROW, random=True),
    Case("noise from numpy", net(lambda m, x: m.h(x * float(np.random.rand())), h=linear()), ROW, random=True),  # noqa: NPY002
    Case("transformer with dropout",
         net(lambda m, x: m.h(m.a(x)[:, 0]), a=lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.2, batch_first=True), h=linear()),
         SIGNAL, random=True),
    Case("LSTM with dropout",
         net(lambda m, x: m.h(m.a(x)[0][:, -1]), a=lambda: nn.LSTM(4, 5, 2, batch_first=True, dropout=0.3), h=linear(5)),
         SIGNAL, random=True),
]  # fmt: skip


class Branch(nn.Module):
    """A second use of a layer, under no_grad."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.h = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            teacher = self.a(x * 2)
        return self.h(self.a(x) * teacher.sigmoid())


# --- losses that are a mean over examples --------------------------------------------------------------------------------


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    each = F.cross_entropy(outputs, targets, reduction="none")
    return ((1 - (-each).exp()) ** 2 * each).mean()


def dice(outputs: Tensor, targets: Tensor) -> Tensor:
    p = outputs.sigmoid().flatten(1)
    t = targets.flatten(1)
    return (1 - (2 * (p * t).sum(1) + 1) / (p.sum(1) + t.sum(1) + 1)).mean()


def with_penalty() -> Case:
    layer = nn.Linear(4, 3)
    return Case(
        "loss with a penalty on weights",
        lambda: layer,
        ROW,
        lambda out, y: F.cross_entropy(out, y) + 0.1 * layer.weight.square().sum(),
    )


def one_hot(y: Tensor) -> Tensor:
    return F.one_hot(y, 3).float()


def on_rows(name: str, loss: Callable[[Tensor, Tensor], Tensor], **changes: Any) -> Case:
    """A loss on a perceptron's outputs."""
    made = lambda: nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 3))  # noqa: E731
    return Case(name, made, ROW, loss, **changes)


LOSSES = [
    on_rows("label smoothing", lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1)),
    on_rows("equal weights", lambda out, y: F.cross_entropy(out, y, torch.full((3,), 0.7))),
    on_rows("focal", focal),
    on_rows("squared error", lambda out, y: F.mse_loss(out, one_hot(y))),
    on_rows("Huber", lambda out, y: F.huber_loss(out, one_hot(y))),
    on_rows("margin", F.multi_margin_loss),
    on_rows("weighted margin", lambda out, y: F.multi_margin_loss(out, y, weight=torch.tensor([1.0, 2.0, 5.0]))),
    on_rows("positive weights", lambda out, y: F.binary_cross_entropy_with_logits(out, one_hot(y), pos_weight=torch.tensor([1.0, 4.0, 9.0]))),
    on_rows("divergence, batch mean", lambda out, y: F.kl_div(out.log_softmax(1), one_hot(y), reduction="batchmean")),
    on_rows("divergence, mean", lambda out, y: F.kl_div(out.log_softmax(1), one_hot(y), reduction="mean")),
    on_rows("weights times losses, mean", lambda out, y: (torch.tensor([1.0, 2.0, 9.0])[y] * F.cross_entropy(out, y, reduction="none")).mean()),
    on_rows("entropy term", lambda out, y: F.cross_entropy(out, y) - 0.1 * torch.special.entr(out.softmax(1)).sum(1).mean()),
    on_rows("loss in double", lambda out, y: F.cross_entropy(out.double(), y)),
    on_rows("sum", lambda out, y: F.cross_entropy(out, y, reduction="sum")),
    on_rows("sum over a constant", lambda out, y: F.cross_entropy(out, y, reduction="sum") / N),
    on_rows("one value for each example", lambda out, y: F.cross_entropy(out, y, reduction="none")),
    Case("dice of each image", SmallUNet, normal(1, 6, 6), dice, masks),
    with_penalty(),
]  # fmt: skip

SOUND = [*LAYERS, *WEIGHTS, *FORWARD, *LOSSES]


# --- coupled -----------------------------------------------------------------------------------------------------------


def mixing(name: str, mix: Callable[[Any, Tensor], Tensor], **changes: Any) -> Case:
    """Something done to the inputs before a small perceptron."""
    parts = {"a": linear(4, 6), "h": linear(6), **changes}
    return Case(name, net(lambda m, x: m.h(torch.tanh(m.a(mix(m, x)))), **parts), ROW)


def in_training(mix: Callable[[Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    return lambda m, x: mix(x) if m.training else x


def mixup(draw: Callable[[], float]) -> Callable[[Tensor], Tensor]:
    def mix(x: Tensor) -> Tensor:
        share = draw()
        return share * x + (1 - share) * x[torch.randperm(len(x))]

    return mix


def whitened(x: Tensor) -> Tensor:
    middle = x - x.mean(0)
    values, vectors = torch.linalg.eigh(middle.T @ middle / len(x) + 0.1 * torch.eye(x.shape[1]))
    return middle @ vectors / values.sqrt()


def remembered(m: Any, x: Tensor) -> Tensor:
    """Takes away the mean of the batch before."""
    out = x - m.last
    if m.training:
        m.last.copy_(x.detach().mean(0))
    return out


def attribute(m: Any, x: Tensor) -> Tensor:
    out = x - getattr(m, "kept", torch.zeros(4))
    m.kept = x.detach().mean(0)
    return out


def running(m: Any, x: Tensor) -> Tensor:
    if m.training:
        m.last.lerp_(x.detach().mean(0), 0.5)
    return x - m.last


def alike(x: Tensor) -> Tensor:
    """Halves rows that another row of the batch repeats."""
    close = (torch.cdist(x, x) < 1e-4).sum(1, keepdim=True)
    return x / close


def neighbours(x: Tensor) -> Tensor:
    """The mean with the nearest other row."""
    distance = torch.cdist(x, x) + 1e9 * torch.eye(len(x))
    return (x + x[distance.argmin(1)]) / 2


def no_holes(x: Tensor) -> Tensor:
    """Missing values become the batch's mean."""
    return torch.where(x.isnan(), x.nanmean(0), x)


class Scaled(torch.autograd.Function):
    """The identity, which divides gradients by the largest of the batch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g / (g.abs().max() + 1e-9)


def pairs(x: Tensor) -> Tensor:
    """Each second row minus the row before it."""
    out = x.clone()
    out[1::2] = x[1::2] - x[: len(x) - len(x) % 2 : 2]
    return out


MIXING = [
    Case("batch norm 1d", lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)), ROW),
    Case("batch norm 2d", images(lambda: nn.Conv2d(2, 4, 3), lambda: nn.BatchNorm2d(4)), IMAGE),
    Case("batch norm without statistics", images(lambda: nn.BatchNorm2d(2, track_running_stats=False)), IMAGE),
    Case("instance norm with statistics", images(lambda: nn.InstanceNorm2d(2, track_running_stats=True)), IMAGE),
    Case("embedding by frequency", lambda: nn.Sequential(nn.Embedding(9, 4, scale_grad_by_freq=True), head(20)), words()),
    Case("bag by frequency", lambda: nn.Sequential(nn.EmbeddingBag(9, 4, scale_grad_by_freq=True), nn.Linear(4, 3)), words()),
    mixing("batch norm by function", lambda m, x: F.batch_norm(x, None, None, training=True)),
    mixing("batch norm by function in training",
           lambda m, x: F.batch_norm(x, m.mean, m.var, training=m.training),
           mean=lambda: torch.zeros(4), var=lambda: torch.ones(4)),
    mixing("mean taken away", lambda m, x: x - x.mean(0)),
    mixing("mean taken away in training", in_training(lambda x: x - x.mean(0))),
    mixing("a hundredth of the mean", in_training(lambda x: x - 0.01 * x.mean(0))),
    mixing("divided by the deviation", in_training(lambda x: x / (x.std(0, correction=0) + 0.1))),
    mixing("divided by the maximum", in_training(lambda x: x / x.abs().max())),
    mixing("divided by a large maximum only", in_training(lambda x: x / (x.abs().max() / 20).clamp(min=1))),
    mixing("clamped to the batch's quantiles", in_training(lambda x: x.clamp(x.quantile(0.1), x.quantile(0.9)))),
    mixing("mixup", in_training(mixup(lambda: 0.7))),
    mixing("mixup, share from numpy", in_training(mixup(lambda: float(np.random.beta(1, 1))))),  # noqa: NPY002
    mixing("mixup, share from torch", in_training(mixup(lambda: float(torch.rand(()))))),
    mixing("cut and mix", in_training(lambda x: torch.cat([x[:, :2], x[:, 2:].roll(1, 0)], 1))),
    mixing("sorted over the batch", in_training(lambda x: x.sort(0).values)),
    mixing("ranks in the batch", in_training(lambda x: x + x.argsort(0).argsort(0))),
    mixing("running sum", lambda m, x: x.cumsum(0)),
    mixing("softmax over the batch", lambda m, x: x.softmax(0) * 4),
    mixing("unit columns", lambda m, x: F.normalize(x, dim=0)),
    mixing("layer norm over the batch", lambda m, x: F.layer_norm(x.T, (x.shape[0],)).T),
    mixing("group norm over the batch", lambda m, x: F.group_norm(x.reshape(1, -1), 1).view_as(x)),
    mixing("whitening", in_training(whitened)),
    mixing("divided by the spectral norm", in_training(lambda x: x / torch.linalg.matrix_norm(x, 2))),
    mixing("gate on the batch's mean", lambda m, x: x if float(x.mean()) > 0 else 2 * x),
    mixing("gate on the batch's maximum", lambda m, x: torch.tanh(x) if float(x.abs().max()) > 20 else x),
    mixing("nearest neighbour", in_training(neighbours)),
    mixing("rows that repeat", in_training(alike)),
    mixing("how many rows are zero", in_training(lambda x: x * (1 + (x == 0).all(1).sum()))),
    mixing("missing values from the batch", in_training(no_holes)),
    mixing("pairs", in_training(pairs)),
    mixing("only in large batches", in_training(lambda x: x - x.mean(0) if len(x) > 6 else x)),
    mixing("gradients divided by the batch's largest", lambda m, x: Scaled.apply(m.first(x)), first=linear(4, 4)),
    mixing("mean with a gradient only", lambda m, x: (h := m.first(x)) + h.mean(0) - h.mean(0).detach(), first=linear(4, 4)),
    mixing("mean of the batch before", remembered, last=lambda: torch.zeros(4)),
    mixing("mean of the batch before in an attribute", attribute),
    mixing("running mean taken away", running, last=lambda: torch.zeros(4)),
    Case("attention over the batch",
         net(lambda m, x: m.h(m.a(x, x, x)[0]), a=lambda: nn.MultiheadAttention(4, 2), h=linear()), ROW),
    Case("LSTM along the batch", net(lambda m, x: m.h(m.a(x)[0][:, -1]), a=lambda: nn.LSTM(4, 5), h=linear(5)), SIGNAL),
    Case("best rows only", net(lambda m, x: m.h(x) * (m.g(x) >= m.g(x).median()), g=linear(4, 1), h=linear()), ROW),
    Case("share of an expert", net(lambda m, x: m.h(x) / (1 + m.h(x).argmax(1).bincount(minlength=3) / len(x)), h=linear()), ROW),
    Case("mean taken away, tied", lambda: Net(lambda m, x: m.b(m.a(x - x.mean(0) if m.training else x)), a=tied(), b=nn.Linear(3, 3)), ROW),
    Case("dropout and the mean", net(lambda m, x: m.h(F.dropout(x - 0.1 * x.mean(0), 0.3, m.training)), h=linear()), ROW, random=True),
    Case("dropout and the mean in training",
         net(lambda m, x: m.h(m.d(x) - (0.1 * x.mean(0) if m.training else 0)), d=lambda: nn.Dropout(0.5), h=linear()), ROW, random=True),
]  # fmt: skip


def contrastive(outputs: Tensor, targets: Tensor) -> Tensor:
    unit = F.normalize(outputs, dim=1)
    return F.cross_entropy(unit @ unit.T / 0.5, torch.arange(len(outputs)))


def triplet(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.triplet_margin_loss(outputs, outputs.roll(1, 0), outputs.roll(2, 0))


def ranking(outputs: Tensor, targets: Tensor) -> Tensor:
    gap = outputs[:, :1] - outputs[:, :1].T
    return F.softplus(-gap * (targets[:, None] > targets[None, :])).mean()


def class_weights(outputs: Tensor, targets: Tensor) -> Tensor:
    """Divided by the weights of the batch's labels."""
    return F.cross_entropy(outputs, targets, torch.tensor([1.0, 5.0, 50.0]))


def by_frequency(outputs: Tensor, targets: Tensor) -> Tensor:
    weights = len(targets) / (1.0 + targets.bincount(minlength=3))
    return (weights[targets] * F.cross_entropy(outputs, targets, reduction="none")).mean()


def centres(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets) + 0.1 * (outputs - outputs.mean(0).detach()).square().sum(1).mean()


def batch_dice(outputs: Tensor, targets: Tensor) -> Tensor:
    p = outputs.sigmoid()
    return 1 - (2 * (p * targets).sum() + 1) / (p.sum() + targets.sum() + 1)


def each(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


MIXING_LOSSES = [
    on_rows("class weights", class_weights),
    on_rows("class weights, one rare class", lambda out, y: F.cross_entropy(out, y, torch.tensor([1.0, 1.0, 1e-3]))),
    on_rows("class weights, nll", lambda out, y: F.nll_loss(out.log_softmax(1), y, torch.tensor([1.0, 5.0, 50.0]))),
    on_rows("class weights from the batch", by_frequency),
    on_rows("class weights, labels of one class here", class_weights,
            y=lambda: torch.zeros(N, dtype=torch.long)),
    on_rows("ignored labels", lambda out, y: F.cross_entropy(out, y, ignore_index=1)),
    on_rows("contrastive", contrastive),
    on_rows("triplets in the batch", triplet),
    on_rows("ranking", ranking),
    on_rows("hardest examples", lambda out, y: each(out, y).topk(max(1, len(y) // 2)).values.mean()),
    on_rows("median", lambda out, y: each(out, y).median()),
    on_rows("worst example", lambda out, y: each(out, y).max()),
    on_rows("tilted", lambda out, y: each(out, y).logsumexp(0)),
    on_rows("variance of losses", lambda out, y: each(out, y).mean() + each(out, y).var(correction=0)),
    on_rows("divided by the largest loss", lambda out, y: (each(out, y) / each(out, y).max().detach()).mean()),
    on_rows("root of the mean square", lambda out, y: F.mse_loss(out, one_hot(y)).sqrt()),
    on_rows("distance to the batch's centre", centres),
    on_rows("diversity of outputs", lambda out, y: F.cross_entropy(out, y) + 0.1 * torch.special.entr(out.softmax(1).mean(0)).sum()),
    Case("dice of the batch", SmallUNet, normal(1, 6, 6), batch_dice, masks),
]  # fmt: skip

COUPLED = [*MIXING, *MIXING_LOSSES]
