"""Patients as an attack on records left them in a store: how often each was told apart, and by what it is ranked.

The store's list has a pseudonym and the data set's own number for each patient. Neither is read here, so no report can
show them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leakline.errors import StoreError
from leakline.study.media import read_media
from leakline.study.store import folder_of

PLACE = ("round-0000", "everybody", "patients.json")
MOST_BYTES = 50_000_000


@dataclass(frozen=True)
class Patient:
    """One patient: site, class and traits, records, share of federations in which it was told right, its interval."""

    client: str
    label: str
    records: int
    right: float
    low: float
    high: float
    exposed: bool
    traits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Patients:
    """The patients of one attack on one run; ``known``: whether records say whose they are."""

    by: str
    worlds: int
    known: bool
    each: tuple[Patient, ...] = field(repr=False)


def read_patients(run: Path, hashes: Mapping[str, str]) -> Iterator[Patients | str]:
    """The lists of the attacks named, or what is wrong with one."""
    for by, key in hashes.items():
        path = (run / "media" / folder_of(key)).joinpath(*PLACE)
        if key and path.is_file() and not path.is_symlink():
            try:
                yield _patients(by, json.loads(read_media(path, run, MOST_BYTES).decode("utf-8")))
            except (StoreError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
                yield f"the list of patients of {by} cannot be read, or is not what the attack wrote"


def _patients(by: str, found: Mapping[str, Any]) -> Patients:
    return Patients(by, int(found["worlds"]), bool(found["known"]), tuple(_patient(row) for row in found["patients"]))


def _patient(row: Mapping[str, Any]) -> Patient:
    traits = {str(name): _trait(name, value) for name, value in dict(row["traits"]).items()}
    right, low, high = (min(max(float(row[name]), 0.0), 1.0) for name in ("right", "low", "high"))
    return Patient(
        str(row["client"]), str(row["class"]), int(row["records"]), right, low, high, bool(row["exposed"]), traits
    )


def _trait(name: str, value: Any) -> str:
    """A trait as people are ranked by it: ages by decades."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    if str(name) == "age" and 0 <= number < 200:
        return f"{int(number // 10) * 10} to {int(number // 10) * 10 + 9}"
    return f"{number:g}"
