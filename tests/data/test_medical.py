"""DICOM and NIfTI: grey values by the standard's equations, people from tags, broken files and bombs by count."""

from __future__ import annotations

import importlib.util
import os
import re
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from clinic import apart, archive, dicom, volume, write
from leakline.data import ByColumn, DicomFolder, Even, ImageFolder, NiftiFolder, partition, table
from leakline.data.dicom import age_of, windowed
from leakline.data.nifti_folder import MAX_VOXELS
from leakline.data.pseudonyms import pseudonyms
from leakline.errors import DataError

pydicom = pytest.importorskip("pydicom")
nibabel = pytest.importorskip("nibabel")


@pytest.fixture(autouse=True)
def _own_state(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    root = tmp_path_factory.mktemp("clinic")
    write(root, archive(root))
    return root


@pytest.fixture(scope="module")
def loaded(clinic):
    """What can be read of it, under one key."""
    (clinic / "the.key").write_bytes(bytes(range(32)))
    return DicomFolder(str(clinic), size=16, labels="labels.csv", max_bad_files=3, key=str(clinic / "the.key")).load()


def test_three_hundred_files_of_forty_patients(clinic, loaded):
    with pytest.raises(DataError) as caught:
        DicomFolder(str(clinic), size=16, labels="labels.csv").load()
    said = str(caught.value)
    assert "3 of 300 files cannot be read" in said
    assert "0017.dcm" in said
    assert "0042.dcm" in said
    assert "it claims 2000 frames of 65535 x 65535 pixels, more than 64,000,000 in all" in said
    assert "rows of labels.csv" not in said  # their files are there
    data = loaded
    assert (len(data.train), data.classes, data.group) == (297, ("healthy", "ill"), "patient")
    assert data.train.x.shape[1:] == (1, 16, 16)
    assert len(set(data.columns["patient"])) == 40
    assert set(data.columns["site"]) == {f"Clinic {i}" for i in range(4)}
    assert sum("3 of 300" in line for line in data.remarks) == 1  # what was left out
    task = partition(data, ByColumn("site"), server_validation=0.1)
    assert apart(task)  # overlap 0: between all splits and clients
    assert sum(row.groups for row in table(task)) == 40
    assert apart(partition(data, Even(), 5))


def test_no_name_and_no_number_of_a_patient_is_kept(loaded):
    kept = repr((loaded.columns, loaded.traits, loaded.remarks))
    assert "Doe" not in kept
    assert not re.search(r"'10[0-3]\d'", kept)
    patient = loaded.columns["patient"][0]
    assert re.fullmatch("[0-9a-f]{16}", patient)
    assert set(loaded.traits["patient"][patient]) == {"sex", "age"}


def test_the_data_are_the_same_under_another_key(tmp_path):
    for i in range(12):
        dicom(tmp_path / "ab"[i % 2] / f"{i}.dcm", np.full((4, 4), i, np.uint8), PatientID=f"P{i // 2}")
    prints, names = set(), []
    for key in ("k", "l", ""):
        (tmp_path / "k").write_bytes(b"k" * 32)
        (tmp_path / "l").write_bytes(b"l" * 32)
        data = DicomFolder(str(tmp_path), size=8, key=key and str(tmp_path / key)).load()
        prints.add(data.train.fingerprint())
        names.append(data.columns["patient"])
    assert len(prints) == 1
    assert len(set(names)) == 3
    assert DicomFolder(str(tmp_path), size=8).load().columns["patient"] == names[2]  # the key of this user stays


def test_pseudonyms_need_the_key(tmp_path):
    one, two = pseudonyms(), pseudonyms()
    assert one("1001") == two("1001") != one("1002")
    assert one("") == ""
    kept = Path(os.environ["XDG_STATE_HOME"]) / "leakline" / "pseudonyms"
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.write_bytes(os.urandom(32))
    assert pseudonyms()("1001") != one("1001")
    (tmp_path / "short").write_bytes(b"1234")
    with pytest.raises(DataError, match="a key has from 16 to 4096 bytes, this file 4"):
        pseudonyms(str(tmp_path / "short"))


def test_a_sheet_by_patient_uses_the_numbers_in_the_tags(tmp_path):
    for i in range(12):
        dicom(tmp_path / f"{i}.dcm", np.full((4, 4), i, np.uint16), PatientID=f"P{i // 2}")
    write(tmp_path, [{"patient": f"P{p}", "label": "ab"[p % 2], "split": "test" if p == 5 else ""} for p in range(6)])
    data = DicomFolder(str(tmp_path), size=4, labels="labels.csv").load()
    assert data.train.groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert data.test.groups.tolist() == [5, 5]
    assert data.train.y.tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 0, 0]


