"""Pictures and arrays of attacks: what was changed, lost or added since is named, and shown to nobody."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from leakline.attacks.base import Artefact
from leakline.errors import StoreError
from leakline.study import artefacts
from leakline.study.media import SEALS, damage, read_media

MOST = 10**6
HERE = "media/inversion-abc/round-0003/a"
FILES = ["original.png", "embedding.npy", "media.json"]


@pytest.fixture
def run(tmp_path) -> Path:
    made = Artefact(
        client="a",
        round=3,
        arrays={"embedding": np.arange(6.0).reshape(2, 3)},
        pictures={"original": torch.rand(1, 8, 8)},
        lists={"media": [{"file": "original.png", "kind": "original"}]},
    )
    artefacts.write(tmp_path / "media" / "inversion-abc", [made])
    return tmp_path


def test_what_an_attack_wrote_is_read_again(run):
    assert list(damage(run)) == []
    for name in FILES:
        assert read_media(run / HERE / name, run, MOST) == (run / HERE / name).read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_noticed_when_read_and_by_verify(run, name):
    path = run / HERE / name
    data = bytearray(path.read_bytes())
    for at in range(0, len(data), 7):
        path.write_bytes(bytes([*data[:at], data[at] ^ 4, *data[at + 1 :]]))
        with pytest.raises(StoreError, match="not what the attack wrote"):
            read_media(path, run, MOST)
        assert [line for line in damage(run) if name in line]


@pytest.mark.parametrize("name", FILES)
def test_a_lost_file_is_named(run, name):
    (run / HERE / name).unlink()
    assert list(damage(run)) == [f"media/inversion-abc: round-0003/a/{name} is missing"]


def test_a_file_of_another_hand_is_named_and_not_read(run):
    (run / HERE / "more.png").write_bytes(b"x")
    assert "more.png is not what the attack wrote" in next(damage(run))
    with pytest.raises(StoreError):
        read_media(run / HERE / "more.png", run, MOST)


def test_a_damaged_or_lost_list_is_named(run):
    path = run / "media" / "inversion-abc" / SEALS
    text = path.read_text()
    path.write_text(text.replace("embedding", "embeddung"))
    assert "its seal does not fit" in next(damage(run))
    with pytest.raises(StoreError, match="its seal does not fit"):
        read_media(run / HERE / FILES[0], run, MOST)
    path.unlink()
    assert list(damage(run)) == [f"media/inversion-abc has no {SEALS}"]


def test_a_link_is_not_followed(run, tmp_path_factory):
    secret = tmp_path_factory.mktemp("else") / "secret"
    secret.write_bytes(b"hunter2")
    (run / HERE / FILES[0]).unlink()
    (run / HERE / FILES[0]).symlink_to(secret)
    with pytest.raises(StoreError, match="link"):
        read_media(run / HERE / FILES[0], run, MOST)
    assert "link" in next(damage(run))
