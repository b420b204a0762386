"""Names that come from data: made safe as client names, and printable in messages.

A class folder or a subject code may be called ``../../x``, ``<script>`` or ``CON``. Such text stays what it
is where it is data (class names, traits); a client's name also becomes part of paths and tables, so it is
cleaned.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{i}" for port in ("com", "lpt") for i in range(1, 10))}


def is_safe(name: str) -> bool:
    """Whether a name can be a client, a file or a directory on every system."""
    return SAFE.fullmatch(name) is not None and name.split(".")[0].lower() not in RESERVED


def client_names(labels: Iterable[str]) -> dict[str, str]:
    """A safe client name for every label, all different also where upper and lower case are the same."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    # Labels that are safe already keep their names, whatever odd label comes before them.
    for label in sorted(dict.fromkeys(labels), key=lambda text: (not is_safe(text), natural(text))):
        wish = label if is_safe(label) else clean(label)
        name, number = wish, 1
        while name.casefold() in taken:
            number += 1
            name = f"{wish[: 63 - len(str(number))]}-{number}"
        taken.add(name.casefold())
        names[label] = name
    return names


def clean(label: str) -> str:
    """The nearest safe name, not necessarily a new one."""
    plain = unicodedata.normalize("NFKD", label).encode("ascii", "ignore").decode()
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", plain).strip("-._")[:64]
    return name if is_safe(name) else f"client-{name}"[:64].rstrip("-")


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sorting key by which sub-2 comes before sub-10."""
    parts = re.findall(r"[0-9]+|[^0-9]+", text)
    return tuple((0, int(p[:18]), p) if p.isascii() and p.isdigit() else (1, 0, p) for p in parts)


GRID = ("scenario", "strategy", "defence", "seed")
"""Labels of a cell whose values speak for themselves; of others (sweeps) the key is said too."""


def label_text(name: str, value: object) -> str:
    """A label of a cell as people read it: ``fedavg``, ``rounds=5``."""
    return str(value) if name in GRID else f"{name.rpartition('.')[2]}={value}"


def printable(text: object, limit: int = 120) -> str:
    """Text for a message: one line, no control or direction characters, not too long."""
    shown = "".join(c if c.isprintable() else "?" for c in str(text).encode("utf-8", "replace").decode("utf-8"))
    return shown if len(shown) <= limit else f"{shown[: limit // 2]}...{shown[-limit // 2 + 3 :]}"
