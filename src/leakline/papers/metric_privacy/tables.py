"""The tables of paper 000 (metric privacy) in its own layout, its printed numbers beside ours.

`metric-privacy/4` and so on of `leakline export RUN --table ...`. Tables 2 to 7 and A.12 read a run of the study
metric-privacy, Tables 8 to 11 and D.13 to D.16 one of client-inference. A cell that was not run stays empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from statistics import mean, stdev
from typing import Any, Literal

from leakline.errors import StoreError
from leakline.measures import measure_of
from leakline.papers.metric_privacy import printed
from leakline.papers.metric_privacy.gaps import gap
from leakline.papers.metric_privacy.sizes import CORE, PAPER_SIZE, at_desk, at_paper_size
from leakline.readings import Reading, label_of, rule_of
from leakline.report.papers import Tables
from leakline.results import Cell, Estimate, Results
from leakline.results.estimate import over_seeds
from leakline.results.settings import groups_of
from leakline.results.table import Table

OURS = "ours: mean over seeds, with standard deviation and 95 % t-interval (cut to the range) where there are several"
WORLDS = "ours: mean over worlds with the target, after round 1, [95 % t-interval]"
LAST = 5
Judge = Literal["clients", "server"]
_COUNTS = ("", "total", "class 0", "class 1", "class 2", "class 3")


def table_1(results: Results) -> Table:
    """Table 1: classes of the training and test part."""
    held = _partition(results.finished)
    parts = {
        "train": [v for k, v in held.items() if not k.startswith("server")],
        "test": [v for k, v in held.items() if k.startswith("server")],
    }
    rows = []
    for name, ours in parts.items():
        rows += [(f"{name} (paper)", *printed.PARTS[name]), (f"{name} (ours)", *_totals(ours))]
    return Table("Table 1: original training and test part", _COUNTS, tuple(rows), "ours: what the run's parties hold")


def _clients(results: Results, scenario: str, title: str, note: str = "") -> Table:
    held = [v for k, v in _partition(of_scenario(results, scenario)).items() if not k.startswith("server")]
    rows = []
    for i, paper in enumerate(printed.CLIENTS[scenario], start=1):
        rows += [(f"client {i} (paper)", *paper), (f"client {i} (ours)", *_totals(held[i - 1 : i]))]
    return Table(title, _COUNTS, tuple(rows), note)


def _last_rounds(results: Results, scenario: str, title: str, judge: Judge = "clients") -> Table:
    cells = of_scenario(results, scenario)
    grid = cells.by("strategy", "defence")

    def ours(strategy: str, defence: str) -> Any:
        runs = [accuracies(c, judge)[-LAST:] for c in _cells(grid, strategy, defence)]
        means = over_seeds(measure_of("accuracy"), [mean(v) for v in runs if v])
        if means is None or means.sd is not None:
            return means
        spread = stdev(runs[0]) if len(runs[0]) > 1 else math.nan
        return f"{means.mean:.3f} ± {spread:.3f}"

    asked = judge == "clients" and any(r.client is not None for c in cells.cells for r in c.readings)
    where = "the clients' test data, weighted by examples" if asked else "the server's test data, not the clients'"
    note = f"one seed: mean ± standard deviation over the rounds, as the paper; otherwise {OURS}; measured on {where}"
    rows = [
        (name, *_beside(lambda i, s=s: _pm(printed.LAST_ROUNDS[_paper(scenario)][s][i]), partial(ours, s)))  # type: ignore[misc]
        for s, name in _strategies(scenario)
    ]
    return Table(title, _columns("strategy"), tuple(rows), note)


def _test(results: Results, scenario: str, title: str) -> Table:
    grid = of_scenario(results, scenario).by("strategy", "defence")
    rows = []
    for s, name in _strategies(scenario):
        for at, measure in enumerate(("accuracy", "f1", "precision")):
            paper = [row[at] for row in printed.TEST[_paper(scenario)][s]]
            rows.append((name, measure, *_beside(paper.__getitem__, partial(_final, grid, measure, s))))
    return Table(title, _columns("strategy", "measure"), tuple(rows), OURS)


def _over_runs(results: Results, scenario: str, title: str) -> Table:
    grid = of_scenario(results, scenario).by("strategy", "defence")
    rows = []
    for s, name in _strategies(scenario):
        paper = [_pm(pair) for pair in printed.FIVE_RUNS[s]]
        rows.append((name, *_beside(paper.__getitem__, partial(_final, grid, "accuracy", s))))
    return Table(title, _columns("strategy"), tuple(rows), f"{OURS}; paper: five runs")


def _paper(scenario: str) -> str:
    """Which of the paper's partitions a scenario has."""
    return "homogeneous" if scenario == PAPER_SIZE else scenario


