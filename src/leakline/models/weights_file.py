"""Weights from a safetensors file: by name, strict on shapes, never unpickled."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from leakline.errors import StudyError
from leakline.names import printable

MOST_BYTES = 2**33
"""A larger file is not read."""


@dataclass(frozen=True)
class WeightsFile:
    """A file of named tensors; which bytes it holds counts for a run's hash, where it lies does not."""

    name: str
    digest: str
    path: Path = field(repr=False, compare=False, metadata={"described": False})

    @classmethod
    def at(cls, path: Path) -> WeightsFile:
        """The file at a path, looked at as a whole."""
        if path.suffix != ".safetensors":
            raise StudyError(
                f"weights are read from safetensors files alone, not {printable(path.name, 60)!r}",
                "model",
                "save them with safetensors.torch.save_file(network.state_dict(), ...)",
            )
        if not path.is_file():
            raise StudyError(f"there is no file {printable(path.name, 60)!r}", "model", "put it beside the study")
        if path.stat().st_size > MOST_BYTES:
            raise StudyError(f"{path.name} has more than {MOST_BYTES:,} bytes", "model", "give a smaller network's")
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while part := file.read(2**20):
                digest.update(part)
        return cls(path.name, digest.hexdigest()[:32], path.resolve())

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            tensors: dict[str, Tensor] = load_file(self.path)
            return tensors
        except (SafetensorError, OSError, ValueError) as error:
            raise StudyError(
                f"{self.name} cannot be read: {printable(error, 120)}", "model", "write it with safetensors"
            ) from error

    @property
    def names(self) -> set[str]:
        """What the file gives."""
        return set(self.tensors)

    def put(self, network: nn.Module) -> None:
        """Write the file's values into a network; every one of them must have its place there."""
        state = network.state_dict()
        unknown = [name for name in self.tensors if name not in state]
        if unknown:
            raise self._unfit(f"the model has no {_few(unknown)}", f"it has: {_few(list(state), 6)}")
        wrong = [
            f"{name} {tuple(value.shape)} for {tuple(state[name].shape)}"
            for name, value in self.tensors.items()
            if value.shape != state[name].shape
        ]
        if wrong:
            raise self._unfit(f"other shapes: {_few(wrong)}", "leave them out of the file, or change the model")
        with torch.no_grad():
            for name, value in self.tensors.items():
                if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                    raise self._unfit(f"{name} holds NaN or infinite values", "give sound weights")
                state[name].copy_(value)

    def _unfit(self, what: str, fix: str) -> StudyError:
        return StudyError(f"{self.name} does not fit: {what}", "model", fix)


def _few(names: list[str], most: int = 3) -> str:
    shown = [printable(name, 80) for name in names[:most]]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")
