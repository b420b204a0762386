"""The two doors to a directory that anybody may have filled: one for reading, one for writing.

Reading takes regular files below the directory and nothing else: no links (they lead outside), no pipes or devices
(they hang or never end), nothing beyond a size. Writing goes to a new file of a name that cannot be guessed, which
then takes the place of the old one, or to the end of a regular file. What leakline writes carries a seal, a hash of
its own content, so that damage is noticed when it is read; what has none (other programs write recordings too) is
taken as it is, and `leakline verify` says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from leakline.errors import StoreError
from leakline.names import printable

MB = 2**20
MOST_JSON = 64 * MB
MOST_LINES = 1024 * MB
MOST_WEIGHTS = 64 * 1024 * MB
SEAL = "seal"
"""The key of a hash over everything else: of a file, or of a line and the seal of the line before it."""
NEW = ".new-"
"""How files begin that have not taken their place yet."""
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)


def door(path: Path, most: int = MOST_JSON, below: Path | None = None) -> Path:
    """The path itself, if it is a regular file of at most so many bytes that no link leads to, from ``below`` on."""
    root = path.parent if below is None else below
    for part in (path, *path.parents):
        if part == root:
            break
        if part.is_symlink():
            raise _refused(path, f"{part.name} is a link")
    try:
        about = path.lstat()
    except OSError as error:
        raise _refused(path, "it cannot be opened" if path.exists() else "it is missing") from error
    if not stat.S_ISREG(about.st_mode):
        raise _refused(path, "it is no regular file")
    if about.st_size > most:
        raise _refused(path, f"it has more than {most // MB} MB")
    return path


def is_there(path: Path) -> bool:
    """Whether something of that name is there: a file, or a link wherever it leads (`door` refuses it then)."""
    return os.path.lexists(path)


def read_bytes(path: Path, most: int = MOST_JSON, below: Path | None = None) -> bytes:
    """The content of a file through the door."""
    try:
        with open(os.open(door(path, most, below), os.O_RDONLY | _NO_FOLLOW | os.O_NONBLOCK), "rb") as file:
            return file.read(min(most, os.fstat(file.fileno()).st_size) + 1)
    except OSError as error:
        raise _refused(path, f"it cannot be read ({type(error).__name__})") from error


def read_text(path: Path, most: int = MOST_JSON, below: Path | None = None) -> str:
    """The text of a file; what is not UTF-8 in it is replaced."""
    return read_bytes(path, most, below).decode("utf-8", "replace")


def read_json(path: Path, below: Path | None = None) -> dict[str, Any]:
    """A JSON table without its seal, or a clear error: it is none, or its seal does not fit."""
    try:
        table = json.loads(read_bytes(path, below=below).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"it cannot be read ({type(error).__name__})") from error
    if not isinstance(table, dict):
        raise _refused(path, "it does not hold what it should")
    seal = table.pop(SEAL, None)
    if seal is not None and seal != seal_of(table):
        raise _refused(path, "it is damaged: its seal does not fit")
    return table


def is_sealed(path: Path) -> bool:
    """Whether a JSON file carries a seal."""
    return f'"{SEAL}"' in read_text(path)


def _refused(path: Path, why: str) -> StoreError:
    return StoreError(
        f"{printable(path.name, 64)}: {why}", printable(path.parent.name, 64), "restore it, or run the study again"
    )


def seal_of(table: Mapping[str, Any], before: str = "") -> str:
    """A hash of a table and of the seal before it."""
    text = json.dumps({k: v for k, v in table.items() if k != SEAL}, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()[:12]


def make_folder(path: Path) -> None:
    """A folder for its owner's eyes only, and those above it that are missing."""
    if path.is_symlink():
        raise _refused(path, "it is a link")
    for missing in [*reversed([part for part in path.parents if not part.exists()]), path]:
        missing.mkdir(exist_ok=True, mode=0o700)


def write_json(path: Path, table: Mapping[str, Any], **style: Any) -> None:
    """A JSON table with its seal."""
    plain = json.loads(json.dumps(dict(table)))  # as it will be read: keys are text, tuples lists
    write_atomically(path, json.dumps({**plain, SEAL: seal_of(plain)}, indent=1, **style).encode())


