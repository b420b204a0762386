"""One round of messages: broken files, wrong keys and parts that do not fit hide nothing of each other."""

from __future__ import annotations

import csv
import warnings

import numpy as np
import pytest
from PIL import Image

from leakline.data import ImageFolder
from leakline.data.refused import Refused
from leakline.errors import LeaklineError
from leakline.study.check import check_study, look_further
from leakline.study.run import run_study
from leakline.study.spec import Mistaken, load

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # typer's import of click
    from leakline.cli.check import check

STUDY = """
name = "own"
model = "small-cnn"
training = { rounds = 1, batch = 8 }
data = { use = "image-folder", path = "scans", size = 8, labels = "labels.csv", clients = 2 }
defences.hide = [{ use = "global-dp", epsilon = 8, clip = 1.0 }]
attacks = ["loss-threshold"]
"""


@pytest.fixture
def folder(tmp_path):
    """Sixty images of twenty patients; two files are broken, a row has none, a patient is in two splits."""
    rng = np.random.default_rng(0)
    scans = tmp_path / "scans"
    scans.mkdir()
    rows = []
    for i in range(60):
        Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(scans / f"{i:02d}.png")
        split = "test" if i >= 48 or i == 0 else "train"
        rows.append((f"{i:02d}.png", "ill" if i // 3 % 2 else "well", f"P{i // 3}", split))
    for name in ("05.png", "31.png"):
        (scans / name).write_bytes(b"no image")
    with open(scans / "labels.csv", "w", newline="") as file:
        csv.writer(file).writerows([("file", "label", "patient", "split"), *rows, ("99.png", "ill", "P9", "")])
    return tmp_path


def problems(folder, *changes):
    text = STUDY
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "own.toml").write_text(text)
    try:
        return "\n".join(check_study(load(str(folder / "own.toml"))).problems)
    except Mistaken as error:
        return str(look_further(error))


FILES = ("2 of 60 image files cannot be read: 05.png", "1 of 61 rows of labels.csv have no file: 99.png")
SPLITS = "1 of 20 patients are in two splits, with 3 records: P0"
WEIGHTED = "GlobalDP is asked for epsilon = 8"
MENDED = (
    ("size = 8", "size = 8, max_bad_files = 3"),
    ("attacks", 'strategies.a = { use = "fedavg", weighting = "even" }\nattacks'),
)


def test_what_is_wrong_with_files_hides_nothing_else(folder):
    said = problems(folder)
    for text in (*FILES, SPLITS, WEIGHTED):
        assert said.count(text) == 1, text


def test_wrong_keys_hide_neither_files_nor_parts(folder):
    said = problems(folder, ("labels =", "lables ="), ("rounds = 1", "round = 1"))
    for text in ("data.lables - unknown key", "training.round - unknown key", *FILES, SPLITS, WEIGHTED):
        assert said.count(text) == 1, text


def test_a_way_to_share_out_that_fails_hides_no_part(folder):
    said = problems(folder, ("clients = 2", 'partition = { use = "by-column", column = "ward" }'))
    for text in (*FILES, SPLITS, "has no column 'ward'", WEIGHTED):
        assert said.count(text) == 1, text


def test_a_network_that_does_not_fit_is_said_beside_the_files(folder):
    said = problems(folder, ("size = 8", "size = 2"))
    for text in (*FILES, SPLITS, "network"):
        assert text in said


def test_files_are_said_of_all_cells_and_not_repeated_as_a_warning(folder):
    """For a defence whose promise cannot be kept no attack can be chosen; its data are broken all the same."""
    text = STUDY.replace("defences.hide", "defences.none = []\ndefences.hide").replace(
        '["loss-threshold"]', '"strongest"'
    )
    (folder / "own.toml").write_text(text)
    checked = check_study(load(str(folder / "own.toml")))
    (files,) = [text for text in checked.problems if "cannot be read" in text]
    assert files.startswith("all 2 cells: ")
    assert not [text for text in checked.warnings if "cannot be read" in text or "have no file" in text]


def test_after_one_round_nothing_is_left(folder):
    labels = folder / "scans" / "labels.csv"
    labels.write_text(labels.read_text().replace("00.png,well,P0,test", "00.png,well,P0,train"))
    assert problems(folder, *MENDED) == ""


def test_the_command_says_it_all(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "own.toml").write_text(STUDY.replace("labels =", "lables ="))
    with pytest.raises(LeaklineError) as caught:  # which ends the command with exit code 2
        check("own.toml")
    assert all(text in str(caught.value) for text in ("unknown key", *FILES, SPLITS, WEIGHTED))


def test_nothing_is_trained_on_what_is_left(folder):
    """A check that goes on must not teach a run to do so."""
    assert FILES[0] in problems(folder)
    study = load(str(folder / "own.toml"))
    check_study(study)
    with pytest.raises(Refused):
        study.cells[0].federation()
    with pytest.raises(LeaklineError, match="cannot be read"):
        list(run_study(study, folder / "runs"))
    assert not (folder / "runs" / "runs").exists()


def test_the_rest_has_no_patient_on_two_sides(folder):
    with pytest.raises(Refused) as caught:
        ImageFolder(str(folder / "scans"), size=8, labels="labels.csv").load()
    assert [error.what.partition(":")[0] for error in caught.value.each] == [
        "1 of 61 rows of labels.csv have no file", "1 of 20 patients are in two splits, with 3 records",
    ]  # fmt: skip
    rest = caught.value.rest
    assert (len(rest.train), len(rest.test)) == (46, 12)
    assert not set(rest.train.groups.tolist()) & set(rest.test.groups.tolist())
