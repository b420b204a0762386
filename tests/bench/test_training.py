"""Local training against loops written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import tiny
from leakline.bench.together import alike, fewest, fits_together, train_together
from leakline.bench.training import Bench, Job, Plan, takes_channels_last, train
from leakline.data.base import Data
from leakline.models.residual import ResNet
from leakline.randomness import Stream
from leakline.weights import read

STREAM = Stream(0, 3, "a", "train")


def conv_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))


def bench_of(build) -> Bench:
    torch.manual_seed(0)
    return Bench(build(), functional.cross_entropy)


def by_hand(build, data, plan: Plan, index: int) -> torch.Tensor:
    """The plain loop that everybody writes: torch's optimiser, torch's permutation."""
    torch.manual_seed(0)
    model = build()
    if any(isinstance(m, nn.Conv2d) for m in model.modules()):
        model = model.to(memory_format=torch.channels_last)
    before = read(model).vector
    rate = plan.learning_rate * (plan.decay ** (index // plan.decay_every) if plan.decay_every else 1)
    if plan.optimiser == "adam":
        optimiser = torch.optim.Adam(
            model.parameters(), lr=rate, weight_decay=plan.weight_decay, amsgrad=plan.amsgrad, fused=True
        )
    else:
        optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=plan.momentum, weight_decay=plan.weight_decay)
    anchor = [p.detach().clone() for p in model.parameters()]
    generator = STREAM.torch()
    steps = 0
    for _ in range(plan.epochs):
        for rows in torch.randperm(len(data), generator=generator).split(plan.batch or len(data)):
            if plan.drop_last and len(rows) < plan.batch:
                continue
            x = data.x[rows]
            loss = functional.cross_entropy(
                model(x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x), data.y[rows]
            )
            if plan.proximal:
                loss = loss + plan.proximal / 2 * sum(
                    ((p - a) ** 2).sum() for p, a in zip(model.parameters(), anchor, strict=True)
                )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            steps += 1
            if steps == plan.max_steps:
                return read(model).vector - before
    return read(model).vector - before


PLANS = {
    "sgd": Plan(2, 4, 0.1),
    "momentum": Plan(3, 5, 0.1, momentum=0.9),
    "weight decay": Plan(2, 4, 0.1, weight_decay=0.05, momentum=0.5),
    "adam": Plan(2, 4, 0.01, "adam"),
    "adam with weight decay": Plan(2, 4, 0.01, "adam", weight_decay=0.1),
    "amsgrad": Plan(2, 4, 0.01, "adam", weight_decay=0.1, amsgrad=True),
    "rate decay": Plan(1, 4, 0.1, decay_every=2, decay=0.1),
    "whole batch": Plan(3, 0, 0.1),
    "drop last": Plan(2, 5, 0.1, drop_last=True),
    "few steps": Plan(5, 4, 0.1, max_steps=4),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize(("build", "shape"), [(tiny.perceptron, (4,)), (conv_net, tiny.IMAGE)])
def test_training_is_the_plain_torch_loop_bit_for_bit(name, build, shape):
    data = tiny.blobs(13, shape=shape)
    bench = bench_of(build)
    trained = train(bench, Job(bench.initial, data, STREAM, 3), PLANS[name])
    assert torch.equal(trained.change.vector, by_hand(build, data, PLANS[name], 3))
    assert trained.change.vector.abs().max() > 0


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("mu", [0.01, 1.0])
def test_the_proximal_gradient_is_autograd_s_of_the_squared_norm(mu, optimiser):
    plan = Plan(4, 4, 0.05, optimiser, proximal=mu)
    data = tiny.blobs(12)
    bench = bench_of(tiny.perceptron)
    trained = train(bench, Job(bench.initial, data, STREAM, 0), plan).change.vector
    assert torch.allclose(trained, by_hand(tiny.perceptron, data, plan, 0), atol=1e-5)
    free = train(bench, Job(bench.initial, data, STREAM, 0), replace(plan, proximal=0.0)).change.vector
    assert trained.norm() < free.norm()


def test_steps_and_mean_loss_are_counted():
    bench = bench_of(tiny.linear)
    data = tiny.blobs(10)
    trained = train(bench, Job(bench.initial, data, STREAM, 0), Plan(1, 0, 0.1))
    with torch.no_grad():
        torch.manual_seed(0)
        model = tiny.linear()
        assert trained.loss == pytest.approx(float(functional.cross_entropy(model(data.x), data.y)), abs=1e-6)
    assert trained.steps == 1
    assert train(bench, Job(bench.initial, data, STREAM, 0), Plan(3, 4, 0.1)).steps == 9


def test_training_starts_from_the_job_s_weights_whatever_was_trained_before():
    bench = bench_of(tiny.image_net)
    data = tiny.blobs(12, shape=tiny.IMAGE)
    job = Job(bench.initial, data, STREAM, 0)
    first = train(bench, job, Plan(2, 4, 0.1)).change.vector.clone()
    train(bench, Job(bench.initial * 3.0, data, replace(STREAM, party="b"), 1), Plan(1, 4, 0.5))
    torch.rand(17)  # the caller's own random numbers do not matter either
    assert torch.equal(train(bench, job, Plan(2, 4, 0.1)).change.vector, first)


def test_dropout_follows_the_stream_and_leaves_the_caller_s_randomness_alone():
    bench = bench_of(tiny.image_net)
    data = tiny.blobs(12, shape=tiny.IMAGE)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one = train(bench, Job(bench.initial, data, STREAM, 0), Plan(1, 0, 0.1)).change.vector
    assert torch.equal(state, torch.get_rng_state())
    # one whole batch: the permutation makes no difference, so what differs is the dropout
    other = train(bench, Job(bench.initial, data, replace(STREAM, party="b"), 0), Plan(1, 0, 0.1)).change.vector
    assert not torch.allclose(one, other, atol=1e-4)


def test_uint8_inputs_are_scaled_and_outputs_come_in_order():
    bench = bench_of(conv_net)
    raw = torch.randint(0, 256, (9, *tiny.IMAGE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data = replace(tiny.blobs(9, shape=tiny.IMAGE), x=raw)
    out = bench.outputs(bench.initial, data, batch=2)
    with torch.no_grad():
        assert torch.allclose(out, bench.model(raw.float() / 255), atol=1e-6)
    assert torch.equal(bench.outputs(bench.initial, data, slice(3, 7)), bench.outputs(bench.initial, data)[3:7])


TOGETHER = {
    **PLANS,
    "proximal": Plan(3, 4, 0.1, proximal=0.5),
    "adam proximal": Plan(2, 4, 0.01, "adam", proximal=0.5),
    "one step": Plan(1, 0, 0.1),
    "one step with momentum": Plan(1, 0, 0.1, momentum=0.9),
    "one step with decay": Plan(1, 0, 0.1, weight_decay=0.1),
    "one of many": Plan(1, 4, 0.1, max_steps=1),
}


@pytest.mark.parametrize("name", TOGETHER)
@pytest.mark.parametrize("common", [True, False])
@pytest.mark.parametrize("sizes", [(13, 13, 13, 13), (14, 13, 14, 13)])
@pytest.mark.parametrize(("build", "shape"), [(tiny.perceptron, (4,)), (conv_net, tiny.IMAGE)])
def test_clients_trained_together_end_where_they_end_alone(name, common, sizes, build, shape):
    plan, bench = TOGETHER[name], bench_of(build)
    starts = [bench.initial if common else bench.initial * (1 + 0.1 * i) for i in range(4)]
    data = [tiny.blobs(n, i, shape) for i, n in enumerate(sizes)]
    jobs = [Job(s, data[i], replace(STREAM, party=f"c{i}"), 3) for i, s in enumerate(starts)]
    together = train_together(bench, jobs, plan)
    for job, found in zip(jobs, together, strict=True):
        alone = train(bench, job, plan)
        assert torch.allclose(found.change.vector, alone.change.vector, atol=1e-5)
        assert found.steps == alone.steps
        assert found.loss == pytest.approx(alone.loss, abs=1e-5)


def test_clients_with_different_numbers_of_examples_cannot_be_trained_together():
    bench = bench_of(tiny.linear)
    for sizes, plan in (((4, 6), Plan()), ((4, 5), Plan(batch=4))):
        with pytest.raises(ValueError, match="equally many"):
            train_together(bench, [Job(bench.initial, tiny.blobs(n), STREAM, 0) for n in sizes], plan)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=4), st.sampled_from(list(TOGETHER.values())))
def test_clients_are_alike_that_take_as_many_steps_with_examples_that_differ_by_one(sizes, plan):
    steps = [len(list(plan.batches(n, STREAM))) if n else 0 for n in sizes]
    same = len(set(sizes)) == 1
    assert alike(sizes, plan) == (same or min(sizes) > 0 and max(sizes) - min(sizes) == 1 and len(set(steps)) == 1)


def test_few_clients_are_not_worth_a_pass_of_their_own():
    """Fewer still for convolutions, more for large models: benchmarks/together.py says how many."""
    conv = Bench(conv_net(), functional.cross_entropy, "cpu", tiny.IMAGE)
    assert 1 < fewest(conv) < fewest(bench_of(tiny.perceptron)) < fewest(bench_of(lambda: nn.Linear(300, 300)))


def test_models_that_mix_or_draw_are_not_trained_together():
    assert fits_together(bench_of(tiny.perceptron), Plan(), 100)
    assert not fits_together(bench_of(tiny.image_net), Plan(), 100)
    assert not fits_together(bench_of(lambda: nn.Linear(500, 500)), Plan(), 100)


@pytest.mark.parametrize(
    ("side", "batch", "examples", "fits"),
    [
        (8, 32, 500, True),
        (8, 33, 500, False),
        (32, 2, 500, True),
        (32, 4, 500, False),
        (32, 0, 2, True),
        (32, 0, 3, False),
    ],
)
def test_convolutions_over_many_positions_are_trained_one_by_one(side, batch, examples, fits):
    def network():
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * (side - 2) ** 2, 2))

    bench = Bench(network(), nn.CrossEntropyLoss(), "cpu", (1, side, side))
    assert fits_together(bench, Plan(batch=batch), examples) == fits


@pytest.mark.parametrize(
    "wrong", [{"epochs": 0}, {"learning_rate": 0.0}, {"learning_rate": float("nan")}, {"batch": -1}, {"momentum": -0.1}]
)
def test_a_plan_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Plan(**wrong)


@pytest.mark.parametrize(("index", "rate"), [(0, 1.0), (4, 1.0), (5, 0.5), (10, 0.25)])
def test_the_rate_falls_in_steps(index, rate):
    assert Plan(learning_rate=1.0, decay_every=5, decay=0.5).rate(index) == rate


@pytest.mark.parametrize("width", [4, 8])
def test_a_narrow_strided_shortcut_is_not_laid_out_channels_last(width):
    """oneDNN's AVX2 kernel for it writes beyond its buffers: the process would die of a damaged heap."""
    bench = bench_of(lambda: ResNet(width=width).build((1, 16, 16), 3))
    assert bench.images == (width >= 8)
    images = Data(torch.rand(8, 1, 16, 16), torch.arange(8) % 3)
    job = Job(bench.initial, images, STREAM, 0)
    for _ in range(30):
        assert train(bench, job, Plan(batch=4)).change.vector.isfinite().all()


