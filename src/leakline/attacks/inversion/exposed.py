r"""What a single image's update gives away exactly: inputs of layers, by linear algebra, without any search.

A dense layer z = W f + b has the gradients g_W = g_z f^T and g_b = g_z for one image, so f = g_W^T g_b / |g_b|^2.

A convolution is a dense layer applied to the patches u_p of its input at every position p, so for one image

    G = sum_p d_p u_p^T          d_p  the loss's gradient at output position p; G is [C_out, C_in k k]

has rank at most P, the number of positions. Deep layers have many channels and few positions. Where P is smaller than
both sides of G, the row space of G *is* the span of the patches: it is read off the singular vectors, whatever the d_p
were. Overlapping patches that all lie in a known space determine the layer's input a, up to a factor, as the solution
of linear equations. What follows the layer fixes the rest:

    batch normalisation:  sum_p d_p = 0, so the span is that of u_p - mean(u); and the batch mean that BatchNorm's
                          running average gives away says  W mean(u) + b = mu, which sets offset and scale
    a bias, no norm:      [G, g_b] spans [u_p, 1], and the ones set the scale

The dense case is long known (Phong et al. 2018); spans of inputs from low-rank gradients are used by SPEAR (Dimitrov
et al. 2024) for dense layers and batches. One image, one step: with more, spans of different images mix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from leakline.attacks.inversion.twin import Site

GAP = 10.0
"""How far the singular values must fall behind the span's last for it to count as read."""


def dense_input(weight: Tensor, bias: Tensor) -> Tensor | None:
    """The input of a dense layer from its gradients [out, in] and [out], or None where there is no gradient."""
    size = bias.double().square().sum()
    return None if size == 0 else (weight.double().T @ bias.double()) / size


def read_factor(gradient: Tensor, bias: Tensor, weight: Tensor, offset: Tensor) -> float | None:
    """What one image's gradients were multiplied by (a clip), from those of the last layer under a softmax.

    f = g_W^T g_b / |g_b|^2 is free of any factor, and with it the logits W f + b, their probabilities p and the true
    g_b = p - onehot(y), y its only negative entry. None where g_W is not g_b f^T: noise, or several images.
    """
    f = dense_input(gradient, bias)
    if f is None or gradient.dim() != 2:
        return None
    rest = gradient.double() - bias.double()[:, None] * f
    if not rest.norm() <= 0.01 * gradient.double().norm():
        return None
    true = torch.softmax(weight.double() @ f + offset.double(), 0)
    true[int(bias.argmin())] -= 1
    factor = float((bias.double() @ true) / true.square().sum())
    return factor if factor > 0 and (bias.double() / factor - true).norm() <= 0.01 * true.norm() else None


