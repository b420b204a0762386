"""Federations trained side by side for what is written down of them; nothing else of them is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from leakline.attacks.base import Look
from leakline.errors import StackError
from leakline.federation import Federation, federate
from leakline.runtimes.forks import FORKABLE, Tells, side_by_side
from leakline.runtimes.local import LocalTransport
from leakline.study.describe import describe, description, key_of
from leakline.study.files import is_there, make_folder, write_atomically
from leakline.study.tensors import pack_sealed, read_sealed

Trained = Callable[[Federation, int], None]
"""Called when a federation is trained, with how many are there."""


def watched(
    folder: Path, federations: Sequence[Federation], look: Look, workers: int, trained: Trained
) -> list[dict[str, np.ndarray]]:
    """What ``look`` writes down of each federation, from its file in ``folder`` where it was trained before.

    A file's name is the hash of everything that decides what is in it. Each federation is trained in one process,
    ``workers`` of them at a time.
    """
    paths = [_path(folder, federation, look) for federation in federations]
    missing = [(f, path) for f, path in zip(federations, paths, strict=True) if _table(path) is None]
    jobs = [partial(_watch, federation, look, path) for federation, path in missing]
    done = len(paths) - len(jobs)

    def hears(number: int, told: Mapping[str, Any]) -> None:
        nonlocal done
        done += 1
        trained(missing[number][0], done)

    if min(workers, len(jobs)) > 1 and FORKABLE:
        side_by_side(jobs, workers, hears)
    else:
        for number, job in enumerate(jobs):
            job(partial(hears, number), lambda: False)
    return [_found(path) for path in paths]


def _path(folder: Path, federation: Federation, look: Look) -> Path:
    return folder / f"{key_of({**description(federation), 'look': describe(look)})}.safetensors"


def _watch(federation: Federation, look: Look, path: Path, tells: Tells, stopped: Callable[[], bool]) -> None:
    with LocalTransport(federation, 1) as transport:
        table = look(federation, federate(federation, transport, keep=look.keep))
    make_folder(path.parent)
    tensors = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in table.items()}
    write_atomically(path, pack_sealed(tensors, {}))
    tells({"done": path.stem})


def _table(path: Path) -> dict[str, np.ndarray] | None:
    """A table that was written before; None where it is not there, or damaged."""
    if not is_there(path):
        return None
    try:
        return {name: tensor.numpy() for name, tensor in read_sealed(path)[0].items()}
    except Exception:  # a damaged file may fail in any way, and is made again
        return None


def _found(path: Path) -> dict[str, np.ndarray]:
    table = _table(path)
    if table is None:
        raise StackError("a federation trained for comparison left nothing", path.parent.name, "run the study again")
    return table
