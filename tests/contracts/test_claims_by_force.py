"""Claims by brute force: in neighbouring worlds, published values move by no more than what is promised.

Two worlds that differ in one client as the claimed adjacency says run with the same seeded noise, so what differs
between what they publish is what that client moves; another seed in the same world shows how much noise there is.
Where a claim is made the first must not exceed mu times the second, nothing may be without noise, and no run may end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tiny
from leakline.defences import (
    AdaptiveClip,
    Defence,
    DelayedRmsProp,
    DpSgd,
    FedBN,
    FedPer,
    GaussianNoise,
    GaussianRelease,
    GlobalDP,
    HideLayers,
    Intermediaries,
    LdpSgd,
    MetricPrivacy,
    PercentileGaussian,
)  # fmt: skip
from leakline.federation import Federation, State, federate, keep_none
from leakline.messages import Dropped, Order, Round, Update
from leakline.privacy import Adjacency, Claim, NoClaim, Seat, Unit
from leakline.strategies import MENU as STRATEGIES
from leakline.strategies import Strategy
from leakline.weights import Weights

CLIENTS, ROUNDS, CLIP, TARGET = 5, 4, 1.0, "e"
EVEN = STRATEGIES["fedavg"](weighting="even")
LENGTHS = (1000.0, CLIP, 0.7, 30.0)


class Plain(nn.Module):
    """Enough values that their noise can be measured: 1,230."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 200), nn.Linear(200, 1)
        if norm:
            self.norm = nn.BatchNorm1d(10, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x.flatten(1)[:, :4])
        return self.head(hidden) * torch.arange(tiny.CLASSES)


DEFENCES: dict[str, Defence] = {
    "global-dp": GlobalDP(1.0, CLIP),
    "global-dp late": GlobalDP(1.0, CLIP, at="model"),
    "global-dp actual": GlobalDP(1.0, CLIP, denominator="actual"),
    "global-dp clear": GlobalDP(1.0, CLIP, buffers="clear"),
    "global-dp silent": GlobalDP(0.0, CLIP),
    "adaptive-clip": AdaptiveClip(1.0, CLIP),
    "adaptive-clip actual": AdaptiveClip(1.0, CLIP, denominator="actual"),
    "adaptive-clip silent": AdaptiveClip(0.0, CLIP),
    "adaptive-clip paper": AdaptiveClip(1.0, CLIP, reading="paper"),
    "metric-privacy": MetricPrivacy(1.0, CLIP),
    "metric-privacy paper": MetricPrivacy(1.0, CLIP, reading="paper"),
    "metric-privacy public": MetricPrivacy(1.0, CLIP, distance=1.5),
    "intermediaries": Intermediaries(1.0, CLIP, parts=2),
    "intermediaries actual": Intermediaries(1.0, CLIP, parts=2, denominator="actual"),
    "intermediaries code": Intermediaries(1.0, CLIP, parts="code", start=2),
    "intermediaries median": Intermediaries(1.0, CLIP, parts=2, bound="median"),
    "dp2-rmsprop": DelayedRmsProp(interval=1, rate=0.5, floor=0.1),
    "dp-sgd": DpSgd(1.0, CLIP),
    "ldp-sgd": LdpSgd(4.0, CLIP),
    "ldp-sgd ball": LdpSgd(4.0, CLIP, radius=0.1),
    "gaussian-release": GaussianRelease(1.0, CLIP),
    "percentile-gaussian": PercentileGaussian(0.5),
    "fedper": FedPer(("head",)),
    "fedbn": FedBN(),
    "hide-layers": HideLayers(("head",)),
    "gaussian-noise": GaussianNoise(0.1),
}
PLANS: dict[str, Strategy] = {
    **{name: make() for name, make in STRATEGIES.items()},
    **{f"{n} even": STRATEGIES[n](weighting="even") for n in ("fedavg", "fedavgm", "fedprox", "fedopt", "fedadam")},
    **{f"{n} even": STRATEGIES[n](weighting="even") for n in ("fedadagrad", "fedyogi", "fednova")},
    "fednova public": STRATEGIES["fednova"](weighting="even", steps=3.0),
    "fedavg short": STRATEGIES["fedavg"](weighting="even", learning_rate=0.5),
    "fedavg long": STRATEGIES["fedavg"](weighting="even", learning_rate=2.0),
}
SAMPLINGS: dict[str, dict[str, Any]] = {
    "full": {},
    "fixed": {"sampling": "fixed", "participation": 0.6},
    "poisson": {"sampling": "poisson", "participation": 0.4},
}
CASTS = {  # who is invited, round by round: cohorts of none and of the target alone among them
    "full": ["abcde"] * ROUNDS,
    "fixed": ["abe", "cde", "bce", "ade"],
    "poisson": ["abcde", "e", "", "ae"],
}


