"""What a node remembers of its client between rounds: private layers, and the memory of its defences.

It lives in the node's own `Context.state`, and, where the node has a folder of its own, also there: Flower forgets
the state when a run ends, and a study that is gone on with is another run. Each entry says after which round it was
kept, and a turn starts from the newest one before its own round: an order that arrives twice, or again after a
restart, finds what it found the first time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from leakline.bench.memory import flatten, pack, unpack
from leakline.messages import Memory
from leakline.study.files import write_atomically

KEPT_ROUNDS = 3
"""A turn may be taken one round ahead, and a server that died before it wrote that round's model down goes back two."""


class Shelf:
    """The memory of one client in one run (``key``)."""

    def __init__(self, state: Any, key: str, folder: Path | None = None) -> None:
        self.state, self.name = state, f"leakline-{key}"
        self.file = None if folder is None else folder / f"{key}.safetensors"

    def entries(self) -> dict[int, Memory]:
        """Memories by the round after which they were kept."""
        packed = b""
        if self.name in self.state:
            packed = self.state[self.name]["memory"].numpy().tobytes()
        elif self.file is not None and self.file.is_file():
            packed = self.file.read_bytes()
        return {int(name): memory for name, memory in unpack(packed).items()}

    def newest(self) -> int:
        """The last round that something was kept after, or -1."""
        return max(self.entries(), default=-1)

    def recall(self, before: int) -> Memory:
        """What was known before round ``before``; nothing at first."""
        entries = self.entries()
        earlier = [index for index in entries if index < before]
        return entries[max(earlier)] if earlier else {}

    def keep(self, index: int, memory: Memory) -> None:
        """Keep what is known after round ``index``."""
        tensors, plain = flatten(memory)
        if not tensors and all(value == {} for value in plain.values()):
            return  # nothing in it: most defences keep nothing at clients
        entries = {i: m for i, m in self.entries().items() if i < index}
        entries[index] = memory
        newest = sorted(entries)[-KEPT_ROUNDS:]
        packed = pack({str(i): entries[i] for i in newest})
        self.state[self.name] = ArrayRecord({"memory": Array(np.frombuffer(packed, dtype=np.uint8))})
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.file, packed)
