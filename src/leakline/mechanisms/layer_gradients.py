"""Per-example gradients of single layers, from what went in and the gradient of what came out.

For one layer and one example, x is the layer's input, g the loss's gradient with respect to its output. The gradient
of a weight is a product of the two; its norm can be had by one of three roads, all exact:

    kept     form each example's gradient, keep it; the clipped sum is then a weighted sum of rows
    ghost    ||g^T x||^2 = sum_{s,t} <x_s, x_t> <g_s, g_t> over positions s, t, without forming g^T x; the clipped sum
             is one product of x with the weighted g (Goodfellow 2015; Li et al. 2022, arXiv:2110.05679)
    twice    form each example's gradient, keep its norm only; the clipped sum as for ghost

What is cheapest depends on the layer. Keeping costs no extra arithmetic, so it is taken wherever a gradient is no
larger than the input and output that it is made of. A layer that is used several times in one pass has the sum of its
uses for a gradient: uses are joined before any norm is taken. So are the examples of one unit (`Members`): what follows
is of the sums over units, and every example is one where nothing else is said. Units go side by side, filled up to one
size (`Pack`), so that no two of them share a Gram matrix. The clipped sum is one product over all
examples whatever sizes units have, each example under the weight of its unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from leakline.mechanisms.units import Members, Pack

Use = tuple[Tensor, Tensor]
"""Input and output gradient of one use of a layer, the example first."""
Sums = dict[str, Tensor]
"""Gradients by the name that a parameter has within its layer."""
Rows = slice | Tensor
"""Some examples of a batch."""


@dataclass(frozen=True)
class Share:
    """A layer's share in every unit's gradient: its squared norm, and its sum under given weights."""

    squares: Tensor
    """One for each unit, float64."""
    sums: Callable[[Tensor], Sums]
    """From one weight for each unit to the weighted sum of gradients."""


Rule = Callable[[nn.Module, Sequence[Use], frozenset[str], Members], Share]
"""How a kind of layer turns its uses into a share, for the parameters of these names."""

FEW = 64
"""Vectors of which all inner products cost less than the calls that would sort them by units."""
BLOCK = 256
"""Positions that are gathered at once where units are smaller: more would leave the cache, fewer cost calls."""


def _rows(rows: Sums) -> Share:
    """The share of gradients that were formed and kept, one row for each unit."""
    squares = sum(torch.linalg.vector_norm(r.flatten(1), dim=1, dtype=torch.float64) ** 2 for r in rows.values())
    assert isinstance(squares, Tensor)
    return Share(squares, lambda c: {name: torch.tensordot(c.to(r.dtype), r, 1) for name, r in rows.items()})


def _both(one: Share | None, other: Share | None) -> Share:
    if one is None or other is None:
        found = one or other
        assert found is not None  # a layer without trained parameters is never asked
        return found
    return Share(one.squares + other.squares, lambda c: one.sums(c) | other.sums(c))


def _bias(uses: Sequence[Use], channel: int, wants: frozenset[str], members: Members) -> Share | None:
    """The share of a bias: output gradients summed over positions."""
    if "bias" not in wants:
        return None
    total: Tensor | None = None
    for _, g in uses:
        positions = [d for d in range(1, g.dim()) if d != channel % g.dim()]
        row = g.sum(positions) if positions else g
        total = row if total is None else total + row
    assert total is not None
    return _rows({"bias": members.add(total)})


def _ghost(members: Members, positions: int, packed: Callable[[Pack], Use], bias: bool = False) -> Tensor:
    """Squared norms of g_u^T x_u from both Gram matrices of each unit's positions; ``bias``: of g_u^T 1 added to them.

    In float64: the sum may cancel almost to nothing, and a norm that comes out too small would not be clipped.
    """
    found = []
    for pack in members.packs(BLOCK // positions):
        a, b = (values.double() for values in packed(pack))
        alike = torch.bmm(a, a.mT)
        found.append(alike.add_(float(bias)).mul_(torch.bmm(b, b.mT)).sum((1, 2)))
    return members.unpacked(found, BLOCK // positions).clamp_(min=0)


def _formed(x: Tensor, g: Tensor, members: Members) -> Tensor:
    """g_u^T x_u of every unit; x and g are example x position x feature."""
    if members.alone:
        return torch.bmm(g.mT, x)
    most = BLOCK // x.shape[1]
    return members.unpacked([torch.bmm(p.of(g, quiet=True).mT, p.of(x)) for p in members.packs(most)], most)


def dense(layer: nn.Module, uses: Sequence[Use], wants: frozenset[str], members: Members) -> Share:
    """`nn.Linear`, on vectors or on any number of positions."""
    if "weight" not in wants:
        return _both(None, _bias(uses, -1, wants, members))
    x = _positions([x for x, _ in uses])
    g = _positions([g for _, g in uses])
    count, inner, outer = x.shape[1], x.shape[2], g.shape[2]
    if count == 1 and members.alone:
        x, g = x[:, 0], g[:, 0]
        squares = (
            torch.linalg.vector_norm(x, dim=1, dtype=torch.float64)
            * torch.linalg.vector_norm(g, dim=1, dtype=torch.float64)
        ) ** 2
        weight = Share(squares, lambda c: {"weight": (g * c.to(g.dtype)[:, None]).T @ x})
    elif count == 1 and len(members.of) <= FEW:
        return _dense_ghost(x, g, "bias" in wants, members)
    elif inner * outer <= count * max(2.0, len(members.of) / len(members)) * (inner + outer):
        weight = _rows({"weight": _formed(x, g, members)})
    else:
        return _dense_ghost(x, g, "bias" in wants, members)
    return _both(weight, _bias(uses, -1, wants, members))


def _dense_ghost(x: Tensor, g: Tensor, bias: bool, members: Members) -> Share:
    """Weight and bias in one: a bias is the weight of an input that is always 1."""
    if x.shape[1] == 1 and len(members.of) <= FEW:
        squares = _among(x[:, 0], g[:, 0], bias, members)
    else:
        squares = _ghost(members, x.shape[1], lambda pack: (pack.of(x), pack.of(g, quiet=True)), bias)

    def sums(c: Tensor) -> Sums:
        scaled = (g * _each(c, g, members)).flatten(0, 1)
        return {"weight": scaled.T @ x.flatten(0, 1)} | ({"bias": scaled.sum(0)} if bias else {})

    return Share(squares, sums)


def _among(x: Tensor, g: Tensor, bias: bool, members: Members) -> Tensor:
    """`_ghost` of few vectors: one Gram matrix of all of them, of which a unit has its own corner."""
    a, b = x.double(), g.double()
    alike = torch.mm(a, a.T).add_(float(bias)).mul_(torch.mm(b, b.T))
    alike.masked_fill_(members.strangers.to(x.device), 0)  # not times 0: it may be infinite
    return members.add(alike.sum(1)).clamp_(min=0)


def _each(c: Tensor, g: Tensor, members: Members) -> Tensor:
    """The units' weights, to multiply their examples' output gradients with."""
    return members.spread(c).to(g.dtype).view(-1, *[1] * (g.dim() - 1))


def _positions(values: Sequence[Tensor]) -> Tensor:
    """Example x position x feature, the positions of all uses after one another."""
    flat = [v.reshape(len(v), -1, v.shape[-1]) for v in values]
    return flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)


Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d


def convolution(layer: nn.Module, uses: Sequence[Use], wants: frozenset[str], members: Members) -> Share:
    """Convolutions of one, two or three dimensions, transposed ones too, with any stride, padding and groups.

    A unit's gradient comes from the same kernel as that of a batch, called on its examples. For batches of one that was
    measured to be a fifth slower than one call, and much faster than gathering patches; for grey images about twice as
    fast, but for kernels of 5x5 and more on 28 pixels, where it takes up to twice as long.
    """
    assert isinstance(layer, Convolution)
    bias = _bias(uses, 1, wants, members)
    if "weight" not in wants:
        return _both(None, bias)
    uses = [(_padded(layer, x), g) for x, g in uses]
    size = len(members.of) / len(members)
    gathers = isinstance(layer, nn.Conv1d | nn.Conv2d) and layer.groups == 1

    def patches(rows: Rows) -> Tensor:
        assert isinstance(layer, nn.Conv1d | nn.Conv2d)
        return _positions([_patches(layer, x[rows]) for x, _ in uses])

    def outputs(rows: Rows) -> Tensor:
        return _positions([g[rows].movedim(1, -1) for _, g in uses])

    def packed(pack: Pack) -> Use:
        rows = pack.places.flatten()
        here = replace(pack, places=torch.arange(len(rows)).view(pack.places.shape))
        return here.of(patches(rows)), here.of(outputs(rows), quiet=True)

    def one(unit: int) -> Tensor:
        rows = members.rows(unit)
        return _total([_weight_gradient(layer, x[rows], g[rows]) for x, g in uses])

    def sums(c: Tensor) -> Sums:
        scaled = [(x, g * _each(c, g, members)) for x, g in uses]
        return {"weight": _total([_weight_gradient(layer, x, g) for x, g in scaled])}

    if layer.weight.numel() <= size * sum(x[0].numel() + g[0].numel() for x, g in uses):
        return _both(_rows({"weight": torch.stack([one(u) for u in range(len(members))])}), bias)
    positions = sum(g[0, 0].numel() for _, g in uses)
    if gathers and 2 * size * positions <= layer.out_channels:
        squares = _ghost(members, positions, packed)
    else:
        lengths = [torch.linalg.vector_norm(one(u), dtype=torch.float64) for u in range(len(members))]
        squares = torch.stack(lengths) ** 2
    return _both(Share(squares, sums), bias)


def _total(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(list(parts)).sum(0)


def _padded(layer: Convolution, x: Tensor) -> Tensor:
    """The input as the kernel sees it, where padding is more than a number of zeros."""
    if layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
        return x
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return functional.pad(x, layer._reversed_padding_repeated_twice, mode=mode)


def _weight_gradient(layer: Convolution, x: Tensor, g: Tensor) -> Tensor:
    own = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    padding = [int(p) for p in layer.padding] if own else [0] * len(layer.stride)
    found: Tensor = torch.ops.aten.convolution_backward(
        g, x, layer.weight.detach(), None, layer.stride, padding, layer.dilation, layer.transposed,
        layer.output_padding, layer.groups, [False, True, False],
    )[1]  # fmt: skip
    return found


def _patches(layer: nn.Conv1d | nn.Conv2d, x: Tensor) -> Tensor:
    """Example x position x depth: what each output position reads."""
    own = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    padding = tuple(int(p) for p in layer.padding) if own else (0,) * len(layer.stride)
    settings = [tuple(int(v) for v in value) for value in (layer.kernel_size, layer.dilation, padding, layer.stride)]
    if x.dim() == 3:
        x, fill = x[:, :, None], (1, 1, 0, 1)
        settings = [(extra, *value) for extra, value in zip(fill, settings, strict=True)]
    kernel, dilation, pad, stride = settings
    return functional.unfold(x, kernel, dilation, pad, stride).transpose(1, 2)


def normalisation(layer: nn.Module, uses: Sequence[Use], wants: frozenset[str], members: Members) -> Share:
    """`nn.GroupNorm` and `nn.LayerNorm`: the gradient of a scale is the output gradient times the normalised input."""
    rows: Sums = {}
    for x, g in uses:
        if isinstance(layer, nn.GroupNorm):
            normal = functional.group_norm(x, layer.num_groups, eps=layer.eps)
            positions = list(range(2, g.dim()))
        else:
            assert isinstance(layer, nn.LayerNorm)
            normal = functional.layer_norm(x, layer.normalized_shape, eps=layer.eps)
            positions = list(range(1, g.dim() - len(layer.normalized_shape)))
        for name, values in (("weight", lambda normal=normal, g=g: g * normal), ("bias", lambda g=g: g)):
            if name in wants:
                row = values().sum(positions) if positions else values()
                rows[name] = rows[name] + row if name in rows else row
    return _rows({name: members.add(row) for name, row in rows.items()})


def embedding(layer: nn.Module, uses: Sequence[Use], wants: frozenset[str], members: Members) -> Share:
    """`nn.Embedding`: positions that look up the same entry add to one gradient, others are at right angles."""
    assert isinstance(layer, nn.Embedding)
    index = torch.cat([x.reshape(len(x), -1) for x, _ in uses], dim=1)
    g = _positions([g for _, g in uses])
    if layer.padding_idx is not None:
        g = g * (index != layer.padding_idx)[:, :, None]
    squares = []
    for rows in map(members.rows, range(len(members))):
        own, one = index[rows].flatten(), g[rows].flatten(0, 1).double()
        squares.append(((one @ one.T) * (own[:, None] == own[None, :])).sum().clamp_(min=0))

    def sums(c: Tensor) -> Sums:
        scaled = (g * _each(c, g, members)).flatten(0, 1)
        return {"weight": torch.zeros_like(layer.weight).index_add_(0, index.flatten(), scaled)}

    return Share(torch.stack(squares), sums)


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: dense,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), convolution),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), convolution),
    nn.GroupNorm: normalisation,
    nn.LayerNorm: normalisation,
    nn.Embedding: embedding,
}


def rule_for(layer: nn.Module) -> Rule | None:
    """The rule of a layer, if there is one: a subclass counts unless it computes something else.

    Not for a layer with hooks, which may change what goes in and comes out or make the weights anew (pruning, the old
    weight norm), nor for one with other parameters than a weight and a bias.
    """
    if layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer):
        return None
    if not {name for name, _ in layer.named_parameters(recurse=False)} <= {"weight", "bias"}:
        return None
    for kind, rule in RULES.items():
        same = all(getattr(type(layer), n, None) is getattr(kind, n, None) for n in ("forward", "_conv_forward"))
        if isinstance(layer, kind) and same:
            return rule
    return None


def least(layer: nn.Module) -> int:
    """How many dimensions a batch must have for a layer not to take it for a single example."""
    if isinstance(layer, nn.LayerNorm):
        return 1 + len(layer.normalized_shape)
    spatial = len(getattr(layer, "kernel_size", ()))
    return 2 + spatial if spatial else 1 if isinstance(layer, nn.Embedding) else 2
