"""Defences in somebody else's Flower app do what they do in leakline's own loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch

flowerlike = pytest.importorskip("flowerlike", reason="needs leakline[flower]")

from collections.abc import Iterator, Sequence  # noqa: E402
from typing import Any  # noqa: E402

from flwr.app import ArrayRecord, MetricRecord, RecordDict  # noqa: E402
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian  # noqa: E402

import leakline.flower as flower  # noqa: E402
import tiny  # noqa: E402
from leakline.defences import (  # noqa: E402
    AdaptiveClip,
    FedPer,
    GaussianRelease,
    GlobalDP,
    Intermediaries,
    LdpSgd,
    MetricPrivacy,
    PercentileGaussian,
    PinnedModel,
)
from leakline.defences.pinned_model import architecture_of  # noqa: E402
from leakline.errors import ClientLost, StackError  # noqa: E402
from leakline.federation import Federation, federate, initial_weights  # noqa: E402
from leakline.flower.wrap.sides import HEAD  # noqa: E402
from leakline.messages import Dropped, Order, Update  # noqa: E402
from leakline.strategies import MENU as STRATEGIES  # noqa: E402
from leakline.weights import Layout, Weights  # noqa: E402

EXAMPLES = {"a": 4, "b": 12, "c": 8, "d": 8}
LAYOUT = tiny.federation(model=tiny.perceptron).layout


def moved(client: str, weights: dict[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
    """What a client makes of weights: a pull towards a place of its own, different in every round."""
    rng = np.random.default_rng([ord(client), index])
    return {k: (v + 0.3 * rng.normal(size=v.shape) - 0.1 * v).astype(np.float32) for k, v in weights.items()}


def train(client: str, weights: dict[str, np.ndarray], index: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    return moved(client, weights, index), {"num-examples": EXAMPLES[client], "loss": 0.5}


def vector(values: dict[str, np.ndarray], layout: Layout) -> torch.Tensor:
    return torch.cat([torch.tensor(np.asarray(values[e.name])).flatten() for e in layout.entries])


class Same:
    """leakline's own loop with the same clients: the same new weights for the same weights sent."""

    def __init__(self, fed: Federation) -> None:
        self.fed = fed
        self.home: dict[str, Weights] = {}

    def exchange(self, orders: Sequence[Order]) -> Iterator[Update | Dropped]:
        for order in orders:
            full = self.fed.bench().initial
            own = self.home.get(order.client, full.only(lambda n: not self.fed.shares(n)))
            start = (order.weights | own).arranged(self.fed.layout)
            given = {e.name: v.numpy() for e, v in start.layers()}
            new = Weights(self.fed.layout, vector(moved(order.client, given, order.round + 1), self.fed.layout))
            self.home[order.client] = new.only(lambda n: not self.fed.shares(n))
            update = Update(
                order.client, new.only(self.fed.shares) - order.weights, EXAMPLES[order.client], 0, {"loss": 0.5}
            )
            for place, defence in enumerate(self.fed.defences):
                update = defence.release(update, self.fed.turns_of(order.client, order.round, {})[place])
            yield update


def reference(defences: tuple[Any, ...], clients: str = "abc", **changes: Any) -> Weights:
    fed = tiny.federation(
        model=tiny.perceptron, defences=defences, rounds=3, seed=5,
        task=tiny.task([12] * len(clients)), **changes,
    )  # fmt: skip
    return list(federate(fed, Same(fed)))[-1].result


def on_flower(defences: Sequence[Any], clients: str = "abc", strategy: Any = None, **changes: Any) -> dict[str, Any]:
    mods = changes.pop("mods", [flower.as_mod(defences, noise="seeded", seed=5, name=lambda c: c.node_config["name"])])
    seen = changes.pop("seen", None)
    fault, work = changes.pop("fault", None), changes.pop("train", train)
    wrapped = flower.as_strategy(defences, strategy or FedAvg(), noise="seeded", seed=5, **changes)
    start = flowerlike.record(
        {e.name: v.numpy() for e, v in initial_weights(tiny.federation(model=tiny.perceptron, seed=5)).layers()}
    )
    grid = flowerlike.Here(flowerlike.client_app(work, mods, seen), clients, fault)
    result = wrapped.start(grid=grid, initial_arrays=start, num_rounds=3)
    return {"strategy": wrapped, "arrays": flowerlike.values(result.arrays), "grid": grid}


