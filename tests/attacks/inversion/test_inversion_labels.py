"""Labels: counted from the last bias, dealt out to steps, and settled by what fits."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import nn
from torch.nn import functional

from leakline.attacks.inversion import Intercepted, Search, Terms, problem_of
from leakline.attacks.inversion.deals import _rarity, deals
from leakline.attacks.inversion.intercepted import LOUD
from leakline.attacks.inversion.labels import batch_mean, candidates, class_means, ranked_counts
from leakline.attacks.inversion.settle import most_trials, settled
from leakline.attacks.inversion.twin import Twin
from leakline.bench.training import Bench, Job, Plan, train
from leakline.data.base import Data
from leakline.data.phantoms import Phantoms
from leakline.mechanisms.treatment import Act, Treatment
from leakline.models.small import SmallCNN
from leakline.randomness import Stream

torch.set_num_threads(1)


def best(bias, images, means):
    return list(ranked_counts(bias, images, means)[0][1])


@settings(max_examples=50, deadline=None)
@given(some.lists(some.integers(0, 3), min_size=1, max_size=12))
def test_labels_of_a_batch_are_counted_when_the_mean_outputs_are_known(labels):
    y = torch.tensor(labels)
    p = torch.softmax(torch.randn(4, generator=torch.Generator().manual_seed(0)), 0)
    bias = (p - functional.one_hot(y, 4)).mean(0)
    assert best(bias, len(labels), p.expand(4, 4)) == y.bincount(minlength=4).tolist()


@settings(max_examples=50, deadline=None)
@given(some.lists(some.integers(0, 2), min_size=2, max_size=10), some.floats(0.5, 0.9))
def test_a_trained_network_predicts_by_class_and_one_mean_for_all_would_count_wrongly(labels, sure):
    y = torch.tensor(labels)
    means = torch.full((3, 3), (1 - sure) / 2).fill_diagonal_(sure)
    bias = (means[y] - functional.one_hot(y, 3)).mean(0)
    assert best(bias, len(labels), means) == y.bincount(minlength=3).tolist()


def test_many_classes_and_images_are_solved_for_instead_of_listed():
    y = torch.randint(0, 30, (40,), generator=torch.Generator().manual_seed(1))
    means = torch.softmax(2 * torch.eye(30) + torch.randn(30, 30, generator=torch.Generator().manual_seed(2)), 1)
    bias = (means[y] - functional.one_hot(y, 30)).mean(0)
    assert math.comb(69, 40) > 20_000
    assert best(bias, 40, means) == y.bincount(minlength=30).tolist()


@pytest.mark.parametrize("size", [0.1, 10.0, 1e6])
def test_noise_on_the_bias_never_changes_how_many_labels_there_are(size):
    stream = torch.Generator().manual_seed(5)
    for _ in range(20):
        bias = size * torch.randn(2, generator=stream)
        assert sum(best(bias, 8, torch.tensor([[0.4, 0.6]] * 2))) == 8


def test_deals_are_all_there_once_and_the_likeliest_after_a_shuffle_comes_first():
    ways = deals((3, 5), (4, 4), 100)
    assert len(ways) == len(set(ways)) == 4
    assert all(sum(step) == 4 for way in ways for step in way)
    g = torch.Generator().manual_seed(0)
    labels = torch.tensor([0] * 3 + [1] * 5)
    drawn = Counter()
    for _ in range(4000):
        mixed = labels[torch.randperm(8, generator=g)]
        drawn[tuple(tuple(part.bincount(minlength=2).tolist()) for part in mixed.split(4))] += 1
    assert {way for way, _ in drawn.most_common(2)} == set(ways[:2])
    assert set(drawn) == set(ways)


def test_ways_that_cannot_all_be_looked_at_are_the_likeliest(monkeypatch):
    """From the most even way on, and where all can be looked at, as likely as the best of all."""
    counts, sizes = (4, 3, 3, 2), (4, 4, 4)
    every = deals(counts, sizes, 60)
    monkeypatch.setattr("leakline.attacks.inversion.deals.MOST_WAYS", 10)
    near = deals(counts, sizes, 60)
    assert [_rarity(way) for way in near] == pytest.approx([_rarity(way) for way in every])
    many = deals((4, 4, 4, 4, 3, 3, 3, 3, 3, 1), (4,) * 8, 30)  # ten classes, eight steps: the way it once never ended
    assert len(set(many)) == 30
    assert all(tuple(map(sum, way)) == (4,) * 8 for way in many)
    assert {tuple(map(sum, zip(*way, strict=True))) for way in many} == {(4, 4, 4, 4, 3, 3, 3, 3, 3, 1)}
    assert max(n for step in many[0] for n in step) == 1  # no class twice in a step: nothing is likelier


def test_candidates_keep_to_steps_and_to_how_many_are_asked_for():
    ranked = [(0.01, (3, 5)), (0.02, (4, 4)), (0.5, (8, 0))]
    steps = ((0, 1, 2, 3), (4, 5, 6, 7), (0, 1, 2, 3), (4, 5, 6, 7))  # two epochs
    every = candidates(ranked, steps, 8, 100)
    assert len(every) == 4 + 5
    assert sorted(every[0].tolist()) == [0] * 3 + [1] * 5
    assert len(candidates(ranked, steps, 8, 3)) == 3
    assert len(candidates(ranked, steps, 8, 100, slack=1.0)) == 4 + 5 + 1
    assert most_trials(1) == 0
    assert most_trials(9) == 9 * 30 + 3 * 90


def test_predictions_by_class_are_the_means_over_public_images():
    class Reads(nn.Module):
        def forward(self, x):
            return x.flatten(1)[:, :2]

    x = torch.randn(60, 1, 1, 2, generator=torch.Generator().manual_seed(0))
    public = Data(x, (torch.arange(60) % 2))
    found, spread = class_means(Reads(), public, 2, 4, 1)
    shown = torch.softmax(x.flatten(1), 1)
    assert spread == pytest.approx(float((shown - found[public.y]).square().sum(1).mean().sqrt()), rel=1e-5)
    for c in (0, 1):
        assert torch.allclose(found[c], torch.softmax(x[c::2].flatten(1), 1).mean(0), atol=1e-6)
    alone, _ = class_means(Reads(), Data(x, torch.zeros(60, dtype=torch.int64)), 2, 4, 1)
    assert torch.allclose(alone[1], alone[0])  # nobody of class 1: everybody's mean stands for it


class Beside(nn.Module):
    """Predictions follow an image's brightness, which is not normalised away: a normalisation layer stands beside."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Linear(2, 2)
        with torch.no_grad():
            self.conv.weight.copy_(torch.tensor([1.0, -1.0]).view(2, 1, 1, 1))
            self.conv.bias.copy_(torch.tensor([-0.5, 0.5]))
            self.head.weight.copy_(torch.tensor([[4.0, -4.0], [-4.0, 4.0]]))
            self.head.bias.zero_()

    def forward(self, x):
        shown = self.conv(x)
        return self.head((shown + 0.01 * torch.relu(self.norm(shown))).mean((2, 3)))


