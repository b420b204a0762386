"""Data that are on other machines: what a server may know of them, and a study that leaves them where they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from leakline.data.base import Client, Data, Dataset, Kind, Task
from leakline.errors import DataError
from leakline.names import is_safe


@dataclass(frozen=True)
class Elsewhere(Data):
    """Examples that are at their owner: how many, of which shape, and a hash of them; no values."""

    digest: str = ""

    @classmethod
    def of(cls, count: int, shape: Sequence[int], digest: str) -> Elsewhere:
        """A stand-in for ``count`` examples; it takes no memory."""
        return cls(
            torch.zeros(()).expand(count, *shape), torch.zeros((), dtype=torch.int64).expand(count), None, digest
        )

    def take(self, rows: Tensor | np.ndarray | Sequence[int]) -> Data:
        """Cannot be done here."""
        raise self._absent()

    def inputs(self, rows: Tensor | slice) -> Tensor:
        """Cannot be done here."""
        raise self._absent()

    def labels(self) -> np.ndarray:
        """None: the server does not learn its clients' labels."""
        return np.empty(0, dtype=np.int64)

    def fingerprint(self) -> str:
        """The hash that the owner computed."""
        return self.digest

    def _absent(self) -> DataError:
        return DataError("these examples are at their node", fix="ask the node, or bring its data here")


@dataclass(frozen=True)
class AtNodes:
    """Clients on other machines: each Flower node brings its own data, the study only says what must fit.

    ``sites``: the clients' names, one for each node. ``shape``: of one input (channels, height, width).
    ``test``: an .npz file of the server's own (x and y) to judge the model by; ``validation`` likewise.
    """

    sites: tuple[str, ...]
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    kind: Kind = "classification"
    test: str = ""
    validation: str = ""
    embedded: ClassVar[bool] = False
    needs: ClassVar[str] = "nodes: leakline run STUDY --on flower --superlink ADDRESS"

    def __post_init__(self) -> None:
        if not self.sites or len(set(self.sites)) != len(self.sites) or not all(is_safe(s) for s in self.sites):
            raise ValueError(f"sites must be distinct names of letters, digits, '_', '.' and '-': {self.sites[:5]}")
        if not self.shape or math.prod(self.shape) < 1:
            raise ValueError(f"shape must be whole numbers above 0: {self.shape}")
        if len(self.classes) < 2:
            raise ValueError(f"at least two classes are needed: {self.classes}")

    def available(self) -> bool:
        """Whether a federation could be asked; whether its nodes are there is seen when it is."""
        return True

    def load(self) -> Dataset:
        """Refused: nobody but the nodes may load them."""
        raise DataError(
            "this study's data are at the nodes of a Flower federation",
            'data.use = "at-nodes"',
            "run it with --on flower --superlink ADDRESS",
        )

    def task(self) -> Task:
        """The server's own part, and clients of whom nothing is known yet."""
        clients = tuple(Client(name, Elsewhere.of(0, self.shape, "")) for name in self.sites)
        return Task(clients, self._own(self.test), self._own(self.validation), self.classes, self.kind, "at-nodes")

    def _own(self, path: str) -> Data | None:
        if not path:
            return None
        from leakline.data.arrays import Npz

        dataset = Npz(path).load()
        if dataset.train.x.shape[1:] != self.shape or dataset.kind != self.kind:
            raise DataError(
                f"the server's examples have shape {tuple(dataset.train.x.shape[1:])}, the study's {self.shape}",
                Path(path).name,
                "mend data.shape, or the file",
            )
        return relabelled(dataset, self.classes, Path(path).name).train


def relabelled(dataset: Dataset, classes: Sequence[str], where: str) -> Dataset:
    """The data set with labels that count ``classes``: one site may lack some, or know them in another order."""
    wanted = tuple(classes)
    if dataset.classes == wanted or dataset.kind == "segmentation":
        return Dataset(dataset.name, dataset.train, dataset.test, wanted, dataset.kind)
    numbers = tuple(str(i) for i in range(len(dataset.classes)))
    if set(dataset.classes) <= set(wanted):
        places = torch.tensor([wanted.index(name) for name in dataset.classes])
    elif dataset.classes == numbers and len(numbers) <= len(wanted):
        places = torch.arange(len(numbers))  # a file without names: its numbers count the study's classes
    else:
        raise DataError(
            f"it has the classes {', '.join(dataset.classes)[:80]}, the study {', '.join(wanted)[:80]}",
            where,
            "name the classes alike in both",
        )

    def moved(data: Data | None) -> Data | None:
        return None if data is None else Data(data.x, places[data.y], data.groups)

    train = moved(dataset.train)
    assert train is not None
    return Dataset(dataset.name, train, moved(dataset.test), wanted, dataset.kind)
