"""Clients split into sub-clients: sensitivity, noise, rules, both promises."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tiny
from leakline.bench.memory import pack, unpack
from leakline.bench.training import Plan
from leakline.cards import Card, formal_card, violations
from leakline.defences import AdaptiveClip, FedPer, GaussianRelease, GlobalDP, Intermediaries
from leakline.errors import StackError
from leakline.federation import State, federate
from leakline.messages import Dropped, Order, Receipt, Update
from leakline.privacy import Claim, NoClaim, Unit, account, gdp_epsilon
from leakline.randomness import SeededNoise, Stream
from leakline.readings import Reading
from leakline.runtimes.client import answer
from leakline.runtimes.local import LocalTransport
from leakline.strategies import MENU as STRATEGIES

EVEN = STRATEGIES["fedavg"]("even")


def federation(*defences: Any, **changes: Any):
    return tiny.federation(**({"defences": defences, "strategy": EVEN, "task": tiny.task((12, 13, 9))} | changes))


def claims(*defences: Any, **changes: Any) -> dict[str, Any]:
    return federation(*defences, **changes).claims()


# --- the two promises ------------------------------------------------------------------------------------------------

PRINTED = {
    # (z, delta): epsilon for v = 1, 2, 3, 5, 8; the first column is what paper 004 prints. At mu = 500/3 epsilon is
    # 14,101.48; with mu cut to 166.67 it would read 14,102.
    (0.5, 0.01): (245.6, 892, 1939, 5232, 13171),
    (1.0, 0.01): (72.4, 245.6, 519, 1365, 3385),
    (1.5, 0.01): (36.9, 119, 245.6, 632, 1545),
    (0.3, 0.1): (597.3, 2307, 5127, 14101, 35896),
    (0.5, 0.1): (224.7, 850, 1876, 5127, 13004),
    (0.7, 0.1): (119.4, 444, 972, 2642, 6676),
}


@pytest.mark.parametrize(("setting", "printed"), PRINTED.items())
def test_the_papers_epsilon_is_a_sub_clients_and_the_clients_is_the_table_of_facts(setting, printed):
    z, delta = setting
    for v, epsilon in zip((1, 2, 3, 5, 8), printed, strict=True):
        card = formal_card("x", federation(Intermediaries(z, 1.0, parts=v), rounds=100), delta)
        client, part = card.promises
        assert (client.unit, part.unit) == ("client", "sub-client")
        digits = 1 if epsilon != round(epsilon) else 0
        assert round(client.epsilon, digits) == epsilon
        assert round(part.epsilon, 1) == printed[0]
        assert client.mu == pytest.approx(10 * v / z)
        assert part.mu == pytest.approx(10 / z)


def test_each_unit_has_its_own_name_and_the_client_comes_first():
    found = claims(Intermediaries(1.0, 1.0, parts=4))
    assert list(found) == ["Intermediaries per client", "Intermediaries per sub-client"]
    twins = claims(Intermediaries(1.0, 1.0, parts=4), Intermediaries(1.0, 1.0, parts=4))
    assert list(twins) == ["Intermediaries 1", "Intermediaries 2"]  # two that split: neither can promise anything
    assert all(isinstance(claim, NoClaim) for claim in twins.values())
    rows = federation(Intermediaries(1.0, 1.0, parts=4)), 1e-5
    text = [label for label, _ in formal_card("x", *rows).rows()]
    assert "protects (Intermediaries per client)" in text
    assert "protects (Intermediaries per sub-client)" in text


def test_a_sub_clients_epsilon_never_stands_for_the_client():
    card = formal_card("x", federation(Intermediaries(1.0, 1.0, parts=4), rounds=1), 1e-5)
    assert [p.unit for p in card.leading] == ["client"]
    assert [p.unit for p in formal_card("x", federation(GlobalDP(1.0, 1.0)), 1e-5).leading] == ["client"]

    def broken(low: float, **about: str) -> bool:
        return bool(violations(replace(card, measured=(Reading("mu", low, low, by="audit", about=about),))))

    assert broken(1.1, unit="sub-client")
    assert not broken(3.9, unit="client")  # above a sub-client's 1, below a client's 4
    assert broken(4.1, unit="client")
    assert not broken(3.9)  # of the whole stack: the client's
    assert broken(4.1)
    whole = replace(card, measured=(Reading("mu", 3.9, 3.8, n=100, by="audit", about={"unit": "client"}),))
    assert any(k == "mind" and "does not hold for a client" in v for k, v in whole.rows())
    assert Card.from_dict(whole.as_dict()).rows() == whole.rows()


def test_in_a_report_the_client_decides_the_verdict():
    from leakline.report.page.words import verdict_of
    from leakline.results import Setting

    card = formal_card("x", federation(Intermediaries(4.0, 1.0, parts=32, smallest=1), rounds=1), 1e-5)
    assert [p.verdict for p in card.promises] == ["vacuous", "strong"]
    setting = Setting({}, (), card, False, None, (), ())
    assert verdict_of([setting]) == "vacuous"
    assert setting.epsilon == card.promises[0].epsilon


def test_sampling_amplifies_a_clients_promise_and_not_a_sub_clients():
    found = claims(Intermediaries(1.0, 1.0, parts=4), sampling="poisson", participation=0.5)
    client, part = found.values()
    assert [e.rate for e in client.events] == [0.5]
    assert [e.rate for e in part.events] == [1.0]


@pytest.mark.parametrize("rule", ["paper", "code"])
def test_a_v_taken_from_un_noised_updates_voids_both_promises_and_says_what_they_would_be(rule):
    fed = federation(Intermediaries(0.5, 1.0, parts=rule), rounds=4)
    (said,) = fed.claims().values()
    assert isinstance(said, NoClaim)
    assert "before any noise" in said.reason
    assert "per client v times that mu" in said.instead
    (after,) = fed.claims([{"parts": v} for v in (1.0, 2.0, 2.0, 4.0)]).values()
    assert isinstance(after, NoClaim)
    assert f"mu = {2 / 0.5:.4g} (epsilon {gdp_epsilon(4, 1e-5):,.4g})" in after.instead
    assert f"per client mu = {5 / 0.5:.4g} (epsilon {gdp_epsilon(10, 1e-5):,.4g})" in after.instead
    assert "v 1 to 4" in after.instead


def test_what_else_voids_the_promises():
    for defence, changes, why in (
        (Intermediaries(1.0, 25.0, parts=2, bound="median"), {}, "median"),
        (Intermediaries(0.0, 1.0, parts=2), {}, "no noise"),
        (Intermediaries(1.0, 1.0, parts=2), {"strategy": STRATEGIES["fedavg"]("examples")}, "weighted"),
        (Intermediaries(1.0, 1.0, parts=2), {"strategy": STRATEGIES["fedmedian"]()}, "median"),
        (Intermediaries(1.0, 1.0, parts=2), {"strategy": STRATEGIES["fednova"]("even")}, "FedNova"),
    ):
        (said,) = claims(defence, **changes).values()
        assert isinstance(said, NoClaim)
        assert why in said.reason


def test_other_defences_that_clip_know_that_a_client_sends_several_updates():
    split = Intermediaries(1.0, 1.0, parts=4)
    for other in (GlobalDP(1.0, 1.0), AdaptiveClip(1.0), GaussianRelease(1.0, 1.0)):
        for stack in ((split, other), (other, split)):
            said = claims(*stack)[type(other).__name__]
            assert isinstance(said, NoClaim)
            assert "several" in said.reason


def test_the_public_rule_promises_and_needs_no_data():
    fed = federation(Intermediaries(4.0, 1.0, parts="public", smallest=1))
    v = math.floor(math.sqrt(4.0 * math.sqrt(fed.wire.size) / 3))
    assert v == 2
    assert claims(Intermediaries(4.0, 1.0, smallest=1))["Intermediaries per client"].events[0].mu == v / 4.0
    assert [r.facts["parts"] for r in tiny.run(fed)] == [v, v]
    assert fed.defences[0].settled(fed).parts == v
    assert Intermediaries(400.0, 1.0, most=3).settled(fed).parts == 3


# --- the mechanism ---------------------------------------------------------------------------------------------------


def hooks(defence: Intermediaries, updates: list[Update], fed: Any, noise: bool = True, index: int = 0):
    """The server's hooks on given updates: the combined change, what is published, the facts."""
    facts: dict[str, float] = {}
    turn = fed.turns(index, {}, facts)[0]
    admitted = list(defence.admit(iter(updates), turn))
    mean = EVEN.combine(admitted)
    receipts = [Receipt(u.client, u.examples, u.steps, u.part) for u in admitted]
    return mean, defence.publish(mean, receipts, turn), facts


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.floats(0.05, 20), st.floats(1e-3, 1e4), st.integers(0, 2**31))
def test_one_client_moves_the_sum_by_v_times_c_and_no_further(v, clip, length, seed):
    defence = Intermediaries(0.0, clip, parts=v)
    fed = federation(defence)
    g = torch.Generator().manual_seed(seed)
    others = [tiny.update(torch.randn(15, generator=g), n, 5, 1, fed.wire) for n in "bc" for _ in range(v)]

    def sent(direction: torch.Tensor) -> torch.Tensor:
        mine = [tiny.update(direction * length, "a", 5, 1, fed.wire) for _ in range(v)]
        return hooks(defence, [*others, *mine], fed)[0].vector.double() * (3 * v)

    nothing = sent(torch.zeros(15))
    moved = float((sent(nn.functional.normalize(torch.randn(15, generator=g), dim=0)) - nothing).norm())
    assert moved <= v * clip * (1 + 1e-4) + 1e-5 * float(nothing.norm())
    if length >= clip:
        assert moved == pytest.approx(v * clip, rel=1e-3, abs=1e-4 * float(nothing.norm()))