def _strategies(scenario: str) -> list[tuple[str, str]]:
    """The strategies of a scenario and their names: at the paper's size those of the preset `core`."""
    return [(s, name) for s, name in printed.STRATEGIES.items() if scenario != PAPER_SIZE or s in CORE]


def table_11(results: Results) -> Table:
    """Table 11: test loss after round 1 of the client inference scenario."""
    return _test_losses(at_desk(results), "11")


def _test_losses(cells: Results, number: str) -> Table:
    grid = cells.by("strategy", "defence")
    rows = []
    for s, name in printed.STRATEGIES.items():
        rows.append((name, *_beside(printed.TEST_LOSS[s].__getitem__, partial(_figure, grid, "test-loss", s))))
    title = f"Table {number}: test loss after round 1, client inference scenario"
    return Table(title, _columns("strategy"), tuple(rows), WORLDS)


def _inference(results: Results, strategy: str, number: str) -> Table:
    return _losses(at_desk(results), strategy, number)


def _losses(cells: Results, strategy: str, number: str) -> Table:
    grid = cells.by("strategy", "defence")
    aggregated, shadow, difference = printed.CLIENT_INFERENCE[strategy]
    inside, absent = {"shadow": "inside", "world": "present"}, {"shadow": "inside", "world": "absent"}
    lines: tuple[tuple[str, str, dict[str, str], Sequence[float | None]], ...] = (
        ("aggregated", "aggregated-loss", {"world": "present"}, aggregated),
        ("target (shadow set)", "shadow-loss", inside, shadow),
        ("difference (%)", "difference-percent", inside, difference),
        ("difference (%) without the target", "difference-percent", absent, (None,) * 3),
    )
    rows = [
        (name, *_beside(paper.__getitem__, partial(_figure, grid, what, strategy, **about)))
        for name, what, about, paper in lines
    ]
    note = (
        f"{WORLDS}. The last row is the world that the paper did not run: the figure when nobody is there to be found"
    )
    title = f"Table {number}: client inference, {printed.STRATEGIES[strategy]}"
    return Table(title, _columns("loss after round 1"), tuple(rows), note)


def nine_at_paper_size(results: Results) -> Table:
    """Table 9 at the paper's size: client inference after round 1, FedAvg."""
    return _losses(at_paper_size(results), "fedavg", "9, at the paper's size")


def eleven_at_paper_size(results: Results) -> Table:
    """Table 11 at the paper's size: test loss after round 1."""
    return _test_losses(at_paper_size(results), "11, at the paper's size")


def noise(results: Results) -> Table:
    """What was really added: distance and noise of every setting; the control has metric privacy's noise exactly."""
    rows = []
    settings = results.finished.by("scenario", "strategy", "defence").items()
    for labels, cells in sorted(settings, key=lambda some: (some[0][0], printed.place_of(some[0][1]))):
        facts = [facts for c in cells.cells for facts in c.facts]
        std = [float(f["noise_std"]) for f in facts if "noise_std" in f]
        far = [float(f["distance"]) for f in facts if "distance" in f]
        if std:
            span = (min(far), mean(far), max(far)) if far else (None, None, None)
            rows.append((*labels, *span, mean(std), len(std)))
    columns = ("scenario", "strategy", "defence", "smallest d", "mean d", "largest d", "mean noise std", "rounds")
    return Table("Distances and noise", columns, tuple(rows), "d < 1: more noise than global DP with the same z")


