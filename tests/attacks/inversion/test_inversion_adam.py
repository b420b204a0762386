"""Clients that train with Adam: the simulated turn against theirs, what one step leaves of a gradient, and images."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from leakline.attacks.inversion import VARIANTS, GradientInversion
from leakline.attacks.inversion.adam import bounds, outside
from leakline.attacks.inversion.dense import reconstruction
from leakline.attacks.inversion.intercepted import Intercepted, problem_of
from leakline.attacks.inversion.objective import update_distance
from leakline.attacks.inversion.search import search
from leakline.attacks.inversion.simulate import Recipe, simulate
from leakline.attacks.inversion.twin import Twin
from leakline.bench.optimisers import Adam
from leakline.bench.training import Bench, Job, Plan, train
from leakline.data import Digits
from leakline.data.base import Client, Data, Task
from leakline.defences import DpSgd
from leakline.federation import Federation
from leakline.messages import Update
from leakline.models.small import MLP, SmallCNN
from leakline.randomness import Stream
from leakline.study.lab import Lab, examine
from leakline.study.store import Store
from leakline.study.train import train_run
from leakline.views import ServerView

torch.set_num_threads(1)
DIGITS = Digits().load().train
PRIOR = DIGITS.inputs(slice(None)).mean(0, keepdim=True)
SMOOTH, BATCH = (SmallCNN((8, 16), 16, "softplus", norm, "average") for norm in ("none", "batch"))
ONE = Plan(batch=0, learning_rate=0.01, optimiser="adam")


def turn(model, plan: Plan, rows: list[int]) -> tuple[Intercepted, Data]:
    """What a server has of a client's turn, and the client's images."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        bench = Bench(model.build((1, 8, 8), 10), functional.cross_entropy)
    data = DIGITS.take(rows)
    change = train(bench, Job(bench.initial, data, Stream(0, 0, "a", "train"), 0), plan).change
    return Intercepted(bench, bench.initial, change, plan, len(rows)), data


