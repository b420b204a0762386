"""Attribute inference: a planted trait is found, a shuffled one is not, and the attacker never sees the secret."""

from __future__ import annotations

import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import tiny
from leakline.attacks import MENU, AttributeInference
from leakline.attacks.attribute_inference import KnownUsers, _Scene
from leakline.attacks.update_features import FEATURES, SHRINK, along, over_rounds, rows_of
from leakline.attacks.users import Refit, discriminant, folds_over, forest, logistic, user_readings
from leakline.bench.training import Plan
from leakline.data import DATASETS, PARTITIONERS, Strength, partition
from leakline.data.base import Client, Data
from leakline.defences import FedPer
from leakline.errors import DataError, StudyError
from leakline.messages import Update
from leakline.models import MotionCNN
from leakline.study.check import check_study
from leakline.study.lab import Lab, examine
from leakline.study.spec import parse
from leakline.study.store import Store
from leakline.study.train import train_run
from leakline.weights import Entry, Layout, Weights, read

USERS = 16


def people(shift: float = 3.0, shuffle: int | None = None):
    """Users of whom every second has a trait that moves all of its data."""
    traits = np.arange(USERS) % 2 == 0
    told = traits if shuffle is None else np.random.default_rng(shuffle).permutation(traits)
    clients = []
    for i in range(USERS):
        parts = [tiny.blobs(n, 100 * (part + 1) + i) for part, n in enumerate((24, 12))]
        if traits[i]:
            parts = [Data(p.x + torch.tensor([shift, 0, 0, 0]), p.y) for p in parts]
        clients.append(Client(f"user-{i:02d}", *parts, traits={"tall": bool(told[i]), "same": "x", "age": float(i)}))
    return tiny.task(clients=tuple(clients))


def lab_for(tmp_path, **changes) -> Lab:
    base = {"task": people(), "model": tiny.perceptron, "plan": Plan(2, 8, 0.1), "rounds": 1}
    fed = tiny.federation(**(base | changes))
    store = Store(tmp_path)
    return Lab(fed, store, train_run(store, fed, workers=1), 1)


def attack(**changes) -> AttributeInference:
    return AttributeInference(**({"trait": "tall", "folds": 4, "repeats": 1, "trees": 25} | changes))


def value(readings, measure: str, **about):
    return next(r for r in readings if r.measure == measure and about == {key: r.about.get(key) for key in about})


@pytest.mark.parametrize("server", ["active", "passive", "paper"])
@pytest.mark.parametrize("start", ["final", "initial"])
def test_a_planted_trait_is_found(tmp_path, server, start):
    found = examine(attack(server=server, start=start), lab_for(tmp_path))
    assert value(found, "auc", rule="raw+logistic").value > 0.95
    assert value(found, "auc", rule="raw+forest").value > 0.9
    best = value(found, "auc", choice="best")
    assert best.value > 0.95
    assert best.chance == 0.5
    assert "p = 0.00" in best.note


def watched(tmp_path, rounds=3, **changes) -> Lab:
    """A lab whose federation kept every update."""
    fed = tiny.federation(
        **({"task": people(), "model": tiny.perceptron, "plan": Plan(2, 8, 0.1), "rounds": rounds} | changes)
    )
    store = Store(tmp_path)
    return Lab(fed, store, train_run(store, fed, workers=1, keep=attack(server="watching").wants(fed)), 1)


@pytest.mark.parametrize("defences", [(), (FedPer(last=1),)])
def test_a_server_that_watched_every_round_finds_a_planted_trait_and_trains_nothing(tmp_path, defences):
    lab = watched(tmp_path, defences=defences)
    asked = attack(server="watching", learners=("logistic", "discriminant"))
    assert asked.trains(lab.federation) == {}
    found = examine(asked, lab)
    assert value(found, "auc", rule="raw+logistic").value > 0.95
    assert value(found, "auc", rule="raw+discriminant").value > 0.9
    assert value(found, "auc", choice="best").about["p"] <= 0.01


def test_noise_of_single_rounds_averages_out():
    """100 rounds of unit noise leave 1/10 of it; 4,000 values: within 5 % but for one seed in 1e5."""
    rng = np.random.default_rng(0)
    found = over_rounds([{name: rng.normal(size=4000) for name in "abcdefgh"} for _ in range(100)])
    assert np.std(found["a"]) == pytest.approx(0.1, rel=0.05)  # each round's spread is 1 by construction


def test_answers_to_many_questions_are_those_to_each(tmp_path):
    rule = attack(server="watching", learners=("logistic",))
    asked = [(c.view, c.hints) for c in rule.challenges(watched(tmp_path))]
    assert [g.scores for g in rule.guesses(iter(asked), 1)] == [rule.guess(*one).scores for one in asked]