def inference(results: Results) -> Table:
    """The client inference attack with a world to compare with: AUC, accuracy and true positives of every score."""
    rows = []
    figures = ("auc", "balanced-right", "tpr at fpr=0.01", "tpr at fpr=0.1")
    for cell in results.finished.cells:
        for (by, score), readings in groups_of(cell.attacks, lambda r: (r.by, rule_of(r.about))).items():
            named = {label_of(r.measure, {k: v for k, v in r.about.items() if k == "fpr"}): r for r in readings}
            if "auc" in named:
                shown = (_interval(named.get(m)) for m in figures)
                labels = (cell.labels.get(name, "") for name in ("scenario", "strategy", "defence", "seed"))
                rows.append((*labels, by, score, *shown, named["auc"].n, named["auc"].note))
    columns = (
        "scenario", "strategy", "defence", "seed", "attack", "score, shadow", "AUC", "balanced accuracy",
        "TPR at 1 % FPR", "TPR at 10 % FPR", "worlds", "ceiling",
    )  # fmt: skip
    note = "95 % intervals: DeLong for the AUC, Clopper-Pearson for shares; chance: 0.5, 0.5, 0.01, 0.1"
    return Table("Client inference in paired worlds", columns, tuple(rows), note)


# --- what they are made of ---------------------------------------------------------------------------------------

Grid = dict[Any, Results]


def of_scenario(results: Results, scenario: str) -> Results:
    """Finished cells; those of one scenario where the study has scenarios."""
    return results.finished.where(scenario=scenario if scenario == PAPER_SIZE else (scenario, ""))


def accuracies(cell: Cell, judge: Judge = "clients") -> list[float]:
    """Accuracy by round: of the clients' test data by examples where clients judged, else of the server's."""
    held = {row["name"]: int(row["test"]) for row in cell.holders}
    readings = [r for r in cell.readings if r.measure == "accuracy" and r.round is not None]
    judged = groups_of((r for r in readings if r.client is not None), lambda r: r.round)
    if judge == "server" and judged and cell.federation.get("evaluate") != "both":
        return []
    if judge == "server" or not judged:
        whole = {r.round: float(r.value) for r in readings if r.client is None and r.round is not None}
        return [value for _, value in sorted(whole.items())]
    shares = [[(float(r.value), held.get(str(r.client), 1)) for r in judged[index]] for index in sorted(judged)]
    return [sum(a * n for a, n in own) / sum(n for _, n in own) for own in shares]


def _cells(grid: Grid, strategy: str, defence: str) -> tuple[Cell, ...]:
    return grid[strategy, defence].cells if (strategy, defence) in grid else ()


def _final(grid: Grid, measure: str, strategy: str, defence: str) -> Estimate | None:
    """A measure of the last round, over seeds."""
    newest = (cell.newest(measure) for cell in _cells(grid, strategy, defence))
    return over_seeds(measure_of(measure), [float(r.value) for r in newest if r is not None])


def _figure(grid: Grid, measure: str, strategy: str, defence: str, **about: str) -> Estimate | None:
    """A figure over worlds, with the attack's own t-interval; of the first attack that gives it."""
    if (strategy, defence) not in grid:
        return None
    r = next(iter(grid[strategy, defence].where(measure=measure, **about).every), None)
    if r is None or r.low is None or r.high is None or "sd" not in r.about:
        return None if r is None else Estimate(float(r.value))
    return Estimate(float(r.value), float(r.about["sd"]), r.low, r.high, r.n or 1)


def _partition(results: Results) -> dict[str, tuple[int, ...]]:
    """Who holds how many of each class, from the first run that says so."""
    rows = next((cell.holders for cell in results.cells if cell.holders), [])
    classes = len(_COUNTS) - 2
    if any(len(row["counts"]) != classes for row in rows):
        raise StoreError(
            f"this run has {len(rows[0]['counts'])} classes, the paper's table has {classes}",
            fix="ask for it of a run of metric-privacy or client-inference",
        )
    return {str(row["name"]): tuple(int(n) for n in row["counts"]) for row in rows}


def _totals(parts: Sequence[tuple[int, ...]]) -> tuple[Any, ...]:
    """The sum over all classes, and the sum of each."""
    classes = [sum(column) for column in zip(*parts, strict=True)]
    return (sum(classes), *classes) if parts else (None,) * 5


