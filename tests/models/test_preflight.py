import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from leakline.models import MENU, preflight, resolve

torch.set_num_threads(1)


def kinds(network, shape=(4,), **task):
    return {(finding.kind, finding.layer_name) for finding in preflight(network, shape, **task)}


def test_a_clean_network_has_no_findings():
    assert preflight(MENU["small-cnn"]().build((1, 8, 8), 10), (1, 8, 8), 10) == []
    unet = MENU["small-unet"]().build((1, 32, 32), 2, "segmentation")
    assert preflight(unet, (1, 32, 32), 2, "segmentation") == []


@pytest.mark.parametrize("name", ["resnet-18", "densenet-121", "unet"])
def test_monai_networks_are_clean_with_group_norm(name):
    pytest.importorskip("monai", reason="MONAI is an extra")
    kind = "segmentation" if name == "unet" else "classification"
    network = resolve(name, {"norm": "group"}).build((1, 32, 32), 3, kind)
    assert preflight(network, (1, 32, 32), 3, kind) == []


def test_batch_norm_is_named_by_layer_and_class():
    network = resolve("small-cnn", {"norm": "batch"}).build((1, 8, 8), 10)
    findings = preflight(network, (1, 8, 8), 10)
    assert {f.layer_name for f in findings if f.kind == "batch-norm"} == {"norm1", "norm2"}
    assert {f.layer_name for f in findings if f.kind == "integer-buffer"} == {
        "norm1.num_batches_tracked",
        "norm2.num_batches_tracked",
    }
    assert all("BatchNorm2d" in f.message and "norm" in f.fix for f in findings if f.kind == "batch-norm")


def test_a_batch_of_one_is_tried_where_batch_norm_could_fail():
    network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    assert ("single-example", "(the network)") in kinds(network)


def test_layers_that_write_in_place_or_draw_at_random():
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Dropout(0.0), nn.Linear(4, 2))
    assert kinds(network) == {("in-place", "1"), ("dropout", "2")}


def test_tied_frozen_and_wide_parameters():
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    network[1].weight = network[0].weight
    network[1].bias.requires_grad_(False)
    assert kinds(network) == {("tied-parameters", "1.weight")}  # what is frozen stays as it is, and does not travel
    findings = preflight(nn.Linear(4, 2).double(), (4,))
    assert {f.layer_name for f in findings if f.kind == "not-float32"} == {"weight", "bias"}
    assert any(f.kind == "output" and "fails on inputs" in f.message for f in findings)


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = torch.zeros(4)
        self.register_buffer("secret", torch.zeros(4), persistent=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.last = x.mean(0)
        self.count += 1
        return x


def test_hidden_state_is_found_and_left_untouched():
    memory = Remembering()
    network = nn.Sequential(memory, nn.Linear(4, 2))
    assert kinds(network) == {
        ("hidden-state", "0.last"),
        ("hidden-state", "0.secret"),
        ("integer-buffer", "0.count"),
    }
    assert memory.count == 0


@pytest.mark.parametrize(
    ("network", "task"),
    [
        (nn.Linear(4, 1), {"classes": 2}),
        (nn.Unflatten(1, (2, 2)), {}),
        (nn.Linear(5, 2), {}),
        (nn.Linear(4, 2), {"kind": "segmentation"}),
        (nn.LSTM(4, 2), {}),
    ],
)
def test_wrong_outputs(network, task):
    assert ("output", "(the network)") in kinds(network, **task)


def test_outputs_that_train_and_are_odd():
    assert ("output", "(the network)") in kinds(nn.Linear(4, 3), classes=2)
    assert ("probabilities", "(the network)") in kinds(nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), classes=3)
    assert kinds(nn.Linear(4, 3), classes=3) == set()


def test_non_finite_outputs_and_random_state():
    network = nn.Linear(4, 2)
    nn.init.constant_(network.bias, float("nan"))
    before = torch.random.get_rng_state()
    assert any("non-finite" in f.message for f in preflight(network, (4,)))
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.filterwarnings("ignore:.torch.nn.utils.weight_norm. is deprecated")
@pytest.mark.parametrize("make", [nn.utils.weight_norm, lambda layer: prune.l1_unstructured(layer, "weight", 0.5)])
def test_weights_that_a_layer_makes_are_no_obstacle(make):
    network = make(nn.Linear(4, 2))
    kept = network.weight
    assert ("output", "(the network)") not in kinds(network)
    assert network.weight is kept
