"""The engine as a whole on small pictures: it inverts, it stops and goes on, it says when it cannot work."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from leakline.attacks.inversion.canvas import Canvas
from leakline.attacks.inversion.intercepted import Intercepted, audible, problem_of
from leakline.attacks.inversion.objective import Terms, relative, update_distance, variation
from leakline.attacks.inversion.optimise import Adam, Lbfgs
from leakline.attacks.inversion.schedule import Search
from leakline.attacks.inversion.search import search, searches
from leakline.attacks.inversion.twin import Twin
from leakline.attacks.inversion.variants import VARIANTS
from leakline.bench.training import Bench, Job, Plan, train
from leakline.data.base import Data
from leakline.data.phantoms import Phantoms
from leakline.errors import StackError
from leakline.leakage.images import ssim
from leakline.models.small import SmallCNN
from leakline.randomness import Stream
from leakline.weights import Weights

torch.set_num_threads(1)
PLAN = Plan(batch=1, learning_rate=0.05)


@pytest.fixture(scope="module")
def scene():
    """One brain phantom of 32x32, the mean of others, and the update of a smooth network."""
    images = Phantoms(examples=40, size=32, seed=3).load().train
    x = images.inputs(slice(None))
    prior = x[1:].mean(0, keepdim=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = SmallCNN((8, 16), 16, "softplus", "batch", "average").build((1, 32, 32), 4)
    bench = Bench(network, functional.cross_entropy)
    data = Data(x[:1], images.y[:1])
    change = train(bench, Job(bench.initial, data, Stream(0, 0, "a", "train"), 0), PLAN).change
    return Intercepted(bench, bench.initial, change, PLAN, 1), prior, data


QUICK = Search(iterations=200, patience=100, restarts=1, levels=(0.25, 1.0))


def test_the_true_image_has_no_mismatch_and_the_prior_has(scene):
    seen, prior, data = scene
    terms = Terms(update=1.0, statistics=1.0, exposed=1.0)
    right = problem_of(seen, data.x, terms)
    start = problem_of(seen, prior, terms)
    zeros = torch.zeros(right.size)
    assert right.labels.tolist() == data.y.tolist()
    at_truth = {n: float(v.detach()) for n, v in right.terms_at(zeros).items()}
    at_prior = {n: float(v.detach()) for n, v in start.terms_at(zeros).items()}
    for name in ("update", "statistics", "exposed"):
        assert at_truth[name] < 1e-6 < 1e-3 < at_prior[name], name


@pytest.mark.parametrize("terms", [Terms(update=0.1), Terms(exposed=0.0), Terms(update=0.0)])
def test_a_smooth_network_gives_its_image_away(scene, terms):
    seen, prior, data = scene
    found = search(problem_of(seen, prior, terms), QUICK)
    before, after = float(ssim(data.x, prior)), float(ssim(data.x, found.images))
    assert after > before + 0.1  # seen: 0.2 and more above a prior of 0.5 to 0.6
    assert 0 <= float(found.images.min()) <= float(found.images.max()) <= 1


def test_the_wrong_checkpoint_fails(scene):
    seen, prior, data = scene
    wrong = seen.sent.like(seen.sent.vector.roll(1))
    found = search(problem_of(replace(seen, sent=wrong), prior, Terms(update=0.1)), QUICK)
    assert float(ssim(data.x, found.images)) < float(ssim(data.x, prior))


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_lowers_its_objective_and_each_of_its_terms_pulls_on_the_image(scene, variant):
    seen, prior, _ = scene
    chosen = VARIANTS[variant]
    how = replace(chosen.search, iterations=12, warm_up=0, restarts=1, levels=(1.0,))
    problem = problem_of(seen, prior, chosen.terms, labels=chosen.labels, statistics=chosen.statistics)
    found = search(problem, how)
    start = torch.zeros(problem.size)
    assert found.objective < problem.evaluate(start)[0]
    asked = {n for n in ("update", "statistics", "exposed", "label") if getattr(chosen.terms, n)}
    assert set(found.gradients) == asked
    assert all(size > 0 for size in found.gradients.values())


class Released(nn.Module):
    """A network that detaches its input, as differencing state dicts after in-place steps does to an update."""

    def __init__(self):
        super().__init__()
        self.inner = SmallCNN((4,), 4, "softplus", "batch", "average").build((1, 32, 32), 4)

    def forward(self, x):
        return self.inner(x.detach())


def test_an_objective_without_a_gradient_to_the_image_fails_loudly(scene):
    seen, prior, data = scene
    bench = Bench(Released(), functional.cross_entropy)
    change = train(bench, Job(bench.initial, data, Stream(0, 0, "a", "train"), 0), PLAN).change
    broken = problem_of(Intercepted(bench, bench.initial, change, PLAN, 1), prior, Terms(exposed=0.0))
    with pytest.raises(StackError, match="'update' carries no gradient"):
        search(broken, QUICK)


@pytest.mark.parametrize("optimiser", ["lbfgs", "adam"])
def test_a_search_that_is_stopped_goes_on_to_the_same_end(scene, tmp_path, optimiser):
    seen, prior, _ = scene
    how = Search(optimiser=optimiser, iterations=60, levels=(1.0,), restarts=1, patience=100)
    problem = problem_of(seen, prior, Terms(update=0.1))
    whole = search(problem, how)
    asked = iter(range(10**6))
    first = search(problem, how, checkpoint=tmp_path, stop=lambda: next(asked) > 20)
    assert first.iterations < whole.iterations
    rest = search(problem, how, checkpoint=tmp_path)
    assert rest.iterations == whole.iterations
    assert rest.objective == pytest.approx(whole.objective, rel=1e-3)
    assert torch.allclose(rest.images, whole.images, atol=1e-3)
    again = search(problem, how, checkpoint=tmp_path)
    assert again.iterations == rest.iterations  # finished: nothing is done twice


def test_a_checkpoint_of_another_search_is_not_taken(scene, tmp_path):
    seen, prior, _ = scene
    how = Search(iterations=20, levels=(1.0,), restarts=1)
    search(problem_of(seen, prior, Terms()), how, checkpoint=tmp_path)
    other = search(problem_of(seen, prior.flip(3), Terms()), how, checkpoint=tmp_path)
    fresh = search(problem_of(seen, prior.flip(3), Terms()), how)
    assert torch.equal(other.images, fresh.images)


def test_restarts_side_by_side_are_the_restarts_one_after_another(scene):
    seen, prior, _ = scene
    how = Search(iterations=60, levels=(1.0,), restarts=3, patience=100)
    problem = problem_of(seen, prior, Terms())
    told, heard = [], []
    alone = search(problem, how, seed=5, progress=told.append)
    both = search(problem, how, seed=5, workers=2, progress=heard.append)
    assert len(set(alone.objectives)) == 3
    assert both.objectives == alone.objectives
    assert torch.equal(both.images, alone.images)
    assert both.iterations == alone.iterations
    assert {s.restart for s in heard} == {s.restart for s in told} == {0, 1, 2}


def test_several_problems_side_by_side_are_each_searched_as_if_alone(scene, tmp_path):
    seen, prior, _ = scene
    how = Search(iterations=20, levels=(1.0,), restarts=1)
    problems = [problem_of(seen, start, Terms()) for start in (prior, prior.flip(3), prior.flip(2))]
    folders = [tmp_path / "a", None, tmp_path / "c"]
    found = searches(problems, how, workers=2, checkpoints=folders)
    for one, problem in zip(found, problems, strict=True):
        assert torch.equal(one.images, search(problem, how).images)
    assert [folder.is_dir() for folder in (tmp_path / "a", tmp_path / "c")] == [True, True]
    again = searches(problems, how, workers=2, checkpoints=folders)
    assert [one.seconds for one in again][::2] == [one.seconds for one in found][::2]  # read, not made again


def test_a_search_side_by_side_that_is_stopped_goes_on_to_the_same_end(scene, tmp_path):
    seen, prior, _ = scene
    how = Search(optimiser="adam", iterations=110, levels=(1.0,), restarts=2, patience=400)
    problem = problem_of(seen, prior, Terms(update=0.1))
    heard = []
    first = search(problem, how, workers=2, checkpoint=tmp_path, progress=heard.append, stop=lambda: len(heard) >= 2)
    assert first.iterations < 220
    rest = search(problem, how, workers=2, checkpoint=tmp_path)
    whole = search(problem, how)
    assert rest.iterations == whole.iterations == 220
    assert rest.objective == pytest.approx(whole.objective, rel=1e-3)


def test_a_search_stopped_among_coarse_levels_returns_what_it_has(scene):
    seen, prior, data = scene
    how = Search(iterations=24, levels=(0.25, 1.0), restarts=1)
    found = search(problem_of(seen, prior, Terms()), how, stop=lambda: True)
    assert found.iterations == 0
    assert found.objective == math.inf
    assert torch.allclose(found.images, prior.expand_as(found.images), atol=1e-6)


def test_restarts_begin_at_finer_levels_and_then_with_noise(scene):
    seen, prior, _ = scene
    how = Search(iterations=24, levels=(0.25, 0.5, 1.0), restarts=3)
    found = search(problem_of(seen, prior, Terms(update=0.0)), how)
    assert len(set(found.objectives)) == 3
    again = search(problem_of(seen, prior, Terms(update=0.0)), replace(how, restarts=2))
    assert again.objectives == pytest.approx(found.objectives[:2])


def test_a_smooth_network_is_searched_with_free_pixels_and_one_with_kinks_from_coarse_to_fine():
    for activation, pool, smooth in (("softplus", "average", True), ("relu", "average", False), ("tanh", "max", False)):
        assert Twin(SmallCNN((4,), 4, activation, "batch", pool).build((1, 8, 8), 3)).smooth == smooth


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("epochs", [1, 3])
def test_labels_of_several_steps_are_counted_right_and_dealt_evenly(momentum, epochs):
    images = Phantoms(examples=60, size=32, seed=1).load().train
    rows = [int(r) for c in range(4) for r in np.flatnonzero(np.asarray(images.y) == c)[: (3, 1, 2, 2)[c]]]
    plan = Plan(batch=4, learning_rate=1e-3, momentum=momentum, epochs=epochs)
    bench = Bench(SmallCNN((8,), 16, "softplus", "batch", "average").build((1, 32, 32), 4), functional.cross_entropy)
    data = Data(images.inputs(slice(None))[rows], torch.as_tensor(images.y)[rows])
    change = train(bench, Job(bench.initial, data, Stream(0, 0, "a", "train"), 0), plan).change
    problem = problem_of(Intercepted(bench, bench.initial, change, plan, 8), torch.full((1, 1, 32, 32), 0.3), Terms())
    wrong = (problem.labels.bincount(minlength=4) - torch.tensor([3, 1, 2, 2])).abs().sum() / 2
    assert wrong <= (1 if momentum else 0)  # momentum weighs early batches more, and who was in them is not known
    first, second = (problem.labels[list(step)].bincount(minlength=4) for step in problem.recipe.steps[:2])
    assert (first - second).abs().max() <= 1


def test_on_a_smooth_network_the_update_counts_for_more(scene):
    seen, prior, _ = scene
    terms = Terms(update=0.1, smooth=100.0)
    assert problem_of(seen, prior, terms).terms.update == pytest.approx(10.0)
    kinked = Bench(SmallCNN((4,), 4, "relu", "batch", "max").build((1, 32, 32), 4), functional.cross_entropy)
    other = replace(seen, bench=kinked, sent=kinked.initial, delta=kinked.initial)
    assert problem_of(other, prior, terms).terms.update == pytest.approx(0.1)


def test_progress_says_where_the_search_stands(scene):
    seen, prior, _ = scene
    how = Search(optimiser="adam", iterations=110, levels=(1.0,), restarts=1, patience=200)
    told = []
    search(problem_of(seen, prior, Terms(update=0.0)), how, progress=told.append)
    assert [(s.iteration, s.ended) for s in told] == [(50, False), (100, False), (110, True)]
    assert all(s.iterations == 110 and math.isfinite(s.objective) for s in told)
    assert told[0].line() == f"restart 1, iteration 50/110, objective {told[0].objective:.4g}"


def test_bad_input_is_said_at_once(scene):
    seen, prior, _ = scene
    vector = seen.delta.vector.clone()
    vector[3] = float("nan")
    with pytest.raises(StackError, match="NaN"):
        problem_of(replace(seen, delta=seen.delta.like(vector)), prior, Terms())
    plain = Bench(SmallCNN((4,), 4).build((1, 32, 32), 4), functional.cross_entropy)
    with pytest.raises(StackError, match="no BatchNorm"):
        problem_of(Intercepted(plain, plain.initial, plain.initial, PLAN, 1), prior, Terms())
    with pytest.raises(StackError, match="prior"):
        problem_of(seen, prior[..., :16], Terms())
    for wrong in ({"levels": (0.5,)}, {"iterations": 0}, {"levels": (0.0, 1.0)}, {"soft": (1.0, 2.0)}):
        with pytest.raises(ValueError, match=r"\d"):
            Search(**wrong)
    with pytest.raises(ValueError, match="nothing to match"):
        Terms(update=0, statistics=0, exposed=0)


def test_entries_that_stay_at_home_are_neither_matched_nor_needed(scene):
    seen, prior, data = scene
    shared = [e.name for e in seen.sent.layout.entries if not e.name.startswith("norm")]
    part = replace(seen, sent=seen.sent.only(shared.__contains__), delta=seen.delta.only(shared.__contains__))
    problem = problem_of(part, prior, Terms())
    assert not problem.evidence.statistics
    assert not any(name.startswith("norm") for name in problem.evidence.change)
    found = search(problem, QUICK)
    assert float(ssim(data.x, found.images)) > float(ssim(data.x, prior))  # it does not need the statistics


def test_unknown_labels_are_searched_for_and_found(scene):
    seen, prior, data = scene
    how = Search(iterations=150, restarts=1)
    problem = problem_of(seen, prior, Terms(exposed=0.0), labels="trainable")
    assert problem.labels is None
    found = search(problem, how)
    assert found.targets.shape == (1, 4)
    assert found.targets.argmax(1).tolist() == data.y.tolist()


def test_distances_are_zero_at_the_truth_and_cosine_does_not_see_the_rate():
    g = torch.Generator().manual_seed(0)
    seen = {"a": torch.randn(3, 4, generator=g), "b": torch.randn(5, generator=g), "zero": torch.zeros(2)}
    for distance in ("layers", "l2", "norms", "cosine"):
        assert float(update_distance(seen, seen, distance)) == pytest.approx(0, abs=1e-6)
    tripled = {n: 3 * v for n, v in seen.items()}
    assert float(update_distance(tripled, seen, "cosine")) == pytest.approx(0, abs=1e-6)
    assert float(update_distance(tripled, seen, "l2")) == pytest.approx(4)
    assert float(update_distance(tripled, seen, "norms")) == pytest.approx(2)
    assert float(update_distance(tripled, seen, "layers")) == pytest.approx(4)
    assert float(relative(torch.zeros(3), torch.ones(3))) == 1
    assert float(variation(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]]))) == 1


def test_rounding_is_not_matched():
    weights = {"conv": torch.ones(10), "bias": torch.ones(10)}
    change = {"conv": torch.full((10,), 1e-2), "bias": torch.full((10,), 6e-8)}
    assert list(audible(change, weights)) == ["conv"]


def test_a_canvas_draws_its_start_and_a_coarse_one_stays_smooth():
    start = torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    canvas = Canvas(start, 2, 3)
    assert torch.equal(canvas.draw(torch.zeros(canvas.size)), start.expand(2, 3, 16, 16))
    drawn = canvas.draw(torch.randn(canvas.size, generator=torch.Generator().manual_seed(1)), 0.25)
    spectrum = torch.fft.rfft2(drawn - start).abs()
    high = canvas.frequency > 0.125
    assert float(spectrum[..., high].max()) < 1e-4 < float(spectrum.max())
    assert torch.allclose(Canvas(start, 1, 1).draw(0.1 * torch.ones(256)), start + 0.1)


def rosenbrock(v):
    x = v.detach().requires_grad_()
    value = (100 * (x[1:] - x[:-1].square()).square() + (1 - x[:-1]).square()).sum()
    return float(value.detach()), torch.autograd.grad(value, x)[0]


def test_lbfgs_finds_the_bottom_of_a_curved_valley():
    point = torch.full((6,), -0.5, dtype=torch.float64)
    value, slope = rosenbrock(point)
    optimiser, used = Lbfgs(), 0
    for _ in range(200):
        before = value
        point, value, slope, more = optimiser.step(point, value, slope, rosenbrock)
        used += more
        assert value <= before
    assert torch.allclose(point, torch.ones(6, dtype=torch.float64), atol=1e-5)
    assert used < 400


def test_adam_is_torchs_under_a_constant_rate_and_its_rate_warms_up_and_falls():
    point = torch.full((6,), -0.5, dtype=torch.float64)
    other = point.clone().requires_grad_()
    theirs = torch.optim.Adam([other], lr=0.01)
    ours = Adam(0.01, iterations=10**9)
    value, slope = rosenbrock(point)
    for _ in range(20):
        point, value, slope, _ = ours.step(point, value, slope, rosenbrock)
        other.grad = rosenbrock(other)[1]
        theirs.step()
    assert torch.allclose(point, other, atol=1e-9)
    paces = []
    for count in range(1, 101):
        paces.append(Adam(1.0, 100, warm_up=10, count=count).pace())
    assert np.argmax(paces) == 9
    assert paces[0] == pytest.approx(0.1)
    assert paces[-1] < 1e-3


def test_weights_with_other_names_are_not_mixed_up(scene):
    seen, prior, _ = scene
    assert isinstance(seen.sent, Weights)
    wide = torch.rand(1, 3, 32, 32)
    with pytest.raises(StackError, match="prior"):
        problem_of(seen, wide, Terms())
