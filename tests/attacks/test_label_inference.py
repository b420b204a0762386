"""Class shares from one update: the closed form, planted answers, intervals that hold, empty worlds, bad input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import tiny
from leakline.attacks import LabelInference
from leakline.attacks.class_shares import counts_of, learnt, on_simplex
from leakline.bench.training import Plan
from leakline.data.base import Client, Data
from leakline.defences import FedPer, GaussianRelease, Intermediaries
from leakline.errors import StackError, StudyError
from leakline.federation import Federation
from leakline.study.lab import Lab, examine
from leakline.study.store import Store
from leakline.study.train import train_run


def mixed(counts: tuple[int, ...], seed: int) -> Data:
    """So many examples of each class around its point."""
    y = np.repeat(np.arange(len(counts)), counts)
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(7).normal(size=(len(counts), tiny.FEATURES))
    x = centres[y] + 0.5 * rng.normal(size=(len(y), tiny.FEATURES))
    return Data(torch.tensor(x, dtype=torch.float32), torch.tensor(y))


MIXES = ((24, 3, 3), (2, 20, 8), (10, 10, 10), (0, 1, 29), (15, 15, 0), (5, 5, 20))


def hospitals(mixes=MIXES, **changes) -> Federation:
    clients = tuple(Client(f"hospital-{i}", mixed(mix, i + 1)) for i, mix in enumerate(mixes))
    task = tiny.task(clients=clients)
    task = replace(task, validation=mixed((40, 40, 40), 99))
    return Federation(task, tiny.perceptron, Plan(batch=0, learning_rate=0.1), rounds=1, noise="seeded").but(**changes)


def met(tmp_path, federation: Federation, **settings):
    attack = LabelInference(**settings)
    store = Store(tmp_path)
    run = train_run(store, federation, workers=1, keep=attack.wants(federation))
    return examine(attack, Lab(federation, store, run, 1))


def whole(readings, measure: str):
    (reading,) = [r for r in readings if r.measure == measure and r.client is None]
    return reading


def test_counts_are_whole_and_have_the_right_sum():
    assert counts_of(np.array([0.5, 0.3, 0.2]), 7).tolist() == [4, 2, 1]
    assert counts_of(np.array([1.0, 0.0]), 3).tolist() == [3, 0]
    rng = np.random.default_rng(0)
    for _ in range(50):
        shares = rng.dirichlet(np.ones(5))
        assert counts_of(shares, 31).sum() == 31
        assert np.abs(counts_of(shares, 31) - 31 * shares).max() < 1


def test_the_nearest_shares_are_those_of_a_quadratic_program():
    rng = np.random.default_rng(1)
    grid = np.array([(a, b, 1 - a - b) for a in np.linspace(0, 1, 201) for b in np.linspace(0, 1, 201) if a + b <= 1])
    for _ in range(20):
        point = rng.normal(size=3)
        shares = on_simplex(point)
        assert shares.sum() == pytest.approx(1)
        assert shares.min() >= 0
        assert np.square(shares - point).sum() <= np.square(grid - point).sum(1).min() + 1e-9


def test_a_line_is_learnt_exactly():
    rng = np.random.default_rng(2)
    shares, mean = rng.dirichlet(np.ones(4), 24), np.array([0.1, 0.2, 0.3, 0.4])
    bias = 0.05 * (shares - mean)  # one step: rate times (shares - mean prediction)
    true = np.array([0.7, 0.05, 0.05, 0.2])
    found = learnt({"bias": bias}, shares, np.arange(24) % 3, {"bias": 0.05 * (true - mean)}, 0.05)
    assert np.abs(found.shares - true).max() < 1e-5
    assert found.reach < 1e-4


def test_too_few_clients_make_no_interval():
    shares = np.random.default_rng(3).dirichlet(np.ones(2), 6)
    assert learnt({"bias": shares}, shares, np.arange(6) % 3, {"bias": shares[0]}, 0.05).reach == 1.0


def test_the_interval_holds_as_often_as_it_says_where_features_are_noisy():
    """200 clients at 90 %: fewer than 165 covered has a chance below 2e-3 if the coverage is 90 %."""
    rng, covered = np.random.default_rng(4), 0
    for _ in range(200):
        shares = rng.dirichlet(np.ones(3), 25)
        rows = shares + 0.1 * rng.normal(size=shares.shape)
        found = learnt({"bias": rows[:24]}, shares[:24], np.arange(24) % 3, {"bias": rows[24]}, 0.1)
        covered += np.abs(found.shares - shares[24]).max() <= found.reach
    assert covered >= 165


def test_one_step_gives_every_count_away(tmp_path):
    readings = met(tmp_path, hospitals())
    right = whole(readings, "shares-right")
    assert right.value > 0.99
    assert right.chance < 0.75
    assert right.n == len(MIXES)
    assert whole(readings, "counts-right").value >= 5 / 6
    assert whole(readings, "shares-held").value == 1.0
    each = [r for r in readings if r.client is not None]
    assert {r.client for r in each} == {f"hospital-{i}" for i in range(6)}
    assert all("truly" in r.note and r.chance is not None for r in each)


def test_several_epochs_give_shares_away_within_the_interval(tmp_path):
    readings = met(tmp_path, hospitals(plan=Plan(epochs=3, batch=5, learning_rate=0.1)))
    right = whole(readings, "shares-right")
    assert 1 - right.value < 0.25 * (1 - right.chance)
    assert whole(readings, "shares-held").value >= 5 / 6


def test_loud_noise_leaves_no_more_than_the_blind_guess(tmp_path):
    readings = met(tmp_path, hospitals(defences=(GaussianRelease(noise_multiplier=20.0, clip=0.1),)))
    right = whole(readings, "shares-right")
    assert right.value < right.chance + 0.1
    assert whole(readings, "shares-held").value >= 4 / 6  # the simulated clients add the noise as well


def test_a_clip_alone_protects_nobody(tmp_path):
    clipped = whole(
        met(tmp_path, hospitals(defences=(GaussianRelease(noise_multiplier=0.0, clip=1e-3),))), "shares-right"
    )
    assert 1 - clipped.value < 0.25 * (1 - clipped.chance)


@pytest.mark.parametrize(
    "defence", [FedPer(last=1), Intermediaries(noise_multiplier=1.0, clip=10.0, parts=3)], ids=["personal", "parts"]
)
def test_personal_last_layers_and_clients_in_parts_are_looked_at_too(tmp_path, defence):
    right = whole(met(tmp_path, hospitals(defences=(defence,))), "shares-right")
    assert right.value > right.chance


def test_what_cannot_work_is_refused_before_training():
    attack = LabelInference()
    with pytest.raises(StackError, match="single updates"):
        attack.check(hospitals(secure_aggregation="assumed"))
    with pytest.raises(StudyError, match="no client"):
        LabelInference(clients=("nobody",)).check(hospitals())
    with pytest.raises(StudyError, match="does not exist"):
        LabelInference(rounds=(1,)).check(hospitals())
    bare = hospitals()
    with pytest.raises(StudyError, match="server_validation"):
        attack.check(replace(bare, task=replace(bare.task, validation=mixed((40, 40, 1), 9))))
    with pytest.raises(StudyError, match="no examples"):
        attack.check(replace(bare, task=replace(bare.task, validation=None, test=None)))
    with pytest.raises(ValueError, match="worlds"):
        LabelInference(worlds=10)
