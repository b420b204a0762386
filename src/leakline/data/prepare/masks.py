"""Data sets with masks: the LGG brain tumours of Kaggle, and multi-site prostate MRI."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np

from leakline.data.csv_signals import need, read_csv
from leakline.data.files import images_in
from leakline.data.guard import child, folder_of, read_npz, reading
from leakline.data.images import decode_many, resize, resize_masks
from leakline.data.prepare.write import all_or_error, strings, write_npz
from leakline.errors import DataError, RuntimeMissing
from leakline.names import natural, printable

LGG_SIZE, PROSTATE_SIZE = 128, 256
FLAIR = 1  # the middle one of a TIF's three channels (pre-contrast, FLAIR, post-contrast)


def lgg_flair(source: Path, destination: Path) -> Path:
    """Kaggle's kaggle_3m: <patient>/<patient>_<slice>.tif with ..._mask.tif, and data.csv.

    Keeps the FLAIR channel at 128 x 128. The site is the second part of a TCGA name (TCGA_CS_4941: CS).
    """
    folder_of(source)
    root = source / "kaggle_3m" if (source / "kaggle_3m").is_dir() else source
    pictures: list[Path] = []
    for folder in sorted(p for p in root.iterdir() if p.is_dir() and not p.is_symlink()):
        pictures += [p for p in images_in(folder) if not p.stem.endswith("_mask")]
    partners = [p.with_name(f"{p.stem}_mask{p.suffix}") for p in pictures]
    lonely = [p.name for p in partners if not p.is_file()]
    if not pictures or lonely:
        raise DataError(
            f"no mask for {len(lonely)} pictures, such as {printable(lonely[0])}" if lonely else "no pictures found",
            printable(root),
            "give the folder kaggle_3m",
        )
    images, _, failed = decode_many(pictures, grey=False, size=LGG_SIZE)
    all_or_error(failed, pictures)
    masks, _, failed = decode_many(partners, grey=True, size=LGG_SIZE)
    all_or_error(failed, partners)
    names = [_lgg_name(p, root) for p in pictures]
    patients = sorted({patient for patient, _ in names})
    sites = sorted({patient.split("_")[1] for patient in patients})
    marked = (np.stack(masks) >= 128).reshape(len(masks), -1)
    arrays = {
        "x": np.stack(images)[..., FLAIR],
        "mask": np.packbits(marked, axis=1),
        "patient": np.array([patients.index(p) for p, _ in names], dtype=np.uint16),
        "site": np.array([sites.index(p.split("_")[1]) for p, _ in names], dtype=np.uint8),
        "slice": np.array([number for _, number in names], dtype=np.uint16),
        "patient_names": strings(patients),
        "site_names": strings(sites),
        **_lgg_facts(root, patients),
    }
    return write_npz(destination, "lgg_flair.npz", arrays)


def _lgg_name(path: Path, root: Path) -> tuple[str, int]:
    """Patient and slice number of TCGA_CS_4941_19960909_12.tif."""
    parts = path.stem.split("_")
    if len(parts) < 5 or not parts[-1].isdecimal():
        raise DataError(f"not a TCGA name: {printable(path.name)}", printable(root), "give the folder kaggle_3m")
    return "_".join(parts[:3]), int(parts[-1][:4])


def _lgg_facts(root: Path, patients: list[str]) -> dict[str, np.ndarray]:
    if not (root / "data.csv").is_file():
        return {}
    import pandas as pd

    columns = {
        "patient_gender": "gender",
        "patient_age": "age_at_initial_pathologic",
        "patient_grade": "neoplasm_histologic_grade",
    }
    frame = read_csv(root / "data.csv")
    need(frame, ["Patient", *columns.values()], root / "data.csv")
    frame = frame.drop_duplicates("Patient").set_index("Patient").reindex(patients)
    return {
        name: pd.to_numeric(frame[column], errors="coerce").to_numpy(dtype=np.float32)
        for name, column in columns.items()
    }


@dataclass(frozen=True)
class Case:
    """One patient's slices (uint8 N, H, W) and masks, at one site."""

    site: str
    patient: str
    images: np.ndarray
    masks: np.ndarray


