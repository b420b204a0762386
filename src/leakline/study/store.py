"""The store: one directory per study, one run per content hash, plain files that only ever grow.

    runs/NAME/
      study.toml                      as asked
      study.json                      the grid: labels -> run; measures that attacks from outside brought
      runs/<hash>/
        run.json                      what was run: settings, versions, data fingerprints
        checkpoint.safetensors        where it stands, with the last round's record (one file, replaced at once)
        rounds.jsonl                  one line per round: cohort, who was dropped, what defences wrote down
        readings.jsonl                one line per number: utility, round by round
        attacks.jsonl                 one line per number that an attack measured
        log.jsonl                     wall time; the only file that differs between equal runs
        end.json                      status and card; a run without it can be gone on with
        kept/round-0003/<client>.safetensors     updates that an attack asked for, and sent.safetensors
        media/<attack>/...            what an attack made to look at (it may show what clients hold)
        notes/<attack>/...            what an attack needs to go on where it stopped

A round is committed by renaming its checkpoint, which holds the round's own record: the lines follow from it, and
are written again if a kill came between. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from leakline.bench.memory import flatten, unflatten
from leakline.errors import StoreError
from leakline.federation import State
from leakline.measures import Measure, read_measures
from leakline.messages import Memory, Round, Update
from leakline.names import clean, is_safe
from leakline.readings import Reading
from leakline.study.describe import FORMAT
from leakline.weights import Entry, Layout, Weights


class Run:
    """The directory of one federation's run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def key(self) -> str:
        """The content hash."""
        return self.path.name

    def open(self, description: Mapping[str, Any]) -> None:
        """Make the directory and say what runs in it."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / "run.json").exists():
            write_atomically(self.path / "run.json", json.dumps(description, indent=1, sort_keys=True).encode())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run against a second process; the lock goes with the process, however it ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / ".lock", "w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StoreError(
                    "another process is working on this run", self.key, "wait for it, or stop it"
                ) from error
            yield

    @property
    def end(self) -> dict[str, Any] | None:
        """The terminal record, or None while the run is unfinished."""
        return read_json(self.path / "end.json") if (self.path / "end.json").exists() else None

    def commit(
        self, state: State, memories: Mapping[str, Memory], record: Mapping[str, Any], readings: list[Reading]
    ) -> None:
        """Save where the federation stands together with its newest round, then write the round's lines."""
        assert state.weights is not None
        plain: dict[str, Any] = {}
        server, numbers = flatten(
            {"optimiser": dict(state.optimiser), "memory": state.memory, "clients": dict(memories)}
        )
        plain |= numbers
        layout = [[e.name, list(e.shape), e.buffer] for e in state.weights.layout.entries]
        lines = {"record": dict(record), "readings": [r.line() for r in readings]}
        meta = {
            "format": str(FORMAT),
            "next": str(state.next),
            "plain": json.dumps(plain),
            "layout": json.dumps(layout),
            "lines": json.dumps(lines),
        }
        from safetensors.torch import save

        write_atomically(
            self.path / "checkpoint.safetensors",
            save({"weights": state.weights.vector.contiguous(), **server}, metadata=meta),
        )
        self._write_lines(lines)

    def load(self) -> tuple[State, dict[str, Memory]] | None:
        """Where the federation stands, for going on: mends the lines of a round whose writing a kill cut short."""
        found = self.standing()
        if found is None:
            for name in ("rounds.jsonl", "readings.jsonl"):
                (self.path / name).unlink(missing_ok=True)
            return None
        state, memories, lines = found
        self._cut_lines(state.next - 1)
        self._write_lines(lines)
        return state, memories

    def standing(self) -> tuple[State, dict[str, Memory], dict[str, Any]] | None:
        """State, clients' memories and newest lines of the last committed round, or None; changes nothing."""
        path = self.path / "checkpoint.safetensors"
        if not path.exists():
            return None
        from safetensors import safe_open

        try:
            with safe_open(path, framework="pt") as file:
                meta = file.metadata()
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if int(meta["format"]) != FORMAT:
                raise _older(f"this checkpoint was written by format {meta['format']}", self.key)
            vector = tensors.pop("weights")
            layout = Layout(tuple(Entry(n, tuple(s), b) for n, s, b in json.loads(meta["layout"])))
            tree = unflatten(tensors, json.loads(meta["plain"]))
            state = State(int(meta["next"]), Weights(layout, vector), tree.get("optimiser", {}), tree.get("memory", {}))
            lines = json.loads(meta["lines"])
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(
                f"the checkpoint cannot be read ({type(error).__name__})",
                f"{self.key}/checkpoint.safetensors",
                "delete this run's folder to start it again",
            ) from error
        return state, tree.get("clients", {}), lines

    def _write_lines(self, lines: Mapping[str, Any]) -> None:
        append(self.path / "rounds.jsonl", [lines["record"]])
        append(self.path / "readings.jsonl", lines["readings"])

    def _cut_lines(self, index: int) -> None:
        """Drop the lines of round ``index`` and later, and half a line left by a kill."""
        for name in ("rounds.jsonl", "readings.jsonl"):
            lines = [line for line in read_lines(self.path / name) if line.get("round", -1) < index]
            write_atomically(self.path / name, "".join(json.dumps(line) + "\n" for line in lines).encode())

    def add_attack(self, key: str, readings: list[Reading]) -> None:
        """Append what an attack measured, all at once, under the attack's own hash."""
        lines = [{**r.line(), "attack": key} for r in readings] or [{"measure": "none", "value": 0, "attack": key}]
        append(self.path / "attacks.jsonl", lines)

    def log(self, **entry: Any) -> None:
        """Note something about how the run went (times), outside the results."""
        append(self.path / "log.jsonl", [entry])

    def finish(self, status: str, **entry: Any) -> None:
        """Write the terminal record."""
        write_atomically(self.path / "end.json", json.dumps({"status": status, **entry}, indent=1).encode())

    def keep(self, round_: Round) -> None:
        """Store a round's kept updates and what was sent, for attacks."""
        if not round_.updates:
            return
        from safetensors.torch import save

        folder = self.path / "kept" / f"round-{round_.index:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        layout = json.dumps([[e.name, list(e.shape), e.buffer] for e in round_.sent.layout.entries])
        write_atomically(
            folder / "sent.safetensors",
            save({"weights": round_.sent.vector.contiguous()}, metadata={"layout": layout}),
        )
        for update in round_.updates:
            if not is_safe(update.client):
                raise StoreError(
                    f"a client's name cannot be a file name: {update.client[:40]!r}", fix="rename the client"
                )
            name = update.client if update.part == 0 else f"{update.client}.part-{update.part}"
            meta = {
                "examples": str(update.examples),
                "steps": str(update.steps),
                "part": str(update.part),
                "client": update.client,
            }
            write_atomically(
                folder / f"{name}.safetensors",
                save({"delta": update.delta.vector.contiguous()}, metadata=meta),
            )

    def kept(self, index: int, layout: Layout) -> tuple[Weights, list[Update]] | None:
        """What `keep` stored of a round: the weights sent and the updates, in the order of names; None if nothing."""
        from safetensors import safe_open

        folder = self.path / "kept" / f"round-{index:04d}"
        if not (folder / "sent.safetensors").is_file():
            return None
        with safe_open(folder / "sent.safetensors", framework="pt") as file:
            sent = Weights(layout, file.get_tensor("weights"))
        updates = []
        for path in sorted(folder.glob("*.safetensors")):
            if path.name != "sent.safetensors":
                with safe_open(path, framework="pt") as file:
                    meta, delta = file.metadata(), sent.like(file.get_tensor("delta"))
                who, part = meta["client"], int(meta.get("part", 0))
                updates.append(Update(who, delta, int(meta["examples"]), int(meta["steps"]), part=part))
        return sent, updates

    def has_kept(self) -> set[tuple[int, str]]:
        """Of which rounds and clients updates were kept."""
        paths = self.path.glob("kept/round-*/*.safetensors")
        stems = [(p.parent.name.removeprefix("round-"), p.stem) for p in paths if p.stem != "sent"]
        return {(int(index), stem.partition(".part-")[0]) for index, stem in stems}

    def media(self, attack: str) -> Path:
        """Where what an attack made to look at stands; it may show what clients hold, so reports can do without."""
        return self.path / "media" / folder_of(attack)

    def notes(self, attack: str) -> Path:
        """Where an attack keeps what it needs to go on after a stop."""
        return self.path / "notes" / folder_of(attack)

    def rounds(self) -> list[dict[str, Any]]:
        """The records of all rounds."""
        return read_lines(self.path / "rounds.jsonl")

    def readings(self) -> list[dict[str, Any]]:
        """All readings of the rounds: utility."""
        return read_lines(self.path / "readings.jsonl")

    def attacks(self) -> list[dict[str, Any]]:
        """All readings of attacks; "attack" is the hash of the attack's settings."""
        return read_lines(self.path / "attacks.jsonl")

    def final_weights(self) -> Weights:
        """The last committed global model."""
        found = self.standing()
        if found is None or found[0].weights is None:
            raise StoreError("this run holds no model yet", self.key, "run the study")
        return found[0].weights


