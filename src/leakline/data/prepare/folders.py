"""Data sets that come as class folders of pictures, or as parquet files with pictures inside."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from leakline.data.csv_signals import need, read_csv
from leakline.data.files import Entry, entries, images_in, text
from leakline.data.guard import folder_of, reading
from leakline.data.images import decode_many
from leakline.data.prepare.write import all_or_error, joined, strings, write_npz
from leakline.errors import DataError
from leakline.names import printable

GRADES = ("MildDemented", "ModerateDemented", "NonDemented", "VeryMildDemented")
SIZE = 128


def alzheimer_mri(source: Path, destination: Path) -> Path:
    """Kaggle's folders (train|test/<grade>/*.jpg) or the parquet files train-*.parquet and test-*.parquet."""
    folder_of(source)
    parquet = sorted(source.rglob("*.parquet"))
    pictures, labels, is_train = _parquet(parquet) if parquet else _grades(source)
    _, _, failed = decode_many(pictures, grey=True, size=None)
    if failed:
        raise DataError(
            f"{len(failed)} of {len(pictures)} pictures cannot be read, the first is {failed[0][0]}",
            printable(source),
            "get a good copy of the data set",
        )
    blob, offsets = joined(pictures)
    arrays = {
        "jpeg": blob,
        "offsets": offsets,
        "y": np.array(labels, dtype=np.uint8),
        "is_train": np.array(is_train, dtype=bool),
        "class_names": strings(GRADES),
    }
    return write_npz(destination, "alzheimer_mri.npz", arrays)


def _grades(source: Path) -> tuple[list[bytes], list[int], list[bool]]:
    pictures, labels, is_train = [], [], []
    for part in ("train", "test"):
        with reading(source / part, "give the folder that holds train/ and test/"):
            for entry in entries(source / part):
                if entry.path.is_symlink():
                    raise DataError("a picture is a link", printable(entry.path), "copy the file itself")
                pictures.append(entry.path.read_bytes())
                labels.append(_grade(entry.label, source))
                is_train.append(part == "train")
    if not pictures:
        raise DataError("no pictures in class folders", printable(source), "give the folder with train/ and test/")
    return pictures, labels, is_train


def _grade(name: str, source: Path) -> int:
    plain = "".join(c for c in name.lower() if c.isalpha())
    grades = [i for i, grade in enumerate(GRADES) if grade.lower() == plain]
    if not grades:
        raise DataError(
            f"unknown class folder {printable(name)!r}", printable(source), f"expected: {', '.join(GRADES)}"
        )
    return grades[0]


def _parquet(files: list[Path]) -> tuple[list[bytes], list[int], list[bool]]:
    from pyarrow import parquet

    pictures: list[bytes] = []
    labels: list[int] = []
    is_train: list[bool] = []
    for path in files:
        with reading(path):
            table = parquet.read_table(path, columns=["image", "label"])
            rows = table.to_pydict()
            pictures += [bytes(image["bytes"]) for image in rows["image"]]
            labels += [int(label) for label in rows["label"]]
            is_train += [path.name.startswith("train")] * table.num_rows
    if not pictures or not all(0 <= label < len(GRADES) for label in labels):
        raise DataError("labels must be 0 to 3", printable(files[0]), "get the parquet files of the data set")
    return pictures, labels, is_train


def chest_xray(source: Path, destination: Path) -> Path:
    """Class folders, as in the COVID-19 Radiography Database (COVID/images/*.png, Normal/images/*.png, ...).

    Folders become the classes normal, covid19 and pneumonia where their names say so, else they keep their
    names.
    """
    known = {"normal": "normal", "covid": "covid19", "covid19": "covid19", "viralpneumonia": "pneumonia"}
    pictures = _class_folders(source)
    plain = {e.label: "".join(c for c in e.label.lower() if c.isalnum()) for e in pictures}
    label = {name: known.get(short, text(name)) for name, short in plain.items()}
    order = ("normal", "covid19", "pneumonia")
    names = sorted(set(label.values()), key=lambda n: (order.index(n) if n in order else len(order), n))
    return _pictures(
        destination,
        "chest_xray.npz",
        pictures,
        [names.index(label[e.label]) for e in pictures],
        names,
        grey=True,
        source=np.zeros(len(pictures), dtype=np.uint8),
        source_names=strings([source.resolve().name]),
    )


def fundus(source: Path, destination: Path) -> Path:
    """Class folders of colour photographs: normal/*.jpg, cataract/*.jpg, ..."""
    pictures = _class_folders(source)
    names = sorted({e.label for e in pictures}, key=lambda n: (n.lower() != "normal", n))
    return _pictures(destination, "fundus.npz", pictures, [names.index(e.label) for e in pictures], names, grey=False)


def head_ct(source: Path, destination: Path) -> Path:
    """Kaggle's Head CT: a folder head_ct/ of pictures 000.png ... and labels.csv (id, hemorrhage)."""
    folder_of(source)
    frame = read_csv(source / "labels.csv")
    need(frame, ["id", "hemorrhage"], source / "labels.csv")
    with reading(source / "head_ct", "give the folder that holds labels.csv and head_ct/"):
        nested = source / "head_ct" / "head_ct"
        pictures = images_in(nested if nested.is_dir() else source / "head_ct")
        paths = {p.stem.lstrip("0") or "0": p for p in pictures}
    with reading(source / "labels.csv"):
        pairs = [(str(int(i)), int(h)) for i, h in zip(frame["id"], frame["hemorrhage"], strict=True)]
    missing = [i for i, _ in pairs if i not in paths]
    if missing or not all(h in (0, 1) for _, h in pairs):
        raise DataError(f"labels.csv names {len(missing)} pictures that are not there, or labels other than 0 and 1")
    labelled = [Entry(paths[i], str(h)) for i, h in pairs]
    return _pictures(destination, "head_ct.npz", labelled, [h for _, h in pairs], ["normal", "haemorrhage"], grey=True)


def _class_folders(source: Path) -> list[Entry]:
    """Pictures in class folders, with or without a folder "images" inside them; masks are passed over."""
    with reading(source):
        folder_of(source)
        nested = [
            Entry(p, d.name)
            for d in sorted(source.iterdir())
            if d.is_dir() and not d.is_symlink() and (d / "images").is_dir()
            for p in images_in(d / "images")
        ]
        pictures = nested or entries(source)
    if len({e.label for e in pictures}) < 2:
        raise DataError("fewer than two class folders with pictures", printable(source), "use source/class/*.png")
    return pictures


def _pictures(
    destination: Path,
    file: str,
    pictures: list[Entry],
    y: list[int],
    names: list[str],
    grey: bool,
    **more: np.ndarray,
) -> Path:
    images, _, failed = decode_many([e.path for e in pictures], grey, SIZE)
    all_or_error(failed, [e.path for e in pictures])
    arrays = {
        "x": np.stack(images),
        "y": np.array(y, dtype=np.uint8),
        "class_names": strings(names),
        "filename": strings([e.path.name for e in pictures]),
        **more,
    }
    return write_npz(destination, file, arrays)
