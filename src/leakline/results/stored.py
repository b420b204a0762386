"""A store read into `Results`: every file of it once, every cell of the grid with its run, readable or not.

Nothing here raises for a damaged or missing run: such a cell is reported as what it is. A directory that is no store,
or of another format, is refused (`Store.grid`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from leakline.cards import Card
from leakline.errors import StoreError
from leakline.measures import read_measures
from leakline.readings import Reading
from leakline.results.cell import FAILED, FINISHED, NOT_RUN, UNFINISHED, UNREADABLE, Cell
from leakline.results.patients import read_patients
from leakline.results.results import Results
from leakline.study.carded import newest
from leakline.study.files import SEAL, Lines, is_there, read_json, read_text
from leakline.study.store import Store, digest_of

CHOICES = "choices.json"
"""Beside the study: which runs were chosen privately, what was drawn for it, and what it cost."""


def read(root: Path) -> Results:
    """Read a store."""
    store = Store(root)
    grid = _whole_grid(store)
    listed = grid.get("cells")
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    ends = {path.name: _end(path) for path in _run_folders(root)}
    failed = {name: key for key, end in ends.items() if (name := _failed(end)) is not None}
    chosen = _chosen(root)
    cells = tuple(_marked(_cell(store, entry, failed, ends), chosen) for entry in entries)
    known = {cell.key for cell in cells}
    notes, (text, damage) = grid.get("notes"), _text(root, grid.get("text"))
    return Results(
        root, str(grid.get("name", "")), str(grid.get("title", "")), number_of(grid.get("delta")) or 0.0,
        tuple(str(n) for n in notes) if isinstance(notes, list) else (),
        text, cells, tuple(sorted(key for key in ends if key not in known)), read_measures(grid.get("measures")),
        damage,
    )  # fmt: skip


def _chosen(root: Path) -> dict[str, str]:
    """By run, what `leakline choose --private` wrote down of it."""
    try:
        made = valid(read_json(root / CHOICES)).get("made", []) if is_there(root / CHOICES) else []
    except StoreError:
        return {}
    good = (line for line in made if isinstance(line, dict)) if isinstance(made, list) else ()
    return {str(line.get("run", "")): str(line.get("words", "")) for line in good}


def _marked(cell: Cell, chosen: Mapping[str, str]) -> Cell:
    words = chosen.get(cell.key or "", "")
    return replace(cell, card=replace(cell.card, chosen=words)) if words and cell.card is not None else cell


def _whole_grid(store: Store) -> dict[str, Any]:
    grid: dict[str, Any] = valid(store.grid())
    return grid


def _text(root: Path, digest: Any) -> tuple[str, tuple[str, ...]]:
    """The study file, and what is wrong with it."""
    path = root / "study.toml"
    if not is_there(path):
        return "", ("study.toml is missing",) if digest is not None else ()
    try:
        text = read_text(path)
    except StoreError as problem:
        return "", (problem.what,)
    return text, ("study.toml is not the file that was run",) if digest not in (None, digest_of(text)) else ()


def _run_folders(root: Path) -> list[Path]:
    folder = root / "runs"
    if folder.is_symlink() or not folder.is_dir():
        return []
    return [p for p in folder.iterdir() if p.is_dir() and not p.is_symlink() and p.name.isalnum()]


def _end(folder: Path) -> dict[str, Any] | StoreError | None:
    """A run's terminal record, None without one, or what is wrong with it."""
    path = folder / "end.json"
    try:
        return valid(read_json(path)) if is_there(path) else None
    except StoreError as problem:
        return problem


def _failed(end: Any) -> str | None:
    """The cell of a run that failed: the grid does not point to it."""
    card = end.get("card") if isinstance(end, dict) and end.get("status") == FAILED else None
    return str(card["title"]) if isinstance(card, dict) and "title" in card else None


def _cell(store: Store, entry: Mapping[str, Any], failed: Mapping[str, str], ends: Mapping[str, Any]) -> Cell:
    raw = entry.get("labels")
    labels = {str(k): _label(v) for k, v in raw.items()} if isinstance(raw, dict) else {}
    error = str(entry.get("error") or "")
    name = " ".join(str(v) for k, v in labels.items() if k != "seed") + f" seed {labels.get('seed')}"
    key = entry.get("run") or failed.get(name)
    if key is None:
        return Cell(labels, None, FAILED if error else NOT_RUN, error)
    asked = entry.get("attacks")
    try:
        folder = store.run(str(key)).path
        if not folder.is_dir() or folder.is_symlink():
            return Cell(labels, str(key), NOT_RUN, error or "not run yet, or its folder is gone")
        end = ends.get(folder.name)
        if isinstance(end, StoreError):
            raise end
        return _run(labels, folder, error, end, [str(k) for k in asked] if isinstance(asked, list) else None)
    except (StoreError, OSError, KeyError, TypeError, ValueError, AttributeError) as problem:
        what = problem.what if isinstance(problem, StoreError) else f"damaged ({type(problem).__name__})"
        return Cell(labels, str(key), UNREADABLE, what)