def prostate(source: Path, destination: Path) -> Path:
    """Site folders with NIfTI volumes CaseXX.nii.gz and CaseXX_segmentation.nii.gz (needs nibabel).

    Or, already cut into slices: <site>/<patient>/<slice>.png with <slice>_mask.png, or <site>/<patient>.npz
    with arrays image and mask (N, H, W). Kept: slices that show the prostate, at 256 x 256; brightness is
    stretched from the 1st to the 99th percentile of each volume.
    """
    folder_of(source)
    cases: list[Case] = []
    for site in sorted(p for p in source.iterdir() if p.is_dir() and not p.is_symlink()):
        volumes = sorted(site.glob("*.nii.gz"), key=lambda p: natural(p.name)) + sorted(site.glob("*.nii"))
        cases += [_nifti(p, site) for p in volumes if "_segmentation" not in p.name.lower()]
        cases += [_arrays(p, site) for p in sorted(site.glob("*.npz"))]
        cases += [_slices(p, site) for p in sorted(site.iterdir()) if p.is_dir() and not p.is_symlink()]
    given = {c.site for c in cases}
    cases = [c for c in cases if len(c.images)]
    if not cases:
        raise DataError("no slices with a mask in site folders", printable(source), "give the folder of the sites")
    sites = sorted({c.site for c in cases})
    if blank := sorted(given - set(sites)):
        raise DataError(
            f"no mask marks anything at {printable(', '.join(blank))}",
            printable(source),
            "check the masks of this site, or take its folder away",
        )
    return write_npz(
        destination,
        "prostate_sites.npz",
        {
            "x": np.concatenate([c.images for c in cases]),
            "mask": np.concatenate([c.masks for c in cases]),
            "site": np.concatenate([np.full(len(c.images), sites.index(c.site), np.uint8) for c in cases]),
            "site_names": strings(sites),
            "patient": np.concatenate([np.full(len(c.images), i, np.uint16) for i, c in enumerate(cases)]),
            "patient_names": strings([f"{c.site}-{c.patient}" for c in cases]),
        },
    )


def _case(site: Path, patient: str, volume: np.ndarray, marked: np.ndarray, path: Path) -> Case:
    """Slices with something marked, brightness stretched, brought to size."""
    if volume.shape != marked.shape or volume.ndim != 3 or volume.dtype.kind not in "fiu" or not volume.size:
        raise DataError(
            f"volume {volume.shape} and mask {marked.shape} do not match", printable(path), "check the file"
        )
    if not np.isfinite(volume).all():
        raise DataError("the volume has values that are not numbers", printable(path), "check the file")
    low, high = np.percentile(volume, (1, 99))
    bright = np.clip((volume - low) / max(float(high - low), 1e-9), 0, 1) * 255
    keep = np.flatnonzero((marked > 0).any((1, 2)))
    images = resize(bright[keep, None].round().astype(np.uint8), PROSTATE_SIZE)[:, 0]
    masks = resize_masks(marked[keep, None], PROSTATE_SIZE)[:, 0]
    return Case(site.name, patient, images, masks)


def _nifti(path: Path, site: Path) -> Case:
    try:
        nibabel = import_module("nibabel")
    except ImportError as error:
        raise RuntimeMissing("NIfTI volumes need nibabel", printable(path), "pip install nibabel") from error
    stem = path.name.removesuffix(".gz").removesuffix(".nii")
    ending = path.name.removeprefix(stem)
    partners = [path.with_name(f"{stem}{word}{ending}") for word in ("_segmentation", "_Segmentation")]
    partner = next((p for p in partners if p.is_file()), None)
    if partner is None:
        raise DataError(f"no mask {printable(partners[0].name)}", printable(path), "put it beside the volume")
    with reading(path):
        # Axes of a NIfTI array are x, y, slice.
        volume, marked = (np.asarray(nibabel.load(p).dataobj, dtype=np.float32) for p in (path, partner))
        return _case(site, stem, volume.transpose(2, 1, 0), marked.transpose(2, 1, 0), path)


def _arrays(path: Path, site: Path) -> Case:
    arrays = read_npz(child(site, path.name), ("image", "mask"))
    with reading(path):
        return _case(site, path.stem, arrays["image"], arrays["mask"], path)


def _slices(folder: Path, site: Path) -> Case:
    pictures = [p for p in images_in(folder) if not p.stem.endswith("_mask")]
    partners = [p.with_name(f"{p.stem}_mask{p.suffix}") for p in pictures]
    lonely = [p.name for p in partners if not p.is_file()]
    if lonely:
        raise DataError(f"no mask {printable(lonely[0])}", printable(folder), "put it beside the slice")
    images, _, failed = decode_many(pictures, grey=True, size=PROSTATE_SIZE)
    all_or_error(failed, pictures)
    masks, _, failed = decode_many(partners, grey=True, size=PROSTATE_SIZE)
    all_or_error(failed, partners)
    if not images:
        return Case(site.name, folder.name, np.empty((0, 0, 0)), np.empty((0, 0, 0)))
    return _case(site, folder.name, np.stack(images), np.stack(masks) >= 128, folder)