def test_a_watching_server_takes_rounds_as_they_were():
    for wrong in ({"epochs": (1,)}, {"start": "initial"}):
        with pytest.raises(ValueError, match="rounds as they were"):
            attack(server="watching", **wrong)


def test_rows_over_rounds_keep_what_lasts():
    """Rounds of different size, and clients that missed some: differences from the mean, by each round's spread."""
    rounds = [{"a": np.array([3.0]), "b": np.array([1.0])}, {"a": np.array([10.0]), "b": np.array([-10.0])}]
    rounds.append({"a": np.array([5.0]), "c": np.array([5.0])})
    found = over_rounds(rounds)
    assert found["a"] == pytest.approx(2 / 3)  # 1, 1 and a round in which nobody differs
    assert found["b"] == pytest.approx(-1)
    assert found["c"] == pytest.approx(0)


def test_looking_along_a_change_is_fishers_direction():
    rng = np.random.default_rng(0)
    x, change = rng.normal(size=(8, 5)), rng.normal(size=5)
    apart = x - x.mean(0)
    covariance = apart.T @ apart / 8
    shrunk = covariance + SHRINK * np.trace(covariance) / 8 * np.eye(5)
    found = along({str(i): row for i, row in enumerate(x)}, change)
    np.testing.assert_allclose(
        np.concatenate(list(found.values())), apart @ np.linalg.solve(shrunk, change), atol=1e-10
    )


@pytest.mark.parametrize("start", ["final", "initial"])
def test_a_simulating_server_is_told_what_the_trait_would_do_to_those_it_knows_alone(tmp_path, start):
    dataset = DATASETS["motion"](subjects=12, trials=3, seconds=5.0, normalise="subject").load()
    task = partition(dataset, PARTITIONERS["by-column"](column="subject"), server_test=0.0)
    lab = lab_for(tmp_path, task=Strength(4.0, "wlk").into(task, 0), model=MotionCNN((2, 2), (4, 4)))
    asked = attack(
        trait="planted", server="simulating", of="wlk", start=start, features=("raw",), learners=("logistic",)
    )
    for challenge in asked.challenges(lab):
        assert set(challenge.hints.changed) == set(challenge.hints.known)
        assert all(np.abs(row).max() > 0 for row in challenge.hints.changed.values())
    assert asked.trains(lab.federation).popitem()[1] == 2


def test_only_a_simulating_server_needs_to_know_what_the_trait_does():
    for wrong in ({"of": "wlk"}, {"server": "simulating"}, {"server": "simulating", "of": "wlk"}):
        with pytest.raises(ValueError, match="simulating"):
            attack(**wrong)
    with pytest.raises(DataError, match="no class 'swim'"):
        attack(server="simulating", of="swim", features=("raw",)).check(tiny.federation(task=people()))


def test_a_planted_trait_is_found_in_shared_layers_alone(tmp_path):
    found = examine(attack(server="passive"), lab_for(tmp_path, defences=(FedPer(last=1),)))
    assert value(found, "auc", choice="best").value > 0.95


def test_shuffled_traits_are_not_found(tmp_path):
    """Seeds are fixed; over seeds, the 95 % interval would miss one half in about one of twenty runs."""
    found = examine(attack(server="passive", repeats=3), lab_for(tmp_path, task=people(shuffle=3)))
    for name in ("raw+logistic", "raw+forest", "moments+forest"):
        area = value(found, "auc", rule=name)
        assert area.low <= 0.5 <= area.high
        assert area.n == USERS


def test_the_baseline_and_every_user_are_reported(tmp_path):
    found = examine(attack(server="passive", epochs=(1, 3)), lab_for(tmp_path))
    assert value(found, "right", rule="sorted+forest", epochs=1).chance == 0.5
    assert {r.client for r in found if r.label == "found-out (sorted+forest, epochs=3)"} == {
        f"user-{i:02d}" for i in range(USERS)
    }
    assert value(found, "tpr", rule="raw+forest", epochs=3, fpr=0.01).chance == 0.01
    assert value(found, "balanced-right", rule="raw+logistic", epochs=1).chance == 0.5


def test_the_attackers_half_has_no_way_to_the_secret(tmp_path):
    assert list(inspect.signature(AttributeInference.guess).parameters) == ["self", "view", "hints"]
    lab = lab_for(tmp_path)
    labels = attack().labels(lab.federation)
    seen = 0
    for challenge in attack(server="active").challenges(lab):
        assert isinstance(challenge.hints, KnownUsers)
        assert not set(challenge.hints.known) & set(challenge.hints.asked)
        assert set(challenge.secret.labels) == set(challenge.hints.asked)
        # Nobody that is asked for was aggregated: whom to aggregate would be the answer.
        assert not any(set(challenge.hints.asked) & used for used in challenge.hints.aggregated)
        assert all(labels[name] for used in challenge.hints.aggregated for name in used)
        seen += len(challenge.hints.asked)
    assert seen == USERS


