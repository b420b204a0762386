"""Official layouts, made small by the tests, become files that load by name."""

from __future__ import annotations

import gzip
import io
import os
import struct

import numpy as np
import pytest
from PIL import Image

from leakline.data import DATASETS
from leakline.data.prepare import PREPARE
from leakline.data.prepare.write import write_npz
from leakline.errors import DataError, LeaklineError, RuntimeMissing

RNG = np.random.default_rng(0)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A source to fill, and a destination that LEAKLINE_DATA points to."""
    monkeypatch.setenv("LEAKLINE_DATA", str(tmp_path / "data"))
    (tmp_path / "source").mkdir()
    return tmp_path / "source", tmp_path / "data"


def prepared(name, place, **options):
    path = PREPARE[name](*place)
    assert path.parent == place[1]
    assert [p.name for p in place[1].iterdir()] == [DATASETS[name].file]
    source = DATASETS[name](**options)
    assert source.available()
    return source.load()


def save(path, array=None, size=(40, 30), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    array = RNG.integers(0, 255, size[::-1], dtype=np.uint8) if array is None else array
    Image.fromarray(array).save(path, **options)


def test_every_named_set_can_be_prepared():
    assert set(PREPARE) == {n for n, s in DATASETS.items() if "LEAKLINE_DATA" in s.needs}


def test_alzheimer_from_folders_and_from_parquet(place):
    grades = ("MildDemented", "ModerateDemented", "NonDemented", "VeryMildDemented")
    rows = {"train": [], "test": []}
    for part, n in (("train", 3), ("test", 1)):
        for g, grade in enumerate(grades):
            for i in range(n):
                path = place[0] / part / grade / f"{i}.jpg"
                save(path, np.full((128, 128), 40 * g + i, np.uint8), quality=95)
                rows[part].append({"image": {"bytes": path.read_bytes(), "path": None}, "label": g})
    data = prepared("alzheimer-mri", place, split="file")
    assert data.train.x.shape == (12, 1, 128, 128)
    assert np.bincount(data.test.labels()).tolist() == [1, 1, 1, 1]
    assert abs(int(data.train.x[data.train.y == 3].float().mean()) - 121) <= 2
    with pytest.raises(DataError, match="use split = 'file'"):
        DATASETS["alzheimer-mri"]().load()

    import pyarrow as pa
    from pyarrow import parquet

    hub = place[0] / "hub"
    hub.mkdir()
    for part, content in rows.items():
        parquet.write_table(pa.Table.from_pylist(content), hub / f"{part}-00000-of-00001.parquet")
    again = prepared("alzheimer-mri", (hub, place[1]), split="file")
    assert again.train.fingerprint() == data.train.fingerprint()
    (hub / "train-00000-of-00001.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match="cannot read the file"):
        PREPARE["alzheimer-mri"](hub, place[1])


def test_alzheimer_papers_own_counts_are_kept(tmp_path, monkeypatch):
    from leakline.data.tables import TEST, TRAIN

    monkeypatch.setenv("LEAKLINE_DATA", str(tmp_path))
    stream = io.BytesIO()
    Image.new("L", (8, 8), 9).save(stream, "jpeg")
    one = np.frombuffer(stream.getvalue(), np.uint8)
    y = np.concatenate([np.repeat(np.arange(4), TRAIN), np.repeat(np.arange(4), TEST)])
    for is_train in (np.arange(6400) < 5120, RNG.random(6400) < 0.8):
        arrays = {
            "jpeg": np.tile(one, 6400),
            "offsets": np.arange(6401) * len(one),
            "y": y.astype(np.uint8),
            "is_train": is_train,
            "class_names": np.array(list("abcd")),
        }
        write_npz(tmp_path, "alzheimer_mri.npz", arrays)
        data = DATASETS["alzheimer-mri"]().load()
        assert tuple(np.bincount(data.train.labels())) == TRAIN
        assert tuple(np.bincount(data.test.labels())) == TEST
    small = DATASETS["alzheimer-mri"](limit=512).load()
    assert (len(small.train), len(small.test)) == (512, 128)


def test_chest_xray_radiography_layout(place):
    for name in ("COVID", "Normal", "Viral Pneumonia", "Lung_Opacity"):
        for i in range(3):
            save(place[0] / name / "images" / f"{name}-{i}.png")
            save(place[0] / name / "masks" / f"{name}-{i}.png")
    data = prepared("chest-xray", place)
    assert data.classes == ("normal", "covid19", "pneumonia", "Lung_Opacity")
    assert data.train.x.shape == (12, 1, 128, 128)
    two = DATASETS["chest-xray"](classes=("covid", "normal"), size=32).load()
    assert two.classes == ("covid19", "normal")
    assert np.bincount(two.train.labels()).tolist() == [3, 3]
    assert two.train.x.shape == (6, 1, 32, 32)
    for wrong in (("flu",), ("normal", "normal")):
        with pytest.raises(DataError, match="not one class"):
            DATASETS["chest-xray"](classes=wrong).load()


def test_chest_xray_class_choice_keeps_images_with_their_labels(tmp_path, monkeypatch):
    monkeypatch.setenv("LEAKLINE_DATA", str(tmp_path))
    y = np.array([2, 0, 1, 2, 1, 0], np.uint8)
    x = np.repeat(np.repeat(y[:, None, None] * np.uint8(50), 8, 1), 8, 2)
    names, source = np.array(["normal", "covid19", "pneumonia"]), np.array(["here", "there"])
    arrays = {"x": x, "y": y, "class_names": names, "source": y % 2, "source_names": source}
    write_npz(tmp_path, "chest_xray.npz", arrays)
    data = DATASETS["chest-xray"](classes=("pneumonia", "normal")).load()
    assert data.train.y.tolist() == [0, 1, 0, 1]
    assert data.train.x[:, 0, 0, 0].tolist() == [100, 0, 100, 0]
    assert data.columns["source"] == ("here",) * 4


def test_fundus_folders(place):
    for name in ("glaucoma", "normal"):
        for i in range(2):
            save(place[0] / name / f"{i}.jpg", RNG.integers(0, 255, (50, 60, 3), dtype=np.uint8))
    data = prepared("fundus", place, size=64)
    assert data.classes == ("normal", "glaucoma")
    assert data.train.x.shape == (4, 3, 64, 64)


def test_head_ct(place):
    for i in range(6):
        save(place[0] / "head_ct" / f"{i:03d}.png", np.full((50, 50), 10 * i, np.uint8))
    lines = ["id, hemorrhage", *(f"{i},{int(i < 3)}" for i in range(6))]
    (place[0] / "labels.csv").write_text("\n".join(lines))
    data = prepared("head-ct", place)
    assert data.train.y.tolist() == [1, 1, 1, 0, 0, 0]
    assert data.train.x[:, 0, 0, 0].tolist() == [0, 10, 20, 30, 40, 50]


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("zipped", [True, False])
def test_idx_files(name, zipped, place):
    x, y = RNG.integers(0, 255, (20, 28, 28), dtype=np.uint8), (np.arange(20) % 10).astype(np.uint8)
    for stem, array in (
        ("train-images-idx3", x),
        ("train-labels-idx1", y),
        ("t10k-images-idx3", x[:10]),
        ("t10k-labels-idx1", y[:10]),
    ):
        content = gzip.compress(idx(array)) if zipped else idx(array)
        (place[0] / f"{stem}-ubyte{'.gz' if zipped else ''}").write_bytes(content)
    data = prepared(name, place)
    assert (data.train.x[:, 0].numpy() == x).all()
    assert data.train.y.tolist() == y.tolist()
    assert len(data.test) == 10
    bad = place[0] / f"t10k-images-idx3-ubyte{'.gz' if zipped else ''}"
    for content in (b"", b"\0\0\x08\x03", idx(x)[:-1], idx(x) + b"0", bytes([0, 0, 8, 3]) + b"\xff" * 12):
        bad.write_bytes(gzip.compress(content) if zipped else content)
        with pytest.raises(DataError):
            PREPARE[name](*place)
    bad.write_bytes(b"\x1f\x8bnonsense")
    with pytest.raises(DataError):
        PREPARE[name](*place)


def test_cifar10_binary_and_never_the_pickles(place):
    records = RNG.integers(0, 255, (8, 3073), dtype=np.uint8)
    records[:, 0] = np.arange(8)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (place[0] / f"{name}.bin").write_bytes(records.tobytes())
    data = prepared("cifar10", place)
    assert data.train.x.shape == (40, 3, 32, 32)
    assert (data.train.x[:8].numpy().reshape(8, -1) == records[:, 1:]).all()
    assert data.train.y.tolist()[:8] == list(range(8))
    (place[0] / "data_batch_1.bin").write_bytes(records.tobytes()[:-1])
    with pytest.raises(DataError, match="whole records"):
        PREPARE["cifar10"](*place)
    (place[0] / "data_batch_1.bin").rename(place[0] / "data_batch_1")
    with pytest.raises(DataError, match="pickles, which are never loaded"):
        PREPARE["cifar10"](*place)


def test_svhn_mat_files(place):
    from scipy.io import savemat

    x = RNG.integers(0, 255, (32, 32, 3, 10), dtype=np.uint8)
    for part in ("train", "test"):
        savemat(place[0] / f"{part}_32x32.mat", {"X": x, "y": np.arange(1, 11)[:, None].astype(np.uint8)})
    data = prepared("svhn", place)
    assert data.train.y.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert (data.train.x[4].numpy() == x[..., 4].transpose(2, 0, 1)).all()
    for content in (
        b"",
        b"MATLAB 5.0 MAT-file" + b"\0" * 200,
        (place[0] / "train_32x32.mat").read_bytes()[:500],
    ):
        (place[0] / "test_32x32.mat").write_bytes(content)
        with pytest.raises(DataError):
            PREPARE["svhn"](*place)


def motionsense_folder(root, subjects=(1, 2)):
    from leakline.data.motion import CHANNELS

    columns = ["", "attitude.roll", "attitude.pitch", "attitude.yaw", *CHANNELS]
    for activity, trial in (("dws", 1), ("wlk", 7), ("jog", 9)):
        for s in subjects:
            folder = root / "A_DeviceMotion_data" / f"{activity}_{trial}"
            folder.mkdir(parents=True, exist_ok=True)
            rows = [",".join([str(i), *(f"{v:.4f}" for v in RNG.normal(s, 1, 12))]) for i in range(300)]
            (folder / f"sub_{s}.csv").write_text("\n".join([",".join(columns), *rows]))
    (root / "data_subjects_info.csv").write_text("code,weight,height,age,gender\n1,102,188,46,1\n2,60,170,30,0\n")


def test_motionsense_folder(place):
    motionsense_folder(place[0])
    data = prepared("motionsense", place, normalise="none")
    assert data.train.x.shape == (3 * 2 * 2, 9, 125)
    assert sorted(set(data.columns["subject"])) == ["sub-1", "sub-2"]
    ann = data.traits["subject"]["sub-1"]
    assert (ann["gender"], ann["age"], ann["bmi_over_25"]) == ("man", 46, True)
    assert data.traits["subject"]["sub-2"]["gender"] == "woman"
    own = data.train.x[np.array(data.columns["subject"]) == "sub-2"]
    assert abs(float(own.mean()) - 2) < 0.1
    few = DATASETS["motionsense"](channels=("userAcceleration",), window=100, stride=50).load()
    assert few.train.x.shape == (3 * 2 * 5, 3, 100)
    with pytest.raises(DataError, match="no channel smell"):
        DATASETS["motionsense"](channels=("smell",)).load()


def test_motionsense_mistakes(place):
    motionsense_folder(place[0], subjects=(1, 2, 3))
    with pytest.raises(DataError, match=r"does not list: \[3\]"):
        PREPARE["motionsense"](*place)
    (place[0] / "A_DeviceMotion_data" / "wlk_7" / "sub_3.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"no column 'gravity\.x'"):
        PREPARE["motionsense"](*place)
    (place[0] / "data_subjects_info.csv").write_text("code,weight\n1,2\n")
    with pytest.raises(DataError, match="no column"):
        PREPARE["motionsense"](*place)
    assert not place[1].exists()


def test_mobiact_folder(place):
    names = [
        "timestamp",
        "rel_time",
        "acc_x",
        "acc_y",
        "acc_z",
        "gyro_x",
        "gyro_y",
        "gyro_z",
        "azimuth",
        "pitch",
        "roll",
        "label",
    ]
    for code in ("STN", "WAL", "JOG", "FOL"):
        folder = place[0] / "Annotated Data" / code
        folder.mkdir(parents=True)
        for s in (5, 61):
            lines = [",".join(names)]
            lines += [",".join([str(i), "0", *["9"] * 9, "STD"]) for i in range(40)]
            lines += [
                ",".join([str(i), "0", *(f"{v:.3f}" for v in RNG.normal(0, 1, 6)), "300", "1", "2", code])
                for i in range(120)
            ]
            (folder / f"{code}_{s}_1_annotated.csv").write_text("\n".join(lines))
    (place[0] / "subjects.csv").write_text("subject,gender,height,weight,age\n5,F,170,80,22\nsub61,M,180,,25\n")
    data = prepared("mobiact", place, window=60, stride=60, normalise="none")
    assert data.train.x.shape == (3 * 2 * 2, 9, 60)
    assert {data.classes[i] for i in data.train.y.tolist()} == {"dws", "wlk", "jog"}
    assert (data.train.x[:, 6] == 300).all()
    assert data.traits["subject"]["sub-5"]["bmi_over_25"] is True
    assert data.traits["subject"]["sub-61"] == {"gender": "man", "age": 25, "height": 180}


def mobifall_file(folder, code, sensor, subject, times, values):
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["#Activity: 1 - Walking - WAL", f"#Subject ID: {subject}", "#timestamp(ns),x,y,z", "", "@DATA"]
    lines += [f"{t},{v:.4f},{2 * v:.4f},{-v:.4f}" for t, v in zip(times, values, strict=True)]
    (folder / f"{code}_{sensor}_{subject}_1.txt").write_text("\n".join(lines) + "\n")


def test_mobifall_folder(place):
    """A straight line in time is the same line on any clock: both sensors are of the same instants afterwards."""
    start = 1_000_000_000_000
    for subject in (3, 21):
        for code in ("STN", "STU", "WAL", "JOG", "STD", "SCH"):
            folder = place[0] / f"sub{subject}" / "ADL" / code
            acc, gyro = start + np.arange(0, 4_000, 11) * 10**6, start + 300 * 10**6 + np.arange(0, 4_000, 5) * 10**6
            mobifall_file(folder, code, "acc", subject, acc, (acc - start) * 1e-9)
            mobifall_file(folder, code, "gyro", subject, gyro, (gyro - start) * 1e-9)
    mobifall_file(place[0] / "sub5" / "FALLS" / "FOL", "FOL", "acc", 5, [1, 2], [0, 0])
    (place[0] / "subjects.csv").write_text("subject,gender,height,weight,age\n3,F,170,80,22\nsub21,M,180,70,25\n")
    data = prepared("mobifall", place, window=100, stride=100, normalise="none")
    assert data.classes == ("dws", "ups", "wlk", "jog", "std")
    assert data.train.x.shape == (2 * 5 * 3, 6, 100)  # 3.69 s that both sensors cover
    first = data.train.x[0]
    np.testing.assert_allclose(first[0], 0.3 + np.arange(100) / 100, atol=2e-3)  # kept in half precision
    np.testing.assert_allclose(first[3:], first[:3], atol=4e-3)
    np.testing.assert_allclose(first[1], 2 * first[0], atol=4e-3)
    assert set(data.traits["subject"]) == {"sub-3", "sub-21"}
    os.unlink(place[0] / "sub3" / "ADL" / "WAL" / "WAL_gyro_3_1.txt")
    with pytest.raises(DataError, match="there is no WAL_gyro_3_1.txt"):
        PREPARE["mobifall"](*place)
    mobifall_file(place[0] / "sub3" / "ADL" / "WAL", "WAL", "gyro", 3, [1], [0.0])
    with pytest.raises(DataError, match="a time and three numbers"):
        PREPARE["mobifall"](*place)


def test_lgg_folder(place):
    root = place[0] / "kaggle_3m"
    for patient in ("TCGA_CS_0001_19990101", "TCGA_HT_0002_19990101", "TCGA_EZ_0003_19990101"):
        for i in range(1, 4):
            picture = np.zeros((256, 256, 3), np.uint8)
            picture[..., 1] = 10 * i
            mask = np.zeros((256, 256), np.uint8)
            mask[:64, : 64 * (i - 1)] = 255
            save(root / patient / f"{patient}_{i}.tif", picture)
            save(root / patient / f"{patient}_{i}_mask.tif", mask)
    (root / "data.csv").write_text(
        "Patient,gender,age_at_initial_pathologic,neoplasm_histologic_grade\nTCGA_CS_0001,2,50,1\nTCGA_HT_0002,1,,2\n"
    )
    data = prepared("lgg-flair", place)
    assert data.train.x.shape == data.train.y.shape == (6, 1, 128, 128)
    assert set(data.columns["site"]) == {"CS", "HT"}
    assert data.train.x[:, 0, 0, 0].tolist() == [10, 20, 30] * 2
    assert data.train.y.float().mean((1, 2, 3)).tolist() == [0, 1 / 16, 1 / 8] * 2
    assert data.traits["patient"]["TCGA_CS_0001"] == {"gender": 2.0, "age": 50.0, "grade": 1.0}
    assert data.traits["patient"]["TCGA_HT_0002"] == {"gender": 1.0, "grade": 2.0}
    small = DATASETS["lgg-flair"](size=32, kind="classification", drop_sites=()).load()
    assert small.train.x.shape == (9, 1, 32, 32)
    assert small.train.y.tolist() == [0, 1, 1] * 3
    os.unlink(root / "TCGA_CS_0001_19990101" / "TCGA_CS_0001_19990101_2_mask.tif")
    with pytest.raises(DataError, match="no mask for 1 pictures"):
        PREPARE["lgg-flair"](*place)


def test_marks_that_a_small_size_loses_are_told(place):
    for i, side in enumerate((0, 20, 128)):
        mask = np.zeros((256, 256), np.uint8)
        mask[:side, :side] = 255
        save(place[0] / "kaggle_3m" / "TCGA_CS_0001_19990101" / f"TCGA_CS_0001_19990101_{i}_mask.tif", mask)
        save(place[0] / "kaggle_3m" / "TCGA_CS_0001_19990101" / f"TCGA_CS_0001_19990101_{i}.tif", size=(256, 256))
    assert prepared("lgg-flair", place, empty="drop").remarks == ()
    small = DATASETS["lgg-flair"](size=4, empty="drop").load()
    assert small.remarks == ("1 of 2 masks mark something in the file and nothing at 4x4 pixels",)
    assert sorted(small.train.labels().tolist()) == [0, 1]


def test_prostate_slices_and_arrays(place):
    mask = np.zeros((60, 60), np.uint8)
    mask[15:45, 15:45] = 255
    for site in ("BIDMC", "HK"):
        for case in ("Case00", "Case01"):
            for i in range(3):
                save(place[0] / site / case / f"{i}.png", size=(60, 60))
                save(place[0] / site / case / f"{i}_mask.png", mask * (i > 0))
    volume, marks = RNG.normal(100, 20, (4, 50, 50)), np.zeros((4, 50, 50), np.uint8)
    marks[1:3, 20:30, 20:30] = 1
    (place[0] / "UCL").mkdir()
    np.savez(place[0] / "UCL" / "Case09.npz", image=volume, mask=marks)
    data = prepared("prostate", place)
    assert data.train.x.shape == (2 * 2 * 2 + 2, 1, 256, 256)
    assert set(data.columns["site"]) == {"BIDMC", "HK", "UCL"}
    assert "UCL-Case09" in data.columns["patient"]
    assert len(set(data.train.groups.tolist())) == 5
    assert float(data.train.y[0].float().mean()) == pytest.approx(0.25, abs=0.01)
    np.savez(place[0] / "UCL" / "Case09.npz", image=volume, mask=marks[:2])
    with pytest.raises(DataError, match="do not match"):
        PREPARE["prostate"](*place)


def test_prostate_volumes(place):
    (place[0] / "BMC").mkdir()
    volume, marks = RNG.normal(100, 20, (20, 24, 5)).astype(np.float32), np.zeros((20, 24, 5), np.uint8)
    marks[5:10, 6:12, 1:3] = 1
    try:
        import nibabel
    except ImportError:
        (place[0] / "BMC" / "Case00.nii.gz").write_bytes(b"x")
        with pytest.raises(RuntimeMissing, match="pip install nibabel"):
            PREPARE["prostate"](*place)
        return
    nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), place[0] / "BMC" / "Case00.nii.gz")
    nibabel.save(nibabel.Nifti1Image(marks, np.eye(4)), place[0] / "BMC" / "Case00_segmentation.nii.gz")
    assert len(prepared("prostate", place).train) == 2


def rsna_folder(source, suffix):
    lines = ["ID,Label"]
    for i in range(6):
        lines += [f"ID_{i:09x}_{kind},{int(i % 2 and kind == 'any')}" for kind in ("epidural", "subdural", "any")]
        path = source / "stage_2_train" / f"ID_{i:09x}{suffix}"
        path.parent.mkdir(exist_ok=True)
        if suffix == ".png":
            save(path, np.full((64, 64), 30 * i, np.uint8))
        else:
            path.write_bytes(b"x")
    (source / "stage_2_train.csv").write_text("\n".join(lines))


def test_rsna_png_export(place):
    rsna_folder(place[0], ".png")
    data = prepared("rsna-ich", place)
    assert data.train.x.shape == (6, 1, 224, 224)
    assert data.train.y.tolist() == [0, 1, 0, 1, 0, 1]
    assert data.train.x[:, 0, 0, 0].tolist() == [0, 30, 60, 90, 120, 150]


def test_rsna_dicom_asks_for_pydicom_or_refuses_rubbish(place):
    rsna_folder(place[0], ".dcm")
    with pytest.raises(LeaklineError, match="pip install pydicom|cannot read the file"):
        PREPARE["rsna-ich"](*place)


@pytest.mark.parametrize("name", PREPARE)
def test_empty_or_missing_source_is_one_clear_error_and_writes_nothing(name, place):
    for source in (place[0], place[0] / "nowhere", place[0] / ".." / "x"):
        with pytest.raises(DataError):
            PREPARE[name](source, place[1])
    assert not place[1].exists()


@pytest.mark.parametrize("file", ["../x.npz", "/x.npz", "a\0.npz", "x.pkl", "CON.npz", "", ".npz", "a/b.npz"])
def test_only_plain_names_are_written(file, tmp_path):
    with pytest.raises(DataError, match="not a plain file name"):
        write_npz(tmp_path / "data", file, {"x": np.zeros(1)})
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path):
    write_npz(tmp_path, "d.npz", {"x": np.arange(3)})
    before = (tmp_path / "d.npz").read_bytes()
    with pytest.raises(DataError, match="objects"):
        write_npz(tmp_path, "d.npz", {"x": np.array([{}], dtype=object)})
    blocked = tmp_path / "file"
    blocked.write_text("x")
    with pytest.raises(DataError, match="cannot write"):
        write_npz(blocked, "d.npz", {"x": np.arange(3)})
    assert (tmp_path / "d.npz").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d.npz", "file"]
