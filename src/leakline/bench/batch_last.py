"""Small convolutional networks with the examples of a batch as the last axis: the same gradients, sooner.

Activations are channels x height x width x examples (C, H, W, N); a signal is an image of one row. To move images by
a pixel is then to move long runs of memory: a convolution is a few products of matrices, and pooling compares runs.
Forward and backward are written out, over memory that is laid out once for each size of batch: in networks of this size
a third of a step is torch's way from call to call, and what a step touches stays in a core's cache.
`bench.training.train` with torch's own backward pass is the reference; they agree to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

MOST_VALUES = 600_000
"""Up to so many outputs of layers (over all examples of a batch) this is the faster way; beyond, what a step touches
outgrows a core's cache: measured in benchmarks/batch_last.py. Part of the arithmetic, so not a setting."""
LOOKED_AT = 50
"""How many examples are looked at in one go."""
SIZES = 8
"""For so many sizes of batch the memory is kept."""


class _Convolution:
    """y = b + sum_ij W_ij x_ij, where x_ij is the image moved by tap i, j.

    By columns it is moved by copying, by rows through where a product of matrices begins. Beyond its border an image is
    padded with zeros, at most as far as the kernel's middle reaches; a signal is an image of one row.
    """

    def __init__(self, layer: nn.Conv2d | nn.Conv1d, x: Tensor) -> None:
        self.layer = layer
        weight, (above, before) = _flat(layer.weight.detach()), _pair(layer.padding)
        channels, height, width, n = x.shape
        outs, _, down, across = weight.shape
        rows, columns = height + 2 * above - down + 1, width + 2 * before - across + 1
        self.columns = [_overlap(width, columns, j - before) for j in range(across)]
        self.spans = [_overlap(height, rows, i - above, columns * n) for i in range(down)]
        moved = torch.zeros(channels, across, height, columns, n)
        self.moves = [(moved[:, j, :, here], x[:, :, there]) for j, (here, there) in enumerate(self.columns)]
        self.moved = moved.view(channels * across, -1)
        self.weight, self.bias = weight.permute(2, 0, 1, 3), _column(layer.bias)
        self.taps = torch.empty(down, outs, channels * across)
        self.x, self.y = x, torch.empty(outs, rows, columns, n)
        y = self.y.view(outs, -1)
        self.ahead = [(y[:, here], self.taps[i], self.moved[:, there]) for i, (here, there) in enumerate(self.spans)]
        self.middle = self.ahead.pop(down // 2)

    def forward(self) -> None:
        for to, source in self.moves:
            to.copy_(source)
        self.taps.view(self.weight.shape).copy_(self.weight)
        y, taps, moved = self.middle
        torch.addmm(self.bias, taps, moved, out=y)
        for y, taps, moved in self.ahead:
            y.addmm_(taps, moved)

    def lay_back(self, dy: Tensor, first: bool) -> Tensor:
        """Lay out the way back from ``dy``; what is returned will be the gradient of the input."""
        down, outs, depth = self.taps.shape
        across = len(self.columns)
        self.dy = flat = dy.view(outs, -1)
        slopes, self.bias_slope = torch.empty(self.taps.shape), torch.empty(outs)
        self.back = [(flat[:, here], self.moved[:, there].T, slopes[i]) for i, (here, there) in enumerate(self.spans)]
        self.slopes = slopes.view(down, outs, -1, across).permute(1, 2, 0, 3)
        self.slope = torch.empty_like(self.layer.weight, requires_grad=False)  # optimisers want the weight's own layout
        self.first = first
        if first:
            return dy
        dx = torch.empty(self.moved.shape)
        self.sums = [(dx[:, there], self.taps[i].T, flat[:, here]) for i, (here, there) in enumerate(self.spans)]
        self.whole = self.sums.pop(down // 2)
        reached = self.spans[down // 2][1]  # all rows where the image is padded to keep its size
        self.blank = [part for part in (dx[:, : reached.start], dx[:, reached.stop :]) if part.numel()]
        channels, height, width, n = self.x.shape
        each = dx.view(channels, across, height, -1, n)
        joined = each[:, across // 2]
        rest = [j for j in range(across) if j != across // 2]
        if joined.shape[2] != width:
            joined, rest = torch.empty(self.x.shape), list(range(across))
            self.blank.append(joined)
        self.joins = [(joined[:, :, self.columns[j][1]], each[:, j, :, self.columns[j][0]]) for j in rest]
        return joined

    def backward(self) -> None:
        for dy, moved, slope in self.back:
            torch.mm(dy, moved, out=slope)
        _flat(self.slope).copy_(self.slopes)
        torch.sum(self.dy, 1, out=self.bias_slope)
        self.layer.weight.grad, self.layer.bias.grad = self.slope, self.bias_slope  # type: ignore[union-attr]
        if self.first:
            return
        for part in self.blank:
            part.zero_()
        dx, taps, dy = self.whole
        torch.mm(taps, dy, out=dx)
        for dx, taps, dy in self.sums:
            dx.addmm_(taps, dy)
        for to, source in self.joins:
            to.add_(source)


class _Halving:
    """The largest of each 2 x 2 pixels; of equal ones the first, as in torch. Its input becomes its gradient.

    Of a signal the larger of each two samples. A last row or column that has no other half is left out.
    """

    def __init__(self, x: Tensor, signal: bool) -> None:
        _, height, width, _ = x.shape
        rows, columns = height if signal else height - height % 2, width - width % 2
        self.x, self.left_out = x, [part for part in (x[:, rows:], x[:, :, columns:]) if part.numel()]
        pairs = _halved(x[:, :rows, :columns], 2)
        pairs = pairs if signal else _halved(pairs, 1)
        self.left, self.right = pairs.select(-2, 0), pairs.select(-2, 1)
        self.wide = torch.empty(self.left.shape)
        self.halves = [] if signal else [(self.wide[:, :, 0], self.wide[:, :, 1])]
        self.y = torch.empty(self.halves[0][0].shape) if self.halves else self.wide

    def forward(self) -> None:
        torch.maximum(self.left, self.right, out=self.wide)
        for upper, lower in self.halves:
            torch.maximum(upper, lower, out=self.y)

    def lay_back(self, dy: Tensor, first: bool) -> Tensor:
        self.dy = dy
        return self.x

    def backward(self) -> None:
        for upper, lower in self.halves:
            _shared(self.dy, upper, lower)
        _shared(self.wide if self.halves else self.dy, self.left, self.right)
        for part in self.left_out:
            part.zero_()


def _halved(x: Tensor, axis: int) -> Tensor:
    """An axis as pairs, without a copy."""
    return x.view(*x.shape[:axis], -1, 2, *x.shape[axis + 1 :])


def _shared(dy: Tensor, first: Tensor, second: Tensor) -> None:
    """To the larger of two what both get, to the other nothing. The mask is of numbers: torch is faster with them."""
    second.le_(first)
    torch.mul(dy, second, out=first)
    torch.sub(dy, first, out=second)


class _Positive:
    def __init__(self, x: Tensor) -> None:
        self.y = x

    def forward(self) -> None:
        self.y.clamp_min_(0)

    def lay_back(self, dy: Tensor, first: bool) -> Tensor:
        self.dy = dy
        return dy

    def backward(self) -> None:
        torch.ops.aten.threshold_backward.grad_input(self.dy, self.y, 0, grad_input=self.dy)


class _Dense:
    def __init__(self, layer: nn.Linear, x: Tensor) -> None:
        self.layer, self.x = layer, x
        self.weight, self.bias = layer.weight.detach(), _column(layer.bias)
        self.y = torch.empty(layer.out_features, x.shape[-1])

    def forward(self) -> None:
        torch.addmm(self.bias, self.weight, self.x, out=self.y)

    def lay_back(self, dy: Tensor, first: bool) -> Tensor:
        self.dy, self.dx = dy, torch.empty(self.x.shape)
        self.slope, self.bias_slope = torch.empty(self.weight.shape), torch.empty(len(dy))
        self.x_across, self.weight_across = self.x.T, self.weight.T
        return self.dx

    def backward(self) -> None:
        torch.mm(self.dy, self.x_across, out=self.slope)
        torch.sum(self.dy, 1, out=self.bias_slope)
        torch.mm(self.weight_across, self.dy, out=self.dx)
        self.layer.weight.grad, self.layer.bias.grad = self.slope, self.bias_slope


_Layer = _Convolution | _Halving | _Positive | _Dense


class _Laid:
    """A network laid out for batches of one size."""

    def __init__(self, modules: Sequence[nn.Module], shape: Sequence[int], n: int) -> None:
        self.x = x = torch.empty(*_image(shape), n)
        self.layers: list[_Layer] = []
        image, convolved = x.shape, 0
        for module in modules:
            if isinstance(module, nn.Flatten):
                image, convolved = x.shape, len(self.layers)
                x = x.view(-1, n)
            else:
                self.layers.append(_layer(module, x))
                x = self.layers[-1].y
        self.y, self.dy = x, torch.empty(x.shape)
        dy = self.dy
        for place in reversed(range(len(self.layers))):
            dy = self.layers[place].lay_back(dy.view(image) if place == convolved - 1 else dy, place == 0)


def _layer(module: nn.Module, x: Tensor) -> _Layer:
    if isinstance(module, nn.Conv2d | nn.Conv1d):
        return _Convolution(module, x)
    if isinstance(module, nn.Linear):
        return _Dense(module, x)
    if isinstance(module, nn.MaxPool2d | nn.MaxPool1d):
        return _Halving(x, isinstance(module, nn.MaxPool1d))
    return _Positive(x)


class BatchLast:
    """A network's outputs and, as a `Gradient`, what its parameters' ``grad`` become of one batch."""

    def __init__(self, model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], shape: Sequence[int]) -> None:
        if not known(model, shape):
            raise ValueError("not a plain stack of convolutions, ReLU, halving pools and dense layers")
        self.modules, self.loss, self.shape = _ordered(model), loss, tuple(shape)
        self.sizes: dict[int, _Laid] = {}
        self.values = sum(layer.y.numel() for layer in _Laid(self.modules, self.shape, 1).layers)
        """Outputs of all layers for one example."""

    def fits(self, batch: int) -> bool:
        """Whether batches of so many examples are small enough for this to be the faster way."""
        return self.values * batch <= MOST_VALUES

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Fill the parameters' ``grad`` and return the loss; ``model`` is the one that this was made of."""
        outputs = self.outputs(x).requires_grad_()
        value = self.loss(outputs, y)
        (slope,) = torch.autograd.grad(value, outputs)
        laid = self.sizes[len(x)]
        with torch.no_grad():
            laid.dy.copy_(slope.T)
            for layer in reversed(laid.layers):
                layer.backward()
        return value

    @torch.no_grad()
    def outputs(self, x: Tensor) -> Tensor:
        """The outputs of a batch (N, C, H, W), or of signals (N, C, L)."""
        if (n := len(x)) not in self.sizes:
            if len(self.sizes) == SIZES:
                self.sizes.clear()
            self.sizes[n] = _Laid(self.modules, self.shape, n)
        laid = self.sizes[n]
        laid.x.view(*self.shape, n).copy_(x.movedim(0, -1))
        for layer in laid.layers:
            layer.forward()
        return laid.y.T.clone(memory_format=torch.contiguous_format)


def known(model: nn.Module, shape: Sequence[int]) -> bool:
    """Whether a network for inputs of this shape is made of what is written out here, all of it trained, on a CPU."""
    usual = all(p.requires_grad and p.dtype == torch.float32 and p.device.type == "cpu" for p in model.parameters())
    layers = list(model) if type(model) is nn.Sequential else []
    kinds = {3: (nn.Conv2d, nn.MaxPool2d), 2: (nn.Conv1d, nn.MaxPool1d)}
    if not usual or len(shape) not in kinds or not layers:
        return False
    convolution, pool = kinds[len(shape)]
    if type(layers[0]) is not convolution:
        return False
    flat, sizes = False, _image(shape)[1:]
    for layer in layers:
        if type(layer) in (convolution, pool):
            if flat or not _fits(layer) or min(sizes := _behind(layer, sizes)) < 1:
                return False
        elif isinstance(layer, nn.Flatten):
            if flat or (layer.start_dim, layer.end_dim) != (1, -1):
                return False
            flat = True
        elif not (type(layer) is nn.ReLU or (type(layer) is nn.Linear and flat and layer.bias is not None)):
            return False
    return flat and type(layers[-1]) is nn.Linear


def _fits(layer: nn.Module) -> bool:
    """Whether a pool halves, and a convolution looks everywhere, and beyond the border as far as its middle at most."""
    if isinstance(layer, nn.MaxPool2d | nn.MaxPool1d):
        return _halves(layer)
    assert isinstance(layer, nn.Conv2d | nn.Conv1d)
    reaches = [p for p in layer.padding if not isinstance(p, str)]
    ones = set(layer.stride) | set(layer.dilation) == {1}
    plain = ones and layer.groups == 1 and layer.padding_mode == "zeros" and len(reaches) == len(layer.kernel_size)
    inside = all(p <= (size - 1) // 2 for p, size in zip(reaches, layer.kernel_size, strict=False))
    return plain and inside and layer.bias is not None


def _halves(layer: nn.MaxPool2d | nn.MaxPool1d) -> bool:
    settings = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    same = [{*p} if isinstance(p, tuple) else {p} for p in settings] == [{2}, {2}, {0}, {1}]
    return same and not (layer.ceil_mode or layer.return_indices)


def _behind(layer: nn.Module, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Height and width of what a convolution or a pool makes of an image."""
    height, width = sizes
    if isinstance(layer, nn.Conv2d | nn.Conv1d):
        (above, before), (down, across) = _pair(layer.padding), _pair(layer.kernel_size, 1)
        return height + 2 * above - down + 1, width + 2 * before - across + 1
    return (height if isinstance(layer, nn.MaxPool1d) else height // 2), width // 2


def _image(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of an input as an image: a signal has one row."""
    return tuple(shape) if len(shape) == 3 else (shape[0], 1, shape[1])


def _pair(sizes: Any, row: int = 0) -> tuple[int, int]:
    """A layer's sizes down and across; those of a signal's layer go across."""
    return sizes if len(sizes) == 2 else (row, *sizes)


def _flat(weight: Tensor) -> Tensor:
    """A convolution's weight as an image's, without a copy."""
    return weight if weight.dim() == 4 else weight.unsqueeze(2)


def _ordered(model: nn.Module) -> list[nn.Module]:
    """Its layers; ReLU goes behind the pooling that follows it, which is the same with a quarter of the work."""
    found = list(model.children())
    for i in range(len(found) - 1):
        if isinstance(found[i], nn.ReLU) and isinstance(found[i + 1], nn.MaxPool2d | nn.MaxPool1d):
            found[i], found[i + 1] = found[i + 1], found[i]
    return found


def _column(bias: Tensor | None) -> Tensor:
    assert bias is not None  # `known` has seen to it
    return bias.detach()[:, None]


def _overlap(size: int, made: int, shift: int, each: int = 1) -> tuple[slice, slice]:
    """Where an axis of ``made`` places looks inside one of ``size``, moved by ``shift``: places here, and there."""
    here = slice(each * max(0, -shift), each * min(made, size - shift))
    return here, slice(here.start + each * shift, here.stop + each * shift)
