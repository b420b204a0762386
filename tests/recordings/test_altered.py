"""Models that a server altered are told from those that it did not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leakline.attacks.imprint.block import Altered, ruler_of
from leakline.messages import Round, Update
from leakline.models import MENU
from leakline.recordings.altered import bins_in, parallel_rows
from leakline.recordings.checks import check_recording
from leakline.recordings.recorder import Recorder
from leakline.recordings.recording import Recording
from leakline.weights import Layout, Weights, read


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 32), nn.Linear(32, 10))


@pytest.mark.parametrize("sets", [1, 3])
def test_leaklines_own_imprint_is_found_and_nothing_else(sets):
    images = torch.rand(60, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    altered = Altered(network, units=sets * 20, strength=0.01).build((1, 8, 8), 10, "classification")
    weights = ruler_of(images, sets, 20).weights(Layout.of(altered), read(altered))
    (found,) = bins_in(3, weights)
    assert (found.round, found.layer, found.rows) == (3, "imprint.dense.weight", sets * 20)
    assert found.parallel == sets * 20


def test_a_layer_of_the_network_with_such_weights_is_found_too():
    """Fowl et al. (2022), eq. 2: all rows the mean of pixels, biases its negative quantiles."""
    model = network()
    with torch.no_grad():
        model[3].weight.fill_(1 / 512)
        model[3].bias.copy_(-torch.linspace(0.1, 0.9, 32))
    (found,) = bins_in(0, read(model))
    assert (found.layer, found.parallel) == ("3.weight", 32)


@pytest.mark.parametrize("name", sorted(MENU.keys() - {"densenet-121", "resnet-18", "motion-cnn"}))  # slow, for signals
def test_fresh_networks_of_the_menu_are_not_suspected(name):
    model = MENU[name]().build((1, 32, 32), 4, "segmentation" if "unet" in name else "classification")
    assert list(bins_in(0, read(model))) == []


def test_a_trained_network_and_one_of_equal_rows_are_not_suspected():
    torch.manual_seed(0)
    model, x, y = network(), torch.rand(64, 1, 8, 8), torch.randint(0, 10, (64,))
    optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    assert list(bins_in(0, read(model))) == []
    assert parallel_rows(torch.ones(20, 30), torch.zeros(20)) == 0  # set to a constant, thresholds and all
    assert parallel_rows(torch.zeros(20, 30), torch.arange(20.0)) == 0
    assert parallel_rows(torch.ones(20, 30), torch.arange(20.0)) == 20
    assert parallel_rows(-torch.arange(1.0, 21)[:, None] * torch.ones(30), torch.ones(20)) == 20


def test_the_audit_names_the_round_in_which_the_server_turned(tmp_path):
    good = read(network())
    bad = {e.name: v.clone() for e, v in good.layers()}
    bad["3.weight"].fill_(1 / 512)
    bad["3.bias"].copy_(-torch.linspace(0.1, 0.9, 32))
    turned = Weights(good.layout, torch.cat([v.flatten() for v in bad.values()]))
    recorder = Recorder(tmp_path)
    recorder.open(good.layout)
    step = good.like(torch.full((good.layout.size,), 0.01))
    for index, sent in enumerate((good, good + step, turned)):
        recorder.write(Round(index, sent, (Update("a", step, 1, 1),), ("a",), (), sent + step))
    looked = {f.check: f for f in check_recording(Recording(tmp_path))}
    assert (looked["altered model"].verdict, looked["altered model"].rounds) == ("leaks", (2,))
    assert looked["model sent"].rounds == (2,)
