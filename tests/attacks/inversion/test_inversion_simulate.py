"""The simulated turn against the real client's; running averages against torch's; labels against the truth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import nn
from torch.nn import functional

from leakline.attacks.inversion.batchnorm import normalise
from leakline.attacks.inversion.convolution import convolve
from leakline.attacks.inversion.simulate import Recipe, simulate
from leakline.attacks.inversion.statistics import biased, inverse, mixed, shares, unbiased
from leakline.attacks.inversion.twin import Twin
from leakline.bench.training import Plan
from leakline.data.base import Client, Data, Task
from leakline.federation import Federation, initial_weights
from leakline.messages import Order
from leakline.models.residual import ResNet
from leakline.models.small import SmallCNN
from leakline.randomness import Stream
from leakline.runtimes.client import answer

torch.set_num_threads(1)


def pictures(n, seed=0, channels=1, size=16):
    g = torch.Generator().manual_seed(seed)
    return Data(torch.rand(n, channels, size, size, generator=g), torch.randint(0, 3, (n,), generator=g))


def federation(model, plan, data):
    return Federation(Task((Client("a", data),), None, None, ("0", "1", "2")), model, plan, rounds=1)


def real_update(fed):
    bench, start = fed.bench(), initial_weights(fed)
    return bench, start, answer(fed, bench, Order("a", 0, start), {})[0]


NETWORKS = {
    "smooth": SmallCNN((4, 6), 8, "softplus", "batch", "average"),
    "residual": ResNet(width=4, norm="batch"),
    "no norm": SmallCNN((4, 6), 8, "relu", "none", "max"),
}
PLANS = {
    "one step, one image": (1, Plan(batch=1, learning_rate=0.05)),
    "one step": (4, Plan(batch=4, learning_rate=0.05)),
    "several steps, a short one last": (5, Plan(batch=2, learning_rate=0.005)),
    "momentum, decay, two epochs": (4, Plan(epochs=2, batch=2, learning_rate=0.002, momentum=0.9, weight_decay=0.01)),
    "proximal": (4, Plan(batch=2, learning_rate=0.005, proximal=0.5)),
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("network", NETWORKS)
def test_the_simulated_turn_is_the_clients_own_turn(network, plan):
    examples, recipe = PLANS[plan]
    if network != "no norm" and examples == 5:
        examples = 6  # a last batch of one picture has nothing to normalise over at the smallest layers
    data = pictures(examples)
    bench, start, update = real_update(federation(NETWORKS[network], recipe, data))
    order = list(recipe.batches(examples, Stream(0, 0, "a", "train")))
    told = Recipe(
        tuple(tuple(rows.tolist()) for rows in order),
        recipe.rate(0),
        recipe.momentum,
        recipe.weight_decay,
        recipe.proximal,
    )
    parameters = {e.name: v for e, v in start.layers() if not e.buffer}
    made = simulate(Twin(bench.model), bench.loss, parameters, data.x, data.y, told)
    largest = float(update.delta.vector.abs().max())
    for entry, seen in update.delta.layers():
        if not entry.buffer:
            assert torch.allclose(made.change[entry.name], seen, atol=1e-5 * max(largest, 1), rtol=1e-5), entry.name
    norms = [e.name.removesuffix(".running_mean") for e in start.layout.entries if e.name.endswith("running_mean")]
    for name in norms:
        before = start[f"{name}.running_mean"], start[f"{name}.running_var"]
        mean, variance = made.running(name, before, 0.1)
        assert torch.allclose(mean - before[0], update.delta[f"{name}.running_mean"], atol=1e-5)
        assert torch.allclose(variance - before[1], update.delta[f"{name}.running_var"], atol=1e-5)


def test_a_recipe_in_the_images_own_order_has_the_plans_steps():
    plan = Plan(epochs=2, batch=2, learning_rate=0.1, decay_every=2, decay=0.1, max_steps=5)
    told = Recipe.of(plan, 5, index=2)
    assert told.steps == ((0, 1), (2, 3), (4,), (0, 1), (2, 3))
    assert told.rate == pytest.approx(0.01)
    assert Recipe.of(Plan(batch=2, drop_last=True), 5).steps == ((0, 1), (2, 3))


def test_the_update_mismatch_has_a_gradient_at_the_pixels_equal_to_finite_differences():
    data = pictures(2, size=8)
    model = SmallCNN((3,), 4, "tanh", "batch", "average").build((1, 8, 8), 3).double()
    twin = Twin(model)
    parameters = {n: p.detach() for n, p in model.named_parameters()}
    told = Recipe(((0, 1), (0, 1)), 0.1, momentum=0.5)
    direction = {
        n: torch.randn(p.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        for n, p in parameters.items()
    }

    def along(x):
        made = simulate(twin, functional.cross_entropy, parameters, x, data.y, told)
        return sum((made.change[n] * d).sum() for n, d in direction.items())

    assert torch.autograd.gradcheck(along, (data.x.double().requires_grad_(),), eps=1e-5, atol=1e-6)


def test_normalise_is_batch_norm_and_reports_its_moments():
    x = torch.randn(3, 4, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    w, b = torch.rand(4, dtype=torch.float64), torch.rand(4, dtype=torch.float64)
    out, mean, variance = normalise(x, w, b, 1e-5)
    assert torch.allclose(out, functional.batch_norm(x, None, None, w, b, True))
    assert torch.allclose(mean, x.mean((0, 2, 3)))
    assert torch.allclose(variance, x.var((0, 2, 3), correction=0))
    assert torch.allclose(normalise(x, None, None, 1e-5)[0], functional.batch_norm(x, None, None, None, None, True))


def normals(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def test_both_derivatives_of_normalise_are_right():
    given = normals(2, 3, 2, 2), normals(3, seed=1), normals(3, seed=2)
    assert torch.autograd.gradcheck(lambda x, w, b: normalise(x, w, b, 1e-3), given)
    assert torch.autograd.gradgradcheck(lambda x, w, b: normalise(x, w, b, 1e-3)[0], given)
    assert torch.autograd.gradgradcheck(lambda x: normalise(x, None, None, 1e-3)[0], (normals(5, 3),))


@pytest.mark.parametrize(
    "shape", [((1, 1), (1, 1), (1, 1), 1), ((2, 1), (0, 1), (1, 1), 1), ((1, 1), (2, 2), (2, 2), 2)]
)
def test_both_derivatives_of_convolve_are_torchs(shape):
    stride, padding, dilation, groups = shape
    given = normals(2, 4, 6, 5), normals(2, 4 // groups, 3, 3, seed=1), normals(2, seed=2)
    ours = convolve(*given, shape, fixed=False)
    theirs = functional.conv2d(*given, stride, padding, dilation, groups)
    assert torch.allclose(ours, theirs)
    assert torch.autograd.gradcheck(lambda x, w, b: convolve(x, w, b, shape, False), given)
    assert torch.autograd.gradgradcheck(lambda x, w, b: convolve(x, w, b, shape, False), given)


def test_a_soft_step_keeps_the_output_and_smooths_the_derivative():
    twin = Twin(nn.Sequential(nn.ReLU()))
    x = torch.tensor([-1.0, -0.1, 0.1, 1.0], requires_grad=True)
    twin.soften(10.0)
    out = twin(x)
    assert torch.equal(out, torch.relu(x))
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    assert torch.allclose(slope, torch.sigmoid(10 * x))
    (curve,) = torch.autograd.grad(slope.sum(), x)
    assert torch.allclose(curve, 10 * torch.sigmoid(10 * x) * (1 - torch.sigmoid(10 * x)))
    twin.soften(float("inf"))
    assert torch.equal(torch.autograd.grad(twin(x).sum(), x)[0], (x > 0).float())


@settings(max_examples=50, deadline=None)
@given(steps=some.integers(1, 40), momentum=some.floats(0.01, 1.0), seed=some.integers(0, 1000))
def test_the_inverse_of_running_averages_is_the_weighted_mean_of_what_went_in(steps, momentum, seed):
    rng = np.random.default_rng(seed)
    fed, start = torch.tensor(rng.normal(size=(steps, 3))), torch.tensor(rng.normal(size=3))
    running = start
    for one in fed:
        running = (1 - momentum) * running + momentum * one
    weights = shares(steps, momentum)
    assert sum(weights) == pytest.approx(1)
    wanted = sum(w * one for w, one in zip(weights, fed, strict=True))
    assert torch.allclose(inverse(start, running, steps, momentum), wanted, atol=1e-9)
    paper = inverse(start, running, steps, momentum, "paper")
    if steps == 1:
        assert torch.allclose(paper, wanted, atol=1e-9)
    else:  # the residue that the one-step formula leaves of the old average
        residue = ((1 - momentum) ** steps - (1 - momentum)) / momentum * start
        mixed_in = sum(w * one for w, one in zip(shares(steps, momentum, "paper"), fed, strict=True))
        assert torch.allclose(paper, mixed_in + residue, atol=1e-8)


def test_torchs_running_statistics_give_the_batches_back():
    layer = nn.BatchNorm2d(2).double()
    batches = [
        torch.randn(4, 2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(3)
    ]
    start = layer.running_mean.clone(), layer.running_var.clone()
    for batch in batches:
        layer(batch)
    moments = [(b.mean((0, 2, 3)), b.var((0, 2, 3), correction=0), 36) for b in batches]
    mean, variance = mixed(moments, shares(3, 0.1))
    assert torch.allclose(inverse(start[0], layer.running_mean, 3, 0.1), mean)
    assert torch.allclose(inverse(start[1], layer.running_var, 3, 0.1), variance)


def test_variances_lose_and_regain_their_correction_and_are_never_negative():
    v = torch.tensor([2.0, -0.5])
    assert torch.allclose(biased(v, 5), torch.tensor([1.6, 0.0]))
    assert torch.allclose(unbiased(biased(v.clamp_min(0), 5), 5), v.clamp_min(0))
    with pytest.raises(ValueError, match="step"):
        inverse(v, v, 0, 0.1)
