"""Personal layers: what stays, what leaves, what a newcomer gets, who judges, and when a study stops."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import pytest
import torch
from torch import nn

import tiny
from leakline.bench.training import Job, Plan, train
from leakline.data.base import Client, Task
from leakline.defences import FedBN, FedPer, GaussianNoise, GlobalDP
from leakline.errors import StackError
from leakline.federation import State, federate, keep_all
from leakline.messages import Order
from leakline.privacy import NoClaim
from leakline.randomness import Stream
from leakline.runtimes.client import local_weights
from leakline.runtimes.local import LocalTransport
from leakline.strategies import MENU as STRATEGIES
from leakline.study.describe import description, key_of
from leakline.study.judges import out_of_patience, over_clients
from leakline.study.lab import Lab
from leakline.study.spec import parse
from leakline.study.store import Store
from leakline.study.train import train_run
from leakline.weights import Layout


def clients(sizes=(12, 9, 15)) -> Task:
    """Clients with test data of their own."""
    return tiny.task(
        clients=tuple(Client(chr(97 + i), tiny.blobs(n, i + 1), tiny.blobs(10, 50 + i)) for i, n in enumerate(sizes))
    )


def federation(**changes):
    return tiny.federation(
        **({"task": clients(), "model": tiny.perceptron, "defences": (FedPer(last=1),), "rounds": 3} | changes)
    )


class Recording:
    """Passes everything on, and writes down every number that leaves a client."""

    def __init__(self, inner: LocalTransport) -> None:
        self.inner, self.left = inner, []

    def exchange(self, orders):
        for one in self.inner.exchange(orders):
            self.left.append(one)
            yield one


def floats_in(blob: bytes) -> set[bytes]:
    """Every four bytes of a file, at any offset, but for zeros."""
    return {blob[i : i + 4] for i in range(0, len(blob) - 3)} - {bytes(4)}


@pytest.mark.parametrize("workers", [1, 2])
def test_no_byte_of_a_private_layer_leaves_in_an_update(workers):
    fed = federation()
    with LocalTransport(fed, workers) as inner:
        spy = Recording(inner)
        rounds = []
        for round_ in federate(fed, spy):
            rounds.append(round_)
            secrets = {struct.pack("<f", v) for m in inner.memories.values() for v in m["private"].tolist() if v != 0}
            assert len(secrets) >= 3 * 18 - 3
            for update in spy.left:
                assert [e.name for e in update.delta.layout.entries] == ["0.weight", "0.bias"]
                sent = update.delta.vector.numpy().tobytes()
                assert not secrets & {sent[i : i + 4] for i in range(0, len(sent), 4)}
                assert set(update.metrics) == {"loss"}
    assert [e.name for e in rounds[-1].result.layout.entries] == ["0.weight", "0.bias"]


def test_the_update_is_exactly_the_shared_part_of_training_the_whole_model_at_home():
    fed = federation(rounds=1, together="off")
    bench = fed.bench()
    (round_,) = tiny.run(fed)
    for update in round_.updates:
        client = fed.clients[update.client]
        whole = train(bench, Job(bench.initial, client.train, Stream(fed.seed, 0, client.name, "train"), 0), fed.plan)
        assert torch.equal(update.delta.vector, whole.change.only(fed.shares).vector)


def test_stored_files_that_an_attacker_may_read_hold_no_private_value(tmp_path):
    fed = federation()
    run = train_run(Store(tmp_path), fed, workers=1, keep=keep_all)
    _, memories = run.load()
    secrets = {struct.pack("<f", v) for m in memories.values() for v in m["private"].tolist() if v != 0}
    files = [p for p in (run.path / "kept").rglob("*") if p.is_file()]
    assert len(files) == 3 * 4
    for path in files:
        assert not secrets & floats_in(path.read_bytes())


def test_private_layers_survive_a_stop_and_resume_to_the_same_bytes(tmp_path):
    whole = train_run(Store(tmp_path / "a"), federation(rounds=4), workers=1)
    fed, store = federation(rounds=4), Store(tmp_path / "b")

    class Stop(Exception):
        pass

    def stop(title, done, rounds, figures):
        if done == 2:
            raise Stop

    with pytest.raises(Stop):
        train_run(store, fed, workers=1, progress=stop)
    again = train_run(store, fed, workers=1)
    one, other = whole.load(), again.load()
    assert torch.equal(one[0].weights.vector, other[0].weights.vector)
    for name in "abc":
        assert torch.equal(one[1][name]["private"], other[1][name]["private"])
    assert whole.readings() == again.readings()


def test_private_layers_differ_between_clients_and_shared_ones_do_not():
    fed = federation()
    with LocalTransport(fed, 1) as transport:
        list(federate(fed, transport))
        private = [m["private"] for m in transport.memories.values()]
    assert not torch.equal(private[0], private[1])


def test_a_newcomer_starts_from_the_initial_private_layers():
    fed = federation(rounds=5)
    with LocalTransport(fed, 1) as transport:
        state = State()
        for _ in federate(replace(fed, rounds=2), transport, state=state):
            pass
        transport.memories.pop("b")  # b comes for the first time in round 2
        (late,) = transport.exchange([Order("b", 2, state.weights)])
    bench = fed.bench()
    start = (state.weights | bench.initial.only(lambda n: not fed.shares(n))).arranged(fed.layout)
    expected = train(bench, Job(start, fed.clients["b"].train, Stream(fed.seed, 2, "b", "train"), 2), fed.plan)
    assert torch.equal(late.delta.vector, expected.change.only(fed.shares).vector)


def test_last_and_patterns_say_the_same():
    layout = federation(defences=()).layout
    assert FedPer(last=1).kept(layout) == FedPer(private=("2",)).kept(layout) == FedPer(private=("2.*",)).kept(layout)
    assert FedPer(private=("2.bias",)).kept(layout) == {"2.bias"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"private": ("head*",)}, "matches no layer"),
        ({"private": ("2", "tail")}, "matches no layer"),
        ({"private": ("*",)}, "matches every layer"),
        ({"last": 2}, "keeps every layer"),
        ({"last": 7}, "keeps every layer"),
    ],
)
def test_a_choice_that_keeps_nothing_or_everything_is_refused_before_training(settings, said):
    fed = federation(defences=(FedPer(**settings),))
    with pytest.raises(StackError, match=said):
        FedPer(**settings).check(fed)
    with pytest.raises(StackError, match=said):
        tiny.run(fed)


def test_leakline_check_reports_a_pattern_that_matches_nothing():
    from leakline.study.check import check_study

    study = parse(
        """
        name = "x"
        [data]
        use = "digits"
        clients = 3
        [model]
        use = "mlp"
        [defences]
        wrong = [{ use = "fedper", private = ["conv*"] }]
        """
    )
    assert "matches no layer" in check_study(study).problems[0]


@pytest.mark.parametrize("settings", [{}, {"private": ("a",), "last": 1}, {"last": -1}])
def test_exactly_one_way_to_choose(settings):
    with pytest.raises(ValueError, match="one of the two"):
        FedPer(**settings)


def test_fedbn_keeps_normalisation_and_nothing_else():
    layout = Layout.of(tiny.image_net())
    kept = FedBN().kept(layout)
    assert kept == {"1.weight", "1.bias", "1.running_mean", "1.running_var"}
    with pytest.raises(StackError, match="has none"):
        FedBN().kept(Layout.of(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))))


def test_they_promise_nothing_and_a_stack_keeps_the_promise_of_its_other_member():
    fed = federation(defences=(FedPer(last=1), GlobalDP(1.0, 1.0)))
    claims = fed.claims()
    assert isinstance(claims["FedPer"], NoClaim)
    assert "18 of 43" in claims["FedPer"].reason
    assert isinstance(GaussianNoise(0.1).claim(fed), NoClaim)


def test_gaussian_noise_has_the_standard_deviation_it_says_and_leaves_size_alone():
    fed = tiny.federation(model=lambda: nn.Linear(4, 5000), defences=(GaussianNoise(0.1),))
    update = tiny.update(torch.full((fed.wire.size,), 100.0), layout=fed.wire)
    noise = fed.defences[0].release(update, fed.turns_of("a", 0, {})[0]).delta.vector - 100
    # 25 000 values: the sample deviation of a normal lies within 4 % of the truth but once in 1e10.
    assert abs(float(noise.std()) / 0.1 - 1) < 0.04
    assert abs(float(noise.mean())) < 0.004
    with pytest.raises(ValueError, match="-1"):
        GaussianNoise(-1)


# --- who judges, and when to stop ---------------------------------------------------------------------------------


def test_each_client_is_judged_with_its_own_layers(tmp_path):
    fed = federation()
    run = train_run(Store(tmp_path), fed, workers=1)
    state, memories = run.load()
    bench = fed.bench()
    last = [r for r in run.readings() if r["round"] == 2 and r["measure"] == "accuracy"]
    found = {r["client"]: r["value"] for r in last if "client" in r}
    for name, client in fed.clients.items():
        own = local_weights(fed, bench, Order(name, 2, state.weights), memories[name])
        right = (bench.outputs(own, client.test).argmax(1) == client.test.y).float().mean()
        assert found[name] == pytest.approx(float(right))
    (mean,) = [r for r in last if "client" not in r]
    assert mean["value"] == pytest.approx(sum(found.values()) / 3)
    assert mean["n"] == 3
    card = run.end["card"]["utility"]
    assert [r["measure"] for r in card] == ["accuracy", "balanced_accuracy", "auc_micro"]
    assert card[0]["value"] == mean["value"]


def test_workers_judge_as_one_process_does(tmp_path):
    one, two = (train_run(Store(tmp_path / str(w)), federation(), workers=w).readings() for w in (1, 2))
    assert one == two


def test_clients_may_judge_a_model_without_personal_layers_too(tmp_path):
    run = train_run(Store(tmp_path), federation(defences=(), evaluate="clients"), workers=1)
    assert {r.get("client") for r in run.readings()} == {None, "a", "b", "c"}


def test_judging_needs_test_data_and_a_server_that_sees_the_model():
    with pytest.raises(StackError, match="no client holds test data"):
        _ = tiny.federation(evaluate="clients").judges
    with pytest.raises(StackError, match="personal layers"):
        _ = federation(evaluate="server").judges


def test_defaults_leave_the_hash_of_a_run_as_it_was_and_settings_change_it():
    plain = description(federation())
    assert "patience" not in json.dumps(plain["federation"])
    keys = {key_of(description(federation(**c))) for c in ({}, {"patience": 3}, {"evaluate": "clients"})}
    assert len(keys) == 3


def test_patience_counts_rounds_without_a_new_best():
    assert not out_of_patience([3, 2, 1], 1)
    assert out_of_patience([1, 2, 3], 2)
    assert not out_of_patience([1, 2, 3], 3)
    assert not out_of_patience([1, 2, 3, 0.5], 2)
    assert not out_of_patience([5] * 50, 0)
    assert out_of_patience([1, float("nan"), float("nan")], 2)
    assert out_of_patience([1.0, 1.0, 1.0], 2)  # as low as the best is not lower


def test_a_study_stops_early_says_so_and_stays_stopped(tmp_path):
    fed = federation(rounds=40, patience=3, plan=Plan(epochs=5, batch=4, learning_rate=2.0))
    run = train_run(Store(tmp_path), fed, workers=1)
    done = run.end["stopped_after"]
    losses = [r["value"] for r in run.readings() if r["measure"] == "loss" and "client" not in r]
    assert len(losses) == done < 40
    assert losses.index(min(losses)) == done - 1 - 3
    (run.path / "end.json").unlink()  # as if killed between the last round and the record of the end
    assert train_run(Store(tmp_path), fed, workers=1).end["stopped_after"] == done
    assert len(run.rounds()) == done


def test_the_promise_of_a_run_that_stopped_early_is_that_of_all_rounds(tmp_path):
    fed = federation(
        rounds=40,
        patience=2,
        defences=(FedPer(last=1), GlobalDP(5.0, 0.01)),
        strategy=STRATEGIES["fedavg"](weighting="even"),
        plan=Plan(epochs=5, batch=4, learning_rate=2.0),
    )
    run = train_run(Store(tmp_path), fed, workers=1)
    assert run.end["stopped_after"] < 40
    assert [p["releases"] for p in run.end["card"]["promises"]] == [0, 40]


def test_the_mean_over_clients_has_a_t_interval():
    found = over_clients([0.8, 0.9, 1.0])
    assert found.value == pytest.approx(0.9)
    assert found.high - found.value == pytest.approx(4.302653 * 0.1 / 3**0.5, rel=1e-5)  # t quantile, 2 df


# --- the lab's probe ----------------------------------------------------------------------------------------------


def test_a_probe_is_a_round_that_leaves_no_trace(tmp_path):
    fed, store = federation(), Store(tmp_path)
    run = train_run(store, fed, workers=1)
    lab = Lab(fed, store, run, 1)
    before = {p: p.read_bytes() for p in run.path.iterdir() if p.is_file()}
    first = lab.probe(lab.final_weights(), 0)
    assert {p: p.read_bytes() for p in run.path.iterdir() if p.is_file()} == before
    assert [u.client for u in first] == ["a", "b", "c"]
    longer = federation(rounds=4)
    with LocalTransport(longer, 1) as transport:
        fourth = list(federate(longer, transport))[3]
    for one, other in zip(first, fourth.updates, strict=True):
        assert torch.equal(one.delta.vector, other.delta.vector)
    assert [u.client for u in lab.probe(lab.final_weights(), 1, clients=["c"])] == ["c"]
