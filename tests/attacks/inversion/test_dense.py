"""Batches read off a first dense layer: by algebra, with a certificate that wrong images do not get."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from leakline.attacks import GradientInversion
from leakline.attacks.inversion.dense import first_dense, read
from leakline.bench.training import Plan
from leakline.data import DATASETS, PARTITIONERS, partition
from leakline.defences import GaussianRelease
from leakline.errors import StudyError
from leakline.federation import Federation
from leakline.models.small import MLP, SmallCNN
from leakline.study.lab import Lab, examine
from leakline.study.store import Store
from leakline.study.train import train_run

DIGITS = DATASETS["digits"]().load().train


def gradients(count: int, units: int, seed: int, activation: type[nn.Module] = nn.ReLU):
    """Images, and what one step over them leaves in the first layer, by autograd."""
    rows = torch.randperm(len(DIGITS), generator=torch.Generator().manual_seed(seed))[:count]
    x, y = DIGITS.inputs(rows).flatten(1), DIGITS.y[rows]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, units), activation(), nn.Linear(units, 10))
    functional.cross_entropy(model(x), y).backward()
    first = model[0]
    return x, (first.weight.detach(), first.bias.detach(), first.weight.grad, first.bias.grad)


def off(images, truth):
    """How far each image is from the nearest true one, relative to that."""
    return ((images[:, None] - truth).norm(dim=2) / truth.norm(dim=1)).min(1).values


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_one_image_is_exact_whatever_the_activation(activation):
    truth, layer = gradients(1, 16, 0, activation)
    found = read(*layer, 1)
    assert off(found.images, truth).max() < 1e-4


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_eight_images_are_exact_with_their_certificate(seed):
    truth, layer = gradients(8, 256, seed)
    found = read(*layer, 8)
    assert len(found.images) == 8
    assert off(found.images, truth).max() < 0.01
    assert max(found.falls) < 0.01


def test_of_many_images_what_is_shown_is_right():
    """With 32 images some units were on for one alone, and not all images have such a unit."""
    truth, layer = gradients(32, 256, 0)
    found = read(*layer, 32)
    assert 8 <= len(found.images) <= 32
    assert off(found.images, truth).max() < 0.05


def test_noise_and_other_gradients_show_nothing():
    _, (weight, bias, g_weight, g_bias) = gradients(8, 128, 3)
    loud = 10 * g_weight.abs().mean()
    noise = torch.Generator().manual_seed(0)
    noisy = [g + loud * torch.randn(g.shape, generator=noise) for g in (g_weight, g_bias)]
    assert len(read(weight, bias, noisy[0], noisy[1], 8).images) == 0
    assert len(read(weight, bias, torch.zeros_like(g_weight), torch.zeros_like(g_bias), 8).images) == 0


def test_the_layer_that_sees_the_pixels_is_found():
    assert first_dense(MLP((16,)).build((1, 8, 8), 10, "classification"), (1, 8, 8)) is not None
    assert first_dense(SmallCNN((4,)).build((1, 8, 8), 10, "classification"), (1, 8, 8)) is None
    assert first_dense(nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(64, 2, bias=False)), (1, 8, 8)) is None


def federation(**changes) -> Federation:
    task = partition(
        DATASETS["digits"](limit=120).load(), PARTITIONERS["even"](), clients=8, seed=0, server_validation=0.4
    )
    base = Federation(task, MLP((256,)), Plan(batch=0, learning_rate=0.1), rounds=1, noise="seeded")
    return base.but(**changes)


def met(tmp_path, fed: Federation, **settings):
    attack, store = GradientInversion(clients=("client-1", "client-2"), **settings), Store(tmp_path)
    run = train_run(store, fed, workers=1, keep=attack.wants(fed))
    readings = examine(attack, Lab(fed, store, run, 1))
    return {r.measure: r for r in readings if r.client is None}, readings


def test_gradient_inversion_reads_batches_of_eight_by_eight_digits_off_a_perceptron(tmp_path):
    whole, readings = met(tmp_path, federation())
    assert whole["ssim"].value > 0.99
    assert whole["ssim"].chance < 0.7
    (note,) = {r.note.partition(";")[2] for r in readings if r.measure == "ssim" and r.client == "client-1"}
    assert "read exactly" in note


def test_under_noise_it_searches_and_is_no_nearer_than_the_prior(tmp_path):
    fed = federation(defences=(GaussianRelease(noise_multiplier=1.0, clip=1.0),))
    whole, _ = met(tmp_path, fed, iterations=2, restarts=1)
    assert whole["ssim"].value < whole["ssim"].chance + 0.1


def test_a_network_with_neither_batchnorm_nor_a_first_dense_layer_is_refused_still():
    with pytest.raises(StudyError, match="BatchNorm"):
        GradientInversion().check(federation(model=SmallCNN((4,))))
    with pytest.raises(StudyError, match="BatchNorm"):
        GradientInversion(checkpoint="wrong").check(federation())