def test_the_noise_is_z_c_over_the_number_of_sub_clients():
    defence = Intermediaries(2.0, 0.5, parts=4)
    fed = federation(defence, model=lambda: nn.Linear(4, 5000))
    zero = torch.zeros(fed.wire.size)
    updates = [replace(tiny.update(zero, n, 3, 1, fed.wire), part=i) for n in "abc" for i in range(4)]
    _, published, facts = hooks(defence, updates, fed)
    assert facts["noise_std"] == pytest.approx(2.0 * 0.5 / 12)
    assert facts["sub_clients"] == 12
    # 25,000 draws: the sample std is off by 0.45 % (one sigma); 5 sigma is 1 in 1.7 million.
    assert float(published.vector.std()) == pytest.approx(2.0 * 0.5 / 12, rel=0.0225)


def test_one_round_is_the_plain_reference():
    """Full-batch gradient steps on the dealt parts, clipped, averaged, noised: written out with autograd."""
    z, clip, v, rate = 0.7, 0.05, 3, 0.3
    fed = federation(Intermediaries(z, clip, parts=v), plan=Plan(batch=0, learning_rate=rate), rounds=1)
    (got,) = tiny.run(fed)
    start = fed.bench().initial
    clipped, raw = [], []
    for client in fed.task.clients:
        n = len(client.train)
        rows = Stream(fed.seed, -1, client.name, f"Intermediaries-0/split/{v}").numpy().permutation(n)
        for part in np.array_split(rows, v):
            model = tiny.linear()
            with torch.no_grad():
                for p, (_, values) in zip(model.parameters(), start.layers(), strict=True):
                    p.copy_(values)
            data = client.train.take(np.sort(part))
            nn.functional.cross_entropy(model(data.x), data.y).backward()
            step = -rate * torch.cat([p.grad.flatten() for p in model.parameters()]).double()
            raw.append(float(step.norm()))
            clipped.append(step * min(1.0, clip / float(step.norm())))
    mean = torch.stack(clipped).mean(0)
    address = Stream(fed.seed, 0, "server", "Intermediaries-0/noise")
    noise = SeededNoise(address).normal(len(mean)) * (z * clip / (3 * v))
    assert torch.allclose((got.result.vector - start.vector).double(), mean + noise, atol=2e-6)
    assert got.facts["ratio"] == pytest.approx(float(noise.norm()) / sum(raw), rel=1e-4)
    assert got.facts["noise_level"] == pytest.approx(float(noise.norm() / mean.norm()), rel=1e-4)
    assert got.facts["diversity"] == pytest.approx(sum(raw) / float(mean.norm()), rel=1e-4)
    cosines = [float(c @ mean / c.norm() / mean.norm()) for c in clipped]
    assert got.facts["cosine_spread"] == pytest.approx(float(np.std(cosines)), abs=1e-5)


