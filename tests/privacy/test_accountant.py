import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakline.privacy import (
    Adjacency,
    Claim,
    Gaussian,
    Guarantee,
    Pure,
    Seat,
    Unit,
    account,
    accountant,
    gdp_epsilon,
    group,
    pld_worker,
    replace_one,
    violated,
)
from leakline.privacy.accountant import BASIC, COARSE, EXACT, MIXED, PLD, PURE, RDP, UNAMPLIFIED, rdp_epsilon


def claim(*events, adjacency=Adjacency.ADD_REMOVE, unit=Unit.CLIENT, **more):
    return Claim(unit, adjacency, Seat.CLIENT, events, **more)


def test_full_participation_is_the_closed_form():
    found = account(claim(Gaussian(1.0, 20)), 1e-5)
    assert found.epsilon == pytest.approx(28.3735, abs=5e-5)
    assert found.mu == pytest.approx(math.sqrt(20))
    assert (found.method, found.loose) == (EXACT, False)


def test_different_gaussians_compose_in_squares():
    found = account(claim(Gaussian(1.0, 9), Gaussian(2.0, 4)), 1e-5)
    assert found.mu == pytest.approx(5.0)
    assert found.epsilon == gdp_epsilon(5.0, 1e-5)


def test_no_noise_promises_nothing():
    found = account(claim(Gaussian(math.inf)), 1e-5)
    assert (found.epsilon, found.advantage, found.verdict) == (math.inf, 1.0, "vacuous")


def test_pure_reports_add_up_and_need_no_delta():
    found = account(claim(Pure(0.5, 10), Pure(1.0)), 1e-5)
    assert (found.epsilon, found.delta, found.mu, found.method) == (6.0, 0.0, None, PURE)


@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE])
def test_pure_beside_gaussian_agrees_with_a_privacy_loss_distribution(adjacency):
    from dp_accounting.pld import privacy_loss_distribution as pld

    found = account(claim(Gaussian(0.5, 4), Pure(0.3, 5), Pure(0.1, 2), adjacency=adjacency), 1e-5)
    loss = pld.from_gaussian_mechanism(1.0)
    for epsilon, times in ((0.3, 5), (0.1, 2)):
        pure = pld.from_privacy_parameters(pld.common.DifferentialPrivacyParameters(epsilon))
        loss = loss.compose(pure.self_compose(times))
    assert found.epsilon == pytest.approx(loss.get_epsilon_for_delta(1e-5), rel=1e-3)
    assert found.advantage == pytest.approx(loss.get_delta_for_epsilon(0.0), rel=1e-3)
    assert found.method == MIXED


def test_a_mixture_lies_between_its_parts_and_their_sum():
    gaussian = account(claim(Gaussian(1.0)), 1e-5).epsilon
    found = account(claim(Gaussian(1.0), Pure(1.0)), 1e-5)
    assert gaussian < found.epsilon < gaussian + 1
    huge = account(claim(Gaussian(1.0), *[Pure(0.01 * i, 99) for i in range(1, 5)]), 1e-5)
    assert huge.epsilon == pytest.approx(gaussian + 9.9)
    assert (huge.method, huge.loose) == (BASIC, True)
    nothing = account(claim(Gaussian(1.0), Pure(1.0)), 0.0)
    assert nothing.epsilon == math.inf


@pytest.mark.parametrize(
    ("sigma", "rate", "rounds", "delta", "epsilon"),
    [(1, 0.01, 1000, 1e-5, 1.8282), (1.1, 0.004, 14_100, 1e-5, 2.2191), (0.6, 0.2, 200, 1e-5, 58.963)],
)
def test_sampled_releases_agree_with_the_table_of_accountants(sigma, rate, rounds, delta, epsilon):
    found = account(claim(Gaussian(1 / sigma, rounds, rate)), delta)
    assert found.epsilon == pytest.approx(epsilon, rel=1e-4)
    assert (found.method, found.loose, found.mu) == (PLD, False, None)
    assert found.epsilon < rdp_epsilon((Gaussian(1 / sigma, rounds, rate),), delta)


def test_renyi_accounting_agrees_with_the_table():
    assert rdp_epsilon((Gaussian(1.0, 1000, 0.01),), 1e-5) == pytest.approx(2.1014, abs=5e-4)
    assert rdp_epsilon((Gaussian(1 / 1.1, 14_100, 0.004),), 1e-5) == pytest.approx(2.4205, abs=5e-4)


def test_sampling_at_nearly_full_rate_is_nearly_the_closed_form():
    found = account(claim(Gaussian(0.5, 4, 1 - 1e-9)), 1e-5)
    assert found.epsilon == pytest.approx(gdp_epsilon(1.0, 1e-5), rel=1e-3)
    replaced = account(claim(Gaussian(0.5, 4, 1 - 1e-9), adjacency=Adjacency.REPLACE_ONE), 1e-5)
    assert replaced.epsilon == pytest.approx(gdp_epsilon(1.0, 1e-5), rel=1e-3)


def test_beyond_the_budget_of_cells_a_loose_answer_says_so():
    sampled = claim(Gaussian(1.0, 1000, 0.01))
    found = account(sampled, 1e-5, cells=0)
    assert (found.method, found.loose) == (RDP, True)
    coarse = account(sampled, 1e-5, cells=20_000)
    assert (coarse.method, coarse.loose) == (COARSE, True)
    assert found.epsilon > coarse.epsilon > account(sampled, 1e-5).epsilon


