"""An archive: what was measured, of one store or several of one study, in one small file that can be kept and cited.

It is a zip of a store's own plain files, seals included, for the cells that were finished: settings, rounds, readings,
cards and times. Models, updates, pictures, patients, features and notes stay where they are, so nothing can be trained
or attacked from an archive. Names of clients and classes are in it; `share` makes what has none. The same stores
give the same bytes. A slim one leaves out what single clients measured before their last round, which is most of a long
run of many clients: it says so in its notes, and its lines are sealed anew.
"""

from __future__ import annotations

import re
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from leakline.errors import StoreError
from leakline.results.cell import FINISHED, Cell
from leakline.results.results import Results
from leakline.results.stored import read
from leakline.study.files import (
    MB,
    MOST_JSON,
    Lines,
    append,
    make_folder,
    read_bytes,
    read_json,
    write_atomically,
    write_json,
    write_lines,
)
from leakline.study.store import Store, finished

SUFFIX = ".zip"
MOST_FILES, MOST_BYTES = 200_000, 1024 * MB
_FILES = ("run.json", "end.json", "rounds.jsonl", "readings.jsonl", "attacks.jsonl", "log.jsonl")
_NAME = re.compile(rf"study\.json|study\.toml|runs/[0-9a-z]{{1,64}}/(?:{'|'.join(map(re.escape, _FILES))})")
SLIM = "slim archive: of single clients' figures those of their last round only"
_WHEN = (1980, 1, 1, 0, 0, 0)
"""The time of every file in an archive, so that equal results are equal bytes."""


def is_archive(path: Path) -> bool:
    """Whether a path is that of an archive rather than of a run directory."""
    return path.suffix == SUFFIX and not path.is_dir()


def read_archive(path: Path) -> Results:
    """What an archive holds, as `read` has it of a run directory."""
    with tempfile.TemporaryDirectory(prefix="leakline-") as folder:
        _unpack(path, Path(folder))
        results = read(Path(folder))
    cells = tuple(replace(cell, folder=None) for cell in results.cells)
    return replace(results, root=path.with_suffix(""), cells=cells)


def write_archive(stores: Sequence[Path], path: Path, slim: bool = False) -> int:
    """Put the finished cells of run directories and archives of one study into one; returns how many there are."""
    with ExitStack() as stack:
        roots = [_opened(store, stack) for store in stores]
        made = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leakline-")))
        cells = _gather(roots, made, slim)
        _pack(made, path)
    return cells


def _opened(store: Path, stack: ExitStack) -> Path:
    """The directory of a store; of an archive, one to which it is unpacked."""
    if not is_archive(store):
        return store
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leakline-")))
    _unpack(store, folder)
    return folder


def _gather(roots: Sequence[Path], made: Path, slim: bool) -> int:
    """One store of the finished cells of all; of cells with the same labels there may be one run only."""
    held: dict[tuple[Any, ...], tuple[Cell, Mapping[str, Any]]] = {}
    runs: dict[str, list[Path]] = {}
    grids = [Store(root).grid() for root in roots]
    for root, grid in zip(roots, grids, strict=True):
        if grid.get("name") != grids[0].get("name"):
            raise StoreError(f"these are two studies: {grids[0].get('name')} and {grid.get('name')}",
                             fix="one archive for each")  # fmt: skip
        entries = [entry for entry in grid.get("cells", []) if isinstance(entry, dict)]  # as `read` takes them
        for cell, entry in zip(read(root).cells, entries, strict=True):
            if cell.status == FINISHED and cell.folder is not None:
                _take(held, cell, entry)
                runs.setdefault(str(cell.key), []).append(cell.folder)
    if not held:
        raise StoreError("no cell of these is finished", fix="run the study first: `leakline run`")
    for key in {str(cell.key) for cell, _ in held.values()}:
        newest, *older = dict.fromkeys(reversed(runs[key]))
        _copy(newest, made / "runs" / key)
        for folder in older:
            _add_attacks(folder, made / "runs" / key)
        if slim:
            _thin(made / "runs" / key)
    settings = {key: value for key, value in grids[-1].items() if key != "cells"}
    notes = list(dict.fromkeys(str(note) for grid in grids for note in grid.get("notes", [])))
    notes += [SLIM] if slim and SLIM not in notes else []
    write_json(made / "study.json", {**settings, "notes": notes, "cells": [entry for _, entry in held.values()]})
    if (roots[-1] / "study.toml").is_file():
        (made / "study.toml").write_bytes(read_bytes(roots[-1] / "study.toml"))
    return len(held)


