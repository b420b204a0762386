"""MotionSense, MobiAct and MobiFall, from their official folders of CSV and text files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from leakline.data.csv_signals import need, numbers, read_csv
from leakline.data.guard import folder_of, reading
from leakline.data.motion import ACTIVITIES, CHANNELS
from leakline.data.prepare.write import strings, write_npz
from leakline.errors import DataError
from leakline.names import natural, printable

if TYPE_CHECKING:
    import pandas as pd

# MobiAct's codes for MotionSense's six activities; the paper keeps only these.
MOBIACT = {"STN": "dws", "STU": "ups", "WAL": "wlk", "JOG": "jog", "SIT": "sit", "STD": "std"}
MOBIACT_FILES = ("acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z", "azimuth", "pitch", "roll")
MOBIACT_CHANNELS = tuple(c.replace("_", ".") if "_" in c else f"orientation.{c}" for c in MOBIACT_FILES)


# MobiFall has no recordings of sitting, only of sitting down.
MOBIFALL = {code: activity for code, activity in MOBIACT.items() if activity != "sit"}
MOBIFALL_CHANNELS = MOBIACT_CHANNELS[:6]
MOBIFALL_RATE = 100.0
"""Samples a second after its two sensors, each with times of its own, were brought to one clock."""


@dataclass(frozen=True)
class Trial:
    """One recording: whose, of what, its number, and its samples (time x channels)."""

    subject: int
    activity: str
    number: int
    signal: np.ndarray


def motionsense(source: Path, destination: Path) -> Path:
    """A_DeviceMotion_data/<activity>_<trial>/sub_<n>.csv and data_subjects_info.csv.

    The three attitude channels are dropped: they depend on where the telephone pointed when it was switched
    on.
    """
    folder_of(source)
    nested = source / "A_DeviceMotion_data"
    root = nested / "A_DeviceMotion_data" if (nested / "A_DeviceMotion_data").is_dir() else nested
    table = read_csv(source / "data_subjects_info.csv")
    trials = []
    with reading(root, "give the folder that holds A_DeviceMotion_data and data_subjects_info.csv"):
        folders = sorted((p for p in root.iterdir() if p.is_dir()), key=lambda p: natural(p.name))
    for folder in folders:
        match = re.fullmatch(r"([a-z]+)_(\d{1,3})", folder.name)
        if not match or match[1] not in ACTIVITIES:
            continue
        for path in sorted(folder.glob("sub_*.csv"), key=lambda p: natural(p.name)):
            who = re.fullmatch(r"sub_(\d{1,4})", path.stem)
            if who:
                trials.append(Trial(int(who[1]), match[1], int(match[2]), numbers(read_csv(path), CHANNELS, path)))
    people = _people(table, "code", source / "data_subjects_info.csv")
    return write_npz(destination, "motionsense.npz", _arrays(trials, CHANNELS, people, source))


def mobiact(source: Path, destination: Path) -> Path:
    """Annotated Data/<ACT>/<ACT>_<subject>_<trial>_annotated.csv and subjects.csv.

    The subjects' table is part of the official Readme: copy it into subjects.csv with the columns subject,
    gender (M or F), height (cm), weight (kg), age. Only the six activities that MotionSense has too are kept,
    and of each file only the longest run of rows labelled with its activity.
    """
    folder_of(source)
    root = source / "Annotated Data" if (source / "Annotated Data").is_dir() else source
    trials = []
    for code, activity in MOBIACT.items():
        for path in sorted((root / code).glob(f"{code}_*_annotated.csv"), key=lambda p: natural(p.name)):
            match = re.fullmatch(rf"{code}_(\d{{1,4}})_(\d{{1,3}})_annotated", path.stem)
            if not match:
                continue
            frame = read_csv(path)
            need(frame, ["label", *MOBIACT_FILES], path)
            labelled = (frame["label"].astype(str).str.strip() == code).to_numpy(dtype=bool)
            kept = frame.iloc[_longest_run(labelled)]
            if len(kept):
                trials.append(Trial(int(match[1]), activity, int(match[2]), numbers(kept, MOBIACT_FILES, path)))
    people = _people(read_csv(source / "subjects.csv"), "subject", source / "subjects.csv")
    return write_npz(destination, "mobiact.npz", _arrays(trials, MOBIACT_CHANNELS, people, source))


def mobifall(source: Path, destination: Path) -> Path:
    """sub<n>/ADL/<ACT>/<ACT>_acc_<n>_<trial>.txt and <ACT>_gyro_..., and subjects.csv (as for mobiact).

    Version 2's layout: lines of description, then "time in ns, x, y, z". Both sensors are read at 100 Hz, by straight
    lines between their own samples, over the time that both cover. Orientation is dropped, as MotionSense's attitude
    is: it depends on where the telephone pointed. Five of the six activities: it has none of sitting.
    """
    folder_of(source)
    trials = []
    for code, activity in MOBIFALL.items():
        for path in sorted(source.glob(f"sub*/ADL/{code}/{code}_acc_*.txt"), key=lambda p: natural(str(p))):
            match = re.fullmatch(rf"{code}_acc_(\d{{1,4}})_(\d{{1,3}})", path.stem)
            beside = path.with_name(path.name.replace("_acc_", "_gyro_"))
            if match and not beside.is_file():
                raise DataError(f"there is no {beside.name}", printable(path.parent), "get a good copy of the data set")
            if match:
                signal = aligned(_timed(path), _timed(beside), MOBIFALL_RATE)
                trials.append(Trial(int(match[1]), activity, int(match[2]), signal))
    people = _people(read_csv(source / "subjects.csv"), "subject", source / "subjects.csv")
    there = tuple(name for name in ACTIVITIES if name in MOBIFALL.values())
    return write_npz(destination, "mobifall.npz", _arrays(trials, MOBIFALL_CHANNELS, people, source, there))


def aligned(one: np.ndarray, other: np.ndarray, rate: float) -> np.ndarray:
    """Two sensors' samples (time in s, values ...) on one clock: time x values of both, over the time both cover."""
    start, end = max(one[0, 0], other[0, 0]), min(one[-1, 0], other[-1, 0])
    clock = start + np.arange(int(np.floor((end - start) * rate + 1e-6)) + 1) / rate
    columns = [np.interp(clock, part[:, 0], part[:, i]) for part in (one, other) for i in range(1, part.shape[1])]
    return np.stack(columns, axis=1).astype(np.float32)


