"""A planted trait: its effect is Cohen's d exactly, at 0 nothing changes, and only the class that is named moves."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from leakline.data import DATASETS, PARTITIONERS, PLANTS, Data, partition
from leakline.data.base import Task
from leakline.data.plant import TRAIT, Strength, strength
from leakline.errors import DataError
from leakline.study.check import check_study
from leakline.study.describe import describe
from leakline.study.spec import parse

STUDY = """
name = "planted"
seeds = [0, 1]
[data]
use = "motion"
subjects = 8
trials = 3
seconds = 5.0
server_test = 0.0
partition = { use = "by-column", column = "subject" }
PLANT
[model]
use = "motion-cnn"
channels = [2, 2]
hidden = [4, 4]
[training]
rounds = 1
"""


@pytest.fixture(scope="module")
def people() -> Task:
    dataset = DATASETS["motion"](subjects=8, trials=3, seconds=5.0, normalise="subject").load()
    return partition(dataset, PARTITIONERS["by-column"](column="subject"), server_test=0.0)


def strengths(task: Task, of: str) -> dict[str, float]:
    own = task.classes.index(of)
    return {c.name: strength(torch.cat([d.x[d.y == own] for d in (c.train, c.test)])) for c in task.clients}


def has(task: Task) -> dict[str, bool]:
    return {c.name: c.traits[TRAIT] for c in task.clients}


def test_strength_of_a_sine_about_any_mean_is_that_of_its_amplitude():
    t = torch.arange(100) * 2 * math.pi / 20
    x = (3.0 * torch.sin(t)).expand(2, 1, 100) + 7.0
    assert strength(x) == pytest.approx(math.log(3 / math.sqrt(2)), abs=1e-5)


@pytest.mark.parametrize("effect", [0.5, 2.0])
def test_the_effect_is_cohens_d_and_nothing_else_moves(people, effect):
    after = Strength(effect, "wlk").into(people, 3)
    before, chosen = strengths(people, "wlk"), has(after)
    scale = np.std(list(before.values()), ddof=1)
    assert sum(chosen.values()) == 4
    for name, value in strengths(after, "wlk").items():
        assert (value - before[name]) / scale == pytest.approx(effect if chosen[name] else 0, abs=1e-4)
    for was, now in zip(people.clients, after.clients, strict=True):
        for old, new in ((was.train, now.train), (was.test, now.test)):
            walks = old.y == people.classes.index("wlk")
            assert torch.equal(old.x[~walks], new.x[~walks])
            assert torch.equal(old.y, new.y)
        held = [torch.cat([d.x[d.y == people.classes.index("wlk")] for d in (c.train, c.test)]) for c in (was, now)]
        torch.testing.assert_close(held[0].mean((0, 2)), held[1].mean((0, 2)), atol=1e-5, rtol=0)


def test_without_an_effect_the_data_and_a_runs_hash_stay(people):
    after = Strength(0.0, "wlk").into(people, 3)
    assert describe(after) == describe(people)
    assert sum(has(after).values()) == 4


def test_each_seed_of_a_study_draws_its_own_half_of_the_same_split():
    plant = 'plant = { use = "strength", effect = 1.0, of = "wlk" }'
    one, two = (cell.federation().task for cell in parse(STUDY.replace("PLANT", plant)).cells)
    bare = parse(STUDY.replace("PLANT", "")).cells[0].federation().task
    assert has(one) != has(two)
    assert all(TRAIT not in c.traits for c in bare.clients)
    for task in (one, two):
        for was, now in zip(bare.clients, task.clients, strict=True):
            assert torch.equal(was.test.y, now.test.y)
            assert torch.equal(was.test.groups, now.test.groups)


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        ('{ use = "strength", effect = 1.0, of = "swim" }', "no class 'swim'"),
        ('{ use = "strength", effect = -1.0, of = "wlk" }', "effect must be at least 0"),
        ('{ use = "strength", effect = 1.0 }', "of"),
        ('{ use = "height", effect = 1.0 }', "strength"),
    ],
)
def test_what_cannot_be_planted_is_refused_before_training(plant, said):
    try:
        problems = check_study(parse(STUDY.replace("PLANT", f"plant = {plant}"))).problems
    except Exception as error:
        problems = [str(error)]
    assert any(said in problem for problem in problems)


def test_images_and_few_clients_have_no_movement(people):
    with pytest.raises(DataError, match="at least 4 clients"):
        Strength(1.0, "wlk").into(replace(people, clients=people.clients[:3]), 0)
    still = Data(torch.zeros(4, 2, 8), torch.full((4,), people.classes.index("wlk")))
    client = replace(people.clients[0], train=still, test=None)
    with pytest.raises(DataError, match="no signals of wlk that move"):
        Strength(1.0, "wlk").into(replace(people, clients=(client, *people.clients[1:])), 0)
    image = replace(client, train=Data(torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64)))
    with pytest.raises(DataError, match="channels x time"):
        Strength(1.0, "wlk").into(replace(people, clients=(image, *people.clients[1:])), 0)
    assert set(PLANTS) == {"strength"}
