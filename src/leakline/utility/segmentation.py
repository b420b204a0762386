"""Utility of a segmenter: losses to train with, and hard Dice and IoU of whole images.

Logits and masks are [N, 1, H, W]; masks hold 0 and 1. Both hard measures look at the same mask, probability
> 0.5, so IoU = Dice / (2 - Dice) <= Dice for every image (paper 004's table breaks this law: it sets a soft
Dice beside an IoU of another threshold). **Two empty masks agree: Dice = IoU = 1.** An empty true mask and
any predicted pixel gives 0. An image with a NaN or infinite logit scores 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

Array = Tensor | np.ndarray

SMOOTH = 1e-5
"""Keeps the soft Dice of two empty masks at 1; paper 004's code has the same value."""

MEASURED = ("dice", "iou", "dice_patient", "iou_patient", "loss")
"""What `summary` may return; `leakline.measures` describes each."""


def soft_dice_each(logits: Tensor, masks: Tensor) -> Tensor:
    """Soft Dice loss of each image: 1 - (2 sum p m + s) / (sum p + sum m + s).

    p = sigmoid(logit), m the mask, s = `SMOOTH`; sums over the image's pixels.
    """
    p, m = logits.sigmoid().flatten(1), _like(masks, logits).flatten(1)
    return 1 - (2 * (p * m).sum(1) + SMOOTH) / (p.sum(1) + m.sum(1) + SMOOTH)


def bce_each(logits: Tensor, masks: Tensor) -> Tensor:
    """Binary cross-entropy of each image, mean over pixels, in nats."""
    return (
        functional.binary_cross_entropy_with_logits(logits, _like(masks, logits), reduction="none").flatten(1).mean(1)
    )


def dice_ce_each(logits: Tensor, masks: Tensor) -> Tensor:
    """Soft Dice loss plus binary cross-entropy of each image."""
    return soft_dice_each(logits, masks) + bce_each(logits, masks)


def soft_dice(logits: Tensor, masks: Tensor) -> Tensor:
    """Soft Dice loss, mean over images (not over the pooled batch, so batch size does not change it)."""
    return soft_dice_each(logits, masks).mean()


def bce(logits: Tensor, masks: Tensor) -> Tensor:
    """Binary cross-entropy, mean over images."""
    return functional.binary_cross_entropy_with_logits(logits, _like(masks, logits))


def dice_ce(logits: Tensor, masks: Tensor) -> Tensor:
    """Soft Dice loss plus binary cross-entropy, mean over images."""
    return soft_dice(logits, masks) + bce(logits, masks)


def dice(logits: Array, masks: Array) -> Tensor:
    """Dice of each image: 2 |A and B| / (|A| + |B|), 1 when both are empty."""
    both, total, sound = _counts(logits, masks)
    return torch.where(total > 0, 2 * both / total.clamp_min(1), 1.0) * sound


def iou(logits: Array, masks: Array) -> Tensor:
    """Intersection over union of each image: |A and B| / |A or B|, 1 when both are empty."""
    both, total, sound = _counts(logits, masks)
    return torch.where(total > 0, both / (total - both).clamp_min(1), 1.0) * sound


def group_means(values: Array, groups: Array | Sequence[object]) -> dict[str, float]:
    """Mean of the values of each group (patient, site), by the group's name, in order of first appearance."""
    numbers = torch.as_tensor(values).double().tolist()
    names = [str(group) for group in (groups.tolist() if isinstance(groups, Tensor | np.ndarray) else groups)]
    if len(names) != len(numbers):
        raise ValueError(f"one group per value is needed; got {len(names)} for {len(numbers)} values")
    members: dict[str, list[float]] = {}
    for name, number in zip(names, numbers, strict=True):
        members.setdefault(name, []).append(number)
    return {name: sum(own) / len(own) for name, own in members.items()}


def summary(logits: Array, masks: Array, groups: Array | Sequence[object] | None = None) -> dict[str, float]:
    """Mean Dice and IoU over images, and over patients when ``groups`` says whose image each is."""
    each = {"dice": dice(logits, masks), "iou": iou(logits, masks)}
    means = {name: float(values.mean()) for name, values in each.items()}
    if groups is not None:
        for name, values in each.items():
            patients = group_means(values, groups)
            means[f"{name}_patient"] = sum(patients.values()) / len(patients)
    outputs = torch.as_tensor(logits).detach().cpu().double()
    return {**means, "loss": float(soft_dice(outputs, torch.as_tensor(masks).cpu()))}


def _like(masks: Tensor, logits: Tensor) -> Tensor:
    if masks.shape != logits.shape:
        raise ValueError(f"masks {tuple(masks.shape)} and logits {tuple(logits.shape)} differ in shape")
    return masks.to(logits.dtype)


def _counts(logits: Array, masks: Array) -> tuple[Tensor, Tensor, Tensor]:
    outputs, truth = torch.as_tensor(logits).detach().cpu(), torch.as_tensor(masks).cpu()
    if outputs.shape != truth.shape or outputs.ndim < 2 or not len(outputs):
        raise ValueError(f"logits {tuple(outputs.shape)} and masks {tuple(truth.shape)} must be alike, N > 0")
    if not bool(((truth == 0) | (truth == 1)).all()):
        raise ValueError(f"masks must hold 0 and 1 only; got values up to {truth.max().item()}")
    # A logit above 0 is a probability above 0.5.
    guess, truth = (outputs > 0).flatten(1), truth.bool().flatten(1)
    total = (guess.sum(1) + truth.sum(1)).double()
    return (guess & truth).sum(1).double(), total, outputs.isfinite().flatten(1).all(1).double()
