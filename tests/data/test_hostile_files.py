"""Corrupt and hostile files: a DataError with one clear line of what is wrong, and nothing executed."""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakline.data import CsvSignals, ImageFolder, MedMNIST, Npz
from leakline.data.guard import child, read_npz
from leakline.errors import DataError

GOOD_X, GOOD_Y = np.zeros((6, 4, 4), np.uint8), np.arange(6) % 2


def npz_bytes(**arrays):
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


class Explosive:
    """Unpickling this would make a file."""

    def __reduce__(self):
        return (os.mkdir, (os.environ["LEAKLINE_TEST_TRAP"],))


def pickled():
    stream = io.BytesIO()
    np.savez(stream, x=np.array([Explosive()] * 6, dtype=object), y=GOOD_Y)
    return stream.getvalue()


def with_member(name, content):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
        archive.writestr("y.npy", _npy(GOOD_Y))
    return stream.getvalue()


def _npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def bomb():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", _npy(np.zeros(100 * 2**20, np.uint8)))
        archive.writestr("y.npy", _npy(GOOD_Y))
    return stream.getvalue()


def lying_header(shape):
    head = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b" " * (63 - (len(head) + 10) % 64) + b"\n"
    return with_member("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + b"\0" * 10)


def flipped():
    data = bytearray(npz_bytes(x=np.random.default_rng(0).integers(0, 255, (6, 40, 40), dtype=np.uint8), y=GOOD_Y))
    data[5000] ^= 0xFF
    return bytes(data)


NPZ = {
    "empty": lambda: b"",
    "text": lambda: b"hello",
    "truncated": lambda: npz_bytes(x=GOOD_X, y=GOOD_Y)[:-60],
    "half": lambda: npz_bytes(x=GOOD_X, y=GOOD_Y)[:200],
    "flipped byte": flipped,
    "pickled objects": pickled,
    "zip bomb": bomb,
    "huge shape": lambda: lying_header("(1000000000000,)"),
    "negative shape": lambda: lying_header("(-1, 4)"),
    "code in header": lambda: lying_header("__import__('os').getpid()"),
    "too short": lambda: lying_header("(6, 4, 4)"),
    "not an npy": lambda: with_member("x.npy", b"garbage"),
    "no such array": lambda: npz_bytes(images=GOOD_X, y=GOOD_Y),
    "path-like member": lambda: with_member("../../x.npy", _npy(GOOD_X)),
    "lengths differ": lambda: npz_bytes(x=GOOD_X[:5], y=GOOD_Y),
    "scalar": lambda: npz_bytes(x=np.array(3), y=GOOD_Y),
    "text as x": lambda: npz_bytes(x=np.array(list("abcdef")), y=GOOD_Y),
    "nan": lambda: npz_bytes(x=np.full((6, 3), np.nan), y=GOOD_Y),
    "overflowing float": lambda: npz_bytes(x=np.full((6, 3), 1e300), y=GOOD_Y),
    "negative labels": lambda: npz_bytes(x=GOOD_X, y=GOOD_Y - 1),
    "huge labels": lambda: npz_bytes(x=GOOD_X, y=GOOD_Y.astype(np.int64) * 2**60),
    "fractional labels": lambda: npz_bytes(x=GOOD_X, y=GOOD_Y * 0.5),
    "no examples": lambda: npz_bytes(x=GOOD_X[:0], y=GOOD_Y[:0]),
    "masks of another size": lambda: npz_bytes(x=GOOD_X, y=np.zeros((6, 5, 5), np.uint8)),
    "test of another shape": lambda: npz_bytes(x=GOOD_X, y=GOOD_Y, x_test=GOOD_X[:, :2], y_test=GOOD_Y),
    "wrong class names": lambda: npz_bytes(x=GOOD_X, y=GOOD_Y, class_names=np.array(["one"])),
}


@pytest.mark.parametrize("case", NPZ)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_bad_npz(case, tmp_path, monkeypatch):
    trap = tmp_path / "trap"
    monkeypatch.setenv("LEAKLINE_TEST_TRAP", str(trap))
    path = tmp_path / "d.npz"
    path.write_bytes(NPZ[case]())
    with pytest.raises(DataError) as caught:
        Npz(str(path)).load()
    assert "\n" not in caught.value.what
    assert not trap.exists()
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(DataError):
        MedMNIST(str(path)).load()


def test_bomb_may_be_trusted(tmp_path):
    path = tmp_path / "d.npz"
    path.write_bytes(bomb())
    with pytest.raises(DataError, match="times its size"):
        read_npz(path, ("x",))
    assert len(read_npz(path, ("y",), max_bytes=2**28)["y"]) == 6
    with pytest.raises(DataError, match="max_bytes"):
        read_npz(path, ("y",), max_bytes=2**20)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_fuzzed_npz_loads_or_says_so(data):
    good = bytearray(npz_bytes(x=GOOD_X, y=GOOD_Y))
    for _ in range(data.draw(st.integers(1, 6))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))
    content = bytes(good[:cut]) if data.draw(st.booleans()) else bytes(good)
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "d.npz"
        path.write_bytes(content)
        try:
            assert len(Npz(str(path)).load().train) == 6
        except DataError as error:
            assert "\n" not in error.what  # noqa: PT017  (either outcome is right)


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def huge_png(width, height):
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")


