"""LDP-SGD: each report is randomised at the client, on the sphere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from leakline.defences.base import Defence, Law, Promises, Reach, Terms, beside_updates, splitter
from leakline.mechanisms.sphere import printed_scale, project_ball, sphere_report, unbiased_scale
from leakline.mechanisms.treatment import Act, Treatment
from leakline.messages import Receipt, Turn, Update
from leakline.privacy import Adjacency, Claim, NoClaim, Pure, Seat, Unit
from leakline.weights import Weights


@dataclass(frozen=True)
class LdpSgd(Defence):
    """Local DP by sampling the sphere: a report is a random direction that leans towards the update (paper 002).

    ``clip`` bounds the update, which for one step of SGD is learning rate x gradient: the paper's L is
    clip / learning_rate. The report leaves already scaled, so that the server's mean is unbiased and the server
    stays plain; ``reading = "paper"`` uses the constant as printed, which is short by a factor d. ``radius``
    projects the model onto a ball after the server's step (0: never), about the initial model; in the paper that
    is the origin, where a CNN is dead. Losses and other figures are taken out of a report.
    """

    epsilon: float
    clip: float = 1.0
    radius: float = 0.0
    reading: Literal["sound", "paper"] = "sound"

    at = "model"

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < float("inf"):
            raise ValueError(f"epsilon must be positive and finite: {self.epsilon}")
        if not self.clip > 0:
            raise ValueError(f"clip must be positive: {self.clip}")
        if not self.radius >= 0:
            raise ValueError(f"radius must not be negative: {self.radius}")

    @property
    def hooks(self) -> tuple[str, ...]:
        """Without a ball, its server is a plain one."""
        return tuple(hook for hook in super().hooks if self.radius or hook != "publish")

    @property
    def reach(self) -> Reach:
        """The ball moves the model, by what has been published of it."""
        return "each" if self.radius else "nothing"

    @property
    def law(self) -> Law:
        """A random direction: see `leakline.mechanisms.sphere`."""
        return self

    @property
    def treatment(self) -> Treatment:
        """Clip and noise of the same mean and variance; the report's own law tells even less (one side of a plane)."""
        return Treatment(updates=(Act(self.clip, self.mean_factor, self.std_of),))

    def mean_factor(self, values: int) -> float:
        """What the mean of reports of so many values is times the clipped update: 1, unless as printed."""
        return self.scale(values) / unbiased_scale(values, self.clip, self.epsilon)

    def std_of(self, report: torch.Tensor) -> float:
        """The standard deviation of each value of a report."""
        return self.scale(report.numel()) / math.sqrt(report.numel())

    def release(self, update: Update, turn: Turn) -> Update:
        """Report a scaled random direction in place of the update."""
        change = update.delta.vector
        report = sphere_report(change.cpu(), self.clip, self.epsilon, turn.noise()).mul_(self.scale(change.numel()))
        return replace(update, metrics={}).with_delta(report.to(change.device, torch.float32))

    def publish(self, change: Weights, cohort: Sequence[Receipt], turn: Turn) -> Weights:
        """Keep the model within the ball."""
        if not self.radius:
            return change
        moved = turn.memory.get("moved", torch.zeros_like(change.vector))
        landed = project_ball(moved + change.vector, self.radius)
        turn.memory["moved"] = landed
        return change.like(landed - moved)

    def scale(self, size: int) -> float:
        """Length of a report of ``size`` values."""
        scale = unbiased_scale if self.reading == "sound" else printed_scale
        return scale(size, self.clip, self.epsilon)

    def claim(self, federation: Terms, facts: Sequence[Mapping[str, float]] = ()) -> Promises:
        """Against the server itself: pure epsilon for one report, and for a client as many times that as rounds."""
        steps = most_steps(federation)
        assumptions = ["a client sends one report a round"]
        if steps > 1:
            assumptions.append(
                f"up to {steps} local steps: what is reported is the whole local update, not one gradient as in "
                "LDP-SGD (the promise holds for it too; set max_steps = 1 for the paper's algorithm)"
            )
        if other := splitter(federation):
            return NoClaim(
                f"{other} makes a client send several reports a round", f"every single report is {self.epsilon:g}-DP"
            )
        whole = Claim(
            unit=Unit.CLIENT,
            adjacency=Adjacency.REPLACE_ONE,
            observer=Seat.SERVER,
            events=(Pure(self.epsilon, times=federation.rounds),),
            assumptions=tuple(assumptions),
            outside=beside_updates(federation),
        )
        return whole, replace(whole, unit=Unit.REPORT, events=(Pure(self.epsilon),))


def most_steps(federation: Terms) -> int:
    """The largest number of local steps that a client takes in a round."""
    held = [client for client in federation.task.clients if len(client.train)]
    return max((federation.plan_of(c.name).steps_of(len(c.train)) for c in held), default=1)