def _timed(path: Path) -> np.ndarray:
    """The samples of a text file of MobiFall's: time in s and three values, in the order of time."""
    with reading(path, "after its description every line must hold a time in ns and three numbers, with commas"):
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line[:1].isdigit()]
        values = np.array([[float(cell) for cell in line.split(",")] for line in lines], dtype=np.float64)
    if values.ndim != 2 or values.shape[1] != 4 or len(values) < 2 or not np.isfinite(values).all():
        raise DataError("no samples of a time and three numbers", printable(path), "get a good copy of the data set")
    values[:, 0] *= 1e-9
    kept = values[np.unique(values[:, 0], return_index=True)[1]]  # sensors repeat a time now and then
    return np.asarray(kept)


def _longest_run(wanted: np.ndarray) -> slice:
    """The longest unbroken run of true values: gluing pieces together would make steps that nobody took."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], wanted, [False]]).astype(np.int8)))
    starts, ends = edges[::2], edges[1::2]
    best = int(np.argmax(ends - starts)) if len(starts) else -1
    return slice(int(starts[best]), int(ends[best])) if best >= 0 else slice(0, 0)


def _people(table: pd.DataFrame, key: str, path: Path) -> dict[str, np.ndarray]:
    """The subject arrays: code, weight, height, age, gender (1 man, 0 woman, 255 unknown)."""
    need(table, [key, "weight", "height", "age", "gender"], path)
    with reading(path, "subjects must be whole numbers, weight, height and age numbers"):
        codes = table[key].astype(str).str.extract(r"(\d+)", expand=False).astype(int).to_numpy()
        body = {n: table[n].astype(float).to_numpy(dtype=np.float32) for n in ("weight", "height", "age")}
    if len(set(codes.tolist())) != len(codes) or int(codes.max()) > 60_000:
        raise DataError("a subject is listed twice, or has no proper number", printable(path), "check the table")
    words = {"1": 1, "m": 1, "male": 1, "man": 1, "0": 0, "f": 0, "female": 0, "woman": 0}
    gender = [words.get(str(g).strip().lower().removesuffix(".0"), 255) for g in table["gender"]]
    return {
        "subj_code": codes.astype(np.uint16),
        "subj_gender": np.array(gender, dtype=np.uint8),
        **{f"subj_{name}": values for name, values in body.items()},
    }


def _arrays(
    trials: list[Trial],
    channels: Iterable[str],
    people: dict[str, np.ndarray],
    source: Path,
    activities: tuple[str, ...] = ACTIVITIES,
) -> dict[str, np.ndarray]:
    if not trials:
        raise DataError("no recordings found", printable(source), "give the data set's official folder")
    strangers = {t.subject for t in trials} - set(people["subj_code"].tolist())
    if strangers:
        raise DataError(
            f"recordings of subjects that the table does not list: {sorted(strangers)[:5]}",
            printable(source),
            "complete the table of subjects",
        )
    signal = np.concatenate([t.signal for t in trials])
    return {
        # Half precision keeps three digits, more than these sensors do, but overflows above 65504.
        "signal": signal.astype(np.float16 if np.abs(signal).max() < 60_000 else np.float32),
        "channels": strings(list(channels)),
        "offsets": np.concatenate([[0], np.cumsum([len(t.signal) for t in trials])]).astype(np.int64),
        "activity": np.array([activities.index(t.activity) for t in trials], dtype=np.uint8),
        "activity_names": strings(activities),
        "trial": np.array([t.number for t in trials], dtype=np.uint16),
        "subject": np.array([t.subject for t in trials], dtype=np.uint16),
        **people,
    }
