"""Client-level differential privacy with a fixed clip bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from leakline.defences.base import CHOOSING, Denominator, Promises, Reach, Stage, Terms
from leakline.defences.noised import Noised
from leakline.mechanisms import add_gaussian, clip_norm, norm_of
from leakline.messages import Receipt, Turn, Update
from leakline.privacy import Adjacency, Claim, Gaussian, NoClaim, Seat, Unit
from leakline.strategies.combine import EVEN
from leakline.weights import Layout, Weights


@dataclass(frozen=True)
class GlobalDP(Noised):
    """Clip each update, add Gaussian noise to their even mean (McMahan et al. 2018, arXiv:1710.06963, Alg. 1).

    sum of clip_C(update) / n + N(0, (z C / n)^2 I)        z = noise_multiplier, C = clip, n = clients of a round

    ``denominator = "expected"``: n is the number of clients that a round has on average, whoever answers. Then it is
    public, and a client that comes or goes moves the result by C / n: the promise is for add-remove, and holds under
    Poisson sampling and with clients that drop out. ``"actual"``: n is how many answered, as in Flower. Leaving a
    client out then changes the size of the noise too, so the promise is only for a client that takes part and sends
    zeros instead (zero-out), and nothing is gained by sampling.

    ``at = "aggregate"`` noises the mean before the server's optimiser, which is then post-processing and cannot
    weaken the promise; ``at = "model"`` noises after it, as Flower's wrapper does and paper 000 with it.
    ``buffers = "clear"`` leaves BatchNorm statistics out of clip and noise, as released code often does; it voids
    the promise.
    """

    at: Stage = "aggregate"
    buffers: Literal["covered", "clear"] = "covered"
    denominator: Denominator = "expected"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.denominator not in ("expected", "actual"):
            raise ValueError(f'denominator must be "expected" or "actual": {self.denominator!r}')

    @property
    def reach(self) -> Reach:
        """Each update is clipped by itself, and the noise has a public size."""
        return "each"

    def stated(self, clients: float) -> Mapping[str, float]:
        """Clip and noise multiplier, where they cover all that travels."""
        return {"clip": self.clip, "noise_multiplier": self.noise_multiplier} if self.buffers == "covered" else {}

    def divided(self, cohort: Sequence[Receipt], turn: Turn) -> float:
        """The n of a round; an empty one under "actual" has the noise of a single client."""
        return self.divisor(turn) if self.denominator == "expected" else float(max(1, len(cohort)))

    def admit(self, updates: Iterator[Update], turn: Turn) -> Iterator[Update]:
        """Clip each update as it arrives."""
        for update in updates:
            yield update.with_delta(self._covered(update.delta, lambda v: clip_norm(v, self.clip)))

    def publish(self, change: Weights, cohort: Sequence[Receipt], turn: Turn) -> Weights:
        """Add noise to the mean."""
        std = self.noise_multiplier * self.clip / self.divided(cohort, turn)
        turn.facts["noise_std"] = std
        return change.like(self._covered(change, lambda v: add_gaussian(v, std, turn.noise())))

    def claim(self, federation: Terms, facts: Sequence[Mapping[str, float]] = ()) -> Promises:
        """Client-level, against everybody who sees the published models; the server is trusted."""
        if self.noise_multiplier == 0:
            return NoClaim("no noise is added (noise multiplier 0)", "set noise_multiplier above 0")
        if problem := unbounded(self, federation):
            return problem
        return client_level(1 / self.noise_multiplier, self, federation)

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


def adjacency_of(defence: GlobalDP, federation: Terms) -> Adjacency:
    """Add-remove where n is public and nobody takes an absent client's place; otherwise zero-out."""
    fixed = federation.cohort.sampling == "fixed" or defence.denominator == "actual"
    return Adjacency.ZERO_OUT if fixed else Adjacency.ADD_REMOVE


def client_level(
    mu: float, defence: GlobalDP, federation: Terms, unit: Unit = Unit.CLIENT, more: Sequence[str] = (),
    bare: Sequence[str] = (),
) -> Claim:  # fmt: skip
    """The claim of a Gaussian release per round of something that one client moves by mu standard deviations.

    For a sub-client no sampling is counted: its client's other parts come and go with it, and may show that it came.
    """
    cohort, adjacency = federation.cohort, adjacency_of(defence, federation)
    counted = cohort.sampling == "poisson" and unit is Unit.CLIENT and adjacency is Adjacency.ADD_REMOVE
    assumptions = ["the server is trusted: it sees every update before the noise", *more]
    if counted:
        assumptions.append(
            "who takes part in a round, and how many, stays secret: what the server stores (rounds.jsonl) names them"
        )
    elif adjacency is Adjacency.ADD_REMOVE:
        assumptions.append(f"a mean is over {federation.expected():g} clients, a public number, whoever answers")
    else:
        assumptions.append("a client takes part either way: its update arrives, or zeros; the number may be known")
    if cohort.sampling == "fixed":
        assumptions.append("cohorts of fixed size: no amplification by sampling is claimed")
    if federation.strategy.warm_start:
        assumptions.append("the server's own validation data, used for the initial model, are not covered")
    return Claim(
        unit=unit,
        adjacency=adjacency,
        observer=Seat.CLIENT,
        events=(Gaussian(mu, times=federation.rounds, rate=cohort.participation if counted else 1.0),),
        assumptions=tuple(assumptions),
        outside=(
            "figures published beside the model (losses, accuracies)",
            CHOOSING,
            "that a run ended because too few clients answered",
            *bare,
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
    return None
