"""Does metric privacy beat its alternatives: paired differences, and one pooled test that was fixed beforehand.

A pair is one strategy under one partition. Its difference is metric privacy's test accuracy after the last round less
the other's, paired by seed and averaged over seeds. Pooled over all pairs: the mean with a t-interval over pairs, and
a two-sided sign test of how many lie above 0. Pairs share data and seeds, so both are a little too sure; neither is
chosen after looking.

The other is global DP at equal z, and the control at equal noise: the same clip with plain noise of the standard
deviations that metric privacy's own cell of that strategy, partition and seed had, round by round (`ReplayedNoise`).
A gain over the first that is none over the second is one of less noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from leakline.papers.metric_privacy import printed
from leakline.results import Estimate, Results
from leakline.results.estimate import estimate
from leakline.results.table import Table

OTHERS = ("global-dp", printed.CONTROL, "none")
EVERY = "all partitions"
POOLED = (
    "pairs: a strategy and a partition, differences averaged over seeds; t-interval over pairs, two-sided sign test"
)
"""What is made of the pairs, for whoever prints it."""


@dataclass(frozen=True)
class Pooled:
    """Differences over strategies and partitions: their mean, how many lie above 0, and the sign test's p."""

    estimate: Estimate | None
    more: int = 0
    pairs: int = 0
    p: float = 1.0
    seeds: int | None = None

    def __str__(self) -> str:
        return f"{self.more} of {self.pairs} above 0, p = {self.p:.3f}" if self.pairs else ""


def differences(results: Results, other: str) -> dict[tuple[str, str], Estimate]:
    """Metric privacy's accuracy less another's, over seeds, by partition and strategy."""
    found = {}
    for place, cells in results.finished.by("scenario", "strategy").items():
        by_seed = {name: _accuracy(some) for name, some in cells.by("defence").items()}
        ours, theirs = by_seed.get("metric-privacy", {}), by_seed.get(other, {})
        left = estimate([value - theirs[seed] for seed, value in ours.items() if seed in theirs])
        if left is not None:
            found[place] = left
    return found


def pooled(results: Results, other: str) -> Pooled:
    """The test of all pairs together."""
    from scipy.stats import binomtest

    found = differences(results, other)
    means = [left.mean for left in found.values()]
    told = [value for value in means if value != 0]  # a tie has no sign
    more = sum(value > 0 for value in told)
    if not told:
        return Pooled(estimate(means))
    seeds = min(left.seeds for left in found.values())
    return Pooled(estimate(means), more, len(told), float(binomtest(more, len(told)).pvalue), seeds)


def gap(results: Results) -> Table:
    """Does metric privacy beat global DP: test accuracy less global DP's, at equal z and at equal actual noise."""
    by_other = {other: differences(results, other) for other in OTHERS}
    places = list(dict.fromkeys(place for found in by_other.values() for place in found))
    rows: list[tuple[object, ...]] = []
    for scenario in dict.fromkeys(scenario for scenario, _ in places):
        here = [place for place in places if place[0] == scenario]
        rows += [(*place, *(by_other[other].get(place) for other in OTHERS)) for place in here]
        means = (estimate([by_other[o][p].mean for p in here if p in by_other[o]]) for o in OTHERS)
        rows.append((scenario, "mean over strategies", *means))
    tests = [pooled(results, other) for other in OTHERS]
    rows.append((EVERY, "mean over pairs", *(test.estimate for test in tests)))
    rows.append((EVERY, "sign test", *(str(test) or None for test in tests)))
    columns = ("scenario", "strategy", "less global DP (equal z)", "less matched noise (replayed)", "less vanilla")
    note = (
        "metric privacy's test accuracy less the other's, paired by seed; an interval around 0 shows no difference; "
        "means over strategies and pairs: with the t-interval over them, each counted once; sign test: two-sided, over "
        "pairs of a strategy and a partition, fixed before any run"
    )
    return Table("Metric privacy against its alternatives", columns, tuple(rows), note)


def _accuracy(results: Results) -> Mapping[object, float]:
    return {c.labels.get("seed"): float(r.value) for c in results.cells if (r := c.newest("accuracy"))}
