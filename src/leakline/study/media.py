"""Pictures and arrays that attacks left: the hash of each stands in ``seals.json`` of the attack's folder.

A PNG or an array can hold no seal of its own as lines and JSON files do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from leakline.errors import StoreError
from leakline.names import printable
from leakline.study.files import MOST_WEIGHTS, is_there, read_bytes, read_json, write_json

SEALS = "seals.json"


def write_seals(folder: Path, content: Mapping[str, str]) -> None:
    """Write down the hashes of files of an attack's folder, by their place in it, beside those that it has already."""
    there = read_json(folder / SEALS).get("files", {}) if is_there(folder / SEALS) else {}
    write_json(folder / SEALS, {"files": dict(sorted({**there, **content}.items()))})


def hash_of(data: bytes) -> str:
    """A file's hash."""
    return hashlib.sha256(data).hexdigest()[:16]


def read_media(path: Path, run: Path, most: int) -> bytes:
    """A file below ``media`` of a run (or recording), refused where it is not what the attack wrote."""
    data = read_bytes(path, most, run)
    parts = path.relative_to(run / "media").parts
    folder = run / "media" / parts[0]
    if len(parts) > 1 and is_there(folder / SEALS):
        about = (folder / SEALS).lstat()
        if _seals(folder / SEALS, about.st_mtime_ns, about.st_size).get("/".join(parts[1:])) != hash_of(data):
            raise StoreError(f"{printable(path.name, 64)} is not what the attack wrote", printable(folder.name, 64))
    return data


@lru_cache(maxsize=64)
def _seals(path: Path, changed: int, size: int) -> Mapping[str, str]:
    """The list at a path as it was at that time."""
    files = read_json(path).get("files")
    return {str(k): str(v) for k, v in files.items()} if isinstance(files, dict) else {}


def damage(run: Path) -> Iterator[str]:
    """What is wrong with the media of a run: changed, lost, of unknown origin, or without a list."""
    for folder in sorted(p for p in (run / "media").glob("*") if p.is_dir()):
        where = f"media/{printable(folder.name, 64)}"
        there = {str(p.relative_to(folder)): p for p in sorted(folder.rglob("*")) if not p.is_dir() or p.is_symlink()}
        if there.pop(SEALS, None) is None:
            yield f"{where} has no {SEALS}"
            continue
        try:
            listed = read_json(folder / SEALS, run).get("files")
        except StoreError as error:
            yield f"{where}: {error.what}"
            continue
        lost = sorted(set(listed if isinstance(listed, dict) else ()) - set(there))
        yield from (f"{where}: {printable(name, 80)} is missing" for name in lost)
        for path in there.values():
            try:
                read_media(path, run, MOST_WEIGHTS)
            except StoreError as error:
                yield f"{where}: {error.what}"
