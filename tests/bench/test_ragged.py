"""Clients of unequal size trained together: the plain loop is the oracle."""

from __future__ import annotations

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import tiny
from leakline.bench.ragged import MOST_PADDING, fits_ragged, share_of_padding, train_ragged
from leakline.bench.together import train_together
from leakline.bench.training import Bench, Job, Plan, train
from leakline.randomness import Stream
from leakline.utility import objective

PLANS = {
    "sgd": Plan(epochs=3, batch=4, learning_rate=0.1),
    "whole data": Plan(epochs=2, batch=0, learning_rate=0.1),
    "momentum and decay": Plan(epochs=3, batch=4, learning_rate=0.1, momentum=0.9, weight_decay=0.01),
    "adam": Plan(epochs=3, batch=4, learning_rate=0.01, optimiser="adam"),
    "amsgrad": Plan(epochs=3, batch=4, learning_rate=0.01, optimiser="adam", amsgrad=True),
    "proximal": Plan(epochs=3, batch=4, learning_rate=0.1, proximal=0.5),
    "few steps": Plan(epochs=3, batch=4, learning_rate=0.1, max_steps=2),
    "whole batches only": Plan(epochs=3, batch=4, learning_rate=0.1, drop_last=True),
}


def jobs(bench: Bench, sizes, shape=(tiny.FEATURES,), index=0) -> list[Job]:
    return [
        Job(bench.initial, tiny.blobs(n, i, shape), Stream(0, index, str(i), "train"), index)
        for i, n in enumerate(sizes)
    ]


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_it_takes_the_steps_of_the_plain_loop(plan):
    bench = Bench(tiny.perceptron(), objective("classification").loss)
    work = jobs(bench, (3, 12, 7, 13, 4))
    for one, other in zip(train_ragged(bench, work, plan), [train(bench, job, plan) for job in work], strict=True):
        assert one.steps == other.steps
        assert one.loss == pytest.approx(other.loss, abs=1e-5)
        torch.testing.assert_close(one.change.vector, other.change.vector, atol=1e-5, rtol=1e-4)


def test_convolutions_and_images_of_bytes():
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, tiny.CLASSES))
    bench = Bench(model, objective("classification").loss)
    work = jobs(bench, (5, 9), tiny.IMAGE)
    for job in work:
        object.__setattr__(job.data, "x", (job.data.x * 40 + 128).clamp(0, 255).to(torch.uint8))
    plan = PLANS["sgd"]
    for one, other in zip(train_ragged(bench, work, plan), [train(bench, job, plan) for job in work], strict=True):
        torch.testing.assert_close(one.change.vector, other.change.vector, atol=1e-5, rtol=1e-4)


def test_masks_train_too():
    torch.manual_seed(0)
    bench = Bench(nn.Conv2d(1, 1, 3, padding=1), objective("segmentation").loss)
    work = jobs(bench, (5, 6), tiny.IMAGE)
    for job in work:
        object.__setattr__(job.data, "y", (job.data.x > 0).to(torch.uint8))
    plan = PLANS["sgd"]
    for one, other in zip(train_ragged(bench, work, plan), [train(bench, job, plan) for job in work], strict=True):
        torch.testing.assert_close(one.change.vector, other.change.vector, atol=1e-5, rtol=1e-4)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(0, 20), st.booleans())
def test_padding_is_counted_as_a_loop_would_count_it(sizes, batch, drop_last):
    plan = Plan(epochs=2, batch=batch, drop_last=drop_last)
    batches = [[len(r) for r in plan.batches(n, Stream(0, 0, str(n), "x"))] for n in sizes]
    most, width = max(len(b) for b in batches), max(max(b) for b in batches)
    expected = 1 - sum(sum(b) for b in batches) / (most * width * len(sizes))
    assert share_of_padding(sizes, plan) == pytest.approx(expected)


def test_only_small_models_and_similar_clients_are_grouped():
    bench = Bench(tiny.perceptron(), objective("classification").loss)
    plan = PLANS["sgd"]
    assert fits_ragged(bench, plan, (12, 11, 10))
    assert share_of_padding((12, 40), plan) > MOST_PADDING
    assert not fits_ragged(bench, plan, (12, 40))
    assert not fits_ragged(bench, plan, (12,) * 13)
    large = Bench(nn.Linear(300, 300), objective("classification").loss)
    assert not fits_ragged(large, plan, (12, 11))


def test_a_federation_of_unequal_clients_gives_the_same_with_and_without_grouping():
    changes = {
        "task": tiny.task((12, 11, 10, 12, 9, 30, 11, 12, 12, 10, 10, 9, 11, 12)),
        "model": tiny.perceptron,
        "rounds": 3,
    }
    together, apart = (tiny.run(tiny.federation(together=t, **changes)) for t in ("auto", "off"))
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one.result.vector, other.result.vector, atol=1e-5, rtol=1e-4)
    two = tiny.run(tiny.federation(**changes), workers=2)
    assert torch.equal(together[-1].result.vector, two[-1].result.vector)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize(("group", "sizes"), [(train_together, (8, 8, 8)), (train_ragged, (8, 9, 10))])
def test_a_group_leaves_nothing_behind_when_it_has_trained(group, sizes, optimiser):
    """A stack whose gradients hang on the graph they came from holds itself alive: nine tensors more a round, once."""
    plan = Plan(epochs=2, batch=4, learning_rate=0.1, optimiser=optimiser, proximal=0.1)
    bench, clients = tiny.federation(model=tiny.perceptron).bench(), tiny.task(sizes).clients

    def tensors_after(index: int) -> int:
        group(bench, [Job(bench.initial, c.train, Stream(0, index, c.name, "train"), index) for c in clients], plan)
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    gc.collect()
    gc.freeze()  # what was there before is neither searched nor counted
    try:
        first = tensors_after(0)
        assert [tensors_after(index) for index in range(1, 5)] == [first] * 4
    finally:
        gc.unfreeze()
