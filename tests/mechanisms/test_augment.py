"""Images to train on, moved: turns and shifts against torch's own, masks that go with their images, who refuses."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import tiny
from leakline.attacks.imprint import Imprint
from leakline.attacks.inversion import GradientInversion
from leakline.attacks.inversion.simulate import Recipe
from leakline.bench.ragged import fits_ragged
from leakline.bench.together import fits_together
from leakline.bench.training import Bench, Job, Plan, train
from leakline.data.base import Client, Data, Task
from leakline.defences import DpSgd
from leakline.errors import LeaklineError, StackError
from leakline.federation import Federation
from leakline.mechanisms.augment import SHIFTED, affine, moved_images
from leakline.randomness import Stream
from leakline.study.describe import describe

NO_TURN, NO_SHIFT, NO = torch.zeros(2), torch.zeros(2, 2), torch.zeros(2, dtype=torch.bool)
MOVED = Plan(batch=4, augment="affine")


def images(high: int = 8, wide: int = 8, n: int = 2) -> torch.Tensor:
    return torch.rand(n, 1, high, wide, generator=torch.Generator().manual_seed(0))


def test_turns_shifts_and_mirrors_are_torch_s():
    x = images()
    quarter = torch.tensor([0.0, math.pi / 2])
    torch.testing.assert_close(affine(x, quarter, NO_SHIFT, NO), torch.stack([x[0], x[1].rot90(1, (1, 2))]))
    wide = images(6, 10)
    right = affine(wide, NO_TURN, torch.tensor([[0.2, 0.0], [0.0, 0.5]]), NO)
    torch.testing.assert_close(right[0], functional.pad(wide[0], (0, 2))[..., 2:])
    torch.testing.assert_close(right[1], functional.pad(wide[1], (0, 0, 0, 3))[..., 3:, :])
    torch.testing.assert_close(affine(wide, NO_TURN, NO_SHIFT, ~NO), wide.flip(3))


def test_a_half_turn_of_an_oblong_image_is_exact_and_a_turn_keeps_lengths():
    x = torch.zeros(1, 1, 31, 61)
    x[0, 0, 15, 20] = 1.0  # ten pixels from the middle, along the longer side
    up = affine(x, torch.tensor([math.pi / 2]), torch.zeros(1, 2), torch.zeros(1, dtype=torch.bool))
    assert up[0, 0].flatten().argmax().item() in (5 * 61 + 30, 25 * 61 + 30)
    wide = images(6, 10)
    torch.testing.assert_close(affine(wide, torch.full((2,), math.pi), NO_SHIFT, NO), wide.flip(2, 3))


def test_a_mask_goes_with_its_image_and_a_class_stays():
    generator = torch.Generator().manual_seed(1)
    blob = functional.pad(torch.ones(64, 1, 20, 14), (12, 6, 6, 6))
    moved, mask = moved_images(blob, blob.to(torch.uint8), generator)
    assert mask.dtype == torch.uint8
    assert set(mask.unique().tolist()) == {0, 1}
    assert ((moved > 0.5) == mask.bool()).float().mean() > 0.97  # but at edges, which are interpolated in one of them
    sides = mask.float().mean((1, 2))[:, :16].sum(1) > mask.float().mean((1, 2))[:, 16:].sum(1)
    assert 16 < int(sides.sum()) < 48  # a fair coin leaves this less than once in 10,000 times
    y = torch.arange(64)
    assert moved_images(blob, y, generator)[1] is y
    assert SHIFTED == 0.02


def conv_bench() -> Bench:
    torch.manual_seed(0)
    return Bench(nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)), functional.cross_entropy)


def test_training_takes_the_versions_of_its_address_and_no_others():
    bench, data = conv_bench(), tiny.blobs(8, shape=tiny.IMAGE)
    stream = Stream(0, 3, "a", "train")
    one = train(bench, Job(bench.initial, data, stream, 3), MOVED).change.vector
    assert torch.equal(one, train(bench, Job(bench.initial, data, stream, 3), MOVED).change.vector)
    other = train(bench, Job(bench.initial, data, replace(stream, round=4), 3), MOVED).change.vector
    assert not torch.equal(one, other)
    # By hand: the same batches, each moved by what the stream of versions has next.
    versions, seen = replace(stream, purpose="train/augment").torch(), []
    for rows in MOVED.batches(8, stream):
        seen.append(moved_images(data.inputs(rows), data.y[rows], versions)[0])
    ready = Data(torch.cat(seen), torch.cat([data.y[rows] for rows in MOVED.batches(8, stream)]))
    order = iter([torch.arange(4), torch.arange(4, 8)])
    plain = train(bench, Job(bench.initial, ready, stream, 3), replace(MOVED, augment="none"), None, order)
    torch.testing.assert_close(one, plain.change.vector)


def test_vectorised_paths_are_not_taken_and_nothing_is_written_down_by_default():
    bench, still = conv_bench(), replace(MOVED, augment="none")
    assert fits_together(bench, still, 8)
    assert not fits_together(bench, MOVED, 8)
    assert not fits_ragged(bench, MOVED, [8, 7])
    assert "augment" not in describe(still)
    assert describe(MOVED)["augment"] == "affine"


def hospitals(shape: tuple[int, ...] = tiny.IMAGE, **more) -> Federation:
    clients = tuple(Client(name, tiny.blobs(4, i, shape)) for i, name in enumerate("ab"))
    task = Task(clients, tiny.blobs(6, 9, shape), None, ("0", "1", "2"), name="toy")
    return Federation(task, tiny.linear, plan=MOVED, **more)


def test_what_is_no_image_is_refused_before_training():
    with pytest.raises(StackError, match="are no images"):
        hospitals((4,))
    with pytest.raises(StackError, match="are no images"):
        replace(hospitals(), plan=Plan(), warm_start=MOVED, task=tiny.task())


def test_who_simulates_clients_says_that_it_cannot():
    with pytest.raises(StackError, match="moved versions"):
        Recipe.of(MOVED, 4)
    for attack in (GradientInversion(), Imprint()):
        with pytest.raises(LeaklineError, match="moved versions of their images"):
            attack.check(hospitals())


def test_versions_of_versions_are_refused_and_one_version_of_each_record_is_not():
    DpSgd(1.0, 1.0)._check_units(hospitals())
    with pytest.raises(StackError, match="versions of versions"):
        DpSgd(1.0, 1.0, augment=2)._check_units(hospitals())
