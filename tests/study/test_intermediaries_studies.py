"""The two studies of paper 004, and masks that cannot be trained on: a clear answer before anything is trained."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from leakline.data import ByColumn, Data, Dataset, partition
from leakline.data.prepared_masks import Prostate
from leakline.errors import DataError, StudyError
from leakline.study.check import check_study
from leakline.study.run import run_study
from leakline.study.spec import load, parse
from leakline.utility.segmentation import dice, iou

STUDIES = {"segmentation": ((0.3, 0.5, 0.7), 6), "classification": ((0.5, 1.0, 1.5), 20)}


def masked_study(path: Path) -> str:
    return f"""
name = "masks"
[data]
use = "npz"
path = "{path}"
columns = ["site"]
partition = {{ use = "by-column", column = "site" }}
server_test = 0.0
client_test = 0.25
[model]
use = "small-unet"
widths = [8, 8]
[training]
rounds = 1
evaluate = "clients"
"""


def write(path: Path, masks: np.ndarray, sites: list[str]) -> str:
    x = np.random.default_rng(0).integers(0, 255, (len(sites), 16, 16), dtype=np.uint8)
    np.savez(path, x=x, y=masks, site=np.array(sites))
    return masked_study(path)


def good_masks(n: int) -> np.ndarray:
    masks = np.zeros((n, 16, 16), np.uint8)
    masks[:, 4:8, 4:8] = 1
    return masks


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("preset", ["desk", "paper"])
def test_both_presets_hold_the_paper_s_grid_and_its_controls(monkeypatch, name: str, preset: str):
    monkeypatch.delenv("LEAKLINE_DATA", raising=False)
    study = load(f"intermediaries-{name}", preset, ["data.otherwise.size=32", "data.otherwise.examples=240"])
    zs, clients = STUDIES[name]
    arms = {}
    for cell in study.cells:
        if cell.labels["scenario"] == "table-1" and cell.labels["strategy"] == "fedavg":
            arms[cell.labels["defence"]] = cell
    found = {label: cell.federation().defences for label, cell in arms.items() if cell.labels["seed"] == 2}
    settings = {label: (d[0].noise_multiplier, d[0].parts, d[0].clip) for label, d in found.items() if d}
    for z in zs:
        assert settings[f"dp-{z:g}"][:2] == (z, 1)
        assert settings[f"rule-{z:g}"][:2] == (z, "paper")
    splits = [label.removeprefix("split-") for label in settings if label.startswith("split-")]
    assert splits
    for z in splits:
        split, honest = settings[f"split-{z}"], settings[f"honest-{z}"]
        assert split[0] == float(z)
        # The same mu of one client, v / z, with and without a split.
        assert math.isclose(split[1] / split[0], honest[1] / honest[0])
    controls = [float(label.removeprefix("strict-")) for label in settings if label.startswith("strict-")]
    for z in controls:
        strict, plain = settings[f"strict-{z:g}"], settings[f"dp-{z:g}"]
        assert math.isclose(strict[1] / strict[0], plain[1] / plain[0])
        assert settings.get(f"larger-{z:g}", (strict[0], 1))[:2] == (strict[0], 1)
    assert controls
    bounds = {clip for label, (_, _, clip) in settings.items() if not label.startswith(("rule", "tuned"))}
    assert len(bounds) == 1  # arms that are compared differ in z and v alone
    federation = arms["none"].federation()
    assert len(federation.task.clients) == clients
    assert federation.strategy.combine.influence(1.0, 4) == 0.25


PARTS = {
    "segmentation": {"table-1": (5.9, 7.8, 8.8), "table-1-others": (5.9, 7.8, 8.8), "table-1-dp2": (5.9, 7.8, 8.8)},
    "classification": {"table-1": (6.4, 9.1, 11.1), "table-1-others": (4.9, 9.2, 11.5), "table-1-dp2": (4.7, 6.6, 8.4)},
}
"""The parts (root mean square) at which the paper's rule came to rest with the real data, by z."""


@pytest.mark.parametrize("name", STUDIES)
def test_every_rule_of_the_desk_has_an_arm_without_a_split_that_is_nearly_as_private(monkeypatch, name: str):
    monkeypatch.delenv("LEAKLINE_DATA", raising=False)
    study = load(f"intermediaries-{name}", "desk", ["data.otherwise.size=32", "data.otherwise.examples=240"])
    for scenario, parts in PARTS[name].items():
        cells = [c for c in study.cells if c.labels["scenario"] == scenario and c.labels["seed"] == 0]
        for strategy in {c.labels["strategy"] for c in cells}:
            own = [c.federation().defences for c in cells if c.labels["strategy"] == strategy]
            zs = [d[-1].noise_multiplier for d in own if d and getattr(d[-1], "parts", 0) == 1]
            for z, v in zip(STUDIES[name][0], parts, strict=True):
                assert any(z / v <= other < 2 * z / v for other in zs), (scenario, strategy, z)


