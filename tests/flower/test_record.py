"""A Flower app's rounds, written down by two lines, are what crossed its wire."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch

flowerlike = pytest.importorskip("flowerlike", reason="needs leakline[flower]")

from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAdam, FedAvg, FedMedian  # noqa: E402
from torch import nn  # noqa: E402

import leakline.flower as flower  # noqa: E402
import tiny  # noqa: E402
from leakline.bench.training import Plan  # noqa: E402
from leakline.defences import GlobalDP  # noqa: E402
from leakline.errors import StackError, StoreError  # noqa: E402
from leakline.recordings.recording import Recording  # noqa: E402
from leakline.study.files import read_json, write_json  # noqa: E402


def net() -> nn.Module:
    torch.manual_seed(0)
    return tiny.image_net()


def start() -> dict[str, np.ndarray]:
    return {k: v.numpy() for k, v in net().state_dict().items()}


def train(client: str, weights: dict[str, np.ndarray], index: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    rng = np.random.default_rng([ord(client), index])
    new = {
        k: v + np.asarray(rng.normal(size=v.shape) if v.dtype.kind == "f" else 3, v.dtype) for k, v in weights.items()
    }
    return new, {"num-examples": 10 + ord(client) % 7, "loss": 0.25}


def run(strategy: Any, rounds: int = 2, mods: Any = (), fault: Any = None, **changes: Any) -> Any:
    grid = flowerlike.Here(flowerlike.client_app(train, mods), fault=fault)
    initial = flowerlike.record(changes.get("initial", start()))
    return strategy.start(grid=grid, initial_arrays=initial, num_rounds=rounds)


STRATEGIES = {
    "fedavg": FedAvg,
    "fedmedian": FedMedian,
    "fedadam": FedAdam,
    "flower's own dp": lambda: DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.0, 1.0, 3),
    "leakline's": lambda: flower.as_strategy([GlobalDP(0.0, clip=1.0)], FedAvg()),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_recording_changes_nothing_and_holds_everything(name, tmp_path):
    # Flower's own wrapper fails on BatchNorm's counters, so it gets none.
    counted = name != "flower's own dp"
    sent = {k: v for k, v in start().items() if counted or v.dtype.kind == "f"}
    plain = run(STRATEGIES[name](), initial=sent)
    recorded = run(flower.record(STRATEGIES[name](), to=tmp_path / "r", plan={"learning_rate": 0.1}), initial=sent)
    for key, array in plain.arrays.items():
        np.testing.assert_array_equal(array.numpy(), recorded.arrays[key].numpy())
    found = Recording(tmp_path / "r")
    assert found.indices() == [1, 2]
    assert found.known == {"learning_rate": 0.1}
    assert found.seat == "server"
    assert found.engine.startswith("flower 1.")
    assert found.left_out == (("1.num_batches_tracked",) if counted else ())
    first, last = found.rounds()
    assert first.cohort == ("node-10", "node-11", "node-12")
    for entry, values in first.sent.layers():
        np.testing.assert_array_equal(values.numpy(), sent[entry.name])
        assert entry.buffer == entry.name.startswith("1.running")
    for client, update in zip("abc", first.updates, strict=True):
        new, metrics = train(client, sent, 1)
        assert update.examples == metrics["num-examples"]
        for entry, values in update.delta.layers():
            np.testing.assert_array_equal(values.numpy(), new[entry.name] - sent[entry.name])
    assert torch.equal(first.result.vector, last.sent.vector)
    for entry, values in last.result.layers():
        np.testing.assert_array_equal(values.numpy(), np.asarray(plain.arrays[entry.name].numpy(), np.float32))


def test_a_strategy_with_a_start_of_its_own_is_recorded_too(tmp_path):
    class Own(FedAvg):
        best = 0

        def start(self, *args: Any, **kwargs: Any) -> Any:
            result = super().start(*args, **kwargs)
            self.best = len(result.train_metrics_clientapp)
            return result

    own = Own()
    wrapped = flower.record(own, to=tmp_path / "r")
    run(wrapped, rounds=3)
    assert Recording(tmp_path / "r").indices() == [1, 2, 3]
    assert own.best == wrapped.best == 3
    assert "configure_train" not in vars(own)  # left as it was


def test_arrays_beside_the_models_are_passed_on(tmp_path):
    def more(client: str, reply: Any) -> Any:
        reply.content["control"] = flowerlike.record({"c": np.zeros(2, np.float32)})
        return reply

    class First(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            held = list(replies)
            assert all("control" in r.content for r in held)
            for reply in held:
                del reply.content["control"]
            return super().aggregate_train(server_round, held)

    run(flower.record(First(), to=tmp_path / "r"), rounds=1, fault=more)
    assert len(Recording(tmp_path / "r").round(1).updates) == 3


def test_only_what_is_asked_for_is_kept(tmp_path):
    run(flower.record(FedAvg(), to=tmp_path / "r", rounds=[2], clients=["node-11"]), rounds=3)
    found = Recording(tmp_path / "r")
    assert found.indices() == [2]
    assert found.clients(2) == ["node-11"]
    assert [r["round"] for r in found.records()] == [1, 2, 3]
    with pytest.raises(StoreError, match=r"round 1 is not in this recording.*\n.*\n.*holds round 2"):
        found.round(1)
    with pytest.raises(StoreError, match="no update of node-10"):
        found.round(2, clients=["node-10"])


def test_the_bound_on_megabytes_holds(tmp_path):
    size = 4 * sum(v.size for v in start().values() if v.dtype.kind == "f")
    run(flower.record(FedAvg(), to=tmp_path / "r", most_mb=2.3 * 5 * size / 2**20), rounds=4)
    found = Recording(tmp_path / "r")
    assert found.indices() == [1, 2] or found.indices() == [1]  # headers count too
    assert "more than" in found.records()[-1]["left_out"]
    held = sum(p.stat().st_size for p in (tmp_path / "r" / "kept").rglob("*"))
    assert held < 2.3 * 5 * size + 20_000


def test_bad_replies_are_noted_and_passed_on(tmp_path):
    def fault(client: str, reply: Any) -> Any:
        if client == "b":
            arrays = flowerlike.values(reply.content["arrays"])
            arrays["0.bias"] = arrays["0.bias"] * np.float32("nan")
            reply.content["arrays"] = flowerlike.record(arrays)
        return None if client == "c" else reply

    result = run(flower.record(FedAvg(), to=tmp_path / "r"), rounds=1, fault=fault)
    assert np.isnan(result.arrays["0.bias"].numpy()).all()  # the app is what it was
    line = Recording(tmp_path / "r").round(1)
    assert line.cohort == ("node-10",)
    assert [(d.client, d.reason) for d in line.dropped] == [
        ("node-11", "its update holds NaN or infinite values"),
        ("node-12", "no reply came in time"),
    ]


def plain() -> dict[str, np.ndarray]:
    return {k: v.numpy() for k, v in run(FedAvg()).arrays.items()}


def occupied(to: Any) -> None:
    """An earlier run of the same app left its recording there."""
    run(flower.record(FedAvg(), to=to), rounds=1)
    write_json(to / "recording.json", {**read_json(to / "recording.json"), "run": "6"})


HINDRANCES = {
    "another run's recording": (occupied, "there is a recording of another run already"),
    "a file in the place of the folder": (lambda to: to.write_text("x"), "File exists"),
    "a folder that cannot be made": (lambda to: to.parent.joinpath("r").symlink_to("/proc/none"), "is a link"),
    "a file in the place of kept": (lambda to: (to.mkdir(), (to / "kept").write_text("x")), "round 1 was not recorded"),
    "a damaged manifest": (lambda to: (to.mkdir(), (to / "recording.json").write_text("{")), "cannot be read"),
}


@pytest.mark.parametrize("name", HINDRANCES)
def test_what_hinders_a_recording_is_said_and_the_app_goes_on(name, tmp_path, caplog):
    hinder, said = HINDRANCES[name]
    hinder(tmp_path / "r")
    with caplog.at_level(logging.WARNING, logger="leakline"):
        result = run(flower.record(FedAvg(), to=tmp_path / "r"))
    for key, array in plain().items():
        np.testing.assert_array_equal(array, result.arrays[key].numpy())
    assert said in caplog.text


@pytest.mark.parametrize("name", HINDRANCES)
def test_the_same_at_a_client(name, tmp_path, caplog):
    hinder, said = HINDRANCES[name]
    (tmp_path / "clients").mkdir()
    if name == "another run's recording":
        run(FedAvg(), rounds=1, mods=[flower.record_mod(to=tmp_path / "clients", name=lambda c: "r")])
        path = tmp_path / "clients" / "r" / "recording.json"
        write_json(path, {**read_json(path), "run": "6"})
    else:
        hinder(tmp_path / "clients" / "r")
    with caplog.at_level(logging.WARNING, logger="leakline"):
        result = run(FedAvg(), mods=[flower.record_mod(to=tmp_path / "clients", name=lambda c: "r")])
    for key, array in plain().items():
        np.testing.assert_array_equal(array, result.arrays[key].numpy())
    assert said.replace("round 1", "a round") in caplog.text


def test_an_app_without_weights_runs_and_is_not_recorded(tmp_path, caplog):
    class Trees(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            return next(iter(replies)).content["arrays"], None

    with caplog.at_level(logging.WARNING, logger="leakline"):
        result = run(flower.record(Trees(), to=tmp_path / "s"), initial={"tree": np.zeros(4, np.uint8)})
    assert result.arrays["tree"].numpy().shape == (4,)
    assert caplog.text.count("nothing is recorded from here on") == 1
    assert "no arrays of floating-point numbers" in caplog.text
    assert not (tmp_path / "s").exists()


def test_a_round_that_is_too_large_is_said_aloud_once(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="leakline"):
        run(flower.record(FedAvg(), to=tmp_path / "r", most_mb=0.0001), rounds=3)
    assert caplog.text.count("is not kept, only its figures: it needs") == 1
    assert [r["left_out"] for r in Recording(tmp_path / "r").records()] == ["more than 0.0001 MB"] * 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"most_mb": 0}, "most_mb"), ({"plan": {"lr": 1}}, "'lr'"), ({"plan": {"epochs": 0}}, "epochs")],
)
def test_wrong_settings_fail_before_anything_is_trained(changes, said, tmp_path):
    for make in (
        lambda **c: flower.record(FedAvg(), to=tmp_path, **c),
        lambda **c: flower.record_mod(to=tmp_path, **c),
    ):
        with pytest.raises(ValueError, match=said):
            make(**changes)


def test_a_mod_records_at_the_client_what_leaves_it(tmp_path):
    plan = Plan(learning_rate=0.3, batch=4)
    mod = flower.record_mod(to=tmp_path, plan=plan, name=lambda c: f"site-{c.node_config['name']}", rounds=[1, 2])
    noisy = flower.as_mod([tiny_noise()])
    sent: list[Any] = []
    run(FedAvg(), rounds=3, mods=[mod, noisy], fault=lambda c, r: sent.append((c, r)) or r)
    found = Recording(tmp_path / "site-b")
    assert found.indices() == [1, 2]
    assert found.seat == "client"
    assert found.known["batch"] == 4
    line = found.round(1)
    reply = next(r for c, r in sent if c == "b")
    for entry, values in (line.sent + line.updates[0].delta).layers():
        np.testing.assert_allclose(values.numpy(), flowerlike.values(reply.content["arrays"])[entry.name], atol=1e-6)
    assert line.facts == {"result_unknown": 1.0}


def tiny_noise() -> Any:
    from leakline.defences import PercentileGaussian

    return PercentileGaussian(0.5)


def test_strategies_of_flowers_old_api_are_refused_in_words():
    from flwr.server.strategy import FedAvg as Old

    for wrap in (lambda s: flower.record(s, to="r"), lambda s: flower.as_strategy([], s)):
        with pytest.raises(
            StackError, match=r"FedAvg is a strategy of Flower's old API.*\n.*\n.*serverapp.strategy.FedAvg"
        ):
            wrap(Old())
        with pytest.raises(StackError, match="object has no configure_train"):
            wrap(object())


def test_reasons_of_dropped_clients_hold_no_escape_codes_and_no_addresses(tmp_path):
    def train_badly(client: str, weights: Any, index: int) -> Any:
        if client == "b":
            raise RuntimeError("\x1b[31mno \x1b[1mmemory\x1b[0m for <Thing object at 0x7f3a91c0d2e0>\nmore")
        return train(client, weights, index)

    grid = flowerlike.Here(flowerlike.client_app(train_badly))
    initial = flowerlike.record(start())
    flower.record(FedAvg(), to=tmp_path / "r").start(grid=grid, initial_arrays=initial, num_rounds=1)
    (dropped,) = Recording(tmp_path / "r").round(1).dropped
    assert "no memory for <Thing object>" in dropped.reason
    assert "0x" not in dropped.reason
    assert "[31m" not in dropped.reason