def test_a_question_that_no_machine_could_answer_is_refused_by_counting():
    hopeless = tuple(Gaussian(2000.0 + i, 10, 0.3) for i in range(400))
    rows = [[event.mu, event.times, event.rate, event.copies] for event in hopeless]
    assert pld_worker.cells(rows, 1e-4) > 1e6 * pld_worker.MOST_CELLS
    assert accountant.ask_pld(hopeless, False, 1e-5, 100.0, pld_worker.MOST_CELLS) == {}


def test_the_worker_refines_its_cells_and_every_answer_is_an_upper_bound(capsys):
    pld_worker.measure(
        {"events": [[0.5, 30, 0.1, 1]], "replace": False, "delta": 1e-5, "interval": 0.05, "cells": 10**9}
    )
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["final"] for answer in answers] == [False] * (len(answers) - 1) + [True]
    assert len(answers) > 1
    assert all(answer["epsilon"] >= answers[-1]["epsilon"] for answer in answers)


def test_the_unamplified_form_wins_where_renyi_is_worse():
    found = account(claim(Gaussian(0.2, 4, 0.9999)), 1e-5, cells=0)
    assert found.method == UNAMPLIFIED
    assert found.epsilon == gdp_epsilon(0.4, 1e-5)


def test_tiny_delta_is_left_to_renyi():
    found = account(claim(Gaussian(0.25, 10_000, 0.00033)), 1.1e-18)
    assert found.epsilon == pytest.approx(0.1458, abs=5e-5)
    assert found.method == RDP


@pytest.mark.parametrize(
    ("z", "delta", "row"),
    [
        (0.5, 0.01, {1: 245.6, 2: 892, 3: 1939, 5: 5232, 8: 13171}),
        (1.0, 0.01, {1: 72.4, 2: 245.6, 3: 519, 5: 1365, 8: 3385}),
    ],
)
def test_a_client_of_v_sub_clients(z, delta, row):
    promised = claim(Gaussian(1 / z, 100), unit=Unit.SUB_CLIENT)
    for v, epsilon in row.items():
        owner = group(promised, v, Unit.CLIENT)
        assert owner.unit is Unit.CLIENT
        assert account(owner, delta).epsilon == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.slow
def test_groups_of_pure_and_of_sampled_units():
    assert account(group(claim(Pure(0.5, 4)), 3), 0.0).epsilon == 6.0
    one = claim(Gaussian(0.3, 50, 0.02))
    two = group(one, 2)
    assert two.events == (Gaussian(0.3, 50, 0.02, copies=2),)
    alone, grouped = account(one, 1e-5), account(two, 1e-5)
    together = account(claim(Gaussian(0.6, 50, 1 - 0.98**2)), 1e-5)  # both appear as soon as one does
    assert alone.epsilon < grouped.epsilon < together.epsilon
    assert account(two, 1e-5, cells=0).epsilon >= grouped.epsilon
    with pytest.raises(ValueError, match="0"):
        group(one, 0)


def test_replacing_a_client_doubles_what_a_clipped_sum_can_move():
    promised = claim(Gaussian(100.0, 20))
    other = replace_one(promised)
    assert other.adjacency is Adjacency.REPLACE_ONE
    assert account(promised, 1e-5).epsilon == pytest.approx(101_906, abs=1)
    assert account(other, 1e-5).epsilon == pytest.approx(403_814, abs=1)
    assert replace_one(other) is other
    assert replace_one(claim(Gaussian(1.0), Pure(0.5), replace_factor=1.5)).events == (Gaussian(1.5), Pure(1.0))


def test_replacing_under_sampling_lies_between_one_and_two_group_steps():
    promised = claim(Gaussian(1.0, 200, 0.01))
    added, replaced = account(promised, 1e-5), account(replace_one(promised), 1e-5)
    assert replaced.method == PLD
    assert added.epsilon < replaced.epsilon < account(replace_one(promised), 1e-5, cells=0).epsilon


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.floats(0.01, 50), st.integers(1, 500), st.integers(1, 500), st.floats(1e-9, 0.1))
def test_more_releases_cost_more(mu, rounds, more, delta):
    few = account(claim(Gaussian(mu, rounds)), delta)
    many = account(claim(Gaussian(mu, rounds + more)), delta)
    assert many.epsilon >= few.epsilon
    assert many.advantage >= few.advantage


def test_a_measured_bound_above_the_promise_is_a_violation():
    promise = account(claim(Gaussian(1.0)), 1e-5)
    assert violated(promise, 4.4, 1e-5)
    assert not violated(promise, 4.3, 1e-5)
    assert not violated(promise, 4.4, 1e-7)  # a smaller delta allows a larger epsilon
    pure = Guarantee(2.0, 0.0, None, PURE)
    assert violated(pure, 2.1, 0.0)
    assert violated(pure, 2.1, 1e-5)
    unknown = Guarantee(2.0, 1e-5, None, PLD)
    assert not violated(unknown, 2.1, 1e-6)


@pytest.mark.parametrize("delta", [-0.1, 1.0, math.nan])
def test_impossible_delta(delta):
    with pytest.raises(ValueError, match="delta"):
        account(claim(Pure(1.0)), delta)
