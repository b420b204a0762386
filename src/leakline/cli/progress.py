"""How far a command has come: a live bar on a terminal, otherwise a plain line now and then."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from leakline.cli.console import out
from leakline.text import clean

if TYPE_CHECKING:
    from leakline.study.pace import Standing

EVERY = 30.0
"""Seconds between two lines where there is no terminal."""


class Progress:
    """A live bar on a terminal; otherwise a plain line, at most two a minute."""

    def __init__(self, cells: int) -> None:
        self.cells, self.done, self.last = cells, 0, time.monotonic()
        self.bar: Any = None

    def __enter__(self) -> Progress:
        if out.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (
                BarColumn(bar_width=16),
                TextColumn("{task.percentage:>3.0f} %"),
                TextColumn("{task.description}"),
            )
            self.bar = Progress(*columns, console=out, transient=True)
            self.bar.start()
            self.task = self.bar.add_task("starting", total=1.0)
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def standing(self, standing: Standing) -> None:
        """What is being done now, and how long all of it will still take."""
        self._show(standing.line(), standing.share)

    def round(self, cell: str, done: int, rounds: int, figures: Mapping[str, float]) -> None:
        """A round of a cell is done elsewhere (on Flower), where nobody counts the work."""
        self._show(f"cell {self.done + 1} of {self.cells}, {cell}, round {done} of {rounds}", None)

    def cell(self, name: str, how: str, cells: int) -> None:
        """A cell of so many is done: trained, failed or already there."""
        self.done, self.cells = self.done + 1, cells
        self._show(f"cell {self.done} of {self.cells}, {name}: {how}", None, now=self.done == self.cells)

    def _show(self, line: str, share: float | None, now: bool = False) -> None:
        if self.bar is not None:
            text = clean(line).replace("[", "\\[")  # a bar reads markup, and names are anybody's
            self.bar.update(self.task, description=text, **({} if share is None else {"completed": share}))
        elif now or time.monotonic() - self.last >= EVERY:
            self.last = time.monotonic()
            out.print(clean(line))
