"""Run a study and write down every call of its `Pace`, with the time: `python tests/record_pace.py STUDY OUT`.

The clock is this process's own processor time, with one worker, so that whoever else computes here does not count. The
logs in `study/paces` were made so; `study/test_recorded_paces.py` plays them again and states how far the time left
was from the truth.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import leakline.study.run as running
import leakline.study.timing as timing
from leakline.study.pace import Kind, Pace, Standing
from leakline.study.spec import load

CALLS = ("plan", "start", "did", "prepared", "skip", "end", "drop")
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
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


def replayed(log: Log) -> list[tuple[float, Standing]]:
    """What a `Pace` says at each call of a log, with the seconds since the begin."""
    now, told = 0.0, list[tuple[float, Standing]]()

    def tell(standing: Standing) -> None:
        told.append((now, standing))

    pace = Pace(tell, lambda: now)
    for now, call, *arguments in log:  # noqa: B007
        if call == "believe":
            pace.prices.tried = {Kind(*kind): seconds for kind, seconds in arguments[0]}
            pace.prices.examples = dict(arguments[1])
        else:
            getattr(pace, call)(*(Kind(*a) if isinstance(a, list) else a for a in arguments))
    return told


@dataclass(frozen=True)
class Said:
    """What was last said of the time left at some share of a run, less what had passed since, beside the truth."""

    share: float
    truth: float
    left: tuple[float, float] | None
    about: float | None

    @property
    def error(self) -> float | None:
        """Of the one figure, as a share of the truth."""
        return None if self.about is None else self.about / self.truth - 1

    @property
    def held(self) -> bool:
        """Whether the truth is in the range, or at most what was said to be the most."""
        return self.left is None or self.left[0] <= self.truth <= self.left[1]

    def __str__(self) -> str:
        told = "not known yet" if self.left is None else "{:.1f} to {:.1f} s".format(*self.left)
        figure = "" if self.about is None else f", about {self.about:.1f} s ({self.error:+.0%})"
        return f"at {self.share:.0%}: {self.truth:.1f} s were left; said: {told}{figure}"


def said(log: Log) -> dict[float, Said]:
    """What somebody was told who looked at each of `SHARES` of the run."""
    end, told = log[-1][0], replayed(log)
    return {share: _last(told, share, end) for share in SHARES}


def _last(told: list[tuple[float, Standing]], share: float, end: float) -> Said:
    then, standing = [(t, s) for t, s in told if t <= share * end][-1]
    passed = share * end - then
    left = None if standing.left is None else tuple(max(s - passed, 0.0) for s in standing.left)
    about = None if standing.about is None else max(standing.about - passed, 0.0)
    return Said(share, (1 - share) * end, left, about)


def read(path: Path) -> Log:
    """A log as it was written."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def main(study: str, out: str) -> None:
    kept: list[Recorded] = []
    running.Pace = lambda tell: kept.append(Recorded(tell)) or kept[-1]
    timing.time = SimpleNamespace(perf_counter=time.process_time)
    with tempfile.TemporaryDirectory() as folder:
        for outcome in running.run_study(load(study), Path(folder), workers=1, watch=lambda standing: None):
            print(f"{time.process_time():6.1f} s  {outcome.cell.name} {outcome.error}", flush=True)
    log = kept[0].log
    Path(out).write_text("".join(json.dumps(line) + "\n" for line in log))
    for told in said(log).values():
        print(told)


if __name__ == "__main__":
    main(*sys.argv[1:])