SERVER_SIDE = {
    "guard only": (),
    "global-dp": (GlobalDP(0.5, clip=1.0),),
    "metric-privacy": (MetricPrivacy(0.5, clip=2.0),),
    "metric-privacy paper": (MetricPrivacy(0.5, clip=2.0, reading="paper"),),
    "adaptive-clip": (AdaptiveClip(0.5),),
}
CLIENT_SIDE = {
    "percentile-gaussian": (PercentileGaussian(0.5),),
    "ldp-sgd": (LdpSgd(4.0, clip=0.1),),
    "ldp-sgd in a ball": (LdpSgd(4.0, clip=0.1, radius=0.5),),
    "fedper": (FedPer(last=1),),
    "fedper, global-dp": (FedPer(last=1), GlobalDP(0.5, clip=1.0)),
    "percentile-gaussian, metric-privacy": (PercentileGaussian(0.1), MetricPrivacy(0.5, clip=2.0)),
}


@pytest.mark.parametrize("weighting", ["examples", "even"])
@pytest.mark.parametrize("name", [*SERVER_SIDE, *CLIENT_SIDE])
def test_the_weights_are_those_of_leaklines_own_loop(name, weighting):
    defences = {**SERVER_SIDE, **CLIENT_SIDE}[name]
    mods = {} if name in CLIENT_SIDE else {"mods": []}
    expected = reference(defences, strategy=STRATEGIES["fedavg"](weighting=weighting))
    found = on_flower(defences, weighting=weighting, **mods)["arrays"]
    # Flower takes its means in another order of operations: a few units in the last place, on values of about 1.
    for entry, values in expected.layers():
        np.testing.assert_allclose(found[entry.name], values.numpy(), rtol=0, atol=2e-6, err_msg=entry.name)


def test_the_noise_is_for_clients_that_count_the_same_unless_one_asks_for_less(caplog):
    """800 examples beside 70: by examples one client would move the mean by 0.7 C, and noise is for C / 2."""
    noisy = (GlobalDP(0.5, clip=1.0),)
    even, default, asked = (
        on_flower(noisy, mods=[], **w) for w in ({"weighting": "even"}, {}, {"weighting": "examples"})
    )
    for name, values in even["arrays"].items():
        np.testing.assert_array_equal(default["arrays"][name], values)
    assert any(not np.array_equal(asked["arrays"][n], v) for n, v in even["arrays"].items())
    assert [r.message for r in caplog.records if "promises nothing" in r.message]
    local = on_flower((PercentileGaussian(0.5),))["strategy"]
    assert (default["strategy"].weighting, local.weighting) == ("even", "examples")


@pytest.mark.parametrize("name", SERVER_SIDE)
def test_the_documented_pair_works_for_defences_that_act_at_the_server_alone(name):
    alone, both = (on_flower(SERVER_SIDE[name], **mods) for mods in ({"mods": []}, {}))
    assert not any(r["dropped"] for r in both["strategy"].rounds)
    for key, values in alone["arrays"].items():
        np.testing.assert_array_equal(both["arrays"][key], values)


