"""Brain-like phantoms: made-up MRI slices with anatomy, disease, scanners and patients.

Nothing here is anybody's data, yet what makes medical images hard is there: classes that differ by degree,
people who differ more than classes do, scanners that differ by site, several slices of each patient, lesions
with masks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from leakline.data.base import Data, Dataset, Kind, Trait
from leakline.data.phantom_image import Anatomy, Scanner, draw
from leakline.data.split import apportion, stream

CHUNK = 128
GRADES = ("none", "mild", "moderate", "severe")
GRADE = 0.42  # atrophy from one grade to the next; people of one grade differ by 0.13


@dataclass(frozen=True)
class Phantoms:
    """Brain-like MRI phantoms made on the spot: classes by atrophy, lesions with masks, patients, sites.

    ``examples`` slices for training and ``test`` more of other patients, ``slices`` of each patient. A class
    is a degree of atrophy: wider ventricles, wider sulci, a thinner cortex, on top of variation between
    people (``class_effect`` scales the former). ``shares`` are the classes' proportions (empty: equal). A
    share ``lesions`` of the slices has a tumour-like lesion, which is the mask of ``kind = "segmentation"``
    and a distractor otherwise. Sites differ in contrast, bias field, noise and resolution by ``site_effect``
    (0: not at all).
    """

    examples: int = 1200
    test: int = 0
    size: int = 64
    classes: int = 4
    kind: Kind = "classification"
    slices: int = 3
    sites: int = 4
    lesions: float = 0.5
    shares: tuple[float, ...] = ()
    class_effect: float = 1.0
    site_effect: float = 1.0
    seed: int = 0
    embedded: ClassVar[bool] = True
    needs: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if self.size not in (32, 64, 128):
            raise ValueError(f"size must be 32, 64 or 128: {self.size}")
        if not 2 <= self.classes <= 4:
            raise ValueError(f"classes must be 2, 3 or 4: {self.classes}")
        if self.kind not in ("classification", "segmentation"):
            raise ValueError(f"kind must be 'classification' or 'segmentation': {self.kind!r}")
        if self.examples < self.classes or self.test < 0 or self.slices < 1 or self.sites < 1 or self.seed < 0:
            raise ValueError(f"too few examples, slices or sites: {self}")
        if not 0 <= self.lesions <= 1 or self.class_effect < 0 or self.site_effect < 0:
            raise ValueError(f"lesions must be in 0..1 and effects at least 0: {self}")
        if self.shares and (len(self.shares) != self.classes or min(self.shares) <= 0):
            raise ValueError(f"shares must be {self.classes} positive numbers: {self.shares}")

    def available(self) -> bool:
        """Always: they are made here."""
        return True

    def load(self) -> Dataset:
        """Make the slices."""
        scanners = Scanner.make(self.sites, self.site_effect, stream(self.seed, "phantoms", "scanners"))
        train, site, patient = self._part(self.examples, scanners, "train", 0)
        test = self._part(self.test, scanners, "test", int(patient.max()) + 1)[0] if self.test else None
        classes = GRADES[: self.classes] if self.kind == "classification" else ("background", "lesion")
        columns = {
            "site": tuple(f"site-{i + 1}" for i in site),
            "patient": tuple(f"patient-{i + 1}" for i in patient),
        }
        facts: dict[str, dict[str, Trait]] = {f"site-{i + 1}": scanners.facts(i) for i in range(self.sites)}
        return Dataset("phantoms", train, test, classes, self.kind, columns, {"site": facts}, group="patient")

    def _part(self, n: int, scanners: Scanner, part: str, first: int) -> tuple[Data, np.ndarray, np.ndarray]:
        rng = stream(self.seed, "phantoms", part)
        counts = apportion(n, np.asarray(self.shares or (1,) * self.classes))
        y, patient = [], []
        for c, count in enumerate(counts):
            y.append(np.full(count, c))
            patient.append(first + np.arange(count) // self.slices)
            first += -(-int(count) // self.slices)
        order = rng.permutation(n)
        label, who = np.concatenate(y)[order], np.concatenate(patient)[order]
        people = Anatomy.make(np.unique(who, return_index=True), GRADE * label * self.class_effect, rng)
        site = rng.permutation(np.arange(len(people)) % self.sites)[who - who.min()]
        x = np.empty((n, 1, self.size, self.size), dtype=np.uint8)
        masks = np.empty_like(x)
        for start in range(0, n, CHUNK):  # a few megabytes at a time stay in the processor's cache
            rows = slice(start, min(start + CHUNK, n))
            person = people.take(who[rows] - who.min())
            x[rows, 0], masks[rows, 0] = draw(person, scanners.take(site[rows]), self.size, self.lesions, rng)
        target = torch.from_numpy(masks) if self.kind == "segmentation" else torch.from_numpy(label.astype(np.int64))
        return Data(torch.from_numpy(x), target, torch.from_numpy(who.astype(np.int64))), site, who
