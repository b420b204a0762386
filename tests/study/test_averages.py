"""Exponential averages of published models: the recursion, what is judged, and going on after a stop."""

from __future__ import annotations

import torch

import tiny
from leakline.federation import State, federate
from leakline.runtimes.local import LocalTransport
from leakline.study.averages import PLACE, averaged
from leakline.study.describe import description, key_of
from leakline.study.store import Store
from leakline.study.train import train_run


def average_of(rounds, decay):
    whole = rounds[0].result.vector
    for t, round_ in enumerate(rounds):
        share = min(decay, (1 + t) / (10 + t))
        whole = share * whole + (1 - share) * round_.result.vector
    return whole


def test_the_average_is_judged_and_nothing_else_changes(tmp_path):
    fed = tiny.federation(rounds=5)
    plain = train_run(Store(tmp_path), fed, workers=1)
    smooth = train_run(Store(tmp_path), fed.but(average=0.9), workers=1)
    assert key_of(description(fed)) == key_of(description(fed.but(average=0.0))) != smooth.key
    assert torch.equal(plain.final_weights().vector, smooth.final_weights().vector)
    rounds = tiny.run(fed)
    average = rounds[-1].result.like(average_of(rounds, 0.9))
    loss = fed.objective.summary(fed.bench().outputs(average, fed.task.test), fed.task.test.y, None)["loss"]
    told = [r["value"] for r in smooth.readings() if r["measure"] == "loss" and r["round"] == 4]
    assert abs(told[0] - loss) < 1e-5
    assert told != [r["value"] for r in plain.readings() if r["measure"] == "loss" and r["round"] == 4]
    assert any("exponential average" in text for text in smooth.end["card"]["longer"])


def test_it_goes_on_where_it_stopped():
    fed = tiny.federation(rounds=6)
    state = State()
    with LocalTransport(fed, 1) as place:
        for round_ in federate(fed.but(rounds=3), place, state=state):
            averaged(round_, state, 0.5)
        assert set(state.memory[PLACE]) == {"vector"}
        last = [averaged(round_, state, 0.5) for round_ in federate(fed, place, state=state)][-1]
    torch.testing.assert_close(last.result.vector, average_of(tiny.run(fed), 0.5))
    assert averaged(last, state, 0.0) is last