@dataclass(frozen=True)
class Cast(Federation):
    """A federation whose cohorts are written down."""

    cast: tuple[tuple[str, ...], ...] = ()

    def invited(self, index: int) -> list[str]:
        return list(self.cast[index])


@dataclass(frozen=True)
class Watched:
    """A server optimiser that takes down what it is given: the change once every defence before it has acted."""

    inner: Any
    seen: list[Tensor] = field(default_factory=list, compare=False)

    @property
    def stateless(self) -> bool:
        return bool(self.inner.stateless)

    @property
    def gain(self) -> float:
        return float(self.inner.gain)

    def step(self, change: Tensor, state: Any, index: int) -> Any:
        self.seen.append(change.clone())
        return self.inner.step(change, state, index)

    def told(self, step: Tensor, published: Tensor, state: Any) -> Any:
        return self.inner.told(step, published, state)


@dataclass(frozen=True)
class Players:
    """Clients that send what they are told, through the hooks at the client; some drop out, one may be zeroed."""

    federation: Federation
    sent: dict[str, Tensor]
    lost: frozenset[str] = frozenset()
    zeroed: str = ""

    def exchange(self, orders: Sequence[Order]) -> Iterator[Update | Dropped]:
        for order in orders:
            if order.client in self.lost:
                yield Dropped(order.client, "gone")
                continue
            for part in range(self.federation.stack.sends(order.notes)):
                delta = Weights(self.federation.wire, self.sent[order.client][: self.federation.wire.size])
                update = Update(order.client, delta, 4 + ord(order.client), 3, {"loss": 0.1}, part)
                turns = self.federation.turns_of(order.client, order.round, {}, part)
                released = self.federation.stack.release(update, turns)
                nothing = torch.zeros_like(delta.vector)
                yield released if order.client != self.zeroed else released.with_delta(nothing)


def federation(stack: Sequence[Defence], strategy: Strategy, sampling: str, norm: bool, seed: int = 0) -> Cast:
    watched = replace(strategy, optimiser=Watched(strategy.optimiser))
    base = tiny.federation(task=tiny.task((8,) * CLIENTS), strategy=watched, rounds=ROUNDS, seed=seed)
    settings = {"defences": tuple(stack), **SAMPLINGS[sampling]}
    made = base.but(**settings)
    cast = tuple(tuple(names) for names in CASTS[sampling])
    fields = {name: getattr(made, name) for name in made.__dataclass_fields__}
    return Cast(**(fields | {"model": lambda: Plain(norm), "cast": cast}))


def vectors(size: int, length: float, kind: int) -> dict[str, Tensor]:
    """What clients send: the others about as long as the clip bound, the target as long as the game says."""
    g = torch.Generator().manual_seed(kind)
    rows = {name: torch.randn(size, generator=g) for name in "abcde"}
    rows = {name: row / row.norm() * (0.5 + 0.3 * i) for i, (name, row) in enumerate(rows.items())}
    together = sum(rows[n] for n in "abcd")
    towards = (torch.randn(size, generator=g), together, torch.eye(1, size)[0], -together)[kind % 4]
    return rows | {TARGET: towards / towards.norm() * length}


REMEMBERED = {DelayedRmsProp: {"sum", "count", "second"}, LdpSgd: {"moved"}, AdaptiveClip: {"clip"}}
"""Memories that are functions of what was published: neighbours are compared given the same published past."""


