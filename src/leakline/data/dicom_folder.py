"""DICOM files as a hospital has them: in folders of any depth, with patients and sites in their tags."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch

from leakline.data.base import Dataset
from leakline.data.dicom import Scan, is_dicom, read_scan, several
from leakline.data.files import below, instead, needs_package, text
from leakline.data.folders import check_limits, describe_files, in_classes, refused
from leakline.data.guard import folder_of, reading
from leakline.data.images import channels_first
from leakline.data.people import gather
from leakline.data.pseudonyms import pseudonyms
from leakline.data.refused import unless
from leakline.data.split import limited
from leakline.errors import DataError
from leakline.names import printable

SUFFIXES = frozenset({".dcm", ".dicom", ".ima", ""})


@dataclass(frozen=True)
class DicomFolder:
    """Your own DICOM files, at any depth below ``path``; needs pydicom (``pip install leakline[medical]``).

    Patient, sex and age are read from the tags, the site from the tag that ``site`` names. Patients become pseudonyms
    under a key of yours, or of the file ``key``. ``labels`` and ``pattern`` as for image-folder: a sheet by file or by
    patient (their numbers as in the tags) says the classes; without, a file's folder does.

    Grey values go through ``window`` = [centre, width], else the file's own, else their range. ``frames``: all of a
    file, or the one in the middle. More than ``max_bad_files`` that cannot be read or do not fit, and nothing is
    loaded.
    """

    path: str
    size: int = 64
    grey: bool = True
    labels: str = ""
    pattern: str = ""
    site: str = "InstitutionName"
    window: tuple[float, float] | None = None
    frames: Literal["all", "middle"] = "all"
    key: str = ""
    limit: int | None = None
    max_bad_files: int = 0
    embedded: ClassVar[bool] = False
    needs: ClassVar[str] = "path: a folder of DICOM files"

    def __post_init__(self) -> None:
        check_limits(self.size, 4096, self.max_bad_files, self.limit, self.window)

    def available(self) -> bool:
        """Whether the folder is there."""
        return Path(self.path).is_dir()

    def load(self) -> Dataset:
        """Read the files."""
        needs_package("pydicom", "dicom-folder")
        with reading(self.path):
            root = folder_of(Path(self.path))
            files = [p for p in below(root, SUFFIXES) if p.suffix or (p.name != "DICOMDIR" and is_dicom(p))]
        if not files:
            raise DataError(
                f"the folder has no DICOM files{instead(root)}", printable(root), "give the folder of .dcm files"
            )
        scans, failed = self._read(root, files)
        lines = [f"{len(failed)} of {len(files)} files cannot be read: {_listed(failed)}"] if failed else []
        records = {file: scan.record for file, scan in scans.items()}
        records, more, odd = describe_files(root, records, self.labels, self.pattern, failed)
        wrong = refused([*lines, *more], len(failed) + odd, self.max_bad_files, root, bool(records))
        pseudonym = pseudonyms(self.key)
        records, classes, strange = in_classes(records, printable(root))
        pictures = [(frame, record) for file, record in records.items() for frame in scans[file].frames]
        kept = [replace(record, patient=pseudonym(record.patient)) for _, record in pictures]
        x = torch.from_numpy(channels_first(np.stack([frame for frame, _ in pictures])))
        y = torch.tensor([classes.index(record.label) for record in kept])
        remarks = [*lines, *more, *several([scans[file] for file in records], self.size)]
        names = [text(c) for c in classes]
        return unless(
            [*wrong, *strange],
            lambda: limited(gather("dicom-folder", x, y, kept, names, printable(root), remarks=remarks), self.limit),
        )

    def _read(self, root: Path, files: list[Path]) -> tuple[dict[str, Scan], dict[str, str]]:
        """Scans by file, and why each of the others cannot be read."""
        scans: dict[str, Scan] = {}
        failed: dict[str, str] = {}
        for path in files:
            file = path.relative_to(root).as_posix()
            with warnings.catch_warnings():
                # Files in the field break the standard in harmless ways, which pydicom warns of; PIL's suspicion of a
                # bomb is an error.
                warnings.simplefilter("ignore")
                warnings.filterwarnings("error", category=_bomb())
                try:
                    scans[file] = read_scan(path, self.size, self.grey, self.window, self.frames, self.site)
                except Exception as error:  # hostile bytes make parsers raise anything
                    failed[file] = str(error).partition("\n")[0] or type(error).__name__
        return scans, failed


def _bomb() -> type[Warning]:
    from PIL import Image

    return Image.DecompressionBombWarning


def _listed(failed: dict[str, str]) -> str:
    some = "; ".join(f"{printable(file)} ({printable(why, 80)})" for file, why in list(failed.items())[:5])
    return some + ("; ..." if len(failed) > 5 else "")