PLANS = {
    "one step": ONE,
    "several steps": replace(ONE, epochs=2, batch=2, learning_rate=0.001),
    "the largest moment": replace(ONE, epochs=3, batch=2, learning_rate=0.01, amsgrad=True),
    "decay and a proximal term": replace(ONE, epochs=3, learning_rate=0.001, weight_decay=0.1, proximal=0.5),
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("model", [SMOOTH, BATCH, MLP((16,))], ids=["no norm", "batch norm", "dense"])
def test_the_simulated_turn_is_the_clients_own_turn(model, plan):
    """But where gradients are rounding alone, such as those of a bias before BatchNorm: Adam's steps are as long."""
    told = PLANS[plan]
    seen, data = turn(model, told, [3, 5, 7, 11])
    order = [tuple(rows.tolist()) for rows in told.batches(4, Stream(0, 0, "a", "train"))]
    recipe = replace(Recipe.of(told, 4), steps=tuple(order))
    parameters = {e.name: v for e, v in seen.sent.layers() if not e.buffer}
    made = simulate(Twin(seen.bench.model), seen.bench.loss, parameters, data.inputs(slice(None)), data.y, recipe)
    compared = 0
    for name, value in made.change.items():
        clear = made.first[name].abs() > 1e-4
        assert torch.allclose(value[clear], seen.delta[name][clear], atol=2e-3 * told.learning_rate), name
        compared += int(clear.sum())
    assert compared > 500


def test_the_bounds_hold_and_are_as_tight_as_rounding_allows():
    g = torch.Generator().manual_seed(0)
    size = 10.0 ** (-9 * torch.rand(20_000, generator=g))
    gradient = size * torch.where(torch.rand(20_000, generator=g) < 0.5, -1.0, 1.0)
    gradient[:100] = 0.0
    for rate, weight in ((0.01, 0.1), (0.001, 0.1), (0.1, 0.0)):
        start = weight * torch.randn(20_000, generator=g)
        moved = start.clone()
        moved.grad = gradient.clone()
        Adam([moved], rate, 0.0).step()
        found = bounds(moved - start, start, rate)
        assert bool(((found.low <= gradient) & (gradient <= found.high)).all())
        assert bool((found.low[:100] <= 0).all() and (found.high[:100] >= 0).all())
    one = torch.full((1,), 0.1)
    for true, widest in ((1e-5, 1e-3), (1e-4, 1e-2)):  # the docstring's figures, at a rate of 0.01
        told = bounds(torch.tensor([-0.01 * true / (true + 1e-8)]), one, 0.01)
        assert float(told.width) / 2 < widest * true
    told = bounds(torch.tensor([-0.01 * 0.1 / (0.1 + 1e-8)]), one, 0.01)
    assert told.high == math.inf
    assert float(told.low) > 0.01


@pytest.mark.parametrize("plan", [ONE, replace(ONE, epochs=3)], ids=["one step", "three steps"])
@pytest.mark.parametrize("model", [SMOOTH, BATCH], ids=["no norm", "batch norm"])
def test_the_true_images_leave_nothing_over_and_the_prior_does(model, plan):
    seen, data = turn(model, plan, [3, 5])
    terms = replace(VARIANTS["dlg"].terms, update=1.0)
    truth = problem_of(seen, PRIOR, terms, statistics="none")
    made, far = (
        simulate(truth.twin, truth.loss, truth.start, x, data.y, truth.recipe, graph=False)
        for x in (data.inputs(slice(None)), PRIOR.expand(2, 1, 8, 8))
    )
    known = truth.evidence.bounds
    assert bool(known) == (plan is ONE)
    with torch.no_grad():
        if known:
            assert outside(made.first, known) < 1e-6 * outside(far.first, known)
        right, wrong = (update_distance(m.change, truth.evidence.change, "l2") for m in (made, far))
    assert right < 1e-2 * wrong


@pytest.mark.parametrize(("epochs", "left"), [(1, 0.3), (3, 0.05)])
def test_images_are_rebuilt_from_one_step_and_from_three(epochs, left):
    """Seen: 0.12 of the prior's squared error after one step, less than 0.001 after three."""
    seen, data = turn(SMOOTH, replace(ONE, epochs=epochs), [3])
    method = VARIANTS["dlg"]
    problem = problem_of(seen, PRIOR, method.terms, labels="restored", statistics="none")
    assert problem.labels.tolist() == data.y.tolist()  # the only bias whose gradient is negative
    found = search(problem, replace(method.search, iterations=200))
    truth = data.inputs(slice(None))
    assert float((found.images - truth).square().mean()) < left * float((PRIOR - truth).square().mean())


def test_an_unknown_rate_is_the_longest_way_that_a_weight_went():
    seen, _ = turn(SMOOTH, ONE, [3])
    assert problem_of(seen, PRIOR, VARIANTS["dlg"].terms, rate=1.0).recipe.rate == pytest.approx(0.01, rel=1e-4)


def test_a_unit_that_images_hardly_move_shows_them_through_adam():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of 200 seeds 5 have such a unit among random weights too, and 2 one that is rounded away
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        other = torch.rand(sum(p.numel() for p in model.parameters()))
    with torch.no_grad():
        model[1].bias.fill_(1.0)
        model[3].weight[:, 0] *= 1e-4
    bench, data = Bench(model, functional.cross_entropy), DIGITS.take([3])
    shown = []
    for start in (bench.initial, bench.initial.like(other)):
        change = train(bench, Job(start, data, Stream(0, 0, "a", "train"), 0), ONE).change
        update = Update("a", change, 1, 1)
        view = ServerView(start, lambda: bench, functional.cross_entropy, (start,), ONE, (start,), ((update,),))
        shown.append(reconstruction(view, PRIOR, 0))
    assert float((shown[0].images - data.inputs(slice(None))).abs().max()) < 0.03
    assert shown[1] is None  # every unit moves by more than its bounds tell


@pytest.mark.parametrize("stack", [(), (DpSgd(1.0, 1.0),)], ids=["bare", "dp-sgd"])
def test_the_attack_meets_clients_with_adam(stack, tmp_path):
    clients = tuple(Client(name, DIGITS.take([i])) for i, name in enumerate("abc"))
    task = Task(clients, None, DIGITS.take(range(40, 80)), tuple("0123456789"))
    model = SmallCNN((4, 8), 8, "softplus", "none", "average")
    federation = Federation(task, model, ONE, rounds=1, defences=stack).but(noise="seeded").granted
    attack = GradientInversion(variant="dlg", clients=("a",), iterations=12)
    attack.check(federation)
    store = Store(tmp_path)
    lab = Lab(federation, store, train_run(store, federation, workers=1, keep=attack.wants(federation)), 1)
    assert {r.measure for r in examine(attack, lab)} >= {"ssim", "rdlv"}
