"""The local transport: the same bytes from one worker or many, and no harm from workers that die."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import tiny
from leakline.bench.training import Plan
from leakline.data.base import Client
from leakline.defences import AdaptiveClip, Defence, GlobalDP
from leakline.errors import ClientLost
from leakline.federation import federate
from leakline.messages import Order
from leakline.privacy import NoClaim
from leakline.runtimes.local import LocalTransport
from leakline.strategies import MENU

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
EVEN = MENU["fedavg"]("even")


@pytest.fixture(autouse=True)
def _no_process_is_left_behind():
    before = {p.pid for p in multiprocessing.active_children()}
    yield
    gc.collect()
    assert {p.pid for p in multiprocessing.active_children()} <= before


@dataclass(frozen=True)
class KeepsHead(Defence):
    """The last layer never leaves the client."""

    def shares(self, name):
        return not name.startswith("2.")

    def claim(self, federation, facts=()):
        return NoClaim("layers that stay at home are no promise about those that leave")


FEDERATIONS = {
    "plain": tiny.federation(task=tiny.task((8, 12, 20, 9))),
    "global-dp": tiny.federation(task=tiny.task((8, 12, 20)), defences=(GlobalDP(1.0, 0.5),), strategy=EVEN),
    "adaptive-clip": tiny.federation(task=tiny.task((8, 12, 20)), defences=(AdaptiveClip(1.0, 0.5),), strategy=EVEN),
    "many small clients": tiny.federation(task=tiny.task((6,) * 26 * 2 + (5,) * 3), model=tiny.perceptron),
    "BatchNorm and dropout": tiny.federation(task=tiny.task((8, 12, 12, 20), tiny.IMAGE), model=tiny.image_net),
    "adam": tiny.federation(task=tiny.task((8, 12, 20)), plan=Plan(2, 4, 0.01, "adam"), strategy=MENU["fedadam"]()),
    "poisson": tiny.federation(task=tiny.task((8, 9, 10, 11, 12)), sampling="poisson", participation=0.5, rounds=4),
    "private layers": tiny.federation(
        task=tiny.task((8, 12, 20)), model=tiny.perceptron, defences=(KeepsHead(),), rounds=3
    ),
}


@pytest.mark.parametrize("name", FEDERATIONS)
def test_one_worker_and_two_give_the_same_bytes(name):
    fed = FEDERATIONS[name]
    found = []
    for workers in (1, 2):
        with LocalTransport(fed, workers) as transport:
            rounds = list(federate(fed, transport))
            outputs = transport.outputs(rounds[-1].result, fed.task.test) if fed.wire == fed.layout else None
            found.append((rounds, transport.memories, outputs))
    (one, memories, outputs), (two, others, same) = found
    for a, b in zip(one, two, strict=True):
        assert torch.equal(a.result.vector, b.result.vector)
        assert a.cohort == b.cohort
        assert a.facts == b.facts
        assert a.metrics == pytest.approx(b.metrics)
        for u, v in zip(a.updates, b.updates, strict=True):
            assert (u.client, u.part, u.examples, u.steps) == (v.client, v.part, v.examples, v.steps)
            assert torch.equal(u.delta.vector, v.delta.vector)
    for client in fed.clients:
        a, b = (m.get(client, {}).get("private") for m in (memories, others))
        assert (a is None and b is None) or torch.equal(a, b)
    if outputs is not None:
        assert torch.equal(outputs, same)


def test_outputs_of_more_than_one_cut_are_the_same_from_workers():
    fed = tiny.federation(task=replace(tiny.task((8, 12, 20)), test=tiny.blobs(300, 9)))
    weights = fed.bench().initial
    found = []
    for workers in (1, 2):
        with LocalTransport(fed, workers) as transport:
            found.append(transport.outputs(weights, fed.task.test))
    assert torch.equal(*found)
    assert torch.allclose(found[0], fed.bench().outputs(weights, fed.task.test), atol=1e-6)


def test_bad_clients_are_dropped_in_workers_too_and_the_reasons_agree():
    clients = list(tiny.task((8, 12, 20)).clients)
    clients[1] = Client("b", replace(tiny.blobs(12), x=torch.full((12, 4), float("nan"))))
    clients.append(Client("d", tiny.blobs(0)))
    clients.append(Client("e", replace(tiny.blobs(12), y=torch.full((12,), 99))))
    fed = tiny.federation(task=replace(tiny.task(), clients=tuple(clients)))
    one, two = tiny.run(fed, 1), tiny.run(fed, 2)
    for a, b in zip(one, two, strict=True):
        assert a.dropped == b.dropped
        assert {d.client for d in a.dropped} == {"b", "d", "e"}
        assert torch.equal(a.result.vector, b.result.vector)


# --- private layers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_private_layers_stay_with_their_client_and_live_on(workers):
    fed = FEDERATIONS["private layers"]
    private: dict[str, list[torch.Tensor]] = {}
    with LocalTransport(fed, workers) as transport:
        for round_ in federate(fed, transport):
            for weights in (round_.sent, round_.result, *(u.delta for u in round_.updates)):
                assert [e.name for e in weights.layout.entries] == ["0.weight", "0.bias"]
            for client in fed.clients:
                private.setdefault(client, []).append(transport.memories[client]["private"].clone())
    for kept in private.values():
        assert all(len(v) == 18 for v in kept)
        assert not torch.equal(kept[0], kept[1])
        assert not torch.equal(kept[1], kept[2])
    assert not torch.equal(private["a"][-1], private["b"][-1])


def test_a_client_goes_on_from_its_own_private_layers():
    fed = replace(FEDERATIONS["private layers"], rounds=1, plan=Plan(1, 0, 0.1))
    with LocalTransport(fed, 1) as transport:
        (round_,) = list(federate(fed, transport))
        kept = transport.memories["a"]["private"].clone()
        order = Order("a", 1, round_.result)
        (update,) = transport.exchange([order])
        # by hand: the published layers and the client's own head, one step of gradient descent
        model = tiny.perceptron()
        state = {
            "0.weight": round_.result["0.weight"],
            "0.bias": round_.result["0.bias"],
            "2.weight": kept[:15].view(3, 5),
            "2.bias": kept[15:],
        }
        model.load_state_dict(state)
        data = fed.clients["a"].train
        nn.functional.cross_entropy(model(data.x), data.y).backward()
        assert torch.allclose(update.delta["0.weight"], -0.1 * model[0].weight.grad, atol=1e-6)
        moved = torch.cat(
            [(kept[:15].view(3, 5) - 0.1 * model[2].weight.grad).flatten(), kept[15:] - 0.1 * model[2].bias.grad]
        )
        assert torch.allclose(transport.memories["a"]["private"], moved, atol=1e-6)


# --- workers that die ----------------------------------------------------------------------------------------------


class Suicidal(nn.Module):
    """A model whose process is killed by some inputs, as the system kills one that takes too much memory."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(tiny.FEATURES, tiny.CLASSES)

    def forward(self, x):
        if (x > 50).any():
            assert multiprocessing.parent_process() is not None  # never the test's own process
            os.kill(os.getpid(), signal.SIGKILL)
        return self.linear(x)