def _take(held: dict[tuple[Any, ...], tuple[Cell, Mapping[str, Any]]], cell: Cell, entry: Mapping[str, Any]) -> None:
    """Add a cell; the same run may come twice, with more attacks than before, but not another run for its labels."""
    labels = tuple(sorted((str(k), str(v)) for k, v in cell.labels.items()))
    before = held.get(labels)
    if before is not None and before[0].key != cell.key:
        raise StoreError(
            f"two runs of one cell: {' '.join(map(str, cell.labels.values()))}",
            fix="give the store whose figures count, or take the other's cell out with another --only",
        )
    if before is None or len(cell.attacks) >= len(before[0].attacks):
        held[labels] = (cell, entry)


def _copy(run: Path, folder: Path) -> None:
    make_folder(folder)
    for name in _FILES:
        if (run / name).is_file():
            (folder / name).write_bytes(read_bytes(run / name, most=MOST_BYTES))


def _add_attacks(run: Path, folder: Path) -> None:
    """Add what attacks measured of the same run in another store: cells with other labels may share it."""
    there, more = (finished(Lines.read(place / "attacks.jsonl").good) for place in (folder, run))
    met = {line.get("attack") for line in there}
    append(folder / "attacks.jsonl", [line for line in more if line.get("attack") not in met])


def _thin(run: Path) -> None:
    """Leave out what single clients measured before their last round; a damaged file stays as it is, damage and all."""
    path, end = run / "readings.jsonl", read_json(run / "end.json")
    lines = Lines.read(path)
    if lines.damage or lines.unsealed or len(lines.good) != end.get("lines", {}).get(path.name):
        return
    last: dict[Any, int] = {}
    for line in lines.good:
        last[line.get("client")] = max(line.get("round", 0), last.get(line.get("client"), 0))
    kept = [line for line in lines.good if line.get("client") is None or line.get("round") == last[line["client"]]]
    write_lines(path, kept)
    write_json(run / "end.json", {**end, "lines": {**end["lines"], path.name: len(kept)}})


def _pack(root: Path, path: Path) -> None:
    """All files below a folder in the order of their names, with no time of their own."""
    with tempfile.TemporaryFile() as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
            for each in sorted(p for p in root.rglob("*") if p.is_file()):
                info = zipfile.ZipInfo(each.relative_to(root).as_posix(), _WHEN)
                info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                packed.writestr(info, each.read_bytes())
        file.seek(0)
        write_atomically(path, file.read())
    path.chmod(0o644)


def _unpack(path: Path, folder: Path) -> None:
    """Files of a store by their known names, and nothing else that an archive may hold; of bounded size."""
    left = MOST_BYTES
    try:
        with zipfile.ZipFile(path) as packed:
            entries = packed.infolist()
            if len(entries) > MOST_FILES:
                raise _refused(path, f"it has {len(entries):,} files")
            for info in entries:
                if not _NAME.fullmatch(info.filename):
                    raise _refused(path, "it holds a file that is none of a store's results")
                most = min(left, MOST_JSON if info.filename.endswith(".json") else MOST_BYTES)
                with packed.open(info) as file:
                    content = file.read(most + 1)
                if len(content) > most:
                    raise _refused(path, "it is larger than results are")
                left -= len(content)
                target = folder / info.filename
                make_folder(target.parent)
                target.write_bytes(content)
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise _refused(path, f"it cannot be read ({type(error).__name__})") from error


def _refused(path: Path, why: str) -> StoreError:
    return StoreError(f"this is no archive of results: {why}", path.name, "make it with `leakline archive`")
