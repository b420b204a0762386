"""Paper 002's adversaries: crafters, rules, the fast black box against a loop, and the built-in study."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn
from torch.func import vmap

from leakline.attacks.audit import SIX, LdpDistinguish, Scene, craft
from leakline.attacks.audit.blackbox import play, report_sides
from leakline.attacks.audit.crafters import dummy_gradient, input_perturbation, parameter_retrogression
from leakline.attacks.audit.distinguishers import (
    change_rule,
    cosine_rule,
    loss_rule,
    mean_ratio,
    report_ratio,
    shuffled_ratio,
    sign_count_rule,
)
from leakline.attacks.audit.network import paper_002_cnn
from leakline.attacks.audit.scene import draw_scene, malicious_model
from leakline.attacks.audit.stacks import stacked_losses
from leakline.bench.training import Plan
from leakline.data import DATASETS, PARTITIONERS, partition
from leakline.defences import GlobalDP, LdpSgd
from leakline.errors import StackError
from leakline.federation import Federation
from leakline.leakage import count_errors, flip_epsilon, lower_bound, point_epsilon
from leakline.leakage.ranks import lower_bound_from_scores
from leakline.mechanisms.sphere import SIDES, norm_ratio, report_cosines, side_rates
from leakline.models.small import SmallCNN
from leakline.papers.ldp_audit import PAPER, printed
from leakline.papers.ldp_audit.tables import games
from leakline.privacy.shuffle import shuffled_epsilon
from leakline.readings import Reading, rule_of
from leakline.report.paper_pages import pages
from leakline.results import read as read_results
from leakline.strategies import fedadam, fedavg
from leakline.study.carded import card_of
from leakline.study.run import run_study
from leakline.study.spec import load
from leakline.study.store import Store
from leakline.weights import read


@pytest.fixture(scope="module")
def federation() -> Federation:
    task = partition(DATASETS["digits"](limit=300).load(), PARTITIONERS["even"](), clients=3, seed=0)
    return Federation(
        task, lambda: paper_002_cnn((1, 8, 8), 10), Plan(batch=0, learning_rate=1.0), fedavg("even", 0.001),
        (LdpSgd(4.0),), rounds=1, noise="seeded",
    )  # fmt: skip


@pytest.fixture(scope="module")
def scene(federation: Federation) -> Scene:
    return draw_scene(federation, federation.bench(), np.random.default_rng(0))


def scene_of(model: nn.Module, shape: tuple[int, ...]) -> Scene:
    generator = torch.Generator().manual_seed(0)
    x1, x2 = (torch.rand(1, *shape, generator=generator) for _ in range(2))
    return Scene(model.eval(), F.cross_entropy, read(model), x1, torch.tensor([3]), x2, torch.tensor([7]))


# --- crafters --------------------------------------------------------------------------------------------------------


def test_gradients_are_autograds(scene: Scene) -> None:
    scene.model.zero_grad()
    F.cross_entropy(scene.model(scene.x1), scene.y1).backward()
    expected = torch.cat([p.grad.flatten() for p in scene.model.parameters() if p.grad is not None])
    assert torch.allclose(scene.gradient(scene.x1, scene.y1), expected, atol=1e-6)


def test_the_six_crafters_do_what_the_paper_says(federation: Federation, scene: Scene) -> None:
    bench = federation.bench()
    malicious = malicious_model(federation, bench, int(scene.y1[0]))
    pairs = {name: craft(name, scene, malicious) for name in SIX}
    assert int(scene.y1[0]) != int(scene.y2[0])
    assert pairs["benign"].cosine < 0.99
    for name in ("gradient flip", "collusion", "dummy gradient"):
        assert torch.equal(pairs[name].one, -pairs[name].zero)
        assert pairs[name].cosine == pytest.approx(-1)
    assert float(pairs["dummy gradient"].zero.norm()) == pytest.approx(1.0, rel=1e-4)
    assert float(dummy_gradient(100, 1.0, 0.5).zero.norm()) == pytest.approx(0.5, rel=1e-4)
    # The server's malicious model is what makes x1's gradient long.
    assert float(pairs["collusion"].zero.norm()) > 1.5 * float(pairs["gradient flip"].zero.norm())


def test_perturbed_images_and_parameters_are_fitted_worse(scene: Scene) -> None:
    before = float(scene.value(scene.weights.vector, scene.x1, scene.y1))
    worse = scene.weights.vector + scene.gradient(scene.x1, scene.y1)
    assert float(scene.value(worse, scene.x1, scene.y1)) > before
    slope = torch.func.grad(scene.value, argnums=1)(scene.weights.vector, scene.x1, scene.y1)
    assert float(scene.value(scene.weights.vector, scene.x1 + 0.01 * slope.sign(), scene.y1)) > before
    for crafter in (input_perturbation, parameter_retrogression):
        assert -1 < crafter(scene).cosine < 1


# --- rules -----------------------------------------------------------------------------------------------------------


def test_the_sign_of_equation_7_is_corrected() -> None:
    # theta_(t+1) - theta_t is minus a report; a report of g1 = +lambda has mostly positive entries.
    assert not sign_count_rule(np.array([-5.0]))[0]
    assert sign_count_rule(np.array([-5.0]), "paper")[0]


def test_small_rules() -> None:
    assert loss_rule(1.0, np.array([0.9, 1.0, 1.1])).tolist() == [False, False, True]
    assert change_rule(1.0, np.array([1.5]), 1.0, np.array([1.2])).tolist() == [False]
    assert change_rule(1.0, np.array([1.1]), 1.0, np.array([0.5])).tolist() == [True]


def test_the_ratio_of_a_mean_becomes_that_of_a_report() -> None:
    cosines = np.array([[0.2, -0.1, 0.3], [-0.2, 0.1, 0.3]])
    assert np.allclose(mean_ratio(cosines, (1.0, 0.5), 2.0, 1, 100), report_ratio(cosines, (1.0, 0.5), 2.0))
    many = mean_ratio(cosines, (1.0, 1.0), 2.0, 50, 100)
    assert np.all(np.abs(many) < np.abs(report_ratio(cosines, (1.0, 1.0), 2.0)) + 1e-9)


# --- the black box ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (paper_002_cnn((1, 28, 28), 10), (1, 28, 28)), (paper_002_cnn((3, 32, 32), 10), (3, 32, 32)),
        (paper_002_cnn((1, 8, 8), 10), (1, 8, 8)), (SmallCNN().build((1, 8, 8), 10), (1, 8, 8)),
        (SmallCNN(norm="group").build((1, 8, 8), 10), (1, 8, 8)),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 10, bias=False)), (1, 4, 4)),
    ],
)  # fmt: skip
def test_many_models_at_once_give_the_losses_of_one_after_another(model: nn.Module, shape: tuple[int, ...]) -> None:
    scene = scene_of(model, shape)
    generator = torch.Generator().manual_seed(1)
    stack = scene.weights.vector + 0.05 * torch.randn(7, scene.weights.layout.size, generator=generator)
    expected = torch.stack([scene.value(row, scene.x1, scene.y1) for row in stack]).detach()
    losses = stacked_losses(scene, scene.x1, scene.y1)
    assert torch.allclose(losses(stack), expected, atol=1e-5)
    v, k = stack - scene.weights.vector, torch.linspace(0.2, 2.0, 7)
    for side, found in zip((-1, 1), losses.sides(scene.weights.vector, v, k), strict=True):
        rows = scene.weights.vector + side * k[:, None] * v
        apart = torch.stack([scene.value(row, scene.x1, scene.y1) for row in rows]).detach()
        assert torch.allclose(found, apart, atol=1e-5)
    assert torch.allclose(vmap(lambda v: scene.value(v, scene.x1, scene.y1))(stack), expected, atol=1e-5)


def test_paired_sides_have_the_law_of_single_reports(scene: Scene) -> None:
    """Losses after a step, from shared directions, against reports drawn one by one in full."""
    gradient = scene.gradient(scene.x1, scene.y1)
    size, epsilon, step, trials = gradient.numel(), 2.0, 0.5, 1_500
    losses = stacked_losses(scene, scene.x1, scene.y1)
    sides = play(
        [scene.weights.vector], [(0, losses)], gradient[None], trials, step, torch.Generator().manual_seed(3)
    )  # fmt: skip
    ratio = norm_ratio(gradient, 1.0)
    ours = sides.after(0, report_sides(sides.along[0], ratio, epsilon, np.random.default_rng(4)))
    rng = np.random.default_rng(5)
    naive = []
    for _ in range(trials):
        v = torch.from_numpy(rng.standard_normal(size)).float()
        v /= v.norm()
        z = 1 if rng.random() < 0.5 + ratio / 2 else -1
        side = np.sign(z * float(gradient @ v)) * (1 if rng.random() < 1 / (1 + math.exp(-epsilon)) else -1)
        naive.append(float(scene.value(scene.weights.vector - step * side * v, scene.x1, scene.y1)))
    assert stats.ks_2samp(ours, np.array(naive)).pvalue > 1e-4  # false alarm 1e-4
    again = play([scene.weights.vector], [(0, losses)], gradient[None], trials, step, torch.Generator().manual_seed(3))
    assert np.array_equal(again.plus, sides.plus)


def test_the_reports_of_other_clients_have_the_law_of_directions_drawn_one_by_one(scene: Scene) -> None:
    gradient = scene.gradient(scene.x1, scene.y1)
    losses = stacked_losses(scene, scene.x1, scene.y1)
    start, size, step, clients, trials = scene.weights.vector, gradient.numel(), 3.0, 5, 600
    sides = play([start], [(0, losses)], gradient[None], trials, step, torch.Generator().manual_seed(3), clients)
    generator = torch.Generator().manual_seed(4)
    naive = []
    for _ in range(trials):
        v = torch.randn(clients, size, generator=generator)
        mean = (v / v.norm(dim=1, keepdim=True)).mean(0)
        naive.append(float(scene.value(start - step * mean, scene.x1, scene.y1)))
    for side in (sides.plus[0], sides.minus[0]):
        assert stats.ks_2samp(side, np.array(naive)).pvalue > 1e-4  # false alarm 2e-4 for both


# --- the attack ------------------------------------------------------------------------------------------------------


def readings(attack: LdpDistinguish, federation: Federation) -> dict[str, float]:
    guesses, secrets = [], []
    for challenge in attack.games(federation):
        guesses.append(attack.guess(challenge.view, challenge.hints))
        secrets.append(challenge.secret)
    found = attack.measure(guesses, secrets)
    assert all(r.low is not None and r.low <= 4.0 for r in found)
    assert {r.measure for r in found} == {"estimated-epsilon"}
    return {rule_of(r.about): r.value for r in found}


def test_the_papers_findings_and_what_is_behind_them(federation: Federation) -> None:
    attack = LdpDistinguish(measurements=2, trials=4_000, clients=(1, 10), steps=(0.01, 30.0), norms=(0.5, 1.0))
    found = readings(attack, federation)
    # The paper's: the flip reaches epsilon, the benign cosine rule about 1.
    assert found["gradient flip, white, cosine"] > 3.4
    assert 0.5 < found["benign, white, cosine"] < 1.7
    # Ours: the benign gap is the rule's, and a short step makes the black box as strong as the white one.
    assert found["benign, white, optimal"] > 3.2
    assert found["gradient flip, black, loss, step=0.01"] > 3.2
    assert found["gradient flip, black, loss, step=30"] < 2.5
    assert found["dummy gradient, white, cosine, norm=0.5"] == pytest.approx(flip_epsilon(4.0, 0.5), abs=0.2)
    assert found["benign, black, inverted, clients=10"] < found["benign, black, inverted, clients=1"]


def played(attack: LdpDistinguish, federation: Federation) -> dict[str, Reading]:
    challenges = list(attack.games(federation))
    guesses = [attack.guess(c.view, c.hints) for c in challenges]
    return {rule_of(r.about): r for r in attack.measure(guesses, [c.secret for c in challenges])}


def test_bounds_that_hold_together_are_lower_and_say_so(federation: Federation) -> None:
    small = LdpDistinguish(measurements=1, trials=1_000, clients=(2,), steps=(), norms=(0.5,), crowds=(10,))
    each, together = played(small, federation), played(replace(small, together=True), federation)
    assert list(each) == list(together)
    assert all(together[line].low <= each[line].low for line in each)
    assert together["gradient flip, white, cosine"].low < each["gradient flip, white, cosine"].low
    assert f"all {len(each)} lines hold together" in together["gradient flip, white, cosine"].note


@pytest.mark.parametrize(("clients", "least"), [(2, 2.0), (4, 0.8), (10, 0.3)])
def test_a_mean_of_several_reports_is_not_guessed_at_when_it_says_nothing(clients: int, least: float) -> None:
    """Forced to guess on every mean the same games certify about 0.6, 0.4 and 0.2. Seeded: no false alarms."""
    rng = np.random.default_rng(clients)
    bits = rng.permutation(10_000) % 2 == 1
    cosines = report_cosines(0.0, (1.0, 1.0), bits, 10_650, 4.0, rng)
    cosines = cosines + rng.standard_normal((2, len(bits))) * math.sqrt((clients - 1) / 10_650)
    scores = mean_ratio(cosines, (1.0, 1.0), 4.0, clients, 10_650)
    forced = lower_bound(count_errors(scores > 0, bits)).low
    free = lower_bound_from_scores(scores[~bits], scores[bits], rng=rng).low
    assert least < free < 4.0
    assert forced < free / 1.5


def test_sectors_of_the_sphere_are_those_of_reports() -> None:
    """2 x 4 shares of 200,000 reports, each within 5 standard errors: false alarms below 1e-5."""
    rng = np.random.default_rng(3)
    for cosine, ratios in ((0.3, (1.0, 0.6)), (-1.0, (1.0, 1.0))):
        rates = side_rates(cosine, ratios, 2.0)
        assert rates.sum(axis=1) == pytest.approx([1.0, 1.0])
        for world in (0, 1):
            bits = np.full(200_000, bool(world))
            sides = np.where(report_cosines(cosine, ratios, bits, 50, 2.0, rng) >= 0, 1.0, -1.0)
            shares = [(SIDES[:, i] == sides.T).all(axis=1).mean() for i in range(4)]
            assert shares == pytest.approx(rates[world], abs=5 * 0.5 / math.sqrt(len(bits)))


def test_reports_without_names(federation: Federation) -> None:
    """One report is a white box; in a crowd bounds stay below what is promised (99.99 % each: 6 bounds)."""
    attack = LdpDistinguish(
        measurements=1, trials=5_000, confidence=0.9999, clients=(), steps=(), norms=(), crowds=(1, 100, 10_000)
    )
    found = played(attack, federation)
    alone = found["gradient flip, shuffled, optimal, crowd=1"]
    assert 2.8 < alone.low <= 4.0
    for clients in (1, 100, 10_000):
        for who in ("benign", "gradient flip"):
            assert found[f"{who}, shuffled, optimal, crowd={clients}"].low <= shuffled_epsilon(4.0, clients, 1e-5)
    assert found["gradient flip, shuffled, optimal, crowd=10000"].low < 0.3 < 1.0 < alone.low
    assert found["gradient flip, shuffled, optimal, crowd=100"].low > 0.2


def test_the_shuffled_ratio_is_the_likelihood_of_the_crowd() -> None:
    """Against the ratio of the two sums over who the target might be, report by report."""
    rates = side_rates(-0.4, (1.0, 0.7), 1.5)
    reports = [0, 1, 1, 3, 2]
    zero, one = (
        sum(
            rates[w][u] * math.prod(rates[0][v] for j, v in enumerate(reports) if j != i) for i, u in enumerate(reports)
        )
        for w in (0, 1)
    )
    counts = np.bincount(reports, minlength=4)[None].astype(float)
    assert shuffled_ratio(counts, (1.0, 0.7), 1.5)[0] == pytest.approx(math.log(one / zero))


def test_ten_measurements_of_the_white_box_are_the_flip_law() -> None:
    rng = np.random.default_rng(0)
    values = []
    for _ in range(10):
        bits = np.arange(10_000) % 2 == 1
        cosines = report_cosines(-1.0, (1.0, 1.0), bits, 10_650, 4.0, rng)
        values.append(point_epsilon(count_errors(cosine_rule(cosines), bits)))
    assert 3.95 < np.mean(values) < 4.2  # expectation 4.064: what paper 002 prints as 4.07
    assert lower_bound(count_errors(cosine_rule(cosines), bits)).low < 4.0


def test_table_2_lists_the_network_that_is_built() -> None:
    layers = paper_002_cnn((1, 28, 28), 10).named_children()
    assert tuple((n, str(m), sum(p.numel() for p in m.parameters())) for n, m in layers) == printed.NETWORK


def test_other_stacks_are_refused(federation: Federation) -> None:
    attack = LdpDistinguish(measurements=1, trials=100)
    for wrong in (
        replace(federation, defences=(GlobalDP(1.0, 1.0),)),
        replace(federation, defences=()),
        replace(federation, strategy=fedadam()),
    ):
        with pytest.raises(StackError):
            attack.check(wrong)
    with pytest.raises(ValueError, match="measurement"):
        LdpDistinguish(measurements=0)


def test_the_study_fills_the_papers_tables(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.delenv("LEAKLINE_DATA", raising=False)
    study = load("ldp-audit", "desk")
    assert len(study.cells) == 16 * 3
    assert any("stands in" in note for note in study.notes)
    small = replace(
        study,
        cells=study.only(["defence=epsilon-4", "scenario=mnist", "seed=0,1"]).cells,
        attacks={"ldp-distinguish": LdpDistinguish(1, 200, clients=(1,), steps=(1.0,), norms=(1.0,))},
    )
    outcomes = list(run_study(small, tmp_path, workers=1))
    assert [o.error for o in outcomes] == ["", ""]
    results = read_results(tmp_path)
    (both,), ones = games(results), [games(results.where(seed=seed))[0] for seed in (0, 1)]
    asked = ("input perturbation", "white", "cosine")
    means, bounds = zip(*(one.got(*asked) for one in ones), strict=True)
    assert means[0] != means[1]  # two draws of images
    assert both.got(*asked) == (pytest.approx(sum(means) / 2), min(bounds))
    assert both.size(*asked) == (200, 2)
    assert both.size("benign", "white", "no such rule") == (None, 0)
    for name, make in PAPER.tables.items():
        table = make(results)
        assert table.title
        if name in ("ldp-audit/fig2", "ldp-audit/fig1b", "ldp-audit/table1"):
            assert len(table.rows) == 6
    page = pages([results])["002-ldp-audit.md"]
    assert pages([read_results(tmp_path)])["002-ldp-audit.md"] == page
    rows = [row for some in PAPER.verdicts({"ldp-audit": results}).values() for row in some]
    ran = {row.what: row for row in rows if row.verdict != "not run"}
    assert (ran["gradient flip, white box, epsilon 4"].n, ran["gradient flip, white box, epsilon 4"].seeds) == (200, 2)
    assert not [row for row in rows if "svhn" in row.what and row.verdict != "not run"]
    run = Store(tmp_path).run(Store(tmp_path).grid()["cells"][0]["run"])
    assert card_of(run).promises[0].epsilon == pytest.approx(4.0)
