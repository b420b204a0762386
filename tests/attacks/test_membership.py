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
from leakline.attacks.regressed import WIDEST, shortened, without
from leakline.attacks.shadow_worlds import Asked, dealt
from leakline.attacks.tables import Look, history
from leakline.bench.training import Plan
from leakline.data.base import Client, Data
from leakline.defences import FedPer, GaussianRelease
from leakline.errors import StudyError
from leakline.federation import federate, initial_weights, keep_all
from leakline.leakage.likelihood import confidence, difference, lira_offline, lira_online, logit, rmia
from leakline.models.small import SmallCNN
from leakline.privacy import Seat
from leakline.settings import Cohort
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


def watched(tmp_path, **changes) -> Lab:
    """The same, with all updates kept."""
    lab = overfitted(tmp_path, **changes)
    return lab.variant(lab.federation, keep=keep_all)


ONE_STEP = {"plan": Plan(epochs=1, batch=0, learning_rate=0.1), "rounds": 3}
"""Each client sends one gradient of all its records in every round."""


def test_regression_finds_who_is_in_a_gradient_without_a_shadow(tmp_path):
    """All of a client's sixty records in a gradient of 387 values, three times: nearly all are told apart.

    Under secure aggregation the sum of three clients says a little less; seats that see no update have no such rule.
    """
    attack = RecordMembership(0, 4, "updates", scores=("loss", "regression"))
    server = examine(attack, watched(tmp_path / "single", **ONE_STEP))
    assert value(server, "auc (regression)").value > 0.95
    assert value(server, "auc (loss)").value < 0.7
    summed = watched(tmp_path / "sum", cohort=Cohort(secure_aggregation="assumed"), **ONE_STEP)
    assert value(examine(attack, summed), "auc (regression)").value > 0.85
    models = examine(replace(attack, on="models"), watched(tmp_path / "models", **ONE_STEP))
    assert not any("regression" in r.label for r in models)


def test_without_a_shadow_nothing_is_trained_and_the_rules_say_the_same(tmp_path):
    both = ("loss", "fedmia", "regression")
    lab = watched(tmp_path, **ONE_STEP)
    beside = {
        r.label: r.value for r in examine(RecordMembership(0, 4, "updates", scores=both), lab) if r.about.get("rule")
    }
    before = sorted(path.name for path in tmp_path.rglob("*"))
    attack = RecordMembership(0, 0, "updates", scores=both)
    assert {r.label: r.value for r in examine(attack, lab)} == beside
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert attack.trains(lab.federation) == {}
    assert attack.passes(lab.federation) > 0
    with pytest.raises(ValueError, match="or 0 with scores of"):
        RecordMembership(shadows=0)


def test_who_knows_the_rest_explains_it_away(tmp_path):
    """Twelve of a client's thirty records in question, in gradients of 387 values: the other eighteen are no noise."""
    lab = watched(tmp_path, **ONE_STEP)
    attack = RecordMembership(72, 0, "updates", scores=("regression",))
    found = {rest: value(examine(replace(attack, rest=rest), lab), "auc (regression)").value for rest in (False, True)}
    assert found[True] > 0.99 > found[False]
    known, rows = torch.randn(9, generator=torch.Generator().manual_seed(0)), torch.eye(9)[:4]
    members = torch.tensor([1.0, 0.0, 1.0, 1.0])
    sent = 0.7 * (known + members @ rows)
    left, went = without(known + rows.sum(0) / 2, rows, sent)
    torch.testing.assert_close(went, 0.7 * (members - 0.5) @ left)
    with pytest.raises(StudyError, match="rest = false"):
        replace(attack, rest=True).check(replace(lab.federation, defences=(FedPer(last=1),)))


