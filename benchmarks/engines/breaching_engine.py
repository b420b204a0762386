"""breaching's attacks on one update: ``breaching_engine.py SCENE ITERATIONS OUT`` (safetensors in and out).

Its vision cases import torchvision, which leakline does not install and the attacks do not use: an empty module stands
in for it. BatchNorm is in training mode, for which breaching takes no statistics from the client.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

RECIPES: Mapping[str, tuple[str, list[str]]] = {
    "inverting gradients": ("invertinggradients", []),
    "squared distance, Adam 0.01": ("invertinggradients", [
        "objective.type=euclidean", "objective.scale=1.0", "restarts.scoring=euclidean", "optim.signed=null",
        "optim.step_size=0.01", "optim.step_size_decay=cosine-decay", "regularization=null",
    ]),
    "squared distance, L-BFGS": ("invertinggradients", [
        "objective.type=euclidean", "objective.scale=1.0", "restarts.scoring=euclidean", "optim.signed=null",
        "optim.optimizer=L-BFGS", "optim.step_size=1.0", "optim.step_size_decay=null", "regularization=null",
    ]),
}  # fmt: skip
"""Its own recipe, and its squared distance under two of its optimisers (its L-BFGS makes 20 evaluations a step)."""


class _Anything(ModuleType):
    """A module in which every name is a class that does nothing, or another such module."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {}) if name.lstrip("_")[0].isupper() else _Anything(name)


for _name in ("torchvision", "torchvision.transforms", "torchvision.datasets", "torchvision.datasets.utils"):
    sys.modules[_name] = _Anything(_name)
sys.modules["torchvision"].__path__ = []
import breaching  # noqa: E402


def reconstruct(scene: Mapping[str, Tensor], model: torch.nn.Module, recipe: str, iterations: int) -> Tensor:
    """The image that a recipe finds, starting from the prior, with labels known."""
    name, overrides = RECIPES[recipe]
    steps = iterations // 20 if "L-BFGS" in recipe else iterations
    asked = [*overrides, f"optim.max_iterations={steps}", f"optim.callback={steps}"]
    attacker = breaching.attacks.prepare_attack(
        model, torch.nn.CrossEntropyLoss(), breaching.get_attack_config(name, asked)
    )
    names = [n for n, _ in model.named_parameters()]
    metadata = SimpleNamespace(shape=list(scene["prior"].shape[1:]), modality="vision", mean=[0.0] * 3, std=[1.0] * 3)
    payload = [{"parameters": [scene[f"weight.{n}"] for n in names], "buffers": None, "metadata": metadata}]
    known = {"num_data_points": 1, "labels": scene["label"], "local_hyperparams": None}
    shared = [{"gradients": [scene[f"gradient.{n}"] for n in names], "buffers": None, "metadata": known}]
    found, _ = attacker.reconstruct(payload, shared, {}, initial_data=scene["prior"])
    image: Tensor = found["data"]
    return image.detach().clamp(0, 1)


def main(scene: Path, iterations: int, out: Path) -> None:
    """All recipes on one scene."""
    from leakline.models.small import SmallCNN

    torch.set_num_threads(1)
    given = load_file(scene)
    network = SmallCNN((16, 32, 32), activation="softplus", norm="batch", pool="average")
    model = network.build(tuple(given["prior"].shape[1:]), 4)
    save_file({name: reconstruct(given, model, name, iterations).contiguous() for name in RECIPES}, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
