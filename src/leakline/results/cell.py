"""One cell of a study's grid and what its run left behind."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from leakline.cards import Card
from leakline.names import is_safe
from leakline.readings import Reading
from leakline.results.patients import Patients

FINISHED, FAILED, UNFINISHED, NOT_RUN, UNREADABLE = "finished", "failed", "unfinished", "not run", "unreadable"


@dataclass(frozen=True)
class Kept:
    """One update as it crossed the wire: local steps, and the Euclidean norm of its weights without buffers."""

    steps: int
    norm: float


@dataclass(frozen=True)
class Cell:
    """One cell of the grid: its labels, its settings, its card, and every number that was measured of it."""

    labels: Mapping[str, Any]
    key: str | None
    status: str
    error: str = ""
    folder: Path | None = None
    about: Mapping[str, Any] = field(default_factory=dict, repr=False)
    card: Card | None = field(default=None, repr=False)
    readings: tuple[Reading, ...] = field(default=(), repr=False)
    """Utility, round by round."""
    attacks: tuple[Reading, ...] = field(default=(), repr=False)
    """What the study's attacks measured."""
    records: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """What each round wrote down: cohort, who was dropped, facts, metrics."""
    seconds: float = 0.0
    asked: tuple[str, ...] | None = None
    """The names of the attacks that were to meet it."""
    hashes: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By attack, its name with the hash of its settings."""
    damage: tuple[str, ...] = ()
    """What of its files is damaged or missing; the lines are left out."""
    patients: tuple[Patients, ...] = field(default=(), repr=False)
    """Whom the study's attacks on records told apart, and how often."""
    _updates: dict[tuple[int, str], Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def federation(self) -> Mapping[str, Any]:
        """The settings of the run, as described in ``run.json``."""
        settings = self.about.get("federation", {})
        return settings if isinstance(settings, Mapping) else {}

    @property
    def task(self) -> Mapping[str, Any]:
        """The settings of its task."""
        task = self.federation.get("task")
        return task if isinstance(task, Mapping) else {}

    @property
    def defences(self) -> list[Mapping[str, Any]]:
        """The settings of each defence of its stack."""
        return _mappings(self.federation.get("defences"))

    @property
    def holders(self) -> list[Mapping[str, Any]]:
        """Who holds what: the rows ``name, counts, train, test`` of the run's partition."""
        return _mappings(self.about.get("partition"))

    @property
    def versions(self) -> Mapping[str, Any]:
        """What made the run."""
        versions = self.about.get("versions")
        return versions if isinstance(versions, Mapping) else {}

    @property
    def facts(self) -> list[Mapping[str, float]]:
        """What the defences wrote down, round by round."""
        return [record.get("facts", {}) for record in self.records]

    @property
    def rounds(self) -> int:
        """How many rounds were committed."""
        return len(self.records)

    @property
    def wanted(self) -> int:
        """How many rounds were asked for."""
        rounds = self.federation.get("rounds", 0)
        return rounds if isinstance(rounds, int) else 0

    @property
    def data(self) -> str:
        """A short hash of all data fingerprints of the task."""
        task = self.federation.get("task")
        return hashlib.sha256(json.dumps(task, sort_keys=True).encode()).hexdigest()[:12] if task else ""

    @property
    def setting(self) -> tuple[tuple[str, Any], ...]:
        """All labels but the seed."""
        return tuple((k, v) for k, v in self.labels.items() if k != "seed")

    def label(self, name: str) -> str:
        """A label as text; "" if the study does not have it."""
        return str(self.labels.get(name, ""))

    def only(self, wanted: Callable[[Reading], bool]) -> Cell:
        """The same cell with some of its readings."""
        return replace(self, readings=tuple(filter(wanted, self.readings)), attacks=tuple(filter(wanted, self.attacks)))

    def final(self, measure: str) -> list[Reading]:
        """A utility measure of the last round: of the whole federation where that was measured, else of each client."""
        return last(whole([r for r in self.readings if r.measure == measure]))

    def newest(self, measure: str) -> Reading | None:
        """The newest reading of a utility measure of the whole federation."""
        return next((r for r in reversed(self.readings) if r.measure == measure and r.client is None), None)

    def kept(self, index: int, client: str) -> Kept | None:
        """The update of a client in a round, if the store kept it and it can be read; read when first asked for."""
        if (index, client) not in self._updates:
            self._updates[index, client] = self._read_kept(index, client)
        update: Kept | None = self._updates[index, client]
        return update

    def _read_kept(self, index: int, client: str) -> Kept | None:
        if self.folder is None or not is_safe(client) or client == "sent":
            return None
        path = self.folder / "kept" / f"round-{index:04d}" / f"{client}.safetensors"
        weights = self._weights(path.with_name("sent.safetensors"), index) if path.is_file() else None
        if weights is None:
            return None
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="np") as file:
                delta = file.get_tensor("delta").astype("float64")[:weights]
                return Kept(int(file.metadata()["steps"]), float((delta @ delta) ** 0.5))
        except (SafetensorError, OSError, KeyError, TypeError, ValueError):
            return None

    def _weights(self, sent: Path, index: int) -> int | None:
        """How many values of a round's updates are weights: buffers come after all of them (`Layout`)."""
        if (index, "sent") not in self._updates:
            from safetensors import SafetensorError, safe_open

            size = None
            try:
                with safe_open(sent, framework="np") as file:
                    layout = json.loads(file.metadata()["layout"])
                size = sum(math.prod(shape) for _, shape, buffer in layout if not buffer)
            except (SafetensorError, OSError, KeyError, TypeError, ValueError):
                pass
            self._updates[index, "sent"] = size
        weights: int | None = self._updates[index, "sent"]
        return weights


def whole(readings: Sequence[Reading]) -> list[Reading]:
    """Those of the whole federation, or else those of its clients."""
    return [r for r in readings if r.client is None] or list(readings)


def last(readings: Sequence[Reading], rounds: int = 1) -> list[Reading]:
    """Those of the last rounds of each measure; what belongs to no round is before all rounds."""
    ends: dict[tuple[str, str], int] = {}
    for r in readings:
        ends[r.by, r.measure] = max(ends.get((r.by, r.measure), -1), _round(r))
    return [r for r in readings if _round(r) > ends[r.by, r.measure] - rounds]


def _round(reading: Reading) -> int:
    return -1 if reading.round is None else reading.round


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [v for v in value if isinstance(v, Mapping)] if isinstance(value, list) else []
