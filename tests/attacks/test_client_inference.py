"""Client inference: the paper's arithmetic, a planted leak, shuffled secrets, matched worlds, bad input."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from leakline.attacks import MENU, ClientInference
from leakline.attacks.client_inference import PresenceScores, TrueWorld, difference
from leakline.attacks.presence import Scores
from leakline.attacks.worlds import alone, bare, pairs, replayable, without
from leakline.bench.training import Bench, Plan
from leakline.data.base import Client, Data, Task
from leakline.defences import GlobalDP, MetricPrivacy
from leakline.errors import StudyError
from leakline.federation import Federation, initial_weights, keep_all
from leakline.messages import Update
from leakline.readings import Reading
from leakline.strategies import Combine, Strategy, fedavg, fedmedian, fedopt, fedprox
from leakline.study.describe import description, key_of
from leakline.study.lab import Lab, examine
from leakline.study.store import Store
from leakline.study.train import train_run
from leakline.weights import Weights


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2))


def some_data(rng: np.random.Generator, n: int, flip: bool = False) -> Data:
    x = rng.normal(size=(n, 8)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    return Data(torch.from_numpy(x), torch.from_numpy(1 - y if flip else y))


def federation(*defences: GlobalDP, strategy: Strategy | None = None, n: int = 3, **more: object) -> Federation:
    """The last client has the labels the other way round: whether it is there shows."""
    rng = np.random.default_rng(0)
    clients = tuple(Client(f"c{i}", some_data(rng, 40, i == n - 1), some_data(rng, 12, i == n - 1)) for i in range(n))
    task = Task(clients, some_data(rng, 30), some_data(rng, 30), ("a", "b"))
    plan = Plan(epochs=3, batch=10, learning_rate=0.3)
    values: dict[str, object] = {"rounds": 1, "noise": "seeded", **more}
    return Federation(task, net, plan, strategy or fedavg(), defences).but(**values)


def lab_of(world: Federation, folder: Path) -> Lab:
    store = Store(folder)
    return Lab(world, store, train_run(store, world, workers=1), workers=1)


def value(readings: Iterable[Reading], measure: str) -> Reading:
    return next(r for r in readings if r.label == measure)


# --- the paper's arithmetic ------------------------------------------------------------------------------------

PRINTED = {
    "9": ((1.032, 3.603, 1.135), (1.182, 4.848, 1.506), (12.719, 25.679, 24.631)),
    "10": ((0.595, 0.743, 0.756), (0.599, 0.807, 0.853), (0.598, 7.936, 11.320)),
    "D.13": ((0.897, 0.969, 0.945), (1.118, 1.115, 1.211), (19.782, 13.105, 21.965)),
    "D.14": ((1.068, 2.079, 1.393), (1.188, 2.911, 1.880), (10.129, 28.587, 25.888)),
    "D.15": ((1.032, 1.846, 1.163), (1.182, 2.681, 1.548), (12.719, 31.173, 24.820)),
    "D.16": ((0.795, 0.949, 0.815), (0.895, 1.170, 0.957), (11.150, 18.861, 14.888)),
}


@pytest.mark.parametrize("table", PRINTED)
def test_the_statistic_reproduces_the_printed_percentages(table: str) -> None:
    """Losses are printed to three digits: half a unit in either moves the percentage by 0.05 (1 + l_a / l_s) / l_s."""
    for aggregated, shadow, percent in zip(*PRINTED[table], strict=True):
        slack = 0.05 * (1 + aggregated / shadow) / shadow + 5e-4
        assert difference(shadow, aggregated) == pytest.approx(percent, abs=slack)


# --- what it must find, and what it must not ---------------------------------------------------------------------


@dataclass(frozen=True)
class OnlyTheTarget(Combine):
    """A planted leak: the published model is the target's own, whenever it takes part."""

    def __call__(self, updates: Iterable[Update]) -> Weights:
        held = {u.client: u.delta for u in updates}
        return held.get("c2") or held["c0"]


