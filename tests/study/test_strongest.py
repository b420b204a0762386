"""`attacks = "strongest"`: the table's rows exist, the choice is the study's alone, every omission has its reason."""

from __future__ import annotations

import pytest

from leakline.attacks import MENU
from leakline.attacks.ranking import RANKING
from leakline.errors import StudyError
from leakline.study.check import check_study
from leakline.study.spec import parse

STUDY = """
name = "strong"
attacks = "strongest"
{more}
[data]
use = "digits"
limit = 240
clients = 4
client_test = 0.5
[model]
use = "mlp"
hidden = [8]
[training]
rounds = 2
batch = 0
[strategies]
fedavg = {{ use = "fedavg", weighting = "even" }}
[defences]
none = []
dp = [{{ use = "global-dp", noise_multiplier = 1.0, clip = 1.0 }}]
"""


def study(more: str = ""):
    return parse(STUDY.format(more=more))


def test_every_row_of_the_table_can_be_made_and_sits_where_it_says():
    for row in RANKING:
        attack = MENU[row.use](**row.settings)
        assert row.why
        if row.use != "audit":  # it takes each promise's own seat
            assert attack.seat == row.seat, row


def test_the_first_row_that_applies_and_fits_is_taken_for_each_seat_and_question():
    one = study("attack_minutes = 600")
    none, dp = (one.choice_on(cell) for cell in one.cells)
    assert {"audit", "membership-inference", "membership-inference-public"} <= set(none.attacks)
    assert "in-run-audit" not in none.attacks  # nothing is promised there
    assert "in-run-audit" in dp.attacks
    assert "loss-threshold" not in dp.attacks
    assert any("loss-threshold: weaker than public: membership-inference" in text for text in dp.left)
    assert any("membership-inference (on = updates): does not apply" in text for text in dp.left)  # 24 records each
    assert len(dp.taken) == len(dp.attacks)
    (audit,) = (text for text in dp.taken if ": audit" in text)
    assert "trains and searches nothing, so none of the minutes" in audit  # it said 0.0 minutes, and plays for longer
    assert one.choice_on(one.cells[1]) is dp  # chosen once


def test_too_little_time_leaves_the_cheap_ones_and_says_so():
    choice = study("attack_minutes = 1e-6").choice_on(study().cells[1])
    assert set(choice.attacks) == {"audit", "loss-threshold"}
    assert choice.minutes <= 1e-6
    assert any("are left (attack_minutes)" in text for text in choice.left)


def test_only_the_seats_that_are_named_attack():
    one = study('seats = ["public"]\nattack_minutes = 600')
    assert set(one.attacks_on(one.cells[0])) == {"membership-inference"}


def test_a_check_prints_what_is_taken_left_out_and_how_long_it_takes():
    checked = check_study(study("attack_minutes = 600"))
    assert not checked.problems
    told = "\n".join(checked.notes)
    assert "the strongest attacks" in told
    assert "takes server: audit" in told
    assert "leaves out public: loss-threshold" in told
    assert checked.bill.worlds > 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("seats = []", "at least one seat"),
        ('seats = ["nobody"]', "seats"),
        ("attack_minutes = 0", "attack_minutes"),
    ],
)
def test_wrong_settings_are_named(more, words):
    with pytest.raises(StudyError, match=words):
        study(more)


def test_seats_without_the_strongest_mean_nothing_and_are_refused():
    with pytest.raises(StudyError, match='is for attacks = "strongest"'):
        parse(STUDY.format(more="attack_minutes = 3").replace('attacks = "strongest"', 'attacks = ["audit"]'))


def test_a_scenario_lists_its_own():
    with pytest.raises(StudyError, match="a scenario lists its own attacks"):
        parse(STUDY.format(more="") + '[scenarios.a]\nattacks = "strongest"\n')
