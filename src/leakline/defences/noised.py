"""What defences that buy their promise with noise have in common: the noise, or what it is to be enough for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Self

from leakline.defences.base import Defence, Wish

DELTA = 1e-5
"""The delta of an epsilon that is asked for without one, where no study has its own."""


def unset(**more: Any) -> Any:
    """A field that may be left out, and is not written down with a run then."""
    return field(default=None, metadata={"quiet": True}, **more)


def needed() -> Any:
    """A field that has to be given, behind one that need not be."""
    return field(default=None, metadata={"needed": True})


@dataclass(frozen=True)
class Noised(Defence):
    """Clips to ``clip`` and adds noise of standard deviation ``noise_multiplier`` x clip to a sum.

    ``epsilon`` in place of ``noise_multiplier`` asks for a promise: before anything is trained the federation computes
    the least noise at which this defence's own claim, with the rounds, steps, sampling and clients that there will be,
    comes to at most epsilon at ``delta`` (the study's, or 1e-5 without one). Where that has been done both are set.
    """

    noise_multiplier: float = unset()
    clip: float = needed()
    epsilon: float | None = unset(kw_only=True)
    delta: float | None = unset(kw_only=True)
    _computed: bool = field(default=False, kw_only=True, repr=False, metadata={"quiet": True})

    def __post_init__(self) -> None:
        if self.clip is None:
            raise ValueError("clip is needed: the longest vector that counts as it is, such as clip = 1.0")
        if not self.clip > 0:
            raise ValueError(f"clip must be positive: {self.clip}")
        given = self.noise_multiplier is not None
        if given and not self.noise_multiplier >= 0:
            raise ValueError(f"noise_multiplier must not be negative: {self.noise_multiplier}")
        if given == (self.epsilon is not None) and not self._computed:
            both = "noise_multiplier and epsilon are both given" if given else "there is no noise_multiplier"
            raise ValueError(f"{both}: give one of the two, the noise or the epsilon that it is to be enough for")
        if self.epsilon is not None and not 0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon must be positive and finite: {self.epsilon}")
        if self.delta is not None and not 0 < self.delta < 1:
            raise ValueError(f"delta must lie between 0 and 1: {self.delta}")
        if self.delta is not None and self.epsilon is None:
            raise ValueError("delta belongs to an epsilon that is asked for, and noise_multiplier is given instead")

    @property
    def loudness(self) -> float:
        """The noise multiplier."""
        return self.noise_multiplier

    @property
    def wish(self) -> Wish | None:
        """The epsilon that is asked for, if one is."""
        return None if self.epsilon is None else Wish(self.epsilon, self.delta or DELTA, self._computed)

    def under(self, delta: float) -> Self:
        """With a study's delta for an epsilon that has none of its own."""
        return self if self.epsilon is None or self.delta is not None else replace(self, delta=delta)

    def with_noise(self, noise: float) -> Self:
        """With the noise that was computed."""
        return replace(self, noise_multiplier=noise, _computed=True)
