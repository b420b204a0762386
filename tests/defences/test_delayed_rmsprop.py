"""DP2-RMSProp: phases, the reference, and that it leaves the promise behind it alone."""

from __future__ import annotations

import pytest
import torch

import tiny
from leakline.bench.memory import pack, unpack
from leakline.defences import DelayedRmsProp, GlobalDP, Intermediaries
from leakline.federation import State, federate
from leakline.privacy import Claim, NoClaim
from leakline.runtimes.local import LocalTransport
from leakline.strategies import MENU as STRATEGIES

EVEN = STRATEGIES["fedavg"]("even")


def federation(*defences, **changes):
    return tiny.federation(**({"defences": defences, "strategy": EVEN, "rounds": 13} | changes))


def test_rounds_against_a_plain_reference():
    """From the updates as they crossed the wire and the noise's known address, every model of 13 rounds."""
    s, gamma, floor, rate, clip = 3, 0.9, 1e-7, 0.05, 0.4
    fed = federation(DelayedRmsProp(s, gamma, floor, rate), GlobalDP(0.3, clip))
    total, second = torch.zeros(fed.wire.size, dtype=torch.float64), None
    for round_ in tiny.run(fed):
        t = round_.index
        adaptive = (t // s) % 2 == 1
        assert round_.facts["preconditioned"] == float(adaptive)
        rows = [u.delta.vector.double() for u in round_.updates]
        if adaptive:
            rows = [row / (second.sqrt() + floor) for row in rows]
        mean = torch.stack([row * min(1.0, clip / float(row.norm())) for row in rows]).mean(0)
        mean += fed.turns(t, {})[1].noise().normal(len(mean)) * (0.3 * clip / 3)
        moved = (round_.result.vector - round_.sent.vector).double()
        assert torch.allclose(moved, mean * (rate if adaptive else 1), atol=1e-5)
        if not adaptive:
            total += mean
            if t % s == s - 1:
                square = (total / s) ** 2
                second = square if second is None else gamma * second + (1 - gamma) * square
                total.zero_()


def test_the_promise_behind_it_stands_and_the_one_before_it_falls():
    found = federation(DelayedRmsProp(), GlobalDP(1.0, 1.0)).claims()
    assert isinstance(found["DelayedRmsProp"], NoClaim)
    assert isinstance(found["GlobalDP"], Claim)
    assert found["GlobalDP"] == federation(GlobalDP(1.0, 1.0)).claims()["GlobalDP"]
    both = federation(DelayedRmsProp(), Intermediaries(1.0, 1.0, parts=2)).claims()
    assert sum(isinstance(claim, Claim) for claim in both.values()) == 2
    assert isinstance(federation(GlobalDP(1.0, 1.0), DelayedRmsProp()).claims()["GlobalDP"], NoClaim)
    late = federation(DelayedRmsProp(), GlobalDP(1.0, 1.0, at="model")).claims()["GlobalDP"]
    assert isinstance(late, NoClaim)
    assert "before the noise" in late.reason


def test_buffers_pass_untouched():
    defence = DelayedRmsProp(1, rate=0.5)
    fed = tiny.federation(defences=(defence,), model=tiny.image_net, task=tiny.task((8, 8), tiny.IMAGE))
    memory: dict = {}
    ones = tiny.update(torch.ones(fed.wire.size), layout=fed.wire)
    defence.publish(ones.delta, [], fed.turns(0, memory)[0])  # learns A = 1
    turn = fed.turns(1, memory)[0]
    (admitted,) = defence.admit(iter([tiny.update(torch.full((fed.wire.size,), 4.0), layout=fed.wire)]), turn)
    published = defence.publish(admitted.delta, [], turn)
    cut = sum(e.size for e in fed.wire.entries if not e.buffer)
    assert torch.allclose(published.vector[:cut], torch.tensor(2.0))
    assert torch.equal(published.vector[cut:], torch.full((fed.wire.size - cut,), 4.0))


def test_it_goes_on_from_a_saved_state():
    fed = federation(DelayedRmsProp(2, rate=0.1), Intermediaries(1.0, 0.3, parts=2), rounds=7)
    whole = tiny.run(fed)
    for stop in (1, 3, 5):
        with LocalTransport(fed, 1) as transport:
            state = State()
            running = federate(fed, transport, state=state)
            for _ in range(stop):
                next(running)
            saved = State(state.next, state.weights, dict(state.optimiser), unpack(pack(state.memory)))
            rest = list(federate(fed, transport, state=saved))
        assert torch.equal(whole[-1].result.vector, rest[-1].result.vector)


def test_the_rule_for_v_counts_clipped_lengths_where_updates_are_preconditioned():
    fed = federation(DelayedRmsProp(2, rate=0.01), Intermediaries(3.0, 0.2, parts="code", smallest=1), rounds=8)
    seen = set()
    for round_ in tiny.run(fed):
        raw = [float(u.delta.vector.double().norm()) for u in round_.updates]
        noise = fed.turns(round_.index, {})[1].noise().normal(fed.wire.size) * round_.facts["noise_std"]
        seen.add(preconditioned := round_.facts["preconditioned"])
        counted = 0.2 * len(raw) if preconditioned else sum(raw)  # divided by so little, every update is clipped
        assert round_.facts["ratio"] == pytest.approx(float(noise.norm()) / counted, rel=1e-3)
    assert seen == {0.0, 1.0}


@pytest.mark.parametrize("wrong", [{"interval": 0}, {"gamma": 1.0}, {"floor": 0.0}, {"rate": -1.0}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        DelayedRmsProp(**wrong)
