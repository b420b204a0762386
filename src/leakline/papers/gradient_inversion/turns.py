"""Cases of paper 001 (cells with their noise), and turns: what each attack got from each update."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from leakline.bench.training import Plan
from leakline.readings import Reading
from leakline.results import Cell, Results
from leakline.results.settings import groups_of

OURS = "grad+bn"
ATTACKS = (
    OURS, "dlg", "geiping", "bn-only", "deep-inversion", "wrong-checkpoint", "no-prior", "wrong-prior", "no-statistics",
    "unknown-labels", "unknown-rate",
)  # fmt: skip
"""The study's attacks, in the order of the tables: ours, others', and ours without one thing each."""
HIGH_RISK = "client-9"
"""The paper's client with a single image."""


@dataclass(frozen=True)
class Case:
    """A cell as these tables see it: its noise, and what it cost."""

    cell: Cell = field(repr=False)
    scenario: str
    defence: str
    kind: str
    """"none", "sigma0" (percentile-gaussian), "dp-sgd", or "other"."""
    noise: float

    @property
    def plain(self) -> bool:
        """Whether updates cross the wire as they are."""
        return self.kind == "none" or (self.kind == "sigma0" and self.noise == 0)

    @property
    def network(self) -> str:
        """The class of its model."""
        model = self.cell.federation.get("model")
        return str(model.get("use", "")).rpartition(":")[2] if isinstance(model, Mapping) else ""

    @property
    def holders(self) -> list[tuple[str, int, int]]:
        """Clients with their training and test images."""
        kept = [row for row in self.cell.holders if not str(row.get("name", "")).startswith("server:")]
        return [(str(row.get("name", "")), _count(row.get("train")), _count(row.get("test"))) for row in kept]

    def plan(self, client: str) -> Plan:
        """The client's recipe, as the run describes it."""
        given, pairs = self.cell.federation.get("plan"), self.cell.federation.get("batches")
        known = {k: v for k, v in given.items() if k in Plan.__dataclass_fields__} if isinstance(given, Mapping) else {}
        try:
            own = {str(name): int(size) for name, size in pairs or ()}
            plan = Plan(**known)
            return replace(plan, batch=own.get(client, plan.batch))
        except (TypeError, ValueError):
            return Plan()

    def images(self, client: str) -> str:
        """What tells one client's images from others': their fingerprint, or else the client's name and seed."""
        data: Any = self.cell.task
        for key in ("clients", client, "train"):
            data = data.get(key) if isinstance(data, Mapping) else None
        return str(data) if data else f"{client} of seed {self.cell.labels.get('seed')}"


@dataclass(frozen=True)
class Turn:
    """What one attack got from one update: its readings by measure."""

    case: Case
    attack: str
    client: str
    round: int
    readings: Mapping[str, Reading] = field(repr=False)

    @property
    def place(self) -> tuple[Any, str, int]:
        """Which update it was: seed, client and round; attacks on the same update are compared in pairs."""
        return self.case.cell.labels.get("seed"), self.client, self.round

    @property
    def cluster(self) -> str:
        """The images it is about: turns with the same ones are no independent trials."""
        return self.case.images(self.client)

    @property
    def count(self) -> int:
        """How many images the update was made from."""
        return max(1, *(self.readings[m].n or 0 for m in ("rdlv", "ssim") if m in self.readings))

    def value(self, measure: str) -> float | None:
        """What was measured, where it is a number."""
        reading = self.readings.get(measure)
        return None if reading is None or not math.isfinite(reading.value) else float(reading.value)

    def p(self, measure: str) -> float | None:
        """The p-value of a reading."""
        return self._fact(measure, "p")

    @property
    def effort(self) -> tuple[float, float] | None:
        """Iterations and minutes, to a tenth."""
        iterations, seconds = self._fact("ssim", "iterations"), self._fact("ssim", "seconds")
        return None if iterations is None or seconds is None else (iterations, round(seconds / 60, 1))

    def _fact(self, measure: str, name: str) -> float | None:
        fact = self.readings[measure].about.get(name) if measure in self.readings else None
        return float(fact) if isinstance(fact, int | float) and math.isfinite(fact) else None


def cases(results: Results) -> list[Case]:
    """Every finished cell."""
    return results.once(_cases)


def _cases(results: Results) -> list[Case]:
    return [Case(c, c.label("scenario"), c.label("defence"), *_noise(c)) for c in results.finished.cells]


def turns(results: Results, wanted: Callable[[Case], bool] = lambda case: True) -> list[Turn]:
    """Every attacked turn of the cases that are wanted: attacks in the order of the tables, then as stored."""
    return [turn for turn in results.once(_turns) if wanted(turn.case)]


def _turns(results: Results) -> list[Turn]:
    found = []
    for case in cases(results):
        placed = [r for r in case.cell.attacks if r.client is not None and r.round is not None]
        for (by, client, index), readings in groups_of(placed, lambda r: (r.by, r.client, r.round)).items():
            named = {r.measure: r for r in readings}
            if {"ssim", "rdlv"} & set(named):
                found.append(Turn(case, by, client, index, named))
    return sorted(found, key=lambda turn: rank(turn.attack))


def filtered(results: Results, scenario: str = "") -> list[Case]:
    """The cases of scenarios that ran the filter: with it, and without any defence, which is sigma0 = 0."""
    used = {case.scenario for case in cases(results) if case.kind == "sigma0" and scenario in ("", case.scenario)}
    return [case for case in cases(results) if case.scenario in used and case.kind in ("sigma0", "none")]


def noisy(results: Results, scenario: str = "") -> list[Turn]:
    """The attacked turns of those cases."""
    keys = {(case.scenario, case.cell.key) for case in filtered(results, scenario)}
    return turns(results, lambda case: (case.scenario, case.cell.key) in keys)


def rank(attack: str) -> int:
    """An attack's place in the tables."""
    return ATTACKS.index(attack) if attack in ATTACKS else len(ATTACKS)


def of(found: Sequence[Turn], attack: str) -> list[Turn]:
    """The turns of one attack."""
    return [turn for turn in found if turn.attack == attack]


def in_order(found: Sequence[Turn], key: Callable[[Turn], Any]) -> list[tuple[Any, list[Turn]]]:
    """Turns by a key, keys in order: numbers by size also within names, attacks as in the tables."""

    def place(one: Any) -> Any:
        if isinstance(one, tuple):
            return tuple(place(part) for part in one)
        if isinstance(one, str):
            return rank(one), [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", one)]
        return one

    return sorted(groups_of(found, key).items(), key=lambda item: place(item[0]))


def risky(found: Sequence[Turn]) -> list[Turn]:
    """The turns of the client at high risk, or else of all clients with one image."""
    return [t for t in found if t.client == HIGH_RISK] or [t for t in found if t.count == 1]


def _noise(cell: Cell) -> tuple[str, float]:
    names = [str(d.get("use", "")).rpartition(":")[2] for d in cell.defences]
    kinds = {"PercentileGaussian": ("sigma0", "sigma0"), "DpSgd": ("dp-sgd", "noise_multiplier")}
    if len(names) == 1 and names[0] in kinds:
        kind, key = kinds[names[0]]
        given = cell.defences[0].get(key)
        return kind, float(given) if isinstance(given, int | float) and math.isfinite(given) else 0.0
    return ("other", 0.0) if names else ("none", 0.0)


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0
