"""Run a study and write down every call of its `Pace`, with the time: `python tests/record_pace.py STUDY OUT`.

The clock is this process's own processor time, with one worker, so that whoever else computes here does not count. The
logs in `study/paces` were made so; `study/test_pace.py` plays them again and states how wrong the time left was.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import leakline.study.run as running
import leakline.study.timing as timing
from leakline.study.pace import Kind, Pace, Standing
from leakline.study.spec import load

CALLS = ("plan", "start", "did", "skip", "end", "drop")
Log = list[list[Any]]


class Recorded(Pace):
    """A pace that keeps a log: seconds since it began, the call, its arguments; and beliefs where they change."""

    log: Log

    def __init__(self, tell: Any) -> None:
        super().__init__(tell, time.process_time)
        self.log, self._places, self._believed = [], dict[str, str](), None

    def note(self, call: str, *arguments: Any) -> None:
        now = round(self.clock() - self._start, 3)
        believed = [
            [[self._plain(kind), seconds] for kind, seconds in self.prices.tried.items()],
            [[self._place(where), steps] for where, steps in self.prices.examples.items()],
        ]
        if believed != self._believed:
            self.log.append([now, "believe", *believed])
            self._believed = believed
        self.log.append([now, call, *map(self._plain, arguments)])

    def _place(self, where: str) -> str:
        return self._places.setdefault(where, f"place {len(self._places)}")

    def _plain(self, value: Any) -> Any:
        return [value.what, self._place(value.where), value.attack] if isinstance(value, Kind) else value


def _noted(call: str) -> Any:
    def method(self: Recorded, *arguments: Any) -> None:
        self.note(call, *arguments)
        getattr(Pace, call)(self, *arguments)

    return method


for _call in CALLS:
    setattr(Recorded, _call, _noted(_call))


def replayed(log: Log) -> list[tuple[float, float | None]]:
    """What a `Pace` says of the time left at each call of a log: (seconds since the begin, left)."""
    now, told = 0.0, list[tuple[float, float | None]]()

    def tell(standing: Standing) -> None:
        told.append((now, standing.left))

    pace = Pace(tell, lambda: now)
    for now, call, *arguments in log:  # noqa: B007
        if call == "believe":
            pace.prices.tried = {Kind(*kind): seconds for kind, seconds in arguments[0]}
            pace.prices.examples = dict(arguments[1])
        else:
            getattr(pace, call)(*(Kind(*a) if isinstance(a, list) else a for a in arguments))
    return told


def errors(log: Log, shares: tuple[float, ...] = (0.1, 0.5, 0.9)) -> list[float | None]:
    """How far what was last said is from what was left, as a share of that; None where nothing was said yet."""
    told, end = replayed(log), log[-1][0]
    found: list[float | None] = []
    for share in shares:
        then, left = [(t, s) for t, s in told if t <= share * end][-1]
        passed = share * end - then
        found.append(None if left is None else max(left - passed, 0.0) / ((1 - share) * end) - 1)
    return found


def main(study: str, out: str) -> None:
    kept: list[Recorded] = []
    running.Pace = lambda tell: kept.append(Recorded(tell)) or kept[-1]
    timing.time = SimpleNamespace(perf_counter=time.process_time)
    with tempfile.TemporaryDirectory() as folder:
        for outcome in running.run_study(load(study), Path(folder), workers=1, watch=lambda standing: None):
            print(f"{time.process_time():6.1f} s  {outcome.cell.name} {outcome.error}", flush=True)
    log = kept[0].log
    Path(out).write_text("".join(json.dumps(line) + "\n" for line in log))
    print("error of the time left at a tenth, a half and nine tenths:", errors(log))


if __name__ == "__main__":
    main(*sys.argv[1:])
