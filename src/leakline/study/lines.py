"""Which line of a TOML file a key stands on, so that an error can say where."""

from __future__ import annotations

import re

Path = tuple[str | int, ...]

_TABLE = re.compile(r"^\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*((?:"[^"]*"|'[^']*'|[\w.-])+)\s*=""")
_INLINE = re.compile(r"""[{,]\s*("[^"]*"|'[^']*'|[\w-]+)\s*=""")


def key_lines(text: str) -> dict[Path, int]:
    """Line numbers (from 1) by path of keys. Inline tables count for the line that they begin on."""
    found: dict[Path, int] = {}
    table: Path = ()
    counts: dict[Path, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE.match(line):
            table = _parts(header[2])
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            found.setdefault(table, number)
        elif key := _KEY.match(line):
            path = (*table, *_parts(key[1]))
            found.setdefault(path, number)
            for inner in _INLINE.finditer(line, key.end()):
                found.setdefault((*path, *_parts(inner[1])), number)
    return found


def line_of(lines: dict[Path, int], path: Path) -> int | None:
    """The line of a key, also inside a preset or scenario, or of the nearest table around it."""
    if path not in lines and (inner := [n for p, n in lines.items() if len(p) > len(path) and p[-len(path) :] == path]):
        return inner[0]
    for stop in range(len(path), 0, -1):
        if (exact := lines.get(path[:stop])) is not None:
            return exact
        # A list of inline tables has no paths of its own: look for the key without its position.
        if (loose := lines.get(tuple(p for p in path[:stop] if not isinstance(p, int)))) is not None:
            return loose
    return None


def _parts(dotted: str) -> Path:
    return tuple(part.strip().strip("\"'") for part in re.findall(r""""[^"]*"|'[^']*'|[^.]+""", dotted))
