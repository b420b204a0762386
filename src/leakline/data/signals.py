"""Signals in windows: recordings cut into pieces of equal length, none across two recordings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from leakline.data.base import Data, Dataset, Trait
from leakline.data.split import subset
from leakline.errors import DataError

Normalise = Literal["channel", "subject", "window", "none"]


@dataclass(frozen=True)
class Recordings:
    """Signals of people doing things: recording i is ``signal[offsets[i]:offsets[i+1]]``, time x channels."""

    signal: np.ndarray
    offsets: np.ndarray
    activity: np.ndarray
    subject: tuple[str, ...]
    activities: tuple[str, ...]
    traits: Mapping[str, Mapping[str, Trait]]


def starts(offsets: np.ndarray, window: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """First sample of every window, and the recording it lies in."""
    first, recording = [], []
    for i, (a, b) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        at = np.arange(a, b - window + 1, stride)
        first.append(at)
        recording.append(np.full(len(at), i))
    return np.concatenate(first), np.concatenate(recording)


def normalise(x: np.ndarray, how: Normalise, who: np.ndarray | None = None) -> np.ndarray:
    """Windows N, C, L brought to comparable scales; ``who`` each is of, as numbers.

    ``channel``: each channel has mean 0 and standard deviation 1 over the whole data set, all subjects
    together: these 2 C numbers count as public. ``subject``: the same over each subject's own windows, as every
    telephone can do by itself; nothing of one reaches another. ``window``: the same within each window, which removes
    posture (gravity) and strength. ``none``: as measured.
    """
    if how == "none":
        return x
    if how == "subject":
        if who is None:
            raise ValueError("whose windows these are must be known to standardise each subject's")
        out = np.empty_like(x)
        for one in np.unique(who):
            out[who == one] = normalise(x[who == one], "channel")
        return out
    axes = (0, 2) if how == "channel" else (2,)
    mean, std = x.mean(axes, keepdims=True), x.std(axes, keepdims=True)
    return np.asarray((x - mean) / np.maximum(std, 1e-6))


def windowed(
    name: str,
    recordings: Recordings,
    window: int,
    stride: int,
    how: Normalise,
    limit: int | None,
    group: Literal["recording", "subject"] = "recording",
) -> Dataset:
    """The data set of windows: classes are activities, clients can be subjects, groups are recordings or subjects."""
    if window < 2 or stride < 1:
        raise ValueError(f"window must be at least 2 and stride at least 1: {window}, {stride}")
    first, recording = starts(recordings.offsets, window, stride)
    if not len(first):
        raise DataError(f"no recording is as long as a window of {window}", name, "use a shorter window")
    y = recordings.activity[recording]
    whose = np.unique(recordings.subject, return_inverse=True)[1].astype(np.int64)[recording]
    together = recording if group == "recording" else whose
    rows = subset(y, together, limit)
    first, recording, y, together, whose = first[rows], recording[rows], y[rows], together[rows], whose[rows]
    pieces = np.lib.stride_tricks.sliding_window_view(recordings.signal, window, axis=0)
    x = normalise(np.asarray(pieces[first], dtype=np.float32), how, whose)
    if not np.isfinite(x).all():
        raise DataError("the signals have values that are not numbers", name, "remove those rows")
    who = tuple(recordings.subject[i] for i in recording)
    data = Data(
        torch.from_numpy(np.ascontiguousarray(x)),
        torch.from_numpy(y.astype(np.int64)),
        torch.from_numpy(together),
    )
    return Dataset(
        name,
        data,
        None,
        recordings.activities,
        columns={"subject": who},
        traits={"subject": recordings.traits},
        group=group,
    )


def pick_channels(wanted: Sequence[str], known: Sequence[str], name: str) -> list[int]:
    """Positions of the wanted channels, in the file's order; a name may be a prefix (userAcceleration)."""
    unknown = [w for w in wanted if not any(k == w or k.startswith(f"{w}.") for k in known)]
    if unknown:
        raise DataError(f"no channel {', '.join(unknown)}", name, f"it has: {', '.join(known)}")
    chosen = [i for i, k in enumerate(known) if any(k == w or k.startswith(f"{w}.") for w in wanted)]
    return chosen if wanted else list(range(len(known)))


def body_traits(gender: str, height: float, weight: float, age: float) -> dict[str, Trait]:
    """The traits that attribute inference asks for; height in cm, weight in kg. Unknown ones are left out."""
    traits: dict[str, Trait] = {"gender": gender} if gender else {}
    for key, value in (("age", age), ("height", height), ("weight", weight)):
        if np.isfinite(value):
            traits[key] = round(float(value), 2)
    if np.isfinite(height) and np.isfinite(weight) and height > 0:
        bmi = float(weight) / (float(height) / 100) ** 2
        traits["bmi"] = round(bmi, 2)
        traits["bmi_over_25"] = bool(bmi > 25)
    return traits