def _columns(*first: str) -> tuple[str, ...]:
    """For each defence the paper's cell and ours; the control, which the paper lacks, last."""
    names = (f"{printed.SHOWN[d]} ({whose})" for d in printed.DEFENCES for whose in ("paper", "ours"))
    return (*first, *names, f"{printed.SHOWN[printed.CONTROL]} (ours)")


def _beside(paper: Callable[[int], Any], ours: Callable[[str], Any]) -> tuple[Any, ...]:
    pairs = (value for place, d in enumerate(printed.DEFENCES) for value in (paper(place), ours(d)))
    return (*pairs, ours(printed.CONTROL))


def _interval(reading: Reading | None) -> str:
    """A value with its interval, as text."""
    if reading is None:
        return ""
    span = "" if reading.low is None or reading.high is None else f" [{reading.low:.3f}, {reading.high:.3f}]"
    return f"{float(reading.value):.3f}{span}"


def _pm(pair: tuple[float, float]) -> str:
    return f"{pair[0]:.3f} ± {pair[1]:.3f}"


def named(make: Callable[..., Table], what: str, *given: str) -> Callable[[Results], Table]:
    """A table of a shape that several have, with its first line for the menu."""

    def table(results: Results) -> Table:
        return make(results, *given)

    table.__doc__ = what
    return table


_SKEW = "The classes' mix hardly differs: the skew is one of size."
_TARGET = "The paper's rows sum to 824 images of class 0 where the data set has 724: ours gives the target 424."
_SAME = "at the paper's size, homogeneous clients"
_SHAPED: dict[str, tuple[Callable[..., Table], tuple[str, ...]]] = {
    "2": (_clients, ("homogeneous", "Table 2: homogeneous clients")),
    "3": (_clients, ("non-iid", "Table 3: non-iid clients", _SKEW)),
    "4": (_last_rounds, ("homogeneous", "Table 4: accuracy over the last five rounds, homogeneous clients")),
    "5": (_test, ("homogeneous", "Table 5: test set, homogeneous clients")),
    "6": (_last_rounds, ("non-iid", "Table 6: accuracy over the last five rounds, non-iid clients")),
    "4-server": (_last_rounds, ("homogeneous", "Table 4, judged by the server, homogeneous clients", "server")),
    "6-server": (_last_rounds, ("non-iid", "Table 6, judged by the server, non-iid clients", "server")),
    "7": (_test, ("non-iid", "Table 7: test set, non-iid clients")),
    "A12": (_over_runs, ("homogeneous", "Table A.12: test accuracy over runs, homogeneous clients")),
    f"4-{PAPER_SIZE}": (_last_rounds, (PAPER_SIZE, f"Table 4, {_SAME}: accuracy over the last five rounds")),
    f"5-{PAPER_SIZE}": (_test, (PAPER_SIZE, f"Table 5, {_SAME}: test set")),
    f"A12-{PAPER_SIZE}": (_over_runs, (PAPER_SIZE, f"Table A.12, {_SAME}: test accuracy over runs")),
    "8": (_clients, ("client-inference", "Table 8: clients for client inference", _TARGET)),
}
"""Tables with a scenario and a title."""
_STRATEGIES = {
    "9": "fedavg", "10": "fedopt", "D13": "fedavgm", "D14": "fedmedian", "D15": "fedprox", "D16": "fedyogi",
}  # fmt: skip
"""Tables of client inference by strategy; the caption of Table 10 says FedYogi."""

TABLES: Tables = {
    f"metric-privacy/{name}": make
    for name, make in {
        "1": table_1,
        **{name: named(make, f"{given[1]}.", *given) for name, (make, given) in _SHAPED.items()},
        **{
            name: named(_inference, f"Table {n}: client inference after round 1, {printed.STRATEGIES[s]}.", s, n)
            for name, s in _STRATEGIES.items()
            for n in [name.replace("D", "D.")]
        },
        "11": table_11, f"9-{PAPER_SIZE}": nine_at_paper_size, f"11-{PAPER_SIZE}": eleven_at_paper_size,
        "gap": gap, "inference": inference, "noise": noise,
    }.items()
}  # fmt: skip
