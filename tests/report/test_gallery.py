"""Reconstructions in a report: lists beside the pictures of a turn, the attack's name, the slider's levels, bounds."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from leakline.attacks.base import Artefact
from leakline.attacks.inversion.judge import Reconstruction, TrueImages, readings
from leakline.readings import Reading
from leakline.report.gallery.gallery import MOST_IMAGES, gallery_of
from leakline.report.page.build import build_report
from leakline.results import read
from leakline.study import artefacts
from leakline.study.media import SEALS
from leakline.study.store import Run

torch.set_num_threads(1)


def gallery(root):
    return gallery_of(read(root))


def cells(root):
    return [c for c in read(root).cells if c.labels["seed"] == 0]


def noise(n, seed):
    return torch.rand(n, 1, 12, 12, generator=torch.Generator().manual_seed(seed))


def invert(root, cell, key, by, level=0.0, client="client-1", images=1, index=0):
    """Let the judge write what an attack that met a cell would have left there."""
    run = root / "runs" / cell.key
    attack = Run(run).media(f"{by}-{key}")
    secret = TrueImages(noise(images, 0), noise(1, 1), None, client, index, noise=level)
    made = (secret.images + (0.01 + level) * noise(images, 2)).clamp(0, 1)
    results = readings([Reconstruction(made, 0.0, 10, 1.0)], [secret])
    artefacts.write(attack, [one for one in results if isinstance(one, Artefact)])
    found = [one for one in results if isinstance(one, Reading)]
    with open(run / "attacks.jsonl", "a") as file:
        for reading in found:
            file.write(json.dumps({**reading.line(), "by": by, "attack": f"{by}-{key}"}) + "\n")
    return attack / f"round-{index:04d}" / client, {r.measure: r for r in found if r.client}


def test_a_turn_becomes_a_strip_with_the_attacks_name_and_its_figures(root, read_page):
    cell = cells(root)[0]
    _, found = invert(root, cell, "0123abcd", "grad+bn")
    (strip,) = gallery(root).strips
    assert (strip.attack, strip.client, strip.round, strip.defence) == ("grad+bn", "client-1", "0", "none")
    assert [p.kind for p in strip.pictures] == ["original", "prior", "reconstruction"]
    assert f"SSIM {found['ssim'].value:.2f}, RDLV {found['rdlv'].value:.2f}" in strip.pictures[2].caption
    assert f"SSIM {found['ssim'].chance:.2f}" in strip.pictures[1].caption
    page = read_page(build_report(read(root)))
    assert "by grad+bn under none" in page.text
    assert len([a for tag, a in page.elements if tag == "img"]) == 3
    assert not [a for _, a in page.elements if "data-noise" in a]  # one level is no choice
    for options in ({"shareable": True}, {"images": False}):
        path = build_report(read(root), **options)
        assert not any(p.uri in path.read_text() for p in strip.pictures)
        assert not [a for tag, a in read_page(path).elements if tag == "img"]


def test_runs_that_differ_in_noise_share_a_strip_and_its_original(root, read_page):
    for cell, level in zip(cells(root), (0.0, 1.5), strict=True):
        invert(root, cell, "0123abcd", "ours", level)
        invert(root, cell, "99999999", "theirs", level)
    found = gallery(root)
    assert found.levels == (0.0, 1.5)
    assert [s.attack for s in found.strips] == ["ours", "theirs"]
    for strip in found.strips:
        assert [p.kind for p in strip.pictures] == ["original", "prior", "reconstruction", "reconstruction"]
        assert [p.noise for p in strip.pictures[2:]] == [0.0, 1.5]
        assert strip.pictures[2].caption.startswith("none, noise 0, SSIM")
        assert strip.pictures[3].caption.startswith("global-dp, noise 1.5, SSIM")
        assert [w["defence"] for w in strip.where] == ["none", "global-dp"]
        assert [p.where[0]["defence"] for p in strip.pictures[2:]] == ["none", "global-dp"]
        assert strip.where[0]["attack"] == strip.attack
    page = read_page(build_report(read(root)))
    assert sorted(a["data-noise"] for _, a in page.elements if "data-noise" in a) == ["0.0", "0.0", "1.5", "1.5"]
    assert "by ours under several defences" in page.text
    (slider,) = [a for _, a in page.elements if a.get("id") == "noise"]
    assert json.loads(slider["data-levels"]) == [0.0, 1.5]


def test_other_originals_or_seeds_stay_apart(root):
    first, second = cells(root)
    invert(root, first, "0123abcd", "ours")
    folder, _ = invert(root, second, "0123abcd", "ours", 1.0)
    Image.fromarray(np.zeros((12, 12), np.uint8)).save(folder / "original-00.png")
    (folder.parents[1] / SEALS).unlink()  # another original, not a damaged one
    assert [len(s.pictures) for s in gallery(root).strips] == [3, 3]
    other = next(c for c in read(root).cells if c.labels["seed"] == 1)
    invert(root, other, "0123abcd", "ours")
    assert sorted(s.place for s in gallery(root).strips) == ["fedavg, seed 0", "fedavg, seed 0", "fedavg, seed 1"]


def test_a_client_with_many_images_shows_some_and_says_so(root, read_page):
    invert(root, cells(root)[0], "0123abcd", "ours", images=10)
    found = gallery(root)
    assert [s.image for s in found.strips] == ["1", "2"]
    # Eight are listed, three pictures each.
    assert any(text.startswith(f"{3 * (8 - MOST_IMAGES)} pictures of clients") for text in found.left_out)
    assert "client-1 , image 2" in read_page(build_report(read(root))).text


def test_pictures_of_an_attack_whose_settings_are_gone_are_left_out(root):
    cell = cells(root)[0]
    invert(root, cell, "0123abcd", "ours")
    invert(root, cell, "ffffffff", "ours")  # the same name with other settings: the last one counts
    (strip,) = gallery(root).strips
    assert strip.attack == "ours"
    assert any("no longer" in text for text in gallery(root).left_out)


@pytest.mark.parametrize("part", ["file", "list", "turn"])
def test_nothing_outside_the_folder_is_followed(root, tmp_path, part):
    folder, _ = invert(root, cells(root)[0], "0123abcd", "ours")
    aside = tmp_path / "aside"
    if part == "turn":
        folder.rename(aside)
        folder.symlink_to(aside)
    else:
        name = {"file": "reconstruction-00.png", "list": "media.json"}[part]
        (folder / name).rename(aside)
        (folder / name).symlink_to(aside)
    found = gallery(root)
    shown = [p.kind for s in found.strips for p in s.pictures]
    assert shown == {"file": ["original", "prior"], "list": [], "turn": []}[part]
    if part != "turn":
        assert found.left_out


def test_hostile_lists_and_names(root, read_page):
    folder, _ = invert(root, cells(root)[0], "0123abcd", "<script>alert(1)</script>")
    entries = json.loads((folder / "media.json").read_text())
    entries[0] |= {"client": "<img src=x>", "image": "<b>", "noise": "1"}
    entries[1] |= {"image": -3, "ssim": float("nan")}
    entries[2] |= {"image": 10**400, "noise": None}
    (folder / "media.json").write_text(json.dumps([*entries, {"file": "../x.png", "kind": "prior"}, []]))
    found = gallery(root)
    assert all(s.client == "client-1" for s in found.strips)  # the folder says whose
    text = build_report(read(root)).read_text()
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    (folder / "media.json").write_text("[" * 100_000)
    assert gallery(root).strips == ()


STUDY = """
name = "inverted"
seeds = [0]
noise = "seeded"
[data]
use = "phantoms"
examples = 40
size = 32
clients = 2
client_test = 0.0
server_test = 0.5
[model]
use = "small-cnn"
channels = [4]
hidden = 8
norm = "batch"
[training]
rounds = 1
batch = 0
learning_rate = 0.01
[strategies]
fedavg = { use = "fedavg" }
[defences]
none = []
loud = [{ use = "percentile-gaussian", sigma0 = 5.0 }]
[[attacks]]
use = "gradient-inversion"
name = "ours"
iterations = 3
restarts = 1
deals = 1  # which labels fit best is not what this is about
"""


def test_a_study_shows_what_its_attacks_made_by_the_names_it_gave_them(tmp_path):
    from leakline.study.run import run_study
    from leakline.study.spec import parse

    assert [o.error for o in run_study(parse(STUDY), tmp_path, workers=1)] == ["", ""]
    found = gallery(tmp_path)
    assert found.levels == (0.0, 5.0)
    assert {s.attack for s in found.strips} == {"ours"}
    assert all([p.kind for p in s.pictures].count("reconstruction") == 2 for s in found.strips)
    readings = [r for cell in read(tmp_path).cells for r in cell.attacks]
    assert {"iip", "iip-exact", "cosine"} <= {r.measure for r in readings}