def one(root, **settings):
    """The only image of a folder, as H, W or C, H, W."""
    data = DicomFolder(str(root), size=8, **settings).load()
    assert len(data.train) == 1
    return data.train.x[0].squeeze(0).numpy()


RAMP = np.arange(64, dtype=np.int16).reshape(8, 8) * 40 - 1000
TAGS = {"PatientID": "1", "RescaleSlope": 2, "RescaleIntercept": -100}


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
def test_windows_are_pydicoms(function, tmp_path):
    """pydicom scales to the range of the stored type; as shares of that range both are the same."""
    path = dicom(tmp_path / "a" / "x.dcm", RAMP, WindowCenter=40, WindowWidth=400, VOILUTFunction=function, **TAGS)
    tags = pydicom.dcmread(path)
    values = pydicom.pixels.apply_rescale(tags.pixel_array, tags)
    theirs = pydicom.pixels.apply_windowing(values, tags)
    low, high = -(2**15) * 2 - 100, (2**15 - 1) * 2 - 100
    wanted = (theirs - low) / (high - low) * 255
    assert np.abs(one(tmp_path) - wanted).max() <= 0.51
    assert np.array_equal(one(tmp_path), windowed(values, tags, None))


def test_the_window_of_the_study_comes_before_the_files(tmp_path):
    dicom(tmp_path / "a" / "x.dcm", RAMP, WindowCenter=40, WindowWidth=400, **TAGS)
    narrow = one(tmp_path, window=(-1000, 3))
    assert set(narrow.ravel().tolist()) <= {0, 64, 128, 191, 255}
    assert not np.array_equal(narrow, one(tmp_path))


def test_low_is_bright_in_monochrome1(tmp_path):
    for kind in ("MONOCHROME1", "MONOCHROME2"):
        dicom(tmp_path / kind / "a" / "x.dcm", RAMP, kind, PatientID="1")
    dark, bright = one(tmp_path / "MONOCHROME2"), one(tmp_path / "MONOCHROME1")
    assert np.array_equal(bright, 255 - dark)
    assert dark[0, 0] == 0  # without a window: from the darkest to the brightest
    assert dark[-1, -1] == 255


def test_colour_files_become_grey_or_stay(tmp_path):
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[..., 0] = 200
    dicom(tmp_path / "a" / "x.dcm", pixels, "RGB", PatientID="1")
    assert one(tmp_path)[0, 0] == 60  # 0.299 of 200
    assert one(tmp_path, grey=False)[:, 0, 0].tolist() == [200, 0, 0]
    palette = dict.fromkeys(("Red", "Green", "Blue"), np.arange(256, dtype=np.uint16)[::-1] * 257)
    tags = {f"{c}PaletteColorLookupTableDescriptor": [256, 0, 16] for c in palette}
    tags |= {f"{c}PaletteColorLookupTableData": table.tobytes() for c, table in palette.items()}
    index = np.arange(64, dtype=np.uint8).reshape(8, 8)
    dicom(tmp_path / "a" / "x.dcm", index, "PALETTE COLOR", PatientID="1", **tags)
    assert np.array_equal(one(tmp_path), 255 - index)


def test_frames_of_one_file_are_examples_of_one_patient(tmp_path):
    frames = np.stack([np.full((8, 8), v, np.uint8) for v in (10, 20, 30)])
    for p in range(2):
        dicom(tmp_path / "ab"[p] / "x.dcm", frames, frames=3, PatientID=str(p), WindowCenter=128, WindowWidth=256)
    data = DicomFolder(str(tmp_path), size=8).load()
    assert data.train.x[:, 0, 0, 0].tolist() == [10, 20, 30] * 2
    assert data.train.groups.tolist() == [0, 0, 0, 1, 1, 1]
    assert DicomFolder(str(tmp_path), size=8, frames="middle").load().train.x[:, 0, 0, 0].tolist() == [20, 20]


