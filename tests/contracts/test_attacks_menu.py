"""What every attack on the menu must be: settings, a seat, and an attacker's half without a way to the secrets."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math

import pytest

from leakline.attacks import MENU, Attack
from leakline.measures import MEASURES
from leakline.privacy import Seat
from leakline.readings import Reading, too_little
from leakline.study.build import parameters
from leakline.study.describe import describe
from leakline.study.lab import Lab, examine
from leakline.study.store import Store
from leakline.study.train import train_run
from menu_examples import ATTACKS, world

NEEDED = {"attribute-inference": {"trait": "gender"}}
"""What an attack cannot do without."""


def make(name: str):
    return MENU[name](**NEEDED.get(name, {}))


@pytest.fixture(scope="module")
def met(tmp_path_factory):
    """What every attack on the menu measures of a federation that suits it."""

    def one(name: str) -> tuple[Lab, list[Reading]]:
        attack, federation = MENU[name](**ATTACKS[name]), world(name)
        store = Store(tmp_path_factory.mktemp(name))
        run = train_run(store, federation, workers=1, keep=attack.wants(federation))
        lab = Lab(federation, store, run, 1)
        return lab, examine(attack, lab)

    return {name: one(name) for name in MENU}


@pytest.mark.parametrize("name", MENU)
def test_all_that_it_measures_is_described_and_nothing_is_hidden_in_names(name, met):
    _, readings = met[name]
    assert readings
    for reading in readings:
        measure = MEASURES[reading.measure]  # a bare word on the one list
        assert measure.cut(reading.value) == pytest.approx(reading.value)
        assert all(isinstance(v, str) or math.isfinite(v) for v in reading.about.values())
        assert measure.chance in (None, reading.chance)
        assert Reading.of(json.loads(json.dumps(reading.line()))) == reading
    named = [(r.label, r.client, r.round) for r in readings]
    assert len(set(named)) == len(named)  # a name tells one figure from another


def test_what_an_inversion_made_stands_under_its_name_and_nothing_else_is_written(met):
    lab, _ = met["gradient-inversion"]
    folder = lab.run.media(lab.attack)
    assert sorted(p.name for p in (folder / "round-0000").iterdir()) == ["a", "b"]
    for listed in folder.glob("*/*/media.json"):
        assert all((listed.parent / entry["file"]).is_file() for entry in json.loads(listed.read_text()))
    others = [
        other
        for name, (other, _) in met.items()
        if name not in ("gradient-inversion", "imprint", "membership-inference")
    ]
    assert not any((other.run.path / "media").exists() for other in others)


@pytest.mark.parametrize("name", MENU)
def test_it_is_an_attack_with_answers_to_every_question(name):
    made, federation = MENU[name](**ATTACKS[name]), world(name)
    assert isinstance(made, Attack)
    made.check(federation)
    assert isinstance(made.wants(federation)(0, "a"), bool)
    assert all(rounds >= 0 for rounds in made.trains(federation).values())
    assert made.passes(federation) >= 0
    assert 0 < made.usual(federation) <= 1
    for sample in made.samples(federation):
        assert 0 < sample.share <= 1
        sample.do(1)
    assert made.guesses(iter(()), 1) == []


@pytest.mark.parametrize("name", MENU)
def test_it_reports_its_effort_and_has_enough_of_it_by_default(name, met):
    """Settings with which it is over in a moment are too little for every attack whose strength is work."""
    federation = world(name)
    usual, small = make(name).effort(federation), MENU[name](**ATTACKS[name]).effort(federation)
    _, readings = met[name]
    if usual is None or small is None:
        assert usual is small is None
        assert not any("effort" in r.about for r in readings)
        return
    assert usual.given >= usual.needed == small.needed > small.given
    assert usual.of == small.of
    assert all(too_little(r.about) == f"given {small.given:g} {small.of} where it is known to need {small.needed:,g}"
               for r in readings)  # fmt: skip
    assert not too_little(usual.about)


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
