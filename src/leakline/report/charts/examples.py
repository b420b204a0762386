"""A few examples of every class, as a federation's clients hold them: images, masks over images, or signals."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from leakline.data.base import Data, Task
from leakline.errors import DataError
from leakline.report.charts.static import any_letter, styled
from leakline.text import tidy

MOST_ROWS, MOST_EACH = 40, 20
"""The largest picture: more classes are cut off, which it says below, and more examples of one."""
_MARK = "#d1495b"


def examples_png(task: Task, each: int = 4, dots: int = 120) -> bytes:
    """A row for each class (of masks: with and without a mark) and ``each`` examples in it, drawn with a fixed seed.

    Images are shown between their smallest and largest value, masks as an outline, signals channel by channel. The
    same task gives the same bytes.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    image = len(task.shape) == 3 and task.shape[0] in (1, 3)
    if not image and len(task.shape) != 2:
        raise DataError(
            f"inputs of shape {task.shape} are neither images of one or three channels nor signals",
            task.name,
            "there is nothing to draw; `leakline check` says what a study reads",
        )
    held = [client.train for client in task.clients if len(client.train)]
    if not held:
        raise DataError("no client holds an example here", task.name, "draw where the data are")
    rows = _rows(task, held)
    shown = list(rows.items())[:MOST_ROWS]
    columns = min(each, MOST_EACH)
    with styled("examples"), any_letter():
        drawing = Figure(figsize=(1.5 * columns + 0.3, 1.75 * len(shown)), layout="constrained")
        FigureCanvasAgg(drawing)
        grid = drawing.subplots(len(shown), columns, squeeze=False)
        for (name, places), axes in zip(shown, grid, strict=True):
            axes[0].set_title(tidy(f"{name} ({len(places):,})"), loc="left", fontsize=9)
            _row(axes, held, places[:columns], image)
        if len(rows) > len(shown):
            drawing.supxlabel(f"and {len(rows) - len(shown)} classes more", fontsize=9)
        out = io.BytesIO()
        drawing.savefig(out, format="png", dpi=dots, facecolor="white", metadata={"Software": None})
    return out.getvalue()


_Place = tuple[int, int]
"""Whose, and which of its examples."""


def _rows(task: Task, held: Sequence[Data]) -> dict[str, list[_Place]]:
    """Where the examples of every class lie, in an order of chance."""
    names = task.classes if task.kind == "classification" else ("nothing marked", "marked")
    places: dict[str, list[_Place]] = {name: [] for name in names}
    for who, data in enumerate(held):
        for at, label in enumerate(data.labels().tolist()):
            places[names[label]].append((who, at))
    chance = np.random.default_rng(0)
    return {name: [found[i] for i in chance.permutation(len(found))] for name, found in places.items() if found}


def _row(axes: Sequence[Any], held: Sequence[Data], places: Sequence[_Place], image: bool) -> None:
    for one in axes:
        one.set_axis_off()
    for one, (who, at) in zip(axes, places, strict=False):
        found = held[who].take([at])
        x = found.inputs(slice(0, 1))[0]
        if not image:
            one.plot(x.T.numpy(), linewidth=0.6)
            continue
        low, high = float(x.min()), float(x.max())
        pixels = ((x - low) / (high - low) if high > low else torch.zeros_like(x)).permute(1, 2, 0).numpy()
        one.imshow(pixels if pixels.shape[2] == 3 else pixels[:, :, 0], cmap="gray", vmin=0.0, vmax=1.0)
        if found.y.ndim > 1 and bool(found.y.any()):
            one.contour(found.y[0, 0].numpy(), levels=[0.5], colors=_MARK, linewidths=1.0)
