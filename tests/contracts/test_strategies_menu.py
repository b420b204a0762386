"""What every strategy on the menu must do."""

from __future__ import annotations

import pytest
import torch

import tiny
from leakline.privacy import NoClaim
from leakline.strategies import MENU


def change(strategy, updates):
    return strategy.combine(updates).vector


@pytest.mark.parametrize("name", MENU)
def test_the_combined_change_of_one_client_is_its_update(name):
    (one,) = tiny.random_updates(1)
    assert torch.allclose(change(MENU[name](), [one]), one.delta.vector, atol=1e-6)


@pytest.mark.parametrize("name", MENU)
def test_the_order_of_clients_does_not_matter(name):
    updates = tiny.random_updates(7, steps=None)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0)).tolist()
    strategy = MENU[name]()
    assert torch.allclose(change(strategy, updates), change(strategy, [updates[i] for i in order]), atol=1e-5)


@pytest.mark.parametrize("name", MENU)
def test_equal_updates_combine_to_themselves(name):
    vector = torch.randn(30, generator=torch.Generator().manual_seed(1))
    updates = [tiny.update(vector, f"c{i}", 5 + i, 4) for i in range(6)]
    assert torch.allclose(change(MENU[name](), updates), vector, atol=1e-6)


@pytest.mark.parametrize("name", MENU)
def test_a_stream_serves_as_well_as_a_list_and_the_layout_is_kept(name):
    updates = tiny.random_updates(5)
    result = MENU[name]().combine(iter(updates))
    assert torch.equal(result.vector, MENU[name]().combine(updates).vector)
    assert result.layout == updates[0].delta.layout
    assert result.vector.dtype == torch.float32


@pytest.mark.parametrize("name", MENU)
def test_it_trains(name):
    rounds = tiny.run(tiny.federation(strategy=MENU[name](), rounds=3))
    assert all(torch.isfinite(r.result.vector).all() for r in rounds)
    assert not torch.equal(rounds[0].sent.vector, rounds[-1].result.vector)


EVEN = [n for n in MENU if n not in ("fedmedian", "fedtrimmed", "fednova")]


@pytest.mark.parametrize("name", EVEN)
def test_even_weights_mean_that_one_client_moves_the_change_by_its_nth_part(name):
    """The property that claims stand on: where it is said, it must be true."""
    strategy = MENU[name](weighting="even")
    assert strategy.combine.influence(3.0, 6) == 3.0 / 6
    updates = tiny.random_updates(6, steps=None)
    moved = [*updates[:5], updates[5].with_delta(updates[5].delta.vector + 3.0)]
    shift = (change(strategy, moved) - change(strategy, updates)).abs()
    assert torch.allclose(shift, torch.full_like(shift, 3.0 / 6), atol=1e-5)


@pytest.mark.parametrize("name", MENU)
def test_no_strategy_bounds_the_influence_of_a_client_by_default(name):
    assert isinstance(MENU[name]().combine.influence(1.0, 6), NoClaim)


def test_fedopt_is_fedavg_from_a_warm_start_and_fedprox_only_adds_its_term():
    assert MENU["fedopt"]().combine == MENU["fedavg"]().combine
    assert MENU["fedopt"]().optimiser == MENU["fedavg"]().optimiser
    assert MENU["fedopt"]().warm_start
    assert MENU["fedprox"](mu=0.3).proximal == 0.3
    assert MENU["fedavgm"](learning_rate=1.0, momentum=0.0) == MENU["fedavg"]()
