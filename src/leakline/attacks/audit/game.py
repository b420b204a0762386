"""The game: a crafter makes two inputs, the stack randomises one, a distinguisher guesses, many times.

`Audit` asks it of every promise that a stack makes, from the seat the promise is made against, in several situations
(a canary in all entries, one in the buffers, a client that drops out), and turns the errors into lower bounds. What is
certified is ONE release; what the card compares is all of them, so bounds are composed over the rounds:

    mu-GDP     sqrt(T) times one release's mu
    pure       T times one release's epsilon: the product of T equal events
    other      T releases, each guessed with the same rule; the number of hits is binomial (`composed_epsilon`)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from scipy.special import betainc
from torch import Tensor

from leakline.attacks.audit.channel import Channel, LocalChannel, PublishChannel, ReleaseChannel, record_bench, small
from leakline.attacks.audit.crafters import SIZE, Pair, canary
from leakline.attacks.audit.distinguishers import learned_ratio, matched_filter, side_score
from leakline.attacks.base import Challenge
from leakline.defences import hooks_of
from leakline.federation import Federation
from leakline.leakage.epsilon import (
    ErrorCounts,
    ceiling,
    count_errors,
    lower_bound_from_scores,
    mu_bound,
    point_epsilon,
    trials_needed,
)
from leakline.privacy import Adjacency, Claim, Gaussian, Pure, Seat, Unit, total_mu
from leakline.randomness import Stream
from leakline.readings import Reading

if TYPE_CHECKING:
    from leakline.study.lab import Lab

Kind = Literal["mu", "pure", "sampled", "none"]
SeatName = Literal["promised", "server", "client"]


@dataclass(frozen=True)
class Question:
    """What one game is about, and what is promised for ONE release (infinite: nothing)."""

    defence: str
    seat: Seat
    unit: str
    situation: str
    kind: Kind
    promised: float = math.inf
    releases: int = 1
    setting: str = "mechanism alone, on a small copy of the wire"
    trouble: str = ""
    """Why no trial was needed: the stack does not randomise, or its noise can be had again."""


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
class Finding:
    """What one game found: ``low`` and ``promised`` are of one release, ``composed`` of all of them."""

    question: Question
    quantity: Literal["mu", "epsilon"]
    point: float
    low: float
    composed: float
    trials: int
    ceiling: float
    confidence: float
    method: str
    delta: float = 0.0

    @property
    def broken(self) -> bool:
        """Whether the bound exceeds what is promised for one release."""
        return self.low > self.question.promised * (1 + 1e-9)

    @property
    def note(self) -> str:
        """How to read it, in one line."""
        asked = self.question
        if asked.trouble:
            return asked.trouble
        releases = f"{asked.releases} releases" if asked.releases > 1 else "one release"
        parts = [f"{asked.situation}, {releases}"]
        if asked.releases > 1:
            parts.append(f"of one {self.low:.3g}")
        if math.isfinite(asked.promised):
            parts.append(f"promised for one {asked.promised:.3g}")
        limited = ": sample-limited" if self.low >= 0.9 * self.ceiling else ""
        parts.append(f"{self.trials} trials could certify {self.ceiling:.3g} of one{limited}")
        parts.append(
            f"{self.method} at {100 * self.confidence:.4g} %" + (f", delta {self.delta:g}" if self.delta else "")
        )
        return "; ".join(parts)

    def reading(self, by: str = "audit") -> Reading:
        """As a line of a card. The unit is that of the promise only where the seat is."""
        asked = self.question
        unit = f":{asked.unit}" if asked.unit else ""
        point = self.point * (self.composed / self.low if 0 < self.low < math.inf else 1.0)
        return Reading(
            f"{self.quantity}{unit}", point, self.composed, n=self.trials, by=by, better="lower",
            note=f"{self.note}; {asked.setting}",
        )  # fmt: skip


@dataclass(frozen=True)
class Audit:
    """Does the implementation keep its promise? Plays canaries against the stack's real hooks, without training.

    ``trials`` are those of the main game (half in each world); games about buffers and dropouts take a fifth.
    ``confidence`` is that of all bounds together. ``seat``: "promised" is the seat each promise is made against,
    "server" or "client" looks from there whatever is promised. ``delta`` is for bounds that need one (pure promises
    do not).
    """

    trials: int = 20_000
    confidence: float = 0.99
    seat_of: SeatName = "promised"
    delta: float = 1e-5
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

    def guess(self, view: Tensor, hints: Hints) -> np.ndarray:
        """A score per view; 0 lies half-way between the two worlds."""
        if hints.sides:
            return side_score(view, hints.pair)
        if hints.learn:
            return learned_ratio(view, hints.pair, hints.known0, hints.known1)
        known = [float(np.median(matched_filter(k, hints.pair))) for k in (hints.known0, hints.known1)]
        return matched_filter(view, hints.pair) - sum(known) / 2

    def findings(self, guesses: Sequence[Any], secrets: Sequence[Any]) -> list[Finding]:
        """Every bound of every game."""
        wanted = [(scores, bits, asked) for scores, (bits, asked) in zip(guesses, secrets, strict=True)]
        tests = sum(2 if asked.kind == "mu" else 1 for _, _, asked in wanted)
        level = 1 - (1 - self.confidence) / max(tests, 1)
        return [f for scores, bits, asked in wanted for f in judge(scores, bits, asked, level, self.delta)]

    def measure(self, guesses: Sequence[Any], secrets: Sequence[Any]) -> list[Reading]:
        """The strongest bound of each quantity."""
        return [f.reading() for f in strongest(self.findings(guesses, secrets))]


MAIN = "canary"
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


def situations(
    federation: Federation, bench: Federation, seat_of: SeatName = "promised"
) -> Iterator[tuple[Question, Channel, Pair]]:
    """What to ask of a stack: each promise from its own seat, or the stack as a whole where there is none."""
    promises = {name: claim for name, claim in federation.claims().items() if isinstance(claim, Claim)}
    seats = {"server": [Seat.SERVER], "client": [Seat.CLIENT]}.get(seat_of)
    asked: list[tuple[Question, Adjacency]] = []
    for name, claim in promises.items():
        if claim.unit in (Unit.RECORD, Unit.PATIENT):
            yield from _records(name, federation)
            continue
        for seat in seats or [_seen(claim.observer)]:
            if seat is _seen(claim.observer):
                kind, promised = one_release(claim)
                question = Question(name, seat, str(claim.unit), MAIN, kind, promised, claim.releases)
            else:
                question = Question(name, seat, f"{claim.unit} seen by the {seat}", MAIN, "none")
            asked.append((question, claim.adjacency))
    if not asked and not promises:
        stack = " + ".join(type(d).__name__ for d in federation.defences) or "no defence"
        acts = {hook for d in federation.defences for hook in hooks_of(d)}
        default = Seat.CLIENT if acts & {"admit", "publish"} else Seat.SERVER
        for seat in seats or [default]:
            unit = f"client seen by the {seat}" if seats else ""
            asked.append((Question(stack, seat, unit, MAIN, "none"), Adjacency.ADD_REMOVE))
    for question, adjacency in asked:
        yield from _variants(question, adjacency, bench)


def _records(name: str, federation: Federation) -> Iterator[tuple[Question, Channel, Pair]]:
    """A record's game: one step on all records of a small client, held against what the stack promises for that."""
    bench = record_bench(federation)
    claim = bench.claims().get(name)
    if not isinstance(claim, Claim):
        return
    kind, promised = one_release(claim)
    question = Question(
        name, Seat.SERVER, f"{claim.unit}, full batch", MAIN, "none" if kind == "sampled" else kind, promised,
        claim.releases, setting="one step of a linear classifier",
    )  # fmt: skip
    channel = LocalChannel(bench)
    yield question, channel, Pair("record", *channel.records(SIZE))


