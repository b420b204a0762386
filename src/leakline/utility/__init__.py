"""Utility: what a model is trained for and how well it does it.

An `Objective` ties together the loss that training descends, the same loss per example (attackers and
audits need it), the scores of each example and their summary. `MENU` lists them by the name of the loss.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from leakline.errors import StackError, StudyError
from leakline.measures import MEASURES, Measure
from leakline.utility import classification, segmentation
from leakline.utility.baseline import Baseline, baseline, constant_answers

__all__ = ["MENU", "Objective", "imported", "objective"]

Kind = Literal["classification", "segmentation"]
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Objective:
    """A loss and the measures that go with its kind of task.

    ``loss(outputs, targets)`` is a scalar, the mean of ``per_example_loss(outputs, targets)``, which is [N].
    """

    name: str
    kind: Kind
    meaning: str
    loss: Loss = field(repr=False)
    per_example_loss: Loss = field(repr=False)

    @property
    def measures(self) -> Mapping[str, Measure]:
        """The measures that `summary` may give."""
        names = classification.MEASURED if self.kind == "classification" else segmentation.MEASURED
        return {name: MEASURES[name] for name in names}

    @property
    def headline(self) -> str:
        """The measure to plot when there is room for one."""
        return "accuracy" if self.kind == "classification" else "dice"

    def score(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Each example's own figures: its loss, and "correct" (0 or 1) or "dice" and "iou"."""
        losses = self.per_example_loss(outputs, targets).detach()
        if self.kind == "classification":
            return {"correct": (classification.predictions(outputs) == targets).float(), "loss": losses}
        dice, iou = segmentation.dice(outputs, targets), segmentation.iou(outputs, targets)
        return {"dice": dice, "iou": iou, "loss": losses}

    def summary(
        self, outputs: Tensor, targets: Tensor, groups: Tensor | Sequence[object] | None = None
    ) -> dict[str, float]:
        """All measures over a complete set; ``groups`` (whose image) adds means over patients to masks."""
        outputs, targets = outputs.detach().cpu(), targets.cpu()
        loss = float(self.per_example_loss(outputs.double(), targets).mean())
        if self.kind == "classification":
            return {**classification.summary(outputs, targets), "loss": loss}
        return {**segmentation.summary(outputs, targets, groups), "loss": loss}

    def baseline(
        self, targets: Tensor, classes: Sequence[str], groups: Tensor | Sequence[object] | None = None
    ) -> Baseline:
        """What the best answer gets that never looks at an input (the commonest class, an empty mask)."""
        answers = constant_answers(self.kind, targets.cpu(), classes)
        return baseline(lambda outputs: self.summary(outputs, targets, groups), answers, self.headline)


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits, labels)


def _cross_entropy_each(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits, labels, reduction="none")


MENU: dict[str, Objective] = {
    "cross-entropy": Objective(
        "cross-entropy",
        "classification",
        "Cross-entropy of the softmax, for class labels.",
        _cross_entropy,
        _cross_entropy_each,
    ),
    "soft-dice": Objective(
        "soft-dice",
        "segmentation",
        "Soft Dice loss on probabilities, for masks (paper 004).",
        segmentation.soft_dice,
        segmentation.soft_dice_each,
    ),
    "dice+ce": Objective(
        "dice+ce",
        "segmentation",
        "Soft Dice loss plus binary cross-entropy, for masks.",
        segmentation.dice_ce,
        segmentation.dice_ce_each,
    ),
    "bce": Objective(
        "bce",
        "segmentation",
        "Binary cross-entropy per pixel, for masks.",
        segmentation.bce,
        segmentation.bce_each,
    ),
}

_DEFAULT: dict[Kind, str] = {"classification": "cross-entropy", "segmentation": "soft-dice"}


def imported(kind: Kind, path: str) -> Objective:
    """The user's own loss, ``"package.module:function"``: (outputs, targets) -> scalar, a mean over examples."""
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise StudyError(
            f"the loss {path!r} cannot be imported: {error}", "loss", 'write "package.module:function"'
        ) from error

    def each(outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.stack([function(outputs[i : i + 1], targets[i : i + 1]) for i in range(len(outputs))])

    return Objective(path, kind, "The user's own loss.", function, each)


def objective(kind: Kind, loss: str = "default") -> Objective:
    """The objective of this name; "default" is cross-entropy for classes, soft Dice for masks."""
    if ":" in loss:
        return imported(kind, loss)
    name = _DEFAULT[kind] if loss == "default" else loss
    if name not in MENU:
        near = get_close_matches(name, MENU, n=1, cutoff=0.0)[0]
        raise StudyError(f"there is no loss {loss!r}", "loss", f'did you mean "{near}"? On the menu: {", ".join(MENU)}')
    if MENU[name].kind != kind:
        raise StackError(
            f"the loss {name!r} is for {MENU[name].kind}, the task is {kind}",
            "loss",
            f'use "{_DEFAULT[kind]}"',
        )
    return MENU[name]
