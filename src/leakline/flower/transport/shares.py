"""Cutting a study's data into one file for each client, so that every node can be given only its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from leakline.data import Client, Data, Task
from leakline.errors import StackError
from leakline.study.cells import Study

_LAYOUTS = {2: "nd", 3: "ncl", 4: "nchw"}


def write_shares(study: Study, folder: Path) -> dict[str, Path]:
    """Write FOLDER/NAME/data.npz and the settings that read it, for each client; returns the settings by name."""
    tasks = {id(task): task for cell in study.cells for task in [cell.federation().task]}
    if len(tasks) > 1:
        raise StackError(
            "the cells of this study share the data out in different ways, and a node holds one share",
            study.name,
            "leave one scenario (--only), and give data.seed a number",
        )
    task = next(iter(tasks.values()))
    return {client.name: _write(client, task, folder / client.name) for client in task.clients}


def _write(client: Client, task: Task, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = _arrays(client.train, "_train")
    if client.test is not None:
        arrays |= _arrays(client.test, "_test")
    if client.train.groups is not None:
        arrays["groups"] = client.train.groups.numpy()
    if task.kind == "classification":
        arrays["class_names"] = np.array(task.classes)
    np.savez(folder / "data.npz", allow_pickle=False, **arrays)
    layout = _LAYOUTS[client.train.x.ndim]
    settings = folder / "data.toml"
    settings.write_text(f'[data]\nuse = "npz"\npath = "data.npz"\nlayout = "{layout}"\n', encoding="utf-8")
    return settings


def _arrays(data: Data, end: str) -> dict[str, np.ndarray]:
    return {f"x{end}": data.x.numpy(), f"y{end}": data.y.numpy()}
