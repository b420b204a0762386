"""What every defence on the menu must do, through the hooks and through a whole federation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import tiny
from leakline.data import Client, Elsewhere
from leakline.defences import MENU, Defence, hooks_of
from leakline.messages import Order, Receipt
from leakline.privacy import Claim, NoClaim, Unit, account
from leakline.strategies import MENU as STRATEGIES
from menu_examples import DEFENCES

EVEN = STRATEGIES["fedavg"](weighting="even")


def make(name: str, settings: dict[str, Any] | None = None) -> Defence:
    return MENU[name](**(DEFENCES[name].ordinary if settings is None else settings))


def federation(*defences: Defence, **changes: Any):
    needs: dict[str, Any] = {}
    for name, kind in MENU.items():
        needs |= DEFENCES[name].needs if any(type(d) is kind for d in defences) else {}
    base = {"defences": defences, "strategy": EVEN, "model": tiny.perceptron}
    return tiny.federation(**(base | needs | changes))


def promised(defence: Defence, **changes: Any) -> tuple[Claim | NoClaim, ...]:
    said = defence.claim(federation(defence, **changes))
    return said if isinstance(said, tuple) else (said,)


def through_the_hooks(fed, place: int = 0, index: int = 0):
    """One round's worth of the hooks that touch vectors, on fixed updates."""
    defence = fed.defences[place]
    g = torch.Generator().manual_seed(0)
    layout = fed.wire
    updates = [tiny.update(torch.randn(layout.size, generator=g), name, 12, 3, layout) for name in ("a", "b", "c")]
    server: dict = {}
    turn = fed.turns(index, server)[place]
    released = [defence.release(u, fed.turns_of(u.client, index, {})[place]) for u in updates]
    admitted = list(defence.admit(iter(released), turn))
    mean = EVEN.combine(admitted)
    published = defence.publish(mean, [Receipt(u.client, u.examples, u.steps) for u in admitted], turn)
    return updates, released, admitted, mean, published


def test_every_entry_of_the_menu_has_its_examples_here():
    assert set(DEFENCES) == set(MENU)


@pytest.mark.parametrize("name", DEFENCES)
def test_a_server_that_has_none_of_the_data_can_check_and_promise_the_same(name):
    here = federation(make(name))
    task = here.task
    away = tuple(Client(c.name, Elsewhere.of(len(c.train), task.shape, c.name)) for c in task.clients)
    there = replace(here, task=replace(task, clients=away))
    there.stack.check(there)
    assert there.claims() == here.claims()


@pytest.mark.parametrize("name", [n for n in DEFENCES if DEFENCES[n].nothing is not None])
def test_strength_zero_is_the_identity(name):
    plain = tiny.run(federation(**DEFENCES[name].needs))
    defended = tiny.run(federation(make(name, DEFENCES[name].nothing)))
    for one, other in zip(plain, defended, strict=True):
        assert torch.equal(one.result.vector, other.result.vector)


@pytest.mark.parametrize("name", MENU)
def test_layout_and_type_are_kept_and_inputs_are_not_written_to(name):
    fed = federation(make(name))
    g = torch.Generator().manual_seed(0)
    fresh = [torch.randn(fed.wire.size, generator=g) for _ in range(3)]
    updates, released, admitted, _, published = through_the_hooks(fed)
    for before, update in zip(fresh, updates, strict=True):
        assert torch.equal(before, update.delta.vector)
    for each in [*released, *admitted]:
        assert each.delta.layout == fed.wire
        assert each.delta.vector.dtype == torch.float32
    assert published.layout == fed.wire
    assert torch.isfinite(published.vector).all()


@pytest.mark.parametrize("name", MENU)
def test_publishing_does_not_write_to_the_combined_change(name):
    fed = federation(make(name))
    _, _, admitted, mean, _ = through_the_hooks(fed)
    assert torch.equal(mean.vector, EVEN.combine(admitted).vector)


@pytest.mark.parametrize("name", MENU)
def test_the_same_turn_gives_the_same_result(name):
    fed = federation(make(name))
    assert torch.equal(through_the_hooks(fed)[-1].vector, through_the_hooks(fed)[-1].vector)