def good_png():
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 32), dtype=np.uint8)).save(stream, "png")
    return stream.getvalue()


PNG = {
    "empty": lambda: b"",
    "text": lambda: b"<html>",
    "truncated": lambda: good_png()[:400],
    "bad checksum": lambda: good_png().replace(b"IDAT", b"IDAX"),
    "900 megapixels": lambda: huge_png(30000, 30000),
    "100 megapixels, where PIL only warns": lambda: huge_png(10000, 10000),
    "70 megapixels": lambda: huge_png(10000, 7000),
    "zero pixels": lambda: huge_png(0, 10),
    "pickle": lambda: b"cos\nsystem\n(S'true'\ntR.",
    "gif header only": lambda: b"GIF89a",
}


@pytest.mark.parametrize("case", PNG)
def test_bad_png(case, tmp_path):
    for label in "ab":
        (tmp_path / label).mkdir()
        (tmp_path / label / "good.png").write_bytes(good_png())
    (tmp_path / "a" / "bad.png").write_bytes(PNG[case]())
    with pytest.raises(DataError, match=r"1 of 3 image files cannot be read: a/bad\.png") as caught:
        ImageFolder(str(tmp_path)).load()
    assert "\n" not in caught.value.what
    assert len(ImageFolder(str(tmp_path), max_bad_files=1).load().train) == 2


def test_links_are_not_followed(tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "s.png").write_bytes(good_png())
    root = tmp_path / "root"
    for label in "ab":
        (root / label).mkdir(parents=True)
        (root / label / "good.png").write_bytes(good_png())
    (root / "a" / "link.png").symlink_to(secret / "s.png")
    (root / "linked").symlink_to(secret)
    with pytest.raises(DataError, match="it is a link"):
        ImageFolder(str(root)).load()
    assert ImageFolder(str(root), max_bad_files=1).load().classes == ("a", "b")
    (root / "out.npz").symlink_to(secret / "s.png")
    with pytest.raises(DataError, match="outside"):
        child(root, "out.npz")
    with pytest.raises(DataError, match="outside"):
        child(root, "../secret/s.png")


@pytest.mark.parametrize("path", ["nowhere", "no\0where", "x" * 5000])
def test_no_such_path(path, tmp_path):
    for source in (Npz(path), CsvSignals(path), ImageFolder(path), MedMNIST(path)):
        with pytest.raises(DataError):
            source.load()


CSV = {
    "empty": b"",
    "no rows": b"a,label,subject\n",
    "no label column": b"a,subject\n1,2\n",
    "no subject column": b"a,label\n1,2\n",
    "no channel": b"label,subject\nx,y\n",
    "words in a channel": b"a,label,subject\n" + b"1,x,s\n" * 9 + b"one,x,s\n",
    "missing cell": b"a,label,subject\n" + b"1,x,s\n" * 300 + b",x,s\n",
    "infinite": b"a,label,subject\n" + b"1,x,s\n" * 300 + b"inf,x,s\n",
    "ragged": b"a,label,subject\n1,x,s\n1,2,3,4,5,6,7\n",
    "binary": bytes(range(256)) * 20,
    "open quote": b'a,label,subject\n"1,x,s\n' + b"1,x,s\n" * 5,
    "shorter than a window": b"a,label,subject\n" + b"1,x,s\n" * 20,
    "zip": npz_bytes(x=GOOD_X),
}


@pytest.mark.parametrize("case", CSV)
def test_bad_csv(case, tmp_path):
    path = tmp_path / "s.csv"
    path.write_bytes(CSV[case])
    with pytest.raises(DataError) as caught:
        CsvSignals(str(path)).load()
    assert "\n" not in caught.value.what


def test_hostile_folder_names_stay_data(tmp_path):
    names = ["<script>alert(1)", "'; drop table", "\u202etxt", "x..%2f..", "=1+1"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "good.png").write_bytes(good_png())
    bad = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.mkdir(bad)
    Path(os.fsdecode(bad + b"/good.png")).write_bytes(good_png())
    data = ImageFolder(str(tmp_path)).load()
    assert set(names) <= set(data.classes)
    assert all(c.encode("utf-8") for c in data.classes)