def shifts(fed: Cast, claim: Claim, length: float, kind: int, lost: frozenset[str]) -> Iterator[float]:
    """By how many standard deviations the target moves each round of a federation."""
    sent = vectors(fed.layout.size, length, kind)
    cast = fed.cast
    if claim.adjacency is Adjacency.ADD_REMOVE:
        cast = tuple(tuple(n for n in names if n != TARGET) for names in fed.cast)
    worlds = (
        Players(fed, sent, lost), Players(replace(fed, cast=cast), sent, lost, zeroed=TARGET),
        Players(replace(fed, seed=1), sent, lost),
    )  # fmt: skip
    states = [State(weights=Weights.zeros(fed.wire)) for _ in range(3)]
    late = next(d for d in reversed(fed.defences) if isinstance(d, GlobalDP)).at == "model"
    watched = fed.strategy.optimiser
    assert isinstance(watched, Watched)
    for _ in range(ROUNDS):
        seen, bits = list[Tensor](), list[float]()
        for state, players in zip(states, worlds, strict=True):
            round_ = next(federate(players.federation, players, keep=keep_none, state=state))
            seen.append((round_.result - round_.sent).vector if late else watched.seen[-1])
            bits.append(_bit(fed, round_))
        noise = (seen[0] - seen[2]).double() / math.sqrt(2)
        assert (noise != 0).all(), "a value is published without noise"
        moved = float((seen[0] - seen[1]).double().norm() / noise.square().mean().sqrt())
        yield math.hypot(moved, bits[0] - bits[1])
        for place, defence in enumerate(fed.defences):
            for name in REMEMBERED.get(type(defence), set()):
                mine = states[0].memory.get(f"{place}", {})
                for state in states[1:]:
                    state.memory.setdefault(f"{place}", {}).pop(name, None)
                    if name in mine:
                        state.memory[f"{place}"][name] = deepcopy(mine[name])


def _bit(fed: Cast, round_: Round) -> float:
    """The noised count of an adaptive clip, in standard deviations of its noise."""
    if "unclipped_noised" not in round_.facts:
        return 0.0
    clip = next(d for d in reversed(fed.defences) if isinstance(d, AdaptiveClip))
    n = fed.expected() if clip.denominator == "expected" else max(1, len(round_.cohort))
    return (round_.facts["unclipped_noised"] - 0.5) * n / clip._bits_std(fed.expected())


def check(stack: Sequence[Defence], strategy: Strategy, sampling: str, norm: bool, lost: str = "") -> int:
    """Play every claim about published models that a stack makes; how many there were."""
    fed = federation(stack, strategy, sampling, norm)
    claims = [c for c in fed.claims().values() if isinstance(c, Claim) and c.observer is not Seat.SERVER]
    claims = [c for c in claims if c.unit is Unit.CLIENT]
    for claim, (kind, length) in product(claims, enumerate(LENGTHS)):
        mu = claim.events[0].mu  # type: ignore[union-attr]
        for index, moved in enumerate(shifts(fed, claim, length, kind, frozenset(lost))):
            # The noise is measured on 1,211 values or more: five standard deviations of that are 10 %.
            assert moved <= 1.1 * mu, f"round {index}: {moved:.3g} standard deviations, {mu:.3g} are claimed"
    return len(claims)


def fits(names: Sequence[str], norm: bool) -> bool:
    """One owner of the gradient, no BatchNorm under DP-SGD, and some for FedBN."""
    return not (names.count("dp-sgd") > 1 or ("fedbn" in names and not norm) or ("dp-sgd" in names and norm))


ALONE = [
    (name, plan, sampling, norm, lost)
    for name, plan, sampling, norm, lost in product(DEFENCES, PLANS, SAMPLINGS, (False, True), ("", "b"))
    if fits([name], norm)
]
PAIRS = [
    (one, two, sampling, norm)
    for one, two, sampling, norm in product(DEFENCES, DEFENCES, SAMPLINGS, (False, True))
    if fits([one, two], norm)
]


def test_alone():
    made = sum(
        check([DEFENCES[name]], PLANS[plan], sampling, norm, lost)
        for name, plan, sampling, norm, lost in islice(ALONE, 0, None, 19)
    )
    assert made > 10


def test_in_pairs():
    made = sum(
        check([DEFENCES[one], DEFENCES[two]], EVEN, sampling, norm)
        for one, two, sampling, norm in islice(PAIRS, 0, None, 23)
    )
    assert made > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFENCES)
def test_alone_everywhere(name):
    made = [check([DEFENCES[case[0]]], PLANS[case[1]], *case[2:]) for case in ALONE if case[0] == name]
    assert made


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFENCES)
def test_every_pair(name):
    made = [check([DEFENCES[case[0]], DEFENCES[case[1]]], EVEN, *case[2:]) for case in PAIRS if case[0] == name]
    assert made