class Flattening(nn.Module):
    """The three ways in which tutorials leave a convolution behind."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.features = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(6 * 3 * 3, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        flat = {"view": lambda: x.view(-1, 54), "reshape": lambda: x.reshape(-1, 54), "flatten": lambda: x.flatten(1)}
        return self.head(flat[self.how]())


def test_a_network_that_reads_memory_in_order_keeps_its_layout_and_trains_to_the_same_numbers():
    data = Data(torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 4)
    trained = {}
    for how in ("view", "reshape", "flatten"):
        torch.manual_seed(1)
        bench = Bench(Flattening(how), functional.cross_entropy, shape=(3, 8, 8))
        assert bench.images == (how != "view")
        job = Job(bench.initial, data, STREAM, 0)
        trained[how] = train(bench, job, Plan(epochs=3, batch=4, learning_rate=0.1)).change.vector
    torch.testing.assert_close(trained["view"], trained["flatten"], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(trained["reshape"], trained["flatten"])


class InStorageOrder(nn.Module):
    """Reads what a convolution left in memory, in the order in which it lies there: no error, other numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Conv2d(3, 6, 3), nn.Linear(6 * 6 * 6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        return self.head(torch.as_strided(x, (len(x), 216), (216, 1)))


class Backwards(torch.autograd.Function):
    """Lets everything through, and on the way back takes what came to lie in order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return slope + 0 * x.view(-1)[0]


class OwnBackward(nn.Sequential):
    """A network whose forward takes any layout, and whose backward does not."""

    def forward(self, x: Tensor) -> Tensor:
        return self[1](Backwards.apply(self[0](x)).mean((2, 3)))


class Rows(nn.Module):
    """An odd but honest layout: the picture is turned before and after the convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Conv2d(3, 6, 3), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x.permute(0, 1, 3, 2)).permute(0, 2, 3, 1).mean((1, 2)))


