"""A convolution that is differentiable twice with nothing to spare.

z = W * x has the backward pass  x' = W^T * z',  W' = z' * x  (z' etc. are gradients). An inversion differentiates these
two once more, with v_x and v_W the gradients that arrive at them:

    at z':  W * v_x + v_W * x        at x:  v_W^T * z'        at W:  z' * v_x

torch's own rule makes some of these from convolutions with kernels as large as the image, and for a single image takes
slow paths. Here each is one call of the kernel made for it. The gradient at W is left out where W cannot depend on the
image, as in the first local step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

Shape = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]
"""Stride, padding, dilation, groups."""


def fits(layer: nn.Module) -> bool:
    """Whether a layer is a convolution that `convolve` computes."""
    return isinstance(layer, nn.Conv2d) and not isinstance(layer.padding, str) and layer.padding_mode == "zeros"


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape, fixed: bool) -> Tensor:
    """The convolution; ``fixed`` says that the weight does not depend on the image."""
    out: Tensor = _Convolution.apply(x, weight, shape, fixed)  # type: ignore[no-untyped-call]
    return out if bias is None else out + bias.view(1, -1, 1, 1)


def _forward(x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    stride, padding, dilation, groups = shape
    return torch.conv2d(x, weight, None, stride, padding, dilation, groups)


def _backward(out: Tensor, x: Tensor, weight: Tensor, shape: Shape, to_x: bool, to_weight: bool) -> list[Tensor | None]:
    stride, padding, dilation, groups = shape
    found: list[Tensor | None] = list(
        torch.ops.aten.convolution_backward(
            out, x, weight, None, stride, padding, dilation, False, (0, 0), groups, (to_x, to_weight, False)
        )
    )
    return found[:2]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, shape: Shape, fixed: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.shape, ctx.fixed = shape, fixed
        return _forward(x, weight, shape)

    @staticmethod
    def backward(ctx: Any, out: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        # The client's own backward pass keeps its graph; the search's, which comes last, does not, and asks no weight.
        to_weight_too = ctx.needs_input_grad[1] and (torch.is_grad_enabled() or not ctx.fixed)
        to_x, to_weight = _Gradient.apply(  # type: ignore[no-untyped-call]
            out, x, weight, ctx.shape, ctx.fixed, (ctx.needs_input_grad[0], to_weight_too)
        )
        return to_x, to_weight, None, None


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, out: Tensor, x: Tensor, weight: Tensor, shape: Shape, fixed: bool, needed: tuple[bool, bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        ctx.save_for_backward(out, x, weight)
        ctx.shape, ctx.fixed = shape, fixed
        ctx.set_materialize_grads(False)
        to_x, to_weight = _backward(out, x, weight, shape, *needed)
        return to_x if needed[0] else None, to_weight if needed[1] else None

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, at_x: Tensor | None, at_weight: Tensor | None) -> tuple[Tensor | None, ...]:
        out, x, weight = ctx.saved_tensors
        to_out = to_x = to_weight = None
        if ctx.needs_input_grad[0]:
            if at_x is not None:
                to_out = _forward(at_x, weight, ctx.shape)
            if at_weight is not None:
                more = _forward(x, at_weight, ctx.shape)
                to_out = more if to_out is None else to_out.add_(more)
        if ctx.needs_input_grad[1] and at_weight is not None:
            to_x = _backward(out, x, at_weight, ctx.shape, True, False)[0]
        if ctx.needs_input_grad[2] and at_x is not None and not ctx.fixed:
            to_weight = _backward(out, at_x, weight, ctx.shape, False, True)[1]
        return to_out, to_x, to_weight, None, None, None
