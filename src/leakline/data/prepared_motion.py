"""Named motion data sets: MotionSense, MobiAct and MobiFall, people doing things with a telephone in the pocket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np

from leakline.data.base import Dataset
from leakline.data.guard import labels_within, lengths_agree, read_npz
from leakline.data.prepared import Prepared, names_of
from leakline.data.signals import Normalise, Recordings, body_traits, pick_channels, windowed
from leakline.errors import DataError
from leakline.names import printable

SUBJECT_ARRAYS = ("subj_code", "subj_weight", "subj_height", "subj_age", "subj_gender")


@dataclass(frozen=True)
class PreparedMotion(Prepared):
    """Recordings from LEAKLINE_DATA, cut into windows of ``window`` samples every ``stride`` samples."""

    window: int = 125
    stride: int = 125
    channels: tuple[str, ...] = ()
    normalise: Normalise = "channel"
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.window < 2 or self.stride < 1:
            raise ValueError(f"window must be at least 2 and stride at least 1: {self.window}, {self.stride}")
        if self.normalise not in get_args(Normalise):
            raise ValueError(f"normalise must be one of {', '.join(get_args(Normalise))}: {self.normalise!r}")

    def load(self) -> Dataset:
        """Read the recordings and cut them."""
        path = self.path()
        trials = ("activity", "trial", "subject")
        arrays = read_npz(path, ("signal", "channels", "offsets", "activity_names", *trials, *SUBJECT_ARRAYS))
        n, people = lengths_agree(path, arrays, *trials), lengths_agree(path, arrays, *SUBJECT_ARRAYS)
        signal, offsets = arrays["signal"], arrays["offsets"].astype(np.int64)
        known, activities = names_of(path, arrays, "channels"), names_of(path, arrays, "activity_names")
        if signal.ndim != 2 or signal.shape[1] != len(known) or signal.dtype.kind != "f":
            raise DataError(f"signal must be time x {len(known)} channels: {signal.shape}", printable(path))
        if offsets.shape != (n + 1,) or offsets[0] != 0 or offsets[-1] != len(signal) or (np.diff(offsets) < 0).any():
            raise DataError("offsets do not cut the recordings apart", printable(path), "get a good copy of the file")
        codes = arrays["subj_code"].tolist()
        strangers = set(arrays["subject"].tolist()) - set(codes)
        if strangers:
            raise DataError(f"recordings of unknown subjects {sorted(strangers)[:5]}", printable(path))
        traits = {
            f"sub-{codes[i]}": body_traits(
                {0: "woman", 1: "man"}.get(int(arrays["subj_gender"][i]), ""),
                float(arrays["subj_height"][i]),
                float(arrays["subj_weight"][i]),
                float(arrays["subj_age"][i]),
            )
            for i in range(people)
        }
        recordings = Recordings(
            signal=signal[:, pick_channels(self.channels, known, self.name)].astype(np.float32),
            offsets=offsets,
            activity=labels_within(path, arrays["activity"], len(activities), "activity"),
            subject=tuple(f"sub-{s}" for s in arrays["subject"].tolist()),
            activities=activities,
            traits=traits,
        )
        return windowed(self.name, recordings, self.window, self.stride, self.normalise, self.limit)


@dataclass(frozen=True)
class MotionSense(PreparedMotion):
    """MotionSense: 24 people, 6 activities, 9 channels at 50 Hz, with gender, age, body (paper 003).

    The paper does not state its windows; ours are 125 samples (2.5 s) without overlap. ``normalise =
    "channel"``: each channel to mean 0 and standard deviation 1 over all people, numbers that count as
    public. ``channels`` picks some (["userAcceleration"]: the start of a name). The column "subject" makes
    clients; traits are gender (14 men, 10 women), age, height, weight, bmi, bmi_over_25 (8 of 24). Groups are
    recordings, not people: a client's
    test part comes from recordings that its training part has not seen. People have two or three recordings of an
    activity, so a ``client_test`` of 0.2 takes 0.20 to 0.35 of a person's windows (median 0.28).
    """

    name: ClassVar[str] = "motionsense"
    file: ClassVar[str] = "motionsense.npz"


@dataclass(frozen=True)
class MobiAct(PreparedMotion):
    """MobiAct: motion of about 60 people in the same 6 activities, with their traits (paper 003).

    Made by ``data prepare`` from the official folder; windows and traits as for motionsense, 2.5 s at its own
    rate.
    """

    window: int = 500
    stride: int = 500
    name: ClassVar[str] = "mobiact"
    file: ClassVar[str] = "mobiact.npz"


@dataclass(frozen=True)
class MobiFall(PreparedMotion):
    """MobiFall, version 2: the daily activities of MobiAct's forerunner, five of its six.

    Made by ``data prepare`` from the official folder: accelerometer and gyroscope at 100 Hz, windows of 2.5 s. Falls
    are left out, and so is everybody who only fell.
    """

    window: int = 250
    stride: int = 250
    name: ClassVar[str] = "mobifall"
    file: ClassVar[str] = "mobifall.npz"
