"""The game: a crafter makes two inputs, the stack randomises one, a distinguisher guesses, many times.

`Audit` asks it of every promise that a stack makes, from the seat the promise is made against, in several situations
(a canary in all entries, one in the buffers, a client that drops out), and turns the errors into lower bounds. What is
certified is ONE release; what the card compares is all of them, so bounds are composed over the rounds:

    pure       T times one release's epsilon: the product of T equal events
    other      T releases, each scored by the same rule; the sum's law is convolved (`composed_rates`)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from leakline.attacks.audit.bounds import Finding, judge, judge_so_far, strongest, tests_of
from leakline.attacks.audit.channel import Channel, LocalChannel
from leakline.attacks.audit.crafters import Pair
from leakline.attacks.audit.distinguishers import learned_ratio, matched_filter, side_score
from leakline.attacks.audit.questions import MAIN, Question, SeatName, not_random, situations
from leakline.attacks.audit.wide import Remark, look
from leakline.attacks.audit.workbench import small
from leakline.attacks.base import Attack, Challenge, Lab, Sample
from leakline.federation import Federation
from leakline.leakage.betting import CALIBRATION, log_wealth, refuted_after, trials_to_find
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
    counted (`leakline.attacks.audit.wide`), which takes about as long again. ``until = "decided"``: bets are made
    against each promise of mu or pure epsilon while the trials go on; a game ends when the promise is refuted, or when
    a violation ``margin`` above it would have been found 9 of 10 times, and after ``trials`` at the latest. Where
    nothing is promised, or a sampled release, games keep their fixed size.
    """

    trials: int = 20_000
    confidence: float = 0.99
    seat_of: SeatName = "promised"
    delta: float = 1e-5
    wide: bool = True
    until: Literal["trials", "decided"] = "trials"
    margin: float = 0.25
    seat: ClassVar[Seat] = Seat.SERVER

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence must lie in (0, 1): {self.confidence}")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must lie in (0, 1): {self.delta}")
        if self.until not in ("trials", "decided"):
            raise ValueError(f'until is "trials" or "decided": {self.until!r}')
        if not 0.02 <= self.margin <= 7:
            raise ValueError(f"margin must lie between 0.02 and 7 (0.25: a quarter above the promise): {self.margin}")
        per_game = (1 - self.confidence) / MOST_GAMES
        need = 2 * 5 * (trials_needed(0.1, 0.0, 1 - per_game) + PILOT)
        if self.trials < need:
            raise ValueError(
                f"{self.trials} trials can certify nothing at confidence {self.confidence}: take at least {need} "
                f"(and {2 * trials_needed(4, 0.0, 1 - per_game)} or more for epsilon = 4)"
            )

    def samples(self, federation: Federation) -> list[Sample]:
        """One of `PIECES` of each game, and of a wide look at each promise; a stack that is not random plays none."""
        asked = list(situations(federation, small(federation), self.seat_of))
        alpha = self._alpha([question for question, _, _ in asked])
        wide = self.wide and self.seat_of == "promised"
        games = []
        for question, channel, pair in asked:
            if not not_random(channel, pair):
                looks = LOOKS if wide and question.situation == MAIN and question.kind != "none" else 0
                games.append((channel, pair, math.ceil((self._enough(question, channel, alpha) + looks) / PIECES)))

        def do(workers: int) -> None:
            for channel, pair, count in games:
                for trial in range(count):
                    channel.see(pair.one, trial)

        return [Sample(do, 1 / PIECES)]

    def challenges(self, lab: Lab) -> Iterator[Challenge]:
        """All games about the lab's federation. Nothing is trained."""
        yield from self.games(lab.federation)

    def games(self, federation: Federation) -> Iterator[Challenge]:
        """One challenge per situation: views of a block of trials, hints, and which world each was."""
        bench = small(federation)
        place = 0
        asked_for = list(situations(federation, bench, self.seat_of))
        alpha = self._alpha([question for question, _, _ in asked_for])
        for question, channel, pair in asked_for:
            trouble = not_random(channel, pair)
            if trouble:
                views = torch.stack([channel.see(x, 0).clone() for x in (pair.zero, pair.one)])
                pair = Pair(pair.name, views[0], views[1])
                asked = replace(question, trouble=trouble)
                yield Challenge(views, Hints(pair, views[:1], views[1:]), (np.array([False, True]), asked))
                continue
            count = self._trials(question, channel)
            rng, first = Stream(federation.seed, place, "examiner", "audit").numpy(), place * 2**40
            place += 1
            shown = pair
            if isinstance(channel, LocalChannel):
                shown = Pair(pair.name, channel.pull(pair.zero), channel.pull(pair.one))  # views are updates
            if self._bets(question):
                enough = self._enough(question, channel, alpha)
                yield self._until_decided(channel, pair, shown, question, rng, first, enough, alpha)
                continue
            bits = rng.permutation(count) % 2 == 1
            known, views = block(channel, pair, bits, first)
            yield Challenge(views, Hints(shown, *known, learn=question.kind == "none"), (bits, question))
        if self.wide and self.seat_of == "promised":
            for remark in look(federation):
                yield Challenge(None, None, remark)

    def _trials(self, question: Question, channel: Channel) -> int:
        """Of one game."""
        count = self.trials if question.situation == MAIN else self.trials // 5
        if isinstance(channel, LocalChannel):
            count //= 8  # each trial trains
        if question.kind == "none":
            count //= 4  # nothing is promised: to show that much leaks takes fewer trials than to verify a bound
        return count

    def _enough(self, question: Question, channel: Channel, alpha: float) -> int:
        """The same, where bets are made: as many as find a violation of ``margin`` 9 of 10 times."""
        most = self._trials(question, channel)
        if not self._bets(question):
            return most
        needed = trials_to_find(question.kind, question.promised, 1 + self.margin, alpha)
        return min(most, math.ceil(needed)) if math.isfinite(needed) else most

    def _bets(self, question: Question) -> bool:
        """Whether a game is played until it is decided."""
        return self.until == "decided" and question.kind in ("mu", "pure") and 0 < question.promised < math.inf

    def _alpha(self, asked: Sequence[Question]) -> float:
        """The share of alpha of one bound."""
        tests = sum(1 if self._bets(question) else tests_of(question) for question in asked)
        return (1 - self.confidence) / max(tests, 1)

    def _until_decided(
        self, channel: Channel, pair: Pair, shown: Pair, question: Question, rng: np.random.Generator, first: int,
        enough: int, alpha: float,
    ) -> Challenge:  # fmt: skip
        """Trials in growing blocks until the bets have refuted the promise or enough was tried; cut where it ended."""
        bits, views, known, size = np.zeros(0, dtype=bool), torch.zeros(0), (torch.zeros(0), torch.zeros(0)), BLOCK
        while len(bits) < enough:
            more = rng.random(min(size, enough - len(bits))) < 0.5
            start = first + 2 * PILOT + len(bits) if len(bits) else first
            if len(bits):
                seen = torch.stack([channel.see(pair.one if b else pair.zero, start + i) for i, b in enumerate(more)])
                views = torch.cat([views, seen])
            else:
                known, views = block(channel, pair, more, first)
            bits, size = np.concatenate([bits, more]), 2 * size
            scores = self.guess(views, Hints(shown, *known))
            ended = refuted_after(log_wealth(scores, bits, question.kind, question.promised), alpha)
            if ended is not None:
                last = CALIBRATION + ended
                bits, views = bits[:last], views[:last]
                break
        return Challenge(views, Hints(shown, *known), (bits, question))

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
        alpha = self._alpha([asked for _, _, asked in wanted])
        found: list[Finding] = []
        for scores, bits, asked in wanted:
            if self._bets(asked):
                found += judge_so_far(scores, bits, asked, alpha)
            else:
                found += judge(scores, bits, asked, 1 - alpha, self.delta)
        return found

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


BLOCK = 200
"""Trials between two looks at the bets, at first; each block is twice as large as the one before."""
PILOT = 50
"""Views of each world that a distinguisher calibrates itself on."""


MOST_GAMES = 6


PIECES = 50
"""Into how many pieces games are cut, of which one is played to see how long they take."""
LOOKS = 10_000
"""So many trials take about as long as a wide look at a promise (6000 for a client's, 14 000 for a record's)."""


def block(channel: Channel, pair: Pair, bits: np.ndarray, first: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Views to calibrate on, by world, and a view for each bit; ``first`` numbers the trials (their randomness)."""
    zero, one = (
        torch.stack([channel.see(x, first + 2 * i + w) for i in range(PILOT)])
        for w, x in ((0, pair.zero), (1, pair.one))
    )
    first += 2 * PILOT
    views = [channel.see(pair.one if bit else pair.zero, first + i) for i, bit in enumerate(bits.tolist())]
    return (zero, one), torch.stack(views)
