"""Loaders of the user's own files: what is written is what is read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from leakline.data import DATASETS, ByColumn, CsvSignals, ImageFolder, MedMNIST, Npz, partition
from leakline.data.images import resize, resize_masks
from leakline.data.signals import normalise
from leakline.errors import DataError


def picture(path, value, size=16, mode="L"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (size, size), value).save(path)


def test_image_folder_plain(tmp_path):
    for i in range(4):
        picture(tmp_path / "sick" / f"{i}.png", 200 + i)
        picture(tmp_path / "well" / f"{i}.png", 10 + i)
    (tmp_path / "sick" / "Thumbs.db").write_bytes(b"x")
    (tmp_path / "well" / ".hidden.png").write_bytes(b"x")
    data = ImageFolder(str(tmp_path), size=8).load()
    assert data.classes == ("sick", "well")
    assert data.train.x.shape == (8, 1, 8, 8)
    assert data.train.x[:, 0, 0, 0].tolist() == [200, 201, 202, 203, 10, 11, 12, 13]
    assert data.train.y.tolist() == [0] * 4 + [1] * 4
    assert data.test is None
    assert len(ImageFolder(str(tmp_path), limit=4).load().train) == 4


def test_image_folder_with_parts_clients_and_colour(tmp_path):
    for part, n in (("train", 3), ("test", 1)):
        for client in ("north & south", "x..=y"):
            for label in ("a", "b"):
                for i in range(n):
                    picture(tmp_path / part / client / label / f"{i}.png", (10, 20, 30), mode="RGB")
    data = ImageFolder(str(tmp_path), size=16, grey=False, sites=True).load()
    assert data.train.x[0, :, 0, 0].tolist() == [10, 20, 30]
    assert len(data.train) == 12
    assert len(data.test) == 4
    task = partition(data, ByColumn("site"))
    assert sorted(c.traits["label"] for c in task.clients) == ["north & south", "x..=y"]


def test_sixteen_bit_and_palette_images(tmp_path):
    deep = np.linspace(0, 40000, 64).reshape(8, 8).astype(np.uint16)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    Image.fromarray(deep).save(tmp_path / "a" / "deep.png")
    Image.new("P", (8, 8), 3).save(tmp_path / "b" / "palette.png")
    data = ImageFolder(str(tmp_path), size=8).load()
    assert int(data.train.x[0].min()) == 0
    assert int(data.train.x[0].max()) == 255


def test_bad_files_are_listed_and_may_be_allowed(tmp_path):
    for i in range(4):
        picture(tmp_path / "a" / f"{i}.png", i)
        picture(tmp_path / "b" / f"{i}.png", i)
    (tmp_path / "a" / "2.png").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"1 of 8 image files cannot be read: a/2\.png"):
        ImageFolder(str(tmp_path)).load()
    assert len(ImageFolder(str(tmp_path), max_bad_files=1).load().train) == 7


def test_npz_layouts(tmp_path):
    path = tmp_path / "d.npz"
    rng = np.random.default_rng(0)
    y = np.arange(12) % 3
    np.savez(path, x=rng.integers(0, 255, (12, 9, 9, 3), dtype=np.uint8), y=y)
    assert Npz(str(path)).load().train.x.shape == (12, 3, 9, 9)
    np.savez(path, x=rng.integers(0, 255, (12, 9, 9), dtype=np.uint8), y=y)
    assert Npz(str(path)).load().train.x.shape == (12, 1, 9, 9)
    np.savez(path, x=rng.normal(size=(12, 6, 50)), y=y)
    assert Npz(str(path)).load().train.x.shape == (12, 6, 50)
    assert Npz(str(path), layout="nlc").load().train.x.shape == (12, 50, 6)
    np.savez(path, x=rng.normal(size=(12, 5)), y=np.array(["b", "a", "c"] * 4))
    features = Npz(str(path)).load()
    assert features.train.x.dtype == torch.float32
    assert features.classes == ("a", "b", "c")
    assert features.train.y.tolist()[:3] == [1, 0, 2]


def test_npz_parts_names_groups_columns_masks(tmp_path):
    path = tmp_path / "d.npz"
    x = np.zeros((8, 4, 4), np.uint8)
    np.savez(
        path,
        x_train=x,
        y_train=np.arange(8) % 2,
        x_test=x[:2],
        y_test=np.array([0, 1]),
        class_names=np.array(["no", "yes"]),
        groups=np.array(list("aabbccdd")),
        site=np.array([3] * 4 + [4] * 4),
    )
    data = Npz(str(path), columns=("site",)).load()
    assert data.classes == ("no", "yes")
    assert len(data.test) == 2
    assert data.train.groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert data.columns["site"][0] == "3"
    mask = np.zeros((8, 4, 4), bool)
    mask[::2, 1] = True
    np.savez(path, x=x, y=mask)
    masks = Npz(str(path)).load()
    assert masks.kind == "segmentation"
    assert masks.train.y.shape == (8, 1, 4, 4)
    assert masks.train.y.dtype == torch.uint8


def test_medmnist(tmp_path):
    path = tmp_path / "pathmnist.npz"
    arrays = {}
    for part, n in (("train", 20), ("val", 6), ("test", 8)):
        arrays[f"{part}_images"] = np.full((n, 28, 28, 3), 7, np.uint8)
        arrays[f"{part}_labels"] = (np.arange(n) % 4)[:, None]
    np.savez(path, **arrays)
    data = MedMNIST(str(path), size=14).load()
    assert data.train.x.shape == (26, 3, 14, 14)
    assert data.test.x.shape == (8, 3, 14, 14)
    assert len(MedMNIST(str(path), use_val=False).load().train) == 20
    arrays["train_labels"] = np.zeros((20, 14), np.int64)
    np.savez(path, **arrays)
    with pytest.raises(DataError, match="several labels"):
        MedMNIST(str(path)).load()


def test_each_subject_is_standardised_by_itself():
    rng = np.random.default_rng(0)
    x, who = rng.normal(size=(6, 2, 50)).astype(np.float32), np.array([0, 0, 0, 1, 1, 1])
    moved = x.copy()
    moved[who == 1] = 5 * moved[who == 1] + 3
    one, other = normalise(x, "subject", who), normalise(moved, "subject", who)
    np.testing.assert_allclose(one, other, atol=1e-4)  # what another subject's are is nothing to a subject's own
    for subject in (0, 1):
        np.testing.assert_allclose(one[who == subject].mean((0, 2)), 0, atol=1e-5)
        np.testing.assert_allclose(one[who == subject].std((0, 2)), 1, atol=1e-4)
    with pytest.raises(ValueError, match="whose windows"):
        normalise(x, "subject")


def test_csv_windows_never_cross_a_change(tmp_path):
    lines = ["t,acc,gyro,label,subject"]
    for subject, label, n in (("p1", "walk", 25), ("p1", "sit", 30), ("p2", "walk", 21), ("p2", "sit", 9)):
        lines += [f"{i},{i * 0.5},{-i},{label},{subject}" for i in range(n)]
    (tmp_path / "s.csv").write_text("\n".join(lines))
    data = CsvSignals(str(tmp_path / "s.csv"), channels=("acc", "gyro"), window=10, stride=10, normalise="none").load()
    assert data.train.x.shape == (2 + 3 + 2, 2, 10)
    assert data.classes == ("sit", "walk")
    assert data.train.y.tolist() == [1, 1, 0, 0, 0, 1, 1]
    assert data.columns["subject"] == ("p1",) * 5 + ("p2",) * 2
    assert data.train.x[1, 0].tolist() == [i * 0.5 for i in range(10, 20)]
    assert data.train.groups.tolist() == [0, 0, 1, 1, 1, 2, 2]
    overlap = CsvSignals(str(tmp_path / "s.csv"), channels=("acc",), window=10, stride=5, normalise="window").load()
    assert len(overlap.train) == 4 + 5 + 3
    assert torch.allclose(overlap.train.x.mean(2), torch.zeros(12, 1), atol=1e-5)


def test_csv_folder_where_files_are_subjects(tmp_path):
    for name in ("ann", "bob"):
        rows = [f"{i}.5,{'a' if i < 40 else 'b'}" for i in range(80)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["v,label", *rows]))
    data = CsvSignals(str(tmp_path), subject="", window=20, stride=20).load()
    assert sorted(set(data.columns["subject"])) == ["ann", "bob"]
    assert len(data.train) == 8


def test_resize_by_area_is_the_mean_of_blocks():
    x = np.random.default_rng(0).integers(0, 256, (3, 2, 8, 8), dtype=np.uint8)
    expected = x.reshape(3, 2, 4, 2, 4, 2).mean((3, 5))
    assert np.abs(resize(x, 4) - expected).max() <= 0.5
    assert resize(x, 16).shape == (3, 2, 16, 16)
    assert resize(x, 8) is x
    mask = np.zeros((1, 1, 4, 4), np.uint8)
    mask[0, 0, :2, 0] = 1
    assert resize_masks(mask, 2)[0, 0].tolist() == [[1, 0], [0, 0]]


@pytest.mark.parametrize("name", [n for n, s in DATASETS.items() if "LEAKLINE_DATA" in s.needs])
def test_missing_file_says_what_to_do(name, tmp_path, monkeypatch):
    monkeypatch.setenv("LEAKLINE_DATA", str(tmp_path))
    source = DATASETS[name]()
    assert not source.available()
    with pytest.raises(DataError, match=f"leakline data prepare {name} --source PATH") as caught:
        source.load()
    assert source.file in caught.value.what
    monkeypatch.delenv("LEAKLINE_DATA")
    with pytest.raises(DataError, match="LEAKLINE_DATA is not set"):
        source.load()
