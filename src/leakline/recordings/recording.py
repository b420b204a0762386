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

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from leakline.bench.training import Plan
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
    finite,
    folder_name,
    is_size,
    json_or_none,
    layout_of,
    save_weights,
    spans,
)
from leakline.study.files import append, is_there, make_folder, read_json, write_json
from leakline.study.store import Run
from leakline.study.tensors import read_sealed
from leakline.weights import Layout, Weights

Seat = Literal["server", "client"]


@dataclass
class Recorder:
    """Writes rounds as they end: those asked for, of the clients asked for, until ``most_mb`` megabytes are full.

    ``rounds`` and ``clients``: None for all. A round is kept whole or not at all; every round has its line. ``run``
    is the engine's name for the run: a directory holds one run, and going on with the same one is allowed.
    ``claimed``: what the engine's own objects say about clip and noise (fields of `Claimed`).
    """

    to: Path
    rounds: frozenset[int] | None = None
    clients: frozenset[str] | None = None
    most_mb: float = 1024.0
    plan: Mapping[str, Any] = field(default_factory=dict)
    engine: str = "leakline"
    seat: Seat = "server"
    run: str = ""
    claimed: Mapping[str, Any] = field(default_factory=dict)
    held: int | None = field(default=None, init=False)
    """Bytes that are kept, once somebody has looked."""

    def __post_init__(self) -> None:
        if not self.most_mb > 0:
            raise ValueError(f"most_mb must be positive: {self.most_mb}")
        for key in self.plan:
            if key not in PLAN:
                raise ValueError(f"a plan has no {key!r}; it may say: {', '.join(PLAN)}")
        Plan(**self.plan)

    def wants(self, index: int, client: str) -> bool:
        """Whether this client's update in this round is asked for."""
        return (self.rounds is None or index in self.rounds) and (self.clients is None or client in self.clients)

    def open(self, layout: Layout, left_out: Iterable[str] = ()) -> None:
        """Begin a recording, or go on with one of the same run."""
        path = self.to / "recording.json"
        if path.exists():
            there = read_json(path)
            if self.run and there.get("run") == self.run and layout_of(there.get("layout"), path) == layout:
                return
            raise StoreError("there is a recording of another run already", self.to.name, "give another directory")
        make_folder(self.to)
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "engine": self.engine,
            "seat": self.seat,
            "run": self.run,
            "layout": [[e.name, list(e.shape), e.buffer] for e in layout.entries],
            "left_out": list(left_out),
            "plan": dict(self.plan),
            "claimed": dict(self.claimed),
            "asked": {
                "rounds": None if self.rounds is None else sorted(self.rounds),
                "clients": None if self.clients is None else sorted(self.clients),
                "most_mb": self.most_mb,
            },
        }
        write_json(path, manifest)

    def write(self, round_: Round, *, result: bool = True) -> None:
        """Write a round: its files, then its line. ``result``: whether this seat sees what came of it."""
        kept = [u for u in round_.updates if self.wants(round_.index, u.client)]
        need = 4 * round_.sent.layout.size * (len(kept) + 1 + result)
        if self.held is None:
            self.held = sum(path.stat().st_size for path in (self.to / "kept").rglob("*.safetensors"))
        why = "" if self.held + need <= self.most_mb * 2**20 else f"more than {self.most_mb:g} MB"
        names: list[str] = []
        if kept and not why:
            Run(self.to).keep(dataclasses.replace(round_, updates=tuple(kept)))
            names = [SENT, *(file_name(u.client, u.part) for u in kept)]
            if result:
                save_weights(self.to / "kept" / folder_name(round_.index) / f"{RESULT}.safetensors", round_.result)
                names.append(RESULT)
            folder = self.to / "kept" / folder_name(round_.index)
            self.held += sum((folder / f"{name}.safetensors").stat().st_size for name in names)
        line = {
            "round": round_.index,
            "cohort": list(round_.cohort),
            "dropped": [[d.client, d.reason] for d in round_.dropped],
            "facts": dict(round_.facts),
            "metrics": dict(round_.metrics),
            "clients": [
                {"client": u.client, "part": u.part, "examples": u.examples, "metrics": dict(u.metrics)}
                for u in round_.updates
            ],
            "kept": names,
        }
        append(self.to / "rounds.jsonl", [finite({**line, "left_out": why} if why else line)])


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
