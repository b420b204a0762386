"""The format of recordings in small pieces: names of files, and lines that anybody may have written. No torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from leakline.errors import StoreError
from leakline.names import is_safe

FORMAT, VERSION = "leakline-recording", 1
SENT, RESULT = "sent", "result"
PLAN = (
    "epochs", "batch", "learning_rate", "optimiser", "momentum", "weight_decay", "decay_every", "decay", "proximal",
    "drop_last", "max_steps", "amsgrad", "augment",
)  # fmt: skip
"""What a plan may say, the fields of `leakline.bench.training.Plan`: what an attacker in the recorder's seat knows."""
RESTORE = "restore the file, or record the federation again"


def folder_name(index: int) -> str:
    """The folder of a round."""
    return f"round-{index:04d}"


def file_name(client: str, part: int = 0) -> str:
    """The file of an update, without its ending."""
    if not is_safe(client) or client in (SENT, RESULT):
        raise StoreError(f"a client's name cannot be a file name: {client[:40]!r}", fix="rename the client")
    return client if part == 0 else f"{client}.part-{part}"


def is_size(value: Any) -> bool:
    """Whether a value is a whole number from 0 on."""
    return type(value) is int and value >= 0


def cleaned(line: Mapping[str, Any]) -> dict[str, Any]:
    """A round's line, each part of the type that it should have: anybody may have written it."""

    def listed(name: str) -> list[Any]:
        value = line.get(name)
        return value if isinstance(value, list) else []

    def numbers(value: Any) -> dict[str, float]:
        plain = value.items() if isinstance(value, dict) else ()
        return {str(k): float(v) for k, v in plain if isinstance(v, int | float) and not isinstance(v, bool)}

    stems = [name.removesuffix(".safetensors") for name in listed("kept") if isinstance(name, str)]
    kept = [stem for stem in stems if is_safe(stem.partition(".part-")[0]) and "/" not in stem]
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