def test_strangers_may_come_from_the_server(tmp_path):
    """Clients that train on all they hold: each of the server's records is asked about at one client, at most once."""
    members = tuple(Client(f"user-{i}", noisy(30, i)) for i in range(3))
    bare = replace(tiny.task(), clients=members, test=noisy(90, 9), validation=None)
    lab = watched(tmp_path, task=bare, **ONE_STEP)
    attack = RecordMembership(0, 0, "updates", scores=("loss", "regression"), others="server")
    with pytest.raises(StudyError, match="client_test"):
        replace(attack, others="clients").check(lab.federation)
    attack.check(lab.federation)
    found = examine(attack, lab)
    assert value(found, "auc (regression)").value > 0.95
    assert {r.n for r in found if r.measure == "tpr"} == {3 * 29}  # one record of each client is never asked about
    deals = [client.test for client in dealt(members, bare.test, np.random.default_rng(0))]
    assert sorted(x for part in deals for x in part.x[:, 0].tolist()) == sorted(bare.test.x[:, 0].tolist())
    grouped = replace(bare.test, groups=torch.arange(90) // 7)
    whose = [set(c.test.groups.tolist()) for c in dealt(members, grouped, np.random.default_rng(0))]
    assert sum(map(len, whose)) == len(set.union(*whose)) == 13


def test_regression_meets_noise_and_layers_that_stay(tmp_path):
    """Noise that drowns a gradient leaves nothing (120 records: 0.5 within 0.2 is four standard errors)."""
    attack = RecordMembership(120, 4, "updates", scores=("regression",))
    drowned = watched(tmp_path / "noise", defences=(GaussianRelease(50.0, 0.1),), **ONE_STEP)
    assert value(examine(attack, drowned), "auc (regression)").value == pytest.approx(0.5, abs=0.2)
    personal = watched(tmp_path / "personal", defences=(FedPer(last=1),), **ONE_STEP)
    (challenge,) = replace(attack, records=60).challenges(personal)
    scores = challenge.view.regressed
    assert len(scores) == len(challenge.secret.member)
    assert np.isfinite(scores).all()
    assert scores.std() > 0


def test_long_gradients_are_shortened_and_keep_their_products():
    """A sketch of 65,536 places: products of unit vectors are off by 0.4 % (one sd); five of them are allowed."""
    rows = torch.nn.functional.normalize(torch.randn(6, 300_000, generator=torch.Generator().manual_seed(0)), dim=1)
    rows[1] = torch.nn.functional.normalize(rows[0] + rows[1], dim=0)
    short = shortened(rows)
    assert short.shape == (6, WIDEST)
    assert (short @ short.T - rows @ rows.T).abs().max() < 5 / WIDEST**0.5
    assert shortened(short) is short


def test_every_seat_sees_more_than_the_one_before_it(tmp_path):
    """Fixed seeds: about 0.8 for the last model, 0.98 for the server; the toy remembers its records."""
    lab = watched(tmp_path)
    found = {on: examine(RecordMembership(120, 12, on), lab) for on in ("model", "updates")}
    loss = value(found["model"], "auc (loss)").value
    assert loss > 0.55
    for rule in ("learnt", "difference", "lira-online", "rmia"):
        assert value(found["model"], f"auc ({rule})").value > loss + 0.03, rule
    server = {rule: value(found["updates"], f"auc ({rule})").value for rule in ("learnt", "fedmia", "lira-online")}
    assert server["learnt"] > server["lira-online"] + 0.1
    assert server["fedmia"] > loss + 0.1
    assert value(found["updates"], "tpr at fpr=0.01 (learnt)").value > value(
        found["model"], "tpr at fpr=0.01 (learnt)").value  # fmt: skip
    exposed = [value(found[on], "patients-exposed per patient").value for on in ("model", "updates")]
    assert exposed[1] > 0.2 > exposed[0]
    assert not any(r.label == "auc (fedmia)" for r in found["model"])  # it needs updates


def test_shadow_federations_are_trained_once_for_all_seats(tmp_path):
    lab = overfitted(tmp_path, rounds=1, plan=Plan(1, 10, 0.1))
    lab = lab.variant(lab.federation, keep=keep_all)
    first = examine(RecordMembership(24, 4), lab)
    tables = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("watched/*")}
    assert len(tables) == 4
    assert examine(RecordMembership(24, 4), lab) == first
    examine(RecordMembership(24, 4, "updates"), lab)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("watched/*")} == tables
    assert len(list((tmp_path / "runs").iterdir())) == 1  # of the shadows nothing else is kept
    next(iter(tables)).write_bytes(b"damaged")
    assert examine(RecordMembership(24, 4), lab) == first


def test_workers_do_not_change_what_shadows_say(tmp_path):
    lab = overfitted(tmp_path / "one", rounds=1, plan=Plan(1, 10, 0.1))
    two = replace(overfitted(tmp_path / "two", rounds=1, plan=Plan(1, 10, 0.1)), workers=2)
    assert examine(RecordMembership(24, 4), lab) == examine(RecordMembership(24, 4), two)


