"""To which code outside leakline a study's reader has agreed: asked once, and remembered by file and content."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leakline.errors import StudyError
from leakline.foreign import Foreign, Kind, fetch, locate


class Untrusted(StudyError):
    """A study names code that is not leakline's and that nobody has agreed to run."""

    def __init__(self, codes: Sequence[Foreign], where: str = "") -> None:
        self.codes = tuple(codes)
        super().__init__(
            "this study would run code that is not leakline's, and that you have not run before: "
            + "; ".join(map(str, dict.fromkeys(codes))),
            where,
            "read it; then give --trust (in Python: trust=True)",
        )


@dataclass
class Consent:
    """Who reads a study, and which of the foreign code in it they have agreed to run.

    ``trust``: all of it. Otherwise what this user has run before, as `remember` wrote it down.
    """

    beside: tuple[Path, ...] = ()
    trust: bool = False
    codes: list[Foreign] = field(default_factory=list)
    """All foreign code that was asked for."""
    refused: list[Foreign] = field(default_factory=list)

    def fetch(self, path: str, kind: Kind) -> Any | None:
        """What a name stands for, or None where it may not be imported."""
        foreign = locate(path, self.beside)
        if foreign is not None and foreign not in self.codes:
            self.codes.append(foreign)
            if not self.trust and foreign.digest not in remembered():
                self.refused.append(foreign)
        return None if foreign in self.refused else fetch(path, kind, self.beside)


def _memory() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(home) / "leakline" / "trusted"


def remembered() -> set[str]:
    """The digests of foreign code that this user has agreed to run."""
    try:
        return set(_memory().read_text(encoding="ascii", errors="ignore").split())
    except OSError:
        return set()


def remember(codes: Iterable[Foreign]) -> None:
    """Write down that this user has agreed to run some code; where there is no place for it, it is asked again."""
    new = sorted({code.digest for code in codes} - remembered())
    if not new:
        return
    with contextlib.suppress(OSError):
        _memory().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(_memory(), os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write("".join(f"{digest}\n" for digest in new))
