"""Client-level differential privacy with a fixed clip bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from leakline.defences.base import Defence, Promises, Stage, Terms
from leakline.mechanisms import add_gaussian, clip_norm, norm_of
from leakline.messages import Receipt, Turn, Update
from leakline.privacy import Adjacency, Claim, Gaussian, NoClaim, Seat, Unit
from leakline.strategies.combine import EVEN
from leakline.weights import Layout, Weights


@dataclass(frozen=True)
class GlobalDP(Defence):
    """Clip each update, add Gaussian noise to their even mean (McMahan et al. 2018, arXiv:1710.06963, Alg. 1).

    change + N(0, (z C / n)^2 I)        z = noise_multiplier, C = clip, n = clients of the round

    ``at = "aggregate"`` noises the mean before the server's optimiser, which is then post-processing and cannot
    weaken the promise; ``at = "model"`` noises after it, as Flower's wrapper does and paper 000 with it.
    ``buffers = "clear"`` leaves BatchNorm statistics out of clip and noise, as released code often does; it voids
    the promise. When clients drop out, n is the number that remained, so the promise holds for them too. Under
    Poisson sampling n is the expected number: the actual one would tell who took part.
    """

    noise_multiplier: float
    clip: float
    at: Stage = "aggregate"
    buffers: Literal["covered", "clear"] = "covered"

    def __post_init__(self) -> None:
        if not self.noise_multiplier >= 0:
            raise ValueError(f"noise_multiplier must not be negative: {self.noise_multiplier}")
        if not self.clip > 0:
            raise ValueError(f"clip must be positive: {self.clip}")

    @property
    def loudness(self) -> float:
        """The noise multiplier."""
        return self.noise_multiplier

    def admit(self, updates: Iterator[Update], turn: Turn) -> Iterator[Update]:
        """Clip each update as it arrives."""
        for update in updates:
            yield update.with_delta(self._covered(update.delta, lambda v: clip_norm(v, self.clip)))

    def publish(self, change: Weights, cohort: Sequence[Receipt], turn: Turn) -> Weights:
        """Add noise to the mean."""
        n = len(cohort)
        if turn.sampled:
            change, n = change * (n / turn.expected), turn.expected  # type: ignore[assignment]
        std = self.noise_multiplier * self.clip / n
        turn.facts["noise_std"] = std
        return change.like(self._covered(change, lambda v: add_gaussian(v, std, turn.noise())))

    def claim(self, federation: Terms, facts: Sequence[Mapping[str, float]] = ()) -> Promises:
        """Client-level, against everybody who sees the published models; the server is trusted."""
        if self.noise_multiplier == 0:
            return NoClaim("no noise is added (noise multiplier 0)", "set noise_multiplier above 0")
        if problem := unbounded(self, federation):
            return problem
        return client_level(1 / self.noise_multiplier, federation)

    def norm(self, change: Weights) -> float:
        """Length of the covered part of a change: what is held against the clip bound."""
        size = change.layout.size if self.buffers == "covered" else parameters(change.layout)
        return norm_of(change.vector[:size])

    def _covered(self, change: Weights, act: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Apply ``act`` to the covered part of a change: all of it, or its parameters only."""
        if self.buffers == "covered" or not change.layout.buffers:
            return act(change.vector)
        size = parameters(change.layout)
        return torch.cat([act(change.vector[:size]), change.vector[size:]])


def parameters(layout: Layout) -> int:
    """Length of the leading part that is trained (a layout lists parameters before buffers)."""
    return sum(entry.size for entry in layout.entries if not entry.buffer)


def client_level(mu: float, federation: Terms, unit: Unit = Unit.CLIENT, more: Sequence[str] = ()) -> Claim:
    """The claim of a Gaussian release per round of something that one client moves by mu standard deviations.

    For a sub-client no sampling is counted: its client's other parts come and go with it, and may show that it came.
    """
    cohort = federation.cohort
    rate = cohort.participation if cohort.sampling == "poisson" and unit is Unit.CLIENT else 1.0
    assumptions = [
        "the server is trusted: it sees every update before the noise",
        "the number of clients in a round may be known",
        *more,
    ]
    if cohort.sampling == "fixed":
        assumptions.append("cohorts of fixed size: no amplification by sampling is claimed")
    if federation.strategy.warm_start:
        assumptions.append("the server's own validation data, used for the initial model, are not covered")
    return Claim(
        unit=unit,
        adjacency=Adjacency.ADD_REMOVE,
        observer=Seat.CLIENT,
        events=(Gaussian(mu, times=federation.rounds, rate=rate),),
        assumptions=tuple(assumptions),
        outside=(
            "figures published beside the model (losses, accuracies)",
            "choosing settings or a round by test results",
        ),
    )


def unbounded(defence: GlobalDP, federation: Terms) -> NoClaim | None:
    """Why one client may move the published value by more than C / n, or None (facts of paper 000, trap 4)."""
    combine, optimiser = federation.strategy.combine, federation.strategy.optimiser
    n = federation.expected()
    moved = combine.influence(defence.clip, n)
    if isinstance(moved, NoClaim):
        return moved
    if moved > defence.clip / n:
        return NoClaim(f"one client moves {type(combine).__name__} by {moved * n / defence.clip:.3g} C/n", EVEN)
    if defence.at == "model" and not optimiser.stateless:
        return NoClaim(
            "noise after a stateful server optimiser: un-noised averages stay in its state and enter later rounds",
            'set at = "aggregate" to add the noise before the optimiser',
        )
    if defence.at == "model" and optimiser.gain > 1:
        return NoClaim(
            f"noise after a server step of size {optimiser.gain}, which scales a client's influence up",
            'set at = "aggregate"',
        )
    if defence.buffers == "clear" and federation.wire.buffers:
        return NoClaim(
            f"BatchNorm statistics leave un-noised ({federation.wire.buffers[0]}, ...)",
            'set buffers = "covered", or keep them at home with fedbn',
        )
    return _disturbed(defence, federation.defences)


def _disturbed(defence: GlobalDP, stack: tuple[Defence, ...]) -> NoClaim | None:
    """Why another defence of the stack undoes the clip or goes round the noise, or None."""
    place = stack.index(defence)
    for other in stack[:place] + stack[place + 1 :]:
        if "split" in other.hooks:
            return NoClaim(
                f"{type(other).__name__} makes a client send several updates a round, each clipped by itself",
                f"leave {type(defence).__name__} out: {type(other).__name__} clips and adds noise",
            )
        if defence.at == "model" and other.at == "aggregate" and "publish" in other.hooks:
            return NoClaim(
                f"{type(other).__name__} sees the combined change before the noise and may carry it into later rounds",
                'set at = "aggregate", and put it first in the stack',
            )
    for other in stack[place + 1 :]:
        if "admit" in other.hooks:
            return NoClaim(
                f"{type(other).__name__} changes the updates after they were clipped",
                f"put {type(defence).__name__} last in the stack",
            )
    return None