def test_a_table_holds_the_losses_of_the_models_that_were_sent(tmp_path):
    lab = watched(tmp_path, rounds=2, plan=Plan(1, 10, 0.1))
    clients = lab.federation.task.clients
    look = Look(tuple(c.name for c in clients), tuple(c.train for c in clients), (0, 1), 2)
    past = [(i, lab.kept(i)) for i in (0, 1)]
    table = look(lab.federation, history(past, lab.final_weights()))
    bench, data = lab.federation.bench(), clients[1].train
    rows = slice(len(clients[0].train), len(clients[0].train) + len(data))

    def odds(weights):
        p = torch.softmax(bench.outputs(weights, data), 1)[torch.arange(len(data)), data.y].double()
        return torch.logit(p).numpy()

    sent, updates = lab.kept(1)
    own = {u.client: odds(sent + u.delta) for u in updates}
    np.testing.assert_allclose(table["models"][1][rows], odds(sent), atol=1e-4)
    np.testing.assert_allclose(table["models"][2][rows], odds(lab.final_weights()), atol=1e-4)
    np.testing.assert_allclose(table["own"][1][rows], own["user-1"], atol=1e-4)
    np.testing.assert_allclose(table["others"][1][rows], (own["user-0"] + own["user-2"]) / 2, atol=1e-4)
    fresh = look(lab.federation, federate(lab.federation, keep=look.keep))
    np.testing.assert_allclose(fresh["own"], table["own"], atol=1e-6)


def test_a_small_network_is_looked_at_with_examples_last_and_its_shadows_are_trained_so():
    """The oracle is torch's forward pass; attacked or shadow, a federation is looked at in one way."""
    shape = (1, 8, 8)
    clients = tuple(Client(f"user-{i}", tiny.blobs(70, i, shape), tiny.blobs(70, i + 9, shape)) for i in range(2))
    fed = tiny.federation(
        task=tiny.task(clients=clients, shape=shape), model=SmallCNN((3, 4)), plan=Plan(1, 10, 0.1), together="off"
    )
    asked = Asked.of(clients, 60, np.random.default_rng(0))
    (shadow,) = asked.worlds(fed, np.ones((1, asked.patients), dtype=bool), 2, "published")
    assert (fed.engine.convolutions, shadow.engine.convolutions) == ("torch", "batch-last")
    look = Look(asked.owners, asked.records, (0, 1))
    rounds = list(federate(fed, keep=look.keep))
    bench, data = fed.bench(), Data(torch.cat([d.x for d in asked.records]), torch.cat([d.y for d in asked.records]))
    p = torch.softmax(bench.outputs(rounds[1].result, data), 1)[torch.arange(len(data)), data.y].double()
    table = look(fed, rounds)
    np.testing.assert_allclose(table["models"][-1], torch.logit(p).numpy(), atol=1e-4)
    np.testing.assert_array_equal(look(shadow, rounds)["own"], table["own"])


def test_under_secure_aggregation_the_server_sees_the_sum(tmp_path):
    lab = watched(tmp_path, rounds=2, plan=Plan(1, 10, 0.1), cohort=Cohort(secure_aggregation="assumed"))
    clients = lab.federation.task.clients
    look = Look(tuple(c.name for c in clients), tuple(c.train for c in clients), (0, 1), 2)
    table = look(lab.federation, history([(i, lab.kept(i)) for i in (0, 1)], lab.final_weights()))
    np.testing.assert_allclose(table["own"][0], table["models"][1], atol=1e-4)  # plain averaging: the next model
    assert np.isnan(table["others"]).all()
    assert not any("fedmia" in r.label for r in examine(RecordMembership(24, 4, "updates"), lab))


