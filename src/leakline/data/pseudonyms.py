"""Pseudonyms for patients: a keyed hash, so that nobody without the key can try out names or numbers.

HMAC-SHA256 under a key of this user, which is made at first use and kept for its owner only
($XDG_STATE_HOME/leakline/pseudonyms), or under the key in a file that several people share. Whoever has the key and a
list of patients can tell who is who: it is as secret as the list.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from leakline.data.guard import reading
from leakline.errors import DataError
from leakline.names import printable

LEAST, MOST = 16, 4096
"""Bytes that a key has."""


def pseudonyms(key_file: str = "") -> Callable[[str], str]:
    """A function from a patient's name or number to a pseudonym of 16 hexadecimal digits; "" stays ""."""
    key = _read(Path(key_file)) if key_file else _own_key()

    def pseudonym(patient: str) -> str:
        return hmac.new(key, patient.encode("utf-8", "replace"), hashlib.sha256).hexdigest()[:16] if patient else ""

    return pseudonym


def _read(path: Path) -> bytes:
    with reading(path), open(path, "rb") as file:
        key = file.read(MOST + 1)
    if not LEAST <= len(key) <= MOST:
        raise DataError(
            f"a key has from {LEAST} to {MOST} bytes, this file {len(key)}{' or more' if len(key) > MOST else ''}",
            printable(path), "make one: python -c \"import secrets; open('key', 'wb').write(secrets.token_bytes(32))\"",
        )  # fmt: skip
    return key


def _own_key() -> bytes:
    """This user's key; made where there is none, and for this process alone where there is no place for it."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    path = Path(home) / "leakline" / "pseudonyms"
    fresh = secrets.token_bytes(32)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
    except FileExistsError:
        return _read(path)
    except OSError:
        return fresh
    with os.fdopen(handle, "wb") as file:
        file.write(fresh)
    return fresh
