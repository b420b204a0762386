"""Whether an example's gradient is its own: probes that a model and a loss must pass before a record is clipped.

The bound C holds for a record only if nobody else's gradient depends on it. That cannot be proved of arbitrary code,
so it is probed, in the modes in which the model trains and on its own data: an example keeps its place in the batch
and its random draws (dropout masks), while its partners are exchanged for other records, zeros, large values,
repetitions, missing values and other labels. Then its output has to stay, its gradient has to be what it is alone, and
what an earlier batch left in the model must not matter. What rounding could explain is asked again in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from leakline.errors import StackError
from leakline.mechanisms.trials import Loss, Trial, doubled, quiet, trying

SMALL = 5
"""Examples in a probe's batch; the batch that is given is probed whole besides."""
TOLERANCE, COARSE = 1e-5, 1e-3
"""Relative; the second where a model does not run in float64, so that rounding has to be let through."""

_MEAN = (
    "make it the mean of what each example gives by itself (class weights: multiply each example's loss, then .mean())"
)
_ALONE = "normalise each example by itself (nn.GroupNorm); mix or sort examples, if at all, before training"


Batch = tuple[Tensor, Tensor]
"""Inputs, or outputs, and targets."""
Verdict = tuple[str, str] | None
"""What is wrong and how to mend it; None: nothing."""


def refuse_layers(model: nn.Module) -> None:
    """Refuse, by name, layers and parameters with which no example's influence could be bounded."""
    for name, layer in model.named_modules():
        where, kind = f"dp-sgd, layer {name}", type(layer).__name__
        if isinstance(layer, _BatchNorm):
            raise StackError(
                f"layer {name} ({kind}) mixes the examples of a batch: no example's gradient is its own to clip; "
                "use GroupNorm",
                where,
                'replace it by nn.GroupNorm (norm = "group" for models of the menu)',
            )
        if isinstance(layer, _InstanceNorm) and layer.track_running_stats:
            raise StackError(
                f"layer {name} ({kind}) keeps running statistics of the data, which no noise covers",
                where,
                "set track_running_stats=False, or replace it by nn.GroupNorm",
            )
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and (
            layer.scale_grad_by_freq or layer.max_norm is not None
        ):
            raise StackError(
                f"layer {name} ({kind}) scales by how often the batch uses an entry, or rewrites its weights",
                where,
                "set scale_grad_by_freq=False and max_norm=None",
            )
    for name, parameter in model.named_parameters():
        where = f"dp-sgd, parameter {name}"
        if parameter.requires_grad and parameter.dtype not in (torch.float32, torch.float64):
            raise StackError(
                f"parameter {name} is {parameter.dtype}: a clipped sum in it would not keep the bound",
                where,
                "call .float() on the model",
            )
        if getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise StackError(
                f"parameter {name} has a hook that runs after its gradient is there: it would see noise, or nothing",
                where,
                "remove the hook",
            )


