"""What a report takes from a store: every cell of the grid with its run, readable or not.

Nothing here raises for a damaged or missing run: such a cell is reported as what it is. A directory that is no store,
or of another format, is refused (`Store.grid`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from leakline.cards import Card
from leakline.errors import StoreError
from leakline.measures import Measure, measure_of, read_measures
from leakline.study.store import Run, Store, read_json, read_lines

FINISHED, FAILED, UNFINISHED, NOT_RUN, UNREADABLE = "finished", "failed", "unfinished", "not run", "unreadable"


@dataclass(frozen=True)
class Stored:
    """One cell of the grid and what its run left behind."""

    labels: Mapping[str, Any]
    key: str | None
    status: str
    error: str = ""
    about: Mapping[str, Any] = field(default_factory=dict, repr=False)
    card: Card | None = field(default=None, repr=False)
    readings: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    attacks: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    rounds: int = 0
    seconds: float = 0.0
    asked: tuple[str, ...] | None = None
    """The names of the attacks that were to meet it."""

    @property
    def federation(self) -> Mapping[str, Any]:
        """The settings of the run, as described in ``run.json``."""
        found = self.about.get("federation", {})
        return found if isinstance(found, Mapping) else {}

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


@dataclass(frozen=True)
class StoredStudy:
    """A store as a report reads it."""

    name: str
    title: str
    delta: float
    notes: tuple[str, ...]
    text: str
    cells: tuple[Stored, ...]
    measures: Mapping[str, Measure] = field(default_factory=dict)
    """What attacks from outside the package measure, as the store describes it."""
    loose: tuple[str, ...] = ()
    """Runs that no cell of the grid points to: variants that attacks asked for, runs under way, older settings."""

    def measure(self, name: str) -> Measure:
        """What a measure of this study means."""
        return measure_of(name, self.measures)

    @property
    def finished(self) -> tuple[Stored, ...]:
        """The cells whose training came to its end."""
        return tuple(cell for cell in self.cells if cell.status == FINISHED)


def read_study(root: Path) -> StoredStudy:
    """Read a store."""
    store = Store(root)
    grid = valid(store.grid())
    cells = grid.get("cells")
    entries = [e for e in cells if isinstance(e, dict)] if isinstance(cells, list) else []
    failed = _failed_runs(root)
    found = tuple(_cell(store, entry, failed) for entry in entries)
    known = {cell.key for cell in found}
    loose = tuple(sorted(p.name for p in _run_folders(root) if p.name not in known))
    notes = grid.get("notes")
    delta = grid.get("delta")
    return StoredStudy(
        str(grid.get("name", "")), str(grid.get("title", "")), _number(delta) or 0.0,
        tuple(str(n) for n in notes) if isinstance(notes, list) else (), _study_text(root), found,
        read_measures(grid.get("measures")), loose,
    )  # fmt: skip


def _run_folders(root: Path) -> list[Path]:
    folder = root / "runs"
    return [p for p in folder.iterdir() if p.is_dir() and p.name.isalnum()] if folder.is_dir() else []


def _failed_runs(root: Path) -> dict[str, str]:
    """Runs that failed, by the name of their cell: the grid does not point to them."""
    found = {}
    for path in _run_folders(root):
        with contextlib.suppress(StoreError, KeyError, TypeError):
            end = read_json(path / "end.json") if (path / "end.json").exists() else {}
            if end.get("status") == FAILED:
                found[str(end["card"]["title"])] = path.name
    return found


def _study_text(root: Path) -> str:
    path = root / "study.toml"
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _cell(store: Store, entry: Mapping[str, Any], failed: Mapping[str, str]) -> Stored:
    raw = entry.get("labels")
    labels = {str(k): _label(v) for k, v in raw.items()} if isinstance(raw, dict) else {}
    error = str(entry.get("error") or "")
    own = entry.get("attacks")
    current = {str(key) for key in own} if isinstance(own, list) else set()
    name = " ".join(str(v) for k, v in labels.items() if k != "seed") + f" seed {labels.get('seed')}"
    key = entry.get("run") or failed.get(name)
    if key is None:
        return Stored(labels, None, FAILED if error else NOT_RUN, error)
    try:
        run = store.run(str(key))
        if not run.path.is_dir():
            return Stored(labels, str(key), NOT_RUN, error or "its run is not in the store")
        asked = tuple(str(k).rpartition("-")[0] for k in own) if isinstance(own, list) else None
        return replace(_run(labels, run, error, current), asked=asked)
    except (StoreError, OSError, KeyError, TypeError, ValueError, AttributeError) as problem:
        what = problem.what if isinstance(problem, StoreError) else f"damaged ({type(problem).__name__})"
        return Stored(labels, str(key), UNREADABLE, what)


def _run(labels: Mapping[str, Any], run: Run, error: str, current: set[str]) -> Stored:
    about = valid(read_json(run.path / "run.json")) if (run.path / "run.json").exists() else {}
    end = valid(run.end)
    status = str(end["status"]) if end else UNFINISHED
    seconds = sum(_number(line.get("seconds")) or 0.0 for line in _lines(run.path / "log.jsonl"))
    return Stored(
        labels, run.key, status if status in (FINISHED, FAILED, UNFINISHED) else UNREADABLE,
        error or str((end or {}).get("error", "")), about,
        Card.from_dict(end["card"]) if end and "card" in end else None,
        tuple(_good(_lines(run.path / "readings.jsonl"))),
        tuple(_newest(_good(_lines(run.path / "attacks.jsonl")), current)),
        len(_lines(run.path / "rounds.jsonl")), seconds,
    )  # fmt: skip


def _lines(path: Path) -> list[dict[str, Any]]:
    return [valid(line) for line in read_lines(path) if isinstance(line, dict)]


def _good(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines that hold a measure and a number; with what they are about, where that can be read."""
    good = [line for line in lines if isinstance(line.get("measure"), str) and _number(line.get("value")) is not None]
    return [{**line, "about": _about(line["about"])} if "about" in line else line for line in good]


def _about(value: Any) -> dict[str, Any]:
    facts = value.items() if isinstance(value, dict) else ()
    return {key: fact for key, fact in facts if isinstance(fact, str) or _number(fact) is not None}


def _newest(lines: list[dict[str, Any]], listed: set[str]) -> list[dict[str, Any]]:
    """What the study's present attacks measured: an attack with other settings under the same name is another one.

    Which settings are present the grid says; for an attack that it does not name (an audit made afterwards), they are
    the last ones that met the run.
    """
    names = {key.rpartition("-")[0] for key in listed}
    last = {str(line.get("by", "")): str(line.get("attack")) for line in lines}
    chosen = listed | {key for by, key in last.items() if by not in names}
    return [line for line in lines if str(line.get("attack")) in chosen and line["measure"] != "none"]


def valid(value: Any) -> Any:
    """JSON values with text that is UTF-8: JSON can smuggle in lone surrogates, on which writers of files choke."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {valid(k): valid(v) for k, v in value.items()}
    return [valid(v) for v in value] if isinstance(value, list) else value


def _label(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) or value is None else json.dumps(value)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if not math.isnan(value) else None