def _seen(observer: Seat) -> Seat:
    """The channel of an observer: the public sees the last of the models that a participant sees."""
    return Seat.SERVER if observer is Seat.SERVER else Seat.CLIENT


def _variants(question: Question, adjacency: Adjacency, bench: Federation) -> Iterator[tuple[Question, Channel, Pair]]:
    channel: Channel
    if question.seat is Seat.SERVER:
        channel = ReleaseChannel(bench)
        if question.kind == "none":
            adjacency = Adjacency.REPLACE_ONE
    else:
        channel = PublishChannel(bench, parts="one" if question.unit == Unit.SUB_CLIENT else "all")
    yield question, channel, canary(channel.layout, adjacency)
    if question.kind == "none":
        yield replace(question, situation="canary in one value"), channel, canary(channel.layout, where="one value")
    if channel.layout.buffers:
        yield replace(question, situation="canary in buffers"), channel, canary(channel.layout, adjacency, "buffers")
    if isinstance(channel, PublishChannel) and len(bench.task.clients) > 2 and bench.sampling == "full":
        fewer = replace(channel, dropped=1)
        yield replace(question, situation="a client drops out"), fewer, canary(channel.layout, adjacency)


def one_release(claim: Claim) -> tuple[Kind, float]:
    """What a claim promises for a single release: mu, or epsilon, or (sampled) nothing that one number says."""
    gaussian = [replace(e, times=1) for e in claim.events if isinstance(e, Gaussian)]
    pure = [e for e in claim.events if isinstance(e, Pure)]
    if not pure and all(e.rate == 1 for e in gaussian):
        return "mu", total_mu(gaussian)
    if not gaussian:
        return "pure", sum(e.epsilon for e in pure)
    return "sampled", math.inf