def test_the_traits_of_those_asked_for_do_not_reach_the_attacker(tmp_path):
    """The same folds with the asked users' traits turned round: views, hints and guesses stay as they were."""
    one = next(attack(server="passive").challenges(lab_for(tmp_path)))
    task = people()
    turned = tuple(
        replace(c, traits={**c.traits, "tall": not c.traits["tall"]}) if c.name in one.hints.asked else c
        for c in task.clients
    )
    lab = lab_for(tmp_path, task=replace(task, clients=turned))
    view, _ = _Scene(lab, attack(server="passive"), 2).look(one.hints.known, np.random.default_rng(0))
    guesses = attack(server="passive", learners=("logistic",)).guess(view, one.hints)
    as_before = attack(server="passive", learners=("logistic",)).guess(one.view, one.hints)
    assert guesses.scores == as_before.scores
    for feature, refits in guesses.refits.items():
        np.testing.assert_array_equal(refits[0].hat, as_before.refits[feature][0].hat)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"trait": "same"}, "nothing to tell"),
        ({"trait": "weight"}, "has no trait 'weight'"),
        ({"trait": "age"}, "set positive"),
        ({"folds": 9}, "9 folds need as many"),
        ({"positive": "maybe"}, "no client has tall = maybe"),
    ],
)
def test_a_trait_that_cannot_be_asked_for_is_refused_before_training(settings, said):
    with pytest.raises(StudyError, match=said):
        attack(**settings).check(tiny.federation(task=people()))


def test_an_active_server_needs_data_to_tune_on():
    task = people()
    task = replace(task, clients=tuple(replace(c, test=None) for c in task.clients))
    with pytest.raises(StudyError, match="client_test"):
        attack().check(tiny.federation(task=task))
    attack(server="passive").check(tiny.federation(task=task))


def test_leakline_check_finds_a_trait_with_one_class_and_too_few_users():
    text = """
    name = "x"
    [data]
    use = "motion"
    subjects = {subjects}
    trials = 2
    seconds = 3.0
    partition = {{ use = "by-column", column = "subject" }}
    [model]
    use = "mlp"
    [training]
    rounds = 1
    [[attacks]]
    use = "attribute-inference"
    trait = "{trait}"
    """
    few = check_study(parse(text.format(subjects=6, trait="gender")))
    assert any("5 folds need as many" in p for p in few.problems)
    unknown = check_study(parse(text.format(subjects=6, trait="shoe size")))
    assert any("has no trait 'shoe size'" in p for p in unknown.problems)


# --- features -----------------------------------------------------------------------------------------------------


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv1d(2, 3, 3), nn.ReLU(), nn.Conv1d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6, 5), nn.ReLU(),
        nn.Linear(5, 3),
    )  # fmt: skip


def renumbered(model: nn.Module, seed: int) -> nn.Module:
    """The same function with its hidden channels and neurons in another order."""
    rng = np.random.default_rng(seed)
    a, b, c = (torch.as_tensor(rng.permutation(n)) for n in (3, 4, 5))
    other = network(0)
    with torch.no_grad():
        other[0].weight.copy_(model[0].weight[a])
        other[0].bias.copy_(model[0].bias[a])
        other[2].weight.copy_(model[2].weight[b][:, a])
        other[2].bias.copy_(model[2].bias[b])
        other[5].weight.copy_(model[5].weight.view(5, 4, 6)[c][:, b].flatten(1))
        other[5].bias.copy_(model[5].bias[c])
        other[7].weight.copy_(model[7].weight[:, c])
        other[7].bias.copy_(model[7].bias)
    return other