def span(gradient: Tensor, positions: int) -> Tensor | None:
    """An orthonormal basis [rank, columns] of the row space, if a gap shows that the rank is below both sides.

    The rank is looked for between half of ``positions`` and ``positions`` (units may be dead), at the largest fall of
    the singular values. Rounding leaves a fall of about 1e4; noise from a defence fills it up.
    """
    short = min(gradient.shape)
    most = min(positions, short - 1)
    if positions >= short or most < 1:
        return None
    _, values, rows = torch.linalg.svd(gradient.double(), full_matrices=False)
    first = max(most // 2, 1)
    falls = values[first - 1 : most] / values[first : most + 1].clamp_min(1e-30)
    best = int(falls.argmax())
    return rows[: first + best] if falls[best] >= GAP else None


@dataclass(frozen=True)
class Taps:
    """One convolution's share of the linear equations for its input: stays in the span, and has the right mean."""

    layer: nn.Conv2d
    weight: Tensor
    basis: Tensor
    mean: Tensor | None
    """The batch mean of the outputs, less the layer's bias; None where [G, g_b] was read instead."""

    def unfold(self, a: Tensor) -> Tensor:
        """The patches [C k k, P] of one image."""
        layer = self.layer
        pad = layer.padding if not isinstance(layer.padding, str) else _same(layer)
        return functional.unfold(a, layer.kernel_size, layer.dilation, pad, layer.stride)[0]

    def apply(self, a: Tensor) -> tuple[Tensor, ...]:
        """The linear part of the equations at a."""
        u = self.unfold(a)
        if self.mean is None:
            kept = self.basis[:, :-1]
            return u - kept.T @ (kept @ u), -self.basis[:, -1] @ (kept @ u)
        centre = u.mean(1, keepdim=True)
        away = u - centre
        return away - self.basis.T @ (self.basis @ away), u.shape[1] ** 0.5 * (self.weight @ centre)[:, 0]

    def wanted(self, positions: int) -> tuple[Tensor, ...]:
        """The right-hand sides."""
        columns = self.weight.shape[1]
        if self.mean is None:
            last = self.basis[:, -1]
            side = (self.basis[:, :-1].T @ last)[:, None].expand(columns, positions)
            return side, (last.square().sum() - 1).expand(positions)
        return self.weight.new_zeros(columns, positions), positions**0.5 * self.mean


def solve(
    taps: Sequence[Taps], shape: Sequence[int], most: int = 2000, tolerance: float = 1e-11
) -> tuple[Tensor, float]:
    """The input that satisfies all taps, by conjugate gradients on the normal equations, and what is left over.

    Left over: the share of the (centred) patches' energy outside their spans; about 1e-9 after rounding, and near 1
    for a wrong answer.
    """
    a = torch.zeros(*shape, dtype=torch.float64)

    def apply(v: Tensor) -> list[Tensor]:
        return [part for tap in taps for part in tap.apply(v)]

    def adjoint(parts: Sequence[Tensor]) -> Tensor:
        # The equations are linear: their transpose is the derivative of an inner product.
        v = torch.zeros_like(a, requires_grad=True)
        with torch.enable_grad():
            inner = sum(((x * y).sum() for x, y in zip(apply(v), parts, strict=True)), torch.zeros(()))
        return torch.autograd.grad(inner, v)[0]

    with torch.no_grad():
        goal = [part for tap in taps for part in tap.wanted(tap.unfold(a).shape[1])]
        left = goal
        slope = adjoint(left)
        way, size = slope, slope.square().sum()
        first = size
        for _ in range(most):
            if size <= tolerance**2 * first or size == 0:
                break
            moved = apply(way)
            pace = size / sum(m.square().sum() for m in moved)
            a = a + pace * way
            left = [x - pace * y for x, y in zip(left, moved, strict=True)]
            slope = adjoint(left)
            size, old = slope.square().sum(), size
            way = slope + size / old * way
        outside = whole = 0.0
        for tap in taps:
            u = tap.unfold(a)
            if tap.mean is None:
                outside += float(
                    sum(
                        ((x - y).square().sum() for x, y in zip(tap.apply(a), tap.wanted(u.shape[1]), strict=True)),
                        torch.zeros(()),
                    )
                )
                whole += float(u.square().sum())
            else:
                outside += float(tap.apply(a)[0].square().sum())
                whole += float((u - u.mean(1, keepdim=True)).square().sum())
    return a, outside / whole if whole else 1.0


def exposed(
    sites: Sequence[Site],
    gradients: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    means: Mapping[str, Tensor],
    leftover: float = 1e-3,
) -> dict[str, Tensor]:
    """The first layer's input that one image's gradients determine, by layer name, [1, ...] in float32; or nothing.

    Everything behind it is a function of it, so there is no more to be read.

    ``sites`` stand in the order of the forward pass; ``means`` are batch means by normalisation layer. Layers that read
    the same input (a convolution and the shortcut beside it) are solved together. Solutions that leave more than
    ``leftover`` are thrown away.
    """
    found: dict[str, Tensor] = {}
    for group in _together(sites):
        taps = []
        for site in group:
            weight = gradients.get(f"{site.name}.weight")
            bias = gradients.get(f"{site.name}.bias")
            if weight is None:
                continue
            if isinstance(site.layer, nn.Linear):
                value = None if bias is None or len(site.shape) != 2 else dense_input(weight, bias)
                if value is not None:
                    found[site.name] = value.view(site.shape).float()
            elif isinstance(site.layer, nn.Conv2d) and site.layer.groups == 1:
                tap = _tap(site, weight, bias, weights, means)
                taps += [] if tap is None else [tap]
        if taps:
            value, left = solve(taps, group[0].shape)
            if left <= leftover:
                found[group[0].name] = value.float()
        if found:
            break
    return found


def _tap(
    site: Site, weight: Tensor, bias: Tensor | None, weights: Mapping[str, Tensor], means: Mapping[str, Tensor]
) -> Taps | None:
    assert isinstance(site.layer, nn.Conv2d)
    rows = weight.flatten(1)
    kernel = weights[f"{site.name}.weight"].double().flatten(1)
    if site.norm is not None:
        mean = means.get(site.norm)
        basis = None if mean is None else span(rows, site.positions - 1)
        if basis is None or mean is None:
            return None
        offset = weights[f"{site.name}.bias"].double() if f"{site.name}.bias" in weights else 0.0
        return Taps(site.layer, kernel, basis, mean.double() - offset)
    if bias is None:
        return None  # the span is known but not its scale
    basis = span(torch.cat([rows, bias[:, None]], 1), site.positions)
    return None if basis is None else Taps(site.layer, kernel, basis, None)


def _together(sites: Sequence[Site]) -> list[list[Site]]:
    groups: dict[int, list[Site]] = {}
    for site in sites:
        groups.setdefault(site.source, []).append(site)
    return list(groups.values())


def _same(layer: nn.Conv2d) -> tuple[int, ...]:
    return tuple(d * (k - 1) // 2 for d, k in zip(layer.dilation, layer.kernel_size, strict=True))
