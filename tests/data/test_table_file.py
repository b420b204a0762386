"""Tables of one's own: numbers, texts, patients; parquet and Hugging Face's files; what is not supported says so."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from leakline.data import Even, TableFile, from_indexable, partition
from leakline.errors import DataError

ROWS = 24
FRAME = pd.DataFrame({
    "age": np.arange(ROWS, dtype=float), "ward": ["a", "b", "c"] * 8, "who": [f"p{i // 2}" for i in range(ROWS)],
    "ill": ["yes", "no"] * 12, "part": ["train"] * 18 + ["test"] * 6,
})  # fmt: skip


@pytest.fixture(params=["csv", "parquet", "disk"])
def path(request, tmp_path):
    if request.param == "disk":
        table = pa.Table.from_pandas(FRAME.assign(ill=[1, 0] * 12), preserve_index=False)
        file = str(tmp_path / "data-00000-of-00001.arrow")
        with pa.OSFile(file, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as out:
            out.write_table(table)
        info = {"features": {"ill": {"names": ["no", "yes"], "_type": "ClassLabel"}, "age": {"dtype": "float64"}}}
        (tmp_path / "dataset_info.json").write_text(json.dumps(info))
        (tmp_path / "state.json").write_text("{}")
        return tmp_path
    file = tmp_path / f"records.{request.param}"
    FRAME.to_csv(file, index=False) if request.param == "csv" else FRAME.to_parquet(file)
    return file


def test_numbers_are_scaled_by_the_training_part_and_texts_become_inputs(path):
    found = TableFile(str(path), label="ill", patient="who", split="part").load()
    assert found.classes == ("no", "yes")
    assert found.train.x.shape == (18, 1 + 3)
    assert found.test is not None
    assert len(found.test) == 6
    ages = np.arange(18)
    expected = (np.arange(ROWS) - ages.mean()) / ages.std()
    assert torch.allclose(found.train.x[:, 0], torch.tensor(expected[:18], dtype=torch.float32))
    assert torch.allclose(found.test.x[:, 0], torch.tensor(expected[18:], dtype=torch.float32))
    assert found.train.x[:3, 1:].tolist() == np.eye(3).tolist()
    assert found.train.y.tolist() == [1, 0] * 9
    assert found.train.groups is not None
    assert len(found.train.groups.unique()) == 9


def test_images_of_a_saved_set_are_decoded(tmp_path):
    import io

    from PIL import Image

    cells = []
    for value in (0, 255, 0, 255):
        buffer = io.BytesIO()
        Image.new("L", (4, 4), value).save(buffer, "PNG")
        cells.append({"bytes": buffer.getvalue(), "path": None})
    table = pa.table({"image": cells, "label": [0, 1, 0, 1]})
    with pa.OSFile(str(tmp_path / "data.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    found = TableFile(str(tmp_path), size=2).load()
    assert found.train.x.shape == (4, 1, 2, 2)
    assert found.train.x.flatten(1).float().mean(1).tolist() == [0, 255, 0, 255]


BAD = {
    "regression": (FRAME.assign(ill=np.linspace(0, 1, ROWS)), {}, "regression is not supported yet"),
    "several labels": (
        FRAME.assign(ill=[["a", "b"]] * ROWS),
        {},
        "several labels for one record: that is not",
    ),
    "no label": (FRAME.assign(ill=["yes", None] * 12), {}, "12 of 24 records have no label"),
    "one class": (FRAME.assign(ill="yes"), {}, "1 classes"),
    "a hole": (FRAME.assign(age=[1.0, None] * 12), {}, "12 of 24 cells of 'age' are empty"),
    "no column": (FRAME, {"label": "diagnosis"}, "no column 'diagnosis'"),
    "two splits": (FRAME.assign(part=["train", "test"] * 12), {}, "patients are in two splits"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_learnt_from_is_said_with_counts(case, tmp_path):
    frame, settings, words = BAD[case]
    frame.to_parquet(tmp_path / "t.parquet")
    wanted = {"label": "ill", "patient": "who", "split": "part", **settings}
    with pytest.raises(DataError, match=words) as caught:
        TableFile(str(tmp_path / "t.parquet"), **wanted).load()
    assert caught.value.fix


class Pairs(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int):
        return torch.full((1, 4, 4), float(i)), torch.tensor(i % 2)


def test_a_torch_dataset_or_a_list_of_pairs_will_do():
    found = from_indexable(Pairs(), classes=("healthy", "ill"), patients=[f"p{i // 2}" for i in range(20)])
    assert found.classes == ("healthy", "ill")
    assert found.train.x.shape == (20, 1, 4, 4)
    task = partition(found, Even(), clients=2)
    assert task.classes == ("healthy", "ill")
    same = from_indexable([(np.full((1, 4, 4), float(i), np.float32), i % 2) for i in range(20)])
    assert torch.equal(same.train.x, found.train.x)
    assert same.classes == ("0", "1")
    with pytest.raises(DataError, match="regression is not supported yet"):
        from_indexable([(np.zeros(2), 0.5), (np.zeros(2), 1.5)])
    with pytest.raises(DataError, match="pair"):
        from_indexable([1, 2])
