"""Whose examples these are: sheets, patterns and arrays, and that no split or client cuts through a patient."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from clinic import apart, write
from leakline.data import ByColumn, Counts, Dirichlet, Even, ImageFolder, Npz, Sizes, partition, table
from leakline.data.people import NOBODY, Record, gather
from leakline.data.sheet import pattern_of
from leakline.errors import DataError
from leakline.study.check import check_study
from leakline.study.spec import parse

PATIENTS = 24


def hospital(root, rows=True):
    """Three images of each of 24 patients at three sites, 72 in all, flat in one folder, and their sheet."""
    root.mkdir(exist_ok=True)
    sheet = []
    for p in range(PATIENTS):
        for i in range(3):
            name = f"img-{p}-{i}.png"
            Image.new("L", (8, 8), 10 * p + i).save(root / name)
            sheet.append(
                {"file": name, "label": "sick" if p % 2 else "well", "site": f"site {p % 3}", "patient": f"P{p:03d}",
                 "sex": "FM"[p % 2], "age": str(30 + p), "split": ""}
            )  # fmt: skip
    write(root, sheet)
    return sheet


def test_a_sheet_tells_what_each_image_is(tmp_path):
    hospital(tmp_path)
    data = ImageFolder(str(tmp_path), size=8, labels="labels.csv").load()
    assert data.classes == ("sick", "well")
    assert (len(data.train), data.test, data.group) == (72, None, "patient")
    first = data.train.x[:, 0, 0, 0].tolist()
    assert data.train.y.tolist() == [0 if value // 10 % 2 else 1 for value in first]
    assert data.columns["patient"] == tuple(f"P{value // 10:03d}" for value in first)
    assert set(data.columns) == {"site", "patient", "sex", "age"}
    assert data.traits["patient"]["P003"] == {"sex": "M", "age": 33.0}
    assert data.remarks == ()
    assert len(set(data.train.groups.tolist())) == PATIENTS


@pytest.mark.parametrize(
    "how", [Even(), Sizes((0.5, 0.2, 0.3)), Dirichlet(alpha=1.0), ByColumn("site"), ByColumn("patient")]
)
@pytest.mark.parametrize("seed", range(3))
def test_no_split_and_no_client_cuts_through_a_patient(tmp_path, how, seed):
    hospital(tmp_path)
    data = ImageFolder(str(tmp_path), size=8, labels="labels.csv").load()
    clients = 3 if isinstance(how, Even | Dirichlet) else None
    test = 0.0 if how == ByColumn("patient") else 0.2
    task = partition(data, how, clients, client_test=test, server_validation=0.1, seed=seed)
    assert apart(task)
    rows = {row.name: row for row in table(task)}
    assert sum(row.groups for row in rows.values()) == PATIENTS
    assert task.remarks == ()


def test_what_cuts_through_patients_is_said(tmp_path):
    hospital(tmp_path)
    data = ImageFolder(str(tmp_path), size=8, labels="labels.csv").load()
    assert partition(data, Even(), 3, keep_groups=False).remarks == (
        "keep_groups = false: splits cut through patients, and test figures are too good",
    )
    (said,) = partition(data, Counts(((10, 10), (10, 10)))).remarks
    assert said.endswith("patients have records at several clients")


def test_a_sheet_by_patient_with_a_folder_for_each(tmp_path):
    for p in range(6):
        (tmp_path / f"P{p}").mkdir()
        for i in range(2):
            Image.new("L", (8, 8), p).save(tmp_path / f"P{p}" / f"{i}.png")
    write(
        tmp_path, [{"patient": f"P{p}", "label": "ab"[p % 2], "split": "test" if p > 3 else "train"} for p in range(6)]
    )
    data = ImageFolder(str(tmp_path), labels="labels.csv", size=8).load()
    assert (len(data.train), len(data.test)) == (8, 4)
    assert data.train.groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert data.test.groups.tolist() == [4, 4, 5, 5]


def test_folder_names_by_a_pattern(tmp_path):
    for site in ("north", "south"):
        for label in ("sick", "well"):
            (tmp_path / site / label).mkdir(parents=True)
            for p in range(3):
                for i in range(2):
                    Image.new("L", (8, 8)).save(tmp_path / site / label / f"{site[0]}{label[0]}{p}_{i}.png")
    data = ImageFolder(str(tmp_path), pattern="{site}/{label}/{patient}_*.png", size=8).load()
    assert Counter(data.columns["site"]) == {"north": 12, "south": 12}
    assert len(set(data.columns["patient"])) == 12
    assert apart(partition(data, ByColumn("site")))
    Image.new("L", (8, 8)).save(tmp_path / "north" / "sick" / "stray.png")
    with pytest.raises(
        DataError, match=r"(?s)1 of 25 files do not fit the pattern: north/sick/stray\.png.*max_bad_files = 1"
    ):
        ImageFolder(str(tmp_path), pattern="{site}/{label}/{patient}_*.png", size=8).load()
    for wrong in ("{site}/{name}.png", "*.png", "{site}/{site}.png"):
        with pytest.raises(ValueError, match="a pattern names some of"):
            pattern_of(wrong)


def test_everything_wrong_with_a_sheet_is_said_at_once_with_counts(tmp_path):
    sheet = hospital(tmp_path)
    write(tmp_path, [*sheet[4:], {**sheet[0], "file": "gone.png"}, {**sheet[0], "file": "lost.png"}])
    (tmp_path / "img-5-0.png").write_bytes(b"no picture")
    with pytest.raises(DataError) as caught:
        ImageFolder(str(tmp_path), labels="labels.csv", size=8).load()
    for line in (
        "2 of 70 rows of labels.csv have no file: gone.png, lost.png",
        "4 of 72 files have no row in labels.csv: img-0-0.png, img-0-1.png, img-0-2.png, ...",
        "1 of 68 image files cannot be read: img-5-0.png",
        "set max_bad_files = 7",
    ):
        assert line in str(caught.value)
    data = ImageFolder(str(tmp_path), labels="labels.csv", size=8, max_bad_files=7).load()
    assert len(data.train) == 67
    assert len(data.remarks) == 3  # what was left out is not forgotten


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda rows: rows[1].update(split="test"), r"1 of 24 patients are in two splits, with 3 records: P000"),
        (lambda rows: rows[1].update(split="later"), r"1 records have a split that is none: later"),
        (lambda rows: [(r.pop("file"), r.pop("patient")) for r in rows], "neither a column file nor a column patient"),
        (lambda rows: rows.append({**rows[0], "label": "well?"}), r"1 files have rows that contradict each other"),
    ],
)
def test_a_sheet_that_cannot_be_right_is_refused(tmp_path, change, says):
    rows = hospital(tmp_path)
    change(rows)
    write(tmp_path, rows)
    with pytest.raises(DataError, match=says):
        ImageFolder(str(tmp_path), labels="labels.csv", size=8).load()


def test_a_sheet_is_looked_for_in_the_folder_and_nowhere_else(tmp_path):
    hospital(tmp_path / "images")
    write(tmp_path, [{"file": "a", "label": "b"}], "other.csv")
    with pytest.raises(DataError, match="outside its folder"):
        ImageFolder(str(tmp_path / "images"), labels="../other.csv", size=8).load()
    with pytest.raises(DataError, match="no regular file|no such file"):
        ImageFolder(str(tmp_path / "images"), labels="none.csv", size=8).load()


def test_records_without_patient_or_site_are_counted(tmp_path):
    rows = hospital(tmp_path)
    for row in rows[:5]:
        row.update(patient="", site="")
    write(tmp_path, rows)
    data = ImageFolder(str(tmp_path), labels="labels.csv", size=8).load()
    assert data.remarks == (
        "5 of 72 records have no patient: each counts as a patient of its own",
        '5 of 72 records have no site: their site is "unknown"',
    )
    assert len(set(data.train.groups.tolist())) == PATIENTS - 1 + 5  # P000 is gone, P001 has one image left


def test_an_archive_has_patients_too(tmp_path):
    path = str(tmp_path / "d.npz")
    x, y, who = np.zeros((12, 4, 4), np.uint8), np.arange(12) % 2, np.repeat(np.arange(6), 2)
    np.savez(path, x=x, y=y, patient=who, hospital=np.array(list("aabbccddaabb")))
    data = Npz(path, site="hospital").load()
    assert data.train.groups.tolist() == who.tolist()
    assert data.columns["site"] == tuple("aabbccddaabb")
    with pytest.raises(DataError, match=r"(?s)no array 'clinic'.*it holds: x, y, patient, hospital"):
        Npz(path, site="clinic").load()
    np.savez(path, x=x, y=y)
    assert Npz(path).load().remarks == (NOBODY,)
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y, patient=who, patient_test=who)
    with pytest.raises(DataError, match="6 of 6 patients are in two splits, with 24 records"):
        Npz(path).load()
    np.savez(path, x=x, y=y, patient=who, split=np.array(["train"] * 8 + ["test"] * 4))
    data = Npz(path).load()
    assert (len(data.train), data.test.groups.tolist()) == (8, [4, 4, 5, 5])
    np.savez(path, x=x, y=y, subject=who)
    assert Npz(path, patient="subject").load().train.groups.tolist() == who.tolist()


def test_a_check_shows_patients_and_warns_where_nobody_knows(tmp_path):
    hospital(tmp_path)
    study = """
