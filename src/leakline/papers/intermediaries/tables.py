"""Table 1 of paper 004 (intermediaries) in its own layout, and what it lacks: the epsilon of a client.

`intermediaries/1` and so on of `leakline export RUN --table ...`, of a run of intermediaries-segmentation or
intermediaries-classification. Measures are in percent, as the paper prints them, and those of the last round: the paper
takes the best round by validation data, which is a release that it does not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from leakline.papers.intermediaries import printed
from leakline.papers.intermediaries.arms import EQUAL_STEPS, OWN, Arm, arms, difference
from leakline.privacy.gdp import gdp_epsilon
from leakline.report.papers import Tables
from leakline.results import Estimate, Results
from leakline.results.table import Table

SEEDS = "mean over seeds ± standard deviation [95 % t-interval, cut at 0 and 100]"
NO_PROMISE = "no promise: v or C from un-noised updates"


def table_1(results: Results) -> Table:
    """Table 1: utility without and with intermediaries, the paper's numbers beside ours, and both epsilons."""
    task, found = task_of(results), arms(results)
    columns = ["method", "row", "no privacy (paper)", "no privacy (ours)"]
    for z in task.z:
        columns += [f"z = {z:g} (paper)", f"z = {z:g} (ours)"]
    rows = []
    for strategy, name in printed.STRATEGIES.items():
        own = [a for a in found if a.strategy == strategy]
        free = next((a for a in own if a.z is None), None)
        for label, wanted, paper in _lines(own, name):
            mine = [next((a for a in own if a.z == z and wanted(a)), None) for z in task.z]
            if paper is None and not any(mine):
                continue
            first = label == name
            for place, measure in enumerate(measures_of(own, task)):
                row: list[Any] = [label, task.shown[place]]
                row.append(printed.shown(task.none[strategy][place]) if first else None)
                row.append(free.utility(measure) if first and free else None)
                for at, arm in enumerate(mine):
                    row.append(_printed(paper, strategy, task, at, place))
                    row.append(None if arm is None else arm.utility(measure))
                rows.append(tuple(row))
            shared = (label, "epsilon of one sub-client", None, None)
            rows.append((*shared, *_pairs(task.epsilon if paper else (None,) * 3, [_sub(a) for a in mine])))
            shared = (label, "epsilon of one client", None, None)
            rows.append((*shared, *_pairs((None,) * 3, [_client(a) for a in mine])))
    note = (
        f"ours: {_ours(found)}{SEEDS}, after the last round; the paper prints the epsilon of one sub-client "
        f"({printed.ROUNDS} rounds, delta {task.delta:g}) for both rows, and not that of one client; (!) an IoU that "
        f"no masks can have: it never exceeds Dice, and equals it only at 0 and 1; * {NO_PROMISE}"
    )
    return Table(f"Table 1: {task.name}", tuple(columns), tuple(rows), note)


def equal_privacy(results: Results) -> Table:
    """Every arm by the epsilon of one client, against the best arm without a split that is at least as private."""
    return _equal_privacy("Utility at equal privacy of one client", arms(results), task_of(results))


def own_data(results: Results) -> Table:
    """The same on the paper's own data, at whatever size they were run."""
    return _equal_privacy(
        "The paper's own data: utility at equal privacy of one client", arms(results, OWN), task_of(results)
    )


def _equal_privacy(title: str, every: Sequence[Arm], task: printed.Task) -> Table:
    found = sorted((a for a in every if a.mu is not None), key=lambda a: (a.strategy, a.mu or 0.0, a.split))
    free = [a for a in every if a.z is None]
    rows: list[tuple[Any, ...]] = []
    for arm in free:
        first, second = measures_of([arm], task)
        rows.append((arm.strategy, arm.name, None, None, None, arm.utility(first), arm.utility(second), "", None))
    for arm in found:
        first, second = measures_of([arm], task)
        other = counterpart(arm, found)
        left = None if other is None else difference(arm.by_seed(first), other.by_seed(first))
        rows.append((
            arm.strategy, arm.z, _parts(arm), _client(arm), _sub(arm), arm.utility(first), arm.utility(second),
            other.name if other else "", left,
        ))  # fmt: skip
    columns = (
        "strategy", "z", "v", "epsilon of one client", "epsilon of one sub-client", task.shown[0], task.shown[1],
        "compared with", f"{task.shown[0]} gained",
    )  # fmt: skip
    note = (
        f"{_ours(found)}{SEEDS}, percent; compared with: the arm without a split that is nearest while at least as "
        "private of one client (and has more than half of the mu); gained: paired by seed; v of a rule: root mean "
        f"square over rounds; * {NO_PROMISE}"
    )
    return Table(title, columns, tuple(rows), note)