def write_atomically(path: Path, data: bytes | Iterable[bytes | memoryview]) -> None:
    """Write beside, flush to the disk, rename: a reader sees the old file or the new one, never half.

    ``data``: the content, or its pieces in order.
    """
    handle, beside = tempfile.mkstemp(prefix=f"{NEW}{path.name[:40]}.", dir=path.parent)  # for its owner only
    try:
        with open(handle, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def sweep(folder: Path, *names: str) -> None:
    """Remove what a kill left of files by these names (of all, if none is given); whoever calls this holds them."""
    begins = tuple(f"{NEW}{name[:40]}." for name in names) or (NEW,)
    for path in folder.glob(f"{NEW}*"):
        if path.name.startswith(begins):
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def open_for_more(path: Path) -> Iterator[IO[bytes]]:
    """A regular file, made if it is missing, to be read and added to."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | _NO_FOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise _refused(path, f"it cannot be written ({type(error).__name__}: a link?)") from error
    with open(handle, "r+b") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise _refused(path, "it is no regular file")
        yield file


def append(path: Path, lines: list[dict[str, Any]]) -> None:
    """Add lines to a JSON-lines file, each sealed behind the one before; half a line that a stop left is cut off."""
    if not lines:
        return
    with open_for_more(path) as file:
        before = _cut(file)
        file.write(sealed(lines, before))
        file.flush()


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    """A JSON-lines file of these lines alone."""
    write_atomically(path, sealed(lines))


def sealed(lines: list[dict[str, Any]], before: str = "") -> bytes:
    """Lines with their seals: each is that of the line before, a dot, and its own."""
    texts = []
    for line in lines:
        plain = json.loads(json.dumps({k: v for k, v in line.items() if k != SEAL}))
        own = seal_of(plain, before)
        texts.append(json.dumps({**plain, SEAL: f"{before}.{own}"}) + "\n")
        before = own
    return "".join(texts).encode()


def _cut(file: IO[bytes]) -> str:
    """Cut half a line off the end, go there, and return the seal of the last whole line."""
    end, size, tail, last = file.seek(0, os.SEEK_END), 0, b"", -1
    while size < end and tail.rfind(b"\n", 0, max(last, 0)) < 0:
        size = min(end, max(65_536, 2 * size))
        file.seek(end - size)
        tail = file.read(size)
        last = tail.rfind(b"\n")
    file.truncate(end - len(tail) + last + 1)
    file.seek(0, os.SEEK_END)
    return own_seal(_line(tail[: last + 1].rstrip(b"\n").rpartition(b"\n")[2].decode("utf-8", "replace")) or {})


def own_seal(line: Mapping[str, Any]) -> str:
    """A line's own half of its seal."""
    return str(line.get(SEAL, "")).rpartition(".")[2]


def last_seal(path: Path) -> str:
    """The seal of the last whole line of a file; "" where there is none."""
    if not is_there(path):
        return ""
    with open_for_more(path) as file:
        return _cut(file)


@dataclass
class Lines:
    """The good lines of a JSON-lines file, and what is wrong with the others."""

    good: list[dict[str, Any]] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    unsealed: int = 0

    @classmethod
    def read(cls, path: Path, below: Path | None = None) -> Lines:
        """The lines of a file; none where it is not there. Half a line at the end (a stop) is no damage."""
        lines = cls()
        if not is_there(path):
            return lines
        text = read_text(path, MOST_LINES, below)
        before, whole = "", text.endswith("\n")
        rows = text.split("\n")[: -1 if whole else None]
        for number, row in enumerate(rows, start=1):
            line = _line(row)
            if line is None and number == len(rows) and not whole:
                continue
            before = lines._take(line, before, f"{path.name} line {number}")
        return lines

    def _take(self, line: dict[str, Any] | None, before: str, where: str) -> str:
        if line is None:
            self.damage.append(f"{where} is damaged and left out")
            return "?"
        seal = line.pop(SEAL, None)
        if seal is None:
            self.good.append(line)
            self.unsealed += 1
            return "?"
        link, _, own = str(seal).partition(".")
        if seal_of(line, link) != own:
            self.damage.append(f"{where} is damaged and left out")
            return "?"
        if before not in ("?", link):
            self.damage.append(f"{where}: lines before it are missing")
        self.good.append({**line, SEAL: seal})
        return own


def _line(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The good lines of a JSON-lines file, without their seals."""
    return [{k: v for k, v in line.items() if k != SEAL} for line in Lines.read(path).good]
