"""The tables of paper 000 (metric privacy) in its own layout, its printed numbers beside ours.

`metric-privacy/4` and so on of `leakline export RUN --table ...`. Tables 2 to 7 and A.12 read a run of the study
metric-privacy, Tables 8 to 11 and D.13 to D.16 one of client-inference. A cell that was not run stays empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from leakline.papers.metric_privacy import printed
from leakline.papers.metric_privacy.store import (
    accuracies,
    attack_figure,
    by_setting,
    final,
    finished,
    group,
    interval,
    partition,
    totals,
)
from leakline.readings import label_of, rule_of
from leakline.results.frames import Estimate, estimate
from leakline.results.table import Table
from leakline.study.store import Store

OURS = "ours: mean over seeds, with standard deviation and 95 % t-interval where there are several"
LAST = 5


def table_1(root: Path) -> Table:
    """Table 1: classes of the training and test part."""
    rows = []
    found = partition(finished(root))
    clients = [v for k, v in found.items() if not k.startswith("server")]
    server = [v for k, v in found.items() if k.startswith("server")]
    for name, parts in (("train", clients), ("test", server)):
        rows.append((f"{name} (paper)", *printed.PARTS[name]))
        rows.append((f"{name} (ours)", *totals(parts)))
    return Table("Table 1: original training and test part", _COUNTS, tuple(rows), "ours: what the run's parties hold")


def table_2(root: Path) -> Table:
    """Table 2: classes at the homogeneous clients."""
    return _counts(root, "homogeneous", "Table 2: homogeneous clients")


def table_3(root: Path) -> Table:
    """Table 3: classes at the non-iid clients."""
    return _counts(
        root, "non-iid", "Table 3: non-iid clients", "The classes' mix hardly differs: the skew is one of size."
    )


def table_8(root: Path) -> Table:
    """Table 8: classes at the clients of the client inference scenario."""
    note = "The paper's rows sum to 824 images of class 0 where the data set has 724: ours gives the target 424."
    return _counts(root, "client-inference", "Table 8: clients for client inference", note)


def table_4(root: Path) -> Table:
    """Table 4: accuracy over the last five rounds, homogeneous clients."""
    return _last_rounds(root, "homogeneous", "Table 4: accuracy over the last five rounds, homogeneous clients")


def table_5(root: Path) -> Table:
    """Table 5: accuracy, F1 and precision on the test set, homogeneous clients."""
    return _test(root, "homogeneous", "Table 5: test set, homogeneous clients")


def table_6(root: Path) -> Table:
    """Table 6: accuracy over the last five rounds, non-iid clients."""
    return _last_rounds(root, "non-iid", "Table 6: accuracy over the last five rounds, non-iid clients")


def table_7(root: Path) -> Table:
    """Table 7: accuracy, F1 and precision on the test set, non-iid clients."""
    return _test(root, "non-iid", "Table 7: test set, non-iid clients")


def table_a12(root: Path) -> Table:
    """Table A.12: test accuracy over several runs, homogeneous clients."""
    cells = by_setting(finished(root, "homogeneous"))

    def ours(strategy: str, defence: str) -> Estimate | None:
        return estimate([final(c, "accuracy") for c in cells.get((strategy, defence), ())])

    def paper(strategy: str, place: int) -> str:
        return _pm(printed.FIVE_RUNS[strategy][place])

    return _beside("Table A.12: test accuracy over runs, homogeneous clients", paper, ours, f"{OURS}; paper: five runs")


def table_9(root: Path) -> Table:
    """Table 9: client inference after round 1, FedAvg."""
    return _inference(root, "fedavg", "9")


def table_10(root: Path) -> Table:
    """Table 10: client inference after round 1, FedOpt (the caption says FedYogi)."""
    return _inference(root, "fedopt", "10")


def table_d13(root: Path) -> Table:
    """Table D.13: client inference after round 1, FedAvgM."""
    return _inference(root, "fedavgm", "D.13")


def table_d14(root: Path) -> Table:
    """Table D.14: client inference after round 1, FedMedian."""
    return _inference(root, "fedmedian", "D.14")


def table_d15(root: Path) -> Table:
    """Table D.15: client inference after round 1, FedProx."""
    return _inference(root, "fedprox", "D.15")


def table_d16(root: Path) -> Table:
    """Table D.16: client inference after round 1, FedYogi."""
    return _inference(root, "fedyogi", "D.16")


def table_11(root: Path) -> Table:
    """Table 11: test loss after round 1 of the client inference scenario."""
    cells = by_setting(finished(root))

    def ours(strategy: str, defence: str) -> Estimate | None:
        return attack_figure(cells.get((strategy, defence), ()), "test-loss")

    def paper(strategy: str, place: int) -> float:
        return printed.TEST_LOSS[strategy][place]

    return _beside("Table 11: test loss after round 1, client inference scenario", paper, ours, _WORLDS)


def noise(root: Path) -> Table:
    """What metric privacy really added: distance and noise of every setting, and the constant that matches it."""
    store, rows = Store(root), []
    for (scenario, strategy, defence), cells in group(finished(root), "scenario", "strategy", "defence").items():
        facts = [r.get("facts", {}) for c in cells if c.key for r in store.run(c.key).rounds()]
        std = [float(f["noise_std"]) for f in facts if "noise_std" in f]
        far = [float(f["distance"]) for f in facts if "distance" in f]
        if std:
            span = (min(far), mean(far), max(far)) if far else (None, None, None)
            rows.append((scenario, strategy, defence, *span, mean(std), len(std)))
    columns = ("scenario", "strategy", "defence", "smallest d", "mean d", "largest d", "mean noise std", "rounds")
    return Table("Distances and noise", columns, tuple(rows), "d < 1: more noise than global DP with the same z")


def gap(root: Path) -> Table:
    """Does metric privacy beat global DP: test accuracy less global DP's, at equal z and at equal actual noise."""
    others = ("global-dp", printed.CONTROL, "none")
    rows: list[tuple[object, ...]] = []
    for scenario, own in group(finished(root), "scenario").items():
        means: dict[str, list[float]] = {other: [] for other in others}
        for strategy, cells in group(own, "strategy").items():
            seeds: dict[str, dict[Any, float]] = {}
            for cell in cells:
                seeds.setdefault(str(cell.labels.get("defence")), {})[cell.labels.get("seed")] = final(cell, "accuracy")
            ours = seeds.get("metric-privacy", {})
            found = [estimate([ours[s] - seeds[o][s] for s in ours if s in seeds.get(o, {})]) for o in others]
            for other, one in zip(others, found, strict=True):
                means[other] += [] if one is None else [one.mean]
            rows.append((*scenario, *strategy, *found))
        rows.append((*scenario, "mean over strategies", *(estimate(values) for values in means.values())))
    columns = ("scenario", "strategy", "less global DP (equal z)", "less matched noise (equal noise)", "less vanilla")
    note = (
        "metric privacy's test accuracy less the other's, paired by seed; an interval around 0 shows no difference; "
        "mean over strategies: with the t-interval over strategies, each counted once"
    )
    return Table("Metric privacy against its alternatives", columns, tuple(rows), note)