def refuse_coupled(model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> None:
    """Refuse a model or a loss under which an example's gradient is not its own; leave both as they were."""
    refuse_layers(model)
    if len(x) == 0:
        return
    with trying(model, loss) as trial:
        objection = in_doubt(trial, x, y, _objection)
    if objection:
        raise StackError(objection[0], "dp-sgd", objection[1])


def in_doubt(trial: Trial, x: Tensor, y: Tensor, look: Callable[[Trial, Tensor, Tensor, float], Verdict]) -> Verdict:
    """A look at a model; if there is something to see, another in float64, which rounding cannot deceive."""
    seen = look(trial, x, y, TOLERANCE)
    if seen is None:
        return None
    try:
        with doubled(trial.model), trying(trial.model, trial.loss) as precise:
            wide_x, wide_y = (t.double() if t.is_floating_point() else t for t in (x, y))
            return look(precise, wide_x, wide_y, TOLERANCE)
    except Exception:  # a user's own network may hold on to float32 in any way
        return look(trial, x, y, COARSE)


def sample(x: Tensor, y: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """So many examples, repeated where there are fewer."""
    rows = torch.arange(count) % len(x)
    return x[rows], y[rows]


def _objection(trial: Trial, x: Tensor, y: Tensor, tolerance: float) -> Verdict:
    few, labels = sample(x, y, 2 * SMALL)
    first, second, own, other = few[:SMALL], few[SMALL:], labels[:SMALL], labels[SMALL:]
    if _apart(trial.outputs(first), trial.outputs(first), tolerance):
        return (
            "the model's outputs change when it is called again in the same state: its draws cannot be held still",
            "draw from torch's own generator (torch.rand, nn.Dropout)",
        )
    if _outputs_move(trial, _pairs(first, second, x), tolerance):
        return ("an example's output depends on the other examples of its batch: its gradient is not its own", _ALONE)
    trial.gradient(first[:1], own[:1])  # refuses what does not run on a single example
    if _loss_mixes(trial.loss, [*_labelled(trial.outputs(first), own), (trial.outputs(x), y)], tolerance):
        return ("the loss is not a mean over examples: an example's share in it depends on its batch", _MEAN)
    if _remembers(trial, first, second, tolerance):
        return (
            "an example's output depends on examples of an earlier batch, which the model remembers without noise",
            "keep no statistics of the data in buffers or attributes that training reads",
        )
    if _does_not_add_up(trial, (first, own), (second, other), tolerance):
        return ("an example's gradient depends on the other examples of its batch: it is not its own", _ALONE)
    return None


def _apart(values: Tensor, others: Tensor, tolerance: float) -> bool:
    """Whether any example's row differs, measured by its own largest value; missing values are alike."""
    a, b = (v[:, None].flatten(1).double() for v in (values, others))
    if a.shape != b.shape:
        return True
    same = (a == b) | (a.isnan() & b.isnan())
    gap = torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=torch.inf)
    scale = torch.where(a.isfinite(), a.abs(), 0.0).amax(1, keepdim=True)
    return bool((gap > tolerance * scale + 1e-30).any())


def _loss_mixes(loss: Loss, batches: Sequence[Batch], tolerance: float) -> bool:
    """Whether the loss's gradient at an example's output differs from that of its loss alone."""
    for given, labels in batches:
        try:
            whole = _slope(loss, given, labels)
            single = torch.cat([_slope(loss, given[i : i + 1], labels[i : i + 1]) for i in range(len(given))])
        except Exception:  # labels that a user's loss does not know; with its own it has already run
            continue
        if _apart(single, whole, tolerance):
            return True
    return False


def _slope(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    leaf = outputs.detach().clone().requires_grad_()
    value = loss(leaf, targets) * len(leaf)
    if not value.requires_grad:
        return torch.zeros_like(leaf)
    (slope,) = torch.autograd.grad(value, leaf, allow_unused=True)
    return torch.zeros_like(leaf) if slope is None else slope


def _labelled(outputs: Tensor, targets: Tensor) -> Iterator[Batch]:
    """Outputs as they are and large, with labels as they are, exchanged, all the same, and of every class."""
    yield outputs, targets
    yield 30 * outputs, targets
    yield outputs, targets.flip(0)
    yield outputs, targets[:1].expand_as(targets)
    if targets.dtype == torch.int64 and targets.dim() == 1 and outputs.dim() == 2:
        yield outputs, torch.arange(len(targets), device=targets.device) % outputs.shape[1]
    else:
        yield outputs, torch.zeros_like(targets)


def _pairs(first: Tensor, second: Tensor, whole: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches and the partners that take the place of every second example."""
    yield first, second
    yield first[:2], second[:2]
    others = whole.roll(len(whole) // 2 | 1, 0)  # by an odd number: not the same examples in other places
    yield whole, -2 * others if whole.is_floating_point() else others
    yield first, first[:1].expand_as(first)
    if not first.is_floating_point():
        yield first, torch.full_like(first, int(whole.min()))
        return
    yield first, torch.zeros_like(first)
    yield first, -first
    yield first, 1e3 * (second + 1)
    holes = torch.zeros_like(first).flatten(1)
    holes[:, 0] = torch.nan
    yield first + holes.view_as(first), second


def _outputs_move(trial: Trial, pairs: Iterator[tuple[Tensor, Tensor]], tolerance: float) -> bool:
    """Whether an example's output changes with its partners, under the same draws and in the same place."""
    for seed, (batch, partners) in enumerate(pairs):
        kept = torch.arange(len(batch), device=batch.device) % 2 == 0
        still = trial.outputs(batch, seed=seed)
        for rows in (kept, ~kept):
            try:
                moved = trial.outputs(_mixed(rows, batch, partners), seed=seed)
            except StackError:  # partners that no data would hold
                continue
            if _apart(still[rows], moved[rows], tolerance):
                return True
    return False


def _remembers(trial: Trial, first: Tensor, second: Tensor, tolerance: float) -> bool:
    """Whether an earlier batch shows in outputs. A counter of batches does not: it is the same for all data."""
    strange = -3 * second if second.is_floating_point() else second.flip(0)
    return _apart(trial.outputs(first, first), trial.outputs(strange, first), tolerance)


def _does_not_add_up(trial: Trial, first: Batch, second: Batch, tolerance: float) -> bool:
    """Whether gradients fail to be sums over examples.

    Under the same draws, g(a, b) + g(c, d) = g(a, d) + g(c, b) for sums, whatever the draws are; and where nothing
    is drawn at random, the gradient of a batch is the sum of its examples' gradients alone.
    """
    kept = torch.arange(SMALL, device=first[0].device) % 2 == 0
    swapped = [(_mixed(rows, first[0], second[0]), _mixed(rows, first[1], second[1])) for rows in (kept, ~kept)]
    straight, crossed = ([trial.gradient(*batch) for batch in pair] for pair in ([first, second], swapped))
    if gap(straight, crossed) > tolerance:
        return True
    with quiet(trial, first[0]) as still:
        if not still:
            return False
        alone = [trial.gradient(first[0][i : i + 1], first[1][i : i + 1]) for i in range(SMALL)]
        return gap(alone, [trial.gradient(*first)]) > tolerance


def _mixed(rows: Tensor, batch: Tensor, partners: Tensor) -> Tensor:
    """These rows of a batch, among the others' partners."""
    return torch.where(rows.view(-1, *[1] * (batch.dim() - 1)), batch, partners)


def gap(some: Sequence[Sequence[Tensor]], others: Sequence[Sequence[Tensor]]) -> float:
    """Distance of two sums of gradients, relative to the lengths of those in the first."""
    squares, scale = 0.0, sum(_length(parts) for parts in some)
    for a, b in zip(zip(*some, strict=True), zip(*others, strict=True), strict=True):
        left, right = (torch.stack([part.double() for part in parts]).sum(0) for parts in (a, b))
        squares += float((left - right).square().sum())
    if not math.isfinite(scale) or not math.isfinite(squares):
        return 0.0  # a gradient that is not finite counts as zero, and nothing can be told from it
    return math.sqrt(squares) / max(scale, 1e-30)


def _length(parts: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(part.double().square().sum()) for part in parts))
