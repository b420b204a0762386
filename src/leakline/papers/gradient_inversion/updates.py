"""What a store kept of the updates that attacks asked for: how many steps they took, and how long they are."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from leakline.names import is_safe
from leakline.papers.gradient_inversion.store import Setting


@dataclass(frozen=True)
class Kept:
    """One update as it crossed the wire: local steps, and the Euclidean norm of its weights without buffers."""

    steps: int
    norm: float


def kept(root: Path, setting: Setting, client: str, index: int) -> Kept | None:
    """The update of a client in a round, if the store kept it and it can be read."""
    folder = root / "runs" / str(setting.cell.key) / "kept" / f"round-{index:04d}"
    path, sent = folder / f"{client}.safetensors", folder / "sent.safetensors"
    if not is_safe(client) or client == "sent" or not path.is_file() or not sent.is_file():
        return None
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(sent, framework="np") as file:
            layout = json.loads(file.metadata()["layout"])
        # Buffers come after all weights (`Layout`).
        weights = sum(math.prod(shape) for _, shape, buffer in layout if not buffer)
        with safe_open(path, framework="np") as file:
            delta = file.get_tensor("delta").astype("float64")[:weights]
            return Kept(int(file.metadata()["steps"]), float((delta @ delta) ** 0.5))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        return None