def exact(client: str, weights: dict[str, np.ndarray], index: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    rng = np.random.default_rng([ord(client), index])
    steps = {k: (rng.integers(-64, 64, v.shape) / 1024).astype(np.float32) for k, v in weights.items()}
    return {k: weights[k] + steps[k] for k in weights}, {"num-examples": 8}


def test_where_no_mean_is_rounded_the_weights_are_the_same_bits():
    """Changes on a grid of 1/1024 and four equal clients: every sum is exact, so only the noise is left to differ."""
    defences = (MetricPrivacy(0.5, clip=100.0),)
    grid = {e.name: np.round(v.numpy() * 1024) / 1024 for e, v in initial_weights(
        tiny.federation(model=tiny.perceptron, seed=5)).layers()}  # fmt: skip
    grid = {k: v.astype(np.float32) for k, v in grid.items()}

    class Exact:
        def exchange(self, orders: Sequence[Order]) -> Iterator[Update]:
            for order in orders:
                given = {e.name: v.numpy() for e, v in order.weights.layers()}
                new = Weights(order.weights.layout, vector(exact(order.client, given, 1)[0], order.weights.layout))
                yield Update(order.client, new - order.weights, 8, 0)

    fed = tiny.federation(
        model=tiny.perceptron, defences=defences, rounds=1, seed=5, task=tiny.task([12] * 4),
    )  # fmt: skip
    from leakline.federation import State

    expected = next(federate(fed, Exact(), state=State(weights=Weights(fed.layout, vector(grid, fed.layout))))).result
    wrapped = flower.as_strategy(defences, FedAvg(), noise="seeded", seed=5)
    found = wrapped.start(
        grid=flowerlike.Here(flowerlike.client_app(exact), "abcd"), initial_arrays=flowerlike.record(grid), num_rounds=1
    )
    assert torch.equal(vector(flowerlike.values(found.arrays), fed.layout), expected.vector)
    assert wrapped.rounds[0]["facts"]["distance"] > 0


def test_home_layers_never_leave_and_are_there_for_evaluation():
    sent: list[dict[str, np.ndarray]] = []

    def look(name: str, reply: Any) -> Any:
        sent.append(flowerlike.values(reply.content["arrays"]))
        return reply

    seen: list[Any] = []
    run = on_flower((FedPer(last=1),), fault=look, seen=seen)
    start = {e.name: v.numpy() for e, v in initial_weights(tiny.federation(model=tiny.perceptron, seed=5)).layers()}
    home, shared = ("2.weight", "2.bias"), ("0.weight", "0.bias")
    for one in sent:
        assert all(np.array_equal(one[name], start[name]) for name in home)
        assert not any(np.array_equal(one[name], start[name]) for name in shared)
    last = {name: arrays for name, arrays in seen[-3:]}
    assert not np.array_equal(last["a"]["2.weight"], last["b"]["2.weight"])
    assert np.array_equal(last["a"]["0.weight"], last["b"]["0.weight"])
    assert all(np.array_equal(run["arrays"][name], start[name]) for name in home)


def test_intermediaries_deal_the_rows_and_every_part_is_an_update():
    defences = (Intermediaries(0.5, clip=1.0, parts=2),)
    asked: list[tuple[str, tuple[int, ...]]] = []

    def split(client: str, weights: dict[str, np.ndarray], index: int) -> Any:
        mine = flower.rows(12)
        asked.append((client, tuple(mine.tolist())))
        return {k: v + np.float32(0.01 * (1 + mine[0])) for k, v in weights.items()}, {"num-examples": len(mine)}

    run = on_flower(defences, train=split)
    for client in "abc":
        theirs = [rows for name, rows in asked if name == client]
        assert len(theirs) == 6  # two parts, three rounds, and the same parts in each
        assert sorted(theirs[0] + theirs[1]) == list(range(12))
        assert theirs[0:2] == theirs[2:4] == theirs[4:6]
    facts = run["strategy"].rounds[0]["facts"]
    assert facts["sub_clients"] == 6
    assert facts["noise_std"] == pytest.approx(0.5 * 1.0 / 6)


def split_train(client: str, weights: dict[str, np.ndarray], index: int, rows: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([ord(client), index, *rows.tolist()])
    return {k: (v + 0.3 * rng.normal(size=v.shape)).astype(np.float32) for k, v in weights.items()}


class SameParts:
    """leakline's own loop with the same clients, each dealt into parts by the defence itself."""

    def __init__(self, fed: Federation) -> None:
        self.fed = fed

    def exchange(self, orders: Sequence[Order]) -> Iterator[Update]:
        for order in orders:
            given = {e.name: v.numpy() for e, v in order.weights.layers()}
            dealt = self.fed.defences[0].split(12, order, self.fed.turns_of(order.client, order.round, {})[0])
            for part, rows in enumerate(dealt or [np.arange(12)]):
                new = vector(split_train(order.client, given, order.round + 1, rows), self.fed.layout)
                delta = Weights(self.fed.layout, new) - order.weights
                yield Update(order.client, delta, len(rows), 0, part=part)


@pytest.mark.parametrize("parts", [3, "paper"])
def test_intermediaries_give_the_weights_of_leaklines_own_loop(parts):
    defences = (Intermediaries(0.5, clip=1.0, parts=parts, start=2, most=4),)
    fed = tiny.federation(model=tiny.perceptron, defences=defences, rounds=3, seed=5, task=tiny.task([12] * 3))
    rounds = list(federate(fed, SameParts(fed)))

    def work(client: str, weights: dict[str, np.ndarray], index: int) -> Any:
        mine = flower.rows(12)
        return split_train(client, weights, index, mine), {"num-examples": len(mine)}

    run = on_flower(defences, train=work)
    assert [r["facts"]["parts"] for r in run["strategy"].rounds] == [r.facts["parts"] for r in rounds]
    for entry, values in rounds[-1].result.layers():
        np.testing.assert_allclose(run["arrays"][entry.name], values.numpy(), rtol=0, atol=2e-6, err_msg=entry.name)


def test_an_app_that_does_not_ask_for_its_rows_cannot_be_split():
    with pytest.raises(ClientLost, match="this app trains on all of them"):
        on_flower((Intermediaries(0.5, clip=1.0, parts=2),))
    assert np.array_equal(flower.rows(3), [0, 1, 2])  # outside of a round: everything


FAULTS = {
    "NaN": (lambda v: {**v, "0.bias": v["0.bias"] * np.float32("nan")}, {}, "NaN or infinite"),
    "huge": (lambda v: {**v, "0.bias": v["0.bias"] * 0 + np.float32(1e30)}, {}, "beyond 1e"),
    "shape": (lambda v: {**v, "0.bias": np.zeros(7, np.float32)}, {}, "0.bias has shape"),
    "missing": (lambda v: {k: x for k, x in v.items() if k != "0.bias"}, {}, "0.bias is missing"),
    "extra": (lambda v: {**v, "evil": np.zeros(3, np.float32)}, {}, "unknown tensor evil"),
    "complex": (lambda v: {**v, "0.bias": v["0.bias"].astype(np.complex64)}, {}, "of type complex64"),
    "integers": (lambda v: {**v, "0.bias": v["0.bias"].astype(np.int64)}, {}, "0.bias is missing"),
    "examples -1": (lambda v: v, {"num-examples": -1}, "reports -1 examples"),
    "examples 1e9": (lambda v: v, {"num-examples": 10**9}, "more than"),
    "examples NaN": (lambda v: v, {"num-examples": float("nan")}, "reports nan examples"),
    "examples list": (lambda v: v, {"num-examples": [1, 2]}, "examples"),
    "no examples": (lambda v: v, {"loss": 1.0}, "reports no num-examples"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_reply_is_dropped_by_name_and_the_others_go_on(name):
    change, metrics, reason = FAULTS[name]

    def fault(client: str, reply: Any) -> Any:
        if client == "b":
            new = change(flowerlike.values(reply.content["arrays"]))
            told = MetricRecord(metrics or dict(reply.content["metrics"].items()))
            reply.content = RecordDict({"arrays": flowerlike.record(new), "metrics": told})
        return reply

    run = on_flower((), mods=[], fault=fault)
    for line in run["strategy"].rounds:
        assert line["cohort"] == ["node-10", "node-12"]
        assert line["dropped"][0][0] == "node-11"
        assert reason in line["dropped"][0][1]
    assert all(np.isfinite(v).all() for v in run["arrays"].values())
    with pytest.raises(ClientLost, match="node-11"):
        on_flower((), mods=[], fault=fault, on_bad_client="stop")


def test_a_client_that_raises_or_never_answers_is_dropped_and_too_few_stop_the_round():
    def broken(client: str, weights: Any, index: int) -> Any:
        if client == "b":
            raise RuntimeError("no data at /home/someone")
        return train(client, weights, index)

    run = on_flower((), mods=[], train=broken, fault=lambda c, r: None if c == "c" else r, min_clients=1)
    assert [d[0] for d in run["strategy"].rounds[0]["dropped"]] == ["node-11", "node-12"]
    assert "no reply" in run["strategy"].rounds[0]["dropped"][1][1]
    assert "someone" not in run["strategy"].rounds[0]["dropped"][0][1]  # a path may name a patient
    with pytest.raises(ClientLost, match="only 1 of 3 clients gave a usable answer, 2 are needed"):
        on_flower((), mods=[], train=broken, fault=lambda c, r: None if c == "c" else r)
    with pytest.raises(ClientLost, match="only 1 of 3 clients gave a usable answer, 2 are needed"):
        on_flower((MetricPrivacy(0.5, clip=1.0),), mods=[], train=broken, fault=lambda c, r: None if c == "c" else r)
    with pytest.raises(ClientLost, match="only 2 of 3"):
        on_flower((), mods=[], train=broken, min_clients=3)


def test_a_node_that_sends_more_parts_than_it_was_asked_for_is_dropped():
    def greedy(client: str, reply: Any) -> Any:
        if client == "b":
            reply.content.config_records[HEAD]["parts"] = 200
        return reply

    run = on_flower((GaussianRelease(1.0, 1.0),), fault=greedy)
    for line in run["strategy"].rounds:
        assert line["cohort"] == ["node-10", "node-12"]
        assert line["dropped"] == [["node-11", "it sends 200 parts, and was asked for 1"]]


def test_one_more_metric_of_one_client_stops_nobody():
    def chatty(client: str, weights: Any, index: int) -> Any:
        new, metrics = train(client, weights, index)
        return new, {**metrics, "extra": 1.0} if client == "b" else metrics

    assert not on_flower((), mods=[], train=chatty)["strategy"].rounds[0]["dropped"]


def test_each_side_says_when_the_other_is_not_there():
    with pytest.raises(StackError, match=r"FedPer acts at the clients.*\n.*\n.*as_mod"):
        on_flower((FedPer(last=1),), mods=[])
    other = flower.as_mod((FedPer(last=1), GlobalDP(1.0, clip=1.0)))
    with pytest.raises(ClientLost, match="different defences"):
        on_flower((FedPer(last=1),), mods=[other])
    grid = flowerlike.Here(flowerlike.client_app(train, [flower.as_mod((GlobalDP(1.0, clip=1.0),))]))
    message = next(iter(FedAvg().configure_train(1, ArrayRecord(), flowerlike_config(), grid)))
    message.content["arrays"] = flowerlike.record({"w": np.zeros(3, np.float32)})
    reply = grid.send_and_receive([message])[0]
    assert "GlobalDP acts at the server too" in reply.error.reason


def test_a_client_that_pinned_its_model_refuses_an_altered_one_on_flower():
    honest = {e.name: v.numpy() for e, v in initial_weights(tiny.federation(model=tiny.perceptron, seed=5)).layers()}
    agreed = PinnedModel(architecture_of(LAYOUT))
    assert not on_flower((agreed,))["strategy"].rounds[-1]["dropped"]  # three honest rounds
    grid = flowerlike.Here(flowerlike.client_app(train, [flower.as_mod((agreed,))]))
    (message, *_) = FedAvg().configure_train(1, ArrayRecord(), flowerlike_config(), grid)
    message.content["arrays"] = flowerlike.record({"imprint.dense.weight": np.zeros((6, 4), np.float32), **honest})
    reply = grid.send_and_receive([message])[0]
    assert "pinned-model" in reply.error.reason


def flowerlike_config() -> Any:
    from flwr.app import ConfigRecord

    return ConfigRecord()


def test_local_defences_need_nothing_at_the_server():
    """ldp-sgd against a server that nobody controls: Flower's own FedAvg, unwrapped."""
    start = {e.name: v.numpy() for e, v in initial_weights(tiny.federation(model=tiny.perceptron, seed=5)).layers()}
    sent: list[Any] = []
    mod = flower.as_mod((LdpSgd(4.0, clip=0.1),))
    app = flowerlike.client_app(train, [mod])
    grid = flowerlike.Here(app, fault=lambda c, r: sent.append(r) or r)
    FedAvg().start(grid=grid, initial_arrays=flowerlike.record(start), num_rounds=1)
    changes = [
        torch.cat([torch.tensor(flowerlike.values(r.content["arrays"])[k] - start[k]).flatten() for k in start])
        for r in sent
    ]
    length = LdpSgd(4.0, clip=0.1).scale(len(changes[0]))
    assert [float(c.norm()) for c in changes] == pytest.approx([length] * 3, rel=1e-4)
    assert all(set(r.content["metrics"]) == {"num-examples"} for r in sent)  # the loss is not for the server


def test_noise_on_the_mean_needs_a_strategy_that_returns_it():
    for strategy in (FedAdam(), FedMedian()):
        with pytest.raises(StackError, match="does not show it"):
            flower.as_strategy([GlobalDP(1.0, clip=1.0)], strategy)
        flower.as_strategy([GlobalDP(1.0, clip=1.0, at="model")], strategy)
        flower.as_strategy([GlobalDP(1.0, clip=1.0)], strategy, averages=True)
        flower.as_strategy([FedPer(last=1)], strategy)
    flower.as_strategy([GlobalDP(1.0, clip=1.0)], flower.record(FedAvg(), to="nowhere"))


def test_what_works_inside_training_is_refused():
    class Inside(GlobalDP):
        def gradient(self, *args: Any) -> Any:
            return None

    for make in (lambda d: flower.as_strategy(d, FedAvg()), flower.as_mod):
        with pytest.raises(StackError, match="a Flower mod never sees"):
            make([Inside(1.0, clip=1.0)])
        with pytest.raises(ValueError, match="a defence is needed"):
            make(["global-dp"])


def test_secret_noise_differs_from_run_to_run():
    first, second = (
        flower.as_strategy([GlobalDP(1.0, clip=1.0)], FedAvg()).start(
            grid=flowerlike.Here(flowerlike.client_app(train)),
            initial_arrays=flowerlike.record({"w": np.zeros(50, np.float32)}),
            num_rounds=1,
        )
        for _ in range(2)
    )
    assert not np.array_equal(first.arrays["w"].numpy(), second.arrays["w"].numpy())
