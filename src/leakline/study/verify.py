"""`leakline verify`: does everything in a run directory still fit together?

Seals of files, lines and tensors; that a run's name is the hash of what was run; that no line is missing; and, where
the study can be read here (its data are at hand, its own code is agreed to), that each card follows from the lines
and from the accountant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakline.cards import Card
from leakline.errors import LeaklineError, StoreError
from leakline.federation import Federation
from leakline.names import printable
from leakline.study import media
from leakline.study.carded import card_so_far
from leakline.study.describe import description, key_of
from leakline.study.files import Lines, is_sealed, is_there, read_json, read_text
from leakline.study.kept_features import kept_in
from leakline.study.spec import parse
from leakline.study.store import BEFORE, CHECKPOINT, LINES, Run, Store, digest_of, finished
from leakline.study.tensors import read_sealed


@dataclass(frozen=True)
class Verified:
    """What was looked at, and what is wrong or could not be looked at."""

    problems: tuple[str, ...]
    unchecked: tuple[str, ...]
    runs: int


def verify(root: Path) -> Verified:
    """Look at every file of a run directory; nothing is changed."""
    store = Store(root)
    problems: list[str] = []
    unchecked: list[str] = []
    grid = store.grid()
    problems += _file(root / "study.json")
    text = read_text(root / "study.toml") if is_there(root / "study.toml") else ""
    if grid.get("text") != digest_of(text):
        problems.append("study.toml is not the file that was run")
    with kept_in(root):
        federations = _federations(text, unchecked)
    folders = [path for path in sorted((root / "runs").glob("*")) if path.is_dir()] if root.is_dir() else []
    for folder in folders:
        if folder.is_symlink() or not folder.name.isalnum():
            problems.append(f"{printable(folder.name, 40)} is no run")
            continue
        run = store.run(folder.name)
        problems += [f"{folder.name}: {what}" for what in _run(run)]
        federation = federations.get(folder.name)
        if federation is not None and not any(what.startswith(folder.name) for what in problems):
            problems += [f"{folder.name}: {what}" for what in _card(run, federation, grid.get("delta"))]
    return Verified(tuple(problems), tuple(unchecked), len(folders))


def _file(path: Path) -> Iterator[str]:
    try:
        read_json(path)
        if not is_sealed(path):
            yield f"{path.name} has no seal"
    except StoreError as error:
        yield error.what


def _run(run: Run) -> Iterator[str]:
    yield from _file(run.path / "run.json")
    if is_there(run.path / "end.json"):
        yield from _file(run.path / "end.json")
    yield from _name(run)
    yield from _lines(run)
    paths = [run.path / name for name in (CHECKPOINT, BEFORE)]
    for path in [*(p for p in paths if is_there(p)), *sorted(run.path.glob("kept/*/*.safetensors"))]:
        try:
            read_sealed(path, run.path)
        except StoreError as error:
            yield error.what
        except Exception as error:  # a damaged file may fail in any way
            yield f"{path.relative_to(run.path)} is damaged ({type(error).__name__}: {printable(error, 80)})"
    yield from media.damage(run.path)


def _name(run: Run) -> Iterator[str]:
    """A run is called by the hash of what was run."""
    try:
        about = read_json(run.path / "run.json")
    except StoreError:
        return
    if key_of({k: v for k, v in about.items() if k != "partition"}) != run.key:
        yield "run.json does not describe this run: its hash is another"


def _lines(run: Run) -> Iterator[str]:
    end = _end(run)
    written = end.get("lines") if isinstance(end.get("lines"), Mapping) else {}
    for name in (*LINES, "attacks.jsonl", "log.jsonl"):
        try:
            lines = Lines.read(run.path / name, run.path)
        except StoreError as error:
            yield error.what
            continue
        yield from lines.damage
        if lines.unsealed:
            yield f"{name}: {lines.unsealed} lines have no seal"
        if name in LINES and isinstance(written, Mapping) and len(lines.good) != written.get(name, len(lines.good)):
            yield f"{name}: {len(lines.good)} lines, {written[name]} were written"
        if name == "attacks.jsonl" and len(finished(lines.good)) < len(lines.good):
            yield f"{name}: an attack was cut short"
    rounds = [record.get("round") for record in run.rounds()] if not isinstance(end, StoreError) else []
    if rounds != list(range(len(rounds))):
        yield "rounds.jsonl does not hold every round once"


def _end(run: Run) -> Mapping[str, Any]:
    try:
        return run.end or {}
    except StoreError:
        return {}


def _federations(text: str, unchecked: list[str]) -> dict[str, Federation]:
    """The study's federations by the key of their run, where they can be made here."""
    made: dict[str, Federation] = {}
    try:
        for cell in parse(text).cells:
            federation = cell.federation().granted
            made[key_of(description(federation))] = federation
    except (LeaklineError, ValueError) as error:
        unchecked.append(f"that cards follow from the lines: {printable(str(error).splitlines()[0], 160)}")
    return made


def _card(run: Run, federation: Federation, delta: Any) -> Iterator[str]:
    """The card as the lines and the accountant have it, against the one that was written."""
    end = run.end
    if end is None or "card" not in end or not isinstance(delta, float):
        return
    written = Card.from_dict(end["card"])
    again = Card.from_dict(card_so_far(written.title, federation, run, end.get("delta", delta)).as_dict())
    for part in ("promises", "utility", "dropped", "longer"):
        if getattr(written, part) != getattr(again, part):
            yield f"the card's {part} do not follow from what was run"