def inference(root: Path) -> Table:
    """The client inference attack with a world to compare with: AUC, accuracy and true positives of every score."""
    rows = []
    for cell in finished(root):
        scores: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
        for line in cell.attacks:
            about = line.get("about", {})
            figure = label_of(line["measure"], {"fpr": about["fpr"]} if "fpr" in about else {})
            scores.setdefault((str(line.get("by", "")), rule_of(about)), {})[figure] = line
        for (by, score), found in scores.items():
            if "auc" in found:
                shown = (interval(found.get(m)) for m in ("auc", "balanced-right", "tpr at fpr=0.01", "tpr at fpr=0.1"))
                labels = (cell.labels.get(name, "") for name in ("strategy", "defence", "seed"))
                rows.append((*labels, by, score, *shown, found["auc"].get("n"), found["auc"].get("note", "")))
    columns = (
        "strategy", "defence", "seed", "attack", "score, shadow", "AUC", "balanced accuracy", "TPR at 1 % FPR",
        "TPR at 10 % FPR", "worlds", "ceiling",
    )  # fmt: skip
    note = "95 % intervals: DeLong for the AUC, Clopper-Pearson for shares; chance: 0.5, 0.5, 0.01, 0.1"
    return Table("Client inference in paired worlds", columns, tuple(rows), note)


# --- the shapes --------------------------------------------------------------------------------------------------

_COUNTS = ("", "total", "class 0", "class 1", "class 2", "class 3")
_WORLDS = "ours: mean over worlds with the target, after round 1, [95 % t-interval]"


def _beside(title: str, paper: Callable[[str, int], Any], ours: Callable[[str, str], Any], note: str) -> Table:
    """Strategies down; for each defence the paper's cell and ours; the control, which the paper lacks, last."""
    columns = ["strategy"]
    for defence in printed.DEFENCES:
        columns += [f"{printed.SHOWN[defence]} (paper)", f"{printed.SHOWN[defence]} (ours)"]
    rows = []
    for strategy, name in printed.STRATEGIES.items():
        row: list[Any] = [name]
        for place, defence in enumerate(printed.DEFENCES):
            row += [paper(strategy, place), ours(strategy, defence)]
        rows.append((*row, ours(strategy, printed.CONTROL)))
    return Table(title, (*columns, f"{printed.SHOWN[printed.CONTROL]} (ours)"), tuple(rows), note)


