"""A part of a study's cells, for array jobs: the same cells whoever asks, on whichever machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from leakline.errors import StudyError

MOST_PARTS = 100_000


@dataclass(frozen=True)
class Part:
    """Part ``number`` (from 1 on) of so many parts."""

    number: int = 1
    of: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of <= MOST_PARTS:
            raise ValueError(f"there is no part {self.number} of {self.of}")

    @classmethod
    def read(cls, text: str) -> Part:
        """From "3/16"; "" is all of it."""
        if not text:
            return cls()
        numbers = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        try:
            if numbers is None:
                raise ValueError(f"not a part: {text[:40]!r}")
            return cls(int(numbers[1]), int(numbers[2]))
        except ValueError as error:
            raise StudyError(str(error), "--part", "NUMBER/PARTS, from 1/16 to 16/16") from error

    def cells(self, keys: Sequence[str]) -> list[int]:
        """The positions of its cells, given the key of each cell's run; cells that are one run stay together.

        Given the key of the run that a cell follows in place of its own, it stays with that one too. Runs are dealt
        out in turn, since neighbours in a grid take about as long as each other.
        """
        turns = {key: turn for turn, key in enumerate(dict.fromkeys(keys))}
        return [position for position, key in enumerate(keys) if turns[key] % self.of == self.number - 1]

    def __str__(self) -> str:
        return f"part {self.number} of {self.of}"