def test_a_planted_leak_is_found_for_certain(tmp_path: Path) -> None:
    attack = ClientInference(worlds=10, shadow=0.25, scores=("loss", "own", "paper", "direction"))
    readings = examine(attack, lab_of(federation(strategy=Strategy(OnlyTheTarget())), tmp_path))
    for name in ("loss, inside", "own, inside", "loss, disjoint", "direction, inside"):
        assert value(readings, f"auc ({name})").value == 1
        assert value(readings, f"balanced-right ({name})").value == 1
        for fpr in (0.01, 0.1):
            hits = value(readings, f"tpr at fpr={fpr:g} ({name})")
            assert hits.value == 1
            assert hits.low == 0  # ten worlds without the target do not say where a rate of 0.1 begins


def test_the_figure_beside_the_model_tells_by_itself(tmp_path: Path) -> None:
    """A client whose labels contradict the others' raises the mean loss that the server sends round."""
    attack = ClientInference(worlds=10, shadow=0.25, scores=("paper", "aggregated"))
    lab = lab_of(federation(), tmp_path)
    readings = examine(attack, lab)
    assert value(readings, "auc (aggregated)").value == 1
    assert [r.label for r in readings].count("auc (aggregated)") == 1  # once, however many shadow sets there are
    one = next(iter(attack.challenges(lab)))
    more = replace(one.hints, aggregated_loss=one.hints.aggregated_loss + 1)
    less, greater = (attack.guess(one.view, hints).scores for hints in (one.hints, more))
    assert all(greater[name] > less[name] for name in less)  # the paper's statistic moves with it


def test_records_are_calibrated_one_by_one_against_other_worlds(tmp_path: Path) -> None:
    """The same records: their mean loss tells little of one client in three, each against other worlds nearly all."""
    attack = ClientInference(
        worlds=10, shadow=0.25, scores=("loss", "calibrated"), shadows=("all", "inside", "population")
    )
    lab = lab_of(federation(), tmp_path)
    readings = examine(attack, lab)
    for held in ("all", "inside"):
        assert value(readings, f"auc (calibrated, {held})").value > 0.9
        assert value(readings, f"auc (calibrated, {held})").value >= value(readings, f"auc (loss, {held})").value
    assert value(readings, "auc (calibrated, population)").n == 20


