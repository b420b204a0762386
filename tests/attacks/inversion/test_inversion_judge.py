"""What is read off reconstructions: perfect and blind ones as oracles, intervals, pictures and points on disk."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from leakline.attacks.base import Artefact
from leakline.attacks.inversion import scene
from leakline.attacks.inversion.embedding import save, trained
from leakline.attacks.inversion.judge import Reconstruction, TrueImages, first_hits, paired, readings
from leakline.attacks.inversion.lineup import pool_of
from leakline.data.base import Client, Data, Task
from leakline.data.phantoms import Phantoms
from leakline.defences import FedBN, GaussianRelease, PercentileGaussian
from leakline.errors import DataError
from leakline.federation import Federation
from leakline.leakage.images import iip
from leakline.models.small import SmallCNN
from leakline.readings import Reading
from leakline.stack import Stack
from leakline.study import artefacts

torch.set_num_threads(1)
SIDE = 12


def noise(n, seed, channels=1):
    return torch.rand(n, channels, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))


def federation_of(images, public, names):
    """Clients with one set of images each; nearest images are looked for by their pixels."""
    held = {n: Data(x, torch.zeros(len(x), dtype=torch.int64)) for n, x in zip(names, images, strict=True)}
    return pool_of(nn.Flatten(), held, Data(public, torch.zeros(len(public), dtype=torch.int64)), seed=0)


def judged(images, made, pool, names, rounds=None):
    prior = torch.full((1, *images[0].shape[1:]), 0.5)
    rounds = rounds or [0] * len(images)
    secrets = [TrueImages(x, prior, None, name, r, pool) for x, name, r in zip(images, names, rounds, strict=True)]
    found = readings([Reconstruction(m, 0.0, 10, 60.0) for m in made], secrets)
    return {(r.measure, r.client, r.round): r for r in found if isinstance(r, Reading)}


def written(folder, secret, made):
    """The readings of one turn, and the folder that its artefacts were written to."""
    found = readings([Reconstruction(made, 0.0, 1, 1.0)], [secret])
    artefacts.write(folder, [artefact for artefact in found if isinstance(artefact, Artefact)])
    here = folder / f"round-{secret.index:04d}" / secret.client
    return [reading for reading in found if isinstance(reading, Reading)], here


@pytest.fixture(scope="module")
def crowd():
    """Forty clients with one image each, and forty public images."""
    images = list(noise(40, 0).split(1))
    names = [f"c{i}" for i in range(40)]
    return images, names, federation_of(images, noise(40, 1), names)


def test_perfect_reconstructions_give_everybody_away(crowd):
    images, names, pool = crowd
    by = judged(images, images, pool, names)
    for name in names:
        for measure in ("iip", "iip-exact"):
            one = by[measure, name, 0]
            assert (one.value, one.n) == (1, 1)
            assert one.chance == pytest.approx(1 / 80)
            assert one.about["p"] < 0.06  # about (1 + 1000 / 80) / 1001
        assert by["cosine", name, 0].value == pytest.approx(1)
        assert by["cosine", name, 0].chance < 1
    whole = by["iip", None, None]
    assert (whole.value, whole.high, whole.n) == (1, 1, 40)
    assert whole.low == pytest.approx(0.025 ** (1 / 40))  # exact: 40 of 40
    for measure in ("iip", "iip-exact"):
        assert by[measure, None, None].about["p"] == pytest.approx(1 / 1001, rel=0.01)
    assert by["cosine", None, None].value == pytest.approx(1)
    assert by["ssim", None, None].value == pytest.approx(1)
    assert by["ssim", None, None].chance == pytest.approx(np.mean([by["ssim", n, 0].chance for n in names]))


def test_decoys_are_at_chance(crowd):
    images, names, pool = crowd
    by = judged(images, list(noise(40, 2).split(1)), pool, names)
    hits = sum(by["iip", n, 0].value for n in names)
    # Hits are independent and their probabilities add up to 1 at most: 7 or more happen less than once in 10,000.
    assert hits <= 6
    assert by["iip", None, None].value == pytest.approx(hits / 40)
    assert by["iip", None, None].chance == pytest.approx(1 / 80)
    assert by["iip", None, None].low <= hits / 40 <= by["iip", None, None].high


def test_clients_that_share_an_image_are_both_given_away():
    images = [noise(3, 0), noise(3, 0)[:1]]
    pool = federation_of(images, noise(20, 1), ["one", "nine"])
    by = judged(images, images, pool, ["one", "nine"])
    assert by["iip", "one", 0].value == by["iip", "nine", 0].value == 1
    assert by["iip-exact", "one", 0].value == by["iip-exact", "nine", 0].value == 1
    assert by["iip-exact", "nine", 0].chance == pytest.approx(1 / 23)


def test_several_images_have_intervals_and_the_exact_variant_says_that_it_looked():
    images, names = [noise(4, 0), noise(1, 1)], ["many", "one"]
    pool = federation_of(images, noise(30, 2), names)
    made = [torch.cat([images[0][[2, 0, 3]], noise(1, 3)]), images[1]]  # in another order, one of them wrong
    by = judged(images, made, pool, names)
    for measure in ("ssim", "rdlv", "iip", "iip-exact", "cosine"):
        many = by[measure, "many", 0]
        assert many.n == 4
        assert many.low <= many.value <= many.high
        assert by[measure, "one", 0].low is None
    assert by["iip-exact", "many", 0].value == 0.75
    assert "looking" in by["iip-exact", "many", 0].note
    assert "looking" not in by["iip-exact", "one", 0].note
    assert "looking" in by["iip-exact", None, None].note
    assert {by[m, None, None].n for m in ("ssim", "rdlv", "iip", "iip-exact", "cosine")} == {5}
    values = [by["ssim", "many", 0].value * 4, by["ssim", "one", 0].value]
    assert by["ssim", None, None].value == pytest.approx(sum(values) / 5)


def test_rounds_of_one_image_are_averaged_before_images_are_drawn():
    image = noise(1, 0)
    pool = federation_of([image], noise(9, 1), ["a"])
    by = judged([image, image], [image, noise(1, 5)], pool, ["a", "a"], rounds=[0, 7])
    whole = by["ssim", None, None]
    assert (whole.n, whole.low) == (1, None)
    assert whole.value == pytest.approx((by["ssim", "a", 0].value + by["ssim", "a", 7].value) / 2)


def test_hits_count_a_pool_image_once_as_iip_does():
    rng = np.random.default_rng(0)
    pool, made = torch.randn(55, 2, generator=torch.Generator().manual_seed(0)).split((30, 25))
    owners = ["a" if i < 12 else "b" for i in range(30)]
    found = iip(made, pool, owners, "a", rng=rng)
    hits = first_hits(found.nearest.numpy(), np.array([o == "a" for o in owners]))
    assert np.mean(hits) == pytest.approx(found.score)


def test_without_a_pool_there_is_no_iip_and_the_note_says_why(tmp_path):
    secret = TrueImages(noise(1, 0), noise(1, 1), None, "a", 0, unread="nothing public")
    found, folder = written(tmp_path, secret, noise(1, 2))
    assert {r.measure for r in found} == {"ssim", "psnr", "rdlv"}
    assert "no IIP: nothing public" in found[0].note
    assert not (folder / "embedding.npy").exists()


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_stand_beside_their_own_original(tmp_path, channels):
    images, prior = noise(10, 0, channels), noise(1, 1, channels)
    made = images.flip(0) * 0.9
    secret = TrueImages(images, prior, None, "a", 3, noise=5.0)
    _, folder = written(tmp_path, secret, made)
    pairs = {p.truth: p for p in paired(Reconstruction(made, 0.0, 1, 1.0), secret)}
    assert {t: p.made for t, p in pairs.items()} == {t: 9 - t for t in range(10)}
    entries = json.loads((folder / "media.json").read_text())
    assert len(entries) == 3 * 8
    assert all((e["client"], e["round"], e["noise"]) == ("a", 3, 5.0) for e in entries)

    def pixels(name):
        with Image.open(folder / name) as picture:
            return np.asarray(picture).reshape(SIDE, SIDE, channels).transpose(2, 0, 1) / 255

    for entry in entries:
        t = entry["image"]
        want = {"original": images[t], "prior": prior[0], "reconstruction": made[pairs[t].made]}[entry["kind"]]
        assert np.abs(pixels(entry["file"]) - want.numpy()).max() <= 0.5 / 255 + 1e-6
        if entry["kind"] == "reconstruction":
            assert entry["ssim"] == pytest.approx(pairs[t].ssim, abs=1e-6)
            known = pairs[t].prior  # the stated answer where it is not positive: the plain gain
            assert entry["rdlv"] == pytest.approx((pairs[t].ssim - known) / (known if known > 0 else 1), abs=1e-5)
        if entry["kind"] == "prior":
            assert entry["ssim"] == pytest.approx(pairs[t].prior, abs=1e-6)
    with Image.open(folder / "strip.png") as strip:
        assert strip.size == (3 * SIDE, 8 * SIDE)


def test_points_are_written_with_what_they_are(tmp_path):
    images = noise(3, 0)
    pool = federation_of([images], noise(5, 1), ["a"])
    prior, made = noise(1, 2), noise(3, 3)
    _, folder = written(tmp_path, TrueImages(images, prior, None, "a", 2, pool, 25.0), made)
    points = np.load(folder / "embedding.npy", allow_pickle=False)
    about = json.loads((folder / "embedding.json").read_text())
    assert points.dtype == np.float32
    assert np.array_equal(points, torch.cat([images, prior, made]).flatten(1).numpy())
    assert about == {
        "kind": ["original"] * 3 + ["prior"] + ["reconstruction"] * 3, "client": "a", "round": 2, "noise": 25.0,
    }  # fmt: skip


@pytest.fixture(scope="module")
def world():
    data = Phantoms(examples=60, size=32, seed=1).load().train
    clients = (Client("one", data.take([0])), Client("two", data.take([1, 2])))
    return Federation(Task(clients, None, data.take(range(20, 60)), ("0", "1", "2", "3")), SmallCNN((8,), 8))


def test_one_network_and_pool_for_all_turns_and_defences_of_the_same_data(world):
    prior = torch.zeros(1, 1, 32, 32)
    first = scene.truth(world, "one", 0, prior, 0)
    copied = Task(tuple(replace(c) for c in world.task.clients), None, world.task.validation, world.task.classes)
    guarded = replace(world, task=copied, defences=(PercentileGaussian(sigma0=15.0),))
    second = scene.truth(guarded, "two", 3, prior, 0)
    assert first.pool is second.pool
    assert (first.noise, second.noise, first.unread) == (0.0, 15.0, "")
    assert len(first.pool.features) == 43
    fewer = replace(world, task=replace(world.task, clients=world.task.clients[:1]))
    other = scene.truth(fewer, "one", 0, prior, 0)
    assert other.pool is not first.pool
    assert other.pool.network is first.pool.network  # its public images are the same


def test_noise_of_a_stack():
    assert Stack().loudness == Stack((FedBN(),)).loudness == 0
    assert Stack((FedBN(), GaussianRelease(noise_multiplier=0.5, clip=1.0))).loudness == 0.5


def test_a_federation_without_public_images_or_with_few_is_told_so(world):
    bare = replace(world, task=replace(world.task, validation=None))
    assert scene.lineup(bare, 0) == (None, "the server has no public images to train an embedding network on")
    few = replace(world, task=replace(world.task, validation=world.task.validation.take(range(5))))
    pool, why = scene.lineup(few, 0)
    assert pool is None
    assert "5 public images are too few" in why


def test_weights_of_a_file_are_used_and_wrong_ones_stop(world, tmp_path):
    path = tmp_path / "w.safetensors"
    network = trained(world.task.validation.take(range(16)), seed=9)
    save(network, path)
    bare = replace(world, task=replace(world.task, validation=None))
    pool, _ = scene.lineup(bare, 0, str(path))
    assert len(pool.features) == 3  # the clients' own: nothing public is needed then
    assert torch.equal(pool.network.state_dict()["stem.0.weight"], network.state_dict()["stem.0.weight"])
    with pytest.raises(DataError, match="cannot be read"):
        scene.lineup(world, 0, str(tmp_path / "none"))
