"""What the tables of paper 001 take from a store: cells with their noise, and what attacks got from each update."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from leakline.bench.training import Plan
from leakline.results.stored import Stored, read_study

OURS = "grad+bn"
ATTACKS = (
    OURS, "dlg", "geiping", "bn-only", "deep-inversion", "wrong-checkpoint", "no-prior", "wrong-prior", "no-statistics",
    "unknown-labels", "unknown-rate",
)  # fmt: skip
"""The study's attacks, in the order of the tables: ours, others', and ours without one thing each."""
HIGH_RISK = "client-9"
"""The paper's client with a single image."""


@dataclass(frozen=True)
class Setting:
    """A cell as these tables see it: its noise, and what it cost."""

    cell: Stored = field(repr=False)
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
        rows = dicts(self.cell.about.get("partition"))
        kept = [row for row in rows if not str(row.get("name", "")).startswith("server:")]
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
        found: Any = self.cell.federation
        for key in ("task", "clients", client, "train"):
            found = found.get(key) if isinstance(found, Mapping) else None
        return str(found) if found else f"{client} of seed {self.cell.labels.get('seed')}"


@dataclass(frozen=True)
class Turn:
    """What one attack got from one update: its lines by measure."""

    setting: Setting
    attack: str
    client: str
    round: int
    lines: Mapping[str, Mapping[str, Any]] = field(repr=False)

    @property
    def place(self) -> tuple[Any, str, int]:
        """Which update it was: seed, client and round; attacks on the same update are compared in pairs."""
        return self.setting.cell.labels.get("seed"), self.client, self.round

    @property
    def cluster(self) -> str:
        """The images it is about: turns with the same ones are no independent trials."""
        return self.setting.images(self.client)

    @property
    def count(self) -> int:
        """How many images the update was made from."""
        return max(1, *(_count(self.lines.get(measure, {}).get("n")) for measure in ("rdlv", "ssim")))

    def value(self, measure: str) -> float | None:
        """What was measured, where it is a number."""
        return finite(self.lines.get(measure, {}).get("value"))

    def p(self, measure: str) -> float | None:
        """The p-value of a line."""
        return finite(self._about(measure).get("p"))

    @property
    def effort(self) -> tuple[float, float] | None:
        """Iterations and minutes, to a tenth."""
        about = self._about("ssim")
        iterations, seconds = finite(about.get("iterations")), finite(about.get("seconds"))
        return None if iterations is None or seconds is None else (iterations, round(seconds / 60, 1))

    def _about(self, measure: str) -> Mapping[str, Any]:
        found = self.lines.get(measure, {}).get("about", {})
        return found if isinstance(found, Mapping) else {}


def settings(root: Path) -> list[Setting]:
    """Every finished cell."""
    found = []
    for cell in read_study(root).finished:
        kind, noise = _noise(cell)
        labels = cell.labels
        found.append(Setting(cell, str(labels.get("scenario", "")), str(labels.get("defence", "")), kind, noise))
    return found


def turns(root: Path, wanted: Callable[[Setting], bool] = lambda setting: True) -> list[Turn]:
    """Every attacked turn of the settings that are wanted: attacks in the order of the tables, then as stored."""
    found = []
    for setting in settings(root):
        if not wanted(setting):
            continue
        groups: dict[tuple[str, str, int], dict[str, Mapping[str, Any]]] = {}
        for line in setting.cell.attacks:
            if isinstance(line.get("client"), str) and isinstance(line.get("round"), int):
                place = (str(line.get("by", "")), line["client"], line["round"])
                groups.setdefault(place, {})[line["measure"]] = line
        found += [Turn(setting, *place, lines) for place, lines in groups.items() if {"ssim", "rdlv"} & set(lines)]
    return sorted(found, key=lambda turn: rank(turn.attack))


def rank(attack: str) -> int:
    """An attack's place in the tables."""
    return ATTACKS.index(attack) if attack in ATTACKS else len(ATTACKS)


def of(found: Sequence[Turn], attack: str) -> list[Turn]:
    """The turns of one attack."""
    return [turn for turn in found if turn.attack == attack]


def groups_of(found: Sequence[Turn], key: Callable[[Turn], Any]) -> dict[Any, list[Turn]]:
    """Turns by a key, in the order in which keys first come."""
    groups: dict[Any, list[Turn]] = {}
    for turn in found:
        groups.setdefault(key(turn), []).append(turn)
    return groups


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


def _noise(cell: Stored) -> tuple[str, float]:
    stack = dicts(cell.federation.get("defences"))
    names = [str(d.get("use", "")).rpartition(":")[2] for d in stack]
    if names == ["PercentileGaussian"]:
        return "sigma0", finite(stack[0].get("sigma0")) or 0.0
    if names == ["DpSgd"]:
        return "dp-sgd", finite(stack[0].get("noise_multiplier")) or 0.0
    return ("other", 0.0) if names else ("none", 0.0)


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def dicts(value: Any) -> list[Mapping[str, Any]]:
    """The mappings of a list; none of anything else."""
    return [v for v in value if isinstance(v, Mapping)] if isinstance(value, list) else []


def finite(value: Any) -> float | None:
    """A number that is one, or None."""
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable else None
