"""Writing a recording from any engine: plain numpy arrays, no torch.

    for each round:
        write_round("recording", sent, {"site-a": change, "site-b": change}, result)

docs/recordings.md has the format in full; `leakline.recordings.recording.Recording` reads it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from leakline.errors import DataError, StoreError
from leakline.names import printable
from leakline.recordings.claims import Claimed
from leakline.recordings.format import (
    FORMAT,
    PLAN,
    RESULT,
    SENT,
    VERSION,
    file_name,
    finite,
    folder_name,
    is_size,
    json_or_none,
)
from leakline.study.files import (
    SEAL,
    append,
    make_folder,
    open_for_more,
    read_json,
    write_atomically,
    write_json,
)

Arrays = Mapping[str, np.ndarray]
Seat = Literal["server", "client"]
Layout = list[list[Any]]
"""[name, shape, buffer] for every array, in the order of the vector: parameters before buffers."""
STATISTICS = ("running_mean", "running_var")
TAIL = 4096
THIS_PROCESS = secrets.token_hex(6)
"""A name for the run of whoever gives none: another process does not go on with it by accident."""


def write_round(
    directory: str | Path,
    sent: Arrays,
    updates: Mapping[str, Arrays],
    result: Arrays | None = None,
    *,
    index: int | None = None,
    examples: Mapping[str, int] | None = None,
    buffers: Iterable[str] = (),
    metrics: Mapping[str, Mapping[str, float]] | None = None,
    dropped: Mapping[str, str] | None = None,
    engine: str = "unnamed",
    seat: Seat = "server",
    run: str = THIS_PROCESS,
    plan: Mapping[str, Any] | None = None,
    claimed: Mapping[str, Any] | None = None,
    facts: Mapping[str, float] | None = None,
) -> Path:
    """Add one round to a recording, and begin it with the first; gives the round's folder.

    ``sent``: the model that went out, arrays by name. ``updates``: by client, how each array *changed* (new minus
    sent), names and shapes as there. ``result``: the model that came of it, None where this seat does not see it.
    Arrays of whole numbers (counters) are left out. ``examples``: how many each client trained on (1 where not said).
    ``buffers``: arrays that are not trained, besides those called running_mean and running_var. ``metrics``: figures
    that clients sent along. ``dropped``: clients that did not count, and why. ``facts``: figures of the round, such as
    its ``clip`` where that moves. ``index``: the round's number, else one more than the last (from 0).

    Said once, with the first round: ``engine``, ``seat``, ``plan`` (what this seat knows of local training:
    {"learning_rate": 0.1, "batch": 32, "epochs": 1}), ``claimed`` (clip, noise_multiplier, weighting ...: see `leakline
    audit --help`). A directory holds one run: whoever goes on from another process says the same ``run`` in both.
    """
    to = Path(directory).absolute()
    layout, left_out = layout_of_arrays(sent, buffers)
    counts, figures = dict(examples or {}), dict(metrics or {})
    for client, change in updates.items():
        file_name(client)
        check_shapes(change, layout, f"the update of {client}")
        counts[client] = _count(counts.get(client, 1), client)
    if result is not None:
        check_shapes(result, layout, "result")
    strange = [key for key in plan or {} if key not in PLAN]
    if strange:
        raise DataError(f"a plan has no {printable(strange[0], 40)!r}", "write_round", f"it may say: {', '.join(PLAN)}")
    try:
        Claimed(**(claimed or {}))
    except (TypeError, ValueError) as error:
        raise DataError(f"claimed: {printable(error)}", "write_round", "see `leakline audit --help`") from error
    said = {"plan": dict(plan or {}), "claimed": dict(claimed or {})}
    begin(to, layout, run, engine=engine, seat=seat, left_out=left_out, **said)
    line = {
        "cohort": list(updates),
        "dropped": [[client, reason] for client, reason in (dropped or {}).items()],
        "facts": dict(facts or {}),
        "metrics": {},
        "clients": [
            {"client": c, "part": 0, "examples": counts[c], "metrics": dict(figures.get(c, {}))} for c in updates
        ],
    }
    named = {"layout": json.dumps(layout)}

    def files() -> Iterator[tuple[str, bytes]]:
        yield SENT, packed("weights", flat(sent, layout), named)
        for client, change in updates.items():
            about = {"examples": str(counts[client]), "steps": "0", "part": "0", "client": client}
            yield file_name(client), packed("delta", flat(change, layout), about)
        if result is not None:
            yield RESULT, packed("weights", flat(result, layout), named)

    return add_round(to, index, line, files())


def layout_of_arrays(arrays: Arrays, buffers: Iterable[str] = ()) -> tuple[Layout, list[str]]:
    """The layout of named arrays, and the names of those that are left out: whole numbers."""
    named, layout, left_out = set(buffers), list[list[Any]](), []
    for name, array in arrays.items():
        kind = np.asarray(array).dtype.kind
        if kind == "f":
            last = str(name).rpartition(".")[2]
            layout.append([str(name), [int(n) for n in np.shape(array)], name in named or last in STATISTICS])
        elif kind in "iub":
            left_out.append(str(name))
        else:
            raise DataError(
                f"{printable(name, 64)} is of type {np.asarray(array).dtype}", "write_round", "floats are recorded"
            )
    if not layout:
        raise DataError(
            "there is no array of floating-point numbers", "write_round", "give the model's weights by name"
        )
    return sorted(layout, key=lambda entry: entry[2]), left_out


def check_shapes(arrays: Arrays, layout: Layout, what: str) -> None:
    """An error that names what does not fit."""
    for name, shape, _ in layout:
        if name not in arrays:
            shown = f"{printable(what, 80)} has no {printable(name, 64)}"
            raise DataError(shown, "write_round", "give every array of `sent`")
        array = np.asarray(arrays[name])
        if list(array.shape) != shape or array.dtype.kind != "f":
            shown = f"{printable(name, 64)} is {array.dtype} of shape {array.shape} in {printable(what, 80)}"
            raise DataError(shown, "write_round", f"floats of shape {tuple(shape)}, as sent")


def flat(arrays: Arrays, layout: Layout) -> np.ndarray:
    """Named arrays as one float32 vector."""
    return np.concatenate([np.asarray(arrays[name], dtype="<f4").ravel() for name, _, _ in layout])


def packed(name: str, vector: np.ndarray, meta: Mapping[str, str]) -> bytes:
    """A safetensors file of one float32 vector, with a seal over its values and what is said about them.

    The same bytes as `leakline.study.tensors.pack_sealed` makes, whose seal names types as torch does.
    """
    digest = hashlib.blake2b(digest_size=12)
    for key in sorted(meta):
        digest.update(f"{key}\0{meta[key]}\0".encode())
    digest.update(f"{name}\0torch.float32{(len(vector),)}\0".encode())
    values = np.ascontiguousarray(vector, dtype="<f4").tobytes()
    digest.update(values)
    about = dict(sorted({**meta, SEAL: digest.hexdigest()}.items()))
    place = {"dtype": "F32", "shape": [len(vector)], "data_offsets": [0, len(values)]}
    head = json.dumps({"__metadata__": about, name: place}, separators=(",", ":"), ensure_ascii=False).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head + values


def begin(to: Path, layout: Layout, run: str, **about: Any) -> None:
    """Write recording.json, or see that the one that is there is of this run and this model."""
    make_folder(to)
    path = to / "recording.json"
    with _locked(to):
        if path.exists() or path.is_symlink():
            there = read_json(path)
            if not run or there.get("run") != run:
                raise StoreError(
                    "there is a recording of another run already", to.name,
                    "give another directory, or go on with the same run",
                )  # fmt: skip
            if there.get("layout") != layout:
                raise StoreError("this recording is of another model", to.name, "give another directory")
            return
        write_json(path, {"format": FORMAT, "version": VERSION, "run": run, "layout": layout, **about})


def add_round(
    to: Path, index: int | None, line: Mapping[str, Any], files: Iterable[tuple[str, bytes]], why: str = ""
) -> Path:
    """Write a round's files, one in memory at a time, then its line; ``why``: the reason that there are no files.

    Rounds come in order: one that is there already was written by somebody else.
    """
    with _locked(to):
        last = last_round(to / "rounds.jsonl")
        number = last + 1 if index is None else index
        if not is_size(number):
            raise DataError(f"a round has no number {printable(number, 20)}", "write_round", "whole numbers from 0 on")
        if number <= last:
            raise StoreError(
                f"round {number} is recorded already, the last is {last}", to.name,
                "give every recorder a directory of its own",
            )  # fmt: skip
        folder = to / "kept" / folder_name(number)
        kept = []
        for name, data in files:
            make_folder(folder)
            write_atomically(folder / f"{name}.safetensors", data)
            kept.append(name)
        whole = {"round": number, **line, "kept": kept, **({"left_out": why} if why else {})}
        append(to / "rounds.jsonl", [finite(whole)])
    return folder


def last_round(path: Path) -> int:
    """The number on the last whole line of a file that only ever grows; -1 where there is none."""
    if not path.exists() and not path.is_symlink():
        return -1
    with open_for_more(path) as file:
        end, size = file.seek(0, os.SEEK_END), TAIL
        while True:
            file.seek(max(0, end - size))
            rows = file.read().split(b"\n")[:-1]  # half a line that a stop left counts for nothing
            if len(rows) > 1 or size >= end:
                break
            size *= 4
    line = json_or_none(rows[-1].decode("utf-8", "replace")) if rows else {}
    number = line.get("round") if isinstance(line, dict) else None
    return number if rows and isinstance(number, int) and is_size(number) else -1


@contextlib.contextmanager
def _locked(to: Path) -> Iterator[None]:
    """Hold a recording against other recorders for as long as it takes to write a round."""
    with open_for_more(to / ".lock") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _count(value: Any, client: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        shown = f"{printable(client, 64)} trained on {printable(value, 20)} examples"
        raise DataError(shown, "write_round", "a whole number from 1 on")
    return int(value)