def test_several_sizes_planes_and_empty_tags_are_remarked_on(tmp_path):
    axial, coronal = [1, 0, 0, 0, 1, 0], [1, 0, 0, 0, 0, -1]
    for i in range(6):
        side, plane = (8, axial) if i < 4 else (12, coronal)
        who = {"PatientID": "" if i == 0 else str(i), "InstitutionName": "" if i < 2 else "north"}
        dicom(
            tmp_path / "ab"[i % 2] / f"{i}.dcm", np.zeros((side, side), np.uint8), ImageOrientationPatient=plane, **who
        )
    assert DicomFolder(str(tmp_path), size=8).load().remarks == (
        "files of 2 sizes, all brought to 8 x 8: 8 x 8 (4), 12 x 12 (2)",
        "files of 2 planes, all brought to 8 x 8: axial (4), coronal (2)",
        "1 of 6 records have no patient: each counts as a patient of its own",
        '2 of 6 records have no site: their site is "unknown"',
    )


def test_deflated_files_and_files_without_an_image_are_refused(tmp_path):
    path = dicom(tmp_path / "a" / "x.dcm", np.zeros((8, 8), np.uint8), PatientID="1")
    tags = pydicom.dcmread(path)
    tags.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.1.99"
    tags.save_as(path)
    with pytest.raises(DataError, match="it is deflated, and may unpack to anything"):
        DicomFolder(str(tmp_path), size=8).load()
    path = dicom(path, np.zeros((8, 8), np.uint8), PatientID="1")
    tags = pydicom.dcmread(path)
    del tags.PixelData
    tags.save_as(path)
    with pytest.raises(DataError, match="it has no image"):
        DicomFolder(str(tmp_path), size=8).load()


def test_files_without_an_ending_are_known_by_their_mark(tmp_path):
    for i in range(4):
        dicom(tmp_path / "ab"[i % 2] / f"IM{i}", np.full((8, 8), i, np.uint8), PatientID=str(i))
    (tmp_path / "a" / "README").write_text("not a scan")
    assert len(DicomFolder(str(tmp_path), size=8).load().train) == 4


def test_hostile_bytes_load_or_are_counted(tmp_path):
    rng = np.random.default_rng(0)
    good = dicom(tmp_path / "good.dcm", RAMP, PatientID="1").read_bytes()
    for i in range(40):
        damaged = bytearray(good)
        for place in rng.integers(128, len(good), 6):
            damaged[place] = rng.integers(0, 256)
        (tmp_path / "a" / f"{i}.dcm").parent.mkdir(exist_ok=True)
        (tmp_path / "a" / f"{i}.dcm").write_bytes(damaged)
    (tmp_path / "good.dcm").unlink()
    dicom(tmp_path / "b" / "good.dcm", RAMP, PatientID="1")
    data = DicomFolder(str(tmp_path), size=8, max_bad_files=40).load()
    assert len(data.train) >= 1


@pytest.mark.parametrize(
    ("text", "years"),
    [("063Y", "63"), ("018M", "1.5"), ("000D", "0"), ("63", ""), ("", ""), ("xxY", ""), ("5W", "0.0958248")],
)
def test_ages(text, years):
    assert age_of(text) == years


def test_other_loaders_name_what_is_there_instead(tmp_path):
    dicom(tmp_path / "x.dcm", RAMP)
    with pytest.raises(DataError, match=r'it holds 1 files: 1 \.dcm \(for use = "dicom-folder"\)'):
        ImageFolder(str(tmp_path)).load()
    with pytest.raises(DataError, match="the folder has no volumes; it holds 1 files"):
        NiftiFolder(str(tmp_path)).load()


# --- NIfTI ----------------------------------------------------------------------------------------------------------


