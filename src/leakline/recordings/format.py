"""The format of recordings in small pieces: names of files, layouts, lines that anybody may have written."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leakline.bench.training import Plan
from leakline.errors import StoreError
from leakline.names import is_safe
from leakline.study.files import write_atomically
from leakline.study.tensors import pack_sealed
from leakline.weights import Entry, Layout, Weights

FORMAT, VERSION = "leakline-recording", 1
SENT, RESULT = "sent", "result"
PLAN = tuple(f.name for f in dataclasses.fields(Plan))
"""What a plan may say; whoever records says what an attacker in that seat would know."""
RESTORE = "restore the file, or record the federation again"


def folder_name(index: int) -> str:
    """The folder of a round."""
    return f"round-{index:04d}"


def file_name(client: str, part: int = 0) -> str:
    """The file of an update, without its ending."""
    if not is_safe(client) or client in (SENT, RESULT):
        raise StoreError(f"a client's name cannot be a file name: {client[:40]!r}", fix="rename the client")
    return client if part == 0 else f"{client}.part-{part}"


def save_weights(path: Path, weights: Weights) -> None:
    """Weights as a file, with their layout."""
    layout = json.dumps([[e.name, list(e.shape), e.buffer] for e in weights.layout.entries])
    write_atomically(path, pack_sealed({"weights": weights.vector.contiguous()}, {"layout": layout}))


def layout_of(entries: Any, path: Path) -> Layout:
    """A layout as it was written, or an error that names the file."""
    try:
        return Layout(tuple(Entry(str(n), tuple(_size(v) for v in shape), bool(b)) for n, shape, b in entries))
    except (TypeError, ValueError) as error:
        raise StoreError(f"{path.name}: its layout is damaged", path.parent.name, RESTORE) from error


def is_size(value: Any) -> bool:
    """Whether a value is a whole number from 0 on."""
    return type(value) is int and value >= 0


def _size(value: Any) -> int:
    if not is_size(value):
        raise ValueError(f"not a size: {value!r}")
    return int(value)


def cleaned(line: Mapping[str, Any]) -> dict[str, Any]:
    """A round's line, each part of the type that it should have: anybody may have written it."""

    def listed(name: str) -> list[Any]:
        value = line.get(name)
        return value if isinstance(value, list) else []

    def numbers(value: Any) -> dict[str, float]:
        plain = value.items() if isinstance(value, dict) else ()
        return {str(k): float(v) for k, v in plain if isinstance(v, int | float) and not isinstance(v, bool)}

    kept = [n for n in listed("kept") if isinstance(n, str) and is_safe(n.partition(".part-")[0]) and "/" not in n]
    return {
        "round": line["round"],
        "cohort": [str(name) for name in listed("cohort")],
        "dropped": [
            [str(v) for v in entry] for entry in listed("dropped") if isinstance(entry, list) and len(entry) == 2
        ],
        "facts": numbers(line.get("facts")),
        "metrics": numbers(line.get("metrics")),
        "clients": [
            {**entry, "metrics": numbers(entry.get("metrics"))}
            for entry in listed("clients")
            if isinstance(entry, dict)
        ],
        "kept": kept,
        "left_out": str(line.get("left_out", "")),
    }


def json_or_none(text: str) -> Any:
    """What JSON says, or None where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def finite(value: Any) -> Any:
    """JSON has no NaN: what a client reports may hold any."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def spans(held: list[int]) -> str:
    """Rounds in words."""
    shown = ", ".join(str(i) for i in held[:12])
    return f"round{'s' if len(held) > 1 else ''} {shown}" + (", ..." if len(held) > 12 else "")
