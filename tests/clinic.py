"""Files as a hospital has them, made here: DICOM with patients and sites in their tags, NIfTI with masks."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from leakline.data import Task

KINDS = ("MONOCHROME1", "MONOCHROME2", "RGB")


def dicom(path: Path, pixels: np.ndarray, photometric: str = "MONOCHROME2", frames: int = 0, **tags: Any) -> Path:
    """One DICOM file of these stored values."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = (
        CTImageStorage,
        generate_uid(entropy_srcs=[str(path)]),
    )
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    ds = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    ds.SOPClassUID, ds.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    colour = photometric not in ("MONOCHROME1", "MONOCHROME2", "PALETTE COLOR")
    ds.Rows, ds.Columns = pixels.shape[:2] if not frames else pixels.shape[1:3]
    if frames:
        ds.NumberOfFrames = frames
    ds.PhotometricInterpretation, ds.SamplesPerPixel = photometric, 3 if colour else 1
    if colour:
        ds.PlanarConfiguration = 0
    ds.BitsAllocated = ds.BitsStored = 8 * pixels.dtype.itemsize
    ds.HighBit, ds.PixelRepresentation = ds.BitsStored - 1, int(pixels.dtype.kind == "i")
    ds.PixelData = pixels.tobytes()
    for name, value in tags.items():
        setattr(ds, name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    ds.save_as(path, enforce_file_format=True)
    return path


def write(root: Path, rows: list[dict[str, str]], name: str = "labels.csv") -> None:
    """A sheet of these rows."""
    with open(root / name, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def apart(task: Task) -> bool:
    """Whether no patient is on two sides of any split, and none at two clients."""
    parts = [p for c in task.clients for p in (c.train, c.test)] + [task.test, task.validation]
    seen = [set(p.groups.tolist()) for p in parts if p is not None and p.groups is not None]
    return sum(map(len, seen)) == len(set().union(*seen))


def archive(root: Path, files: int = 300, patients: int = 40, sites: int = 4) -> list[dict[str, str]]:
    """So many files at any depth, of three photometric kinds, with their sheet; two are broken and one is a bomb."""
    import pydicom

    rng = np.random.default_rng(0)
    rows = []
    for i in range(files):
        p = i % patients
        kind = KINDS[i % 3]
        name = f"study-{p // 10}/series-{i % 7}/{i:04d}.dcm"
        shape = (16, 16, 3) if kind == "RGB" else (16, 16)
        pixels = rng.integers(0, 256, shape).astype(np.uint8 if kind == "RGB" else np.uint16)
        dicom(
            root / name, pixels, kind, PatientID=f"{1000 + p}", PatientName=f"Doe^{p}", PatientSex="MF"[p % 2],
            PatientAge=f"{20 + p:03d}Y", InstitutionName=f"Clinic {p % sites}",
        )  # fmt: skip
        rows.append({"file": name, "label": "ill" if p % 3 == 0 else "healthy"})
    (root / rows[17]["file"]).write_bytes(b"no DICOM at all")
    whole = (root / rows[42]["file"]).read_bytes()
    (root / rows[42]["file"]).write_bytes(whole[:-100])  # cut off within its pixels
    bomb = pydicom.dcmread(root / rows[99]["file"])
    bomb.Rows = bomb.Columns = 65535
    bomb.NumberOfFrames = 2000
    bomb.save_as(root / rows[99]["file"])
    return rows


def volume(path: Path, values: np.ndarray, affine: np.ndarray | None = None) -> Path:
    """One NIfTI file."""
    import nibabel

    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4) if affine is None else affine), path)
    return path
