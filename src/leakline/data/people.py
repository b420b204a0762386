"""Whose examples these are: patient, site, sex, age and split of every record, and a data set that keeps to them.

Records of one patient are almost copies of each other, so they belong on one side of every split and to one group.
Every loader of the user's own files ends here (`gather`), wherever it had the facts from: a sheet, folder names,
arrays or tags.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from leakline.data.base import Data, Dataset, Kind, Trait
from leakline.data.refused import unless
from leakline.errors import DataError
from leakline.names import printable

FIELDS = ("label", "site", "patient", "sex", "age", "split")
"""What a sheet, a pattern or an array may tell of a record."""
PERSONAL = ("patient", "site", "sex", "age", "split")
"""The keys of a loader that name the column or array which tells it."""
COLUMNS = ("site", "patient", "sex", "age")
"""What one may partition by."""
UNKNOWN = "unknown"
TRAINED, HELD = ("", "train", "training", "val", "valid", "validation"), ("test", "testing")
"""Words for the two parts of a data set; an official validation part joins the training part."""
NOBODY = "no record says whose it is: one patient's images may be on both sides of a split; name the patients"


@dataclass(frozen=True)
class Record:
    """What is known of one example besides its values; "" where nobody says."""

    label: str = ""
    site: str = ""
    patient: str = ""
    sex: str = ""
    age: str = ""
    split: str = ""

    @property
    def tested(self) -> bool:
        """Whether it is in the official test part."""
        return self.split.lower() in HELD


def records_of(told: Mapping[str, Sequence[object]], count: int) -> list[Record]:
    """One record for each of ``count`` examples from columns by field; a column that is not there says nothing."""
    texts = {field: [str(value) for value in values] for field, values in told.items()}
    return [Record(**{field: values[i] for field, values in texts.items()}) for i in range(count)]


def gather(
    name: str,
    x: Tensor,
    y: Tensor,
    records: Sequence[Record],
    classes: Sequence[str],
    where: str,
    kind: Kind = "classification",
    remarks: Iterable[str] = (),
) -> Dataset:
    """The data set of these examples: its parts by ``split``, its groups by patient, its columns by what is known.

    A patient in both parts is refused (the rest of `Refused` has them in the training part). A record without a
    patient is a group of its own, and a site that is not known is "unknown"; both are remarked on with their counts.
    """
    if wrong := split_mistakes(records, where):
        mended = [r if r.split.lower() in (*TRAINED, *HELD) else replace(r, split="") for r in records]
        both = _on_both_sides(mended)
        mended = [replace(r, split="") if r.patient in both else r for r in mended]
        return unless(wrong, lambda: gather(name, x, y, mended, classes, where, kind, remarks))
    codes = patient_codes(records)
    held = np.array([r.tested for r in records], dtype=bool)
    train, test = np.flatnonzero(~held), np.flatnonzero(held)
    whole = Data(x, y, None if codes is None else torch.from_numpy(codes))
    learnt = [r for r in records if not r.tested]
    columns = {
        field: tuple(getattr(r, field) or UNKNOWN for r in learnt)
        for field in COLUMNS
        if any(getattr(r, field) for r in records)
    }
    return Dataset(
        name, whole.take(train) if len(test) else whole, whole.take(test) if len(test) else None, tuple(classes), kind,
        columns, {"patient": traits(learnt)}, (*remarks, *missing(records)), "patient",
    )  # fmt: skip


def split_mistakes(records: Sequence[Record], where: str) -> list[DataError]:
    """Words that name no part, and patients who are in both parts."""
    found = []
    strange = Counter(r.split for r in records if r.split.lower() not in (*TRAINED, *HELD))
    if strange:
        named = printable(", ".join(list(strange)[:3]))
        found.append(
            DataError(f"{strange.total()} records have a split that is none: {named}", where,
                      "write train, validation or test")
        )  # fmt: skip
    known = [r for r in records if r.split not in strange]
    if both := _on_both_sides(known):
        count, patients = sum(r.patient in both for r in known), len({r.patient for r in known if r.patient})
        found.append(
            DataError(
                f"{len(both)} of {patients} patients are in two splits, with {count} records: "
                f"{printable(', '.join(sorted(both)[:3]))}",
                where, "put all records of a patient into one split",
            )
        )  # fmt: skip
    return found


def _on_both_sides(records: Sequence[Record]) -> set[str]:
    """Patients with records in the training part and in the test part."""
    sides = [{r.patient for r in records if r.patient and r.tested == tested} for tested in (False, True)]
    return sides[0] & sides[1]


def patient_codes(records: Sequence[Record]) -> np.ndarray | None:
    """A number for each patient, and one of its own for each record without; None where no record has one.

    Patients are counted as they come, so that a data set under other pseudonyms is the same data set.
    """
    codes = {name: code for code, name in enumerate(dict.fromkeys(r.patient for r in records if r.patient))}
    if not codes:
        return None
    return np.array([codes.get(r.patient, len(codes) + i) for i, r in enumerate(records)], dtype=np.int64)


def missing(records: Sequence[Record]) -> list[str]:
    """What some records lack, one line each with counts."""
    lines = []
    for field, then in (("patient", "each counts as a patient of its own"), ("site", f'their site is "{UNKNOWN}"')):
        lacking = sum(not getattr(r, field) for r in records)
        if 0 < lacking < len(records):
            lines.append(f"{lacking} of {len(records)} records have no {field}: {then}")
    return lines if any(r.patient for r in records) else [NOBODY, *lines]


def traits(records: Iterable[Record]) -> dict[str, dict[str, Trait]]:
    """Sex and age of each patient, as far as they are known; the first record that says so counts."""
    known: dict[str, dict[str, Trait]] = {}
    for r in records:
        facts = known.setdefault(r.patient or UNKNOWN, {})
        if r.sex:
            facts.setdefault("sex", r.sex)
        if r.age and r.age.replace(".", "", 1).isdigit():
            facts.setdefault("age", float(r.age))
    return {patient: facts for patient, facts in known.items() if facts}