name = "t"
[model]
use = "mlp"
[data]
use = "image-folder"
path = "PATH"
size = 8
LABELS
[training]
rounds = 1
""".replace("PATH", str(tmp_path))
    by_site = 'labels = "labels.csv"\npartition = { use = "by-column", column = "site" }'
    found = check_study(parse(study.replace("LABELS", by_site)))
    (rows,) = found.partition.values()
    assert rows[0][-1] == "patients"
    assert sum(row[-1] for row in rows[1:]) == PATIENTS
    assert not found.problems
    for label in ("sick", "well"):
        (tmp_path / label).mkdir()
        for i in range(6):
            Image.new("L", (8, 8), i).save(tmp_path / label / f"{i}.png")
    found = check_study(parse(study.replace("LABELS", "clients = 2")))
    assert NOBODY in found.warnings


def test_what_a_folder_holds_instead_is_named(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.npz").write_bytes(b"x")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("x")
    with pytest.raises(
        DataError, match=r'no images in class folders; it holds 4 files: 3 \.npz, 1 \.txt \(for use = "npz"\)'
    ):
        ImageFolder(str(tmp_path)).load()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), st.booleans()), min_size=1, max_size=12))
def test_parts_hold_every_record_once_or_the_data_are_refused(rows):
    records = [Record("x", patient=p, split="test" if held else "train") for p, held in rows]
    x = torch.arange(len(rows))[:, None].float()
    both = {p for p, held in rows if held and p} & {p for p, held in rows if not held and p}
    if both:
        with pytest.raises(DataError, match=f"{len(both)} of"):
            gather("t", x, torch.zeros(len(rows), dtype=torch.int64), records, ("x",), "here")
        return
    data = gather("t", x, torch.zeros(len(rows), dtype=torch.int64), records, ("x",), "here")
    held = [] if data.test is None else data.test.x[:, 0].tolist()
    assert sorted(data.train.x[:, 0].tolist() + held) == list(range(len(rows)))