def own_files(folder: Path, patients: bool = True) -> None:
    """Files of the paper's two data sets in their layouts: 20 patients of four slices each, at six sites."""
    rng, n = np.random.default_rng(0), 80
    x, people = rng.integers(0, 255, (n, 32, 32), dtype=np.uint8), np.repeat(np.arange(n // 4), 4)
    np.savez(folder / "rsna_ich.npz", x=x, y=(np.arange(n) % 2).astype(np.uint8))
    names = {"patient": people, "patient_names": np.array([f"p{i}" for i in range(n // 4)])} if patients else {}
    np.savez(
        folder / "prostate_sites.npz", x=x, mask=np.full_like(x, 1), site=people % 6,
        site_names=np.array([f"site-{i}" for i in range(6)]), **names,
    )  # fmt: skip


@pytest.mark.parametrize("preset", ["desk", "paper"])
@pytest.mark.parametrize(("name", "own"), [("classification", "rsna-ich"), ("segmentation", "prostate")])
def test_the_paper_s_own_data_are_a_scenario_where_they_are_here_and_left_out_elsewhere(
    monkeypatch, tmp_path: Path, name: str, own: str, preset: str
):
    small = ["data.otherwise.size=32", "data.otherwise.examples=240"]
    monkeypatch.setenv("LEAKLINE_DATA", str(tmp_path))
    without = load(f"intermediaries-{name}", preset, small)
    assert not any(c.labels["scenario"].startswith(own) for c in without.cells)
    assert any(f"{own!r} is not here: the cells that ask for it are left out" in note for note in without.notes)
    own_files(tmp_path)
    cells = [c for c in load(f"intermediaries-{name}", preset, small).cells if c.labels["scenario"] == own]
    assert len(without.cells) + len(cells) <= len(load(f"intermediaries-{name}", preset, small).cells)
    task = cells[0].federation().task
    assert (task.name, len(task.clients)) == (own, STUDIES[name][1])
    if preset == "desk":
        assert len(cells) == 5 * 3


def test_a_sample_without_patients_does_not_stand_for_the_prostate_data(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("LEAKLINE_DATA", str(tmp_path))
    own_files(tmp_path, patients=False)
    assert Prostate().available()
    assert not Prostate(patients="named").available()
    own_files(tmp_path)
    assert Prostate(patients="named").available()


def test_a_study_of_data_that_are_not_here_says_that_nothing_is_left(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("LEAKLINE_DATA", str(tmp_path))
    text = 'name = "n"\nmodel = "linear"\ndata = { use = "mnist", clients = 2, otherwise = { use = "nothing" } }'
    with pytest.raises(StudyError, match="nothing is left to run: data set 'mnist' is not here"):
        parse(text)


@pytest.mark.parametrize("name", STUDIES)
def test_two_rounds_on_made_up_data(monkeypatch, tmp_path: Path, name: str):
    monkeypatch.delenv("LEAKLINE_DATA", raising=False)
    count = 120 if name == "segmentation" else 300
    small = [f"data.otherwise.examples={count}", "training.rounds=2", "seeds=[0]"]
    small.append("model.widths=[8, 8]" if name == "segmentation" else "model.hidden=8")
    study = load(f"intermediaries-{name}", "desk", small)
    z = 0.5  # both studies split at it
    wanted = {"none", f"dp-{z:g}", f"rule-{z:g}", f"split-{z:g}"}
    kept = tuple(c for c in study.cells if c.labels["scenario"] == "table-1" and c.labels["defence"] in wanted)
    from dataclasses import replace

    outcomes = list(run_study(replace(study, cells=kept), tmp_path / "out", workers=1))
    assert [o.error for o in outcomes] == [""] * 4
    last = outcomes[-1].run.rounds()[-1]["facts"]
    assert {"parts", "noise_level", "diversity", "ratio", "cosine_spread", "noise_std"} <= set(last)


def test_patients_of_the_segmentation_study_are_on_one_side_only(monkeypatch):
    monkeypatch.delenv("LEAKLINE_DATA", raising=False)
    task = load("intermediaries-segmentation", "desk").cells[0].federation().task
    for client in task.clients:
        assert client.test is not None
        assert not set(client.train.groups.tolist()) & set(client.test.groups.tolist())
        assert bool(client.train.y.flatten(1).any(1).all())


def test_a_site_without_masks_is_named(tmp_path: Path):
    masks = good_masks(24)
    masks[8:16] = 0
    found = check_study(parse(write(tmp_path / "m.npz", masks, ["a"] * 8 + ["b"] * 8 + ["c"] * 8)))
    assert len(found.problems) == 1
    assert "no training mask marks anything at b" in found.problems[0]
    assert "leave it out" in found.problems[0]


def test_a_site_whose_masks_mark_nothing_is_not_dropped_in_silence(tmp_path: Path):
    from leakline.data.prepare import PREPARE

    volume = np.random.default_rng(0).normal(100, 20, (2, 20, 20))
    for site, marks in (("BIDMC", np.ones((2, 20, 20), np.uint8)), ("HK", np.zeros((2, 20, 20), np.uint8))):
        (tmp_path / "in" / site).mkdir(parents=True)
        np.savez(tmp_path / "in" / site / "Case00.npz", image=volume, mask=marks)
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="no mask marks anything at HK"):
        PREPARE["prostate"](tmp_path / "in", tmp_path / "out")


def test_masks_of_another_size_and_masks_that_mark_nothing(tmp_path: Path):
    text = write(tmp_path / "s.npz", np.ones((8, 12, 12), np.uint8), ["a"] * 4 + ["b"] * 4)
    assert "masks are (12, 12), images (16, 16)" in check_study(parse(text)).problems[0]
    text = write(tmp_path / "e.npz", np.zeros((8, 16, 16), np.uint8), ["a"] * 4 + ["b"] * 4)
    problems = check_study(parse(text)).problems
    assert problems
    data = Data(torch.zeros(4, 1, 16, 16), torch.ones(4, 1, 8, 8, dtype=torch.uint8))
    with pytest.raises(DataError, match="masks are 1x8x8, images 1x16x16"):
        partition(Dataset("m", data, None, ("no", "yes"), "segmentation", {"site": ("a",) * 4}), ByColumn("site"))


def test_more_parts_than_images_are_refused_at_check(tmp_path: Path):
    text = (
        write(tmp_path / "p.npz", good_masks(16), ["a"] * 8 + ["b"] * 8)
        + """
[strategies]
fedavg = { use = "fedavg", weighting = "even" }
[defences]
split = [{ use = "intermediaries", noise_multiplier = 1.0, clip = 1.0, parts = 9 }]
"""
    )
    assert "too many for a client with 6" in check_study(parse(text)).problems[0]
    with pytest.raises(StudyError, match="too many for a client"):
        list(run_study(parse(text), tmp_path / "out", workers=1))


def test_empty_masks_are_warned_of_and_agree_with_each_other(tmp_path: Path):
    masks = good_masks(16)
    masks[::2] = 0
    found = check_study(parse(write(tmp_path / "w.npz", masks, ["a"] * 8 + ["b"] * 8)))
    assert not found.problems
    assert any("a model that marks nothing scores Dice 0.50" in w for w in found.warnings)
    nothing = torch.full((1, 1, 4, 4), -1.0)
    empty = torch.zeros(1, 1, 4, 4, dtype=torch.uint8)
    assert dice(nothing, empty).item() == iou(nothing, empty).item() == 1.0
    assert dice(-nothing, empty).item() == iou(-nothing, empty).item() == 0.0


def columns(values: list[str], patients: list[int]) -> Dataset:
    n = len(values)
    data = Data(torch.arange(n).float()[:, None], torch.arange(n) % 2, torch.tensor(patients))
    return Dataset("toy", data, None, ("0", "1"), columns={"site": tuple(values)})


def test_a_large_site_is_cut_into_clients_of_whole_patients():
    data = columns(["DU"] * 24 + ["CS"] * 8, [i // 2 for i in range(32)])
    task = partition(data, ByColumn("site", into={"DU": 2}), server_test=0.0, client_test=0.0)
    assert [c.name for c in task.clients] == ["CS", "DU-1", "DU-2"]
    assert [len(c.train) for c in task.clients] == [8, 12, 12]
    people = [set(c.train.groups.tolist()) for c in task.clients]
    assert not people[1] & people[2]
    rows = sorted(int(v) for c in task.clients for v in c.train.x[:, 0])
    assert rows == list(range(32))
    again = partition(data, ByColumn("site", into={"DU": 2}), server_test=0.0, client_test=0.0)
    assert [c.train.fingerprint() for c in again.clients] == [c.train.fingerprint() for c in task.clients]
    plain = partition(data, ByColumn("site"), 1, server_test=0.0)
    assert [c.name for c in plain.clients] == ["CS"]
    with pytest.raises(StudyError, match="has no value XX"):
        partition(data, ByColumn("site", into={"XX": 2}), server_test=0.0)
    with pytest.raises(ValueError, match="at least 1"):
        ByColumn("site", into={"DU": 0})