def test_forty_volumes_by_patient(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(40):
        volume(tmp_path / f"sub-{i // 2:02d}_run-{i % 2}.nii.gz", rng.random((10, 12, 6)).astype(np.float32))
    sheet = [{"patient": f"sub-{p:02d}", "label": "ab"[p % 2], "site": f"s{p % 3}"} for p in range(20)]
    write(tmp_path, sheet)
    source = NiftiFolder(str(tmp_path), size=8, labels="labels.csv", pattern="{patient}_*.nii.gz")
    data = source.load()
    assert data.train.x.shape == (240, 1, 8, 8)
    assert set(Counter(data.train.groups.tolist()).values()) == {12}
    task = partition(data, Even(), 4)
    assert apart(task)
    assert sum(row.groups for row in table(task)) == 20
    assert apart(partition(data, ByColumn("site")))


def test_slices_the_middle_and_wholes(tmp_path):
    values = np.zeros((4, 4, 5), np.float32)
    values[..., 2] = 100
    values[0, 3, 2] = 50  # left of the patient, front of the head
    for label in "ab":
        volume(tmp_path / label / f"{label}.nii", values)
    slices = NiftiFolder(str(tmp_path), size=4, window=(50, 100)).load()
    assert slices.train.x.shape == (10, 1, 4, 4)
    assert slices.train.x[2, 0].tolist() == [[128, 255, 255, 255], *[[255] * 4] * 3]
    middle = NiftiFolder(str(tmp_path), size=4, window=(50, 100), volumes="middle").load()
    assert torch.equal(middle.train.x[0], slices.train.x[2])
    assert len(NiftiFolder(str(tmp_path), size=4, every=2).load().train) == 6
    whole = NiftiFolder(str(tmp_path), size=4, volumes="whole").load()
    assert whole.train.x.shape == (2, 1, 4, 4, 4)
    assert "each of 2 counts as a patient of its own" in whole.remarks[0]


def test_volumes_are_turned_to_the_standard_orientation(tmp_path):
    values = np.random.default_rng(0).random((4, 5, 6)).astype(np.float32)
    volume(tmp_path / "a" / "x.nii", values)
    volume(tmp_path / "b" / "x.nii", values[::-1, ::-1].copy(), np.diag([-1.0, -1.0, 1.0, 1.0]))
    volume(tmp_path / "b" / "y.nii", values.transpose(2, 0, 1).copy(), np.eye(4)[:, [2, 0, 1, 3]])
    data = NiftiFolder(str(tmp_path), size=5).load()
    assert torch.equal(data.train.x[:6], data.train.x[6:12])
    assert torch.equal(data.train.x[:6], data.train.x[12:])
    (line,) = [line for line in data.remarks if "orientations" in line]
    assert line.startswith("volumes of 3 orientations, all turned to RAS: ")
    assert "LPS (1)" in line


def test_masks_beside_volumes(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(4):
        mask = (rng.random((6, 6, 3)) < 0.3).astype(np.uint8)
        volume(tmp_path / f"v{i}.nii.gz", rng.random((6, 6, 3)).astype(np.float32))
        volume(tmp_path / f"v{i}_seg.nii.gz", mask * 3)
    data = NiftiFolder(str(tmp_path), size=6, masks="_seg").load()
    assert (data.kind, data.train.y.shape, data.train.y.dtype) == ("segmentation", (12, 1, 6, 6), torch.uint8)
    assert data.train.y[9:, 0].numpy().tolist() == mask.transpose(2, 1, 0)[:, ::-1].tolist()
    assert len(set(data.train.groups.tolist())) == 4
    (tmp_path / "v1_seg.nii.gz").unlink()
    volume(tmp_path / "v2_seg.nii.gz", mask[:3])
    with pytest.raises(
        DataError, match=r"2 of 4 volumes cannot be read: v1.nii.gz \(v1_seg.nii.gz is not there.*its mask"
    ):
        NiftiFolder(str(tmp_path), size=6, masks="_seg").load()


def test_volumes_that_are_too_large_broken_or_of_four_axes_are_counted(tmp_path):
    for i in range(4):
        volume(tmp_path / "ab"[i % 2] / f"{i}.nii", np.random.default_rng(i).random((4, 4, 4)).astype(np.float32))
    volume(tmp_path / "a" / "four.nii", np.zeros((4, 4, 4, 3), np.float32))
    volume(tmp_path / "a" / "nan.nii", np.full((4, 4, 4), np.nan, np.float32))
    huge = nibabel.Nifti1Header()
    huge.set_data_shape((30000, 30000, 30000))
    huge.set_data_dtype(np.uint8)
    huge["vox_offset"], huge["magic"] = 352, b"n+1"
    (tmp_path / "a" / "huge.nii").write_bytes(huge.binaryblock + b"\0" * 20)
    whole = (tmp_path / "a" / "0.nii").read_bytes()
    (tmp_path / "a" / "cut.nii").write_bytes(whole[:-50])
    (tmp_path / "b" / "not.nii.gz").write_bytes(zlib.compress(b"x" * 1000))
    with pytest.raises(DataError) as caught:
        NiftiFolder(str(tmp_path), size=4).load()
    said = str(caught.value)
    assert "5 of 9 volumes cannot be read" in said
    assert f"it claims 30000 x 30000 x 30000 voxels, more than {MAX_VOXELS:,} in all" in said
    assert "it has 4 axes" in said
    assert "not numbers" in said
    data = NiftiFolder(str(tmp_path), size=4, max_bad_files=5).load()
    assert len(data.train) == 16


def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pydicom" else real(name))
    with pytest.raises(DataError, match=r'(?s)dicom-folder needs pydicom.*pip install "leakline\[medical\]"'):
        DicomFolder(str(tmp_path)).load()