def test_one_part_is_global_dp_bit_for_bit():
    same_address = type("Intermediaries", (GlobalDP,), {})  # randomness is addressed by the defence's name
    for changes in ({}, {"sampling": "poisson", "participation": 0.6}, {"model": tiny.image_net, "task": IMAGES}):
        ours = tiny.run(federation(Intermediaries(1.0, 0.5, parts=1), rounds=3, **changes))
        theirs = tiny.run(federation(same_address(1.0, 0.5), rounds=3, **changes))
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a.result.vector, b.result.vector)


IMAGES = tiny.task((12, 12, 8), tiny.IMAGE)


def test_parts_are_dealt_once_and_by_client():
    defence = Intermediaries(1.0, 1.0, parts=3)
    fed = federation(defence)

    def rows(client: str, index: int, parts: int = 3) -> list[list[int]]:
        order = Order(client, index, fed.bench().initial, {"parts": float(parts)})
        return [list(map(int, part)) for part in defence.split(12, order, fed.turns_of(client, index, {})[0])]

    assert rows("a", 0) == rows("a", 7)
    assert rows("a", 0) != rows("b", 0)
    assert rows("a", 0) != rows("a", 0, 4)[:3]
    assert sorted(sum(rows("a", 0, 4), [])) == list(range(12))


