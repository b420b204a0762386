"""Claims: who works on what in a directory that many processes share, on one machine or on a network disk.

``.training.7`` is the seventh claim to the training of a run. A claim is made by giving its file that name with a
link, which a disk does for one of any number of processes that ask. The file says who made it (machine, process,
version), and its time is renewed while they work. Of all claims of a name the newest counts. It is

    free     when it is empty: whoever made it has let go
    dead     when its process is gone from this machine, or, made on another one, when it was silent for `SILENCE`
    held     otherwise

Nobody takes a claim away: whoever finds the newest free or dead makes the next number, and tidies up behind. Two who
judge the same claim dead make the same next file, and one of them fails. The newest file stays, so numbers never go
down. A killed process leaves nothing that blocks, whenever the kill comes.

Silence is measured by the disk's own clock: a claim's time against that of a file made now. A process that was only
asleep for so long (a suspended machine) finds, before it writes, that its claim is not the newest any more.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from leakline.errors import StoreError
from leakline.names import printable
from leakline.study.files import NEW, read_bytes

BEAT = 10.0
"""Seconds between two signs of life."""
SILENCE = 120.0
"""Seconds without one after which a process of another machine counts as dead."""
POLL_SECONDS = 0.05
PRESENT = ".working."
"""How files begin that say who works in a folder."""
_MOST = 4096
"""The largest that a claim's file may be."""
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)


class Busy(StoreError):
    """What another process works on: it will be there, later."""


@dataclass(frozen=True)
class Holder:
    """Who made a claim: a machine (as it is booted), its name for people, a process and when it began, a version."""

    machine: str
    host: str
    pid: int
    began: str
    version: str
    token: str

    @classmethod
    def here(cls) -> Holder:
        """This process, for a new claim."""
        from leakline import __version__

        pid = os.getpid()
        return cls(_machine(), socket.gethostname()[:64], pid, _began(pid), __version__, secrets.token_hex(8))

    @property
    def gone(self) -> bool:
        """Whether it worked on this machine, and does so no more."""
        return self.machine == _machine() and _began(self.pid) != self.began

    def __str__(self) -> str:
        return f"process {self.pid} on {printable(self.host, 64)}" if self.pid else "one that cannot be read"


@lru_cache(maxsize=1)
def _machine() -> str:
    """This machine since it was booted, and the processes that see each other on it."""
    facts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        facts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _began(pid: int) -> str:
    """When a process of this machine began, by the kernel's ticks; "" for one that is gone, or only not buried yet."""
    if not os.path.isdir("/proc/self"):  # not Linux: a number that was given out again is taken for the same process
        with contextlib.suppress(ProcessLookupError, OverflowError):
            with contextlib.suppress(PermissionError):
                os.kill(pid, 0)
            return "?"
        return ""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state in "ZX" else rest[18]


@dataclass(frozen=True)
class Claim:
    """A claim that this process holds: the ``number``-th of its name in a folder."""

    folder: Path
    name: str
    number: int
    holder: Holder

    @property
    def path(self) -> Path:
        """Its file."""
        return self.folder / f".{self.name}.{self.number}"

    def check(self) -> None:
        """Refuse to go on if another process has made a newer claim, because this one seemed to be dead."""
        if _newest(self.folder, self.name) != self.number:
            raise Busy(
                f"this process was silent for more than {SILENCE:g} seconds, and another one has taken its work over",
                self.folder.name,
                "nothing is lost: it is waited for",
            )

    def let_go(self) -> None:
        """Empty it, so that anybody may make the next."""
        with contextlib.suppress(OSError):
            os.close(os.open(self.path, os.O_WRONLY | os.O_TRUNC | _NO_FOLLOW))


@contextlib.contextmanager
def claimed(folder: Path, name: str, *, wait: bool = False) -> Iterator[Claim]:
    """Hold a claim; `Busy` where another process does, unless ``wait``."""
    claim = _claim(folder, name)
    while claim is None:
        if not wait:
            raise Busy(
                f"another process is working on this run ({holder_of(folder, name) or 'just now'})",
                folder.name,
                "wait for it, or stop it",
            )
        time.sleep(POLL_SECONDS)
        claim = _claim(folder, name)
    with beating(claim.path):
        try:
            yield claim
        finally:
            claim.let_go()


def holder_of(folder: Path, name: str) -> Holder | None:
    """Who holds the newest claim; None where it is free or dead."""
    number = _newest(folder, name)
    return _alive(folder / f".{name}.{number}") if number else None


