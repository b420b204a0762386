"""Batch normalisation with its moments in view, differentiable twice by rules of its own.

With n values per channel, m(.) the mean over them, s = 1 / sqrt(var + eps) and h = (x - mean) s:

    y = gamma h + beta                                                                    (Ioffe and Szegedy 2015)

    backward, y' given:     beta' = n m(y'),  gamma' = n m(y' h),  x' = gamma s (y' - m(y') - h m(y' h))

    once more, with v, v_gamma, v_beta given at x', gamma', beta', and q = m(v h), k = m(y' h), a = gamma s:
      at y':     a (v - m(v) - q h) + v_gamma h + v_beta
      at h:      r = v_gamma y' - a (k v + q y')
      at x:      s (r - m(r) - h m(r h)) - a s h (m(v y') - m(v) m(y') - q k)
      at gamma:  s n (m(v y') - m(v) m(y') - q k)

torch has the second rule too, made of many passes over the image; these are about ten.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def normalise(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, fixed: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised x, and the mean and biased variance of each channel (dimension 1), all differentiable.

    ``fixed`` says that the weight does not depend on the image.
    """
    if x.ndim == 2:
        y, mean, variance = normalise(x[..., None], weight, bias, eps, fixed)
        return y[..., 0], mean, variance
    scale = x.new_ones(x.shape[1]) if weight is None else weight
    shift = x.new_zeros(x.shape[1]) if bias is None else bias
    y, mean, variance = _Normalise.apply(x, scale, shift, eps, fixed)  # type: ignore[no-untyped-call]
    return y, mean, variance


def _channels(values: Tensor, like: Tensor) -> Tensor:
    return values.view([1, -1] + [1] * (like.ndim - 2))


def _mean(a: Tensor, b: Tensor) -> Tensor:
    """m(a b) of each channel."""
    return torch.einsum("ncp,ncp->c", a.flatten(2), b.flatten(2)) / (a.numel() // a.shape[1])


def _axes(x: Tensor) -> list[int]:
    return [0, *range(2, x.ndim)]


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, fixed: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        y, mean, scale = torch.ops.aten.native_batch_norm(x, weight, bias, None, None, True, 0.0, eps)
        ctx.save_for_backward(x, weight, mean, scale)
        ctx.eps, ctx.fixed = eps, fixed
        ctx.set_materialize_grads(False)
        return y, mean, (scale.pow(-2) - eps).clamp_min(0)

    @staticmethod
    def backward(ctx: Any, out: Tensor | None, at_mean: Tensor | None, at_variance: Tensor | None) -> tuple[Any, ...]:
        x, weight, mean, scale = ctx.saved_tensors
        to_x = to_weight = to_bias = None
        if out is not None:
            to_x, to_weight, to_bias = _Gradient.apply(  # type: ignore[no-untyped-call]
                out, x, weight, mean, scale, ctx.eps, ctx.fixed
            )
        n = x.numel() // x.shape[1]
        if at_variance is not None:
            more = (x - _channels(mean, x)) * _channels(at_variance * (2 / n), x)
            to_x = more if to_x is None else to_x + more
        if at_mean is not None:
            more = _channels(at_mean / n, x).expand_as(x)
            to_x = more if to_x is None else to_x + more
        return to_x, to_weight, to_bias, None, None


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, out: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, eps: float, fixed: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        found = torch.ops.aten.native_batch_norm_backward(
            out, x, weight, None, None, mean, scale, True, eps, (True, True, True)
        )
        ctx.save_for_backward(out, x, weight, mean, scale, found[1], found[2])
        ctx.fixed = fixed
        ctx.set_materialize_grads(False)
        return found[0], found[1], found[2]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, v: Tensor | None, v_weight: Tensor | None, v_bias: Tensor | None) -> tuple[Any, ...]:
        out, x, weight, mean, scale, gamma, beta = ctx.saved_tensors
        n = x.numel() // x.shape[1]
        h = (x - _channels(mean, x)) * _channels(scale, x)
        k, m_out = gamma / n, beta / n
        zero = torch.zeros_like(mean)
        v_weight, v_bias = (zero if given is None else given for given in (v_weight, v_bias))
        to_weight = None
        if v is None:
            to_out = h * _channels(v_weight, x) + _channels(v_bias, x)
            r = out * _channels(v_weight, x)
            spread = zero
        else:
            a = weight * scale
            q, m_v = _mean(v, h), v.mean(_axes(x))
            spread = _mean(v, out) - m_v * m_out - q * k
            to_out = torch.addcmul(_channels(v_bias - a * m_v, x), v, _channels(a, x))
            to_out.addcmul_(h, _channels(v_weight - a * q, x))
            r = out * _channels(v_weight - a * q, x)
            r.addcmul_(v, _channels(-a * k, x))
            if ctx.needs_input_grad[2] and not ctx.fixed:
                to_weight = scale * n * spread
        lean = _channels(-scale * _mean(r, h) - weight * scale.square() * spread, x)
        offset = _channels(-scale * r.mean(_axes(x)), x)
        to_x = r.mul_(_channels(scale, x)).addcmul_(h, lean).add_(offset)
        return to_out, to_x, to_weight, None, None, None, None
