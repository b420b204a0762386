"""As much noise as another run added, round by round: the control for noise whose size is measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from leakline.defences.base import Defence, Promises, Reach, Terms
from leakline.defences.global_dp import GlobalDP
from leakline.defences.metric_privacy import MetricPrivacy
from leakline.errors import StackError
from leakline.mechanisms import add_gaussian
from leakline.messages import Receipt, Turn
from leakline.privacy import NoClaim
from leakline.weights import Weights

REPLAYED = (GlobalDP, MetricPrivacy)
"""Whose noise can be added again: one standard deviation a round, written down, beside a clip that stays."""
ALIKE = ("clip", "at", "buffers", "denominator")
"""In what a control must not differ from the run whose noise it has."""


def _kept() -> Any:
    """A field that a study fills in; a run's hash has the key of the other run in its place."""
    return field(default=(), kw_only=True, repr=False, metadata={"described": False})


@dataclass(frozen=True)
class ReplayedNoise(GlobalDP):
    """Global DP's clip and mean with the noise of another run: its standard deviation round by round, drawn anew.

    change + N(0, s_t^2 I)        s_t = what that run added in round t

    ``of`` names another entry of [defences]. A study runs the cell with the same labels and that defence first, and
    this one with the standard deviations that it wrote down; clip, at, buffers and denominator must be that defence's.
    So the two differ in nothing but where the size of the noise comes from: if metric privacy does better than
    global DP and no better than its replay, it is for less noise. ``sigmas`` in its place are the standard deviations
    themselves, one for each round.

    It promises nothing: the size of its noise is copied from a run that may have measured it on the people it protects.
    """

    noise_multiplier: float = field(init=False, default=0.0, metadata={"quiet": True})
    epsilon: float | None = field(init=False, default=None, metadata={"quiet": True})
    delta: float | None = field(init=False, default=None, metadata={"quiet": True})
    of: str = field(default="", metadata={"described": False})
    sigmas: tuple[float, ...] = ()
    _source: tuple[Defence, ...] = _kept()
    _run: str = field(default="", kw_only=True, repr=False, metadata={"described": False})
    _told: tuple[float, ...] = _kept()
    _least: float | None = field(default=None, kw_only=True, repr=False, metadata={"described": False})

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "sigmas", tuple(float(std) for std in self.sigmas))
        if bool(self.of) == bool(self.sigmas):
            given = "of and sigmas are both given" if self.of else "there is neither of nor sigmas"
            raise ValueError(f"{given}: give one of the two, the defence whose noise is added again or its sizes")
        if wrong := [std for std in self.sigmas if not 0 <= std < math.inf]:
            raise ValueError(f"sigmas are standard deviations, finite and not negative: {wrong[0]}")

    @property
    def loudness(self) -> float:
        """The largest standard deviation, where it is known."""
        return max(self.sigmas or self._told, default=0.0)

    @property
    def reach(self) -> Reach:
        """The size of the noise may come from all updates of another run."""
        return "all"

    @property
    def follows(self) -> str:
        """The defence whose noise it adds again."""
        return self.of

    @property
    def source(self) -> tuple[Defence, ...]:
        """The stack of that name."""
        if not self._source:
            raise StackError(
                f'nobody has said what of = "{self.of}" is',
                "ReplayedNoise",
                f'put it into a study with a defence "{self.of}", or give sigmas = [...]',
            )
        return self._source

    @property
    def run(self) -> str:
        """The key of the run that it was told of."""
        return self._run

    def stated(self, clients: float) -> Mapping[str, float]:
        """Nothing: its noise follows from no multiplier."""
        return {}

    def under(self, delta: float) -> Self:
        """The same, its source under a study's delta."""
        return replace(self, _source=tuple(defence.under(delta) for defence in self._source))

    def following(self, source: Sequence[Defence]) -> Self:
        """The same, knowing the stack that `of` names; a ValueError where that one's noise cannot be added again."""
        noisy = [d for d in source if type(d) in REPLAYED and (d.wish or d.loudness)]
        if len(noisy) != 1:
            found = "adds no noise that could be added again" if not noisy else "adds noise more than once"
            raise ValueError(f'of = "{self.of}" {found}: name a stack with one global-dp or metric-privacy in it')
        for key in ALIKE:
            mine, its = getattr(self, key), getattr(noisy[0], key)
            if mine != its:
                raise ValueError(f'{key} is {mine!r} here and {its!r} in "{self.of}": a control needs {key} = {its!r}')
        return replace(self, _source=tuple(source))

    def told(self, run: str, facts: Sequence[Mapping[str, float]]) -> Self:
        """The same, with the standard deviations that the run of that key wrote down."""
        if silent := [str(index) for index, fact in enumerate(facts) if "noise_std" not in fact]:
            raise StackError(
                f'"{self.of}" added no noise in round {silent[0]}, so there is none to add again',
                "ReplayedNoise",
                "have all clients take part in every round",
            )
        return replace(self, _run=run, _told=tuple(float(fact["noise_std"]) for fact in facts))

    def check(self, federation: Terms) -> None:
        """Refuse another number of rounds than there are standard deviations, and a source that may end early."""
        if self.of and self.source and federation.judging.patience:
            raise StackError(
                f'with patience the run of "{self.of}" may end early, and leave no noise for the rounds after that',
                "ReplayedNoise",
                "leave patience out",
            )
        known = self.sigmas or self._told
        if known and len(known) != federation.rounds:
            raise StackError(
                f"{len(known)} standard deviations for {federation.rounds} rounds",
                "ReplayedNoise",
                f"give sigmas for {federation.rounds} rounds, or rounds = {len(known)}",
            )

    def settled(self, federation: Terms) -> Self:
        """With the least of its standard deviations in every round: an audit asks what one release hides."""
        return replace(self, _least=min(self.sigmas or self._told, default=None))

    def publish(self, change: Weights, cohort: Sequence[Receipt], turn: Turn) -> Weights:
        """Add noise of the round's standard deviation."""
        std = self._std(turn.round)
        turn.facts["noise_std"] = std
        return change.like(self._covered(change, lambda v: add_gaussian(v, std, turn.noise())))

    def _std(self, index: int) -> float:
        """The standard deviation of a round."""
        if self._least is not None:
            return self._least
        known = self.sigmas or self._told
        if index >= len(known):
            raise StackError(
                f"no standard deviation is known for round {index}",
                "ReplayedNoise",
                "run it in a study, or give sigmas for every round",
            )
        return known[index]

    def claim(self, federation: Terms, facts: Sequence[Mapping[str, float]] = ()) -> Promises:
        """None, whatever its size."""
        whose = f'from the run of "{self.of}"' if self.of else "from a list"
        return NoClaim(
            f"the size of the noise is copied {whose}, where it may have been measured on the very clients it protects",
            "it is a control: compare its utility with that run's, and take global-dp for a promise",
        )
