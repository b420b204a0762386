"""Images that are too many for memory: a file of decoded pixels, and a tensor that reads rows of it when asked.

Rows are read, not mapped: mapped pages would count as memory of every process that looked at them, and a file that is
cut short would kill it.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from leakline.errors import DataError


class ImageFile:
    """Decoded images one after another from a file's first byte on: uint8, each of this ``shape`` (C, H, W).

    It stays open for as long as anybody holds it, also once its name is gone; forked workers read from it too.
    """

    def __init__(self, file: IO[bytes], shape: Sequence[int]) -> None:
        self._handle = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._handle)
        self.shape = tuple(shape)

    def read(self, rows: Sequence[int]) -> Tensor:
        """These images, N, C, H, W, in this order."""
        size = math.prod(self.shape)
        pixels = np.empty((len(rows), size), dtype=np.uint8)
        for place, row in enumerate(rows):
            image = os.pread(self._handle, size, row * size)
            if len(image) < size:
                raise DataError("a file of decoded images is shorter than it was", fix="run the command again")
            pixels[place] = np.frombuffer(image, dtype=np.uint8)
        return torch.from_numpy(pixels).view(len(rows), *self.shape)


class OnDisk(Tensor):
    """Rows of an `ImageFile` as a uint8 tensor N, C, H, W that holds no values.

    ``x[rows]`` reads those rows; ``x.at(rows)`` and ``torch.cat`` of such tensors read none. Any other operation reads
    all, so that whoever knows nothing of this class computes the right thing, in the memory that this takes.
    """

    _file: ImageFile
    _rows: Tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # results are plain tensors

    @staticmethod
    def __new__(cls, file: ImageFile, rows: Tensor) -> OnDisk:
        """The rows at these positions of a file."""
        made = Tensor._make_wrapper_subclass(cls, (len(rows), *file.shape), dtype=torch.uint8)
        made._file, made._rows = file, rows
        return made

    def at(self, rows: Tensor) -> OnDisk:
        """The tensor of these rows, which stay where they are."""
        return OnDisk(self._file, self._rows[rows])

    def whole(self) -> Tensor:
        """All rows, in memory."""
        return self._file.read(self._rows.tolist())

    def __getitem__(self, index: Any) -> Tensor:
        """These rows, in memory."""
        if isinstance(index, tuple) or index is None or index is Ellipsis:
            return self.whole()[index]
        rows = self._rows[index]
        return self._file.read(rows.tolist()) if rows.dim() else self._file.read([int(rows)])[0]

    def numpy(self, *, force: bool = False) -> np.ndarray:
        """All rows as an array."""
        return self.whole().numpy(force=force)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Its shape: the values are not here."""
        return f"OnDisk(shape={tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Any operation, on what was read; but rows of one file behind each other are rows of that file."""
        if func is torch.ops.aten.cat.default and len(args) == 1 and not kwargs:
            parts = [part for part in args[0] if isinstance(part, OnDisk) and part._file is args[0][0]._file]
            if len(parts) == len(args[0]):
                return OnDisk(parts[0]._file, torch.cat([part._rows for part in parts]))
        args, kwargs = tree_map_only(OnDisk, OnDisk.whole, (tuple(args), dict(kwargs or {})))
        return func(*args, **kwargs)