class Store:
    """The directory of one study."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, key: str) -> Run:
        """The run with this content hash."""
        if not key.isalnum():
            raise StoreError(f"not a run: {key[:40]!r}")
        return Run(self.root / "runs" / key)

    def write_study(self, text: str, grid: Mapping[str, Any]) -> None:
        """Write down what was asked."""
        self.root.mkdir(parents=True, exist_ok=True)
        write_atomically(self.root / "study.toml", text.encode())
        write_atomically(self.root / "study.json", json.dumps(grid, indent=1).encode())

    def grid(self) -> dict[str, Any]:
        """The grid as it was asked: labels of cells and their runs."""
        path = self.root / "study.json"
        if not path.is_file():
            raise StoreError(
                "this is not a run directory: it has no study.json",
                self.root.name,
                "give the directory that `leakline run` wrote",
            )
        found = read_json(path)
        if found.get("format") != FORMAT:
            raise _older(f"this store was written by format {found.get('format')}", self.root.name)
        return found

    @property
    def exists(self) -> bool:
        """Whether a study has been written here."""
        return (self.root / "study.json").is_file()

    def measures(self) -> dict[str, Measure]:
        """The measures of attacks from outside the package, as the store describes them."""
        return read_measures(self.grid().get("measures"))


def _older(what: str, where: str) -> StoreError:
    return StoreError(
        f"{what}, and this version reads format {FORMAT} (readings of format 1 are text)",
        where,
        "run the study again into a new directory: leakline run STUDY --out NEW",
    )


def folder_of(attack: str) -> str:
    """The folder of an attack, which is known by its name in the study and the hash of its settings (`attack_key`)."""
    name, _, settings = attack.rpartition("-")
    return f"{clean(name)[:48]}-{clean(settings)}" if name else clean(settings)


def free_bytes(path: Path) -> int:
    """Free space where a directory is or will be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside, flush to the disk, rename: a reader sees the old file or the new one, never half."""
    beside = path.with_name(path.name + ".tmp")
    with open(beside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def append(path: Path, lines: list[dict[str, Any]]) -> None:
    """Add lines to a JSON-lines file."""
    if lines:
        with open(path, "a", encoding="utf-8") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))
            file.flush()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSON-lines file; half a line at the end (a kill) is left out."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file, or a clear error."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{path.name} cannot be read ({type(error).__name__})",
            path.parent.name,
            "delete it and run the study again",
        ) from error
    if not isinstance(found, dict):
        raise StoreError(f"{path.name} does not hold what it should", path.parent.name)
    return found
