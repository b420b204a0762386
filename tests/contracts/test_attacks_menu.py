"""What every attack on the menu must be: settings, a seat, and an attacker's half without a way to the secrets."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from leakline.attacks import MENU
from leakline.privacy import Seat
from leakline.study.build import parameters
from leakline.study.describe import describe

NEEDED = {"attribute-inference": {"trait": "gender"}}
"""What an attack cannot do without."""


def make(name: str):
    return MENU[name](**NEEDED.get(name, {}))


@pytest.mark.parametrize("name", MENU)
def test_it_is_a_frozen_value_that_can_be_described(name):
    made = make(name)
    assert dataclasses.is_dataclass(made)
    assert made.__dataclass_params__.frozen
    assert made == make(name)
    assert describe(made) == describe(make(name))
    assert (inspect.getdoc(MENU[name]) or "").strip()
    assert parameters(MENU[name]) is not None


@pytest.mark.parametrize("name", MENU)
def test_it_says_from_which_seat_it_looks(name):
    assert make(name).seat in (*Seat, "promised")


@pytest.mark.parametrize("name", MENU)
def test_the_attacker_is_given_a_view_and_hints_and_nothing_else(name):
    made = make(name)
    assert list(inspect.signature(made.guess).parameters) == ["view", "hints"]
    assert list(inspect.signature(made.challenges).parameters) == ["lab"]
    assert list(inspect.signature(made.measure).parameters) == ["guesses", "secrets"]