def test_a_worker_killed_in_mid_round_is_a_dropped_client_and_the_run_goes_on():
    clients = list(tiny.task((8, 12, 20, 9, 10)).clients)
    clients[1] = Client("b", replace(tiny.blobs(12), x=torch.full((12, 4), 99.0)))
    fed = tiny.federation(task=replace(tiny.task(), clients=tuple(clients)), model=Suicidal, rounds=3)
    rounds = tiny.run(fed, 2)
    assert len(rounds) == 3
    for r in rounds:
        assert [d.client for d in r.dropped] == ["b"]
        assert "worker died" in r.dropped[0].reason
        assert r.cohort == ("a", "c", "d", "e")
    without = replace(fed, task=replace(fed.task, clients=tuple(c for c in clients if c.name != "b")))
    assert torch.equal(rounds[-1].result.vector, tiny.run(without, 1)[-1].result.vector)


@pytest.mark.parametrize("sizes", [(8,) * 50, tuple(8 + i % 3 for i in range(24))])
def test_a_client_that_kills_its_worker_does_not_take_its_group_with_it(sizes):
    clients = list(tiny.task(sizes).clients)
    clients[5] = Client(clients[5].name, replace(clients[5].train, x=torch.full((sizes[5], 4), 99.0)))
    fed = tiny.federation(task=replace(tiny.task(), clients=tuple(clients)), model=Suicidal, rounds=2)
    rounds = tiny.run(fed, 2)
    for r in rounds:
        assert [d.client for d in r.dropped] == [clients[5].name]
        assert "worker died" in r.dropped[0].reason
        assert r.cohort == tuple(c.name for c in clients if c is not clients[5])
    others = replace(fed, task=replace(fed.task, clients=tuple(c for c in clients if c is not clients[5])))
    for ours, alone in zip(rounds[0].updates, tiny.run(others, 1)[0].updates, strict=True):
        assert ours.client == alone.client
        assert torch.allclose(ours.delta.vector, alone.delta.vector, atol=1e-6)


