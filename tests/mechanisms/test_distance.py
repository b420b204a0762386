"""How far apart the clients of a round are."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from leakline.mechanisms import clip_norm, distances, spread
from leakline.mechanisms.distance import BLOCK
from leakline.weights import Entry, Layout

LAYOUT = Layout((Entry("a", (30, 7)), Entry("b", (5,)), Entry("c", (BLOCK + 17,))))


def rows(n: int, seed: int = 0, scale: float = 1.0, common: float = 0.0) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    centre = torch.randn(LAYOUT.size, generator=g) * common
    return [centre + scale * torch.randn(LAYOUT.size, generator=g) for _ in range(n)]


def naive(vectors: list[torch.Tensor]) -> np.ndarray:
    """Layer by layer, pair by pair, in float64."""
    n = len(vectors)
    out = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            parts = [
                np.linalg.norm((vectors[i][s].double() - vectors[j][s].double()).numpy())
                for s in LAYOUT.slices.values()
            ]
            out[i, j] = sum(parts) / len(parts)
    return out


@pytest.mark.parametrize(("scale", "common"), [(1.0, 0.0), (1e-3, 1.0), (1e-2, 100.0)])
def test_gram_matrices_give_what_the_plain_loop_gives(scale, common):
    vectors = rows(5, scale=scale, common=common)
    expected = naive(vectors)
    assert np.allclose(distances(vectors, LAYOUT).numpy(), expected, rtol=1e-6, atol=1e-6 * expected.max())


def test_equal_clients_are_at_distance_zero():
    vector = torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(0))
    assert spread([vector, vector.clone(), vector], LAYOUT) == 0.0


def test_it_is_symmetric_zero_on_the_diagonal_and_its_largest_entry_is_the_spread():
    vectors = rows(4)
    d = distances(vectors, LAYOUT)
    assert torch.equal(d, d.T)
    assert torch.equal(d.diagonal(), torch.zeros(4, dtype=torch.float64))
    assert spread(vectors, LAYOUT) == pytest.approx(float(d.max()), rel=1e-6)


@pytest.mark.parametrize("bound", [0.1, 1.0, 5.0])
def test_after_clipping_no_two_clients_are_further_apart_than_twice_the_bound_over_root_layers(bound):
    g = torch.Generator().manual_seed(3)
    clipped = [clip_norm(torch.randn(LAYOUT.size, generator=g) * 10, bound) for _ in range(4)]
    # opposite vectors spread evenly over the layers reach the bound
    even = torch.cat([torch.full((e.size,), 1 / math.sqrt(e.size)) for e in LAYOUT.entries])
    worst = clip_norm(even * 100, bound)
    limit = 2 * bound / math.sqrt(len(LAYOUT.entries))
    assert spread([*clipped, worst, -worst], LAYOUT) <= limit * (1 + 1e-6)
    assert spread([worst, -worst], LAYOUT) == pytest.approx(limit, rel=1e-5)
