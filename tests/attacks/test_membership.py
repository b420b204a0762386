"""Who took part: records by loss, LiRA and RMIA, users by their updates; vocabulary shared with client-inference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from torch import nn

import tiny
from leakline.attacks import MENU, RecordMembership, UserMembership
from leakline.bench.training import Plan
from leakline.data.base import Client, Data
from leakline.defences import FedPer, GaussianRelease
from leakline.errors import StudyError
from leakline.leakage.likelihood import confidence, lira_offline, lira_online, logit, rmia
from leakline.privacy import Seat
from leakline.study.lab import Lab, examine
from leakline.study.store import Store
from leakline.study.train import train_run


def noisy(n: int, seed: int) -> Data:
    """Records whose labels are partly chance: to fit them is to remember them."""
    data = tiny.blobs(n, seed, (12,))
    rng = np.random.default_rng([seed, 1])
    y = data.y.clone()
    wrong = torch.as_tensor(rng.random(n) < 0.4)
    y[wrong] = torch.as_tensor(rng.integers(0, 3, n))[wrong]
    return Data(data.x + torch.as_tensor(rng.normal(0, 1.5, data.x.shape), dtype=torch.float32), y)


def overfitted(tmp_path, clients=3, train=30, **changes) -> Lab:
    """A federation that remembers its records."""
    members = tuple(Client(f"user-{i}", noisy(train, i), noisy(30, 50 + i)) for i in range(clients))
    base = {
        "task": replace(tiny.task(), clients=members, test=None, validation=None),
        "model": lambda: nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 3)),
        "plan": Plan(epochs=15, batch=10, learning_rate=0.02, optimiser="adam"), "rounds": 3,
    }  # fmt: skip
    fed = tiny.federation(**(base | changes))
    store = Store(tmp_path)
    return Lab(fed, store, train_run(store, fed, workers=1), 1)


def value(readings, measure):
    return next(r for r in readings if r.label == measure)


def test_lira_beats_the_loss_threshold_on_an_overfitted_model(tmp_path):
    lab = overfitted(tmp_path)
    found = examine(RecordMembership(records=120, shadows=12), lab)
    loss, online, offline, ratio = (
        value(found, f"auc ({n})").value for n in ("loss", "lira-online", "lira-offline", "rmia")
    )
    assert loss > 0.55
    assert online > loss + 0.03
    assert offline > loss
    assert ratio > 0.5
    assert value(found, "tpr at fpr=0.01 (lira-online)").chance == 0.01


def test_shadow_federations_are_stored_and_used_again(tmp_path):
    lab = overfitted(tmp_path, rounds=1, plan=Plan(1, 10, 0.1))
    attack = RecordMembership(records=24, shadows=4)
    first = examine(attack, lab)
    runs = {p: (p / "end.json").stat().st_mtime_ns for p in (tmp_path / "runs").iterdir()}
    assert len(runs) == 5
    assert examine(attack, lab) == first
    assert {p: (p / "end.json").stat().st_mtime_ns for p in (tmp_path / "runs").iterdir()} == runs


def test_shadow_worlds_hold_every_record_in_exactly_half_of_them_and_keep_sizes(tmp_path):
    lab = overfitted(tmp_path, rounds=1, plan=Plan(1, 10, 0.1))
    (challenge,) = RecordMembership(records=24, shadows=4).challenges(lab)
    assert (challenge.hints.taken.sum(0) == 2).all()
    assert challenge.secret.member.sum() == 12
    assert len(challenge.hints.shadows) == 4
    assert len(challenge.hints.records) == 24
    # The attacker's population was trained on by nobody and holds no record in question.
    asked = {bytes(row.numpy()) for row in challenge.hints.records.x}
    others = {bytes(row.numpy()) for row in challenge.hints.population.x}
    trained = {bytes(row.numpy()) for c in lab.federation.task.clients for row in c.train.x}
    assert not asked & others
    assert not trained & others


def test_updates_tell_more_about_records_than_the_model_does(tmp_path):
    lab = overfitted(tmp_path, clients=4, train=20)
    settings = {"records": 80, "shadows": 4, "scores": ("loss",)}
    model, update = (
        value(examine(RecordMembership(on=on, **settings), lab), "auc (loss)").value for on in ("model", "update")
    )
    assert update > model


def test_noise_that_swamps_the_model_hides_records(tmp_path):
    """The 95 % interval over three clients is loose; the seed is fixed and noise is 1000 times the signal."""
    lab = overfitted(tmp_path, defences=(GaussianRelease(100.0, 1.0),), plan=Plan(1, 10, 0.1), rounds=1)
    found = value(examine(RecordMembership(records=120, shadows=4), lab), "auc (lira-online)")
    assert abs(found.value - 0.5) < 0.15


def test_what_cannot_be_asked_is_refused_before_training(tmp_path):
    fed = overfitted(tmp_path, rounds=1, plan=Plan(1, 10, 0.1)).federation
    with pytest.raises(StudyError, match="whole model"):
        RecordMembership().check(replace(fed, defences=(FedPer(last=1),)))
    with pytest.raises(StudyError, match="lower records"):
        RecordMembership(records=400).check(fed)
    bare = replace(fed, task=replace(fed.task, clients=tuple(replace(c, test=None) for c in fed.task.clients)))
    with pytest.raises(StudyError, match="client_test"):
        RecordMembership(records=24).check(bare)
    with pytest.raises(StudyError, match="client_test"):
        UserMembership(folds=1 + 1).check(tiny.federation(task=tiny.task((9,) * 4)))
    with pytest.raises(StudyError, match="fewer than 5 folds"):
        UserMembership().check(fed)
    with pytest.raises(ValueError, match="even"):
        RecordMembership(shadows=5)


# --- the mathematics ----------------------------------------------------------------------------------------------


def test_lira_online_is_the_ratio_of_two_normal_densities():
    rng = np.random.default_rng(0)
    shadows, taken = rng.normal(0, 1, (40, 6)), np.arange(40)[:, None] % 2 == np.zeros(6)
    shadows[taken] += 2
    q, p = 1 / (1 + np.exp(-rng.normal(1, 1, 6))), 1 / (1 + np.exp(-shadows))

    def density(mask):
        rows = [shadows[mask[:, i], i] for i in range(6)]
        sd = np.sqrt(sum(((r - r.mean()) ** 2).sum() for r in rows) / (sum(len(r) for r in rows) - 6))
        return norm.logpdf(logit(q), [r.mean() for r in rows], sd)

    np.testing.assert_allclose(lira_online(q, p, taken), density(taken) - density(~taken), rtol=1e-3)


def test_lira_offline_does_not_look_at_models_that_have_the_record():
    rng = np.random.default_rng(0)
    p, q = rng.uniform(0.1, 0.9, (8, 5)), rng.uniform(0.1, 0.9, 5)
    taken = np.tile(np.arange(8)[:, None] < 4, (1, 5))
    changed = np.where(taken, 0.5, p)
    np.testing.assert_array_equal(lira_offline(q, p, taken), lira_offline(q, changed, taken))


def test_rmia_counts_the_population_beaten_by_the_ratio():
    taken = np.array([[True], [False]])
    p = np.array([[0.8], [0.4]])  # reference 0.6
    population, q_population = np.array([[0.5, 0.5, 0.5]] * 2), np.array([0.25, 0.5, 1.0])  # ratios 0.5, 1, 2
    for q, beaten in ((0.3, 0), (0.61, 1), (1.0, 1)):  # own ratio 0.5, 1.02, 1.67
        assert rmia([q], p, taken, q_population, population)[0] == pytest.approx(beaten / 3)
    assert rmia([0.61], p, taken, q_population, population, gamma=1.0)[0] == pytest.approx(2 / 3)


@given(st.floats(0, 50))
def test_confidence_inverts_cross_entropy(loss):
    p = float(confidence(loss))
    assert 0 < p < 1
    if 1e-5 < loss < 13:
        assert -np.log(p) == pytest.approx(loss, rel=1e-6)
    assert np.isfinite(logit(p))


def test_a_record_that_is_always_in_is_an_error():
    with pytest.raises(ValueError, match="on one side"):
        lira_online([0.5], [[0.5], [0.6]], np.array([[True], [True]]))


# --- users --------------------------------------------------------------------------------------------------------


def strangers(habit: float, users: int = 16):
    """Users who each move in a way of their own."""
    clients = []
    for i in range(users):
        own = torch.tensor(np.random.default_rng([3, i]).normal(0, habit, (3, 4)), dtype=torch.float32)
        parts = [tiny.blobs(n, 10 * i + k) for k, n in enumerate((30, 30))]
        clients.append(Client(f"user-{i:02d}", *[Data(p.x + own[p.y], p.y) for p in parts]))
    return replace(tiny.task(), clients=tuple(clients))


def user_lab(tmp_path, **changes) -> Lab:
    base = {"task": strangers(0.0), "model": tiny.perceptron, "plan": Plan(3, 10, 0.1), "rounds": 1}
    fed = tiny.federation(**(base | changes))
    store = Store(tmp_path)
    return Lab(fed, store, train_run(store, fed, workers=1), 1)


def test_users_who_kept_what_they_learnt_are_recognised(tmp_path):
    """Personal layers trained in the round stay with whoever took part, and bend its next update."""
    lab = user_lab(tmp_path, defences=(FedPer(last=1),), plan=Plan(20, 10, 0.2))
    found = examine(UserMembership(folds=4, worlds=3, trees=25), lab)
    assert value(found, "auc (best)").value > 0.9


def test_users_are_not_told_apart_when_one_model_tells_nothing(tmp_path):
    """All users alike, small steps: the interval over users holds one half (fixed seed; 1 in 20 over seeds)."""
    lab = user_lab(tmp_path, plan=Plan(1, 10, 0.01))
    found = examine(UserMembership(folds=4, worlds=4, trees=25, features=("raw",)), lab)
    for name in ("raw+forest", "raw+logistic"):
        area = value(found, f"auc ({name})")
        assert area.low <= 0.5 <= area.high
        assert area.n == 16


def test_half_of_the_users_take_part_and_sides_change_between_worlds(tmp_path):
    lab = user_lab(tmp_path)
    sides: dict[int, dict[str, bool]] = {}
    for challenge in UserMembership(folds=4, worlds=3, trees=5).challenges(lab):
        sides.setdefault(challenge.secret.world, {}).update(challenge.secret.present)
        assert not set(challenge.hints.known) & set(challenge.hints.asked)
    assert all(sum(side.values()) == 8 and len(side) == 16 for side in sides.values())
    assert sides[0] != sides[1]


def test_one_vocabulary_for_who_took_part():
    from leakline.attacks.client_inference import TrueWorld
    from leakline.attacks.user_membership import TruePresence

    assert "present" in TrueWorld.__dataclass_fields__
    assert "present" in TruePresence.__dataclass_fields__
    for name in ("membership-inference", "user-membership", "client-inference", "loss-threshold"):
        assert name in MENU


def test_updates_are_seen_from_the_servers_seat_and_not_under_secure_aggregation(tmp_path):
    federation = overfitted(tmp_path).federation
    assert RecordMembership().seat is Seat.PUBLIC
    assert RecordMembership(on="update").seat is Seat.SERVER
    summed = federation.but(secure_aggregation="assumed")
    RecordMembership(records=12).check(summed)
    with pytest.raises(StudyError, match="nobody sees single updates"):
        RecordMembership(records=12, on="update").check(summed)