def test_coins_decide_for_each_patient_and_nobody_is_cut_in_two(tmp_path):
    members = tuple(
        replace(c, train=replace(c.train, groups=torch.arange(30) // 3), test=replace(c.test, groups=torch.arange(30)))
        for c in overfitted(tmp_path, rounds=1, plan=Plan(1, 10, 0.1)).federation.task.clients
    )
    fed = overfitted(tmp_path / "groups", rounds=1, plan=Plan(1, 10, 0.1)).federation
    fed = replace(fed, task=replace(fed.task, clients=members, group="patient"))
    store = Store(tmp_path / "store")
    lab = Lab(fed, store, train_run(store, fed, workers=1), 1)
    asked = RecordMembership(72)._asked(fed)
    assert asked.known
    assert asked.patients == 3 * (4 + 12)
    coins = np.random.default_rng(0).random((6, asked.patients)) < 0.5
    for row, world in zip(coins, asked.worlds(fed, coins, 1, "published"), strict=True):
        assert torch.equal(initial_weights(world).vector, initial_weights(fed).vector)  # it was published
        for client, name in zip(world.task.clients, asked.owners, strict=True):
            mine = asked.owner == name
            held = {bytes(x.numpy()) for x in client.train.x}
            for record, there in zip(asked.records[asked.owners.index(name)].x, row[asked.patient[mine]], strict=True):
                assert (bytes(record.numpy()) in held) == there
            # One patient and whoever was not asked about always take part.
            assert len(client.train) >= 3
    each = asked.worlds(fed, coins, 1, "each")
    assert len({bytes(initial_weights(world).vector.numpy()) for world in (fed, *each)}) == 7
    found = examine(RecordMembership(72, 8), lab)
    assert value(found, "patients-right per patient").about["patients"] == 48
    assert value(found, "patients-right per patient").about["known"] == 1


def test_noise_that_swamps_the_model_hides_records(tmp_path):
    """Membership is random to the attacker: AUC within 0.15 of one half (3 sd), nobody exposed (1 in 20 or fewer)."""
    lab = watched(tmp_path, defences=(GaussianRelease(100.0, 1.0),), plan=Plan(1, 10, 0.1), rounds=1)
    found = examine(RecordMembership(records=120, shadows=12, on="updates"), lab)
    assert abs(value(found, "auc (learnt)").value - 0.5) < 0.15
    assert value(found, "patients-exposed per patient").value == 0


@pytest.mark.slow
def test_layers_that_stay_at_home_are_stood_in_for(tmp_path):
    lab = watched(tmp_path, defences=(FedPer(last=1),))
    found = examine(RecordMembership(120, 8, "updates"), lab)
    assert value(found, "auc (learnt)").value > 0.7


@pytest.mark.slow
def test_masks_are_attacked_by_the_loss_of_each_image(tmp_path):
    """Masks that are noise: to mark them right is to remember them."""
    rng = np.random.default_rng(0)

    def noise(n):
        x, y = rng.normal(0, 1, (n, 1, 4, 4)), rng.random((n, 1, 4, 4)) < 0.5
        return Data(torch.tensor(x, dtype=torch.float32), torch.tensor(y.astype(np.uint8)))

    members = tuple(Client(f"user-{i}", noise(20), noise(20)) for i in range(3))
    task = replace(tiny.task(), clients=members, test=None, validation=None, kind="segmentation")
    model = lambda: nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 1, 3, padding=1))  # noqa: E731
    lab = watched(tmp_path, task=task, model=model, plan=Plan(20, 5, 0.01, "adam"), rounds=2)
    found = examine(RecordMembership(120, 6, "updates"), lab)
    assert value(found, "auc (learnt)").value > 0.7


def test_what_cannot_be_asked_is_refused_before_training(tmp_path):
    fed = overfitted(tmp_path, rounds=1, plan=Plan(1, 10, 0.1)).federation
    with pytest.raises(StudyError, match="gives no probabilities"):
        RecordMembership(24).check(fed.but(loss="torch.nn.functional:mse_loss"))
    with pytest.raises(StudyError, match="layers in their place cannot be learnt"):
        RecordMembership(180).check(replace(fed, defences=(FedPer(last=1),)))
    with pytest.raises(StudyError, match="lower records"):
        RecordMembership(records=400).check(fed)
    bare = replace(fed, task=replace(fed.task, clients=tuple(replace(c, test=None) for c in fed.task.clients)))
    with pytest.raises(StudyError, match="client_test"):
        RecordMembership(records=24).check(bare)
    with pytest.raises(StudyError, match="client_test"):
        UserMembership(folds=1 + 1).check(tiny.federation(task=tiny.task((9,) * 4)))
    with pytest.raises(StudyError, match="fewer than 5 folds"):
        UserMembership().check(fed)
    with pytest.raises(ValueError, match="at least 4"):
        RecordMembership(shadows=3)
    said = " ".join(RecordMembership(120, shadows=8).remarks(fed))
    assert "each counts as a patient of its own" in said
    assert "set shadows to 12 or more" in said
    assert len(RecordMembership(120, shadows=12).remarks(fed)) == 1
    with pytest.raises(StudyError, match="not kept"):
        examine(RecordMembership(24, 4, "updates"), overfitted(tmp_path, rounds=1, plan=Plan(1, 10, 0.1)))


# --- the mathematics ----------------------------------------------------------------------------------------------