FALLEN = {
    "the paper's adaptive clip before global-dp": ("adaptive-clip paper", "global-dp", "GlobalDP"),
    "an adaptive clip without noise before global-dp": ("adaptive-clip silent", "global-dp", "GlobalDP"),
    "an adaptive clip before global-dp": ("adaptive-clip", "global-dp", "GlobalDP"),
    "a measured distance before global-dp": ("metric-privacy", "global-dp", "GlobalDP"),
    "two denominators": ("global-dp", "global-dp actual", "GlobalDP 2"),
    "a clip behind the clip": ("global-dp", "global-dp", "GlobalDP 1"),
    "examples seen behind the noise": ("gaussian-release", "dp-sgd", "GaussianRelease"),
}


@pytest.mark.parametrize("case", FALLEN)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_claims_that_fell(case, sampling):
    one, two, whose = FALLEN[case]
    claim = federation([DEFENCES[one], DEFENCES[two]], EVEN, sampling, False).claims()[whose]
    assert isinstance(claim, NoClaim)
    assert claim.instead


STANDING = {
    "global-dp twice": ("global-dp", "global-dp", "GlobalDP 2"),
    "global-dp behind a preconditioner": ("dp2-rmsprop", "global-dp", "GlobalDP"),
    "intermediaries behind a preconditioner": ("dp2-rmsprop", "intermediaries", "Intermediaries per client"),
    "a local promise before global-dp": ("gaussian-release", "global-dp", "GaussianRelease"),
    "global-dp behind a local promise": ("gaussian-release", "global-dp", "GlobalDP"),
    "a local promise before an adaptive clip": ("ldp-sgd", "adaptive-clip paper", "LdpSgd per client"),
    "global-dp with personal layers": ("fedper", "global-dp", "GlobalDP"),
    "dp-sgd before a release": ("dp-sgd", "gaussian-release", "DpSgd"),
}


@pytest.mark.parametrize("case", STANDING)
def test_claims_that_stand(case):
    one, two, whose = STANDING[case]
    assert isinstance(federation([DEFENCES[one], DEFENCES[two]], EVEN, "full", False).claims()[whose], Claim)


def test_the_game_sees_a_denominator_that_follows_who_came():
    """The card of old: the number of answers in mean and noise, and add-remove beside it."""
    fed = federation([DEFENCES["global-dp actual"]], EVEN, "full", False)
    claim = fed.claims()["GlobalDP"]
    assert isinstance(claim, Claim)
    assert claim.adjacency is Adjacency.ZERO_OUT
    mislabelled = replace(claim, adjacency=Adjacency.ADD_REMOVE)
    assert max(shifts(fed, mislabelled, 1000.0, 0, frozenset())) > 1.2


@pytest.mark.parametrize("one", ["adaptive-clip paper", "adaptive-clip silent", "metric-privacy"])
def test_the_game_sees_what_the_fallen_claims_hid(one):
    fed = federation([DEFENCES[one], DEFENCES["global-dp"]], EVEN, "full", False)
    claim = federation([DEFENCES["global-dp"]], EVEN, "full", False).claims()["GlobalDP"]
    assert isinstance(claim, Claim)
    moved = (m for kind, length in enumerate(LENGTHS) for m in shifts(fed, claim, length, kind, frozenset()))
    assert max(moved) > 1.2


@pytest.mark.parametrize("name", ["gaussian-release", "ldp-sgd", "dp-sgd"])
def test_under_a_local_promise_no_figure_leaves_with_an_update(name):
    fed = federation([DEFENCES[name]], EVEN, "full", False)
    players = Players(fed, vectors(fed.layout.size, 1.0, 0))
    for update in players.exchange([Order("a", 0, Weights.zeros(fed.wire))]):
        assert isinstance(update, Update)
        assert update.metrics == {}


@pytest.mark.parametrize("name", ["gaussian-release", "ldp-sgd"])
def test_where_clients_judge_their_figures_are_named_beside_a_local_promise(name):
    clients = tuple(replace(c, test=c.train) for c in tiny.task().clients)
    fed = tiny.federation(defences=(DEFENCES[name],), task=tiny.task(clients=clients))
    for judging, told in (("server", False), ("clients", True), ("both", True)):
        for claim in fed.but(evaluate=judging).claims().values():
            assert isinstance(claim, Claim)
            assert any("exact losses" in text for text in claim.outside) is told


def test_a_bit_that_turns_over_is_counted_under_zero_out():
    claims = federation([DEFENCES["adaptive-clip actual"]], EVEN, "full", False).claims()
    (claim,) = claims.values()
    assert isinstance(claim, Claim)
    assert claim.events[0].mu == pytest.approx(math.sqrt(1.75))  # type: ignore[union-attr]  # sigma_b = 1
