"""One cell of a study: trained if it is missing, met by its attacks; in this process, or wherever it was sent to."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from leakline.attacks.base import Attack
from leakline.errors import LeaklineError
from leakline.federation import Federation
from leakline.messages import Keep
from leakline.runtimes.client import reason_of
from leakline.runtimes.forks import Tells
from leakline.runtimes.local import DEADLINE
from leakline.study.cells import Study
from leakline.study.claims import Busy
from leakline.study.counted import Counted
from leakline.study.lab import Lab, meet
from leakline.study.pace import Pace, Standing
from leakline.study.sources import sourced
from leakline.study.store import Store
from leakline.study.timing import place_of
from leakline.study.train import Opens, silent, train_run

How = Literal["trained", "there", "busy", "failed"]
"""How a cell went: it was trained, nothing was missing, another process is at it, something went wrong."""
TELL_SECONDS = 0.3
"""How often another process says at most how far it is."""


@dataclass(frozen=True)
class Work:
    """The cells of a study that are to be done, the key of each one's run, and what is needed to do any of them."""

    study: Study
    keys: Sequence[str]
    store: Store
    workers: int = 0
    opens: Opens | None = None
    deadline: float = DEADLINE

    @cached_property
    def meeting(self) -> dict[str, list[Attack]]:
        """By run: all attacks that meet it. Cells that differ in their attacks alone are one, which keeps for all."""
        met: dict[str, list[Attack]] = {key: [] for key in self.keys}
        for cell, key in zip(self.study.cells, self.keys, strict=True):
            met[key] += self.study.attacks_on(cell).values()
        return met

    @cached_property
    def sources(self) -> dict[int, int]:
        """By the number of a cell: that of the one that it follows."""
        numbers = {id(cell): number for number, cell in enumerate(self.study.cells)}
        found = {number: self.study.source_of(cell) for number, cell in enumerate(self.study.cells) if cell.follows}
        return {number: numbers[id(source)] for number, source in found.items()}

    @property
    def groups(self) -> list[str]:
        """For each cell the key of its run, or of the one that it follows: what has to be done by one command."""
        return [self.keys[self.sources.get(number, number)] for number in range(len(self.keys))]

    def do(self, number: int, pace: Pace | None) -> dict[str, Any]:
        """Do one cell, whatever becomes of it; says how it went, in plain values."""
        try:
            return {"how": self._do(number, pace)}
        except Busy:
            return {"how": "busy"}
        except Exception as error:  # whatever goes wrong in one cell, the others go on
            told = str(error) if isinstance(error, LeaklineError) else f"this cell failed: {reason_of(error)}"
            return {"how": "failed", "error": told}

    def _do(self, number: int, pace: Pace | None) -> How:
        cell, key = self.study.cells[number], self.keys[number]
        federation = sourced(self.store, cell.federation().granted)
        counted = None
        if pace is not None:
            place = (f"cell {number + 1} of {len(self.study.cells)}", cell.name)
            counted = Counted(pace, cell.name, place, place_of(federation))
            counted.train()
        before = self.store.run(key).end
        run = train_run(
            self.store,
            federation,
            workers=self.workers,
            keep=wanted(self.meeting[key], federation),
            delta=self.study.delta,
            title=cell.name,
            progress=silent if counted is None else counted.round,
            opens=self.opens,
            deadline=self.deadline,
        )
        meet(self.study.attacks_on(cell), Lab(federation, self.store, run, self.workers, counted=counted))
        return "trained" if before is None or before["status"] != "finished" else "there"

    def tell(self, number: int, planned: Pace | None, tells: Tells) -> dict[str, Any]:
        """Do one cell in another process than the one that counts, which is told how far it is."""
        if planned is None:
            return self.do(number, None)
        cell = self.study.cells[number].name
        last = time.monotonic()

        def listen(standing: Standing) -> None:
            nonlocal last
            if time.monotonic() - last >= TELL_SECONDS:
                last = time.monotonic()
                tells({"work": pace.of_cell(cell), "path": standing.path})

        pace = Pace(listen)
        pace.expect(cell, planned.of_cell(cell))
        return {**self.do(number, pace), "work": pace.of_cell(cell)}


def wanted(attacks: Iterable[Attack], federation: Federation) -> Keep:
    """Which updates the attacks ask to be kept."""
    asks = [attack.wants(federation) for attack in attacks]
    return lambda index, client: any(ask(index, client) for ask in asks)