def test_sub_clients_train_on_their_own_part_and_say_which_they_are():
    fed = federation(Intermediaries(1.0, 1.0, parts=4))
    order = Order("b", 0, fed.bench().initial, {"parts": 4.0})
    found = answer(fed, fed.bench(), order, {})
    assert [u.part for u in found] == [0, 1, 2, 3]
    assert sum(u.examples for u in found) == 13


def test_a_client_with_too_few_images_makes_fewer_parts():
    fed = federation(Intermediaries(1.0, 1.0, parts=6, smallest=2))
    (first, _) = tiny.run(fed)
    assert first.facts["sub_clients"] == 6 + 6 + 4
    assert first.facts["noise_std"] == pytest.approx(1 / 16)


# --- rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["paper", "code"])
def test_the_rules_follow_the_last_round_within_their_limits(rule):
    from leakline.mechanisms import code_parts, paper_parts

    compute = {"paper": paper_parts, "code": code_parts}[rule]
    fed = federation(Intermediaries(6.0, 0.2, parts=rule, start=2, smallest=2, most=4), rounds=6)
    rounds = tiny.run(fed)
    assert rounds[0].facts["parts"] == 2
    for last, now in zip(rounds, rounds[1:], strict=False):
        wanted = compute(int(last.facts["parts"]), 3, last.facts["ratio"])
        assert now.facts["parts"] == max(1, min(wanted, 4, 9 // 2))
    assert len({r.facts["parts"] for r in rounds}) > 1


@pytest.mark.parametrize("rule", ["paper", "code"])
def test_updates_of_length_c_bring_the_rules_to_the_public_number(rule):
    fed = federation(
        Intermediaries(40.0, 1e-4, parts=rule, smallest=1), model=lambda: nn.Linear(4, 300), rounds=4,
        task=tiny.task((200, 200, 200)),
    )  # fmt: skip
    public = math.sqrt(40.0 * math.sqrt(fed.wire.size) / 3)
    longer = tiny.run(fed)  # real updates are longer than so small a bound: less is made of them
    assert longer[-1].facts["parts"] < public
    exact = [replace(d, clip=1.0) for d in fed.defences][0]
    state: dict[str, Any] = {}
    for index in range(4):  # updates of exactly length C
        turn = fed.turns(index, state, {})[0]
        v = int(exact.brief({}, turn)["parts"])
        unit = nn.functional.normalize(torch.ones(fed.wire.size), dim=0)
        updates = [tiny.update(unit, n, 200 // v, 1, fed.wire) for n in "abc" for _ in range(v)]
        change = EVEN.combine(exact.admit(iter(updates), turn))
        exact.publish(change, [Receipt(u.client, u.examples, 1) for u in updates], turn)
    # ||zeta|| of 1500 values scatters by 2 % about its mean: within one whole number of 23.
    assert abs(state["0"]["parts"] - public) < 1.5


def test_the_released_method_runs_median_bound_and_all():
    fed = federation(Intermediaries(0.5, 25.0, parts="code", bound="median", smallest=1), rounds=3)
    for round_ in tiny.run(fed):
        norms = sorted(float(u.delta.vector.double().norm()) for u in round_.updates)
        assert round_.facts["clip"] == pytest.approx(norms[(len(norms) - 1) // 2], rel=1e-5)
        assert round_.facts["noise_std"] == pytest.approx(0.5 * round_.facts["clip"] / len(norms))
    capped = tiny.run(federation(Intermediaries(0.5, 1e-3, parts=2, bound="median")))
    assert capped[0].facts["clip"] == 1e-3


# --- the rest of the machine -----------------------------------------------------------------------------------------


def test_check_refuses_more_parts_than_images():
    for defence, fix in (
        (Intermediaries(1.0, 1.0, parts=5), "parts = 4"),
        (Intermediaries(1e4, 1.0, parts="public"), "most"),
        (Intermediaries(1.0, 1.0, parts="paper", start=5), "start"),
    ):
        fed = federation(defence)
        with pytest.raises(StackError, match="client c") as caught:
            defence.check(fed)
        assert "too many for a client with 9" in str(caught.value)
        assert fix in str(caught.value)
    Intermediaries(1.0, 1.0, parts=4).check(federation(Intermediaries(1.0, 1.0, parts=4)))


@pytest.mark.parametrize(
    ("settings_", "words"),
    [
        ({"parts": 0}, "at least 1: 0"),
        ({"parts": "many"}, "'many'"),
        ({"parts": True}, "True"),
        ({"smallest": 0}, "smallest must be at least 1: 0"),
        ({"start": 9, "most": 4}, "9 > 4"),
        ({"bound": "mean"}, "'mean'"),
        ({"clip": 0}, "clip must be positive: 0"),
    ],
)
def test_wrong_settings_are_refused_with_their_value(settings_, words):
    with pytest.raises(ValueError, match=words):
        Intermediaries(**({"noise_multiplier": 1.0, "clip": 1.0} | settings_))


def test_noise_follows_the_sub_clients_that_remain():
    fed = federation(Intermediaries(1.0, 0.5, parts=3))
    with LocalTransport(fed, 1) as inner:
        gone = tiny.Corrupting(inner, "b", lambda u: Dropped(u.client, "gone") if u.part == 0 else None)
        seen = list(federate(fed, _Without(gone)))
    assert [r.cohort for r in seen] == [("a", "c")] * 2
    assert seen[0].facts["noise_std"] == pytest.approx(0.5 / 6)
    with LocalTransport(fed, 1) as inner:  # one part of a client is unusable: the others count
        bad = tiny.Corrupting(inner, "b", lambda u: u.with_delta(u.delta.vector * float("nan")) if u.part == 1 else u)
        seen = list(federate(fed, bad))
    assert seen[0].facts["noise_std"] == pytest.approx(0.5 / 8)
    assert [d.client for d in seen[0].dropped] == ["b"]


class _Without:
    """Leaves out what a fault turned into nothing."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def exchange(self, orders: Any) -> Any:
        return (one for one in self.inner.exchange(orders) if one is not None)


@pytest.mark.parametrize("rule", [3, "code"])
@pytest.mark.parametrize("personal", [(), (FedPer(last=1),)])
def test_workers_do_not_change_a_byte(rule, personal):
    fed = federation(*personal, Intermediaries(2.0, 0.3, parts=rule, start=2), model=tiny.perceptron, rounds=3)
    one, two = tiny.run(fed, 1), tiny.run(fed, 2)
    for a, b in zip(one, two, strict=True):
        assert torch.equal(a.result.vector, b.result.vector)
        assert a.facts == b.facts
    assert one[0].result.layout == fed.wire


def test_it_goes_on_from_a_saved_state_with_its_v():
    fed = federation(Intermediaries(3.0, 0.2, parts="code", start=3, smallest=1), rounds=5)
    whole = tiny.run(fed)
    with LocalTransport(fed, 1) as transport:
        state = State()
        running = federate(fed, transport, state=state)
        next(running), next(running)
        saved = State(state.next, state.weights, dict(state.optimiser), unpack(pack(state.memory)))
        rest = list(federate(fed, transport, state=saved))
    for a, b in zip(whole[2:], rest, strict=True):
        assert torch.equal(a.result.vector, b.result.vector)
        assert a.facts == b.facts


def test_an_empty_sample_is_published_as_noise_and_keeps_v():
    fed = federation(
        Intermediaries(1.0, 0.5, parts="code", start=2), sampling="poisson", participation=0.2, rounds=8, seed=3
    )
    rounds = tiny.run(fed)
    empty = [r for r in rounds if not r.cohort]
    assert empty
    assert all(r.facts["noise_std"] == pytest.approx(0.5 / (1 * r.facts["parts"])) for r in rounds)


def test_server_optimisers_of_paper_004_keep_both_promises():
    adam = STRATEGIES["fedadam"]("even", learning_rate=0.003, beta1=0.9, beta2=0.99, tau=1e-9, correction=False)
    for strategy in (EVEN, adam, STRATEGIES["fednova"]("even", steps=3)):
        found = claims(Intermediaries(1.0, 1.0, parts=4), strategy=strategy, rounds=9)
        assert [c.unit for c in found.values()] == [Unit.CLIENT, Unit.SUB_CLIENT]
        assert all(isinstance(c, Claim) for c in found.values())
        assert [account(c, 1e-5).mu for c in found.values()] == pytest.approx([12, 3])
