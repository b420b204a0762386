"""Time series in CSV files: one row per sample, a label column, perhaps a subject column."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from leakline.data.base import Dataset
from leakline.data.guard import CSV_BYTES, reading
from leakline.data.signals import Normalise, Recordings, windowed
from leakline.errors import DataError
from leakline.names import natural, printable

if TYPE_CHECKING:
    import pandas as pd


CSV_LINE, CSV_COLUMNS = 2**20, 10_000
MOST_CLASSES = 10_000


@dataclass(frozen=True)
class CsvSignals:
    """Your own time series: a CSV file, or a folder of them, with one row per sample.

    ``channels`` are the columns to use (empty: all other columns that hold numbers). A recording is an
    unbroken run of rows of one file with the same label and subject; windows never reach beyond it, splits
    never cut it, nor (``group = "subject"``) a subject. ``subject = ""``: there is no such column, each file is one.
    """

    path: str
    label: str = "label"
    subject: str = "subject"
    channels: tuple[str, ...] = ()
    window: int = 128
    stride: int = 128
    normalise: Normalise = "channel"
    limit: int | None = None
    group: Literal["recording", "subject"] = "recording"
    embedded: ClassVar[bool] = False
    needs: ClassVar[str] = "path: a CSV file or a folder of them"

    def __post_init__(self) -> None:
        if self.window < 2 or self.stride < 1:
            raise ValueError(f"window must be at least 2 and stride at least 1: {self.window}, {self.stride}")

    def available(self) -> bool:
        """Whether the file or folder is there."""
        return Path(self.path).exists()

    def load(self) -> Dataset:
        """Read the files and cut them into windows."""
        root = Path(self.path)
        with reading(root):
            files = sorted(root.glob("*.csv"), key=lambda p: natural(p.name)) if root.is_dir() else [root]
        if not files:
            raise DataError("the folder has no .csv files", printable(root), "give the folder that holds them")
        tables = [self._table(path) for path in files]
        channels = self.channels or self._numeric(tables[0], files[0])
        signals, labels, subjects, offsets = [], [], [], [0]
        for path, frame in zip(files, tables, strict=True):
            values = numbers(frame, channels, path)
            label = frame[self.label].astype(str).to_numpy()
            who = frame[self.subject].astype(str).to_numpy() if self.subject else np.full(len(frame), path.stem)
            change = np.flatnonzero((label[1:] != label[:-1]) | (who[1:] != who[:-1])) + 1
            for first, last in zip([0, *change], [*change, len(frame)], strict=True):
                signals.append(values[first:last])
                labels.append(str(label[first]))
                subjects.append(str(who[first]))
                offsets.append(offsets[-1] + int(last - first))
        activities = tuple(sorted(set(labels), key=natural))
        if len(activities) > MOST_CLASSES:
            raise DataError(
                f"{len(activities):,} different labels, more than {MOST_CLASSES:,}", printable(root),
                f"is {self.label!r} the column of classes?",
            )  # fmt: skip
        places = {activity: place for place, activity in enumerate(activities)}
        recordings = Recordings(
            signal=np.concatenate(signals),
            offsets=np.array(offsets),
            activity=np.array([places[a] for a in labels]),
            subject=tuple(subjects),
            activities=activities,
            traits={},
        )
        return windowed("csv-signals", recordings, self.window, self.stride, self.normalise, self.limit, self.group)

    def _table(self, path: Path) -> pd.DataFrame:
        frame = read_csv(path)
        need(frame, [self.label, *([self.subject] if self.subject else []), *self.channels], path)
        return frame

    def _numeric(self, frame: pd.DataFrame, path: Path) -> tuple[str, ...]:
        columns = [c for c in frame.columns if c not in (self.label, self.subject) and frame[c].dtype.kind in "fiu"]
        if not columns:
            raise DataError("no column holds numbers", printable(path), "name the channels")
        return tuple(str(c) for c in columns)


def read_csv(path: Path, text: bool = False) -> pd.DataFrame:
    """A CSV file as a table, with column names freed of blanks; ``text``: every cell as it is written."""
    import pandas as pd

    with reading(path, "check that it is a CSV file with a line of column names"):
        if not path.is_file():
            raise DataError("this is no regular file", printable(path), "give a CSV file")
        with open(path, "rb") as file:
            if file.readline(CSV_LINE).count(b",") >= CSV_COLUMNS:
                raise DataError(
                    f"the CSV file has more than {CSV_COLUMNS:,} columns", printable(path), "leave some out"
                )
        if path.stat().st_size > CSV_BYTES:
            raise DataError(f"the CSV file is larger than {CSV_BYTES:,} bytes", printable(path), "split it")
        # low_memory guesses types piece by piece, and warns where the guesses differ.
        frame: pd.DataFrame = (
            pd.read_csv(path, dtype=str, keep_default_na=False) if text else pd.read_csv(path, low_memory=False)
        )
        frame.columns = frame.columns.astype(str).str.strip()
    if not len(frame):
        raise DataError("the CSV file has no rows", printable(path), "check the file")
    return frame


def need(frame: pd.DataFrame, columns: list[str], path: Path) -> None:
    """Refuse a table that lacks a column."""
    missing = [c for c in columns if c not in frame.columns]
    if missing:
        raise DataError(
            f"the CSV file has no column {', '.join(map(repr, missing))}",
            printable(path),
            f"its columns: {printable(', '.join(map(str, frame.columns)))}",
        )


def numbers(frame: pd.DataFrame, columns: tuple[str, ...] | list[str], path: Path) -> np.ndarray:
    """Columns of a table as float32, all finite."""
    need(frame, list(columns), path)
    with reading(path, "every cell of a channel must hold a number"):
        values = frame[list(columns)].to_numpy(dtype=np.float32)
    if not np.isfinite(values).all():
        row = int(np.argwhere(~np.isfinite(values))[0][0]) + 2
        raise DataError(f"line {row} has a cell that is empty or not a number", printable(path), "remove the row")
    return values
