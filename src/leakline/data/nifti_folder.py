"""NIfTI volumes, as slices or whole, with masks beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from leakline.data.base import Dataset, Kind
from leakline.data.files import below, ending, instead, needs_package, text
from leakline.data.folders import check_limits, describe_files, in_classes, refused
from leakline.data.guard import folder_of, reading
from leakline.data.people import Record, gather
from leakline.data.refused import unless
from leakline.data.split import limited
from leakline.errors import DataError
from leakline.names import printable

SUFFIXES = frozenset({".nii", ".nii.gz"})
MAX_VOXELS = 256_000_000
"""A gigabyte as float32: what a volume may claim."""
LOW, HIGH = 1.0, 99.0
"""Percentiles of a volume that become black and white: intensities of magnetic resonance have no unit."""


@dataclass(frozen=True)
class NiftiFolder:
    """Your own NIfTI volumes, at any depth below ``path``; needs nibabel (``pip install leakline[medical]``).

    ``volumes``: every ``every``-th axial slice as an image of its own (size x size), the middle one, or the whole
    volume (1 x size x size x size, for a network of yours in three dimensions). Volumes are turned to the nearest of
    the standard orientations first. Slices of one patient are never on two sides of a split.

    ``labels`` and ``pattern`` as for image-folder; where neither names patients, each volume is one. ``masks``: how
    the names of masks end that lie beside the volumes ("_seg": a.nii.gz has a_seg.nii.gz); then the task is to mark
    what they mark. Intensities go through ``window`` = [centre, width], else each volume's 1st to 99th percentile.
    """

    path: str
    size: int = 64
    labels: str = ""
    pattern: str = ""
    masks: str = ""
    volumes: Literal["slices", "middle", "whole"] = "slices"
    every: int = 1
    window: tuple[float, float] | None = None
    limit: int | None = None
    max_bad_files: int = 0
    embedded: ClassVar[bool] = False
    needs: ClassVar[str] = "path: a folder of NIfTI volumes"

    def __post_init__(self) -> None:
        check_limits(self.size, 1024, self.max_bad_files, self.limit, self.window)
        if self.every < 1:
            raise ValueError(f"every must be at least 1: {self.every}")

    def available(self) -> bool:
        """Whether the folder is there."""
        return Path(self.path).is_dir()

    def load(self) -> Dataset:
        """Read the volumes."""
        needs_package("nibabel", "nifti-folder")
        with reading(self.path):
            root = folder_of(Path(self.path))
            every = {p.relative_to(root).as_posix(): p for p in below(root, SUFFIXES)}
        files = {file: p for file, p in every.items() if not (self.masks and _stem(p).endswith(self.masks))}
        if not files:
            raise DataError(
                f"the folder has no volumes{instead(root)}", printable(root), "give the folder of .nii files"
            )
        blank = {file: Record(label="marked" if self.masks else "") for file in files}
        records, lines, odd = describe_files(root, blank, self.labels, self.pattern)
        if not any(r.patient for r in records.values()):
            lines.append(f"nobody says whose the volumes are: each of {len(records)} counts as a patient of its own")
            records = {file: replace(r, patient=_stem(files[file])) for file, r in records.items()}
        pictures, failed, sizes, turned = self._read(records, files)
        if failed:
            some = "; ".join(f"{printable(file)} ({printable(why, 80)})" for file, why in list(failed.items())[:5])
            lines.append(f"{len(failed)} of {len(files)} volumes cannot be read: {some}{'; ...' * (len(failed) > 5)}")
        wrong = refused(lines, odd + len(failed), self.max_bad_files, root, bool(pictures))
        if len(sizes) > 1:
            some = ", ".join(f"{size} ({n})" for size, n in sizes.most_common(4))
            lines.append(f"volumes of {len(sizes)} sizes, all brought to {self.size}: {some}")
        if len(turned) > 1:
            some = ", ".join(f"{axes} ({n})" for axes, n in turned.most_common(4))
            lines.append(f"volumes of {len(turned)} orientations, all turned to RAS: {some}")
        return unless(wrong, lambda: self._dataset(root, records, pictures, lines))

    def _dataset(
        self,
        root: Path,
        records: Mapping[str, Record],
        pictures: Mapping[str, tuple[Tensor, Tensor | None]],
        lines: list[str],
    ) -> Dataset:
        wrong: list[DataError] = []
        classes: tuple[str, ...] = ("background", "marked")
        if not self.masks:
            records, classes, wrong = in_classes({file: records[file] for file in pictures}, printable(root))
            pictures = {file: pictures[file] for file in records}
        kept = [records[file] for file, (x, _) in pictures.items() for _ in range(len(x))]
        x = torch.cat([x for x, _ in pictures.values()])
        kind: Kind = "segmentation" if self.masks else "classification"
        marked = [mask for _, mask in pictures.values() if mask is not None]
        y = torch.cat(marked) if marked else torch.tensor([classes.index(r.label) for r in kept])
        names = [text(name) for name in classes]
        return unless(
            wrong, lambda: limited(gather("nifti-folder", x, y, kept, names, printable(root), kind, lines), self.limit)
        )

    def _read(
        self, records: Mapping[str, Record], files: Mapping[str, Path]
    ) -> tuple[dict[str, tuple[Tensor, Tensor | None]], dict[str, str], Counter[str], Counter[str]]:
        """Images and masks by file, why each of the others cannot be read, and how many have which size and axes."""
        pictures: dict[str, tuple[Tensor, Tensor | None]] = {}
        failed: dict[str, str] = {}
        sizes: Counter[str] = Counter()
        turned: Counter[str] = Counter()
        for file in records:
            try:
                volume = read_volume(files[file])
                turned[_axes(files[file])] += 1
                sizes[" x ".join(str(side) for side in volume.shape)] += 1
                mask = None
                if self.masks:
                    mask = read_volume(_beside(files[file], self.masks))
                    if mask.shape != volume.shape:
                        raise DataError(f"its mask is {mask.shape}, the volume {volume.shape}")
                    mask = self._shaped((mask > 0).float()).ge(0.5).to(torch.uint8)
                grey = self._shaped(_shares(volume, self.window))
                pictures[file] = ((grey * 255).round().to(torch.uint8), mask)
            except Exception as error:  # hostile bytes make parsers raise anything
                failed[file] = str(error).partition("\n")[0] or type(error).__name__
        return pictures, failed, sizes, turned

    def _shaped(self, volume: Tensor) -> Tensor:
        """Slices N, 1, size, size, or the whole 1, 1, size, size, size; averages if it shrinks, linear if it grows."""
        if self.volumes == "whole":
            shrinks = min(volume.shape) >= self.size
            return _to(volume[None, None], (self.size,) * 3, "area" if shrinks else "trilinear")
        middle = volume.shape[2] // 2
        slices = volume[:, :, middle : middle + 1] if self.volumes == "middle" else volume[:, :, :: self.every]
        images = slices.permute(2, 1, 0).flip(1)[:, None]  # rows from the front of the head to its back
        return _to(images, (self.size,) * 2, "area" if min(images.shape[2:]) >= self.size else "bilinear")


def read_volume(path: Path) -> Tensor:
    """A volume as float32 X, Y, Z, turned to the nearest standard orientation; one too large is not unpacked."""
    import nibabel

    if not path.is_file() or path.is_symlink():
        raise DataError(f"{path.name} is not there, or no regular file")
    image: Any = nibabel.load(path)
    shape = tuple(int(side) for side in image.header.get_data_shape())
    if len(shape) == 4 and shape[3] == 1:
        shape = shape[:3]
    if len(shape) != 3:
        raise DataError(f"it has {len(shape)} axes; three are needed")
    if min(shape) < 1 or int(np.prod(shape, dtype=np.float64)) > MAX_VOXELS:
        raise DataError(f"it claims {' x '.join(map(str, shape))} voxels, more than {MAX_VOXELS:,} in all")
    values = np.asarray(nibabel.as_closest_canonical(image).dataobj, dtype=np.float32).reshape(_turned(image, shape))
    if not np.isfinite(values).all():
        raise DataError("it has voxels that are not numbers")
    return torch.from_numpy(np.ascontiguousarray(values))


def _axes(path: Path) -> str:
    """Where a volume's axes point, as it lies in its file: RAS for right, anterior, superior."""
    import nibabel

    image: Any = nibabel.load(path)
    return "".join(nibabel.aff2axcodes(image.affine))


def _turned(image: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a volume once its axes are in standard order."""
    import nibabel

    axes = nibabel.orientations.io_orientation(image.affine)[:, 0]
    sides = [0, 0, 0]
    for here, there in enumerate(axes):
        sides[int(there)] = shape[here]
    return tuple(sides)


def _shares(volume: Tensor, window: tuple[float, float] | None) -> Tensor:
    """Intensities as shares of 1 between black and white."""
    if window is not None:
        low, high = window[0] - window[1] / 2, window[0] + window[1] / 2
    else:
        low, high = (float(v) for v in np.percentile(volume.numpy(), (LOW, HIGH)))
    return torch.zeros_like(volume) if high <= low else ((volume - low) / (high - low)).clamp(0, 1)


def _to(images: Tensor, size: tuple[int, ...], mode: str) -> Tensor:
    if images.shape[2:] == size:
        return images
    return functional.interpolate(images, size, mode=mode, align_corners=None if mode == "area" else False)


def _stem(path: Path) -> str:
    return path.name[: len(path.name) - len(ending(path))]


def _beside(path: Path, masks: str) -> Path:
    return path.with_name(f"{_stem(path)}{masks}{path.name[len(_stem(path)) :]}")
