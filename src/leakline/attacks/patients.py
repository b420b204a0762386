"""The patients of an attack on records: who is exposed, at which site, of which class, sex and age."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import bdtrc

from leakline.attacks.base import Artefact
from leakline.attacks.shadow_worlds import Asked
from leakline.data.base import Trait
from leakline.federation import Federation
from leakline.leakage.exposure import Exposure, exposure
from leakline.leakage.interval import mean_interval
from leakline.privacy import Seat
from leakline.readings import Fact, Reading

FILE = "patients"
"""The name of the list that an attack leaves of its patients."""
EVERYBODY = "everybody"


@dataclass(frozen=True)
class People:
    """What the examiner knows of the patients in question, by their number: site, class, traits, how many records.

    ``number`` is the data set's own for a patient, -1 where it has none. ``known``: whether records say whose they
    are. ``risk``: how often a patient may be told right before it counts as at risk.
    """

    client: tuple[str, ...]
    label: tuple[str, ...]
    traits: tuple[Mapping[str, Trait], ...]
    records: np.ndarray
    number: np.ndarray
    known: bool
    risk: float
    parameters: int

    @classmethod
    def of(cls, asked: Asked, federation: Federation, risk: float) -> People:
        """The people of the records in question."""
        labels = np.concatenate([data.labels() for data in asked.records])
        first = np.array([np.flatnonzero(asked.patient == one)[0] for one in range(asked.patients)])
        classes = federation.task.classes
        mine = [Counter(labels[asked.patient == one].tolist()).most_common(1)[0][0] for one in range(asked.patients)]
        number = asked.group[first]
        return cls(
            tuple(str(asked.owner[i]) for i in first),
            tuple(classes[k] if 0 <= k < len(classes) else str(k) for k in mine),
            tuple(federation.task.people.get(int(n), {}) for n in number),
            np.bincount(asked.patient), number, asked.known, risk, federation.wire.size,
        )  # fmt: skip


def patient_results(right: np.ndarray, people: People, seat: Seat) -> list[Reading | Artefact]:
    """Figures over all patients, and the list of them for whoever may see it (right: worlds x patients)."""
    found = exposure(right)
    return [*_readings(right, found, people, seat), Artefact(EVERYBODY, 0, lists={FILE: listed(found, people)})]


def _readings(right: np.ndarray, found: Exposure, people: People, seat: Seat) -> list[Reading]:
    worlds, patients = right.shape
    about: dict[str, Fact] = {
        "unit": "patient", "worlds": float(worlds), "patients": float(patients), "risk": people.risk,
        "records": float(people.records.sum()), "parameters": float(people.parameters), "known": float(people.known),
        "ceiling": found.ceiling, "seat": seat,
    }  # fmt: skip
    of = f"{patients} patients in {worlds} federations"
    whose = of if people.known else f"{of}; nobody says whose records are: each counts as a patient"
    mean = mean_interval(right.mean(1).tolist())
    worst = int(np.lexsort((-found.sure, -found.right))[0])
    needed = int(np.ceil(people.risk * worlds - 1e-9))
    luck = float(bdtrc(needed - 1, worlds, 0.5))
    sure = f"with {worlds} federations at most {found.ceiling:.2f} can be certain of anybody"
    return [
        Reading("patients-right", mean.value, mean.low, mean.high, worlds, chance=0.5, about=about, note=whose),
        Reading("patients-exposed", float(found.exposed.mean()), n=patients, about=about,
                note=f"{int(found.exposed.sum())} of {of}, at 95 % for all at once"),
        Reading("patients-at-risk", float((found.right >= people.risk - 1e-9).mean()), n=patients, chance=luck,
                about=about, note=f"told right in at least {needed} of {worlds} federations"),
        Reading("worst-patient", float(found.right[worst]), float(found.sure[worst]), float(found.high[worst]),
                worlds, about=about, note=sure),
    ]  # fmt: skip


def listed(found: Exposure, people: People) -> dict[str, Any]:
    """Every patient under a number of this list's own, the worst off first, and means by site, class and trait."""
    order = np.lexsort((-people.records, -found.right))
    rows = [
        {
            "name": f"patient-{place}", "number": int(people.number[i]), "client": people.client[i],
            "class": people.label[i], "traits": dict(people.traits[i]), "records": int(people.records[i]),
            "right": float(found.right[i]), "low": float(found.low[i]), "high": float(found.high[i]),
            "sure": float(found.sure[i]), "p": float(found.p[i]), "exposed": bool(found.exposed[i]),
        }
        for place, i in enumerate(order, start=1)
    ]  # fmt: skip
    return {
        "worlds": found.worlds, "confidence": found.confidence, "known": people.known, "risk": people.risk,
        "ceiling": found.ceiling, "parameters": people.parameters, "patients": rows,
    }  # fmt: skip