def test_calibrated_scores_that_know_nothing_do_not_lean_towards_yes() -> None:
    """Mean AUC of 60 nulls, records alike within a world: one has sd 0.14; 4 sd of the mean fail 3 in 1e5."""
    rng, areas = np.random.default_rng(3), []
    for _ in range(60):
        table = rng.normal(size=(48, 1, 30)) + rng.normal(size=(48, 1, 1))
        scores = Scores(table, np.arange(48) % 2 == 0, np.arange(48) // 2)
        found = np.array([scores.of_world(number, np.arange(30)).ratio() for number in range(48)])
        areas.append((found[scores.present][:, None] > found[~scores.present]).mean())
    assert np.mean(areas) < 0.5 + 4 * 0.14 / math.sqrt(60)


def test_a_world_is_compared_with_all_pairs_but_its_own(tmp_path: Path) -> None:
    lab = lab_of(federation(), tmp_path)
    worlds = list(pairs(lab, "c2", 3, "removed", 1))
    target = lab.federation.clients["c2"]
    scores = Scores.of(worlds, target, None)
    found = scores.of_world(2, np.array([0, 3]))
    assert found.elsewhere.shape == (4, 1, 2)
    assert found.present.tolist() == [True, False, True, False]
    bench, data = worlds[2].federation.bench(), target.train.take([0, 3])
    p = torch.softmax(bench.outputs(worlds[2].published[-1], data), 1)[torch.arange(2), data.y].double()
    np.testing.assert_allclose(found.here[0], torch.logit(p).numpy(), atol=1e-4)


def test_shuffled_secrets_score_as_chance(tmp_path: Path) -> None:
    """Mean AUC of 400 shuffles: sd of one is sqrt((n0 + n1 + 1) / (12 n0 n1)); 4 sd of the mean fail 6 in 1e5."""
    attack = ClientInference(worlds=8, shadow=0.25, scores=("loss",), shadows=("inside",))
    lab = lab_of(federation(), tmp_path)
    challenges = list(attack.challenges(lab))
    guesses = [attack.guess(c.view, c.hints) for c in challenges]
    rng = np.random.default_rng(1)
    areas, inside = [], 0
    for _ in range(400):
        shuffled = [replace(challenges[i].secret, pair=j // 2) for j, i in enumerate(rng.permutation(16))]
        if any(len({s.present for s in shuffled if s.pair % 2 == fold}) == 1 for fold in (0, 1)):
            continue  # nothing to learn a threshold from: 4 in 12870 shuffles
        area = value(attack.measure(guesses, shuffled), "auc (loss, inside)")
        areas.append(area.value)
        assert area.low is not None
        assert area.high is not None
        inside += area.low <= 0.5 <= area.high
    sd = math.sqrt(17 / (12 * 8 * 8))
    assert np.mean(areas) == pytest.approx(0.5, abs=4 * sd / math.sqrt(len(areas)))
    assert inside / len(areas) > 0.93


def test_two_worlds_without_a_difference_cannot_be_told_apart() -> None:
    """Scores that know nothing, 300 worlds: the AUC is off by more than 4 sd with probability 6e-5."""
    rng = np.random.default_rng(2)
    attack = ClientInference(worlds=300, scores=("loss",), shadows=("inside",))
    guesses = [
        PresenceScores({("loss", "inside"): float(v)}, {("aggregated-loss", ""): 1.0}) for v in rng.normal(size=600)
    ]
    secrets = [TrueWorld(i % 2 == 0, i // 2, None) for i in range(600)]
    readings = attack.measure(guesses, secrets)
    sd = math.sqrt(601 / (12 * 300 * 300))
    assert value(readings, "auc (loss, inside)").value == pytest.approx(0.5, abs=4 * sd)
    assert value(readings, "balanced-right (loss, inside)").value == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(600))


def test_enough_noise_hides_the_client_and_the_ceiling_says_so(tmp_path: Path) -> None:
    attack = ClientInference(worlds=8, shadow=0.25, scores=("own",), absent="replaced")
    noisy = federation(GlobalDP(2.0, 1.0), strategy=fedavg(weighting="even"))
    reading = value(examine(attack, lab_of(noisy, tmp_path)), "auc (own, inside)")
    assert "formal ceiling of TPR - FPR 0.3829" in reading.note  # replace-one: mu = 2 / z = 1, erf(1 / sqrt 8)
    removed = replace(attack, absent="removed")
    assert "0.1974" in value(examine(removed, lab_of(noisy, tmp_path)), "auc (own, inside)").note  # mu = 1 / z
    metric = federation(MetricPrivacy(2.0, 1.0), strategy=fedavg(weighting="even"))
    assert value(examine(attack, lab_of(metric, tmp_path)), "auc (own, inside)").note == "no formal ceiling"


def test_a_loss_of_nothing_has_a_finite_statistic() -> None:
    assert difference(0.0, 0.0) == 0.0
    assert -1e9 < difference(0.0, 2.0) < -1e6


def test_wrecked_models_do_not_break_the_comparison() -> None:
    attack = ClientInference(worlds=2, scores=("loss",), shadows=("inside",))
    guesses = [
        PresenceScores({("loss", "inside"): v}, {("aggregated-loss", ""): v}) for v in (math.nan, 1.0, -math.inf, 2.0)
    ]
    readings = attack.measure(guesses, [TrueWorld(i % 2 == 0, i // 2, None) for i in range(4)])
    assert all(math.isfinite(r.value) for r in readings)
    assert value(readings, "auc (loss, inside)").value == 0


# --- the worlds --------------------------------------------------------------------------------------------------


def test_means_stay_planned_for_as_many_clients_when_the_target_is_not_there() -> None:
    """Add-remove speaks of a public denominator: a world without the target must not divide by one less."""
    whole = federation(GlobalDP(2.0, 1.0), strategy=fedavg(weighting="even"))
    fewer = without(whole, "c2", "removed")
    assert len(fewer.task.clients) == len(whole.task.clients) - 1
    assert fewer.expected() == whole.expected() == len(whole.task.clients)
    assert without(fewer, "c0", "removed").expected() == whole.expected()


@pytest.mark.parametrize("strategy", [fedavg(), fedopt()], ids=["random", "warm-start"])
@pytest.mark.parametrize("rounds", [1, 2], ids=["replayed", "trained"])
def test_worlds_start_from_the_published_model_and_shuffle_anew(
    strategy: Strategy, rounds: int, tmp_path: Path
) -> None:
    """In every world the attacked federation's own start; the same client, the same start, another update of it."""
    lab = lab_of(federation(strategy=strategy, rounds=rounds), tmp_path)
    start = initial_weights(lab.federation)
    found = list(pairs(lab, "c2", 3, "removed", rounds))
    for world in found:
        assert torch.equal(world.published[0].vector, start.vector)
        assert torch.equal(initial_weights(world.federation).vector, start.vector)
    ends = [world.published[-1].vector for world in found]
    assert all(not torch.equal(a, b) for i, a in enumerate(ends) for b in ends[:i])
    same = replace(lab.federation, plan=replace(lab.federation.plan, batch=0))  # one batch: no order to differ in
    whole = list(pairs(replace(lab, federation=same), "c2", 2, "removed", rounds))
    assert torch.allclose(whole[0].published[-1].vector, whole[2].published[-1].vector, atol=1e-5)


def test_each_pair_may_start_from_a_model_of_its_own(tmp_path: Path) -> None:
    lab = lab_of(federation(), tmp_path)
    found = list(pairs(lab, "c2", 3, "removed", 1, "each"))
    starts = [world.published[0].vector for world in found]
    assert torch.equal(starts[0], starts[1])  # within a pair the target alone differs
    assert not torch.equal(starts[0], starts[2])
    assert not torch.equal(starts[2], starts[4])
    for pair, world in enumerate(found[::2]):
        assert torch.equal(world.published[0].vector, initial_weights(federation(seed=1000 * pair)).vector)


def test_the_seed_of_the_start_counts_for_the_hash_only_where_it_is_set() -> None:
    """Runs from before it existed, and the worlds of ``initial = "each"``, keep their keys."""
    plain = federation(seed=3)
    told = description(plain)
    assert "initial_seed" not in told["federation"]
    moved = description(replace(plain, initial_seed=4))
    assert moved["federation"].pop("initial_seed") == 4
    assert moved == told
    keys = {key_of(description(replace(plain, initial_seed=seed))) for seed in (None, 4, 5)}
    assert len(keys) == 3


def test_the_first_pair_with_the_target_is_the_attacked_federation_itself(tmp_path: Path) -> None:
    lab = lab_of(federation(rounds=2), tmp_path)
    first = next(pairs(lab, "c2", 2, "removed", 2))
    assert first.federation == lab.federation
    assert torch.equal(first.published[-1].vector, lab.final_weights().vector)


@pytest.mark.parametrize("absent", ["removed", "replaced"])
@pytest.mark.parametrize(
    "world",
    [
        federation(GlobalDP(0.5, 1.0), strategy=fedavg(weighting="even")),
        federation(MetricPrivacy(0.5, 1.0, reading="paper"), strategy=fedmedian()),
        federation(strategy=fedprox(0.5)),
    ],
    ids=["global-dp", "metric-privacy", "fedprox"],
)
def test_replayed_worlds_are_the_trained_ones(world: Federation, absent: str, tmp_path: Path) -> None:
    """Clients that train together or one by one differ by rounding; everything else must be the same."""
    lab = lab_of(world, tmp_path)
    assert replayable(world)
    for found in pairs(lab, "c2", 2, absent, 1):  # type: ignore[arg-type]
        trained = lab.variant(found.federation).final_weights()
        assert torch.allclose(found.published[-1].vector, trained.vector, atol=1e-5)
        names = [c.name for c in found.federation.task.clients]
        assert ("c2" in names) == found.present
        assert len(names) == (3 if found.present or absent == "replaced" else 2)


def test_who_takes_the_targets_place_answers_as_if_everybody_trained_together(tmp_path: Path) -> None:
    """It is trained by itself; its update depends on nobody, so beside the others it would be the same."""
    world = federation(evaluate="both")  # it holds no test data, and nobody need judge it
    place = next(c for c in without(world, "c2", "replaced").task.clients if c.name not in world.clients)
    crowd = replace(bare(world), task=replace(world.task, clients=(*world.task.clients, place)))
    lab = lab_of(world, tmp_path)
    found = {u.client: u for u in lab.variant(alone(world, place), keep_all).kept(0)[1]}
    expected = {u.client: u for u in lab.variant(crowd, keep_all).kept(0)[1]}
    assert list(found) == [place.name]
    assert torch.allclose(found[place.name].delta.vector, expected[place.name].delta.vector, atol=1e-6)
    assert found[place.name].examples == expected[place.name].examples == 30


@pytest.mark.parametrize(("absent", "each"), [("removed", 1), ("replaced", 2)])
def test_nobody_is_trained_for_a_place_that_stays_empty(absent: str, each: int, tmp_path: Path) -> None:
    """A federation with the target for each pair, and whoever takes its place."""
    lab = lab_of(federation(GlobalDP(0.5, 1.0)), tmp_path)
    list(pairs(lab, "c2", 3, absent, 1))  # type: ignore[arg-type]
    trained = [p.name for p in (tmp_path / "runs").iterdir() if p.name != lab.run.key]
    assert len(trained) == 3 * each
    billed = ClientInference(worlds=3, absent=absent).trains(lab.federation)  # type: ignore[arg-type]
    assert len(billed) == each
    assert sum(billed.values()) == pytest.approx(3 * (1 if absent == "removed" else 4 / 3))


@pytest.mark.parametrize("rounds", [1, 2], ids=["replayed", "trained"])
def test_worlds_side_by_side_are_those_of_one_process(rounds: int, tmp_path: Path) -> None:
    world = federation(rounds=rounds)
    alike = {}
    for workers in (1, 2):
        lab = replace(lab_of(world, tmp_path / str(workers)), workers=workers)
        alike[workers] = [w.published[-1].vector for w in pairs(lab, "c2", 3, "replaced", rounds)]
    assert all(torch.equal(a, b) for a, b in zip(alike[1], alike[2], strict=True))


def test_a_second_defence_trains_no_new_world(tmp_path: Path) -> None:
    attack = ClientInference(worlds=3, shadow=0.25, scores=("loss",))
    plain, guarded = federation(), federation(GlobalDP(0.01, 5.0))
    examine(attack, lab_of(plain, tmp_path))
    before = {p.name for p in (tmp_path / "runs").iterdir()}
    lab = lab_of(guarded, tmp_path)
    examine(attack, lab)
    assert {p.name for p in (tmp_path / "runs").iterdir()} - before == {lab.run.key}


@pytest.mark.parametrize("rounds", [1, 2])
def test_the_bill_counts_the_rounds_that_the_worlds_really_train(tmp_path: Path, rounds: int) -> None:
    attack = ClientInference(worlds=3, rounds=rounds, scores=("loss",))
    world = federation(GlobalDP(0.5, 1.0), rounds=rounds)
    lab = lab_of(world, tmp_path)
    list(attack.challenges(lab))
    runs = [Store(tmp_path).run(p.name) for p in (tmp_path / "runs").iterdir() if p.name != lab.run.key]
    trained = sum(len(run.rounds()) for run in runs)
    (billed,) = attack.trains(world).values()
    # The first history with the target in it is the lab's own where whole histories are trained.
    assert trained <= billed <= 1.5 * trained + rounds


def test_the_bill_has_a_warm_start_for_every_pair_that_starts_by_itself() -> None:
    world = federation(strategy=replace(fedavg(), warm_start=True), warm_start=Plan(epochs=4, batch=10))
    assert federation().warm_work == 0
    assert world.warm_work == 4 * 30
    each, shared = (ClientInference(worlds=5, initial=initial).trains(world) for initial in ("each", "published"))
    assert each.keys() == shared.keys()
    extra = sum(each.values()) - sum(shared.values())
    assert extra == pytest.approx(5 * 4 * 30 / (3 * 120))  # in rounds: three epochs of three clients with 40 examples


def test_the_sample_looks_at_as_many_examples_as_a_world_of_the_attack(tmp_path: Path, monkeypatch) -> None:
    looked, outputs = [], Bench.outputs

    def look(self: Bench, weights: Weights, data: Data, *more: object) -> torch.Tensor:
        looked.append(len(data))
        return outputs(self, weights, data, *more)

    monkeypatch.setattr(Bench, "outputs", look)
    attack, world = ClientInference(worlds=3, shadow=0.25, scores=("loss", "own", "fresh", "paper")), federation()
    (sample,) = attack.samples(world)
    sample.do(1)
    expected = sum(looked) / sample.share
    lab = lab_of(world, tmp_path)
    looked.clear()
    for challenge in list(attack.challenges(lab)):
        attack.guess(challenge.view, challenge.hints)
    judged = 2 * 30  # each pair's federation, when it was trained; the first is the attacked one
    # Without the target there is one test part fewer, and nobody asks for the loss on the server's.
    assert sum(looked) - judged == expected - 3 * (12 + 30)


def test_the_same_seed_gives_the_same_scores(tmp_path: Path) -> None:
    attack = ClientInference(worlds=2, shadow=0.25)
    world = federation(GlobalDP(0.5, 1.0))
    assert examine(attack, lab_of(world, tmp_path / "a")) == examine(attack, lab_of(world, tmp_path / "b"))


def test_several_rounds_are_trained_in_full(tmp_path: Path) -> None:
    world = federation(rounds=2)
    assert not replayable(world)
    readings = examine(ClientInference(worlds=2, rounds=2, shadow=0.25), lab_of(world, tmp_path))
    assert value(readings, "auc (loss, inside)").n == 4


def test_what_the_source_of_updates_keeps() -> None:
    source = bare(federation(GlobalDP(1, 1), strategy=fedprox(0.5)))
    assert source.defences == ()
    assert source.strategy == fedprox(0.5)
    assert bare(federation(strategy=fedmedian())).strategy == fedavg()
    assert bare(federation(strategy=fedopt())).strategy.warm_start


def test_the_shadow_sets_are_where_they_should_be(tmp_path: Path) -> None:
    world = federation()
    target = world.clients["c2"]
    assert target.test is not None
    trained = {row.tobytes() for row in target.train.x.numpy()}
    unseen = {row.tobytes() for row in target.test.x.numpy()}
    for challenge in ClientInference(worlds=2, shadow=0.1).challenges(lab_of(world, tmp_path)):
        rows = {k: {r.tobytes() for r in d.x.numpy()} for k, d in challenge.hints.shadows.items()}
        fresh = {r.tobytes() for r in challenge.hints.fresh.x.numpy()}
        assert {k: len(v) for k, v in rows.items()} == {"inside": 4, "disjoint": 4}
        assert rows["inside"] <= trained
        assert rows["disjoint"] <= unseen
        assert fresh == unseen - rows["disjoint"]


# --- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attack", "world", "message"),
    [
        (ClientInference(target="c9"), federation(), "'c9' is not in the federation"),
        (ClientInference(attacker="nobody"), federation(), "'nobody' is not in the federation"),
        (ClientInference(target="c1", attacker="c1"), federation(), "cannot attack itself"),
        (ClientInference(), federation(n=1), "one client"),
        (ClientInference(shadow=0.01), federation(), "leaves no data"),
        (ClientInference(shadow=0.5), federation(), "hold.*12 examples that nobody trains on"),
        (ClientInference(), federation(sampling="poisson", participation=0.5), "sampled"),
        (ClientInference(), federation(MetricPrivacy(0.01, 5), n=2), "without c1 cannot be.*compares clients"),
    ],
)
def test_refused_before_training(attack: ClientInference, world: Federation, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        attack.check(world)


def test_nobody_to_take_the_targets_place() -> None:
    world = federation()
    world = replace(world, task=replace(world.task, validation=None))
    with pytest.raises(StudyError, match="validation data"):
        without(world, "c2", "replaced")
    with pytest.raises(StudyError, match="validation data"):
        ClientInference(absent="replaced").check(world)


def test_a_good_federation_passes() -> None:
    ClientInference(shadow=0.25).check(federation(MetricPrivacy(0.01, 5)))
    assert MENU["client-inference"] is ClientInference


@pytest.mark.parametrize("values", [{"shadow": 0.0}, {"shadow": 1.0}, {"worlds": 1}, {"rounds": 0}, {"scores": ()}])
def test_wrong_settings(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must|needed"):
        ClientInference(**values)  # type: ignore[arg-type]
