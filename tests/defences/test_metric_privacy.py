"""Metric privacy: arithmetic of the noise, bounds on the distance, what is and is not promised, bad input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import nn

from leakline.bench.training import Plan
from leakline.data.base import Client, Data, Task
from leakline.defences import MENU, GlobalDP, MetricPrivacy, hooks_of
from leakline.errors import ClientLost, StackError
from leakline.federation import Federation, State, federate
from leakline.mechanisms import clip_norm, distances, metric_std, spread
from leakline.messages import Order, Update
from leakline.privacy import Claim, NoClaim, account
from leakline.strategies import Strategy, fedavg, fedavgm, fedmedian, fedopt, fedyogi
from leakline.weights import Entry, Layout, Weights

LAYOUT = Layout(tuple(Entry(f"layer{i}", (size,)) for i, size in enumerate((40, 3, 70, 1))))


class Net(nn.Module):
    """Two dense layers: four arrays."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 5), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.relu(self.one(x)))


def clients(n: int, same: bool = False) -> tuple[Client, ...]:
    made = []
    for i in range(n):
        rng = np.random.default_rng(0 if same else i)
        x = torch.from_numpy(rng.normal(size=(12, 6)).astype(np.float32))
        made.append(Client(f"c{i}", Data(x, torch.from_numpy(rng.integers(0, 2, 12)))))
    return tuple(made)


def federation(
    *defences: MetricPrivacy | GlobalDP, n: int = 4, strategy: Strategy | None = None, **more: object
) -> Federation:
    members = more.pop("members", None) or clients(n)
    server = Data(torch.zeros(4, 6), torch.tensor([0, 1, 0, 1]))
    task = Task(members, server, server, ("a", "b"))  # type: ignore[arg-type]
    plan = more.pop("plan", Plan(epochs=1, batch=4, learning_rate=0.1))
    even = fedavg(weighting="even")
    return Federation(task, Net, plan, strategy or even, defences, noise="seeded").but(**more)  # type: ignore[arg-type]


class Given:
    """A transport that hands out updates made up beforehand."""

    def __init__(self, rows: Sequence[torch.Tensor]) -> None:
        self.rows = rows

    def exchange(self, orders):  # type: ignore[no-untyped-def]
        for order, row in zip(orders, self.rows, strict=False):
            yield Update(order.client, order.weights.like(row), 10, 1)


def one_round(world: Federation, rows: Sequence[torch.Tensor]):  # type: ignore[no-untyped-def]
    start = Weights.zeros(world.layout)
    return next(federate(world, Given(rows), state=State(weights=start)))


def by_loops(rows: Sequence[torch.Tensor], layout: Layout) -> float:
    """The definition, pair by pair and layer by layer."""
    best = 0.0
    for i, a in enumerate(rows):
        for b in rows[i + 1 :]:
            parts = [float((a[s].double() - b[s].double()).norm()) for s in layout.slices.values()]
            best = max(best, sum(parts) / len(parts))
    return best


# --- the arithmetic --------------------------------------------------------------------------------------------


def test_sigma_halves_when_the_distance_doubles() -> None:
    assert metric_std(0.01, 5, 4, 2.0) == pytest.approx(metric_std(0.01, 5, 4, 1.0) / 2)
    assert metric_std(0.01, 5, 4, 1.0) == pytest.approx(0.0125)  # the paper's setting without a distance
    world = federation(MetricPrivacy(0.01, 5, reading="paper"))
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(world.layout.size, generator=generator) for _ in range(4)]
    near, far = one_round(world, rows), one_round(world, [2 * row for row in rows])
    assert far.facts["distance"] == pytest.approx(2 * near.facts["distance"], rel=1e-6)
    assert far.facts["noise_std"] == pytest.approx(near.facts["noise_std"] / 2, rel=1e-6)
    assert near.facts["noise_std"] == pytest.approx(0.01 * 5 / (4 * near.facts["distance"]))


@given(some.integers(0, 2**31), some.integers(2, 6), some.floats(1e-3, 1e3), some.floats(1e-4, 10))
@settings(max_examples=60, deadline=None)
def test_distance_is_its_definition_and_bounded_after_clipping(seed: int, n: int, scale: float, clip: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randn(LAYOUT.size, generator=generator) * scale for _ in range(n)]
    assert spread(rows, LAYOUT) == pytest.approx(by_loops(rows, LAYOUT), rel=1e-6)
    clipped = [clip_norm(row, clip) for row in rows]
    assert spread(clipped, LAYOUT) <= 2 * clip / math.sqrt(len(LAYOUT.entries)) * (1 + 1e-6)


