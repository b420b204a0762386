"""The game: a crafter makes two inputs, the stack randomises one, a distinguisher guesses, many times.

`Audit` asks it of every promise that a stack makes, from the seat the promise is made against, in several situations
(a canary in all entries, one in the buffers, a client that drops out), and turns the errors into lower bounds. What is
certified is ONE release; what the card compares is all of them, so bounds are composed over the rounds:

    pure       T times one release's epsilon: the product of T equal events
    other      T releases, each scored by the same rule; the sum's law is convolved (`composed_rates`)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from leakline.attacks.audit.bounds import Finding, judge, strongest, tests_of
from leakline.attacks.audit.channel import Channel, LocalChannel
from leakline.attacks.audit.crafters import Pair
from leakline.attacks.audit.distinguishers import learned_ratio, matched_filter, side_score
from leakline.attacks.audit.questions import MAIN, SeatName, not_random, situations
from leakline.attacks.audit.wide import Remark, look
from leakline.attacks.audit.workbench import small
from leakline.attacks.base import Attack, Challenge, Lab
from leakline.federation import Federation
from leakline.leakage.epsilon import trials_needed
from leakline.privacy import Seat
from leakline.randomness import Stream
from leakline.readings import Reading


@dataclass(frozen=True)
class Hints:
    """What a distinguisher knows: both inputs, and views of each world that it made itself (the stack is public)."""

    pair: Pair
    known0: Tensor = field(repr=False)
    known1: Tensor = field(repr=False)
    learn: bool = False
    sides: bool = False
    """Whether the mechanism shows only on which side of an input its output lies (LDP-SGD)."""


@dataclass(frozen=True)
class Audit(Attack):
    """Does the implementation keep its promise? Plays canaries against the stack's real hooks, without training.

    ``trials`` are those of the main game (half in each world); games about buffers and dropouts take a fifth.
    ``confidence`` is that of all bounds together. ``seat``: "promised" is the seat each promise is made against,
    "server" or "client" looks from there whatever is promised. ``delta`` is for bounds that need one (pure promises
    do not). ``wide``: also look at the noise's own law, at many canaries over rounds in a row, and at what is
    counted (`leakline.attacks.audit.wide`), which takes about as long again.
    """

    trials: int = 20_000
    confidence: float = 0.99
    seat_of: SeatName = "promised"
    delta: float = 1e-5
    wide: bool = True
    seat: ClassVar[Seat] = Seat.SERVER

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence must lie in (0, 1): {self.confidence}")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must lie in (0, 1): {self.delta}")
        per_game = (1 - self.confidence) / MOST_GAMES
        need = 2 * 5 * (trials_needed(0.1, 0.0, 1 - per_game) + PILOT)
        if self.trials < need:
            raise ValueError(
                f"{self.trials} trials can certify nothing at confidence {self.confidence}: take at least {need} "
                f"(and {2 * trials_needed(4, 0.0, 1 - per_game)} or more for epsilon = 4)"
            )

    def challenges(self, lab: Lab) -> Iterator[Challenge]:
        """All games about the lab's federation. Nothing is trained."""
        yield from self.games(lab.federation)

    def games(self, federation: Federation) -> Iterator[Challenge]:
        """One challenge per situation: views of a block of trials, hints, and which world each was."""
        bench = small(federation)
        place = 0
        for question, channel, pair in situations(federation, bench, self.seat_of):
            trouble = not_random(channel, pair)
            if trouble:
                views = torch.stack([channel.see(x, 0).clone() for x in (pair.zero, pair.one)])
                pair = Pair(pair.name, views[0], views[1])
                asked = replace(question, trouble=trouble)
                yield Challenge(views, Hints(pair, views[:1], views[1:]), (np.array([False, True]), asked))
                continue
            count = self.trials if question.situation == MAIN else self.trials // 5
            if isinstance(channel, LocalChannel):
                count //= 8  # each trial trains
            if question.kind == "none":
                count //= 4  # nothing is promised: to show that much leaks takes fewer trials than to verify a bound
            bits = Stream(federation.seed, place, "examiner", "audit").numpy().permutation(count) % 2 == 1
            known, views = block(channel, pair, bits, place * 2**40)
            place += 1
            if isinstance(channel, LocalChannel):
                pair = Pair(pair.name, channel.pull(pair.zero), channel.pull(pair.one))  # views are updates
            learn = question.kind == "none"
            yield Challenge(views, Hints(pair, *known, learn=learn), (bits, question))
        if self.wide and self.seat_of == "promised":
            for remark in look(federation):
                yield Challenge(None, None, remark)

    def guess(self, view: Tensor | None, hints: Hints | None) -> np.ndarray:
        """A score per view; 0 lies half-way between the two worlds. A remark leaves nothing to guess."""
        if view is None or hints is None:
            return np.zeros(0)
        if hints.sides:
            return side_score(view, hints.pair)
        if hints.learn:
            return learned_ratio(view, hints.pair, hints.known0, hints.known1)
        known = [float(np.median(matched_filter(k, hints.pair))) for k in (hints.known0, hints.known1)]
        return matched_filter(view, hints.pair) - sum(known) / 2

    def findings(self, guesses: Sequence[Any], secrets: Sequence[Any]) -> list[Finding]:
        """Every bound of every game."""
        played = [(g, s) for g, s in zip(guesses, secrets, strict=True) if not isinstance(s, Remark)]
        wanted = [(scores, bits, asked) for scores, (bits, asked) in played]
        tests = sum(tests_of(asked) for _, _, asked in wanted)
        level = 1 - (1 - self.confidence) / max(tests, 1)
        return [f for scores, bits, asked in wanted for f in judge(scores, bits, asked, level, self.delta)]

    def measure(self, guesses: Sequence[Any], secrets: Sequence[Any]) -> list[Reading]:
        """The strongest bound of each quantity, and what else is to be said."""
        told = [s.reading() for s in secrets if isinstance(s, Remark) and s.verdict != "LOOKED"]
        findings = self.findings(guesses, secrets)
        told += [broken(f).reading() for f in findings if f.broken]
        return [f.reading() for f in strongest(findings)] + told


def broken(finding: Finding) -> Remark:
    """A game's bound above its promise, in words."""
    asked = finding.question
    text = f"{finding.quantity} of one release >= {finding.low:.3g}, above the promised {asked.promised:.3g}"
    return Remark("BROKEN", asked.defence, asked.unit, f"{text}, {asked.situation}", finding.low, asked.promised)


PILOT = 50
"""Views of each world that a distinguisher calibrates itself on."""


MOST_GAMES = 6


def block(channel: Channel, pair: Pair, bits: np.ndarray, first: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Views to calibrate on, by world, and a view for each bit; ``first`` numbers the trials (their randomness)."""
    zero, one = (
        torch.stack([channel.see(x, first + 2 * i + w) for i in range(PILOT)])
        for w, x in ((0, pair.zero), (1, pair.one))
    )
    first += 2 * PILOT
    views = [channel.see(pair.one if bit else pair.zero, first + i) for i, bit in enumerate(bits.tolist())]
    return (zero, one), torch.stack(views)
