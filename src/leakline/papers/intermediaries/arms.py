"""Arms of paper 004 (z, v, strategy): all seeds of one, what each round wrote down, and both epsilons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from leakline.mechanisms import client_mu
from leakline.papers.intermediaries import printed
from leakline.privacy.gdp import gdp_epsilon
from leakline.results import Cell, Estimate, Results
from leakline.results.estimate import estimate
from leakline.results.settings import groups_of

FIGURE, EQUAL_STEPS, BEST = "figure", "equal-steps", "best-round"
OWN = ("rsna-ich", "prostate")
"""Scenarios whose names begin so are on the paper's own data."""
INSIDE = ("patient-level", "record-level")
"""Scenarios whose names begin so have DP-SGD inside each client: their promises are to its patients or records."""
NETWORKS = ("small-network", "large-network")
"""Scenarios whose names begin so have Table 1's arms with the network or the rate of those inside: controls between the
two."""
ASIDE = (FIGURE, EQUAL_STEPS, BEST, *NETWORKS, *INSIDE, *OWN)
"""Scenarios whose names begin so are no part of Table 1: figures, controls, and the paper's data at another size."""
RULES = ("paper", "code")
"""Ways to choose v that read un-noised updates."""


@dataclass(frozen=True)
class Arm:
    """All seeds of one setting: z (None: no privacy), parts (a number or the name of a rule), the clip bound."""

    scenario: str
    strategy: str
    clients: int
    z: float | None
    parts: int | str
    bound: str
    clip: float
    cells: tuple[Cell, ...]
    delta: float

    @property
    def rounds(self) -> list[list[Mapping[str, float]]]:
        """For each cell the facts of every round."""
        return [cell.facts for cell in self.cells]

    @property
    def split(self) -> bool:
        """Whether clients are split, or may be."""
        return self.z is not None and self.parts != 1

    @property
    def from_data(self) -> bool:
        """Whether v or C was read off un-noised updates, so that the epsilons are no promise."""
        return self.z is not None and (self.parts in RULES or self.bound == "median")

    @property
    def name(self) -> str:
        """The arm in a few words."""
        if self.z is None:
            return "no privacy"
        how = "no split" if self.parts == 1 else f"v = {self.parts}" if isinstance(self.parts, int) else self.parts
        bound = "median" if self.bound == "median" else f"C = {self.clip:g}"
        return f"z = {self.z:g}, {bound}, {how}"

    @property
    def mu(self) -> float | None:
        """What the rounds tell of one client, in standard deviations: the worst over seeds (full participation)."""
        if not self.z or any(c.federation.get("sampling", "full") != "full" for c in self.cells):
            return None
        return max(client_mu([f.get("parts", 1.0) for f in facts], self.z) for facts in self.rounds)

    @property
    def client_epsilon(self) -> float | None:
        """The epsilon of one client, whatever unit the paper prints."""
        return None if self.mu is None else gdp_epsilon(self.mu, self.delta)

    @property
    def sub_epsilon(self) -> float | None:
        """The epsilon of one sub-client, which the paper prints as if it were the client's."""
        if self.mu is None or not self.z:
            return None
        return gdp_epsilon(client_mu([1.0] * max(len(facts) for facts in self.rounds), self.z), self.delta)

    @property
    def usual_parts(self) -> float:
        """The v that tells as much of a client as the changing one did: the root of its mean square."""
        found = [math.sqrt(_mean([f.get("parts", 1.0) ** 2 for f in facts])) for facts in self.rounds if facts]
        return _mean(found)

    def by_seed(self, measure: str) -> dict[Any, float]:
        """A measure after the last round, by seed."""
        return {c.labels.get("seed"): float(r.value) for c in self.cells if (r := c.newest(measure)) is not None}

    def utility(self, measure: str) -> Estimate | None:
        """A measure after the last round over seeds, in percent."""
        return percent(list(self.by_seed(measure).values()))

    def facts(self, name: str) -> list[float]:
        """A fact of every round of every seed."""
        return [f[name] for facts in self.rounds for f in facts if name in f]


def of_table_1(results: Results) -> Results:
    """The finished cells that Table 1 is of: the paper's own data at its rounds, or else what is not set aside."""
    own = _named(results, OWN)
    full = [cell for cell in own.cells if cell.wanted == printed.ROUNDS]
    if full:
        return replace(own, cells=tuple(full))
    return results.finished.where(scenario=lambda name: not str(name).startswith(ASIDE))


def _named(results: Results, starts: str | tuple[str, ...]) -> Results:
    return results.finished.where(scenario=lambda name: str(name).startswith(starts))


def arms(results: Results, aside: str | tuple[str, ...] = "") -> list[Arm]:
    """The finished arms of a store: of Table 1, or of the scenarios whose names begin with ``aside``."""

    def clients(cell: Cell) -> int:
        order = cell.task.get("order")
        return len(order) if isinstance(order, list) else 0

    chosen = _named(results, aside) if aside else of_table_1(results)
    cells = [c for c in chosen.cells if _noisy(c) is not None]
    groups = groups_of(cells, lambda c: (c.label("scenario"), _strategy(c), clients(c), _noisy(c)))
    return [
        Arm(scenario, strategy, number, z, parts, bound, clip, tuple(some), results.delta)
        for (scenario, strategy, number, (z, parts, bound, clip)), some in groups.items()
    ]


def _noisy(cell: Cell) -> tuple[float | None, int | str, str, float] | None:
    """Noise multiplier, parts, kind of bound and bound; None for a stack that is neither plain nor client-level DP."""
    noisy = [d for d in cell.defences if "noise_multiplier" in d and "clip" in d]
    if all(_preconditions(d) for d in cell.defences):
        return None, 1, "fixed", 0.0
    if len(noisy) != 1:
        return None
    given = noisy[0]
    bound, clip = str(given.get("bound", "fixed")), float(given["clip"])
    return float(given["noise_multiplier"]), given.get("parts", 1), bound, clip


def _strategy(cell: Cell) -> str:
    """The strategy's label; a preconditioner around clip and noise counts as one, as in the paper."""
    return "dp2-rmsprop" if any(_preconditions(d) for d in cell.defences) else cell.label("strategy")


def _preconditions(defence: Mapping[str, Any]) -> bool:
    return str(defence.get("use", "")).endswith(":DelayedRmsProp")


def percent(values: Sequence[float]) -> Estimate | None:
    """Mean over seeds in percent; the t-interval is cut at 0 and 100, where it would leave them."""
    pooled = estimate([100 * v for v in values])
    return None if pooled is None else pooled.within(0.0, 100.0)


def difference(ours: Mapping[Any, float], theirs: Mapping[Any, float]) -> Estimate | None:
    """Difference in points of percent, paired by seed."""
    return estimate([100 * (ours[s] - theirs[s]) for s in ours if s in theirs])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
