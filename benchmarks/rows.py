"""One line of a benchmark, and the small tools that benchmarks share."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One measured figure and the goal it is held against.

    ``value`` is what is judged: a ratio ("x"), seconds ("s"), megabytes ("MB"). Without a goal a row informs.
    """

    table: str
    measure: str
    value: float
    unit: str = "x"
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    @property
    def goal(self) -> str:
        """The goal in words."""
        if self.at_most is not None:
            return f"<= {self.at_most:g} {self.unit}"
        return f">= {self.at_least:g} {self.unit}" if self.at_least is not None else ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without one."""
        if self.at_most is not None:
            return bool(self.value <= self.at_most)  # of NumPy's numbers too, which JSON does not take
        return bool(self.value >= self.at_least) if self.at_least is not None else None


def interleaved(
    cases: Mapping[str, Callable[[], object]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each case, measured in turn: a slow minute of the machine then slows them all. One warm-up each.

    ``clock = time.process_time`` counts this process's work only, for cases of one thread on a machine that is busy.
    """
    times: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(repeats + 1):
        for name, run in cases.items():
            start = clock()
            run()
            if turn:
                times[name].append(clock() - start)
    return times


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the ratios of measurements that were taken side by side."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def milliseconds(ours: list[float], theirs: list[float], other: str) -> str:
    """Both medians in words."""
    return f"{1e3 * statistics.median(ours):.1f} ms, {other} {1e3 * statistics.median(theirs):.1f} ms"
