"""The guard: whatever one client sends, the round ends well, says who was left out and why, and the model is finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tiny
from leakline.data.base import Client
from leakline.defences import AdaptiveClip, DpSgd, GaussianRelease, GlobalDP, Intermediaries, MetricPrivacy
from leakline.errors import ClientLost, LeaklineError, StackError
from leakline.federation import federate, keep_all
from leakline.guard import Arrivals, judgements
from leakline.messages import Dropped, Update
from leakline.runtimes.local import LocalTransport
from leakline.strategies import MENU
from leakline.study.store import Store
from leakline.study.train import train_run
from leakline.weights import Layout, Weights

Fault = Callable[[Update], Any]
BIG = 10**5000


def bent(weights: Weights, **parts: Any) -> Weights:
    """Weights that went past their own constructor, as somebody else's transport may make them."""
    made = object.__new__(Weights)
    for name, value in ({"layout": weights.layout, "vector": weights.vector} | parts).items():
        object.__setattr__(made, name, value)
    return made


def vector(change: Callable[[torch.Tensor], Any]) -> Fault:
    return lambda u: replace(u, delta=bent(u.delta, vector=change(u.delta.vector)))


def raises(error: BaseException) -> Fault:
    def fault(update: Update) -> Any:
        raise error

    return fault


def with_(**fields: Any) -> Fault:
    return lambda u: replace(u, **fields)


class Evil(dict):  # type: ignore[type-arg]
    """A table of metrics that is none."""

    def items(self) -> Any:
        return [("loss", object())]


KINDS: dict[str, Fault] = {
    "None": lambda u: None,
    "text": lambda u: "an update",
    "bytes": lambda u: b"\x00" * 100,
    "a dict": lambda u: {"client": "b", "delta": 1},
    "a list of updates": lambda u: [u],
    "a number": lambda u: 3.0,
    "a tensor": lambda u: u.delta.vector,
    "bare weights": lambda u: u.delta,
    "a class": lambda u: Update,
    "an exception": lambda u: ValueError("x"),
    "nothing said": lambda u: Dropped("b", ""),
    "a reason that is a list": lambda u: Dropped("b", ["x"]),  # type: ignore[arg-type]
    "a reason with escapes": lambda u: Dropped("b", "\x1b[31mred\x07" * 50),
    "a name that is a list": with_(client=["b"]),
    "a name that is None": with_(client=None),
    "a name that is a number": with_(client=3),
    "somebody's name": with_(client="a"),
    "nobody's name": with_(client="mallory"),
    "a name with escapes": with_(client="\x1b]0;b\x07"),
    "a very long name": with_(client="b" * 10**6),
    "no delta": with_(delta=None),
    "text for delta": with_(delta="x"),
    "a dict for delta": with_(delta={"weight": 1}),
    "a tensor for delta": lambda u: replace(u, delta=u.delta.vector),  # type: ignore[arg-type]
    "doubles": vector(lambda v: v.double()),
    "halves": vector(lambda v: v.half()),
    "complex": vector(lambda v: v.to(torch.complex64)),
    "integers": vector(lambda v: v.long()),
    "booleans": vector(lambda v: v > 0),
    "two dimensions": vector(lambda v: v.view(3, 5)),
    "no dimension": vector(lambda v: v[0]),
    "too short": vector(lambda v: v[:-1]),
    "too long": vector(lambda v: torch.cat([v, v])),
    "nothing in it": vector(lambda v: v[:0]),
    "sparse": vector(lambda v: v.to_sparse()),
    "on no device": vector(lambda v: v.to("meta")),
    "an array": vector(lambda v: v.numpy()),
    "a list of values": vector(lambda v: v.tolist()),
    "a layout that is text": lambda u: replace(u, delta=bent(u.delta, layout="weight, bias")),
    "an empty layout": lambda u: replace(u, delta=Weights(Layout(()), torch.zeros(0))),
    "NaN": vector(lambda v: v * math.nan),
    "infinite": vector(lambda v: v / 0),
    "beyond all measure": vector(lambda v: v * 0 + 3e38),
    "examples None": with_(examples=None),
    "examples as text": with_(examples="12"),
    "examples true": with_(examples=True),
    "half an example": with_(examples=0.5),
    "NumPy's examples": with_(examples=np.int64(12)),
    "a tensor of examples": with_(examples=torch.tensor(12)),
    "examples without end": with_(examples=BIG),
    "negative examples without end": with_(examples=-BIG),
    "steps None": with_(steps=None),
    "infinite steps": with_(steps=math.inf),
    "a billion steps": with_(steps=10**9),
    "more steps than its plan makes": with_(steps=7),
    "steps without end": with_(steps=BIG),
    "part None": with_(part=None),
    "a negative part": with_(part=-1),
    "a later part": with_(part=1),
    "a part without end": with_(part=BIG),
    "metrics None": with_(metrics=None),
    "metrics as text": with_(metrics="loss: 1"),
    "metrics as pairs": with_(metrics=[("loss", 1.0)]),
    "a loss that is None": with_(metrics={"loss": None}),
    "a loss that is text": with_(metrics={"loss": "low"}),
    "a loss that is a tensor": with_(metrics={"loss": torch.tensor(1.0)}),
    "a loss that is a list": with_(metrics={"loss": [1.0]}),
    "a number for a metric's name": with_(metrics={3: 1.0}),
    "a thousand metrics": with_(metrics={str(i): 1.0 for i in range(1000)}),
    "metrics that lie": with_(metrics=Evil(loss=1.0)),
}
RAISING: dict[str, Fault] = {
    "an error in the transport": raises(RuntimeError("gone")),
    "the end of the transport": raises(SystemExit(0)),
    "memory": raises(MemoryError()),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "fedavg": {"strategy": MENU["fedavg"]()},
    "fedmedian": {"strategy": MENU["fedmedian"]()},
    "fednova": {"strategy": MENU["fednova"]()},
    "fedyogi": {"strategy": MENU["fedyogi"]()},
    "global-dp": {"strategy": MENU["fedavg"]("even"), "defences": (GlobalDP(1.0, 0.5),)},
    "adaptive-clip": {"strategy": MENU["fedavg"]("even"), "defences": (AdaptiveClip(1.0, 0.5),)},
    "metric-privacy": {"strategy": MENU["fedavg"]("even"), "defences": (MetricPrivacy(0.5, clip=0.5),)},
    "dp-sgd and a release": {"defences": (DpSgd(1.0, 1.0), GaussianRelease(0.5, 1.0))},
}


