"""Strategies with weights of their own against Flower's legacy classes inside its DP wrapper, number by number.

Flower's wrapper draws its noise from numpy's global generator: it is replaced by a known draw there, and by the same
draw in our loop. Nothing of ours is replaced but where the updates come from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny
from leakline.defences import GlobalDP
from leakline.federation import Federation, State, federate
from leakline.messages import Turn, Update
from leakline.runtimes.local import LocalTransport
from leakline.strategies import MENU, OwnBase, Strategy
from leakline.weights import Weights

pytest.importorskip("flwr")
LEGACY = {
    "fedavg": ("FedAvg", {}, {}),
    "fedavgm": ("FedAvgM", {"server_learning_rate": 0.1, "server_momentum": 0.5}, {"base": "own"}),
    "fedyogi": ("FedYogi", {}, {"base": "own"}),
}
CLIP, Z, ROUNDS = 5.0, 0.01, 20


@dataclass(frozen=True)
class Known(GlobalDP):
    """Global DP whose noise is written down: both sides must add the same."""

    drawn: Any = field(default=None, compare=False)

    def publish(self, change: Weights, cohort: Any, turn: Turn) -> Weights:
        std = self.noise_multiplier * self.clip / len(cohort)
        return change.like(change.vector + std * self.drawn(turn.round))


@dataclass
class Scripted:
    """Clients that send written updates."""

    deltas: list[list[Tensor]]

    def exchange(self, orders: Any) -> Any:
        for order, delta in zip(orders, self.deltas[orders[0].round], strict=True):
            change = order.weights.like(delta)
            yield Update(order.client, change, 10, 1)


def ours(strategy: Strategy, deltas: list[list[Tensor]], drawn: Any) -> list[Tensor]:
    base = tiny.federation()
    defence = Known(Z, CLIP, at="model", denominator="actual", drawn=drawn)
    federation: Federation = base.but(strategy=strategy, defences=(defence,), rounds=len(deltas))
    return [r.result.vector.clone() for r in federate(federation, Scripted(deltas))]


def theirs(name: str, settings: dict[str, Any], start: Tensor, deltas: list[list[Tensor]], drawn: Any) -> list[Tensor]:
    """Flower's legacy server: the DP wrapper around a strategy, driven as its server drives it."""
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.server import strategy as flower
    from flwr.server.strategy import dp_fixed_clipping

    initial = ndarrays_to_parameters([start.numpy().copy()])
    inner = getattr(flower, name)(initial_parameters=initial, fraction_fit=0.0, min_available_clients=0, **settings)
    wrapped = flower.DifferentialPrivacyServerSideFixedClipping(inner, Z, CLIP, len(deltas[0]))
    sent, out = start.clone(), []

    def add(parameters: Any, z: float, clip: float, clients: int) -> Any:
        arrays = parameters_to_ndarrays(parameters)
        return ndarrays_to_parameters([arrays[0] + z * clip / clients * drawn(len(out)).numpy()])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dp_fixed_clipping, "add_gaussian_noise_to_params", add)
        for index, row in enumerate(deltas):
            wrapped.current_round_params = [sent.numpy().copy()]
            replies = [
                (None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters([(sent + d).numpy()]), 10, {})) for d in row
            ]
            aggregated, _ = wrapped.aggregate_fit(index + 1, replies, [])
            sent = torch.from_numpy(parameters_to_ndarrays(aggregated)[0]).float()
            out.append(sent.clone())
    return out


def noise_of(size: int) -> Any:
    return lambda index: torch.randn(size, generator=torch.Generator().manual_seed(1_000 + index))


def played(case: str, scale: float, **changed: Any) -> tuple[list[Tensor], list[Tensor]]:
    name, settings, own = LEGACY[case]
    start = tiny.federation().bench().initial.vector
    g = torch.Generator().manual_seed(7)
    deltas = [[torch.randn(len(start), generator=g) * scale for _ in range(3)] for _ in range(ROUNDS)]
    drawn = noise_of(len(start))
    strategy = MENU[case](**(own | changed))
    return ours(strategy, deltas, drawn), theirs(name, settings, start, deltas, drawn)


@pytest.mark.parametrize("scale", [1e-4, 0.3])
@pytest.mark.parametrize("case", LEGACY)
def test_published_models_are_those_of_flowers_legacy_classes(case: str, scale: float) -> None:
    mine, flowers = played(case, scale)
    for index, (a, b) in enumerate(zip(mine, flowers, strict=True)):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5), index


@pytest.mark.parametrize("case", ["fedavgm", "fedyogi"])
def test_a_base_that_is_what_was_sent_is_another_mechanism(case: str) -> None:
    mine, flowers = played(case, 1e-4, base="sent")
    assert not torch.allclose(mine[-1], flowers[-1], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(("case", "low", "high"), [("fedavg", 4.2, 4.8), ("fedavgm", 1.2, 1.4), ("fedyogi", 5.2, 6.2)])
def test_how_noise_piles_up(case: str, low: float, high: float) -> None:
    """Noise of the published model in units of one round's, after 20 rounds of next to no training.

    A random walk gives sqrt(20) = 4.47. Seeded: no false alarms.
    """
    size = 4_000
    strategy = MENU[case](**LEGACY[case][2])
    std, state, sent = Z * CLIP / 4, {}, torch.zeros(size)  # paper 000's four clients
    drawn = noise_of(size)
    for index in range(ROUNDS):
        step, state = strategy.optimiser.step(torch.full((size,), 1e-9), state, index)
        published = step + std * drawn(index)
        state = strategy.optimiser.told(step, published, state)
        sent = sent + published
    assert low < float(sent.std()) / std < high


def test_without_noise_after_the_step_the_base_is_no_matter() -> None:
    start = tiny.federation().bench().initial.vector
    g = torch.Generator().manual_seed(3)
    deltas = [[torch.randn(len(start), generator=g) for _ in range(3)] for _ in range(5)]
    silent = lambda index: torch.zeros(len(start))  # noqa: E731
    for case in ("fedavgm", "fedyogi"):
        own, sent = (ours(MENU[case](base=b), deltas, silent) for b in ("own", "sent"))
        assert torch.allclose(own[-1], sent[-1], atol=1e-6)


def test_what_was_added_is_part_of_the_state_that_a_run_goes_on_from() -> None:
    fed = tiny.federation(strategy=MENU["fedavgm"](base="own"), defences=(GlobalDP(0.5, 1.0, at="model"),), rounds=4)
    whole, state = tiny.run(fed), State()
    for _ in range(4):
        with LocalTransport(fed, 1) as transport:
            next(iter(federate(fed, transport, state=state)))
        state = State(
            state.next, state.weights, {key: value.clone() for key, value in state.optimiser.items()}, state.memory
        )
    assert state.weights is not None
    assert torch.equal(state.weights.vector, whole[-1].result.vector)


def test_nothing_is_promised_of_noise_after_a_step_from_an_own_base() -> None:
    strategy = Strategy(MENU["fedavg"]("even").combine, OwnBase(MENU["fedavg"]().optimiser))
    federation = tiny.federation().but(strategy=strategy, defences=(GlobalDP(1.0, 1.0, at="model"),))
    (claim,) = federation.claims().values()
    assert "stateful server optimiser" in claim.reason
    with pytest.raises(ValueError, match="base"):
        MENU["fedyogi"](base="theirs")
