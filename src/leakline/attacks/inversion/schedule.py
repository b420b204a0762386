"""How a search for images is gone about, and where it stands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

COARSE_TO_FINE = (0.0625, 0.125, 0.25, 0.5, 1.0)
"""Levels for networks with kinks; a smooth one needs none, and coarse ones would only cost it evaluations."""
TEMPERED = (1 / 30, 0.1, 1 / 3, 1.0)
"""Levels where noise of known law is weighed: it is taken to be so many times louder first, which smooths the way."""
EVERY = 50
"""Evaluations between checkpoints and reports."""


@dataclass(frozen=True)
class Search:
    """How the objective is minimised.

    ``iterations`` are evaluations of objective and gradient in each restart, line searches included. Half of them are
    shared evenly by all ``levels`` but the last, which has the rest; a level is the share of frequencies that are free.
    Where noise is weighed (``likelihood``) they are `TEMPERED`. None given: `COARSE_TO_FINE` for a network with kinks
    (ReLU, max pooling), free pixels at once for a smooth one.
    ``soft`` gives each level's slope of the ReLUs' soft step (infinity: exact). A level ends early once the objective
    has not fallen by 0.1 % within ``patience`` iterations.

    The first of the ``restarts`` goes through all levels, the second leaves out the coarsest, and so on; when all have
    been through, they begin again with noise of standard deviation ``spread`` on the start. The one with the lowest
    objective is the answer, so that no truth is needed to choose. Where noise is weighed that is where a posterior is
    fitted from, by ``draws`` steps of Adam, and the answer is the mean image of the one with the lowest free energy
    (see `posterior`); with ``draws = 0`` it is the likeliest image instead. ``late`` leaves the update's mismatch to
    the last level where an exactly read input can lead the way, at a quarter of the cost of an iteration. ``rate``,
    ``warm_up`` and ``signed`` are Adam's.
    """

    optimiser: Literal["lbfgs", "adam"] = "lbfgs"
    iterations: int = 1000
    levels: tuple[float, ...] = ()
    soft: tuple[float, ...] = (math.inf,)
    restarts: int = 3
    spread: float = 0.1
    patience: int = 200
    rate: float = 0.05
    warm_up: int = 50
    signed: bool = False
    late: bool = True
    draws: int = 400

    def __post_init__(self) -> None:
        if self.draws < 0:
            raise ValueError(f"draws must be 0 or more: {self.draws}")
        for name in ("iterations", "restarts", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1: {getattr(self, name)}")
        if self.levels and (any(not 0 < level <= 1 for level in self.levels) or self.levels[-1] != 1):
            raise ValueError(f"levels must lie in (0, 1] and end with 1: {self.levels}")
        count = len(self.levels or COARSE_TO_FINE)
        if len(self.soft) not in (1, count) or any(not beta > 0 for beta in self.soft):
            raise ValueError(f"soft must be one positive slope, or one for each of {count} levels: {self.soft}")


@dataclass(frozen=True)
class Standing:
    """Where a search stands, for whoever watches."""

    restart: int
    iteration: int
    iterations: int
    objective: float
    ended: bool = False

    def line(self) -> str:
        """In words."""
        return (
            f"restart {self.restart + 1}, iteration {self.iteration}/{self.iterations}, objective {self.objective:.4g}"
        )


@dataclass
class Far:
    """How far several searches are, in evaluations times images."""

    lines: Sequence[Callable[[str, float], None]]
    """By problem: who is told where its search is, and what share of all work is done."""
    images: Sequence[int]
    restarts: int
    trials: float
    """Expected of trials of labels: at first all that may be needed, then what they took."""
    usual: float
    """The share of its evaluations at which a restart is expected to end, before any has."""
    most: int
    """Evaluations of a restart."""
    tries: float = 0.0
    done: dict[tuple[int, int], float] = field(default_factory=dict)
    """By problem and restart: the share of its iterations that were made."""
    ended: set[tuple[int, int]] = field(default_factory=set)

    def tried(self, number: int, evaluations: int) -> None:
        """So many evaluations went into trials of one problem's labels."""
        self.tries += evaluations * self.images[number]
        self.lines[number]("labels tried", self.share)

    def searched(self, number: int, standing: Standing) -> None:
        """A restart of one search says where it is."""
        self.trials = self.tries
        self.done[number, standing.restart] = standing.iteration / standing.iterations
        if standing.ended:
            self.ended.add((number, standing.restart))
        self.lines[number](standing.line(), self.share)

    @property
    def share(self) -> float:
        """Of the work that is expected: restarts that go on will end where others ended."""
        usual = sum(self.done[k] for k in self.ended) / len(self.ended) if self.ended else self.usual
        made, expected = self.tries, max(self.trials, self.tries)
        for number, images in enumerate(self.images):
            for restart in range(self.restarts):
                key = (number, restart)
                done = self.done.get(key, 0.0)
                made += self.most * images * done
                expected += self.most * images * (done if key in self.ended else max(usual, done))
        return made / max(expected, 1.0)


Progress = Callable[[Standing], None]


def silent(standing: Standing) -> None:
    """No progress."""
