"""Every strategy that Flower has too gives Flower's own numbers, round after round."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from leakline.strategies import MENU
from leakline.weights import Entry, Layout, Weights

LAYOUT = Layout((Entry("conv", (3, 2, 2)), Entry("bias", (7,)), Entry("scale", ())))
ROUNDS = 6


@pytest.fixture(scope="module")
def flower():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other people's deprecations
        from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
        from flwr.serverapp import strategy

    logging.getLogger("flwr").setLevel(logging.ERROR)

    @dataclass
    class Flower:
        strategies: Any
        array: Any
        arrays: Any
        config: Any
        metrics: Any
        records: Any

    return Flower(strategy, Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict)


@dataclass
class Reply:
    """What Flower's aggregation reads of a message; a real one cannot be built outside of a run."""

    content: Any

    def has_error(self) -> bool:
        return False


def named(vector: torch.Tensor) -> dict[str, np.ndarray]:
    return {e.name: v.numpy().copy() for e, v in Weights(LAYOUT, vector).layers()}


CASES = {
    "fedavg": (MENU["fedavg"](), "FedAvg", {}),
    "fedavg-slow": (MENU["fedavg"](learning_rate=0.3), "FedAvgM", {"server_learning_rate": 0.3}),
    "fedavgm": (MENU["fedavgm"](), "FedAvgM", {"server_learning_rate": 0.1, "server_momentum": 0.5}),
    "fedavgm-fast": (
        MENU["fedavgm"](learning_rate=1.0, momentum=0.9),
        "FedAvgM",
        {"server_learning_rate": 1.0, "server_momentum": 0.9},
    ),
    "fedmedian": (MENU["fedmedian"](), "FedMedian", {}),
    "fedtrimmed": (MENU["fedtrimmed"](), "FedTrimmedAvg", {}),
    "fedtrimmed-wide": (MENU["fedtrimmed"](beta=0.4), "FedTrimmedAvg", {"beta": 0.4}),
    "fedprox": (MENU["fedprox"](), "FedProx", {"proximal_mu": 0.1}),
    "fedadam": (MENU["fedadam"](), "FedAdam", {}),
    "fedadagrad": (MENU["fedadagrad"](), "FedAdagrad", {}),
    "fedyogi": (MENU["fedyogi"](), "FedYogi", {}),
    "fedyogi-other": (
        MENU["fedyogi"](learning_rate=0.2, beta1=0.5, beta2=0.8, tau=1e-2),
        "FedYogi",
        {"eta": 0.2, "beta_1": 0.5, "beta_2": 0.8, "tau": 1e-2},
    ),
}


@pytest.mark.parametrize("clients", [1, 4, 5])
@pytest.mark.parametrize("case", CASES)
def test_same_numbers_as_flower_over_several_rounds(flower, case, clients):
    ours, name, settings = CASES[case]
    # fraction_train = 0: Flower takes note of the arrays it would send, and asks no grid for nodes.
    theirs = getattr(flower.strategies, name)(fraction_train=0.0, **settings)
    g = torch.Generator().manual_seed(clients)
    weights = torch.randn(LAYOUT.size, generator=g)
    flowers = named(weights)
    state: dict[str, torch.Tensor] = {}
    for index in range(ROUNDS):
        record = flower.arrays({k: flower.array(v) for k, v in flowers.items()})
        theirs.configure_train(index + 1, record, flower.config(), None)
        deltas = [torch.randn(LAYOUT.size, generator=g) * 0.5 for _ in range(clients)]
        examples = torch.randint(1, 200, (clients,), generator=g).tolist()
        sent = torch.cat([torch.from_numpy(np.asarray(flowers[e.name])).reshape(-1) for e in LAYOUT.entries]).float()
        replies = [
            Reply(
                flower.records(
                    {
                        "arrays": flower.arrays({k: flower.array(v) for k, v in named(sent + d).items()}),
                        "metrics": flower.metrics({"num-examples": n, "loss": 0.0}),
                    }
                )
            )
            for d, n in zip(deltas, examples, strict=True)
        ]
        aggregated, _ = theirs.aggregate_train(index + 1, replies)
        flowers = {k: np.asarray(v.numpy(), dtype=np.float32) for k, v in aggregated.items()}

        updates = [
            tiny.update(d, f"c{i}", n, layout=LAYOUT) for i, (d, n) in enumerate(zip(deltas, examples, strict=True))
        ]
        step, state = ours.optimiser.step(ours.combine(updates).vector, state, index)
        weights = weights + step
        for entry, values in Weights(LAYOUT, weights).layers():
            assert np.allclose(values.numpy(), flowers[entry.name], rtol=1e-5, atol=1e-5), (index, entry.name)


def test_the_installed_flower_is_the_one_we_are_compared_with():
    from importlib.metadata import version

    assert version("flwr").startswith("1.41.")
