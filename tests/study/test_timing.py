"""What a round will take: played where that is soon done, else read off two short ones."""

from __future__ import annotations

import tiny
from leakline.bench.training import Plan
from leakline.defences import DpSgd, GlobalDP
from leakline.study import timing
from leakline.study.timing import trial_round


def test_a_round_without_end_has_a_price():
    endless = tiny.federation(plan=Plan(10**7, 4, 0.001), defences=(GlobalDP(noise_multiplier=0.01, clip=1.0),))
    took = trial_round(endless, workers=1, patience=1.0)
    assert took is not None
    assert took > 60  # 90 million steps


def test_a_short_round_has_the_steps_of_its_name_and_the_noise_of_a_whole_one():
    whole = tiny.federation(plan=Plan(50, 4, 0.01), defences=(DpSgd(epsilon=8.0, clip=1.0),))
    short = timing._shortened(whole, 4)
    assert {update.steps for round_ in tiny.run(short) for update in round_.updates} == {4}
    assert short.defences == whole.granted.defences
    assert timing._steps(short) == 12
    assert timing._steps(whole) == 450


def test_what_the_plan_already_cuts_shorter_stays_so():
    short = timing._shortened(tiny.federation(plan=Plan(50, 4, 0.01, max_steps=2)), 4)
    assert short.plan.max_steps == 2
