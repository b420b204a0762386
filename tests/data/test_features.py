"""Scattering and the features of a study: oracles for the arithmetic, and what is computed once and kept."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from leakline.data import DATASETS, PARTITIONERS, Data, Scattering, partition
from leakline.data.features import featured, publicly_scaled
from leakline.data.scattering import BELL, FREQUENCY, orders, scatter, standardised
from leakline.errors import DataError, StudyError
from leakline.study.files import write_atomically
from leakline.study.kept_features import FOLDER, kept, kept_in
from leakline.study.run import check_parts, run_study
from leakline.study.spec import parse
from leakline.study.tensors import pack_sealed, read_sealed

torch.set_num_threads(1)


def by_definition(image, j, angle, k=None, other=0.0):
    """|x * psi_j| (* psi_k|) * phi_2 in space, by sums over positions of an image that repeats itself, float64."""

    def conv(u, width, frequency, theta, slant):
        reach = math.ceil(6 * width / slant)
        rows, columns = np.mgrid[-reach : reach + 1, -reach : reach + 1].astype(float)
        along = rows * math.cos(theta) + columns * math.sin(theta)
        across = columns * math.cos(theta) - rows * math.sin(theta)
        bell = np.exp(-(along**2 + slant**2 * across**2) / (2 * width**2)) * slant / (2 * math.pi * width**2)
        kernel = bell * np.exp(1j * frequency * along)
        if frequency:
            kernel = kernel - kernel.sum() / bell.sum() * bell
        out = np.zeros(u.shape, dtype=complex)
        for r in range(-reach, reach + 1):
            for c in range(-reach, reach + 1):
                out += kernel[r + reach, c + reach] * np.roll(u, (r, c), (0, 1))
        return out

    u = np.abs(conv(image, BELL * 2**j, FREQUENCY / 2**j, angle, 0.5))
    if k is not None:
        u = np.abs(conv(u, BELL * 2**k, FREQUENCY / 2**k, other, 0.5))
    return conv(u, BELL * 2, 0.0, 0.0, 1.0).real


def test_coefficients_are_those_of_the_definition():
    rng = np.random.default_rng(3)
    x = rng.random((16, 16))
    mine = scatter(torch.tensor(x, dtype=torch.float32)[None, None], 2)[0, 0].double().numpy()
    mirrored = np.pad(x, 4, mode="reflect")
    assert len(mine) == sum(orders(2, 8, 2)) == 81
    pairs = {1: (0, 0.0), 4: (0, 3 * math.pi / 8), 9 + 64 + 2: (1, 2 * math.pi / 8)}
    for channel, (j, angle) in pairs.items():
        wanted = by_definition(mirrored, j, angle)[4:-4:4, 4:-4:4]
        # At scale j the sizes are taken at every 2^j-th place before they are smoothed: exact at j = 0 alone.
        np.testing.assert_allclose(mine[channel], wanted, rtol=1e-3 if j == 0 else 2e-2)
    second = by_definition(mirrored, 0, math.pi / 8, 1, 5 * math.pi / 8)[4:-4:4, 4:-4:4]
    np.testing.assert_allclose(mine[9 + 8 * 1 + 5], second, rtol=2e-2)


KYMATIO = {
    0: (0.646753, 0.473201, 0.422956),
    1: (0.009036, 0.025784, 0.023841),
    4: (0.04785, 0.030559, 0.036954),
    9: (0.018478, 0.027465, 0.055219),
    15: (0.01691, 0.005385, 0.035233),
    17: (0.000886, 0.000512, 0.002233),
    40: (0.003959, 0.003623, 0.002965),
    80: (0.001178, 0.000548, 0.002511),
}


def test_images_agree_with_kymatio():
    """Figures of kymatio 0.3.0 (J = 2, L = 8) at three places; its directions are (3 - t) pi / 8, and S1 come first."""
    i = torch.arange(32.0)
    x = 0.5 + 0.3 * torch.sin(0.9 * i)[:, None] * torch.cos(0.4 * i)[None] + 0.2 * torch.sin(i[:, None] * i[None] / 40)
    mine = scatter(x[None, None], 2)[0, 0]
    turn = [(3 - t) % 8 for t in range(8)]
    order = [0, *(1 + t for t in turn), *(73 + t for t in turn), *(9 + 8 * a + b for a in turn for b in turn)]
    for channel, figures in KYMATIO.items():
        part = mine[order[channel]]
        for value, figure in zip((part[0, 0], part[3, 5], part[7, 2]), figures, strict=True):
            assert float(value) == pytest.approx(figure, rel=1e-2, abs=2e-4)


@pytest.mark.parametrize("shape", [(1, 2, 32, 32), (1, 3, 128)])
def test_constants_and_translations(shape):
    flat = scatter(torch.full(shape, 0.7), 3)
    assert torch.allclose(flat[:, :, 0], torch.tensor(0.7), atol=1e-5)
    assert flat[:, :, 1:].abs().max() < 1e-5
    x = torch.zeros(shape)
    x[..., 10:17] = torch.rand(*shape[:-1], 7, generator=torch.Generator().manual_seed(0))
    here, there = scatter(x, 2), scatter(x.roll(4, -1), 2)
    assert torch.allclose(here[..., 1:5], there[..., 2:6], atol=2e-4)
    assert (here - there).abs().max() > 1e-2


def test_a_tone_is_found_at_its_scale():
    time = torch.arange(256.0)
    for j in range(4):
        s = scatter(torch.sin(FREQUENCY / 2**j * time)[None, None], 4)[0, 0].mean(-1)
        places = np.cumsum([0, *orders(4, 8, 1)])  # S0, then S1 of each scale with its S2 behind it
        firsts = [places[1 + sum(4 - i for i in range(scale))] for scale in range(4)]
        assert int(torch.stack([s[p] for p in firsts]).argmax()) == j


def test_a_records_features_are_its_own():
    x = torch.rand(5, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    data = Data((x * 255).to(torch.uint8), torch.zeros(5, dtype=torch.int64))
    together = Scattering().of(data)
    alone = torch.cat([Scattering().of(data.take([i])) for i in range(5)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-6)
    assert torch.allclose(together.norm(dim=1), torch.ones(5), atol=1e-5)
    groups = orders(2, 8, 2)
    for part in standardised(scatter(x, 2), groups).split(groups, dim=2):
        assert part.flatten(2).mean(-1).abs().max() < 1e-5
    empty = standardised(torch.zeros(1, 1, 81, 2, 2), groups)  # a black image has features, too
    assert bool(empty.isfinite().all())


def test_public_statistics_scale_everybody_alike():
    dataset = featured(DATASETS["digits"](limit=120).load(), Scattering(1, 4, "public"))
    task = partition(dataset, PARTITIONERS["even"](), 2, server_validation=0.25)
    scaled = publicly_scaled(task)
    assert scaled.validation.x.mean(0).abs().max() < 1e-4
    ratio = (scaled.clients[0].train.x[0] - scaled.clients[1].train.x[0]) / (
        task.clients[0].train.x[0] - task.clients[1].train.x[0]
    )
    other = (scaled.test.x[0] - scaled.test.x[3]) / (task.test.x[0] - task.test.x[3])
    sound = ratio.isfinite() & other.isfinite() & (ratio < 1e3)
    torch.testing.assert_close(ratio[sound], other[sound], rtol=1e-2, atol=1e-2)
    with pytest.raises(DataError, match="validation data"):
        publicly_scaled(partition(dataset, PARTITIONERS["even"](), 2))


STUDY = """\
name = "featured"
noise = "seeded"
model = "linear"
[data]
use = "digits"
limit = 200
clients = 3
features = {features}
[training]
rounds = 2
learning_rate = 4.0
"""


def test_features_are_computed_once_and_kept_with_the_run(tmp_path):
    study = parse(STUDY.format(features='{ use = "scattering", scales = 1 }'))
    (outcome,) = run_study(study, tmp_path / "out", workers=1)
    assert not outcome.error
    (file,) = (tmp_path / "out" / FOLDER).iterdir()
    assert file.stat().st_mode & 0o077 == 0
    data, features = DATASETS["digits"](limit=200).load().train, Scattering(1)
    tensors, meta = read_sealed(file)
    values = tensors.pop("x").clone()
    assert torch.equal(values, features.of(data))
    with kept_in(tmp_path / "out"):
        write_atomically(file, pack_sealed({"x": torch.zeros(200, 3)}, meta))  # whole, and so it is believed
        assert torch.equal(kept(features, data), torch.zeros(200, 3))
        write_atomically(file, file.read_bytes()[:-4] + b"\1\1\1\1")  # damaged
        assert torch.equal(kept(features, data), values)
        assert torch.equal(read_sealed(file)[0]["x"], values)
        kept(Scattering(1, 4), data)
    assert len(list((tmp_path / "out" / FOLDER).iterdir())) == 2


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ('{ use = "scattering", scales = 3 }', "at least 16 a side"),
        ('{ use = "scattering", scales = 0 }', "scales must lie"),
        ('{ use = "scattering", scale = 2 }', "unknown key"),
        ('{ use = "wavelets" }', "there is no"),
        ('{ use = "scattering", scales = 1, normalise = "public" }', "validation data"),
    ],
)
def test_bad_input_is_said_before_training(features, message):
    with pytest.raises(StudyError, match=message):
        check_parts(parse(STUDY.format(features=features)))


def test_what_attacks_say_of_features():
    text = STUDY.format(features='{ use = "scattering", scales = 1 }')
    check_parts(parse(text + '[[attacks]]\nuse = "membership-inference"\nshadows = 4\nrecords = 20\n'))
    for attack in ("gradient-inversion", "imprint"):
        with pytest.raises(StudyError, match="images"):
            check_parts(parse(text + f'[[attacks]]\nuse = "{attack}"\n'))
