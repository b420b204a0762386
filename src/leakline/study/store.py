"""The store: one directory per study, one run per content hash, plain files that only ever grow.

    runs/NAME/
      study.toml                      as asked
      study.json                      the grid: labels -> run; measures that attacks from outside brought
      runs/<hash>/
        run.json                      what was run: settings, versions, data fingerprints
        checkpoint.safetensors        where it stands, with the last round's record (one file, replaced at once)
        checkpoint-before.safetensors the round before, for a checkpoint that was damaged
        rounds.jsonl                  one line per round: cohort, who was dropped, what defences wrote down
        readings.jsonl                one line per number: utility, round by round
        attacks.jsonl                 one line per number that an attack measured
        log.jsonl                     wall time; with the seconds of an inversion all that differs between equal runs
        end.json                      status and card; a run without it can be gone on with
        kept/round-0003/<client>.safetensors     updates that an attack asked for, and sent.safetensors
        media/<attack>/...            what an attack made to look at (it may show what clients hold)
        notes/<attack>/...            what an attack needs to go on where it stopped

A round is committed by renaming its checkpoint, which holds the round's own record: the lines follow from it, and
are written again if a kill came between. Nothing is pickled. Every line, JSON file and tensor file has a seal (see
`files`); an attack's readings count once its last line is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from leakline.bench.memory import flatten, unflatten
from leakline.errors import StoreError
from leakline.federation import State
from leakline.measures import Measure, read_measures
from leakline.messages import Memory
from leakline.names import clean
from leakline.readings import Reading
from leakline.study.claims import Claim, claimed, holder_of
from leakline.study.describe import FORMAT
from leakline.study.files import (
    MOST_WEIGHTS,
    SEAL,
    Lines,
    append,
    door,
    is_there,
    last_seal,
    make_folder,
    own_seal,
    read_json,
    sweep,
    write_atomically,
    write_json,
    write_lines,
)
from leakline.study.kept_rounds import RESTORE, KeptRounds
from leakline.study.tensors import pack_sealed, read_sealed
from leakline.weights import Entry, Layout, Weights

LINES = ("rounds.jsonl", "readings.jsonl")
Work = Literal["training", "attacks"]
WORKS: tuple[Work, ...] = ("training", "attacks")
"""What a process may have claimed of a run (`claims`)."""
CHECKPOINT, BEFORE = "checkpoint.safetensors", "checkpoint-before.safetensors"


def finished(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of attacks that have their last line; lines without a seal were not written by leakline, and count."""
    ended = {line.get("attack") for line in lines if line.get("measure") == "none"}
    return [line for line in lines if SEAL not in line or line.get("attack") in ended]


def _bare(line: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key != SEAL}


def _unbroken(lines: Sequence[Mapping[str, Any]], tail: str) -> bool:
    """Whether each line follows the one before it, from the first to the one with that seal."""
    before = ""
    for line in lines:
        if str(line.get(SEAL, "")).partition(".")[0] != before:
            return False
        before = own_seal(line)
    return before == tail


