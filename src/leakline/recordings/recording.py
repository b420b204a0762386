"""Recorded rounds: what was sent, what came back and what came of it, from any engine, in plain files.

    DIR/
      recording.json                           what this is: format, version, engine, seat, layout, plan
      rounds.jsonl                             one line per round: cohort, dropped, figures, and which files it has
      kept/round-0003/sent.safetensors         the weights that went out
      kept/round-0003/<client>.safetensors     a client's change; metadata: client, examples, steps, part
      kept/round-0003/result.safetensors       the weights that came of it, where the seat can see them
      attacks.jsonl                            one line per number that an attack measured

``kept/`` is what `leakline.study.store.Run.keep` writes, so one reader serves recordings and leakline's own runs. A
round counts once its line is written; files without a line are what a kill left. Nothing is pickled. Rounds carry the
numbers of their engine: Flower counts from 1, leakline from 0. docs/recordings.md has the format in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakline.errors import StoreError
from leakline.messages import Dropped, Round, Update
from leakline.names import printable
from leakline.recordings import is_recording
from leakline.recordings.claims import Claimed
from leakline.recordings.format import (
    FORMAT,
    PLAN,
    RESTORE,
    RESULT,
    SENT,
    VERSION,
    cleaned,
    file_name,
    folder_name,
    is_size,
    json_or_none,
    spans,
)
from leakline.study.files import is_there, read_json
from leakline.study.store import Run
from leakline.study.tensors import read_sealed
from leakline.weights import Entry, Layout, Weights


def layout_of(entries: Any, path: Path) -> Layout:
    """A layout as it was written, or an error that names the file."""
    try:
        return Layout(tuple(Entry(str(n), tuple(_size(v) for v in shape), bool(b)) for n, shape, b in entries))
    except (TypeError, ValueError) as error:
        raise StoreError(f"{path.name}: its layout is damaged", path.parent.name, RESTORE) from error


def _size(value: Any) -> int:
    if not is_size(value):
        raise ValueError(f"not a size: {value!r}")
    return int(value)


class Recording:
    """A recording, or the kept rounds of a run of leakline's own (``DIR/runs/<hash>``)."""

    def __init__(self, path: Path) -> None:
        self.path, self.run = path, Run(path)
        self.manifest: dict[str, Any] = {}
        if is_recording(path):
            self.manifest = read_json(path / "recording.json")
            if self.manifest.get("format") != FORMAT or self.manifest.get("version") != VERSION:
                raise StoreError(
                    f"a recording of version {printable(self.manifest.get('version'), 20)}, this one reads {VERSION}",
                    path.name,
                    "record again, or use the version of leakline that wrote it",
                )
        elif not (path / "kept").is_dir():
            inside = "give one of its runs: DIR/runs/<hash>" if (path / "study.json").exists() else "see recordings.md"
            raise StoreError("this is not a recording: it has no recording.json", path.name, inside)

    @property
    def engine(self) -> str:
        """What ran the federation."""
        return printable(self.manifest.get("engine", "leakline"), 60)

    @property
    def seat(self) -> str:
        """Who recorded: the server, or a client."""
        return printable(self.manifest.get("seat", "server"), 20)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Entries that the engine sends and a recording does not hold (counters)."""
        return tuple(printable(name) for name in self.manifest.get("left_out", ()))

    @property
    def known(self) -> dict[str, Any]:
        """What was said about the local plan, and nothing that was not; of leakline's own runs all is known."""
        plan = self.manifest.get("plan", {})
        if not self.manifest and (self.path / "run.json").is_file():
            plan = read_json(self.path / "run.json").get("federation", {}).get("plan", {})
        return {k: plan[k] for k in PLAN if k in plan} if isinstance(plan, dict) else {}

    def claimed(self) -> Claimed:
        """What the recorded engine says of itself about clip and noise."""
        table = self.manifest.get("claimed", {})
        try:
            return Claimed(**{**table, "by": printable(table.get("by", ""), 120)})
        except (AttributeError, TypeError, ValueError) as error:
            raise self._bad(
                self.path / "recording.json", f"what it says is claimed cannot be read ({printable(error, 120)})"
            ) from error

    def layout(self) -> Layout:
        """Names, shapes and buffers of what travels."""
        if "layout" in self.manifest:
            return layout_of(self.manifest["layout"], self.path / "recording.json")
        return self.round(self.indices()[0], clients=()).sent.layout

    def records(self) -> list[dict[str, Any]]:
        """The lines of all rounds, kept or not, with whatever does not belong there left out."""
        return self._records

    @cached_property
    def _records(self) -> list[dict[str, Any]]:
        return [cleaned(line) for line in self.run.rounds() if isinstance(line, dict) and is_size(line.get("round"))]

    def indices(self) -> list[int]:
        """The rounds that are kept, in order; a recording without any is an error."""
        return self._indices

    @cached_property
    def _indices(self) -> list[int]:
        if self.manifest:
            kept = [r["round"] for r in self.records() if r["kept"]]
        else:
            kept = [int(p.name[6:]) for p in (self.path / "kept").glob("round-*") if p.name[6:].isdigit()]
        if not kept:
            raise StoreError(
                "this recording holds no round", self.path.name, "ask for more when recording: rounds=None"
            )
        return sorted(set(kept))

    @cached_property
    def _by_round(self) -> dict[int, dict[str, Any]]:
        return {record["round"]: record for record in reversed(self._records)}

    def clients(self, index: int) -> list[str]:
        """Whose updates are kept of a round."""
        return list(dict.fromkeys(u.client for u in self.round(index).updates))

    def round(self, index: int, clients: Iterable[str] | None = None) -> Round:
        """One recorded round; ``clients``: only their updates."""
        held, folder = self.indices(), self.path / "kept" / folder_name(index)
        if index not in held:
            raise StoreError(f"round {index} is not in this recording", self.path.name, f"it holds {spans(held)}")
        record: dict[str, Any] = self._by_round.get(index, {})
        if not folder.is_dir():
            raise StoreError(f"round {index} is missing", f"{self.path.name}/kept/{folder.name}", RESTORE)
        sent = self._weights(folder / f"{SENT}.safetensors")
        names = record.get("kept") or sorted(p.stem for p in folder.glob("*.safetensors"))
        stems = [str(n) for n in names if n not in (SENT, RESULT)]
        wanted = None if clients is None else set(clients)
        updates = [
            self._update(folder / f"{stem}.safetensors", sent.layout)
            for stem in stems
            if wanted is None or stem.partition(".part-")[0] in wanted
        ]
        lost = (wanted or set()) - {u.client for u in updates}
        if lost:
            there = ", ".join(sorted({s.partition(".part-")[0] for s in stems})[:8])
            raise StoreError(
                f"round {index} holds no update of {printable(sorted(lost)[0], 64)}", self.path.name, f"it has: {there}"
            )
        with_result = RESULT in names
        result = self._weights(folder / f"{RESULT}.safetensors") if with_result else sent
        # For a run of leakline's own the next round's start is this round's result.
        follows = self.path / "kept" / folder_name(index + 1) / f"{SENT}.safetensors"
        if not with_result and follows.is_file() and not self.manifest:
            result, with_result = self._weights(follows), True
        facts: dict[str, float] = record.get("facts", {})
        return Round(
            index, sent, tuple(updates), tuple(record.get("cohort", dict.fromkeys(u.client for u in updates))),
            tuple(Dropped(c, r) for c, r in record.get("dropped", ())), result,
            facts if with_result else {**facts, "result_unknown": 1.0}, record.get("metrics", {}),
        )  # fmt: skip

    def rounds(self) -> Iterator[Round]:
        """All recorded rounds, one in memory at a time."""
        for index in self.indices():
            yield self.round(index)

    def _weights(self, path: Path) -> Weights:
        tensors, meta = self._read(path)
        layout = layout_of(json_or_none(meta.get("layout", "")), path)
        if "layout" in self.manifest and layout != self.layout():
            raise self._bad(path, "it does not have the shapes that recording.json says")
        return Weights(layout, self._vector(path, tensors.get("weights"), layout))

    def _update(self, path: Path, layout: Layout) -> Update:
        tensors, meta = self._read(path)
        delta = self._vector(path, tensors.get("delta"), layout)
        try:
            client, part = meta["client"], int(meta["part"])
            if file_name(client, part) != path.stem:  # a name also becomes part of paths: it is not believed
                raise ValueError("another client's name")
            return Update(client, Weights(layout, delta), int(meta["examples"]), int(meta["steps"]), part=part)
        except (KeyError, ValueError, StoreError) as error:
            raise self._bad(path, f"its metadata are damaged ({type(error).__name__})") from error

    def _vector(self, path: Path, vector: Tensor | None, layout: Layout) -> Tensor:
        if vector is None or vector.dtype != torch.float32 or vector.shape != (layout.size,):
            shown = "nothing" if vector is None else f"{vector.dtype} of shape {tuple(vector.shape)}"
            raise self._bad(path, f"{layout.size} float32 values are needed, it holds {shown}")
        return vector

    def _read(self, path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
        if not is_there(path):
            raise StoreError(f"{path.name} is missing", f"{self.path.name}/kept/{path.parent.name}", RESTORE)
        try:
            return read_sealed(path, self.path)
        except StoreError:
            raise
        except Exception as error:  # a damaged file may fail in any way
            raise self._bad(path, f"it cannot be read ({type(error).__name__})") from error

    def _bad(self, path: Path, why: str) -> StoreError:
        where = path.relative_to(self.path) if path.is_relative_to(self.path) else path.name
        return StoreError(f"{path.name}: {why}", f"{self.path.name}/{where}", RESTORE)