def test_the_bound_after_clipping_is_reached() -> None:
    """Opposite vectors with the same norm in every layer: Cauchy and Schwarz hold with equality."""
    layout = Layout(tuple(Entry(f"l{i}", (3,)) for i in range(12)))
    row = torch.zeros(layout.size)
    row[::3] = 5 / math.sqrt(12)
    assert spread([row, -row], layout) == pytest.approx(2 * 5 / math.sqrt(12), rel=1e-6)
    assert MetricPrivacy(0.01, 5).most(layout) == pytest.approx(2.8868, abs=1e-4)


def test_the_largest_pair_counts_and_rounding_does_not() -> None:
    """Rows far from the origin and close together: Gram matrices without centring would see nothing."""
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(LAYOUT.size, generator=generator) * 1000
    rows = [base, base + 1e-3, base - 2e-3]
    matrix = distances(rows, LAYOUT)
    assert float(matrix.max()) == pytest.approx(by_loops(rows, LAYOUT), rel=1e-6)
    assert torch.equal(matrix, matrix.T)


def test_readings_differ_in_where_the_distance_is_taken() -> None:
    generator = torch.Generator().manual_seed(2)
    size = federation(MetricPrivacy(0.01, 5)).layout.size
    rows = [torch.randn(size, generator=generator) * 50 for _ in range(4)]
    for reading in ("paper", "sound"):
        world = federation(MetricPrivacy(0.01, 0.5, reading=reading))
        taken = rows if reading == "paper" else [clip_norm(row, 0.5) for row in rows]
        found = one_round(world, rows).facts["distance"]
        assert found == pytest.approx(by_loops(taken, world.layout), rel=1e-6)
        assert (found > 2 * 0.5 / math.sqrt(4)) == (reading == "paper")


def test_readings_differ_in_where_the_noise_is_added() -> None:
    assert MetricPrivacy(1, 1, reading="paper").at == "model"
    assert MetricPrivacy(1, 1, reading="sound").at == "aggregate"
    # FedAvgM multiplies by 0.1: noise added before the step shrinks with it, noise added after does not.
    generator = torch.Generator().manual_seed(3)
    for reading, share in (("sound", 0.1), ("paper", 1.0)):
        world = federation(MetricPrivacy(5.0, 1.0, reading=reading, distance=1.0), strategy=fedavgm("even"))
        rows = [torch.randn(world.layout.size, generator=generator) * 1e-6 for _ in range(4)]
        noise = one_round(world, rows).result.vector
        # 47 values: the sample std of a normal is off by more than 60 % with probability below 1e-6.
        assert float(noise.std()) == pytest.approx(share * 5 / 4, rel=0.6)


def test_public_constant_is_global_dp_with_z_over_d() -> None:
    generator = torch.Generator().manual_seed(4)
    fixed = federation(MetricPrivacy(0.03, 5, distance=1.5))
    rows = [torch.randn(fixed.layout.size, generator=generator) for _ in range(4)]
    plain = one_round(federation(GlobalDP(0.02, 5)), rows)
    found = one_round(fixed, rows)
    assert found.facts["noise_std"] == pytest.approx(plain.facts["noise_std"])
    assert found.facts["distance"] == 1.5
    ours, theirs = fixed.claims()["MetricPrivacy"], federation(GlobalDP(0.02, 5)).claims()["GlobalDP"]
    assert isinstance(ours, Claim)
    assert isinstance(theirs, Claim)
    assert account(ours, 1e-5).epsilon == pytest.approx(account(theirs, 1e-5).epsilon)


def test_facts_of_every_round_are_kept() -> None:
    rounds = list(federate(federation(MetricPrivacy(0.01, 5), rounds=3)))
    assert len(rounds) == 3
    for each in rounds:
        assert 0 < each.facts["distance"] <= 2 * 5 / math.sqrt(4)
        assert each.facts["noise_std"] == pytest.approx(0.05 / (4 * each.facts["distance"]))


# --- the promise -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reading", ["paper", "sound"])
def test_a_measured_distance_promises_nothing_and_says_what_holds(reading: str) -> None:
    world = federation(MetricPrivacy(0.01, 5, reading=reading), rounds=20)  # type: ignore[arg-type]
    claim = world.claims()["MetricPrivacy"]
    assert isinstance(claim, NoClaim)
    assert "distance measured on the very clients" in claim.reason
    assert ("before clipping" in claim.reason) == (reading == "paper")
    assert "mu = x / s" in claim.instead
    assert "101,906" in claim.instead  # what z = 0.01 would promise as global DP over 20 rounds
    after = world.claims([{"distance": 1.0, "noise_std": 0.0125}, {"distance": 1.5, "noise_std": 0.05 / 6}])
    text = after["MetricPrivacy"].instead  # type: ignore[union-attr]
    assert "d was 1 to 1.5 over 2 rounds" in text
    assert "up to 120" in text  # x = 1 over s = 0.05 / (4 * 1.5)
    assert "up to 300" in text  # 2 d / z: the whole clipped difference 2 C / n