def gain(results: Results) -> Table:
    """How much of what intermediaries gain is left when a client gets the same promise."""
    task, rows = task_of(results), []
    found = [a for a in arms(results) if a.z is not None]
    for arm in (a for a in found if a.split):
        measure = measures_of([arm], task)[0]
        same = [a for a in found if a.strategy == arm.strategy]
        plain = next(iter(sorted((a for a in same if not a.split and _close(a.z, arm.z)), key=_unlike(arm))), None)
        if plain is None:
            continue
        ours, alone = arm.by_seed(measure), plain.by_seed(measure)
        claimed = difference(ours, alone)
        number = arm.parts if isinstance(arm.parts, int) else 0
        alike = [a for a in same if (a.bound, a.clip) == (arm.bound, arm.clip)]
        noisier = next((a for a in alike if a.parts == number and _close(a.z, plain.z, number)), None)
        honest = counterpart(arm, same)
        strict = None if noisier is None else difference(noisier.by_seed(measure), alone)
        loose = None if honest is None else difference(ours, honest.by_seed(measure))
        rows.append((
            arm.strategy, arm.z, _parts(arm), plain.utility(measure), arm.utility(measure), claimed,
            noisier.name if noisier else "", strict, _share(strict, claimed),
            honest.name if honest else "", loose, _share(loose, claimed),
        ))  # fmt: skip
    columns = (
        "strategy", "z", "v", f"{task.shown[0]}, no split", f"{task.shown[0]}, split", "gain at equal z",
        "split at the client epsilon of DP alone", "gain left", "share left",
        "no split at the client epsilon of the split", "gain left there", "share left there",
    )  # fmt: skip
    note = (
        "gains in points of percent, paired by seed, [95 % t-interval]; left: at equal epsilon of one client, once at "
        "that of DP alone (the split gets z v) and once at that of the split (DP alone gets z / v); "
        "a share is the ratio of the two means, given where the gain at equal z is above 0"
    )
    return Table("What is left of the gain at equal privacy of one client", columns, tuple(rows), note)


def equal_steps(results: Results) -> Table:
    """Is it its few local steps that the split loses by? The split with as many as its client takes."""
    task, rows = task_of(results), []
    found = [a for a in arms(results) if a.z is not None]
    for arm in arms(results, EQUAL_STEPS):
        measure = measures_of([arm], task)[0]
        same = [a for a in found if a.strategy == arm.strategy]
        like = (arm.parts, arm.bound, arm.clip)
        fewer = next((a for a in same if (a.parts, a.bound, a.clip) == like and _close(a.z, arm.z)), None)
        honest = counterpart(arm, same)
        base = {} if honest is None else honest.by_seed(measure)
        shorter = {} if fewer is None else fewer.by_seed(measure)
        rows.append((
            arm.strategy, arm.z, _parts(arm), None if fewer is None else fewer.utility(measure), arm.utility(measure),
            None if honest is None else honest.utility(measure), difference(shorter, base),
            difference(arm.by_seed(measure), base),
        ))  # fmt: skip
    name = task.shown[0]
    columns = (
        "strategy", "z", "v", f"{name}, split", f"{name}, split, as many steps",
        f"{name}, no split at its client epsilon", "gained by the split", "gained by the split with as many steps",
    )  # fmt: skip
    note = f"{SEEDS}, percent; gained: against no split at the same epsilon of one client, paired by seed"
    return Table("The split with as many local steps as its client", columns, tuple(rows), note)


def epsilons(results: Results) -> Table:
    """The epsilon of one client for v parts, at the paper's rounds, delta and noise multipliers; no run enters."""
    parts, rows = (1, 2, 3, 4, 5, 8), []
    for task in (printed.CLASSIFICATION, printed.SEGMENTATION):
        for z, paper in zip(task.z, task.epsilon, strict=True):
            ours = (gdp_epsilon(v * math.sqrt(printed.ROUNDS) / z, task.delta) for v in parts)
            rows.append((task.name, z, task.delta, paper, *ours))
    columns = ("task", "z", "delta", "paper, any v", *(f"v = {v}" for v in parts))
    note = "mu = v sqrt(100) / z, exact for Gaussian noise; v = 1 is one sub-client; delta 0.1 and 0.01 are no privacy"
    return Table("Epsilon of one original client", columns, tuple(rows), note)


