"""How far a command has come: a live bar on a terminal, otherwise a plain line now and then."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from leakline.cli.console import out


class Progress:
    """A live bar on a terminal; otherwise a plain line now and then."""

    def __init__(self, cells: int) -> None:
        self.cells, self.done, self.last = cells, 0, 0.0
        self.started = time.monotonic()
        self.rounds_done = 0
        self.bar: Any = None

    def __enter__(self) -> Progress:
        if out.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed:.1f}/{task.total:.0f} cells"),
                TimeRemainingColumn(),
            )
            self.bar = Progress(*columns, console=out, transient=True)
            self.bar.start()
            self.task = self.bar.add_task("starting", total=self.cells)
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def round(self, cell: str, done: int, rounds: int, figures: Mapping[str, float]) -> None:
        """A round of a cell is done."""
        shown = next((f"{k} {v:.3f}" for k, v in figures.items()), "")
        if self.bar is not None:
            self.bar.update(
                self.task,
                description=f"{cell}: round {done}/{rounds} {shown}",
                completed=self.done + done / rounds,
            )
        elif time.monotonic() - self.last > 30:
            self.last = time.monotonic()
            out.print(f"{cell}: round {done}/{rounds} {shown}{self._left(done / rounds)}")

    def say(self, line: str) -> None:
        """What is being done now."""
        if self.bar is not None:
            self.bar.update(self.task, description=line)
        elif time.monotonic() - self.last > 30:
            self.last = time.monotonic()
            out.print(line)

    def cell(self, name: str, how: str) -> None:
        """A cell is done: trained, failed or already there."""
        self.done += 1
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done)
        elif time.monotonic() - self.last > 30 or self.done == self.cells:
            self.last = time.monotonic()
            out.print(f"{name}: {how}{self._left(0)}")

    def _left(self, part: float) -> str:
        share = (self.done + part) / self.cells
        spent = time.monotonic() - self.started
        return f" ({spent * (1 - share) / share / 60:.1f} min left)" if share > 0 and spent > 5 else ""