def _claim(folder: Path, name: str) -> Claim | None:
    """Make the next claim if the newest is free or dead; None if another process holds one, or was faster."""
    number = _newest(folder, name)
    if number and _alive(folder / f".{name}.{number}") is not None:
        return None
    claim = Claim(folder, name, number + 1, Holder.here())
    if not put(claim.path, claim.holder):
        return None
    there = _numbered(folder, name)
    newest = max(one for _, one in there)
    # Whoever looked long ago may make a number anew that was tidied up; then there is a newer one, and that one counts.
    for path, older in there:
        if older < newest:
            with contextlib.suppress(OSError):
                path.unlink()
    return claim if newest == claim.number else None


def put(path: Path, holder: Holder) -> bool:
    """Make a file that says who made it; False where there is one."""
    handle, beside = tempfile.mkstemp(prefix=f"{NEW}{path.name[:40]}.", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(json.dumps(asdict(holder)).encode())
        os.link(beside, path)
    except FileExistsError:
        # A network disk may have lost its own answer: the file is there because this process made it.
        return _read(path) == holder
    except FileNotFoundError:  # whoever holds the claim swept the file away: it is held
        return False
    except OSError as error:
        raise no_links(path.parent) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(beside)
    return True


def no_links(folder: Path) -> StoreError:
    """What is said of a disk on which claims cannot be made."""
    return StoreError(
        "this disk cannot give a file a name that only one process gets (hard links)",
        folder.name,
        "give a directory on another disk with --out",
    )


def check_disk(folder: Path) -> None:
    """Refuse a disk that has no hard links, or on which a second one takes the place of the first."""
    twice = folder / f"{NEW}twice.{secrets.token_hex(8)}"
    try:
        if not put(twice, Holder.here()) or put(twice, Holder.here()):
            raise no_links(folder)
    finally:
        twice.unlink(missing_ok=True)


@contextlib.contextmanager
def beating(path: Path) -> Iterator[None]:
    """Renew a file's time for as long as this lasts."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT):
            with contextlib.suppress(OSError):
                os.utime(path, follow_symlinks=False)

    threading.Thread(target=beat, name=f"beat{path.name}", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


@contextlib.contextmanager
def present(folder: Path) -> Iterator[Holder]:
    """Say that this process works in a folder, beside any number of others."""
    holder = Holder.here()
    path = folder / f"{PRESENT}{holder.token}"
    put(path, holder)
    with beating(path):
        try:
            yield holder
        finally:
            path.unlink(missing_ok=True)


def others(folder: Path) -> list[Holder]:
    """Who works in a folder; what the dead have left is tidied up."""
    there = []
    for path in folder.glob(f"{PRESENT}*"):
        if (holder := _alive(path)) is not None:
            there.append(holder)
        else:
            path.unlink(missing_ok=True)
    return there


def _numbered(folder: Path, name: str) -> list[tuple[Path, int]]:
    numbered = re.compile(rf"\.{re.escape(name)}\.([0-9]{{1,15}})")
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return [(folder / one, int(match[1])) for one in names if (match := numbered.fullmatch(one))]


def _newest(folder: Path, name: str) -> int:
    return max((number for _, number in _numbered(folder, name)), default=0)


def _alive(path: Path) -> Holder | None:
    """Who holds a claim; None for one that is free or dead."""
    holder = _read(path)
    if holder is None or holder.gone:
        return None
    if holder.machine == _machine():
        return holder
    return None if silent(path) else holder


def silent(path: Path) -> bool:
    """Whether a file's time was not renewed for so long, by the disk's own clock, that nobody is there."""
    handle, beside = tempfile.mkstemp(prefix=f"{NEW}now.", dir=path.parent)
    now = os.fstat(handle).st_mtime
    os.close(handle)
    with contextlib.suppress(OSError):
        os.unlink(beside)
    try:
        return now - path.lstat().st_mtime > SILENCE
    except FileNotFoundError:
        return False  # tidied up, so there is a newer one


NOBODY = Holder("", "", 0, "", "", "")
"""Who made a claim that cannot be read."""


def _read(path: Path) -> Holder | None:
    """Who made a claim; None if it is empty, and nobody that is known if it cannot be read."""
    try:
        text = read_bytes(path, _MOST)
    except StoreError:
        if os.path.lexists(path):
            raise
        return NOBODY  # tidied up in this moment: there is a newer one
    if not text:
        return None
    try:
        holder = Holder(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return NOBODY
    plain = all(isinstance(value, str) for name, value in asdict(holder).items() if name != "pid")
    return holder if plain and type(holder.pid) is int and 0 < holder.pid < 2**31 else NOBODY
