"""What a reader must know of a measure before comparing two of its values."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Facts:
    """Direction, range and meaning of one measure."""

    meaning: str
    higher_is_better: bool = True
    low: float = 0.0
    high: float = 1.0


LOSS = Facts("training loss, mean over examples", higher_is_better=False, high=inf)
