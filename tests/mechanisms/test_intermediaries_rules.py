"""The rules for v, their resting points, and the deal."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakline.mechanisms import (
    client_mu,
    code_parts,
    cosine_spread,
    deal,
    intermediary_ratio,
    median_bound,
    paper_parts,
    public_parts,
    shown_values,
)
from leakline.mechanisms.intermediaries import SHOWN
from leakline.privacy import gdp_epsilon

UNET, DENSENET = 7_757_153, 6_954_000
"""Values of paper 004's networks (the second to three digits: normalisation without scales or shifts)."""


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 2**32))
def test_a_deal_is_disjoint_complete_and_even(examples, parts, seed):
    if parts > examples:
        with pytest.raises(ValueError, match=f"{examples} examples cannot make {parts} parts"):
            deal(examples, parts, np.random.default_rng(seed))
        return
    piles = deal(examples, parts, np.random.default_rng(seed))
    assert len(piles) == parts
    assert sorted(int(i) for pile in piles for i in pile) == list(range(examples))
    assert max(map(len, piles)) - min(map(len, piles)) <= 1


def ratio_at(parts: float, clients: int, z: float, values: int) -> float:
    """Lambda if every update has length C: ||zeta|| = z C sqrt(d) / (N v), sum ||Delta|| = N v C."""
    return intermediary_ratio(z * math.sqrt(values) / (clients * parts), clients * parts)


@pytest.mark.parametrize(
    ("clients", "values", "levels", "expected"),
    [(20, DENSENET, (0.5, 1.0, 1.5), (8, 11, 14)), (6, UNET, (0.3, 0.5, 0.7), (11, 15, 18))],
)
def test_the_codes_rule_rests_where_the_fact_base_says_and_the_public_rule_is_that_point(
    clients, values, levels, expected
):
    for z, rest in zip(levels, expected, strict=True):
        assert public_parts(z, values, clients) == rest
        for parts in (1, 3, 40):  # from anywhere, in one step; floor may cost one where v was not a whole number
            assert code_parts(parts, clients, ratio_at(parts, clients, z, values)) == rest
            near = paper_parts(parts, clients, ratio_at(parts, clients, z, values))
            assert near == round(math.sqrt(z * math.sqrt(values) / clients))


@given(st.integers(1, 50), st.integers(1, 50))
def test_a_ratio_of_one_over_n_leaves_v_alone(parts, clients):
    # 1/N is not a binary number: 1 + 1e-12 keeps the floor on the right side.
    assert paper_parts(parts, clients, 1 / clients) == parts
    assert code_parts(parts, clients, (1 + 1e-12) / clients) == parts


def test_the_rules_split_more_the_more_noise_there_is_and_may_ask_for_none():
    assert [code_parts(2, 6, x) for x in (0.0, 0.01, 0.2, 1.0)] == [0, 0, 2, 4]
    assert [paper_parts(2, 6, x) for x in (0.0, 0.01, 0.2, 1.0)] == [0, 0, 2, 5]
    assert public_parts(0.0, 100, 5) == 1
    assert public_parts(1e-9, 1, 1000) == 1


def test_mu_of_a_client_adds_squares():
    assert client_mu([1] * 100, 0.5) == pytest.approx(20)
    assert client_mu([3, 4], 1.0) == pytest.approx(5)
    assert gdp_epsilon(client_mu([8] * 100, 1.5), 0.01) == pytest.approx(1545, abs=0.5)


def test_the_median_is_the_lower_one_capped_and_never_zero():
    assert median_bound([4.0, 1.0, 3.0, 2.0], 25) == float(torch.tensor([4.0, 1.0, 3.0, 2.0]).median()) == 2.0
    assert median_bound([100.0, 200.0, 300.0], 25) == 25
    assert median_bound([0.0, 0.0], 25) > 0


def test_the_spread_of_cosines_against_numpy_and_from_a_part_of_the_values():
    rng = np.random.default_rng(0)
    common = rng.normal(size=SHOWN * 2)
    rows = common + rng.normal(size=(6, 1)) * rng.normal(size=(6, SHOWN * 2))
    mean = rows.mean(0)
    cosines = rows @ mean / np.linalg.norm(rows, axis=1) / np.linalg.norm(mean)
    assert cosine_spread(torch.tensor(rows), torch.tensor(mean)) == pytest.approx(float(cosines.std()))
    shown = shown_values(rows.shape[1])
    # A cosine from k values is off by about 1/sqrt(k) = 0.002; 0.02 is ten times that.
    assert cosine_spread(torch.tensor(rows)[:, shown], torch.tensor(mean)[shown]) == pytest.approx(
        float(cosines.std()), abs=0.02
    )
    assert shown_values(100) == slice(None)
    assert cosine_spread(torch.zeros(3, 5), torch.ones(5)) == 0.0