def not_random(channel: Channel, pair: Pair) -> str:
    """Why a stack hides nothing, found without statistics; empty if it does randomise.

    Two rounds of the same input that come out alike have no noise, or noise that was drawn once. The same round
    played twice that comes out alike has noise which whoever knows the seed can draw again: asked only where the
    stack is said to draw secret noise (a seeded study has its own stamp).
    """
    memory: dict[str, Any] = {}
    rounds = [channel.see(pair.zero, index, memory) for index in (1, 2, 3)]
    ones = [channel.see(pair.one, index) for index in (1, 2)]
    if torch.equal(rounds[0], rounds[1]) and torch.equal(ones[0], ones[1]):
        return "" if torch.equal(rounds[0], ones[0]) else "deterministic: epsilon = infinity"
    if any(_alike(a, b) for a, b in ((rounds[0], rounds[1]), (rounds[1], rounds[2]))):
        return "the noise of one round returns in the next: epsilon = infinity"
    if isinstance(channel, ReleaseChannel | PublishChannel | LocalChannel):
        secret = replace(channel, federation=replace(channel.federation, noise="secret"))
        if torch.equal(secret.see(pair.one, 1), secret.see(pair.one, 1)):
            return "the same round gives the same noise: whoever knows the seed subtracts it: epsilon = infinity"
    return ""


def _alike(a: Tensor, b: Tensor) -> bool:
    length = float(a.double().norm())
    return length > 0 and float((a.double() - b.double()).norm()) < 1e-6 * length


def judge(scores: np.ndarray, bits: np.ndarray, asked: Question, confidence: float, delta: float) -> list[Finding]:
    """The bounds of one game."""
    if asked.trouble:
        return [_certain(asked, "mu" if asked.kind == "mu" else "epsilon")]
    rng = np.random.default_rng(len(scores))
    counts = count_errors(scores >= 0, bits)
    if asked.kind == "mu":
        found = mu_bound(counts, confidence)
        t = math.sqrt(asked.releases)
        first = Finding(asked, "mu", found.point, found.low, found.low * t, found.trials, found.ceiling,
                        confidence, found.method)  # fmt: skip
        return [first, _direct(counts, replace(asked, promised=math.inf), confidence, delta)]
    if asked.kind == "none":
        # The judge of a learned rule must not have chosen its threshold: half of the trials choose, half judge.
        low = lower_bound_from_scores(scores[~bits], scores[bits], delta, confidence, 0.3, rng=rng)
        return [Finding(asked, "epsilon", low.point, low.low, low.low, low.trials, low.ceiling, confidence,
                        low.method, delta)]  # fmt: skip
    if asked.kind == "sampled":
        scores, bits, threshold = _choose(scores, bits, asked.releases, confidence, delta)
        return [_direct(count_errors(scores >= threshold, bits), asked, confidence, delta)]
    return [_direct(counts, asked, confidence, 0.0)]


def _choose(
    scores: np.ndarray, bits: np.ndarray, releases: int, confidence: float, delta: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """The threshold that the first third of the trials likes best, and the trials that are left to judge it."""
    cut = len(scores) // 3
    options = np.quantile(scores[:cut][bits[:cut]], np.linspace(0.02, 0.98, 33))
    worth = [
        composed_epsilon(count_errors(scores[:cut] >= option, bits[:cut]), releases, delta, confidence)
        for option in options
    ]
    return scores[cut:], bits[cut:], float(options[int(np.argmax(worth))])


def _direct(counts: ErrorCounts, asked: Question, confidence: float, delta: float) -> Finding:
    one = composed_epsilon(counts, 1, delta, confidence)
    if asked.kind == "pure":
        composed = one * asked.releases
    else:
        composed = max(one, composed_epsilon(counts, asked.releases, delta, confidence))
    most = ceiling(counts.negatives, delta, confidence, counts.positives)
    point = point_epsilon(counts, delta)
    return Finding(asked, "epsilon", point, one, composed, counts.trials, most, confidence, "Clopper-Pearson", delta)


def composed_epsilon(counts: ErrorCounts, releases: int, delta: float, confidence: float) -> float:
    """Lower bound on epsilon of ``releases`` independent releases, each guessed with the rule that made ``counts``.

    With TPR >= a and FPR <= b at this confidence, "at least k of T guesses say 1" has probability at least
    P(Bin(T, a) >= k) in world 1 and at most P(Bin(T, b) >= k) in world 0; likewise with worlds exchanged. The best
    k may be chosen afterwards: the limits hold for all k at once. T = 1 is `lower_bound`.
    """
    fpr, fnr = counts.upper(1 - confidence)
    k = np.arange(1, releases + 1)
    best = 0.0
    for hit, alarm in ((1 - fnr, fpr), (1 - fpr, fnr)):
        right, wrong = betainc(k, releases - k + 1, hit), betainc(k, releases - k + 1, alarm)
        with np.errstate(divide="ignore", invalid="ignore"):
            worth = np.log(np.maximum(right - delta, 0.0)) - np.log(np.maximum(wrong, 1e-300))
        best = max(best, float(np.nanmax(worth)))
    return best


def _certain(asked: Question, quantity: Literal["mu", "epsilon"]) -> Finding:
    return Finding(asked, quantity, math.inf, math.inf, math.inf, 2, math.inf, 1.0, "no randomness to average over")


def strongest(findings: Sequence[Finding]) -> list[Finding]:
    """The largest bound for each quantity and unit."""
    best: dict[tuple[str, str, str], Finding] = {}
    for found in findings:
        key = (found.quantity, found.question.unit, found.question.defence)
        if key not in best or found.composed > best[key].composed:
            best[key] = found
    return list(best.values())
