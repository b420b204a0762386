import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from leakline.leakage import images as ours

torch.set_num_threads(1)

GAUSSIAN = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}


def picture(seed, shape, smooth=True):
    """Images in [0, 1] with flat regions, where a careless variance goes wrong."""
    draw = torch.Generator().manual_seed(seed)
    values = torch.rand(shape, generator=draw)
    if smooth:
        values = torch.nn.functional.avg_pool2d(values, 5, 1, 2)
        values[..., : shape[-1] // 2] = 0.8
    return values


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from([1, 3]), st.integers(11, 40), st.integers(11, 40), st.booleans())
def test_ssim_is_scikit_images(seed, channels, height, width, smooth):
    a, b = (picture(seed + k, (2, channels, height, width), smooth) for k in (0, 1))
    for data_range, scale in ((1.0, 1.0), (255.0, 255.0)):
        got = ours.ssim(scale * a, scale * b, data_range)
        uniform = ours.ssim(scale * a, scale * b, data_range, "uniform")
        for row in range(2):
            pair = (scale * a[row]).double().numpy(), (scale * b[row]).double().numpy()
            options = {"data_range": data_range, "channel_axis": 0}
            assert got[row] == pytest.approx(structural_similarity(*pair, **options, **GAUSSIAN), abs=1e-9)
            assert uniform[row] == pytest.approx(structural_similarity(*pair, **options), abs=1e-9)


def test_the_authors_variant_with_stretched_images():
    target, made = 255 * picture(0, (1, 3, 24, 24)), picture(1, (1, 3, 24, 24))
    spread = ours.stretch(made)
    assert spread.min() == 0
    assert spread.max() == 255
    assert (ours.stretch(torch.full((1, 1, 4, 4), 7.0)) == 0).all()
    reference = structural_similarity(
        target[0].double().numpy(), spread[0].numpy(), data_range=256, channel_axis=0, win_size=7
    )
    assert ours.ssim(target, spread, 256.0, "uniform").item() == pytest.approx(reference, abs=1e-9)


def test_ssim_limits_and_gradient():
    a = picture(3, (2, 1, 16, 16))
    torch.testing.assert_close(ours.ssim(a, a), torch.ones(2, dtype=torch.float64))
    assert (ours.ssim(a, 1 - a) < ours.ssim(a, a)).all()
    small = picture(4, (1, 1, 12, 12), smooth=False).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: ours.ssim(x, a[:1, :, :12, :12]), small)
    image = picture(5, (1, 1, 16, 16)).requires_grad_()
    ours.ssim(image, a[:1]).sum().backward()
    assert image.grad.dtype == torch.float32
    assert image.grad.abs().sum() > 0


def test_one_image_against_many_and_all_pairs():
    a, b = picture(0, (3, 1, 20, 20)), picture(1, (4, 1, 20, 20))
    table = ours.pairwise_ssim(a, b)
    assert table.shape == (3, 4)
    for row in range(3):
        torch.testing.assert_close(table[row], ours.ssim(a[row : row + 1], b))


def test_psnr_is_scikit_images():
    a, b = picture(0, (2, 3, 16, 16)), picture(1, (2, 3, 16, 16))
    for row in range(2):
        reference = peak_signal_noise_ratio(a[row].double().numpy(), b[row].double().numpy(), data_range=1.0)
        assert ours.psnr(a, b)[row] == pytest.approx(reference)
    assert ours.psnr(a, a).tolist() == [math.inf, math.inf]


def test_rdlv_of_the_prior_is_zero_and_of_the_target_is_the_gap():
    target, prior = picture(0, (2, 1, 20, 20)), picture(1, (1, 1, 20, 20))
    assert (ours.rdlv(target, prior, prior) == 0).all()
    known = ours.ssim(target, prior)
    assert (known > 0).all()
    torch.testing.assert_close(ours.rdlv(target, target, prior), (1 - known) / known)
    assert (ours.rdlv_max(target, torch.cat([prior, prior]), prior) == 0).all()


def test_rdlv_where_the_prior_is_unlike_the_target():
    target = picture(0, (1, 1, 20, 20), smooth=False)
    prior = 1 - target
    assert ours.ssim(target, prior) < 0
    gain = ours.ssim(target, target) - ours.ssim(target, prior)
    torch.testing.assert_close(ours.rdlv(target, target, prior), gain)
    assert (ours.rdlv(target, prior, prior) == 0).all()


def test_the_null_is_the_same_maximum():
    targets, prior = picture(0, (2, 1, 16, 16), smooth=False), picture(1, (1, 1, 16, 16))
    decoys = picture(2, (30, 1, 16, 16), smooth=False).view(10, 3, 1, 16, 16)
    null = ours.rdlv_null(targets, decoys, prior)
    assert null.shape == (10, 2)
    torch.testing.assert_close(null[4], ours.rdlv_max(targets, decoys[4], prior))
    found = ours.rdlv_max(targets, torch.cat([decoys[0], targets]), prior)
    assert (found > null.amax(0)).all()
    assert ours.p_value(float(found[0]), null[:, 0]) == pytest.approx(1 / 11)
    wider = ours.rdlv_null(targets, decoys.view(5, 6, 1, 16, 16), prior)
    torch.testing.assert_close(wider, null.view(5, 2, 2).amax(1))