class Odd(tiny.Corrupting):
    """Corrupting, and answers that are lists of several."""

    def exchange(self, orders: Any) -> Iterator[Any]:
        for update in self.inner.exchange(orders):
            yield self.fault(update) if update.client == self.client else update


def rounds_of(fed: Any, fault: Fault) -> list[Any]:
    with LocalTransport(fed, 1) as inner:
        return list(federate(fed, Odd(inner, "b", fault)))


def test_there_are_more_than_sixty_kinds():
    assert len(KINDS) + len(RAISING) >= 60
    assert len(SETTINGS) == 8


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_one_bad_reply_is_dropped_recorded_and_harms_nobody(kind, setting):
    # A stack that forms its gradients may take as many steps as it likes.
    free = kind == "more steps than its plan makes" and "dp-sgd" in setting
    for r in rounds_of(tiny.federation(**SETTINGS[setting]), KINDS[kind]):
        assert torch.isfinite(r.result.vector).all()
        assert r.cohort == (("a", "b", "c") if free else ("a", "c"))
        assert free or any(lost.client == "b" for lost in r.dropped) or kind == "somebody's name"
        assert all(lost.reason.isprintable() and len(lost.reason) <= 200 and lost.reason for lost in r.dropped)
        assert all(lost.client.isprintable() and len(lost.client) <= 64 for lost in r.dropped)
        assert all(type(value) is float and math.isfinite(value) for value in r.metrics.values())


@pytest.mark.parametrize("kind", [*KINDS, *RAISING])
def test_stop_means_stop(kind):
    if kind == "somebody's name":
        return  # named as a's second answer below
    with pytest.raises(ClientLost):
        rounds_of(tiny.federation(on_bad_client="stop"), (KINDS | RAISING)[kind])


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", RAISING)
def test_a_transport_that_breaks_ends_in_words_and_nothing_is_published(kind, setting):
    """a has answered, b's answer breaks the transport: nothing is published of such a round."""
    with pytest.raises(ClientLost, match="the transport failed: "):
        rounds_of(tiny.federation(**SETTINGS[setting]), RAISING[kind])


def test_an_error_that_is_meant_for_the_user_goes_through():
    with pytest.raises(LeaklineError, match="no such node"):
        rounds_of(tiny.federation(), raises(StackError("no such node")))


def test_a_transport_that_never_ends_is_left():
    class Endless(Odd):
        def exchange(self, orders: Any) -> Iterator[Any]:
            answers = list(self.inner.exchange(orders))
            while True:
                yield from answers[:2]

    fed = tiny.federation(rounds=1)
    with LocalTransport(fed, 1) as inner:
        (r,) = federate(fed, Endless(inner, "b", None))
    assert r.cohort == ("a", "b")
    assert [d.reason for d in r.dropped if d.client == "c"] == ["more answers came than orders were sent"]


def test_who_sends_for_another_is_not_heard_and_the_other_counts_once():
    (first, _) = rounds_of(tiny.federation(), KINDS["somebody's name"])
    assert first.cohort == ("a", "c")
    assert [(d.client, d.reason) for d in first.dropped] == [("a", "answered twice"), ("b", "no reply came")]


def test_ten_thousand_parts_count_for_as_many_as_were_asked():
    fed = tiny.federation(defences=(Intermediaries(1.0, 0.5, parts=2),), rounds=1)
    with LocalTransport(fed, 1) as inner:

        class Many(Odd):
            def exchange(self, orders: Any) -> Iterator[Any]:
                for update in self.inner.exchange(orders):
                    yield update
                    if update.client == "b":
                        yield from (replace(update, part=i) for i in range(2, 10_000))

        (r,) = federate(fed, Many(inner, "b", None), keep=keep_all)
    assert sum(u.client == "b" for u in r.updates) <= 2


