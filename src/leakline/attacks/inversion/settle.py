"""Which of several ways to have labels, and to deal them out to steps, is the client's: the one that fits best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil

from torch import Tensor

from leakline.attacks.inversion.problem import Problem
from leakline.attacks.inversion.schedule import Search
from leakline.attacks.inversion.search import searches

RUNGS = (30, 90)
"""Evaluations that each way gets in a round of trials; after each the best third stays, less what is three times worse
than the best, and after the last the best alone."""


def settled(
    problems: Sequence[Problem],
    how: Search,
    *,
    seed: int = 0,
    workers: int = 1,
    tried: Callable[[int, int], None] = lambda number, evaluations: None,
) -> list[Problem]:
    """The problems with their labels chosen by the objective, where they have `Problem.others`.

    Successive halving (by thirds), from the same start for all ways of one problem. ``tried`` is told how many
    evaluations a round of trials took of a problem.
    """
    ways: list[list[Tensor | None]] = [[p.labels, *p.others] for p in problems]
    for rung, iterations in enumerate(RUNGS):
        trials = [
            (number, replace(problem, labels=labels, others=()))
            for number, problem in enumerate(problems)
            for labels in ways[number]
            if len(ways[number]) > 1
        ]
        if not trials:
            break
        short = replace(how, iterations=iterations, restarts=1, draws=0)
        found = searches([problem for _, problem in trials], short, seed=seed, workers=workers)
        for number in {n for n, _ in trials}:
            tried(number, sum(made.iterations for i, made in enumerate(found) if trials[i][0] == number))
            mine = [(made.objective, i) for i, made in enumerate(found) if trials[i][0] == number]
            keep = 1 if rung == len(RUNGS) - 1 else ceil(len(mine) / 3)
            best = min(mine)[0]
            ways[number] = [trials[i][1].labels for value, i in sorted(mine)[:keep] if value <= 3 * best]
    return [replace(problem, labels=way[0], others=()) for problem, way in zip(problems, ways, strict=True)]


def most_trials(ways: int) -> int:
    """How many evaluations it takes at most to choose among so many ways."""
    total = 0
    for iterations in RUNGS:
        total, ways = total + (ways * iterations if ways > 1 else 0), ceil(ways / 3)
    return total
