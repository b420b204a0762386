"""Choosing a setting by its results without giving the results away: the best of a random number of runs.

See `leakline.privacy.selection`. Which runs are looked at, and how many, is drawn before anything is looked at; each
is scored by its right answers with noise on their number, and only the best one is ever named. The promise is that of
the whole procedure, for one unit of training data or one test example, and holds as long as nobody sees more of these
runs than the answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leakline.cards import Promise
from leakline.decide.limits import EPSILON, Limit
from leakline.errors import LeaklineError
from leakline.privacy import Adjacency, Claim, Event, Gaussian, Pure, Seat, Unit
from leakline.privacy.selection import chosen_epsilon
from leakline.randomness import Noise
from leakline.results import Results, Setting
from leakline.results.cell import Cell

SCORE_STD = 4.0
"""Standard deviation of the noise on the number of right answers, in answers."""


@dataclass(frozen=True)
class Candidate:
    """A setting that may be chosen, with the promise that it would have if nobody had chosen."""

    setting: Setting
    promise: Promise

    @property
    def name(self) -> str:
        """Its labels."""
        return self.setting.card.title

    @property
    def claim(self) -> Claim:
        """Its promise, to be accounted again."""
        events, promise = tuple(_event(*event) for event in self.promise.events), self.promise
        return Claim(Unit(promise.unit), Adjacency(promise.adjacency), Seat(promise.observer), events)


@dataclass(frozen=True)
class Choice:
    """What was chosen, its score with noise, and what the whole procedure costs."""

    name: str
    run: str
    measure: str
    score: float
    score_std: float
    epsilon: float
    delta: float
    alone: float
    unit: str
    candidates: int
    mean_runs: float

    @property
    def words(self) -> str:
        """For its card."""
        return (
            f"among {self.candidates} settings by the best of a random number of runs ({self.mean_runs:g} on average); "
            f"epsilon = {self.epsilon:.3g} at delta = {self.delta:g} for one {self.unit} or test example, where the "
            f"setting alone has {self.alone:.3g}; it holds if nothing else of these runs is shown"
        )


def candidates(results: Results, limits: Sequence[Limit]) -> list[Candidate]:
    """The settings with a promise for one and the same unit that keep the limits, which may be on epsilon alone."""
    for limit in limits:
        if limit.name != EPSILON:
            raise LeaklineError(
                f"{limit.name} was measured on private data: holding it against a limit is a look that nobody pays for",
                "--private",
                'limit epsilon alone, such as --max "epsilon<=8"; the most useful setting is then chosen privately',
            )
    found = [Candidate(s, p) for s in results.settings if (p := _promise(s)) is not None]
    found = [c for c in found if all(limit.holds(c.promise.epsilon or math.inf) for limit in limits)]
    if len(found) < 2:
        raise LeaklineError(
            f"{len(found)} of {len(results.settings)} settings can be chosen privately",
            results.name,
            "two or more are needed, each with a formal promise within the limits: undefended ones have none to keep",
        )
    if any(c.setting.card.stamp for c in found):
        raise LeaklineError(
            "the noise of these runs is seeded: there is no promise to keep", results.name, 'set noise = "secret"'
        )
    kinds = {(c.promise.unit, c.promise.adjacency, c.promise.observer) for c in found}
    if len(kinds) > 1:
        raise LeaklineError(
            f"the settings promise different things: {', '.join(sorted(f'one {u} ({a})' for u, a, _ in kinds))}",
            results.name,
            "choose among settings of one unit: give the others a study of their own",
        )
    return found


def draw(among: Sequence[Candidate], mean: float, noise: Noise) -> list[str]:
    """The settings of a geometric number of runs with this mean, each drawn evenly: nothing is looked at."""
    # P(K > k) = (1 - 1/mean)^k: one uniform value u gives K = 1 + floor(log u / log(1 - 1/mean)).
    first = float(noise.uniform(1)[0])
    number = 1 if mean == 1 else 1 + math.floor(math.log(1 - first) / math.log1p(-1 / mean))
    places = (noise.uniform(number) * len(among)).long().tolist()
    return [among[place].name for place in places]


def runs_of(among: Sequence[Candidate], drawn: Sequence[str]) -> list[Cell]:
    """A run of its own for each setting that was drawn: no two draws share their noise."""
    left = {c.name: [cell for cell in c.setting.cells if cell.key] for c in among}
    short = {name: drawn.count(name) - len(cells) for name, cells in left.items()}
    name = max(short, key=lambda each: short[each])
    if short[name] > 0:
        raise LeaklineError(
            f"{drawn.count(name)} runs of {name} were drawn, and there are {len(left[name])}",
            "--private",
            f"run the study with {short[name]} more seeds, then ask again: the draw is kept",
        )
    return [left[name].pop(0) for name in drawn]


def pick(
    among: Sequence[Candidate], cells: Sequence[Cell], measure: str, mean: float, delta: float, noise: Noise
) -> Choice:
    """The run with the most right answers, counted with noise."""
    owners = {cell.key: c for c in among for cell in c.setting.cells}
    shaken = (noise.normal(len(cells)) * SCORE_STD).tolist()
    scores = [_score(cell, measure) for cell in cells]
    noisy = [(value * n + z) / n for (value, n), z in zip(scores, shaken, strict=True)]
    place = max(range(len(cells)), key=lambda i: noisy[i])
    cell, owner = cells[place], owners[cells[place].key]
    epsilon = chosen_epsilon([c.claim for c in among], 1 / SCORE_STD, mean, delta)
    return Choice(
        owner.name, str(cell.key), measure, noisy[place], SCORE_STD / scores[place][1], epsilon, delta,
        owner.promise.epsilon or math.inf, owner.promise.unit, len(among), mean,
    )  # fmt: skip


def _score(cell: Cell, measure: str) -> tuple[float, int]:
    """A mean over test examples of something in [0, 1], and how many there were."""
    ends = [r for r in cell.final(measure) if r.n]
    total = sum(r.n or 0 for r in ends)
    if not total or measure not in ("accuracy", "dice"):
        raise LeaklineError(
            f"{measure or 'utility'} is no mean over test examples: one example's weight in it is not known",
            cell.label("defence"),
            "settings are chosen privately by accuracy or dice",
        )
    return sum(r.value * (r.n or 0) for r in ends) / total, total


def _promise(setting: Setting) -> Promise | None:
    """The promise that speaks for a setting, if it can be accounted again."""
    known = [p for p in setting.card.leading if p.epsilon is not None and p.events and math.isfinite(p.epsilon)]
    return min(known, key=lambda p: p.epsilon or 0.0, default=None)


def _event(size: float, times: float, *more: float) -> Event:
    """An event as a card keeps it: (mu, times, rate, copies), or (epsilon, times)."""
    return Gaussian(size, int(times), more[0], int(more[1])) if more else Pure(size, int(times))
