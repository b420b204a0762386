"""Pictures of what a study's clients hold: the right examples in the right row."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from leakline.data import Client, Data, Task
from leakline.errors import DataError
from leakline.report.charts.examples import MOST_ROWS, examples_png


def task(x, y, classes, kind="classification", clients=2) -> Task:
    parts = [np.arange(i, len(x), clients) for i in range(clients)]
    held = Data(torch.as_tensor(x), torch.as_tensor(y))
    return Task(tuple(Client(f"c{i}", held.take(rows)) for i, rows in enumerate(parts)), None, None, classes, kind)


def drawn(task_: Task, each: int = 1) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(examples_png(task_, each))).convert("RGB"), dtype=float)


def sides(n: int = 12) -> Task:
    """Class "left" is bright on the left, class "right" on the right."""
    y = np.arange(n) % 2
    x = np.zeros((n, 1, 8, 8), np.float32)
    for i, label in enumerate(y):
        x[i, :, :, 4 * label : 4 * label + 4] = 1.0
    return task(x, y, ("left", "right"), clients=3)


def test_every_class_has_its_own_examples_in_its_row():
    picture = drawn(sides())
    middle = picture.shape[1] / 2
    for half, dark_on_the_right in zip(np.array_split(picture, 2), (True, False), strict=True):
        panel = half[30:]  # below the row's name
        black = np.argwhere((panel < 30).all(axis=2))[:, 1]
        assert len(black) > 1000
        assert (np.median(black) > middle) == dark_on_the_right


def test_the_same_task_gives_the_same_bytes_and_more_examples_a_wider_picture():
    assert examples_png(sides()) == examples_png(sides())
    assert drawn(sides(), 4).shape[1] > 2 * drawn(sides(), 1).shape[1]
    assert drawn(sides(), 4).shape[0] == drawn(sides(), 1).shape[0]


def test_more_columns_than_examples_stay_empty():
    few = task(np.random.rand(2, 3, 8, 8).astype(np.float32), np.arange(2), ("a", "b"), clients=1)
    assert drawn(few, 3).shape[1] > drawn(few, 1).shape[1]


def test_a_mask_is_outlined_where_something_is_marked():
    masks = np.zeros((4, 1, 16, 16), np.uint8)
    masks[2:, :, 4:12, 4:12] = 1
    picture = drawn(task(np.random.rand(4, 1, 16, 16).astype(np.float32), masks, ("no", "yes"), "segmentation"))
    red = [int(((half[..., 0] - half[..., 1]) > 60).sum()) for half in np.array_split(picture, 2)]
    assert red[0] == 0  # nothing marked
    assert red[1] > 100


def test_signals_are_lines_and_rows_of_a_table_are_refused():
    waves = np.sin(np.linspace(0, 6, 50, dtype=np.float32))[None, None].repeat(4, 0).repeat(2, 1)
    assert drawn(task(waves, np.arange(4) % 2, ("a", "b"))).std() > 1
    with pytest.raises(DataError, match="neither images"):
        examples_png(task(np.zeros((4, 7), np.float32), np.arange(4) % 2, ("a", "b")))


def test_a_picture_of_very_many_classes_is_cut_and_names_without_examples_have_no_row():
    n = MOST_ROWS + 5
    y = np.arange(n)
    many = task(np.random.rand(n, 1, 4, 4).astype(np.float32), y, tuple(map(str, y)))
    two = task(np.random.rand(2, 1, 4, 4).astype(np.float32), y[:2], ("0", "1", "nobody has it"))
    high = [drawn(t).shape[0] for t in (two, many)]
    assert high[1] == pytest.approx(high[0] / 2 * MOST_ROWS, abs=2)