@pytest.mark.parametrize("name", [n for n in DEFENCES if DEFENCES[n].draws])
def test_another_round_or_seed_gives_other_noise(name):
    fed = federation(make(name))
    one = through_the_hooks(fed)[-1].vector
    assert not torch.equal(one, through_the_hooks(fed, index=1)[-1].vector)
    assert not torch.equal(one, through_the_hooks(replace(fed, seed=9))[-1].vector)


@dataclass(frozen=True)
class Bystander(Defence):
    """Draws noise at every boundary and changes nothing."""

    def release(self, update, turn):
        turn.noise().normal(3)
        return update

    def publish(self, change, cohort, turn):
        turn.noise().normal(3)
        return change

    def claim(self, federation, facts=()):
        return NoClaim("a bystander")


@pytest.mark.parametrize("name", MENU)
def test_other_defences_in_the_stack_do_not_shift_its_randomness(name):
    alone = tiny.run(federation(make(name)))[-1].result.vector
    for stack in ((Bystander(), make(name)), (make(name), Bystander()), (Bystander(), make(name), Bystander())):
        assert torch.equal(alone, tiny.run(federation(*stack))[-1].result.vector)


@pytest.mark.parametrize("name", [n for n in MENU if "gradient" not in hooks_of(MENU[n])])  # one owner a stack
def test_two_of_a_kind_in_a_stack_draw_different_noise(name):
    fed = federation(make(name), make(name))
    turns = [fed.turns(0, {})[i] for i in (0, 1)]
    assert not torch.equal(turns[0].noise().normal(8), turns[1].noise().normal(8))


@pytest.mark.parametrize("name", MENU)
def test_it_says_what_it_promises_or_why_nothing(name):
    for strategy in STRATEGIES.values():
        for claim in promised(make(name), strategy=strategy()):
            assert isinstance(claim, Claim | NoClaim)
            if isinstance(claim, NoClaim):
                assert len(claim.reason) > 10
            else:
                assert 0 < account(claim, 1e-5).epsilon < float("inf")


@pytest.mark.parametrize("name", [n for n in DEFENCES if DEFENCES[n].weaker_to_stronger])
def test_the_promise_tightens_as_noise_grows_and_loosens_with_rounds(name):
    def epsilons(defence: Defence, **changes: Any) -> list[float]:
        return [account(claim, 1e-5).epsilon for claim in promised(defence, **changes)]

    by_strength = [epsilons(make(name, s)) for s in DEFENCES[name].weaker_to_stronger]
    for found in zip(*by_strength, strict=True):  # a defence may promise something to each of several units
        assert list(found) == sorted(found, reverse=True)
        assert len(set(found)) == len(found)
    d = make(name, DEFENCES[name].weaker_to_stronger[1])
    largest = zip(promised(d, rounds=1), epsilons(d, rounds=1), epsilons(d, rounds=50), strict=True)
    for claim, few, many in largest:
        assert few < many if claim.unit is not Unit.REPORT else few == many  # a report is one round's


@pytest.mark.parametrize("name", MENU)
def test_where_several_units_are_promised_something_the_largest_comes_first(name):
    units = [claim.unit for claim in promised(make(name)) if isinstance(claim, Claim)]
    assert [u for u in reversed(Unit) if u in units] == units


@pytest.mark.parametrize("name", MENU)
def test_it_trains_to_the_end_also_with_sampling_and_momentum(name):
    poisson = {"sampling": "poisson", "participation": 0.5}  # rounds of one client and of none among them
    for changes in ({}, {"strategy": STRATEGIES["fedavgm"]("even")}, poisson, {**poisson, "participation": 0.1}):
        rounds = tiny.run(federation(make(name), rounds=3, **changes))
        assert len(rounds) == 3
        assert all(torch.isfinite(r.result.vector).all() for r in rounds)


@pytest.mark.parametrize("name", MENU)
def test_it_is_a_value_and_uses_a_hook(name):
    assert make(name) == make(name)
    assert hash(make(name)) == hash(make(name))
    assert hooks_of(MENU[name])
    assert (MENU[name].__doc__ or "").strip()


@pytest.mark.parametrize("name", MENU)
def test_a_split_if_any_covers_every_example_once(name):
    fed = federation(make(name))
    order = Order("a", 0, fed.bench().initial.only(fed.shares), make(name).brief({}, fed.turns(0, {})[0]))
    parts = make(name).split(12, order, fed.turns_of("a", 0, {})[0])
    if parts is not None:
        assert sorted(int(i) for part in parts for i in part) == list(range(12))