TABLES: Tables = {
    "intermediaries/1": table_1,
    "intermediaries/equal-privacy": equal_privacy,
    "intermediaries/own-data": own_data,
    "intermediaries/gain": gain,
    "intermediaries/equal-steps": equal_steps,
    "intermediaries/epsilons": epsilons,
}


def counterpart(arm: Arm, others: Sequence[Arm]) -> Arm | None:
    """The arm without a split, of the same strategy, that is nearest while at least as private.

    Of several the one with the same clip bound, or else the first of the study. None if even that has no more than
    half of the arm's mu: to be that much more private has a price of its own.
    """
    if not arm.split or arm.mu is None:
        return None
    least, most = arm.mu * (0.5 + 1e-9), arm.mu * (1 + 1e-9)
    fair = [a for a in others if not a.split and a.strategy == arm.strategy and least < (a.mu or 0.0) <= most]
    unlike = _unlike(arm)
    return min(fair, key=lambda a: (-round(a.mu or 0.0, 9), unlike(a))) if fair else None


def _unlike(arm: Arm) -> Callable[[Arm], bool]:
    """Orders arms with the same clip bound first."""
    return lambda other: (other.bound, other.clip) != (arm.bound, arm.clip)


def task_of(results: Results) -> printed.Task:
    """The half of Table 1 that a study is about: by its data, or by its name where nothing was run."""
    kinds = [cell.task.get("kind") for cell in results.finished.cells]
    named = not kinds and results.name == "intermediaries-segmentation"
    return printed.SEGMENTATION if named or "segmentation" in kinds else printed.CLASSIFICATION


def _ours(found: Sequence[Arm]) -> str:
    """What ours was run on, which is not what the paper's was."""
    for arm in found:
        cell = arm.cells[0]
        data = cell.task.get("name", "")
        micro = any(r.measure == "auc_micro" for r in cell.readings)
        auc = "AUC is micro-averaged over classes; " if micro else ""
        return f"{data}, {arm.clients} clients, {cell.rounds} rounds; {auc}"
    return ""


def measures_of(found: Sequence[Arm], task: printed.Task) -> tuple[str, str]:
    """The paper's two measures; with more than two classes the micro-averaged AUC stands in for the AUC."""
    first, second = task.measures
    has = {r.measure for a in found for c in a.cells for r in c.readings}
    return ("auc_micro" if first == "auc_binary" and "auc_binary" not in has else first), second


def _lines(own: Sequence[Arm], name: str) -> list[tuple[str, Callable[[Arm], bool], str | None]]:
    """The rows of a strategy: DP alone, the paper's rule, and what else was run."""
    lines: list[tuple[str, Callable[[Arm], bool], str | None]] = [
        (name, lambda a: not a.split, "plain"),
        ("+Ours", lambda a: a.parts == "paper", "ours"),
    ]
    for parts in dict.fromkeys(a.parts for a in own if a.split and a.parts != "paper"):
        words = f"v = {parts}" if isinstance(parts, int) else f"rule {parts}"
        lines.append((f"+{words} (not in the paper)", lambda a, parts=parts: a.parts == parts, None))  # type: ignore[misc]
    return lines


def _printed(kind: str | None, strategy: str, task: printed.Task, at: int, place: int) -> str | None:
    if kind is None:
        return None
    first, second = (task.plain if kind == "plain" else task.ours)[strategy][at]
    if place == 0:
        return printed.shown(first)
    wrong = task.measures == ("dice", "iou") and printed.impossible(first, second)
    return printed.shown(second) + (" (!)" if wrong else "")


def _pairs(paper: Sequence[Any], ours: Sequence[Any]) -> list[Any]:
    return [value for pair in zip(paper, ours, strict=True) for value in pair]


def _parts(arm: Arm) -> Any:
    return arm.parts if isinstance(arm.parts, int) else f"{arm.parts}: {arm.usual_parts:.2f}"


def _client(arm: Arm | None) -> Any:
    return None if arm is None else _marked(arm, arm.client_epsilon)


def _sub(arm: Arm | None) -> Any:
    return None if arm is None else _marked(arm, arm.sub_epsilon)


def _marked(arm: Arm, epsilon: float | None) -> Any:
    if epsilon is None:
        return None
    return f"{epsilon:,.1f}" + ("*" if arm.from_data else "")


def _close(one: float | None, other: float | None, factor: float = 1.0) -> bool:
    return one is not None and other is not None and math.isclose(one, other * factor, rel_tol=1e-6)


def _share(left: Estimate | None, claimed: Estimate | None) -> float | None:
    if left is None or claimed is None or claimed.mean <= 0:
        return None
    return left.mean / claimed.mean
