"""RSNA intracranial haemorrhage detection: stage_2_train.csv and a folder of PNG exports or DICOM files."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from leakline.data.csv_signals import need, read_csv
from leakline.data.guard import folder_of, reading
from leakline.data.images import SUFFIXES, decode_many
from leakline.data.prepare.write import all_or_error, strings, write_npz
from leakline.data.split import stream
from leakline.errors import DataError, RuntimeMissing
from leakline.names import is_safe, printable

SIZE = 224
SLICES = 25_000  # as many as the paper uses, half of them with haemorrhage
BRAIN_WINDOW = (0.0, 80.0)  # Hounsfield units


def rsna_ich(source: Path, destination: Path) -> Path:
    """stage_2_train.csv (ID, Label) and the slices ID_xxx.png or ID_xxx.dcm in any folder below the source.

    A slice counts as haemorrhage if its row "ID_xxx_any" says 1. At most 25000 slices, as many with as
    without where there are enough, drawn always alike, at 224 x 224. DICOM files (brain window 0 to 80) need
    pydicom, and tell the patient; PNG exports do not.
    """
    folder_of(source)
    labels = _labels(source / "stage_2_train.csv")
    with reading(source):
        files = {p.stem: p for p in sorted(source.rglob("ID_*")) if p.suffix.lower() in {*SUFFIXES, ".dcm"}}
    known = sorted(set(labels) & set(files))
    if not known:
        raise DataError("no slice of stage_2_train.csv is there as .png or .dcm", printable(source), "check the folder")
    chosen = _balanced(known, labels)
    paths = [files[name] for name in chosen]
    dicom = [p.suffix.lower() == ".dcm" for p in paths]
    if any(dicom) and not all(dicom):
        raise DataError("the folder mixes DICOM files and pictures", printable(source), "keep one kind")
    more: dict[str, np.ndarray] = {}
    if all(dicom):
        images, people = _dicom(paths)
        order = {name: i for i, name in enumerate(dict.fromkeys(people))}
        more["patient"] = np.array([order[p] for p in people], dtype=np.uint32)
    else:
        images, _, failed = decode_many(paths, grey=True, size=SIZE)
        all_or_error(failed, paths)
    arrays = {
        "x": np.stack(images),
        "y": np.array([labels[name] for name in chosen], dtype=np.uint8),
        "class_names": strings(("normal", "haemorrhage")),
        **more,
    }
    return write_npz(destination, "rsna_ich.npz", arrays)


def _labels(path: Path) -> dict[str, int]:
    frame = read_csv(path)
    need(frame, ["ID", "Label"], path)
    ids = frame["ID"].astype(str)
    rows = frame[ids.str.endswith("_any")]
    with reading(path, "labels must be 0 or 1"):
        labels = {str(i).removesuffix("_any"): int(v) for i, v in zip(rows["ID"], rows["Label"], strict=True)}
    bad = [i for i, v in labels.items() if v not in (0, 1) or not is_safe(i)]
    if not labels or bad:
        raise DataError(f"no rows ID_..._any with labels 0 or 1 ({len(bad)} bad ones)", printable(path))
    return labels


def _balanced(names: list[str], labels: dict[str, int]) -> list[str]:
    """At most SLICES names, equally many of both labels where there are enough."""
    rng, half = stream(0, "rsna-ich"), SLICES // 2
    without, with_ = ([n for n in names if labels[n] == value] for value in (0, 1))
    chosen: list[str] = []
    for group, other in ((without, with_), (with_, without)):
        size = max(half, SLICES - len(other))
        chosen += [group[i] for i in rng.permutation(len(group))[:size]]
    return sorted(chosen)


def _dicom(paths: list[Path]) -> tuple[list[np.ndarray], list[str]]:
    """Slices through the brain window, and the pseudonym of the patient of each; no other tag is read."""
    try:
        pydicom: Any = import_module("pydicom")
    except ImportError as error:
        raise RuntimeMissing("DICOM files need pydicom", printable(paths[0]), "pip install pydicom") from error
    from PIL import Image

    images, people = [], []
    low, high = BRAIN_WINDOW
    for path in paths:
        with reading(path):
            slice_ = pydicom.dcmread(path)
            hounsfield = slice_.pixel_array * float(slice_.RescaleSlope) + float(slice_.RescaleIntercept)
            bright = (np.clip((hounsfield - low) / (high - low), 0, 1) * 255).round().astype(np.uint8)
            images.append(np.asarray(Image.fromarray(bright).resize((SIZE, SIZE), Image.Resampling.BOX)))
            people.append(str(slice_.PatientID))
    return images, people
