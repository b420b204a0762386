"""Folders of images that are larger than memory: the same data set from a file as in memory, made once, and again
when something changed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import leakline as ll
from leakline.data import Even, ImageFolder, decoded
from leakline.data.on_disk import OnDisk
from leakline.errors import DataError
from leakline.strategies import fedavg


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "images"
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (root / label).mkdir(parents=True)
        for i in range(20):
            Image.fromarray(rng.integers(0, 256, (9, 7, 3), dtype=np.uint8)).save(root / label / f"{i}.png")
    return root


@pytest.fixture
def little_memory(monkeypatch):
    monkeypatch.setattr(decoded, "IN_MEMORY", 1000)
    monkeypatch.setattr(decoded, "PIECE", 700)


def made(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.images"))


@pytest.mark.parametrize("grey", [True, False])
def test_a_data_set_is_the_same_in_a_file_and_in_memory(folder, tmp_path, grey, monkeypatch):
    whole = ImageFolder(str(folder), size=8, grey=grey).load()
    monkeypatch.setattr(decoded, "IN_MEMORY", 1000)
    monkeypatch.setattr(decoded, "PIECE", 700)
    for _ in range(2):  # made, then found
        filed = ImageFolder(str(folder), size=8, grey=grey, cache=str(tmp_path / "cache")).load()
        assert isinstance(filed.train.x, OnDisk)
        assert not isinstance(whole.train.x, OnDisk)
        assert filed.train.fingerprint() == whole.train.fingerprint()
        rows = np.array([31, 2, 2, 17])
        assert isinstance(filed.train.take(rows).x, OnDisk)
        assert filed.train.take(rows).fingerprint() == whole.train.take(rows).fingerprint()
        assert torch.equal(filed.train.inputs(torch.tensor([5, 1])), whole.train.inputs(torch.tensor([5, 1])))
        assert torch.equal(filed.train.inputs(slice(3, 30, 2)), whole.train.inputs(slice(3, 30, 2)))


def test_any_operation_gives_what_it_gives_in_memory(folder, little_memory):
    x = ImageFolder(str(folder), size=8).load().train.x
    values = x.whole()
    assert (x.shape, x.dtype, len(x), x.is_meta) == (values.shape, values.dtype, len(values), False)
    pairs = [
        (x[3], values[3]), (x[-1], values[-1]), (x[values[:, 0, 0, 0] > 99], values[values[:, 0, 0, 0] > 99]),
        (x[:, 0, 2:4], values[:, 0, 2:4]), (x[None], values[None]), (x.float().mean(0), values.float().mean(0)),
        (torch.cat([x, values[:2]]), torch.cat([values, values[:2]])), (x.clone(), values), (x == 7, values == 7),
        (torch.zeros_like(x), torch.zeros_like(values)), (torch.from_numpy(x.numpy()), values),
    ]  # fmt: skip
    for ours, theirs in pairs:
        assert type(ours) is torch.Tensor
        assert torch.equal(ours, theirs)


def test_rows_of_one_file_behind_each_other_stay_on_disk(folder, little_memory):
    data = ImageFolder(str(folder), size=8).load().train
    parts = [data.take(np.array(rows)).x for rows in ([3, 1], [7], [1, 2])]
    behind = torch.cat(parts)
    assert isinstance(behind, OnDisk)
    assert torch.equal(behind.whole(), data.x.whole()[[3, 1, 7, 1, 2]])
    assert torch.equal(torch.cat([parts[0], parts[2]], 1), torch.cat([parts[0].whole(), parts[2].whole()], 1))
    other = ImageFolder(str(folder), size=8).load().train.x
    mixed = torch.cat([parts[0], other])
    assert type(mixed) is torch.Tensor
    assert torch.equal(mixed, torch.cat([parts[0].whole(), other.whole()]))


def test_federations_learn_the_same_from_a_file_with_one_worker_and_with_two(folder, monkeypatch):
    def weights(workers: int) -> torch.Tensor:
        task = ll.partition(ImageFolder(str(folder), size=8).load(), Even(), clients=3)
        plan = ll.Plan(epochs=2, batch=4, learning_rate=0.1)
        federation = ll.Federation(
            task, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), plan, fedavg(), rounds=2
        )
        from leakline.runtimes.local import LocalTransport

        with LocalTransport(federation, workers) as transport:
            return list(ll.federate(federation, transport))[-1].result.vector

    in_memory = weights(1)
    monkeypatch.setattr(decoded, "IN_MEMORY", 1000)
    assert torch.equal(weights(1), in_memory)
    assert torch.equal(weights(2), in_memory)


def test_a_file_is_made_once_and_again_when_the_folder_changed(folder, tmp_path, little_memory):
    source = ImageFolder(str(folder), size=8, cache=str(tmp_path / "cache"))
    before = source.load().train.fingerprint()
    (file,) = made(tmp_path / "cache")
    written = file.stat().st_ino
    assert source.load().train.fingerprint() == before
    assert file.stat().st_ino == written
    changed = folder / "cat" / "3.png"
    pixels = np.asarray(Image.open(changed))
    times = changed.stat()
    Image.fromarray(255 - pixels).save(changed)
    os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))  # whoever copies files may keep their times
    assert source.load().train.fingerprint() != before
    assert made(tmp_path / "cache") == [file]
    assert file.stat().st_ino != written
    (folder / "dog" / "9.png").unlink()
    assert len(source.load().train) == 39


@pytest.mark.parametrize("where", [0, 1000, -3, -200])
def test_a_damaged_file_is_made_again(folder, tmp_path, little_memory, where):
    source = ImageFolder(str(folder), size=8, cache=str(tmp_path / "cache"))
    before = source.load().train.fingerprint()
    (file,) = made(tmp_path / "cache")
    content = bytearray(file.read_bytes())
    content[where] ^= 0x55
    for damaged in (bytes(content), bytes(content[:where]), b""):
        file.write_bytes(damaged)
        assert source.load().train.fingerprint() == before


def test_what_cannot_be_read_is_remembered(folder, tmp_path, little_memory):
    (folder / "cat" / "0.png").write_bytes(b"no image")
    source = ImageFolder(str(folder), size=8, cache=str(tmp_path / "cache"), max_bad_files=1)
    first, again = source.load(), source.load()
    assert len(first.train) == len(again.train) == 39
    assert first.remarks == again.remarks
    assert "1 of 40 image files cannot be read: cat/0.png" in first.remarks[0]
    assert first.train.fingerprint() == again.train.fingerprint()
    with pytest.raises(DataError, match="1 of 40"):
        ImageFolder(str(folder), size=8, cache=str(tmp_path / "cache")).load()


def test_files_are_for_their_owner_and_nothing_lies_beside_the_data(folder, tmp_path, little_memory):
    listed = sorted(p for p in folder.rglob("*"))
    ImageFolder(str(folder), size=8).load()  # nobody named a folder: a file without a name
    with decoded.kept_in(tmp_path / "run" / "images"):
        ImageFolder(str(folder), size=8).load()
    assert sorted(p for p in folder.rglob("*")) == listed
    assert stat.S_IMODE((tmp_path / "run" / "images").stat().st_mode) == 0o700
    (file,) = made(tmp_path / "run" / "images")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_no_link_is_followed_and_no_pipe_is_waited_for(folder, tmp_path, little_memory):
    source = ImageFolder(str(folder), size=8, cache=str(tmp_path / "cache"))
    before = source.load().train.fingerprint()
    (file,) = made(tmp_path / "cache")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"mine")
    file.unlink()
    file.symlink_to(elsewhere)
    (file.with_name(f".new-{file.name}")).symlink_to(elsewhere)
    with pytest.raises(DataError, match="decoded images cannot be kept there"):
        source.load()
    (file.with_name(f".new-{file.name}")).unlink()
    assert source.load().train.fingerprint() == before
    assert elsewhere.read_bytes() == b"mine"
    file.unlink()
    os.mkfifo(file)
    assert source.load().train.fingerprint() == before
