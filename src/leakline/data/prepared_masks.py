"""Named data sets with masks: brain tumours in FLAIR images, the prostate at six sites."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch

from leakline.data.base import Data, Dataset, Trait
from leakline.data.guard import labels_within, lengths_agree, npz_names, read_npz
from leakline.data.images import channels_first, resize, resize_masks
from leakline.data.prepared import VARIABLE, PreparedImages, names_of, pixels
from leakline.data.split import subset
from leakline.errors import DataError
from leakline.names import printable


@dataclass(frozen=True)
class LggFlair(PreparedImages):
    """Brain FLAIR slices with tumour masks, 128x128, 2026 slices of 110 patients at 5 sites.

    The site EZ has a single patient and is dropped (``drop_sites``). Columns "site" and "patient"; patients
    are groups, so no split cuts through one. ``kind = "classification"`` asks only whether a slice shows
    tumour. A third of the slices shows none, so that a model that marks nothing has Dice 0.32; ``empty = "drop"``
    leaves those out. Gender is left as the source codes it.
    """

    kind: Literal["segmentation", "classification"] = "segmentation"
    empty: Literal["keep", "drop"] = "keep"
    drop_sites: tuple[str, ...] = ("EZ",)
    name: ClassVar[str] = "lgg-flair"
    file: ClassVar[str] = "lgg_flair.npz"

    def load(self) -> Dataset:
        """Read images, masks, patients and sites."""
        path = self.path()
        facts = ("patient_gender", "patient_age", "patient_grade")
        arrays = read_npz(path, ("x", "mask", "patient", "site", "patient_names", "site_names"), facts)
        lengths_agree(path, arrays, "x", "mask", "patient", "site")
        lengths_agree(path, arrays, "patient_names", *facts)
        x, masks = pixels(path, arrays, "x"), arrays["mask"]
        if masks.dtype != np.uint8 or masks.ndim != 2 or masks.shape[1] * 8 != x.shape[1] * x.shape[2]:
            raise DataError(f"mask must be bit-packed, one bit for a pixel: {masks.shape}", printable(path))
        people, sites = names_of(path, arrays, "patient_names"), names_of(path, arrays, "site_names")
        patient = labels_within(path, arrays["patient"], len(people), "patient")
        site = labels_within(path, arrays["site"], len(sites), "site")
        rows = np.flatnonzero(~np.isin(site, [i for i, s in enumerate(sites) if s in self.drop_sites]))
        if self.empty == "drop":
            rows = rows[masks[rows].any(1)]
        rows = rows[subset(np.asarray(masks[rows].any(1), dtype=np.int64), patient[rows], self.limit)]
        if not len(rows):
            raise DataError("no slices are left", printable(path), "drop fewer sites")
        target = np.unpackbits(masks[rows], axis=1).reshape(-1, 1, *x.shape[1:3])
        data = _masked(self, x[rows], target, patient[rows])
        classes: tuple[str, ...] = ("background", "tumour")
        if self.kind == "classification":
            data = Data(data.x, torch.from_numpy(target.any((1, 2, 3)).astype(np.int64)), data.groups)
            classes = ("no tumour", "tumour")
        traits: dict[str, dict[str, Trait]] = {
            name: {
                f.removeprefix("patient_"): float(arrays[f][i])
                for f in facts
                if f in arrays and np.isfinite(arrays[f][i])
            }
            for i, name in enumerate(people)
        }
        columns = {
            "site": tuple(sites[i] for i in site[rows]),
            "patient": tuple(people[i] for i in patient[rows]),
        }
        lost = _lost(target, data) if self.kind == "segmentation" else ()
        return Dataset(self.name, data, None, classes, self.kind, columns, {"patient": traits}, lost, "patient")


@dataclass(frozen=True)
class Prostate(PreparedImages):
    """Prostate MRI slices with masks from six sites (paper 004); the small file is a format sample.

    ``data prepare prostate`` makes the full set from the official folders. Column "site", and "patient" where
    the file names patients, who are then groups. Slices that the file marks as test form the test part.
    ``patients = "named"``: a file that names none, as the sample, counts as not there, so that no patient is on both
    sides of a split unseen.
    """

    patients: Literal["any", "named"] = "any"
    name: ClassVar[str] = "prostate"
    file: ClassVar[str] = "prostate_sites.npz"

    def available(self) -> bool:
        """Whether the file is there, with its patients' names where they are asked for."""
        there = super().available()
        return there and (
            self.patients == "any" or "patient_names" in npz_names(Path(os.environ[VARIABLE]) / self.file)
        )

    def load(self) -> Dataset:
        """Read images, masks and sites."""
        path = self.path()
        arrays = read_npz(path, ("x", "mask", "site", "site_names"), ("part", "patient", "patient_names"))
        lengths_agree(path, arrays, "x", "mask", "site", "part", "patient")
        x, masks = pixels(path, arrays, "x"), pixels(path, arrays, "mask")
        if masks.shape != x.shape[:3]:
            raise DataError(
                f"masks are {masks.shape}, images {x.shape}", printable(path), "get a good copy of the file"
            )
        sites = names_of(path, arrays, "site_names")
        site = labels_within(path, arrays["site"], len(sites), "site")
        held = np.zeros(len(x), dtype=bool)
        if "part" in arrays:
            held = np.array([p == "test" for p in names_of(path, arrays, "part")])
        columns, patient = {"site": [sites[i] for i in site]}, None
        if "patient" in arrays and "patient_names" in arrays:
            people = names_of(path, arrays, "patient_names")
            patient = labels_within(path, arrays["patient"], len(people), "patient")
            columns["patient"] = [people[i] for i in patient]
        train, test = np.flatnonzero(~held), np.flatnonzero(held)
        marked = np.asarray(masks[train].any((1, 2)), dtype=np.int64)
        train = train[subset(marked, None if patient is None else patient[train], self.limit)]
        if not len(train):
            raise DataError("the file has no training slices", printable(path))

        def part(rows: np.ndarray) -> Data:
            return _masked(self, x[rows], masks[rows, None], None if patient is None else patient[rows])

        learnt = part(train)
        return Dataset(
            self.name,
            learnt,
            part(test) if len(test) else None,
            ("background", "prostate"),
            "segmentation",
            {name: tuple(values[i] for i in train) for name, values in columns.items()},
            remarks=_lost(masks[train], learnt),
            group="patient",
        )


def _masked(source: PreparedImages, x: np.ndarray, masks: np.ndarray, groups: np.ndarray | None) -> Data:
    images = resize(channels_first(x), source.size)
    target = resize_masks(masks, source.size)
    ids = None if groups is None else torch.from_numpy(groups)
    return Data(torch.from_numpy(images), torch.from_numpy(target), ids)


def _lost(masks: np.ndarray, data: Data) -> tuple[str, ...]:
    """A remark where marks are so small that nothing is left of them at the size that was asked for."""
    gone = int(np.count_nonzero(masks.reshape(len(masks), -1).any(1) & (data.labels() == 0)))
    if not gone:
        return ()
    side = data.y.shape[-1]
    return (f"{gone} of {len(data):,} masks mark something in the file and nothing at {side}x{side} pixels",)
