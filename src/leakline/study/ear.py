"""Who listens to the cells of a Ray cluster. It is a process of its own that computes nothing, so it loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Ear:
    """An actor that keeps the newest that was told of each cell, until somebody asks."""

    def __init__(self) -> None:
        self.told: dict[int, Mapping[str, Any]] = {}

    def tell(self, number: int, told: Mapping[str, Any]) -> None:
        """Keep what was told."""
        self.told[number] = told

    def hear(self) -> dict[int, Mapping[str, Any]]:
        """What was told since the last time."""
        told, self.told = self.told, {}
        return told
