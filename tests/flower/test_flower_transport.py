"""The transport and the two apps over nodes in this process: the same weights, and every fault a dropped client."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial

import httpx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakline.defences import AdaptiveClip, FedPer, GlobalDP, Intermediaries, LdpSgd
from leakline.errors import ClientLost, StudyError
from leakline.federation import federate
from leakline.flower import FlowerTransport, client_app
from leakline.flower.transport.shelf import Shelf
from leakline.flower.transport.wire import answer_record, answers_of, head_of, order_head, record
from leakline.messages import Dropped, Order, Update
from leakline.strategies import MENU as STRATEGIES
from leakline.weights import Entry, Layout, Weights
from nodes_here import Array, ArrayRecord, ConfigRecord, Message, Node, NodesHere, RecordDict, failing, slowly
from tiny import federation, perceptron, run, task

NAMES = ["a", "b", "c"]


def nodes(fed, faults=None, **config):
    """One node for each client of a federation written in Python."""
    app = partial(client_app, lambda context, head, name: fed.but(together="off"))
    return [Node({"client": c.name, **config}, app=app(), fault=(faults or {}).get(c.name)) for c in fed.task.clients]


def flowing(fed, faults=None, **settings):
    grid = NodesHere(nodes(fed, faults))
    transport = FlowerTransport(grid, poll=0.001, wait=0.05, **settings)
    return list(federate(fed, transport)), transport, grid


STACKS = {
    "fedavg": {},
    "fedyogi and global DP": {"strategy": STRATEGIES["fedyogi"](), "defences": (GlobalDP(1.0, 0.5),)},
    "fedper and intermediaries": {"model": perceptron, "defences": (FedPer(last=1), Intermediaries(1.0, 0.5, parts=3))},
    "adaptive clipping, sampled": {"defences": (AdaptiveClip(1.0, 0.5),), "sampling": "poisson", "participation": 0.6},
    "ldp-sgd": {"defences": (LdpSgd(4.0),)},
}


@pytest.mark.parametrize("name", STACKS)
def test_weights_are_those_of_the_federation_in_this_process(name):
    fed = federation(task=task((12, 9, 15)), rounds=3, together="off", **STACKS[name])
    here, (there, _, _) = run(fed), flowing(fed)
    for one, other in zip(here, there, strict=True):
        assert torch.equal(one.result.vector, other.result.vector)
        assert one.facts == other.facts
        assert one.cohort == other.cohort
        assert [(u.client, u.part, u.examples) for u in one.updates] == [
            (u.client, u.part, u.examples) for u in other.updates
        ]


def other_vector(vector):
    """The reply with another vector in the place of its update."""

    def fault(message, reply):
        content = RecordDict(dict(reply.content))
        content["vectors"] = ArrayRecord({"0": Array(vector(content["vectors"]["0"].numpy()))})
        return Message(content, reply_to=message)

    return fault


def other_head(**changes):
    """The reply with something else in its head."""

    def fault(message, reply):
        content = RecordDict(dict(reply.content))
        head = json.loads(content["leakline"]["json"])
        head["updates"][0] |= changes
        content["leakline"] = ConfigRecord({"json": json.dumps(head)})
        return Message(content, reply_to=message)

    return fault


def content(what):
    return lambda message, reply: Message(what, reply_to=message)


FAULTS = {
    "NaN": (other_vector(lambda v: v * np.float32("nan")), "NaN"),
    "infinite": (other_vector(lambda v: v * np.float32("inf")), "NaN or infinite"),
    "too short": (other_vector(lambda v: v[:-1]), "has 14 values, not 15"),
    "too long": (other_vector(lambda v: np.concatenate([v, v])), "has 30 values, not 15"),
    "matrix": (other_vector(lambda v: v.reshape(3, 5)), "not a float32 vector"),
    "float64": (other_vector(lambda v: v.astype(np.float64)), "not a float32 vector"),
    "complex": (other_vector(lambda v: v.astype(np.complex64)), "not a float32 vector"),
    "another's name": (other_head(client="a"), "answers as somebody else"),
    "a billion examples": (other_head(examples=10**9), "reports 1000000000 examples"),
    "no examples": (other_head(examples=0), "reports 0 examples"),
    "negative examples": (other_head(examples=-3), "reports -3 examples"),
    "examples as text": (other_head(examples="many"), "examples is no whole number"),
    "a yes for a number": (other_head(steps=True), "steps is no whole number"),
    "a metric as text": (other_head(metrics={"loss": "low"}), "cannot be read"),
    "no updates": (content(record({"updates": []}, ArrayRecord())), "0 updates came"),
    "nothing": (content(RecordDict()), "cannot be read"),
    "no JSON": (content(RecordDict({"leakline": ConfigRecord({"json": "{"})})), "cannot be read"),
    "no table": (content(RecordDict({"leakline": ConfigRecord({"json": "[]"})})), "cannot be read"),
    "control characters": (content(record({"dropped": "\x1b[31m" + "x" * 999})), "?[31mxxx"),
    "app raised": (failing(2), "its app raised an error"),
    "node gone": (failing(5), "its node is gone"),
    "unknown failure": (failing(77), "its node failed"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_reply_is_a_dropped_client_and_the_round_goes_on(name):
    fault, reason = FAULTS[name]
    rounds, _, _ = flowing(federation(), {"b": fault})
    for one in rounds:
        assert [d.client for d in one.dropped] == ["b"]
        assert reason in one.dropped[0].reason
        assert "patients" not in one.dropped[0].reason
        assert len(one.dropped[0].reason) <= 300
        assert one.cohort == ("a", "c")
        assert torch.isfinite(one.result.vector).all()


def test_a_bad_client_stops_a_federation_that_asks_for_it():
    with pytest.raises(ClientLost, match="client b: its node is gone"):
        flowing(federation(on_bad_client="stop"), {"b": failing(5)})


def test_too_few_clients_stop_a_round():
    with pytest.raises(ClientLost, match="only 1 of 3"):
        flowing(federation(min_clients=2), {"a": failing(5), "b": failing(2)})


def test_the_noise_follows_the_clients_that_remain_only_where_that_is_asked_for():
    for denominator, more in (("expected", 1.0), ("actual", 3 / 2)):
        fed = federation(defences=(GlobalDP(1.0, 0.5, denominator=denominator),))
        whole, _, _ = flowing(fed)
        fewer, _, _ = flowing(fed, {"b": failing(5)})
        assert fewer[0].facts["noise_std"] == pytest.approx(whole[0].facts["noise_std"] * more)


def test_a_node_that_hangs_past_the_deadline_counts_as_failed():
    rounds, transport, _ = flowing(federation(), {"b": slowly}, deadline=0.2)
    assert [[d.client for d in one.dropped] for one in rounds] == [["b"], ["b"]]
    assert "no answer within 0 s" in rounds[0].dropped[0].reason
    assert transport._took == []  # a round that lost somebody says nothing about how long a round takes


class Breathless(NodesHere):
    """A grid whose SuperLink answers every ``every``th call with an error of its own."""

    def __init__(self, nodes, status, every=2):
        super().__init__(nodes)
        self.status, self.every, self.calls = status, every, 0

    def _served(self, path):
        self.calls += 1
        if self.calls % self.every == 0:
            request = httpx.Request("POST", f"https://superlink:9093/v1/runtime/{path}")
            httpx.Response(self.status, request=request).raise_for_status()

    def get_node_ids(self):
        self._served("get-nodes")
        return super().get_node_ids()

    def push_messages(self, messages):
        self._served("push-messages")
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        self._served("pull-messages")
        return super().pull_messages(message_ids)


def test_a_superlink_that_cannot_serve_some_calls_changes_nothing():
    fed = federation(rounds=3, together="off")
    grid = Breathless(nodes(fed), 500)
    there = list(federate(fed, FlowerTransport(grid, poll=0.001)))
    assert [one.dropped for one in there] == [()] * 3
    assert torch.equal(there[-1].result.vector, run(fed)[-1].result.vector)


@pytest.mark.parametrize(("status", "deadline"), [(500, 0.05), (404, 60.0)])
def test_a_superlink_that_serves_no_more_ends_the_run_with_its_answer(status, deadline):
    fed = federation(rounds=3)
    grid = Breathless(nodes(fed), status, every=10**9)
    rounds = federate(fed, FlowerTransport(grid, poll=0.001, deadline=deadline))
    next(rounds)
    grid.every = 1
    with pytest.raises(ClientLost, match=rf"the SuperLink answers {status} to /v1/runtime/\w+"):
        next(rounds)


def test_a_round_may_take_twice_the_median_and_a_minute_but_never_longer_than_the_deadline():
    transport = FlowerTransport(NodesHere([]), deadline=500)
    assert transport.patience() == 500
    transport._took = [10.0, 30.0, 20.0]
    assert transport.patience() == 100
    transport._took = [1000.0]
    assert transport.patience() == 500


def test_a_client_that_raises_is_dropped_with_one_line_and_no_path():
    fed = federation()

    def mine(context, head, name):
        raise OSError("cannot read /srv/patients/jane-doe.dcm\nand more")

    everyone = nodes(fed)
    everyone[1] = Node({"client": "b"}, app=client_app(mine))
    rounds = list(federate(fed, FlowerTransport(NodesHere(everyone), poll=0.001)))
    reason = rounds[0].dropped[0].reason
    assert "OSError" in reason
    assert "jane" not in reason
    assert "more" not in reason


def test_missing_clients_are_named_before_anything_is_trained():
    fed = federation()
    grid = NodesHere(nodes(fed)[:2])
    with pytest.raises(ClientLost, match="2 of 3 clients have a node; missing: c"):
        list(federate(fed, FlowerTransport(grid, poll=0.001, wait=0.01)))
    assert [node.heads for node in grid.nodes.values()] == [["query"], ["query"]]


def test_two_nodes_with_one_name_are_refused():
    fed = federation()
    with pytest.raises(StudyError, match="two nodes say that they are a"):
        list(federate(fed, FlowerTransport(NodesHere([*nodes(fed), *nodes(fed)[:1]]), poll=0.001)))


def test_a_node_without_a_name_plays_nobody():
    fed = federation()
    nameless = [Node({"client": name}) for name in ("", "../x")]
    with pytest.raises(ClientLost, match="one plays no client"):
        list(federate(fed, FlowerTransport(NodesHere([*nodes(fed)[:2], *nameless]), poll=0.001, wait=0.01)))


def test_a_stranger_is_left_alone():
    fed = federation()
    everyone = [*nodes(fed), Node({"client": "stranger"})]
    rounds = list(federate(fed, FlowerTransport(NodesHere(everyone), names=NAMES, poll=0.001)))
    assert torch.equal(rounds[-1].result.vector, run(fed.but(together="off"))[-1].result.vector)
    assert everyone[3].heads == ["query"]


@pytest.mark.parametrize("number", [101, 999])
def test_a_node_that_comes_back_is_the_same_client_whatever_its_number(number):
    fed = federation(rounds=3)
    grid = NodesHere(nodes(fed))
    rounds = federate(fed, FlowerTransport(grid, poll=0.001))
    next(rounds)
    lost = grid.nodes.pop(101)
    assert [d.reason for d in next(rounds).dropped] == ["no node of that name is connected"]
    grid.nodes[number] = lost
    last = next(rounds)
    assert last.dropped == ()
    assert last.cohort == ("a", "b", "c")


def test_a_stranger_that_says_nothing_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("leakline.flower.transport.exchange.STRANGERS", 0.02)
    fed = federation()
    everyone = [*nodes(fed), Node({"client": "stranger"}, app=lambda *_: None)]
    rounds = list(federate(fed, FlowerTransport(NodesHere(everyone), names=NAMES, poll=0.001)))
    assert rounds[-1].cohort == ("a", "b", "c")


def test_simulated_nodes_play_clients_by_number():
    fed = federation()
    app = client_app(lambda context, head, name: fed.but(together="off"))
    grid = NodesHere([Node({"partition-id": i, "num-partitions": 5}, app=app) for i in range(5)])
    rounds = list(federate(fed, FlowerTransport(grid, names=NAMES, poll=0.001)))
    assert torch.equal(rounds[-1].result.vector, run(fed.but(together="off"))[-1].result.vector)


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="deadline must be above 0"):
        FlowerTransport(NodesHere([]), deadline=0)


# what crosses the wire

LAYOUT = Layout((Entry("w", (2, 3)),))
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(
    st.lists(st.lists(finite, min_size=6, max_size=6), min_size=1, max_size=4),
    st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=3),
)
def test_updates_survive_the_wire_bit_by_bit(vectors, metrics):
    order = Order("a", 3, Weights.zeros(LAYOUT))
    updates = [
        Update("a", Weights(LAYOUT, torch.tensor(v, dtype=torch.float32)), 7, 2, metrics, part)
        for part, v in enumerate(vectors)
    ]
    back = answers_of(answer_record(updates), order)
    for one, other in zip(updates, back, strict=True):
        assert isinstance(other, Update)
        assert one.delta.vector.numpy().tobytes() == other.delta.vector.numpy().tobytes()
        assert replace(one, delta=None) == replace(other, delta=None)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=5), lambda x: st.lists(x, max_size=3)))
def test_whatever_a_head_holds_is_an_update_or_a_dropped_client(value):
    order = Order("a", 3, Weights.zeros(LAYOUT))
    for head in ({"updates": value}, {"dropped": value}, {"updates": [{"client": "a", "examples": value}]}):
        (one,) = answers_of(record(head), order)
        assert isinstance(one, Dropped)


def test_notes_cross_the_wire_as_they_are():
    notes = {"clip": 0.1 + 0.2, "parts": 3.0, "odd": math.pi * 1e-300}
    order = Order("a", 3, Weights.zeros(LAYOUT), notes)
    assert head_of(record(order_head(order)))["notes"] == notes


# what a node remembers


def test_a_turn_starts_from_what_was_known_before_its_round():
    shelf = Shelf({}, "key")
    assert shelf.recall(5) == {}
    assert shelf.newest() == -1
    for index in range(5):
        shelf.keep(index, {"private": torch.tensor([float(index)]), "0": {"seen": index}})
    assert [shelf.recall(before).get("0") for before in (5, 4, 3)] == [{"seen": 4}, {"seen": 3}, {"seen": 2}]
    assert shelf.newest() == 4
    shelf.keep(3, {"private": torch.tensor([-1.0])})  # gone on with from an earlier round: what came later is void
    assert shelf.newest() == 3
    assert shelf.recall(5)["private"].tolist() == [-1.0]


def test_an_order_that_comes_twice_is_answered_twice_with_the_same():
    fed = federation(model=perceptron, defences=(FedPer(last=1),), together="off")
    (node,) = nodes(fed)[:1]
    order = Order("a", 0, fed.bench().initial.only(fed.shares))
    grid = NodesHere([node])
    transport = FlowerTransport(grid, names=["a"], poll=0.001)
    first, again = (list(transport.exchange([order])) for _ in range(2))
    assert torch.equal(first[0].delta.vector, again[0].delta.vector)


def test_a_memory_outlives_the_run_where_the_node_has_a_folder(tmp_path):
    Shelf({}, "key", tmp_path).keep(2, {"private": torch.arange(3.0)})
    assert Shelf({}, "key", tmp_path).recall(3)["private"].tolist() == [0, 1, 2]
    assert Shelf({}, "other", tmp_path).recall(3) == {}
    Shelf({}, "empty", tmp_path).keep(2, {"0": {}})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key.safetensors"]
