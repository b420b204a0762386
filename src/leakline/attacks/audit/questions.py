"""What an audit asks of a stack: each promise from its own seat, in several situations, if it is random at all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from leakline.attacks.audit.channel import Channel, LocalChannel, PublishChannel, ReleaseChannel
from leakline.attacks.audit.crafters import SIZE, Pair, canary
from leakline.attacks.audit.workbench import record_bench
from leakline.federation import Federation
from leakline.privacy import Adjacency, Claim, Gaussian, Pure, Seat, Unit, total_mu

Kind = Literal["mu", "pure", "sampled", "none"]


SeatName = Literal["promised", "server", "client"]


MAIN = "canary"


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
        stack = federation.stack
        default = Seat.CLIENT if stack.using("admit", "publish") else Seat.SERVER
        for seat in seats or [default]:
            unit = f"client seen by the {seat}" if seats else ""
            asked.append((Question(str(stack), seat, unit, MAIN, "none"), Adjacency.ADD_REMOVE))
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
    channel = LocalChannel(bench, whole=claim.unit is Unit.PATIENT, summed=claim.observer is not Seat.SERVER)
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
    if isinstance(channel, PublishChannel) and len(bench.task.clients) > 2 and bench.cohort.sampling == "full":
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