def test_lira_online_is_the_ratio_of_two_normal_densities_of_one_spread():
    rng = np.random.default_rng(0)
    shadows, taken = rng.normal(0, 1, (40, 6)), np.arange(40)[:, None] % 2 == np.zeros(6)
    shadows[taken] += 2
    q, p = 1 / (1 + np.exp(-rng.normal(1, 1, 6))), 1 / (1 + np.exp(-shadows))
    parts = [[shadows[mask[:, i], i] for i in range(6)] for mask in (taken, ~taken)]
    sd = np.sqrt(sum(((r - r.mean()) ** 2).sum() for rows in parts for r in rows) / (40 * 6 - 12))
    inside, outside = (norm.logpdf(logit(q), [r.mean() for r in rows], sd) for rows in parts)
    np.testing.assert_allclose(lira_online(q, p, taken), inside - outside, rtol=1e-3)
    middle = [(a.mean() + b.mean()) / 2 for a, b in zip(*parts, strict=True)]
    np.testing.assert_allclose(difference(q, p, taken), logit(q) - middle, rtol=1e-6)


def test_lira_offline_does_not_look_at_models_that_have_the_record():
    rng = np.random.default_rng(0)
    p, q = rng.uniform(0.1, 0.9, (8, 5)), rng.uniform(0.1, 0.9, 5)
    taken = np.tile(np.arange(8)[:, None] < 4, (1, 5))
    changed = np.where(taken, 0.5, p)
    np.testing.assert_array_equal(lira_offline(q, p, taken), lira_offline(q, changed, taken))


def test_rmia_ranks_as_the_share_of_the_population_does_and_has_no_ties():
    """Zarifzadeh et al., Eq. 4: the share of z with ratio(x) >= gamma ratio(z)."""
    rng = np.random.default_rng(0)
    taken, p, q = rng.random((8, 50)) < 0.5, rng.uniform(0.05, 0.95, (8, 50)), rng.uniform(0.05, 0.95, 50)
    ratio = q / np.array([(p[taken[:, i], i].mean() + p[~taken[:, i], i].mean()) / 2 for i in range(50)])
    scores = rmia(q, p, taken)
    np.testing.assert_allclose(scores, np.log(ratio), rtol=1e-6)
    others = rng.uniform(0.2, 2, 20)
    for gamma in (1.0, 2.0):
        share = (ratio[:, None] >= gamma * others).mean(1)
        order = np.argsort(scores)
        assert (np.diff(share[order]) >= 0).all()
        assert len(set(scores)) == 50 > len(set(share))


@given(st.floats(0, 50))
def test_confidence_inverts_cross_entropy(loss):
    p = float(confidence(loss))
    assert 0 < p < 1
    if 1e-5 < loss < 13:
        assert -np.log(p) == pytest.approx(loss, rel=1e-6)
    assert np.isfinite(logit(p))


def test_a_record_that_is_always_in_is_compared_with_how_far_others_move():
    p = 1 / (1 + np.exp(-np.array([[2.0, 5.0], [0.0, 5.0]])))
    found = difference([0.5, 0.5], p, np.array([[True, True], [False, True]]))
    np.testing.assert_allclose(found, [-1.0, -4.0], rtol=1e-6)
    with pytest.raises(ValueError, match="on both sides"):
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


def test_where_everybody_holds_trained_layers_only_taking_part_is_left(tmp_path):
    """The control: the same users who are plain when strangers hold fresh layers are not when nobody does (seeded)."""
    lab = user_lab(tmp_path, defences=(FedPer(last=1),), plan=Plan(20, 10, 0.2))
    settings = {"folds": 4, "worlds": 3, "trees": 5, "features": ("raw",), "learners": ("logistic",)}
    fresh, trained = (
        value(examine(UserMembership(**settings, others=o), lab), "auc (best)") for o in ("fresh", "trained")
    )
    assert fresh.value > 0.9
    assert trained.low <= 0.5 <= trained.high
    with pytest.raises(ValueError, match="others"):
        UserMembership(others="away")


def test_without_private_layers_the_control_changes_nothing(tmp_path):
    lab = user_lab(tmp_path)
    views = [
        [c.view.updates[0] for c in UserMembership(folds=4, worlds=1, trees=5, others=o).challenges(lab)]
        for o in ("fresh", "trained")
    ]
    for mine, theirs in zip(views[0][0], views[1][0], strict=True):
        assert torch.equal(mine.delta.vector, theirs.delta.vector)


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


def test_every_seat_is_named(tmp_path):
    seats = [RecordMembership(on=on).seat for on in ("model", "models", "updates")]
    assert seats == [Seat.PUBLIC, Seat.CLIENT, Seat.SERVER]
