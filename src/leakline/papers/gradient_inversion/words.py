"""What the tables of paper 001 say in the same way everywhere: columns of a leak, and notes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leakline.papers.gradient_inversion.means import Measured, measured, p_values
from leakline.papers.gradient_inversion.store import Turn

NOT_SAFE = "RDLV at or below 0 is no proof of safety: another attack may do better"
IMAGES = (
    "means over images [95 % t-interval, a client's images counting together]; "
    "n: images; null: the same maximum over decoys that never saw the image; p: against it, which alone shows no leak: "
    "the prior, whose RDLV is 0, may beat decoys too"
)
ABSENT = "no run of this store holds what this shows: run the study's scenarios for it"
LEAK = (
    "SSIM", "SSIM 95 %", "SSIM of the prior", "RDLV", "RDLV 95 %", "null of RDLV", "p of single updates", "n",
)  # fmt: skip
"""What `leak` gives."""


def leak(found: Sequence[Turn]) -> tuple[Any, ...]:
    """What attacked turns give away, with intervals and baselines."""
    likeness, relative = measured(found, "ssim"), measured(found, "rdlv")
    images = relative or likeness
    return (
        value(likeness), interval(likeness), chance(likeness), value(relative), interval(relative), chance(relative),
        p_values(found, "rdlv"), images and images.images,
    )  # fmt: skip


def value(found: Measured | None) -> float | None:
    """The mean."""
    return None if found is None else found.value


def chance(found: Measured | None) -> float | None:
    """The baseline."""
    return None if found is None else found.chance


def interval(found: Measured | None) -> str:
    """The interval in words; nothing where there is no mean."""
    return "" if found is None else found.interval


def noted(rows: Sequence[Any], note: str) -> str:
    """A table's note, or why it has no rows."""
    return note if rows else ABSENT