def _last_rounds(root: Path, scenario: str, title: str) -> Table:
    cells = by_setting(finished(root, scenario))
    by_clients = any("client" in line for c in finished(root, scenario) for line in c.readings)

    def ours(strategy: str, defence: str) -> Any:
        found = [accuracies(c)[-LAST:] for c in cells.get((strategy, defence), ())]
        means = estimate([mean(v) for v in found if v])
        if means is None or means.sd is not None:
            return means
        spread = stdev(found[0]) if len(found[0]) > 1 else math.nan
        return f"{means.mean:.3f} ± {spread:.3f}"

    where = "the clients' test data, weighted by examples" if by_clients else "the server's test data, not the clients'"
    note = f"one seed: mean ± standard deviation over the rounds, as the paper; otherwise {OURS}; measured on {where}"
    return _beside(title, lambda s, place: _pm(printed.LAST_ROUNDS[scenario][s][place]), ours, note)


def _test(root: Path, scenario: str, title: str) -> Table:
    cells = by_setting(finished(root, scenario))
    columns = ["strategy", "measure"]
    for defence in printed.DEFENCES:
        columns += [f"{printed.SHOWN[defence]} (paper)", f"{printed.SHOWN[defence]} (ours)"]
    rows = []
    for strategy, name in printed.STRATEGIES.items():
        for at, measure in enumerate(("accuracy", "f1", "precision")):
            row: list[Any] = [name, measure]
            for place, defence in enumerate((*printed.DEFENCES, printed.CONTROL)):
                if defence != printed.CONTROL:
                    row.append(printed.TEST[scenario][strategy][place][at])
                row.append(estimate([final(c, measure) for c in cells.get((strategy, defence), ())]))
            rows.append(tuple(row))
    return Table(title, (*columns, f"{printed.SHOWN[printed.CONTROL]} (ours)"), tuple(rows), OURS)


def _inference(root: Path, strategy: str, number: str) -> Table:
    cells = by_setting(finished(root))
    lines = (
        ("aggregated", "aggregated-loss", {"world": "present"}, 0),
        ("target (shadow set)", "shadow-loss", {"shadow": "inside", "world": "present"}, 1),
        ("difference (%)", "difference-percent", {"shadow": "inside", "world": "present"}, 2),
        ("difference (%) without the target", "difference-percent", {"shadow": "inside", "world": "absent"}, None),
    )
    columns = ["loss after round 1"]
    for defence in printed.DEFENCES:
        columns += [f"{printed.SHOWN[defence]} (paper)", f"{printed.SHOWN[defence]} (ours)"]
    rows = []
    for name, measure, about, at in lines:
        row: list[Any] = [name]
        for place, defence in enumerate((*printed.DEFENCES, printed.CONTROL)):
            if defence != printed.CONTROL:
                row.append(None if at is None else printed.CLIENT_INFERENCE[strategy][at][place])
            row.append(attack_figure(cells.get((strategy, defence), ()), measure, **about))
        rows.append(tuple(row))
    note = (
        f"{_WORLDS}. The last row is the world that the paper did not run: the figure when nobody is there to be found"
    )
    title = f"Table {number}: client inference, {printed.STRATEGIES[strategy]}"
    return Table(title, (*columns, f"{printed.SHOWN[printed.CONTROL]} (ours)"), tuple(rows), note)


def _counts(root: Path, scenario: str, title: str, note: str = "") -> Table:
    found = [v for k, v in partition(finished(root, scenario)).items() if not k.startswith("server")]
    rows = []
    for i, paper in enumerate(printed.CLIENTS[scenario]):
        rows.append((f"client {i + 1} (paper)", *paper))
        rows.append((f"client {i + 1} (ours)", *(totals([found[i]]) if i < len(found) else (None,) * 5)))
    return Table(title, _COUNTS, tuple(rows), note)


def _pm(pair: tuple[float, float]) -> str:
    return f"{pair[0]:.3f} ± {pair[1]:.3f}"


TABLES: dict[str, Callable[[Path], Table]] = {
    "metric-privacy/1": table_1, "metric-privacy/2": table_2, "metric-privacy/3": table_3,
    "metric-privacy/4": table_4, "metric-privacy/5": table_5, "metric-privacy/6": table_6,
    "metric-privacy/7": table_7, "metric-privacy/8": table_8, "metric-privacy/9": table_9,
    "metric-privacy/10": table_10, "metric-privacy/11": table_11, "metric-privacy/A12": table_a12,
    "metric-privacy/D13": table_d13, "metric-privacy/D14": table_d14, "metric-privacy/D15": table_d15,
    "metric-privacy/D16": table_d16, "metric-privacy/gap": gap, "metric-privacy/inference": inference,
    "metric-privacy/noise": noise,
}  # fmt: skip
