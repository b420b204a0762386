"""Embeddings: penultimate features by hand, training that can be repeated, weights from files, pools and lineups."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from leakline.attacks.inversion.embedding import architecture, embed, load, save, trained
from leakline.attacks.inversion.lineup import _quota, pool_of
from leakline.data.base import Data
from leakline.data.phantoms import Phantoms
from leakline.errors import DataError
from leakline.leakage.images import cosine

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def public():
    return Phantoms(examples=60, size=32, seed=5).load().train.take(range(24))


@pytest.fixture(scope="module")
def network(public):
    return trained(public, seed=3)


def test_embeddings_are_the_input_of_the_last_linear_layer():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 7), nn.Tanh())
    head = nn.Linear(7, 2)
    images = torch.rand(9, 1, 8, 8)
    whole = nn.Sequential(body, head).train()
    body[1].running_mean += 0.3
    found = embed(whole, images, batch=4)
    assert whole.training  # its mode is put back
    assert not found.requires_grad
    body.eval()
    with torch.no_grad():
        assert torch.allclose(found, body(images), atol=1e-6)
        # Not linear at its end: the output itself, flattened.
        assert torch.allclose(embed(body[:3].eval(), images), body[:3](images).flatten(1), atol=1e-6)


def test_a_linear_layer_that_is_registered_last_but_used_first_is_not_the_last():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first = nn.Linear(5, 2), nn.Linear(4, 5)

        def forward(self, x):
            return self.last(self.first(x.flatten(1)))

    model, images = Backwards(), torch.rand(3, 1, 2, 2)
    assert torch.equal(embed(model, images), model.first(images.flatten(1)).detach())


def test_mixed_modes_are_put_back():
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 2)).train()
    model[1].eval()
    embed(model, torch.rand(2, 1, 2, 2))
    assert (model.training, model[1].training, model[2].training) == (True, False, True)


def test_the_same_seed_gives_the_same_network_and_no_global_randomness_is_used(public, network):
    state = torch.get_rng_state()
    few = public.take(range(16))
    first, again, other = (trained(few, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(state, torch.get_rng_state())
    for (name, one), (_, two) in zip(first.state_dict().items(), again.state_dict().items(), strict=True):
        assert torch.equal(one, two), name
    assert not torch.equal(first.state_dict()["stem.0.weight"], other.state_dict()["stem.0.weight"])
    assert not any(p.requires_grad for p in network.parameters())


def test_the_default_network_finds_noisy_images_again_that_it_was_not_trained_on(network):
    images = Phantoms(examples=60, size=32, seed=6).load().train.inputs(slice(0, 60))
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    points = embed(network, images)
    assert points.shape == (60, 128)
    nearest = cosine(embed(network, (images + 0.03 * noise).clamp(0, 1)), points).argmax(1)
    # Blind guessing finds one; twenty or more with probability below 1e-18.
    assert (nearest == torch.arange(60)).sum() >= 20


def test_large_images_are_averaged_down_and_colours_are_taken():
    network = architecture((3, 130, 96))
    assert embed(network, torch.rand(2, 3, 130, 96)).shape == (2, 128)
    small = nn.functional.adaptive_avg_pool2d(torch.rand(2, 3, 130, 96, generator=torch.Generator().manual_seed(1)), 64)
    assert torch.allclose(embed(network, small), embed(architecture((3, 64, 64)), small), atol=1e-5)
    with pytest.raises(DataError, match=r"\(1, 40\)"):
        architecture((1, 40))


def test_too_few_images_are_refused_with_what_to_do(public):
    with pytest.raises(DataError, match="(?s)9 public images are too few.*server_validation"):
        trained(public.take(range(9)), seed=0)


def test_weights_go_through_a_file_and_wrong_ones_are_refused(network, public, tmp_path):
    path = tmp_path / "weights.safetensors"
    save(network, path)
    images = public.inputs(slice(0, 5))
    assert torch.equal(embed(load(path, (1, 32, 32)), images), embed(network, images))
    with pytest.raises(DataError, match=r"(?s)stem.0.weight is \(16, 1, 3, 3\), expected \(16, 3, 3, 3\).*weights"):
        load(path, (3, 32, 32))
    save(nn.Linear(2, 2), tmp_path / "other")
    with pytest.raises(DataError, match=r"is not there, expected \(16, 1, 3, 3\)"):
        load(tmp_path / "other", (1, 32, 32))
    state = network.state_dict()
    save_file({**state, "extra": torch.zeros(1)}, tmp_path / "more")
    with pytest.raises(DataError, match="extra is .*expected no such name"):
        load(tmp_path / "more", (1, 32, 32))
    save_file({**state, "stem.0.weight": state["stem.0.weight"] * float("nan")}, tmp_path / "nan")
    with pytest.raises(DataError, match="not all finite"):
        load(tmp_path / "nan", (1, 32, 32))
    (tmp_path / "pickle").write_bytes(b"\x80\x04N.")
    for name in ("pickle", "nowhere"):
        with pytest.raises(DataError, match="(?s)cannot be read.*fix:"):
            load(tmp_path / name, (1, 32, 32))


def noise(n, seed):
    return Data(torch.rand(n, 1, 4, 4, generator=torch.Generator().manual_seed(seed)), torch.zeros(n))


def test_a_pool_holds_each_image_once_and_knows_all_who_hold_it():
    a, b, public = noise(3, 0), noise(2, 1), noise(4, 2)
    twin = Data(torch.cat([b.x, a.x[:1]]), torch.zeros(3))  # shares an image with a
    pool = pool_of(nn.Flatten(), {"a": a, "b": twin}, public, seed=0)
    assert len(pool.features) == 3 + 2 + 4
    assert pool.holders.count(frozenset({"a", "b"})) == 1
    assert pool.holders.count(frozenset()) == 4
    others = cosine(public.x.flatten(1), pool.features)
    others[others > 1 - 1e-9] = -1  # itself
    assert pool.near == pytest.approx(float(others.amax(1).mean()), abs=1e-6)
    for client, data in (("a", a), ("b", twin)):
        line_up = pool.lineup(client, data.x)
        assert line_up.owners.count(client) == 3
        assert line_up.features.shape == (9, 16)
        assert torch.equal(line_up.features[line_up.places], data.x.flatten(1))
    doubled = pool.lineup("a", torch.cat([a.x, a.x[:1]]))
    assert doubled.places[0] == doubled.places[3]
    assert doubled.owners.count("a") == 3
    assert pool_of(nn.Flatten(), {"a": a}, None, seed=0).near is None


def test_a_network_that_sees_nothing_gives_nobody_away():
    class Blind(nn.Module):
        def forward(self, x):
            return torch.ones(len(x), 3)

    a = noise(2, 0)
    line_up = pool_of(Blind(), {"a": a}, noise(5, 1), seed=0).lineup("a", a.x)
    nearest = cosine(torch.ones(1, 3), line_up.features).argmax(1)
    assert line_up.owners[int(nearest)] != "a"


def test_large_pools_are_thinned_where_most_is_held_and_the_attacked_stays_whole():
    held = {"small": noise(3, 0), "large": noise(50, 1)}
    pool = pool_of(nn.Flatten(), held, noise(100, 2), seed=0, most=43)
    assert len(pool.features) == 43
    assert sum("small" in names for names in pool.holders) == 3
    assert pool.lineup("large", held["large"].x).owners.count("large") == 50


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(1, 200))
def test_the_quota_is_the_largest_that_fits(sizes, most):
    quota = _quota(sizes, most)
    assert quota == 1 or sum(min(n, quota) for n in sizes) <= most
    assert quota == max(sizes) or sum(min(n, quota + 1) for n in sizes) > most