@pytest.mark.parametrize("kind", [GlobalDP, MetricPrivacy])
@pytest.mark.parametrize(
    ("strategy", "at", "reason"),
    [
        (fedmedian(), "aggregate", "median"),
        (fedavg(weighting="examples"), "aggregate", "weighted by examples"),
        (fedopt(weighting="examples"), "aggregate", "weighted by examples"),
        (fedavgm(weighting="even"), "model", "stateful server optimiser"),
        (fedyogi(weighting="even"), "model", "stateful server optimiser"),
    ],
)
def test_strategies_that_void_the_promise(kind: type, strategy: Strategy, at: str, reason: str) -> None:
    if kind is GlobalDP:
        defences: list[GlobalDP] = [GlobalDP(0.01, 5, at=at)]  # type: ignore[arg-type]
    else:
        reading = "paper" if at == "model" else "sound"
        defences = [MetricPrivacy(0.01, 5, reading=reading, distance=d) for d in ("measured", 1.5)]  # type: ignore[arg-type]
    for defence in defences:
        claim = federation(defence, strategy=strategy).claims()[kind.__name__]
        assert isinstance(claim, NoClaim)
        assert reason in claim.reason


@pytest.mark.parametrize("strategy", [fedavgm(weighting="even"), fedyogi(weighting="even")])
def test_noise_before_the_optimiser_keeps_the_promise(strategy: Strategy) -> None:
    assert isinstance(federation(GlobalDP(0.01, 5), strategy=strategy).claims()["GlobalDP"], Claim)


@pytest.mark.parametrize(("rounds", "epsilon"), [(1, 5425), (20, 101906)])
def test_what_the_papers_noise_buys(rounds: int, epsilon: float) -> None:
    claim = federation(GlobalDP(0.01, 5), rounds=rounds).claims()["GlobalDP"]
    assert isinstance(claim, Claim)
    assert account(claim, 1e-5).epsilon == pytest.approx(epsilon, abs=1)


def test_no_noise_is_said_first() -> None:
    claim = federation(MetricPrivacy(0, 5)).claims()["MetricPrivacy"]
    assert isinstance(claim, NoClaim)
    assert "no noise" in claim.reason


# --- bad input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reading", ["paper", "sound"])
@pytest.mark.parametrize("wobble", [0.0, 1e-8])
def test_identical_updates_stop_the_round(reading: str, wobble: float) -> None:
    world = federation(MetricPrivacy(0.01, 5, reading=reading))  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(5)
    row = torch.randn(world.layout.size, generator=generator)
    with pytest.raises(ClientLost, match="distance d is 0"):
        one_round(world, [row * (1 + wobble * i) for i in range(4)])
    with pytest.raises(ClientLost, match="distance d is 0"):
        one_round(world, [torch.zeros_like(row)] * 4)


def test_identical_clients_are_refused_before_training() -> None:
    measured, fixed = MetricPrivacy(0.01, 5), MetricPrivacy(0.01, 5, distance=1.5)
    with pytest.raises(StackError, match="hold the same examples"):
        measured.check(federation(measured, members=clients(3, same=True)))
    fixed.check(federation(fixed, members=clients(3, same=True)))
    measured.check(federation(measured))


def test_one_client_is_refused() -> None:
    with pytest.raises(StackError, match="compares clients"):
        federation(MetricPrivacy(0.01, 5), n=1)


def test_a_round_that_lost_all_but_one_client_is_not_published() -> None:
    world = federation(MetricPrivacy(0.01, 5))
    with pytest.raises(ClientLost, match="distance between clients"):
        one_round(world, [torch.randn(world.layout.size, generator=torch.Generator().manual_seed(6))])


def test_an_empty_poisson_round_is_not_published() -> None:
    world = federation(MetricPrivacy(0.01, 5), sampling="poisson", participation=1e-9)
    with pytest.raises(ClientLost, match="this round has 0"):
        next(federate(world, Given([]), state=State(weights=Weights.zeros(world.layout))))


@pytest.mark.parametrize("values", [{"reading": "both"}, {"distance": 0.0}, {"distance": -1.0}, {"distance": math.inf}])
def test_wrong_settings(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=str(next(iter(values.values())))):
        MetricPrivacy(0.01, 5, **values)  # type: ignore[arg-type]


def test_menu_and_hooks() -> None:
    assert MENU["metric-privacy"] is MetricPrivacy
    assert hooks_of(MetricPrivacy) == ("admit", "publish")
    assert replace(MetricPrivacy(1, 1, reading="paper"), clip=2).at == "model"
    assert Order("c", 0, Weights.zeros(LAYOUT)).kind == "train"