def digest_of(text: str) -> str:
    """A short hash of a study file."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Run:
    """The directory of one federation's run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._claims: dict[Work, Claim] = {}

    @property
    def key(self) -> str:
        """The content hash."""
        return self.path.name

    def open(self, description: Mapping[str, Any]) -> None:
        """Make the directory and say what runs in it."""
        make_folder(self.path)
        if not is_there(self.path / "run.json"):
            write_json(self.path / "run.json", description, sort_keys=True)

    @contextlib.contextmanager
    def locked(self, work: Work = "training", *, wait: bool = False) -> Iterator[None]:
        """Hold the run against every other process; `Busy` where one holds it, unless ``wait``.

        Training waits for nothing, so to wait for it while one holds a claim for attacks cannot go round in a circle.
        """
        make_folder(self.path)
        with claimed(self.path, work, wait=wait) as claim:
            self._claims[work] = claim
            try:
                yield
            finally:
                del self._claims[work]

    def _check_held(self, work: Work) -> None:
        """Before writing: whoever held the run must hold it still."""
        if work in self._claims:
            self._claims[work].check()

    def sweep(self, work: Work) -> None:
        """Remove what a kill left of files that are written under a claim; whoever calls this holds it."""
        sweep(self.path, "now", *(f".{name}" for name in WORKS))
        if work == "training":
            sweep(self.path, "run.json", "end.json", CHECKPOINT, *LINES)
            folders = [self.path / "kept"]
        else:
            sweep(self.path, "attacks.jsonl")
            folders = [self.path / "media", self.path / "notes"]
        for folder in (inner for outer in folders for inner in outer.glob("**/") if not inner.is_symlink()):
            sweep(folder)

    @property
    def held(self) -> bool:
        """Whether a process is training or attacking it now."""
        return any(holder_of(self.path, work) is not None for work in WORKS)

    @property
    def end(self) -> dict[str, Any] | None:
        """The terminal record, or None while the run is unfinished."""
        return read_json(self.path / "end.json") if is_there(self.path / "end.json") else None

    def commit(
        self, state: State, memories: Mapping[str, Memory], record: Mapping[str, Any], readings: list[Reading]
    ) -> None:
        """Save where the federation stands together with its newest round, then write the round's lines."""
        assert state.weights is not None
        self._check_held("training")
        plain: dict[str, Any] = {}
        # Whether an empty memory was ever asked for depends on who trained: workers and shared first rounds leave none.
        kept = {client: memory for client, memory in sorted(memories.items()) if not _is_empty(memory)}
        server, numbers = flatten({"optimiser": dict(state.optimiser), "memory": state.memory, "clients": kept})
        plain |= numbers
        layout = [[e.name, list(e.shape), e.buffer] for e in state.weights.layout.entries]
        lines = {"record": dict(record), "readings": [r.line() for r in readings]}
        meta = {
            "format": str(FORMAT),
            "next": str(state.next),
            "plain": json.dumps(plain, sort_keys=True),
            "layout": json.dumps(layout),
            "lines": json.dumps(lines),
            "tails": json.dumps({name: last_seal(self.path / name) for name in LINES}),
        }
        packed = pack_sealed({"weights": state.weights.vector.contiguous(), **server}, meta)
        self._set_aside()
        write_atomically(self.path / CHECKPOINT, packed)
        self._write_lines(lines)

    def _set_aside(self) -> None:
        """Keep the checkpoint of the round before, in case the next one is damaged; there is never none."""
        if is_there(self.path / CHECKPOINT):
            aside = self.path / f"{BEFORE}.new"
            aside.unlink(missing_ok=True)
            os.link(door(self.path / CHECKPOINT, MOST_WEIGHTS), aside)
            os.replace(aside, self.path / BEFORE)

    def load(self) -> tuple[State, dict[str, Memory]] | None:
        """Where the federation stands, for going on: mends the lines of a round whose writing a kill cut short."""
        found = self._standing()
        if found is None:
            for name in LINES:
                (self.path / name).unlink(missing_ok=True)
            return None
        state, memories, lines, tails = found
        for name in LINES:
            self._mend(name, state.next - 1, tails)
        self._write_lines(lines)
        return state, memories

    def standing(self) -> tuple[State, dict[str, Memory], dict[str, Any]] | None:
        """State, clients' memories and newest lines of the last committed round, or None; changes nothing."""
        found = self._standing()
        return None if found is None else found[:3]

    def _standing(self) -> tuple[State, dict[str, Memory], dict[str, Any], dict[str, str]] | None:
        """From the newest checkpoint, or where that is damaged from the one before."""
        there = [name for name in (CHECKPOINT, BEFORE) if is_there(self.path / name)]
        problems: list[StoreError] = []
        for name in there:
            try:
                return self._checkpoint(self.path / name)
            except StoreError as error:
                problems.append(error)
        if problems:
            raise problems[0]
        return None

    def _checkpoint(self, path: Path) -> tuple[State, dict[str, Memory], dict[str, Any], dict[str, str]]:
        try:
            tensors, meta = read_sealed(path)
            if int(meta["format"]) != FORMAT:
                raise _older(f"this checkpoint was written by format {meta['format']}", self.key)
            vector = tensors.pop("weights")
            layout = Layout(tuple(Entry(n, tuple(s), b) for n, s, b in json.loads(meta["layout"])))
            tree = unflatten(tensors, json.loads(meta["plain"]))
            state = State(int(meta["next"]), Weights(layout, vector), tree.get("optimiser", {}), tree.get("memory", {}))
            return state, tree.get("clients", {}), json.loads(meta["lines"]), json.loads(meta["tails"])
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(
                f"the checkpoint cannot be read ({type(error).__name__})",
                f"{self.key}/{path.name}",
                "delete this run's folder to start it again",
            ) from error

    def _write_lines(self, lines: Mapping[str, Any]) -> None:
        append(self.path / "rounds.jsonl", [lines["record"]])
        append(self.path / "readings.jsonl", lines["readings"])

    def _mend(self, name: str, index: int, tails: Mapping[str, str]) -> None:
        """Drop the lines of round ``index`` and later, and half a line left by a kill; the others must all be there."""
        path = self.path / name
        lines = [line for line in Lines.read(path).good if line.get("round", -1) < index]
        if not _unbroken(lines, tails.get(name, "")):
            raise StoreError(f"{name}: lines of rounds before {index} are damaged or missing", self.key, RESTORE)
        write_lines(path, lines)

    def add_attack(self, key: str, readings: list[Reading]) -> None:
        """Append what an attack measured under the attack's own hash, and a last line that says that it was all."""
        self._check_held("attacks")
        path = self.path / "attacks.jsonl"
        there = Lines.read(path)
        whole = finished(there.good)
        if there.damage or len(whole) < len(there.good):  # what another attempt left when it was cut short
            write_lines(path, whole)
        lines = [{**r.line(), "attack": key} for r in readings]
        append(path, [*lines, {"measure": "none", "value": len(lines), "attack": key}])

    def met(self) -> set[str]:
        """The attacks whose readings are all here."""
        lines = finished(Lines.read(self.path / "attacks.jsonl").good)
        return {str(line["attack"]) for line in lines if "attack" in line}

    def log(self, **entry: Any) -> None:
        """Note something about how the run went (times), outside the results."""
        append(self.path / "log.jsonl", [entry])

    def finish(self, status: str, **entry: Any) -> None:
        """Write the terminal record, with how many lines belong to it."""
        self._check_held("training")
        lines = {name: len(Lines.read(self.path / name).good) for name in LINES}
        write_json(self.path / "end.json", {"status": status, **entry, "lines": lines})

    @property
    def kept(self) -> KeptRounds:
        """Updates that attacks asked for."""
        return KeptRounds(self.path)

    def media(self, attack: str) -> Path:
        """Where what an attack made to look at stands; it may show what clients hold, so reports can do without."""
        return self.path / "media" / folder_of(attack)

    def notes(self, attack: str) -> Path:
        """Where an attack keeps what it needs to go on after a stop."""
        return self.path / "notes" / folder_of(attack)

    def rounds(self) -> list[dict[str, Any]]:
        """The records of all rounds."""
        return self._lines("rounds.jsonl")

    def readings(self) -> list[dict[str, Any]]:
        """All readings of the rounds: utility."""
        return self._lines("readings.jsonl")

    def attacks(self) -> list[dict[str, Any]]:
        """All readings of attacks that came to their end; "attack" is the hash of the attack's settings."""
        lines = finished(Lines.read(self.path / "attacks.jsonl").good)
        return [_bare(line) for line in lines if line.get("measure") != "none"]

    def _lines(self, name: str) -> list[dict[str, Any]]:
        return [_bare(line) for line in Lines.read(self.path / name).good]

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
        make_folder(self.root)
        write_atomically(self.root / "study.toml", text.encode())
        write_json(self.root / "study.json", {**grid, "text": digest_of(text)})

    def grid(self) -> dict[str, Any]:
        """The grid as it was asked: labels of cells and their runs."""
        path = self.root / "study.json"
        if not is_there(path):
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
        return is_there(self.root / "study.json")

    def measures(self) -> dict[str, Measure]:
        """The measures of attacks from outside the package, as the store describes them."""
        return read_measures(self.grid().get("measures"))


def _is_empty(memory: Any) -> bool:
    return isinstance(memory, Mapping) and all(_is_empty(inner) for inner in memory.values())


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
