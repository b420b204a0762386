"""What a defence promises, as plain data.

A promise is a `Claim` (whom it protects, against whom, through which random releases) or a `NoClaim` (why
nothing can honestly be promised: an ordinary answer, printed on the card). The accountant turns a claim and a
delta into a `Guarantee`. Nothing here computes; everything here can be hashed, compared and printed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class Unit(StrEnum):
    """Whose presence or value is protected: one unit's worth of difference between neighbouring inputs."""

    RECORD = "record"
    PATIENT = "patient"
    REPORT = "report"
    SUB_CLIENT = "sub-client"
    CLIENT = "client"


class Adjacency(StrEnum):
    """How two neighbouring inputs differ in one unit."""

    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"
    ZERO_OUT = "zero-out"


class Seat(StrEnum):
    """The observer: the server sees single updates, a client all published models, the public the last.

    A malicious server also chooses what model it sends. Promises about the server's seat are made by what a client
    does to its own examples or update, whatever it was sent, and so hold against both.
    """

    SERVER = "server"
    MALICIOUS_SERVER = "malicious-server"
    CLIENT = "client"
    PUBLIC = "public"


@dataclass(frozen=True)
class Gaussian:
    """Gaussian releases: a unit moves the released vector by at most mu standard deviations.

    mu      sensitivity / standard deviation of ONE release, under the claim's own adjacency (1/z for a
            clipped sum under add-remove, 2/z under replace-one); infinite when there is no noise
    times   how many such releases are composed
    rate    Poisson sampling rate of the unit; 1 means full participation. Fixed-size sampling must also be
            written as 1: no amplification is claimed for it
    copies  independently sampled units that move together (set by `group`); mu is then that of one copy

    Under replace-one with rate < 1, mu is read as twice the largest single contribution (2C / std): the
    shared mean of the two mixtures lies half-way between the two units.
    """

    mu: float
    times: int = 1
    rate: float = 1.0
    copies: int = 1

    def __post_init__(self) -> None:
        if math.isnan(self.mu) or self.mu < 0:
            raise ValueError(f"mu must be zero or more, not {self.mu!r}")
        if self.times < 1 or self.copies < 1:
            raise ValueError(f"times and copies must be at least 1, not {self.times!r} and {self.copies!r}")
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate must lie in (0, 1], not {self.rate!r}")
        if self.copies > 1 and self.rate == 1:
            raise ValueError(f"at rate 1 write {self.copies!r} copies as mu = {self.copies * self.mu!r}")


@dataclass(frozen=True)
class Pure:
    """Releases that are each epsilon-DP with delta = 0, such as randomised response or LDP-SGD's report."""

    epsilon: float
    times: int = 1

    def __post_init__(self) -> None:
        if math.isnan(self.epsilon) or self.epsilon < 0:
            raise ValueError(f"epsilon must be zero or more, not {self.epsilon!r}")
        if self.times < 1:
            raise ValueError(f"times must be at least 1, not {self.times!r}")


Event = Gaussian | Pure


@dataclass(frozen=True)
class Claim:
    """A formal promise: these events are all that the observer sees of one unit.

    events          composed in any order; each event's parameters are stated under `adjacency`
    assumptions     what must hold; the promise is void where one of them fails
    outside         what is released beside the events and not counted (per-round metrics, model selection)
    replace_factor  how much further replacing a unit moves a release than adding or removing it: 2 for
                    vectors clipped to a ball (they may point opposite ways), 1 where they cannot
    """

    unit: Unit
    adjacency: Adjacency
    observer: Seat
    events: tuple[Event, ...]
    assumptions: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    replace_factor: float = 2.0

    def __post_init__(self) -> None:
        if not self.events:
            raise ValueError("a claim without events would promise perfect privacy; say NoClaim instead")
        if not 1 <= self.replace_factor <= 2:
            raise ValueError(f"replace_factor must lie in [1, 2], not {self.replace_factor!r}")

    @property
    def releases(self) -> int:
        """How many releases are composed."""
        return sum(event.times for event in self.events)


@dataclass(frozen=True)
class NoClaim:
    """Nothing can be promised, and why; `instead` says what is true, such as a per-round or metric bound."""

    reason: str
    instead: str = ""

    def __str__(self) -> str:
        also = f"; instead: {self.instead}" if self.instead else ""
        return f"none (heuristic): {self.reason}{also}"


Promise = Claim | NoClaim


@dataclass(frozen=True)
class Guarantee:
    """What a claim amounts to: (epsilon, delta), and mu where the releases are exactly mu-GDP.

    loose           the bound holds but a better accountant would print a smaller epsilon
    total_variation the attacker's exact best advantage, where the accountant knows it
    """

    epsilon: float
    delta: float
    mu: float | None
    method: str
    loose: bool = False
    total_variation: float | None = None

    @property
    def advantage(self) -> float:
        """Upper bound on TPR - FPR of any attacker who tells two neighbours apart.

        2 Phi(mu/2) - 1 for mu-GDP (Dong, Roth, Su 2022); otherwise (e^eps - 1 + 2 delta)/(e^eps + 1), the
        total variation that (epsilon, delta)-DP allows (Kairouz et al. 2015); or less, if known.
        """
        from_pair = math.tanh(self.epsilon / 2) + 2 * self.delta / (1 + math.exp(min(self.epsilon, 700.0)))
        known = [from_pair, 1.0]
        if self.mu is not None:
            known.append(math.erf(self.mu / math.sqrt(8)))
        if self.total_variation is not None:
            known.append(self.total_variation)
        return min(known)

    @property
    def verdict(self) -> str:
        """The guarantee in one word: strong, moderate, weak or vacuous.

        vacuous   epsilon > 10, or some attacker may win with advantage >= 0.99, or delta >= 0.1
        weak      epsilon > 4, or advantage > 0.9 (right 95 times of 100), or delta > 0.001
        moderate  epsilon > 1
        strong    epsilon <= 1 and delta <= 0.001

        1 and 10 are the tiers of Ponomareva et al. (2023); the step at 4 (an attacker with even odds may
        become 98 % sure), the limits on the advantage and those on delta are ours.
        """
        if self.epsilon > 10 or self.advantage >= 0.99 or self.delta >= 0.1:
            return "vacuous"
        if self.epsilon > 4 or self.advantage > 0.9 or self.delta > 1e-3:
            return "weak"
        return "moderate" if self.epsilon > 1 else "strong"

    def __str__(self) -> str:
        mu = "" if self.mu is None else f", mu = {self.mu:.4g}"
        return f"epsilon = {self.epsilon:.4g} at delta = {self.delta:g}{mu} [{self.method}]"