def _run(
    labels: Mapping[str, Any], folder: Path, error: str, end: Mapping[str, Any] | None, asked: Sequence[str] | None
) -> Cell:
    files = {name: Lines.read(folder / f"{name}.jsonl") for name in ("rounds", "readings", "attacks", "log")}
    lines = {name: [valid(line) for line in each.good] for name, each in files.items()}
    about = valid(read_json(folder / "run.json")) if is_there(folder / "run.json") else {}
    if wrong := _wrong(files, about, end):
        return Cell(labels, folder.name, UNREADABLE, "; ".join(wrong)[:400], damage=tuple(wrong))
    status = str(end["status"]) if end else UNFINISHED
    whole, cut_short = _whole_attacks(lines["attacks"])
    attacks = newest([line for line in whole if _is_reading(line)], asked or ())
    damage = [*files["attacks"].damage, *cut_short, *files["log"].damage]
    if not files["rounds"].unsealed and len(lines["log"]) < len(lines["rounds"]):
        damage.append("log.jsonl: the times of some rounds are missing")
    hashes = {str(line.get("by", "")): str(line.get("attack", "")) for line in attacks}
    lists = list(read_patients(folder, hashes))
    damage += [found for found in lists if isinstance(found, str)]
    return Cell(
        labels, folder.name, status if status in (FINISHED, FAILED, UNFINISHED) else UNREADABLE,
        error or str((end or {}).get("error", "")), folder, about,
        Card.from_dict(end["card"]) if end and "card" in end else None,
        tuple(_readings(lines["readings"])), tuple(_readings(attacks)), tuple(lines["rounds"]),
        sum(number_of(line.get("seconds")) or 0.0 for line in lines["log"]),
        None if asked is None else tuple(key.rpartition("-")[0] for key in asked),
        hashes, tuple(damage), tuple(found for found in lists if not isinstance(found, str)),
    )  # fmt: skip


def _wrong(files: Mapping[str, Lines], about: Mapping[str, Any], end: Mapping[str, Any] | None) -> list[str]:
    """Why nothing of a run can be believed: of what its rounds wrote down something is damaged or missing.

    A table of the last round would otherwise quietly be one of the round before.
    """
    wrong = [*files["rounds"].damage, *files["readings"].damage]
    written = (end or {}).get("lines")
    for name in ("rounds", "readings"):
        count = written.get(f"{name}.jsonl") if isinstance(written, dict) else None
        if isinstance(count, int) and len(files[name].good) < count:
            wrong.append(f"{name}.jsonl: {count - len(files[name].good)} of {count} lines are missing")
    if files["rounds"].good and not about:
        wrong.append("run.json is missing")
    return wrong


def _whole_attacks(lines: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """The lines of attacks that are all there, and which attacks are not."""
    ends = {line.get("attack"): number_of(line.get("value")) for line in lines if line.get("measure") == "none"}
    counts: dict[Any, int] = {}
    for line in lines:
        counts[line.get("attack")] = counts.get(line.get("attack"), 0) + (
            SEAL in line and line.get("measure") != "none"
        )
    short = [key for key, count in counts.items() if count and count < (ends.get(key, math.inf) or 0)]
    told = [f"attacks.jsonl: {str(key)[:64]} was cut short and is left out" for key in short]
    return [line for line in lines if line.get("attack") not in short], told


def _is_reading(line: Mapping[str, Any]) -> bool:
    measured = isinstance(line.get("measure"), str) and line["measure"] != "none"
    return measured and number_of(line.get("value")) is not None


def _readings(lines: Sequence[Mapping[str, Any]]) -> list[Reading]:
    """The lines that hold a measure and a number; a field that cannot be what it should be is not known."""
    return [
        Reading(
            line["measure"], line["value"], number_of(line.get("low")), number_of(line.get("high")),
            _whole(line.get("n")), str(line.get("by", "utility")), _whole(line.get("round")),
            None if line.get("client") is None else str(line["client"]), number_of(line.get("chance")),
            _about(line.get("about")), str(line.get("note", "")),
        )
        for line in lines if _is_reading(line)
    ]  # fmt: skip


def _about(value: Any) -> dict[str, Any]:
    facts = value.items() if isinstance(value, dict) else ()
    return {key: fact for key, fact in facts if isinstance(fact, str) or number_of(fact) is not None}


def valid(value: Any) -> Any:
    """JSON values with text that is UTF-8: JSON can smuggle in lone surrogates, on which writers of files choke."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {valid(k): valid(v) for k, v in value.items()}
    return [valid(v) for v in value] if isinstance(value, list) else value


def _label(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) or value is None else json.dumps(value)


def number_of(value: Any) -> float | None:
    """A number that is one, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > LARGEST and value not in ENDS:
        return None
    return value if not math.isnan(value) else None


LARGEST = 1e300
"""A whole number beyond this is none that was measured; no float holds those of hundreds of digits."""
ENDS = (math.inf, -math.inf)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
