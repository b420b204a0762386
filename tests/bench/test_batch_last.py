"""Networks with the examples of a batch last: torch's own layers and backward pass are the oracle."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tiny
from leakline.bench.batch_last import MOST_VALUES, SIZES, BatchLast, known
from leakline.bench.training import Bench, Job, Plan, train
from leakline.models.small import MotionCNN, SmallCNN
from leakline.randomness import Stream
from leakline.runtimes.client import _gradient
from leakline.utility import objective

LOSS = objective("classification").loss
PLANS = {
    "batches of unequal size": Plan(epochs=3, batch=4, learning_rate=0.1),
    "whole data": Plan(epochs=2, batch=0, learning_rate=0.1),
    "momentum and decay": Plan(epochs=3, batch=4, learning_rate=0.1, momentum=0.9, weight_decay=0.01),
    "adam": Plan(epochs=3, batch=4, learning_rate=0.01, optimiser="adam"),
    "proximal": Plan(epochs=3, batch=4, learning_rate=0.1, proximal=0.5),
}
NETWORKS = {
    "small-cnn": lambda: SmallCNN((4, 5)).build((2, 8, 12), tiny.CLASSES),
    "no pool": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(4 * 96, tiny.CLASSES),
    ),
    "nothing between": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 4, 1), nn.MaxPool2d(2, 2), nn.MaxPool2d((2, 2)),
        nn.Flatten(), nn.Linear(24, tiny.CLASSES),
    ),
    "no padding": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, (2, 3)), nn.ReLU(),
        nn.Flatten(), nn.Linear(4 * 2 * 3, tiny.CLASSES),
    ),
    "padded a little": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 5, padding=1), nn.Conv2d(3, 2, (4, 5), padding=(1, 0)), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * 2 * 3, tiny.CLASSES),
    ),
    "odd": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), *(nn.MaxPool2d(2) for _ in range(2)), nn.Conv2d(3, 4, 3, padding=1),
        nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, tiny.CLASSES),
    ),
    "odd rows": lambda: nn.Sequential(
        nn.Conv2d(2, 3, (2, 2)), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(4 * 3 * 5, tiny.CLASSES),
    ),
    "other kernels": lambda: nn.Sequential(
        nn.Conv2d(2, 3, (5, 3), padding=(2, 1)), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 2, (1, 7), padding=(0, 3)),
        nn.ReLU(inplace=True), nn.Flatten(), nn.ReLU(), nn.Linear(48, 5), nn.ReLU(), nn.Linear(5, tiny.CLASSES),
    ),
}  # fmt: skip
SIGNALS = {
    "motion-cnn": lambda: MotionCNN((4, 5), (6, 5)).build((3, 29), tiny.CLASSES),
    "padded signals": lambda: nn.Sequential(
        nn.Conv1d(3, 4, 5, padding=2), nn.MaxPool1d(2), nn.ReLU(), nn.Conv1d(4, 2, 4, padding=1), nn.MaxPool1d(2, 2),
        nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(3 * 4, tiny.CLASSES),
    ),
}  # fmt: skip
NETWORKS |= SIGNALS
SHAPE = (2, 8, 12)
SIGNAL = (3, 29)


def shape_of(name: str) -> tuple[int, ...]:
    return SIGNAL if name in SIGNALS else SHAPE


def bench_of(name: str) -> Bench:
    torch.manual_seed(3)
    return Bench(NETWORKS[name](), LOSS, shape=shape_of(name))


def gradients(model: nn.Module) -> list[torch.Tensor]:
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_loss_and_gradients_are_those_of_torch(name):
    bench = bench_of(name)
    quick = bench.batch_last
    for n in (1, 5, 3, 5):  # memory of one size is used again
        data = tiny.blobs(n, n, shape_of(name))
        outputs = bench.model(data.x)
        value = LOSS(outputs, data.y)
        value.backward()
        expected = gradients(bench.model)
        torch.testing.assert_close(quick.outputs(data.x), outputs.detach(), atol=1e-5, rtol=1e-5)
        assert quick(bench.model, data.x, data.y).item() == pytest.approx(value.item(), abs=1e-6)
        found = gradients(bench.model)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", ["small-cnn", "odd", "padded signals"])
def test_of_equal_pixels_the_first_gets_the_gradient_as_in_torch(name):
    """Flat images: all pixels of a pool are equal, and the borders of a convolution tell which of them was taken."""
    bench, shape = bench_of(name), shape_of(name)
    x, y = torch.arange(4.0).view(-1, *(1 for _ in shape)).expand(4, *shape), torch.tensor([0, 1, 2, 0])
    LOSS(bench.model(x), y).backward()
    expected = gradients(bench.model)
    bench.batch_last(bench.model, x, y)
    for one, other in zip(gradients(bench.model), expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("name", ["small-cnn", "no pool", "no padding", "motion-cnn"])
def test_it_takes_the_steps_of_the_plain_loop(name, plan):
    bench = bench_of(name)
    job = Job(bench.initial, tiny.blobs(11, 1, shape_of(name)), Stream(0, 0, "a", "train"), 0)
    found, expected = train(bench, job, plan, bench.batch_last), train(bench, job, plan)
    assert found.steps == expected.steps
    assert found.loss == pytest.approx(expected.loss, abs=1e-5)
    torch.testing.assert_close(found.change.vector, expected.change.vector, atol=1e-5, rtol=1e-3)


STRANGE = {
    "strides": lambda: nn.Sequential(nn.Conv2d(2, 3, 3, 2, 1), nn.Flatten(), nn.Linear(72, 3)),
    "padded wide": lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=2), nn.Flatten(), nn.Linear(420, 3)),
    "padded by name": lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding="same"), nn.Flatten(), nn.Linear(288, 3)),
    "pooled all away": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.MaxPool2d(2), nn.MaxPool2d((2, 1), (2, 1)), nn.Flatten(), nn.Linear(15, 3)
    ),
    "groups": lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, groups=2), nn.Flatten(), nn.Linear(384, 3)),
    "dilation": lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, dilation=2), nn.Flatten(), nn.Linear(180, 3)),
    "even kernels": lambda: nn.Sequential(nn.Conv2d(2, 3, 2, padding=1), nn.Flatten(), nn.Linear(351, 3)),
    "reflected": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), nn.Flatten(), nn.Linear(288, 3)
    ),
    "no bias": lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.Flatten(), nn.Linear(288, 3)),
    "tanh": lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(288, 3)),
    "means": lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(72, 3)),
    "thirds": lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(24, 3)),
    "masks": lambda: nn.Sequential(nn.Conv2d(2, 1, 3, padding=1)),
    "no image": lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 3)),
    "not a stack": lambda: nn.Conv2d(2, 1, 3, padding=1),
}


@pytest.mark.parametrize("name", STRANGE)
def test_other_networks_are_left_to_torch(name):
    model = STRANGE[name]()
    model(torch.zeros(1, *SHAPE))  # they work
    assert not known(model, SHAPE)
    assert Bench(model, LOSS, shape=SHAPE).batch_last is None
    with pytest.raises(ValueError, match="not a plain stack"):
        BatchLast(model, LOSS, SHAPE)


def test_inputs_that_leave_nothing_are_left_to_torch():
    for name, shape in [
        ("no padding", (2, 3, 12)),
        ("motion-cnn", (3, 10)),
        ("motion-cnn", (3, 1, 29)),
        ("odd", (29,)),
    ]:
        assert not known(NETWORKS[name](), shape)


def test_a_frozen_layer_is_left_to_torch():
    model = NETWORKS["small-cnn"]()
    assert known(model, SHAPE)
    model[0].weight.requires_grad_(False)
    assert not known(model, SHAPE)


def test_memory_is_kept_for_few_sizes():
    quick = bench_of("small-cnn").batch_last
    for n in range(1, 3 * SIZES):
        quick.outputs(torch.zeros(n, *SHAPE))
        assert len(quick.sizes) <= SIZES


def test_large_batches_are_left_to_torch():
    """Outputs of one example: 4 x 96, halved twice with 5 channels between, then 64 and 3."""
    fed, bench = tiny.federation(convolutions="batch-last"), bench_of("small-cnn")
    each = 4 * 96 + 2 * (4 * 24) + 5 * 24 + 2 * (5 * 6) + 2 * 64 + 3
    assert bench.batch_last.values == each
    most = MOST_VALUES // each
    assert _gradient(fed, bench, Plan(batch=most), 10**6) is bench.batch_last
    assert _gradient(fed, bench, Plan(batch=most + 1), 10**6) is None
    assert _gradient(fed, bench, Plan(batch=0), most) is bench.batch_last
    assert _gradient(fed, bench, Plan(batch=0), most + 1) is None
    assert _gradient(tiny.federation(), bench, Plan(batch=4), 10) is None  # nobody asked for it


def test_a_federation_is_the_same_to_rounding_and_whatever_the_workers():
    fed = tiny.federation(
        model=lambda: NETWORKS["small-cnn"](), task=tiny.task((9, 12, 14), SHAPE), rounds=2, together="off"
    )
    quick = fed.but(convolutions="batch-last")
    one, two = tiny.run(quick)[-1].result.vector, tiny.run(quick, workers=2)[-1].result.vector
    assert torch.equal(one, two)
    plain = tiny.run(fed)[-1].result.vector
    assert not torch.equal(one, plain)  # it was computed in another way
    torch.testing.assert_close(one, plain, atol=1e-5, rtol=1e-3)
