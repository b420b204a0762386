"""Does metric privacy beat its alternatives: paired differences, and their mean over everything.

A pair is one strategy under one partition. Its difference is metric privacy's test accuracy after the last round less
the other's, paired by seed. All pairs of a seed are averaged, and the interval is a t-interval over seeds: runs of one
seed share their data, their start and the noise itself (it is drawn by seed, round and defence, whatever the strategy),
so that a draw which happens to hurt hurts all pairs at once.

Before any run a test over pairs was stated, as if they were independent: a t-interval over pairs and a two-sided sign
test. It is still printed. It is far too sure: its 12 pairs are worth little more than the seeds they come from.

The other is global DP at equal z, and the control at equal noise: the same clip with plain noise of the standard
deviations that metric privacy's own cell of that strategy, partition and seed had, round by round (`ReplayedNoise`).
A gain over the first that is none over the second is one of less noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean

from leakline.papers.metric_privacy import printed
from leakline.papers.metric_privacy.sizes import at_desk, at_paper_size
from leakline.results import Estimate, Results
from leakline.results.estimate import estimate
from leakline.results.table import Table

OTHERS = ("global-dp", printed.CONTROL, "none")
EVERY = "all partitions"
POOLED = (
    "all pairs (a strategy and a partition) of a seed averaged, t-interval over seeds; stated before the runs, and too "
    "sure since pairs share a seed's noise: two-sided sign test over pairs"
)
"""What is made of the pairs, for whoever prints it."""


@dataclass(frozen=True)
class Pooled:
    """Differences over strategies, partitions and seeds.

    ``estimate``: their mean, with its interval over seeds. ``over_pairs``: the same with an interval over pairs, which
    is too sure. ``more`` of ``pairs`` lie above 0; ``p``: the sign test's, as if pairs were independent.
    """

    estimate: Estimate | None
    over_pairs: Estimate | None = None
    more: int = 0
    pairs: int = 0
    p: float = 1.0

    def __str__(self) -> str:
        return f"{self.more} of {self.pairs} above 0, p = {self.p:.3f}" if self.pairs else ""


_Place = tuple[str, str]


def _by_seed(results: Results, other: str) -> dict[_Place, dict[object, float]]:
    """Metric privacy's accuracy less another's, by partition and strategy, then by seed."""
    found = {}
    for place, cells in results.finished.by("scenario", "strategy").items():
        by_seed = {name: _accuracy(some) for name, some in cells.by("defence").items()}
        ours, theirs = by_seed.get("metric-privacy", {}), by_seed.get(other, {})
        left = {seed: value - theirs[seed] for seed, value in ours.items() if seed in theirs}
        if left:
            found[place] = left
    return found


def differences(results: Results, other: str) -> dict[_Place, Estimate]:
    """Metric privacy's accuracy less another's, over seeds, by partition and strategy."""
    found = ((place, estimate(list(left.values()))) for place, left in _by_seed(results, other).items())
    return {place: left for place, left in found if left is not None}


def pooled(results: Results, other: str) -> Pooled:
    """All pairs together. Seeds that lack pairs which others have are left out of the mean over seeds."""
    from scipy.stats import binomtest

    found = _by_seed(results, other)
    if not found:
        return Pooled(None)
    seeds = {seed: [left[seed] for left in found.values() if seed in left] for seed in _seeds(found)}
    most = max(len(values) for values in seeds.values())
    over_seeds = estimate([mean(values) for values in seeds.values() if len(values) == most])
    means = [mean(left.values()) for left in found.values()]
    told = [value for value in means if value != 0]  # a tie has no sign
    more = sum(value > 0 for value in told)
    p = float(binomtest(more, len(told)).pvalue) if told else 1.0
    return Pooled(over_seeds, estimate(means), more, len(told), p)


def _seeds(found: Mapping[_Place, Mapping[object, float]]) -> list[object]:
    return list(dict.fromkeys(seed for left in found.values() for seed in left))


def gap(results: Results) -> Table:
    """Does metric privacy beat global DP: test accuracy less global DP's, at equal z and at equal actual noise."""
    by_other = {other: differences(results, other) for other in OTHERS}
    places = list(dict.fromkeys(place for found in by_other.values() for place in found))
    rows: list[tuple[object, ...]] = []
    for scenario in dict.fromkeys(scenario for scenario, _ in places):
        here = sorted((p for p in places if p[0] == scenario), key=lambda p: printed.place_of(p[1]))
        rows += [(*place, *(by_other[other].get(place) for other in OTHERS)) for place in here]
        means = (estimate([by_other[o][p].mean for p in here if p in by_other[o]]) for o in OTHERS)
        rows.append((scenario, "mean over strategies", *means))
    one_size = at_desk(results) if at_desk(results).cells else at_paper_size(results)
    tests = [pooled(one_size, other) for other in OTHERS]
    rows.append((EVERY, "mean, interval over seeds", *(test.estimate for test in tests)))
    rows.append((EVERY, "mean, interval over pairs", *(test.over_pairs for test in tests)))
    rows.append((EVERY, "sign test over pairs", *(str(test) or None for test in tests)))
    columns = ("scenario", "strategy", "less global DP (equal z)", "less matched noise (replayed)", "less vanilla")
    note = (
        "metric privacy's test accuracy less the other's, paired by seed; an interval around 0 shows no difference; "
        "runs of one seed share data, start and noise, so intervals over strategies or pairs and the sign test (stated "
        "before any run) are too sure: the interval over seeds is the one to read. Runs at the paper's size beside "
        "others are not pooled with them"
    )
    return Table("Metric privacy against its alternatives", columns, tuple(rows), note)


def _accuracy(results: Results) -> Mapping[object, float]:
    return {c.labels.get("seed"): float(r.value) for c in results.cells if (r := c.newest("accuracy"))}