def long(times: float) -> Fault:
    return lambda u: u.with_delta(u.delta.vector * times)


def test_one_update_that_is_many_times_longer_is_named_where_a_mean_follows_it(tmp_path):
    fed = tiny.federation(task=tiny.task((12,) * 5))
    assert all(not r.longer for r in tiny.run(fed))
    odd = rounds_of(fed, long(-1e4))
    assert all(set(r.longer) == {"b"} and r.longer["b"] > 100 for r in odd)
    assert not any(r.longer for r in rounds_of(fed, long(2.0)))
    for bounded in (
        {"strategy": MENU["fedmedian"]()},
        {"strategy": MENU["fedtrimmed"]()},
        {"strategy": MENU["fedavg"]("even"), "defences": (GlobalDP(1.0, 0.5),)},
        {"secure_aggregation": "assumed"},  # the server could not know
    ):
        assert not any(r.longer for r in rounds_of(fed.but(**bounded), long(1e4)))


class LongTransport(LocalTransport):
    def exchange(self, orders: Any) -> Iterator[Any]:
        for update in super().exchange(orders):
            yield long(1e4)(update) if update.client == "b" else update


def test_a_long_update_stands_in_the_record_and_on_the_card(tmp_path):
    fed = tiny.federation(task=tiny.task((12,) * 5))
    run = train_run(Store(tmp_path), fed, opens=lambda f, memories: LongTransport(f, 1, memories))
    assert [list(record["longer"]) for record in run.rounds()] == [["b"], ["b"]]
    (line,) = run.end["card"]["longer"]
    assert line.startswith("b sent updates up to ")
    assert "fedmedian" in line


def test_max_norm_drops_what_is_longer(tmp_path):
    fed = tiny.federation(task=tiny.task((12,) * 5), max_norm=5.0)
    (first, _) = rounds_of(fed, long(1e4))
    assert first.cohort == ("a", "c", "d", "e")
    assert "more than max_norm = 5" in first.dropped[0].reason
    assert all(not r.dropped for r in tiny.run(fed))
    with pytest.raises(StackError, match="max_norm looks at single updates"):
        fed.but(secure_aggregation="assumed")


def test_a_quorum_of_two_and_of_three_for_a_sum_that_nobody_may_look_into():
    def lose(*names: str) -> Any:
        class Losing(Odd):
            def exchange(self, orders: Any) -> Iterator[Any]:
                for update in self.inner.exchange(orders):
                    yield Dropped(update.client, "left") if update.client in names else update

        return Losing

    def run(fed: Any, *names: str) -> Any:
        with LocalTransport(fed, 1) as inner:
            return list(federate(fed, lose(*names)(inner, "b", None)))

    assert len(run(tiny.federation(), "b")) == 2
    with pytest.raises(ClientLost, match="2 are needed"):
        run(tiny.federation(), "a", "b")
    assert len(run(tiny.federation(min_clients=1), "a", "b")) == 2
    with pytest.raises(ClientLost, match="only 2 of 3 .* 3 are needed"):
        run(tiny.federation(secure_aggregation="assumed"), "b")
    assert len(tiny.run(tiny.federation(task=tiny.task((12,))))) == 2  # nobody else was asked


class Exits(nn.Linear):
    """A model that wants to end the program, for a client with more than so many examples."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x > 90).any()):
            raise SystemExit(0)
        return super().forward(x)


def exits() -> nn.Module:
    return Exits(tiny.FEATURES, tiny.CLASSES)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_that_exits_is_dropped_and_the_others_go_on(workers):
    task = tiny.task()
    bad = replace(task.clients[1].train, x=task.clients[1].train.x + 100)
    clients = (task.clients[0], Client("b", bad), task.clients[2])
    fed = tiny.federation(task=replace(task, clients=clients), model=exits)
    for r in tiny.run(fed, workers):
        assert r.cohort == ("a", "c")
        assert r.dropped[0].client == "b"
        assert "SystemExit" in r.dropped[0].reason


def test_of_judges_the_first_good_answer_of_each_counts():
    empty = Weights(Layout(()), torch.zeros(0))
    good = [Update(name, empty, 3, 0, {"accuracy": 0.5}) for name in ("a", "b")]
    bad = [None, "x", replace(good[0], metrics={"accuracy": "high"}), replace(good[0], client="z")]
    assert judgements([*bad, *good, replace(good[0], metrics={"accuracy": 1.0})], ("a", "b")) == good


def test_losses_that_are_not_finite_do_not_reach_the_mean():
    arrivals = Arrivals(0, Weights.zeros(tiny.LAYOUT), keep_all, False, ["a"])
    arrivals.losses += [1.0, math.inf, math.nan, 3.0]
    assert arrivals.metrics() == {"train_loss": 2.0}