def bright(count, seed):
    """Images of any brightness, with labels that have nothing to do with it: no mean by class can count them."""
    stream = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 1, 1, 1, generator=stream) + 0.05 * torch.randn(count, 1, 8, 8, generator=stream)
    return Data(x.clamp(0, 1), torch.randint(0, 2, (count,), generator=stream))


def test_labels_are_counted_by_the_batch_s_own_moments_where_class_means_miscount():
    """Twenty batches of four. The same images always: nothing here is left to chance."""
    public, held = bright(160, 0), bright(80, 1)
    bench = Bench(Beside(), functional.cross_entropy)
    prior, plan = public.inputs(slice(None)).mean(0, keepdim=True), Plan(batch=4, learning_rate=0.01)
    means, _ = class_means(Beside(), public, 2, 4, 1)
    right = by_means = 0
    for rows in torch.arange(80).view(20, 4):
        data = held.take(rows)
        change = train(bench, Job(bench.initial, data, Stream(0, 0, "a", "train"), 0), plan).change
        made = problem_of(Intercepted(bench, bench.initial, change, plan, 4), prior, Terms(), public=public, deals=12)
        right += int(made.labels.sum()) == int(data.y.sum())
        by_means += best(-change["head.bias"] / plan.learning_rate, 4, means)[1] == int(data.y.sum())
    assert right >= 19
    assert by_means <= 12


def test_a_batch_s_mean_prediction_lies_within_its_reach_and_needs_moments_and_images():
    """Ten batches: at 95 % each, fewer than 6 would come about by chance in less than one of 10,000 runs."""
    public, held, twin, within = bright(160, 2), bright(80, 3), Twin(Beside()), 0
    for rows in torch.arange(80).view(10, 8):
        with torch.no_grad():
            truth = torch.softmax(twin(held.inputs(rows)), 1).mean(0)
        known = {name: (mean, var * n / (n - 1)) for name, (mean, var, n) in twin.seen.moments.items()}
        found = batch_mean(twin, public, 2, 8, 1, known)
        within += float((torch.as_tensor(found.shares) - truth).abs().max()) <= found.reach
    assert within >= 6
    assert found.reach < 0.1
    assert batch_mean(twin, public, 2, 8, 1, {}) is None
    assert batch_mean(twin, public.take(range(20)), 2, 8, 1, known) is None


