"""Records that whoever attacks a recording holds beside it: public ones, and some that are known to be in or out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leakline.data.base import Data
from leakline.data.guard import npz_names, read_npz
from leakline.errors import DataError, LeaklineError
from leakline.recordings.inputs import Inputs


@dataclass(frozen=True)
class Known:
    """Labelled records, their pictures in [0, 1].

    ``members`` were trained on and ``others`` were not: to see whether membership shows. ``public`` look like the
    clients': to learn from. ``labels``: clients' own, by name, to score against.
    """

    members: Data | None = None
    others: Data | None = None
    public: Data | None = None
    labels: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def prints(self) -> list[str]:
        """By which an attack on the same records is known again."""
        labels = [f"{name}:{labels.tolist()}" for name, labels in sorted(self.labels.items())]
        return [d.fingerprint() for d in (self.members, self.others, self.public) if d is not None] + labels

    @property
    def classes(self) -> tuple[str, ...]:
        """Labels as names, as many as the records have."""
        labels = [d.y for d in (self.members, self.others, self.public) if d is not None]
        return tuple(str(i) for i in range(1 + max(int(y.max()) for y in labels))) if labels else ()


NOTHING = Known()


def known_from(
    members: Path | None, others: Path | None, public: Path | None, labels: Path | None, inputs: Inputs
) -> Known:
    """What some files hold; public images without labels are good for their range alone."""
    if (members is None) != (others is None):
        raise LeaklineError(
            "records in and out are held against each other", "leakline attack", "--members and --others"
        )
    useful = public is not None and "y" in npz_names(public)
    inside, outside, shown = (
        None if path is None else labelled(path, inputs) for path in (members, others, public if useful else None)
    )
    return Known(inside, outside, shown, {} if labels is None else labels_of(labels))


def labelled(path: Path, inputs: Inputs) -> Data:
    """Records from an .npz file with ``x`` [N, C, H, W], as the network takes them, and ``y`` [N]."""
    names = npz_names(path)
    if not {"x", "y"} <= set(names):
        raise DataError("there is no x and y in it", path.name, "x is N, C, H, W as the network takes it, y labels")
    arrays = read_npz(path, ["x", "y"])
    x, y = arrays["x"], arrays["y"]
    if x.ndim != 4 or x.dtype.kind not in "fu" or y.shape != (len(x),) or y.dtype.kind not in "iu" or not len(x):
        raise DataError(
            f"x is {x.dtype} of shape {x.shape}, y {y.dtype} of shape {y.shape}", path.name, "x is N, C, H, W, y is N"
        )
    if int(y.min()) < 0 or not np.isfinite(x).all():
        raise DataError("labels count from 0, and values are finite", path.name, "mend the file")
    return Data(inputs.pictures(torch.tensor(x, dtype=torch.float32)), torch.tensor(y.astype(np.int64)))


def labels_of(path: Path) -> dict[str, Tensor]:
    """Labels by client from an .npz file."""
    found = {}
    for name, values in read_npz(path, npz_names(path)).items():
        if values.ndim != 1 or values.dtype.kind not in "iu" or (values < 0).any():
            raise DataError(f"{name} is {values.dtype} of shape {values.shape}", path.name, "labels from 0 on, N")
        found[name] = torch.tensor(values.astype(np.int64))
    return found
