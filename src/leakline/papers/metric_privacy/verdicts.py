"""What became of paper 000's tables and of its claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean

from leakline.papers.metric_privacy import printed
from leakline.papers.metric_privacy.gaps import POOLED, pooled
from leakline.papers.metric_privacy.sizes import PAPER_SIZE, at_desk, at_paper_size
from leakline.papers.metric_privacy.tables import TABLES
from leakline.readings import Reading
from leakline.report.verdicts import NOT_RUN, Row, Verdicts, claim_row, examples, impossible, otherwise, rows_of
from leakline.results import Results
from leakline.results.estimate import estimate

DATA = "alzheimer-mri"
ACCURACY = ("4", "6", "5", "7", "A12")
ACCURACY_SAME = tuple(f"{number}-{PAPER_SIZE}" for number in ("4", "5", "A12"))
AT_SIZE = "at the paper's size: "
WORLDS = ("9", "10", "D13", "D14", "D15", "D16", "11")


def verdicts(stores: Mapping[str, Results]) -> Verdicts:
    """Tables 2 to 11, A.12 and D.13 to D.16, and what the text concludes from them."""
    trained, inferred = stores["metric-privacy"], stores["client-inference"]
    found: dict[str, list[Row]] = {}
    for numbers, cells in ((ACCURACY, at_desk(trained)), (ACCURACY_SAME, at_paper_size(trained))):
        other = otherwise(cells, DATA, rounds=20, learning_rate=0.001)
        for number in numbers:
            table = TABLES[f"metric-privacy/{number}"](trained)
            found[table.title] = rows_of(table, _judged_on(cells, number[0] in "46"), other)
    worlds = next((r.n for r in inferred.where(measure="auc").every if r.n), None)
    for number in WORLDS:
        table = TABLES[f"metric-privacy/{number}"](inferred)
        rows = rows_of(table, worlds, _otherwise(at_desk(inferred)))
        found[table.title] = _nearest(rows, number, inferred, worlds)
    found["Table 8: clients for client inference"] = [
        impossible("target, class 0", "524", "the three clients would hold 824 images of class 0, the data set has 724")
    ]
    gains = [*_gains(at_desk(trained)), *_gains(at_paper_size(trained), AT_SIZE)]
    found["What the paper concludes"] = [*gains, *_protection(inferred)]
    return found


def _judged_on(results: Results, by_clients: bool) -> int | None:
    """On how many test examples an accuracy stands: the clients' own where these judged, else the server's."""
    cells = results.finished.cells
    asked = (cell for cell in cells if by_clients and any(r.client is not None for r in cell.readings))
    if (cell := next(asked, None)) is None:
        return examples(cells, "accuracy")
    clients = {r.client for r in cell.readings if r.measure == "accuracy"}
    return sum(int(row["test"]) for row in cell.holders if row["name"] in clients)


def _otherwise(cells: Results) -> str:
    return otherwise(cells, DATA, epochs=20, learning_rate=0.001)


def _nearest(rows: list[Row], number: str, results: Results, worlds: int | None) -> list[Row]:
    """The rows of a table, each as it was run at the paper's size where it was."""
    same_size = TABLES.get(f"metric-privacy/{number}-{PAPER_SIZE}")
    if same_size is None:
        return rows
    theirs = rows_of(same_size(results), worlds, _otherwise(at_paper_size(results)))
    note = "at the paper's size"
    return [
        row if own.verdict == NOT_RUN else replace(own, note=f"{note}; {own.note}" if own.note else note)
        for row, own in zip(rows, theirs, strict=True)
    ]


def _gains(results: Results, where: str = "") -> list[Row]:
    """Metric privacy against global DP at equal z, and against as much noise: pooled over strategies and partitions."""
    rows = []
    for other, words, paper in (
        (
            "global-dp",
            "metric privacy is more accurate than global DP at equal z",
            "every strategy but FedOpt and FedYogi in Table 7",
        ),
        (printed.CONTROL, "and than as much noise with nothing measured (matched noise)", "not in the paper"),
    ):
        gaps = pooled(results, other)
        row = claim_row(f"{where}{words}, mean over strategies, partitions and seeds", paper, gaps.estimate, gaps.pairs)
        rows.append(replace(row, note=f"{gaps}; n: pairs; {POOLED}" if gaps.pairs else POOLED))
    return rows


def _aucs(results: Results, **where: str) -> list[Reading]:
    """AUC of the paper's statistic with the shadow set inside the target's data."""
    cells = results.where(attack="client-inference", measure="auc", shadow="inside", **where)
    return [r for r in cells.every if r.about.get("rule") == "paper"]


def _protection(results: Results) -> list[Row]:
    """Whether an attacker who has both worlds to compare does better than chance under each defence."""
    desk, same_size = at_desk(results), at_paper_size(results)
    rows = [_protected(_aucs(desk, defence=defence), defence) for defence in printed.DEFENCES[1:]]
    for defence in printed.DEFENCES[1:]:
        rows.append(_protected(_aucs(same_size, defence=defence), defence, AT_SIZE))
    return [*rows, _hidden(desk)]


def _protected(best: Sequence[Reading], defence: str, where: str = "") -> Row:
    what = f"{where}{printed.SHOWN[defence]} protects against client inference: AUC of the paper's statistic"
    if not best:
        return Row(what, "protected")
    low = mean(r.low for r in best if r.low is not None)
    value = mean(float(r.value) for r in best)
    seen = sum(r.low is not None and r.low > 0.5 for r in best)
    verdict = "not reproduced" if seen else "undecided"
    note = f"mean over strategies; n: worlds, 2 a seed; the interval lies above chance under {seen} of {len(best)}"
    return Row(what, "protected", f"{value:.3f}", f"mean lower end {low:.3f}", best[0].n, _pairs(best), verdict, note)


def _pairs(found: Sequence[Reading]) -> int:
    """In how many pairs of worlds the attack was tried: each is trained with a seed of its own, and n has both."""
    return min((r.n or 0) // 2 for r in found)


def _hidden(results: Results) -> Row:
    """Whether metric privacy hides more than as much noise with nothing measured does."""
    gained, pairs = [], []
    for strategy in printed.STRATEGIES:
        ours, theirs = (_aucs(results, strategy=strategy, defence=d) for d in ("metric-privacy", printed.CONTROL))
        if ours and theirs:
            gained.append(mean(float(r.value) for r in theirs) - mean(float(r.value) for r in ours))
            pairs.append(_pairs([*ours, *theirs]))
    what = "metric privacy protects better than matched noise: AUC of the paper's statistic there less its own"
    row = claim_row(what, "not in the paper", estimate(gained), len(gained))
    return replace(row, seeds=min(pairs, default=None), note="n: strategies; t-interval over them")
