"""A cell as a task of a Ray cluster: what a node is told, how it does a cell, and what it hands back.

What crosses the wire is plain: the study's text, the number of a cell, JSON; and, where nodes do not see the run
directory, the files of runs. A node needs leakline and the study's data, and makes the federation of a cell by itself;
its key says whether it made the same one.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from leakline import __version__
from leakline.errors import LeaklineError, StackError, StoreError
from leakline.foreign import travelling
from leakline.names import printable
from leakline.runtimes.client import reason_of
from leakline.study.cells import Study
from leakline.study.describe import THREADS, description, key_of
from leakline.study.files import MOST_WEIGHTS, make_folder, read_bytes, write_atomically
from leakline.study.kept_features import kept_in
from leakline.study.one_cell import Work
from leakline.study.pace import Pace
from leakline.study.spec import parse
from leakline.study.store import BEFORE, CHECKPOINT, Store

Files = dict[str, bytes]
"""Files of a store, by their path in it."""
LAST = (BEFORE, CHECKPOINT, "end.json")
"""What is written after everything else, in this order."""
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,250}")
"""A name in a path; claims and half files begin with a dot."""


@dataclass(frozen=True)
class Asked:
    """A study as it was asked for, and where: all that a node needs to make the same one."""

    text: str
    preset: str = ""
    sets: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    folder: str = field(default_factory=os.getcwd)
    code: tuple[tuple[str, bytes], ...] = ()
    """Files of the user's own that the study names."""

    @classmethod
    def of(cls, study: Study, preset: str, sets: Sequence[str], only: Sequence[str]) -> Asked:
        """What was asked for on the command line."""
        code = tuple((name, path.read_bytes()) for name, path in travelling(study.foreign).items())
        return cls(study.text, preset, tuple(sets), tuple(only), code=code)

    def study(self, beside: Path) -> Study:
        """The study, made on a node; files of the user's own are put ``beside`` it."""
        for name, data in self.code:
            make_folder((beside / name).parent)
            write_atomically(beside / name, data)
        places = (beside, Path.cwd())
        return parse(self.text, preset=self.preset, sets=self.sets, trust=True, beside=places).only(self.only)


@dataclass(frozen=True)
class Order:
    """What a node is told of a cell."""

    asked: Asked
    number: int
    keys: tuple[str, ...]
    version: str
    root: str
    """The run directory, where nodes see it; "" where results go through the driver."""
    workers: int
    deadline: float
    planned: Mapping[str, Any] | None
    files: Files = field(default_factory=dict)
    """What there is of the run already, where nodes do not see the directory."""


@lru_cache(maxsize=2)
def _study(asked: Asked) -> Study:
    return asked.study(Path(tempfile.mkdtemp(prefix="leakline-") if asked.code else os.curdir))


def do_cell(order: Order, ear: Any) -> tuple[dict[str, Any], Files]:
    """Do one cell; returns how it went, and the files of its runs where the directory is not seen from here."""
    torch.set_num_threads(THREADS)
    try:
        if order.version != __version__:
            raise StackError(f"a node has leakline {__version__}, the driver {order.version}", "Ray", "use one version")
        if os.path.isdir(order.asked.folder):
            os.chdir(order.asked.folder)
        study = _study(order.asked)
        key = key_of(description(study.cells[order.number].federation().granted))
        if key != order.keys[order.number]:
            raise StackError(
                "a node makes another federation of this cell: other data, or another torch",
                study.cells[order.number].name,
                "give all nodes the same data and versions",
            )
    except LeaklineError as error:
        return {"how": "failed", "error": str(error)}, {}
    except Exception as error:
        return {"how": "failed", "error": f"a node cannot make this cell: {reason_of(error)}"}, {}
    with tempfile.TemporaryDirectory(prefix="leakline-", ignore_cleanup_errors=True) as folder:
        root = Path(order.root or folder)
        write_files(root, order.files)
        planned = None
        if order.planned is not None:
            planned = Pace(lambda standing: None)
            planned.expect(study.cells[order.number].name, order.planned)
        work = Work(study, order.keys, Store(root), order.workers, deadline=order.deadline)
        with kept_in(root):
            answer = work.tell(order.number, planned, lambda told: ear.tell.remote(order.number, dict(told)))
        return answer, {} if order.root else read_files(root)


def sees(path: str) -> bool:
    """Whether a node sees a file."""
    return os.path.isfile(path)


def read_files(root: Path, key: str = "") -> Files:
    """The files of a store's runs (of one), but for claims and what is half written."""
    paths = (path for path in root.glob(f"runs/{key or '*'}/**/*") if path.is_file() and not path.is_symlink())
    return {
        path.relative_to(root).as_posix(): read_bytes(path, MOST_WEIGHTS, root)
        for path in paths
        if not any(part.startswith(".") for part in path.relative_to(root).parts)
    }


def write_files(root: Path, files: Files) -> None:
    """Put files into a store, each at once: a checkpoint after its lines, the end last, so a stop loses nothing."""
    for name in sorted(files, key=lambda name: LAST.index(end) if (end := name.rpartition("/")[2]) in LAST else -1):
        parts = name.split("/")
        if parts[0] != "runs" or len(parts) < 3 or not all(_PART.fullmatch(part) for part in parts):
            raise StoreError(f"not a file of a run: {printable(name, 80)}", root.name, "look at the node that sent it")
        path = root.joinpath(*parts)
        make_folder(path.parent)
        write_atomically(path, files[name])
