"""``attacks = "strongest"``: what meets a cell, chosen by `leakline.attacks.ranking` within the study's minutes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from leakline.attacks import MENU
from leakline.attacks.base import Attack
from leakline.attacks.ranking import RANKING, RUN, Ranked
from leakline.data.base import Data
from leakline.errors import LeaklineError
from leakline.federation import Federation
from leakline.privacy import Claim, Seat

NOMINAL_FLOPS, STEP_SECONDS, CORES = 2e9, 5e-4, 2
"""A machine that is the same everywhere, so that what is chosen depends on the study and not on who else computes: two
cores of two billion operations a second, and half a millisecond for each step."""


@dataclass(frozen=True)
class Choice:
    """What was taken for one federation, why, what was left out, and nominal minutes."""

    attacks: Mapping[str, Attack] = field(hash=False)
    taken: tuple[str, ...]
    left: tuple[str, ...]
    minutes: float


@dataclass(frozen=True)
class Strongest:
    """The strongest attacks for some seats, within ``minutes`` (of a nominal machine) for each cell."""

    seats: tuple[Seat, ...]
    minutes: float

    def on(self, federation: Federation) -> Choice:
        """The choice for one federation: row by row, the first that applies and fits, for each seat and question."""
        speed = _Speed.of(federation)
        promised = any(isinstance(claim, Claim) for claim in federation.claims().values())
        taken: dict[str, Attack] = {}
        said, left, spent = [], [], 0.0
        answered: dict[tuple[Seat, str], str] = {}
        for row in RANKING:
            if row.seat not in self.seats:
                continue
            label = _label(row)
            if (better := answered.get((row.seat, row.question))) is not None:
                left.append(f"{label}: weaker than {better} ({row.why})")
                continue
            if row.question == RUN and not promised:
                left.append(f"{label}: nothing is promised that a run could break")
                continue
            try:
                attack = MENU[row.use](**row.settings)
                attack.check(federation)
                cost = speed.minutes(attack, federation)
            except (LeaklineError, ValueError) as error:
                what, fix = (error.what, error.fix) if isinstance(error, LeaklineError) else (str(error), "")
                left.append(f"{label}: does not apply: {what}{f' ({fix})' if fix else ''}")
                continue
            if spent + cost > self.minutes:
                left.append(f"{label}: {cost:.1f} minutes, and {self.minutes - spent:.1f} are left (attack_minutes)")
                continue
            name = row.use if row.use not in taken else f"{row.use}-{row.seat}"
            taken[name], spent = attack, spent + cost
            answered[row.seat, row.question] = label
            price = f"{cost:.1f} minutes" if cost else "trains and searches nothing, so none of the minutes"
            said.append(f"{label}, {price}: {row.question} ({row.why})")
        return Choice(taken, tuple(said), tuple(left), spent)


def _label(row: Ranked) -> str:
    told = ", ".join(f"{key} = {value}" for key, value in row.settings.items())
    return f"{row.seat}: {row.use}{f' ({told})' if told else ''}"


@dataclass(frozen=True)
class _Speed:
    """Seconds of a round and of one example's training step, on the nominal machine."""

    round: float
    example: float

    @classmethod
    def of(cls, federation: Federation) -> _Speed:
        from torch.utils.flop_counter import FlopCounterMode

        bench = federation.bench()
        held = [c for c in federation.task.clients if len(c.train)]
        if not held:
            return cls(0.0, 0.0)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            one = Data(
                torch.zeros(1, *federation.task.shape), torch.zeros(1, dtype=torch.int64)
            )  # data may be at nodes
            bench.model.eval()(bench.inputs(one, slice(0, 1)))
        plan = federation.plan
        rows = sum(len(c.train) for c in held)
        size = min(plan.batch or rows // len(held), max(rows // len(held), 1))
        example = 3 * counter.get_total_flops() / NOMINAL_FLOPS + STEP_SECONDS / max(size, 1)
        share = federation.expected() / len(federation.task.clients)
        return cls(plan.epochs * rows * share * example / CORES, example)

    def minutes(self, attack: Attack, federation: Federation) -> float:
        """What an attack's worlds and searches take."""
        rounds = sum(attack.trains(federation).values())
        return (rounds * self.round + attack.passes(federation) * self.example / CORES) / 60
