"""Images in folders: class/*.png, train/class/*.png, with a site's folder above the class, or told by a sheet."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from leakline.data.base import Dataset
from leakline.data.decoded import decoded
from leakline.data.files import below, entries, instead, text
from leakline.data.guard import child, folder_of, reading
from leakline.data.images import SUFFIXES
from leakline.data.people import Record, gather, patient_codes
from leakline.data.refused import unless
from leakline.data.sheet import by_pattern, pattern_of, read_sheet
from leakline.data.split import subset
from leakline.errors import DataError
from leakline.names import natural, printable


@dataclass(frozen=True)
class ImageFolder:
    """Your own images: a folder with one sub-folder for each class, or with a sheet that tells what each image is.

    ``path/class/*.png``, ``path/train/class/*.png`` with ``path/test/class/*.png``, and with ``sites =
    true`` one more level ``.../site/class/*.png`` whose names become the column "site".

    ``labels``: a CSV in the folder, with the columns file (or patient), label, site, patient, sex, age, split, as
    far as they are known; without file there is one row for each patient, who has a folder (or a place in the
    pattern); without label the class is the image's folder. ``pattern``: what the folders' and files' names say, such
    as ``"{site}/{label}/{patient}_*.png"``. Splits and clients keep a patient's images together.

    Images are brought to ``size`` x ``size``, grey or RGB. More than ``max_bad_files`` that cannot be read, that have
    no row, or rows without a file, and nothing is loaded.

    Above 512 MB of decoded images they are kept in a file, made once, and read batch by batch: in the folder ``cache``
    if it is given, else in the run directory. It is as confidential as the images.
    """

    path: str
    size: int = 64
    grey: bool = True
    sites: bool = False
    labels: str = ""
    pattern: str = ""
    limit: int | None = None
    max_bad_files: int = 0
    cache: str = ""
    embedded: ClassVar[bool] = False
    needs: ClassVar[str] = "path: a folder of images"

    def __post_init__(self) -> None:
        check_limits(self.size, 4096, self.max_bad_files, self.limit)
        if self.sites and (self.labels or self.pattern):
            raise ValueError("sites = true is for folders alone; a sheet has a column site, a pattern {site}")
        if self.pattern:
            pattern_of(self.pattern)

    def available(self) -> bool:
        """Whether the folder is there."""
        return Path(self.path).is_dir()

    def load(self) -> Dataset:
        """Read the images."""
        with reading(self.path):
            root = folder_of(Path(self.path))
            told = bool(self.labels or self.pattern)
            every = {p.relative_to(root).as_posix(): Record() for p in below(root, SUFFIXES)} if told else {}
            records = every or in_class_folders(root, self.sites)
        if not records:
            raise DataError(
                f"the folder has no images{'' if told else ' in class folders'}{instead(root)}",
                printable(root),
                "use path/class/*.png, path/site/class/*.png with sites = true, or labels = a CSV file",
            )
        lines: list[str] = []
        bad = 0
        if told:
            records, lines, bad = describe_files(root, records, self.labels, self.pattern)
        records, classes, wrong = in_classes(records, printable(root))
        files = self._limited(list(records), records, classes)
        x, good, failed = decoded([root / file for file in files], self.grey, self.size, repr(self), self.cache)
        if failed:
            some = "; ".join(f"{printable(files[i])} ({printable(why, 80)})" for i, why in failed[:5])
            more = "; ..." if len(failed) > 5 else ""
            lines.append(f"{len(failed)} of {len(files)} image files cannot be read: {some}{more}")
        wrong = [*refused(lines, bad + len(failed), self.max_bad_files, root, bool(good)), *wrong]
        kept = [records[files[i]] for i in good]
        y = torch.tensor([classes.index(r.label) for r in kept])
        named = tuple(text(c) for c in classes)
        return unless(wrong, lambda: gather("image-folder", x, y, kept, named, printable(root), remarks=lines))

    def _limited(self, files: list[str], records: Mapping[str, Record], classes: Sequence[str]) -> list[str]:
        """At most about ``limit`` training images, whole patients; the test part stays whole."""
        train = [file for file in files if not records[file].tested]
        told = [records[file] for file in train]
        rows = subset(np.array([classes.index(r.label) for r in told]), patient_codes(told), self.limit)
        chosen = {train[i] for i in rows}
        return [file for file in files if records[file].tested or file in chosen]


def describe_files(
    root: Path, records: Mapping[str, Record], labels: str, pattern: str, unread: Collection[str] = ()
) -> tuple[dict[str, Record], list[str], int]:
    """What a pattern and a sheet say of files, what does not fit in lines with counts, and how many that are.

    Where a sheet has one row for each patient and neither pattern nor file names one, it is the file's first folder.
    ``unread`` are further files that are there, and counted elsewhere.
    """
    lines: list[str] = []
    odd = 0
    known = dict(records)
    if pattern:
        fits, strange = by_pattern(pattern_of(pattern), list(known))
        known = {file: _merged(records[file], record) for file, record in fits.items()}
        if strange:
            odd += len(strange)
            some = printable(", ".join(strange[:3]) + (", ..." if len(strange) > 3 else ""))
            lines.append(f"{len(strange)} of {len(records)} files do not fit the pattern: {some}")
    if labels:
        with reading(root / labels):
            sheet = read_sheet(child(root, labels))
        if sheet.key == "patient":
            known = {f: replace(r, patient=r.patient or f.partition("/")[0]) for f, r in known.items()}
        known, more, count = sheet.match(known, unread)
        lines, odd = lines + more, odd + count
    known = {f: r if r.label else replace(r, label=f.rpartition("/")[0].rpartition("/")[2]) for f, r in known.items()}
    blank = [file for file, record in known.items() if not record.label]
    if blank:
        odd += len(blank)
        lines.append(f"{len(blank)} of {len(records)} files have no label: {printable(', '.join(blank[:3]))}")
    return {file: record for file, record in known.items() if record.label}, lines, odd


def _merged(record: Record, said: Record) -> Record:
    told = {field: value for field, value in vars(said).items() if value}
    return replace(record, **told)


def check_limits(
    size: int, most: int, max_bad_files: int, limit: int | None, window: tuple[float, float] | None = None
) -> None:
    """Refuse settings that all loaders of folders have and that make no sense; ``most``: the largest size."""
    if not 1 <= size <= most:
        raise ValueError(f"size must be from 1 to {most}: {size}")
    if max_bad_files < 0 or (limit is not None and limit < 1):
        raise ValueError(f"max_bad_files must be at least 0 and limit at least 1: {max_bad_files}, {limit}")
    if window is not None and not window[1] > 0:
        raise ValueError(f"window is [centre, width], with a width above 0: {window}")


def refused(lines: Sequence[str], bad: int, allowed: int, root: Path, any_left: bool) -> list[DataError]:
    """All that is wrong with a folder's files as one error, if that is more than is allowed; raised if none is left."""
    if bad <= allowed and any_left:
        return []
    fix = f"mend or remove them, or set max_bad_files = {bad}"
    error = DataError("; ".join(lines) or "no file is left", printable(root), fix)
    if not any_left:
        raise error
    return [error]


def in_classes(records: Mapping[str, Record], where: str) -> tuple[dict[str, Record], tuple[str, ...], list[DataError]]:
    """Records of the training part's classes, these in natural order, and what is wrong: classes only tests have."""
    classes = tuple(sorted({r.label for r in records.values() if not r.tested}, key=natural))
    strange = sorted({r.label for r in records.values()} - set(classes))
    what = f"only the test part has the class {printable(', '.join(strange))}"
    wrong = [DataError(what, where, "name the classes alike")] if strange else []
    return {file: r for file, r in records.items() if r.label in classes}, classes, wrong


def in_class_folders(root: Path, sites: bool = False) -> dict[str, Record]:
    """Records by file, of images in class folders: below train and test where there is train, else below the root."""
    parts = {"train": root / "train", "test": root / "test"} if (root / "train").is_dir() else {"": root}
    return {
        entry.path.relative_to(root).as_posix(): Record(entry.label, entry.site, split=split)
        for split, part in parts.items() if part.is_dir()
        for entry in entries(part, sites)
    }  # fmt: skip
