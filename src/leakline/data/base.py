"""The values that hold examples: Data, Dataset, Client, Task."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from leakline.data.canary import Canary
from leakline.data.on_disk import OnDisk

Kind = Literal["classification", "segmentation"]
Trait = str | float | int | bool
PIECE = 256
"""How many examples are hashed at once: those on disk need not fit into memory."""


@dataclass(frozen=True)
class Data:
    """Examples: ``x[i]`` belongs to ``y[i]``.

    ``x`` is float32, or uint8 that is read as value / 255 when a batch is made (images stay a quarter of the
    size); images that are too many for memory are `OnDisk`. Images are N, C, H, W; signals are N, C, L. ``y`` is
    int64 class labels, or uint8 masks N, 1, H, W. ``groups`` tells which examples belong together (patient, subject):
    splits never cut through a group.
    """

    x: Tensor
    y: Tensor
    groups: Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y) or (self.groups is not None and len(self.groups) != len(self.x)):
            raise ValueError(f"x, y and groups differ in length: {len(self.x)}, {len(self.y)}, groups")

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: Tensor | np.ndarray | Sequence[int]) -> Data:
        """The examples at these positions, in this order."""
        index = torch.as_tensor(np.asarray(rows, dtype=np.int64))
        x = self.x.at(index) if isinstance(self.x, OnDisk) else self.x[index]
        return Data(x, self.y[index], None if self.groups is None else self.groups[index])

    def inputs(self, rows: Tensor | slice) -> Tensor:
        """The float32 inputs at these positions."""
        x = self.x[rows]
        return x.float().div_(255.0) if x.dtype == torch.uint8 else x

    def labels(self) -> np.ndarray:
        """What splits are stratified by: the class, or for masks whether anything is marked (0 or 1)."""
        if self.y.ndim == 1:
            return np.asarray(self.y.numpy(), dtype=np.int64)
        return np.asarray(self.y.flatten(1).any(1).numpy(), dtype=np.int64)

    def fingerprint(self) -> str:
        """A hash of every byte, so that a stored run knows which data it was made from; computed once."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for tensor in (self.x, self.y, self.groups):
            if tensor is not None:
                digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
                for start in range(0, len(tensor), PIECE):
                    piece = np.ascontiguousarray(tensor[start : start + PIECE].numpy())
                    digest.update(piece.view(np.uint8).data)
        return digest.hexdigest()


@dataclass(frozen=True)
class Dataset:
    """A whole data set before it is shared out among clients.

    ``columns`` are per-example values of ``train`` by which one may partition (subject, site). ``traits`` map
    a column's value to facts about that client that only examiners read ({"subject": {"sub-1": {"gender":
    "woman"}}}). ``remarks`` are for whoever checks a study: what was left out or is not known. ``group`` is what a
    group of ``train.groups`` is (a patient, a recording).
    """

    name: str
    train: Data
    test: Data | None
    classes: tuple[str, ...]
    kind: Kind = "classification"
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    traits: Mapping[str, Mapping[str, Mapping[str, Trait]]] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    group: str = "group"

    def people(self) -> dict[int, dict[str, Trait]]:
        """What is known of each group of the training part: sex and age, and traits of the patient it is."""
        if self.train.groups is None:
            return {}
        names, known = self.columns.get("patient"), self.traits.get("patient", {})
        found: dict[int, dict[str, Trait]] = {}
        for row, group in enumerate(self.train.groups.tolist()):
            if group not in found:
                told = {key: self.columns[key][row] for key in ("sex", "age") if key in self.columns}
                found[group] = {**told, **(known.get(names[row], {}) if names is not None else {})}
        return found

    def take(self, rows: np.ndarray | Sequence[int]) -> Dataset:
        """The same data set with only these training examples, in this order; the test part stays whole."""
        index = np.asarray(rows, dtype=np.int64)
        columns = {name: tuple(values[i] for i in index) for name, values in self.columns.items()}
        return replace(self, train=self.train.take(index), columns=columns)


@dataclass(frozen=True)
class Client:
    """One participant: a name, its data, and traits that only examiners read.

    ``canary``: a client of an examiner's, which sends what that says instead of what training on its data would give.
    """

    name: str
    train: Data
    test: Data | None = None
    traits: Mapping[str, Trait] = field(default_factory=dict)
    canary: Canary | None = None


@dataclass(frozen=True)
class Task:
    """A data set shared out: who holds what, and what the server keeps for itself.

    ``remarks`` and ``group`` are the data set's, with what sharing it out added. ``people``: what only examiners read
    of the groups (patients), such as sex and age, by their numbers in `Data.groups`.
    """

    clients: tuple[Client, ...]
    test: Data | None
    validation: Data | None
    classes: tuple[str, ...]
    kind: Kind = "classification"
    name: str = "task"
    remarks: tuple[str, ...] = ()
    group: str = "group"
    people: Mapping[int, Mapping[str, Trait]] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.clients[0].train.x.shape[1:])

    @property
    def groups(self) -> int | None:
        """How many groups (patients) the clients train on, one at two clients counted twice; None where nobody says."""
        held = [c.train.groups for c in self.clients if len(c.train)]
        known = [len(np.unique(groups.numpy())) for groups in held if groups is not None]
        return sum(known) if known and len(known) == len(held) else None

    @property
    def most_records(self) -> int | None:
        """The most training records that one group (a patient) has at a client; None where nobody says."""
        held = [c.train.groups for c in self.clients if c.train.groups is not None and len(c.train.groups)]
        return max((int(np.unique(groups.numpy(), return_counts=True)[1].max()) for groups in held), default=None)