def test_the_deal_that_the_client_had_is_settled_on():
    """Four images in two steps of two: labels 0, 0 | 1, 1 against 0, 1 | 0, 1."""
    images = Phantoms(examples=60, size=32, seed=3, classes=2).load().train
    zeros, ones = ((images.y == c).nonzero()[:, 0][:2].tolist() for c in (0, 1))
    data = images.take(zeros + ones)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = SmallCNN((8, 16), 16, "softplus", "batch", "average").build((1, 32, 32), 2)
    bench = Bench(network, functional.cross_entropy)
    plan = Plan(batch=2, learning_rate=0.05)
    steps = iter([torch.tensor([0, 1]), torch.tensor([2, 3])])
    change = train(bench, Job(bench.initial, data, Stream(0, 0, "a", "train"), 0), plan, batches=steps).change
    prior = images.inputs(slice(20, 60)).mean(0, keepdim=True)
    public = images.take(range(20, 60))
    problem = problem_of(
        Intercepted(bench, bench.initial, change, plan, 4), prior, Terms(smooth=100.0), public=public, deals=12
    )
    assert problem.labels.tolist() != [0, 0, 1, 1]  # others are likelier after a shuffle
    (chosen,) = settled([problem], Search())
    assert chosen.labels.tolist() == [0, 0, 1, 1]
    assert chosen.others == ()


CLIP, Z, RATE = 0.05, 0.002, 0.1


def clipped(labels, on_examples):
    """A turn of one step under a clip and noise, by a network that expects class 0, and the problem of inverting it."""
    images = Phantoms(examples=80, size=32, seed=5, classes=2).load().train
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = SmallCNN((8, 16), 16, "softplus", "group", "average").build((1, 32, 32), 2)
    with torch.no_grad():
        list(network.parameters())[-1].copy_(torch.tensor([1.0, 0.0]))  # the last bias
    bench = Bench(network, functional.cross_entropy)
    of_class = {c: iter((images.y == c).nonzero()[:, 0].tolist()) for c in (0, 1)}
    data = images.take([next(of_class[c]) for c in labels])
    gradients = []
    for i in range(len(labels)):
        value = functional.cross_entropy(network(data.inputs(slice(i, i + 1))), data.y[i : i + 1])
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(value, list(network.parameters()))]))
    assert min(float(g.norm()) for g in gradients) > 2 * CLIP
    noise = torch.randn(len(gradients[0]), generator=torch.Generator().manual_seed(1)) * Z * CLIP
    if on_examples:
        act = Act(clip=CLIP, noise=Z * CLIP)
        treatment = Treatment(examples=act)
        mean = (sum(g * CLIP / g.norm() for g in gradients) + noise) / len(labels)
        change = -RATE * mean
    else:
        act = Act(clip=RATE * CLIP, noise=RATE * Z * CLIP)
        treatment = Treatment(updates=(act,))
        mean = sum(gradients) / len(labels)
        change = -RATE * (mean * min(1.0, CLIP / float(mean.norm())) + noise)
    seen = Intercepted(
        bench, bench.initial, bench.initial.like(change), Plan(learning_rate=RATE), len(labels), 0, treatment
    )
    public = images.take(range(40, 80))
    prior = public.inputs(slice(None)).mean(0, keepdim=True)
    return problem_of(seen, prior, Terms(), statistics="none", public=public, deals=12)


@pytest.mark.parametrize("on_examples", [True, False])
@pytest.mark.parametrize("label", [0, 1])
def test_one_image_s_label_is_read_after_a_clip_whatever_the_network_expects(label, on_examples):
    """Class 1 was taken for class 0: a clip had shortened the bias, and the nearest prediction decided."""
    problem = clipped([label], on_examples)
    assert problem.crossing.loudness > LOUD
    assert (problem.labels.tolist(), problem.others) == ([label], ())


@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1]])
def test_images_are_counted_after_a_clip_of_examples_whatever_the_network_expects(labels):
    problem = clipped(labels, on_examples=True)
    assert sorted(problem.labels.tolist()) == labels


@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1]])
def test_after_a_clip_of_whole_updates_the_right_counts_are_tried(labels):
    problem = clipped(labels, on_examples=False)
    assert labels in [sorted(way.tolist()) for way in (problem.labels, *problem.others)]