@pytest.mark.parametrize(
    ("build", "kept"), [(InStorageOrder, False), (lambda: OwnBackward(nn.Conv2d(3, 6, 3), nn.Linear(6, 4)), False),
                        (Rows, True)]
)  # fmt: skip
def test_a_layout_is_taken_only_where_outputs_and_gradients_agree(build, kept):
    """What comes of it is what the network computes in its own layout."""
    data = Data(torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 4)
    torch.manual_seed(1)
    bench = Bench(build(), functional.cross_entropy, shape=(3, 8, 8))
    assert bench.images is kept
    job, plan = Job(bench.initial, data, STREAM, 0), Plan(epochs=2, batch=4, learning_rate=0.1)
    change = train(bench, job, plan).change.vector
    torch.manual_seed(1)
    own = Bench(build(), functional.cross_entropy)
    own.images = False
    own.model.to(memory_format=torch.contiguous_format)
    torch.testing.assert_close(change, train(own, job, plan).change.vector, rtol=1e-4, atol=1e-6)


def test_trying_a_layout_leaves_a_network_and_the_generator_alone():
    network = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Dropout(), nn.Flatten(), nn.Linear(8 * 4, 2))
    before = [value.clone() for value in network.state_dict().values()]
    state = torch.get_rng_state()
    assert takes_channels_last(network, (1, 4, 4))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(before, network.state_dict().values(), strict=True))
    assert takes_channels_last(network, (1, 5, 5))  # it does not take these in any layout