class Hanging(Suicidal):
    """A model that some inputs keep busy for ever."""

    def forward(self, x):
        while (x > 50).any():
            time.sleep(60)
        return self.linear(x)


@pytest.mark.parametrize("sizes", [(8, 12, 20, 9), (8,) * 6], ids=["alone", "in a group"])
def test_a_client_that_hangs_is_dropped_at_the_deadline_and_the_others_count(sizes):
    clients = list(tiny.task(sizes).clients)
    clients[1] = Client("b", replace(clients[1].train, x=torch.full((sizes[1], 4), 99.0)))
    fed = tiny.federation(task=replace(tiny.task(), clients=tuple(clients)), model=Hanging, rounds=2)
    with LocalTransport(fed, 2, deadline=3.0) as transport:
        rounds = list(federate(fed, transport))
    for r in rounds:
        assert [(d.client, d.reason) for d in r.dropped] == [("b", "took longer than 3 seconds")]
        assert r.cohort == tuple("acdef"[: len(sizes) - 1])


def test_a_deadline_is_above_zero():
    with pytest.raises(ValueError, match="deadline must be above 0"):
        LocalTransport(FEDERATIONS["plain"], 2, deadline=0.0)


def test_a_worker_killed_between_rounds_costs_at_most_a_client_of_that_round():
    fed = replace(FEDERATIONS["plain"], rounds=3)
    with LocalTransport(fed, 2) as transport:
        rounds = []
        for r in federate(fed, transport):
            rounds.append(r)
            if r.index == 0:
                victim = transport._pool.workers[0].process
                os.kill(victim.pid, signal.SIGKILL)
                victim.join(10)
    assert len(rounds) == 3
    assert len(rounds[1].dropped) <= 1
    assert rounds[2].dropped == ()


def test_a_worker_killed_before_outputs_does_not_cost_them():
    fed = tiny.federation(task=replace(tiny.task((8, 12, 20)), test=tiny.blobs(600, 9)))
    with LocalTransport(fed, 2) as transport:
        for round_ in federate(fed, transport):
            expected = transport.outputs(round_.result, fed.task.test)
            os.kill(transport._pool.workers[0].process.pid, signal.SIGKILL)
            assert torch.equal(transport.outputs(round_.result, fed.task.test), expected)
        assert round_.index == 1


def test_stopping_for_a_bad_client_with_workers_leaves_nothing_behind():
    clients = [*tiny.task((8, 12, 20)).clients, Client("d", tiny.blobs(0))]
    fed = tiny.federation(task=replace(tiny.task(), clients=tuple(clients)), on_bad_client="stop")
    with pytest.raises(ClientLost, match="client d"):
        tiny.run(fed, 2)


class Slow(nn.Module):
    """A model that takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(tiny.FEATURES, tiny.CLASSES)

    def forward(self, x):
        time.sleep(0.05)
        return self.linear(x)


def children() -> list[int]:
    return [p.pid for p in multiprocessing.active_children()]


def test_giving_up_in_mid_round_leaves_no_process_behind():
    fed = tiny.federation(task=tiny.task((8, 12, 20, 9)), model=Slow)
    with LocalTransport(fed, 2) as transport:
        answers = transport.exchange([Order(c, 0, fed.bench().initial) for c in "abcd"])
        next(answers)
        assert len(children()) == 2
        answers.close()
        assert children() == []
        # and the transport can be used again
        assert len(list(transport.exchange([Order(c, 0, fed.bench().initial) for c in "abcd"]))) == 4
    assert children() == []


def test_giving_up_a_federation_between_rounds_leaves_no_process_behind():
    fed = tiny.federation(task=tiny.task((8, 12, 20, 9)), model=Slow)
    rounds = federate(fed)
    next(rounds)
    rounds.close()
    assert children() == []


def test_workers_end_with_the_process_that_started_them_even_if_it_is_killed(tmp_path):
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def parent():
        fed = tiny.federation(task=tiny.task((8, 12, 20, 9)), model=Slow, rounds=1000)
        with LocalTransport(fed, 2) as transport:
            for _ in federate(fed, transport):
                theirs.send([w.process.pid for w in transport._pool.workers])
                time.sleep(60)

    process = context.Process(target=parent)
    process.start()
    assert ours.poll(30)
    workers = ours.recv()
    os.kill(process.pid, signal.SIGKILL)
    process.join(10)
    for _ in range(100):
        alive = [pid for pid in workers if os.path.exists(f"/proc/{pid}") and _state(pid) not in "ZX"]
        if not alive:
            break
        time.sleep(0.1)
    assert alive == []


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def test_the_caller_s_number_of_threads_is_put_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        tiny.run(tiny.federation(rounds=1))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
