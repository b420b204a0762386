"""What one image's gradients give away exactly, against the true activations."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from leakline.attacks.inversion.exposed import Taps, dense_input, exposed, solve, span
from leakline.attacks.inversion.twin import Twin

torch.set_num_threads(1)


def true_gradients(model, x, y):
    loss = functional.cross_entropy(model(x), y)
    names = [n for n, _ in model.named_parameters()]
    return dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))


def image(size=16, seed=0):
    return torch.rand(1, 1, size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def read(model, x):
    """What is read of one image, and what the layers really had as input; batch means as BatchNorm would give them."""
    gradients = true_gradients(model, x, torch.tensor([1]))
    twin = Twin(model)
    sites = twin.sites(x)
    twin(x)
    means = {name: mean.detach() for name, (mean, _, _) in twin.seen.moments.items()}
    found = exposed(sites, gradients, {n: p.detach() for n, p in model.named_parameters()}, means)
    real = {}
    for name in found:
        model.get_submodule(name).register_forward_pre_hook(lambda _, args, name=name: real.__setitem__(name, args[0]))
    model(x)
    return found, real


def make(*layers, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(*[layer() for layer in layers]).double().train()


def test_a_dense_layers_input_is_the_ratio_of_its_gradients():
    f, g = torch.randn(7), torch.randn(3)
    assert torch.allclose(dense_input(torch.outer(g, f), g).float(), f, atol=1e-5)
    assert dense_input(torch.zeros(3, 7), torch.zeros(3)) is None


def test_a_span_is_read_only_where_the_rank_shows():
    g = torch.Generator().manual_seed(0)
    left, right = torch.randn(20, 6, generator=g), torch.randn(6, 30, generator=g)
    basis = span(left @ right, 6)
    assert basis is not None
    assert basis.shape == (6, 30)
    assert torch.allclose(basis.T @ (basis @ right.double().T), right.double().T, atol=1e-5)
    assert span(left @ right, 20) is None  # as many positions as channels: any gradient looks like this
    assert span(left @ right + 0.5 * torch.randn(20, 30, generator=g), 6) is None  # noise has filled the gap


def test_the_input_of_a_convolution_before_batch_norm_is_found():
    model = make(
        lambda: nn.Conv2d(1, 6, 3, padding=1),
        nn.Softplus,
        lambda: nn.AvgPool2d(2),
        lambda: nn.Conv2d(6, 32, 3, padding=1, stride=2, bias=False),
        lambda: nn.BatchNorm2d(32),
        nn.Softplus,
        nn.Flatten,
        lambda: nn.Linear(512, 3),
    )
    found, real = read(model, image())
    assert list(found) == ["3"]  # the first that can be read: what follows is a function of it
    assert torch.allclose(found["3"], real["3"].float(), rtol=1e-3, atol=1e-4)


def test_the_input_of_a_convolution_with_a_bias_and_no_norm_is_found():
    model = make(
        lambda: nn.Conv2d(1, 6, 3, padding=1),
        nn.Softplus,
        lambda: nn.AvgPool2d(4),
        lambda: nn.Conv2d(6, 32, 3, padding=1),
        nn.Tanh,
        nn.Flatten,
        lambda: nn.Linear(512, 3),
    )
    found, real = read(model, image())
    assert torch.allclose(found["3"], real["3"].float(), rtol=1e-3, atol=1e-4)


def test_a_dense_layer_is_read_where_no_convolution_can_be():
    model = make(lambda: nn.Conv2d(1, 4, 3, padding=1), nn.Tanh, nn.Flatten, lambda: nn.Linear(1024, 3))
    found, real = read(model, image())
    assert list(found) == ["3"]
    assert torch.allclose(found["3"], real["3"].float(), atol=1e-5)


def test_without_batch_means_a_normalised_convolution_has_no_scale_and_is_not_read():
    model = make(
        lambda: nn.Conv2d(1, 32, 3, padding=1, stride=4, bias=False),
        lambda: nn.BatchNorm2d(32),
        nn.Softplus,
        nn.Flatten,
        lambda: nn.Linear(512, 3, bias=False),
    )
    x = image()
    gradients = true_gradients(model, x, torch.tensor([0]))
    weights = {n: p.detach() for n, p in model.named_parameters()}
    assert exposed(Twin(model).sites(x), gradients, weights, {}) == {}


def test_layers_that_share_an_input_are_known_as_such():
    class Fork(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.norm = nn.Conv2d(1, 2, 3), nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)

        def forward(self, x):
            return self.norm(self.a(x)) + self.b(x)

    sites = {site.name: site for site in Twin(Fork()).sites(torch.rand(1, 1, 8, 8))}
    assert sites["a"].source == sites["b"].source
    assert (sites["a"].norm, sites["b"].norm) == ("norm", None)
    assert sites["a"].positions == 36


@pytest.mark.parametrize("stride", [1, 2])
def test_what_is_left_over_tells_a_wrong_span(stride):
    layer = nn.Conv2d(2, 40, 3, padding=1, stride=stride).double()
    g = torch.Generator().manual_seed(stride)
    basis = torch.linalg.qr(torch.randn(18, 5, generator=g, dtype=torch.float64))[0].T
    tap = Taps(layer, layer.weight.detach().flatten(1), basis, torch.randn(40, generator=g, dtype=torch.float64))
    assert solve([tap], (1, 2, 6, 6))[1] > 1e-2