@pytest.mark.parametrize("feature", ["sorted", "moments"])
def test_features_do_not_depend_on_the_numbering_of_neurons(feature):
    sent, returned = network(1), network(2)
    x = torch.randn(3, 2, 10, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(returned(x), renumbered(returned, 5)(x), atol=1e-6)
    make = FEATURES[feature]
    plain = make(read(sent), read(returned) - read(sent), "7")
    moved_sent, moved = read(renumbered(sent, 5)), read(renumbered(returned, 5))
    np.testing.assert_allclose(make(moved_sent, moved - moved_sent, "7"), plain, atol=1e-6)
    raw = FEATURES["raw"]
    assert not np.allclose(
        raw(moved_sent, moved - moved_sent, "7"), raw(read(sent), read(returned) - read(sent), "7"), atol=1e-3
    )


def test_sorting_keeps_every_value():
    sent, returned = read(network(1)), read(network(2))
    delta = returned - sent
    np.testing.assert_allclose(np.sort(FEATURES["sorted"](sent, delta, "7")), np.sort(delta.vector.numpy()), atol=0)


# --- users --------------------------------------------------------------------------------------------------------


def test_folds_cover_every_user_once_and_share_both_classes_out():
    labels = {f"u{i}": i % 3 == 0 for i in range(24)}
    folds = folds_over(labels, 5, np.random.default_rng(0))
    assert sorted(name for fold in folds for name in fold) == sorted(labels)
    assert {sum(labels[n] for n in fold) for fold in folds} <= {1, 2}


def test_logistic_regression_in_the_span_of_the_rows_is_logistic_regression():
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    x, asked = rng.normal(size=(20, 7)), rng.normal(size=(5, 7))
    y = x[:, 0] + rng.normal(size=20) > 0
    scale = 1 / x.std(0) / np.sqrt(7)
    oracle = LogisticRegression(C=10.0, class_weight="balanced", max_iter=5000, tol=1e-10)
    oracle.fit((x - x.mean(0)) * scale, y)
    np.testing.assert_allclose(
        logistic(x, y, asked, 0, 0), oracle.predict_proba((asked - x.mean(0)) * scale)[:, 1], atol=1e-4
    )
    assert forest(x, y, asked, 0, 20).shape == (5,)
    np.testing.assert_array_equal(logistic(np.ones((4, 3)), np.arange(4) % 2 == 0, asked[:, :3], 0, 0), 0.5)


def test_the_discriminant_in_the_span_of_the_rows_is_fishers_where_users_are_many():
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    rng = np.random.default_rng(0)
    x, asked = rng.normal(size=(2000, 4)), rng.normal(size=(5, 4))
    y = x[:, 0] + rng.normal(size=2000) > 0
    oracle = LinearDiscriminantAnalysis(solver="lsqr", priors=[0.5, 0.5]).fit(x, y)  # nothing left to shrink
    np.testing.assert_allclose(discriminant(x, y, asked, 0, 0), oracle.predict_proba(asked)[:, 1], atol=0.02)
    np.testing.assert_array_equal(discriminant(np.ones((4, 3)), np.arange(4) % 2 == 0, asked[:, :3], 0, 0), 0.5)


def rules(rng, features, users):
    """Refits of features that know nothing."""
    half = (tuple(users[::2]), tuple(users[1::2]))
    return {
        name: [(0, Refit(asked, learn, rng.normal(size=(12, 12)))) for asked, learn in (half, half[::-1])]
        for name in features
    }


def test_statistics_of_scores_that_know_and_scores_that_do_not():
    rng = np.random.default_rng(1)
    labels = (np.arange(24) < 10)[None]
    users = [f"u{i}" for i in range(24)]
    scores = {"good": labels * 0.5 + 0.25 + rng.normal(0, 0.01, labels.shape), "blind": rng.random(labels.shape)}
    found = user_readings(scores, labels, users, rules(rng, scores, users), rng)
    good, blind = value(found, "auc", rule="good"), value(found, "auc", rule="blind")
    assert good.value == 1.0
    assert 0.6 < good.low < 1.0  # ten pairs that agree are no proof of perfection
    assert blind.low <= 0.5 <= blind.high
    assert value(found, "right", rule="good").chance == pytest.approx(14 / 24)
    assert value(found, "balanced-right", rule="good").value == 1.0


def test_the_largest_of_many_blind_scores_is_not_called_a_discovery():
    """Under no leak the p-value of the largest is uniform: below 0.001 in fewer than one in 1000 seeds."""
    rng = np.random.default_rng(5)
    labels = (np.arange(24) < 12)[None]
    users = [str(i) for i in range(24)]
    scores = {str(i): rng.random(labels.shape) for i in range(12)}
    best = value(user_readings(scores, labels, users, rules(rng, scores, users), rng), "auc", choice="best")
    assert best.value > 0.6
    assert best.about["p"] > 0.001


def test_it_is_on_the_menu():
    assert MENU["attribute-inference"] is AttributeInference
    for wrong in ({"folds": 1}, {"repeats": 0}, {"features": ()}, {"epochs": (0,)}):
        with pytest.raises(ValueError, match="needed|at least"):
            AttributeInference(**({"trait": "tall"} | wrong))


def test_a_client_whose_tuning_diverged_is_asked_about_like_any_other():
    layout = Layout((Entry("conv.weight", (2, 3)), Entry("out.weight", (2, 2))))
    sent = Weights.zeros(layout)
    wild = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30] + [1.0] * 6)
    updates = [Update("calm", Weights(layout, torch.ones(10)), 5, 1), Update("wild", Weights(layout, wild), 5, 1)]
    for feature in FEATURES:
        rows = rows_of(feature, sent, updates, "out")
        assert all(np.isfinite(row).all() and np.abs(row).max() <= 1e6 for row in rows.values())