def test_assign_pairs_one_to_one():
    scores = torch.tensor([[0.9, 0.8, 0.1], [0.8, 0.1, 0.1]])
    assert ours.assign(scores).tolist() == [1, 0, -1]


def test_cosine():
    a, b = torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.0, -3.0]])
    expected = [[1, math.sqrt(0.5), 0], [0, 0, 0]]
    torch.testing.assert_close(ours.cosine(a, b), torch.tensor(expected, dtype=torch.float64))


def pool_of(owner_counts, dimension=64):
    owners = [name for name, count in owner_counts.items() for _ in range(count)]
    return torch.randn(len(owners), dimension, generator=torch.Generator().manual_seed(0)), owners


def test_a_planted_leak_is_identified():
    pool, owners = pool_of({"client-1": 80, "client-9": 8})
    made = pool[80:] + 0.01
    found = ours.iip(made, pool, owners, "client-9", rng=np.random.default_rng(0))
    assert found.score == 1
    assert found.nearest.tolist() == list(range(80, 88))
    assert found.chance == pytest.approx(1 - (87 / 88) ** 8)
    # All 8 distinct neighbours fall to a client with 8 of 88 images in 1 of C(88, 8) = 6.4e10 relabellings:
    # one of 1,000 reaches the score with probability 2e-8.
    assert found.p_value == pytest.approx(1 / 1001)
    exact = ours.iip_exact(made, pool, torch.arange(80, 88), rng=np.random.default_rng(0))
    assert exact.score == 1
    assert exact.chance == pytest.approx(1 / 88)
    wrong = ours.iip_exact(made, pool, torch.arange(80, 88).flip(0), rng=np.random.default_rng(0))
    assert wrong.score == 0
    assert wrong.p_value == 1
    assert (found.cosine > 0.99).all()


def test_unique_matches_count_once():
    pool, owners = pool_of({"a": 5, "b": 5})
    made = pool[:1].repeat(4, 1)
    assert ours.iip(made, pool, owners, "a", rng=np.random.default_rng(0)).score == 0.25
    every = ours.iip(made, pool, owners, "a", rng=np.random.default_rng(0), unique=False)
    assert every.score == 1
    assert every.chance == 0.5


def test_chance_level_is_the_mean_of_the_null():
    pool, owners = pool_of({"big": 30, "small": 70})
    made = torch.randn(50, 64, generator=torch.Generator().manual_seed(1))
    found = ours.iip(made, pool, owners, "big", rng=np.random.default_rng(2), unique=False, draws=4000)
    # Five standard errors of the mean of 4,000 draws: false alarm 6e-7.
    assert abs(found.null.mean() - found.chance) < 5 * found.null.std() / math.sqrt(4000)
    assert found.chance == pytest.approx(0.3)
    exact = ours.iip_exact(made, pool, torch.arange(50), rng=np.random.default_rng(3), draws=4000)
    assert abs(exact.null.mean() - 0.01) < 5 * exact.null.std() / math.sqrt(4000)


def test_chance_with_unique_matches_is_that_of_random_neighbours():
    rng = np.random.default_rng(4)
    pool, owners = pool_of({"a": 12, "b": 8})
    chance = ours.iip(pool[:15], pool, owners, "a", rng=rng, draws=1).chance
    drawn = np.array([len(set(d[d < 12])) / 15 for d in rng.integers(0, 20, (4000, 15))])
    # Five standard errors: false alarm 6e-7.
    assert abs(drawn.mean() - chance) < 5 * drawn.std() / math.sqrt(4000)


def test_bad_input():
    a, small = picture(0, (2, 1, 16, 16)), torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="at least 11x11; got 8x8.*uniform"):
        ours.ssim(small, small)
    assert ours.ssim(small, small, variant="uniform") == 1
    with pytest.raises(ValueError, match="differ in shape"):
        ours.ssim(a, picture(0, (2, 3, 16, 16)))
    with pytest.raises(ValueError, match="got 2 and 3"):
        ours.ssim(a, picture(0, (3, 1, 16, 16)))
    with pytest.raises(ValueError, match=r"\[N, C, H, W\]"):
        ours.ssim(a[0], a[0])
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="nobody"):
        ours.iip(torch.ones(1, 2), torch.ones(2, 2), ["a", "b"], "nobody", rng=rng)
    with pytest.raises(ValueError, match="truth"):
        ours.iip_exact(torch.ones(1, 2), torch.ones(2, 2), torch.tensor([2]), rng=rng)
