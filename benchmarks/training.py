"""Jobs A and B against loops without a framework and against Flower and pfl.

Every engine runs in a fresh process of its own; engines take turns, and ratios are of neighbours in time. Besides
the time, the model that each engine arrives at is compared with leakline's: all get the same images, initial
weights, cohorts, batches and dropout seeds.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rows import Row, ratio

ENGINES = Path(__file__).parent / "engines"
PEERS = Path(os.environ.get("LEAKLINE_PEERS", Path(sys.executable).parents[1] / "peers"))
"""A folder with pfl and what it needs. Beside the environment, because pfl wants an older dp-accounting than leakline:
only pfl's own process sees the folder."""
LIMIT = 1800
ENVIRONMENT = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}

JOB_A = {
    "leakline": ["leakline_engine.py"],
    "best bare loop": ["bare.py", "best"],
    "plain bare loop": ["bare.py", "plain"],
    "Flower on Ray": ["flower.py"],
    "pfl": ["pfl_engine.py"],
}
JOB_B = {
    "leakline": ["leakline_engine.py"],
    "leakline, 1 worker": ["leakline_engine.py", "1"],
    "sequential bare loop": ["bare.py", "sequential"],
    "Flower on Ray": ["flower.py"],
    "pfl": ["pfl_engine.py"],
}
TOLERANCE = {"A": None, "B": 1e-4}
"""Job B: largest difference of a weight. Job A: distance between models in units of the way they came, ||a - b|| /
||a - start||. No limit there but for the loop that takes the same steps the same way: Adam divides by tiny gradients,
so that another order of summation moves the model by 2 % of its way in one round and by a third in three."""


@dataclass
class Runs:
    """What was measured of one engine. If it failed once, its rows have no figure and its goals are not met."""

    cold: list[float] = field(default_factory=list)
    steady: list[float] = field(default_factory=list)
    final: np.ndarray = field(default_factory=lambda: np.zeros(0))
    failed: bool = False


def missing(engine: str) -> str | None:
    """Why an engine cannot run here, or None."""
    if engine == "Flower on Ray":
        absent = [name for name in ("flwr", "ray") if importlib.util.find_spec(name) is None]
        return f"{' and '.join(absent)} not installed" if absent else None
    if engine == "pfl" and not (PEERS / "pfl").is_dir() and importlib.util.find_spec("pfl") is None:
        return f"pfl is neither installed nor in {PEERS.name}/ of the environment"
    return None


def measure(folder: Path, job: str, engine: str, command: list[str], runs: Runs) -> None:
    """One fresh process: seconds from its start to the end of the last round, and median seconds of later rounds."""
    out = folder / "record.json"
    out.unlink(missing_ok=True)
    script, *options = command
    path = [str(ENGINES), *([str(PEERS)] if engine == "pfl" else [])]
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(path), "FLWR_HOME": str(folder / "flwr")}
    start = time.monotonic()
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(ENGINES / script), str(folder), job, str(out), *options],
            stdout=log, stderr=log, env=environment, cwd=folder, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(LIMIT)
        finally:
            if process.poll() is None:  # a group of its own, so that Ray's children go too
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if not out.exists():
        tail = (folder / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
        raise RuntimeError(f"{engine} left no record of job {job} (exit code {code}): " + " | ".join(tail))
    ends = json.loads(out.read_text(encoding="utf-8"))["ends"]
    runs.cold.append(ends[-1] - start)
    runs.steady.append(statistics.median(np.diff(ends)))
    runs.final = np.load(out.with_suffix(".npy"), allow_pickle=False)


def job(name: str, engines: dict[str, list[str]], folder: Path, repeats: int) -> dict[str, Runs]:
    """All engines in turn, ``repeats`` times; those that are not installed are named and left out."""
    here = {}
    for engine, command in engines.items():
        reason = missing(engine)
        if reason is None:
            here[engine] = command
        else:
            print(f"job {name}: {engine} is left out ({reason})", flush=True)
    runs = {engine: Runs() for engine in here}
    for turn in range(repeats):
        for engine, command in here.items():
            one = runs[engine]
            try:
                measure(folder, name, engine, command, one)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                if engine == "leakline":
                    raise
                one.failed = True
                print(f"job {name}, {turn + 1}/{repeats}: {engine} FAILED: {error}", flush=True)
                continue
            said = f"{one.cold[-1]:.1f} s from cold, {one.steady[-1]:.3f} s a round"
            print(f"job {name}, {turn + 1}/{repeats}: {engine}: {said}", flush=True)
    return runs


def rows(title: str, runs: dict[str, Runs], what: str, goals: dict[str, float], faster: bool) -> list[Row]:
    """leakline against every other engine; ``faster`` turns the ratio round ("8 times as fast"), and the goals."""
    ours, made = getattr(runs["leakline"], what), []
    for engine, theirs in runs.items():
        if engine == "leakline":
            continue
        other = getattr(theirs, what)
        value = math.nan if theirs.failed else ratio(other, ours) if faster else ratio(ours, other)
        words = f"{engine} / leakline" if faster else f"leakline / {engine}"
        median = "failed" if theirs.failed else f"{statistics.median(other):.3g} s"
        note = f"{statistics.median(ours):.3g} s, {engine} {median}"
        goal = goals.get(engine)
        made.append(Row(title, words, value, "x", None if faster else goal, goal if faster else None, note))
    return made


def agreement(name: str, runs: dict[str, Runs], folder: Path) -> list[Row]:
    """How far each engine's final model is from leakline's."""
    start = np.load(folder / f"{name}-start.npy", allow_pickle=False)
    ours, made = runs["leakline"].final, []
    for engine, theirs in runs.items():
        if engine == "leakline" or theirs.failed:
            continue
        gap = ours - theirs.final
        way = np.linalg.norm(ours - start)
        value = float(np.abs(gap).max()) if name == "B" else float(np.linalg.norm(gap) / way)
        unit = "largest difference" if name == "B" else "of the way"
        limit = 0.0 if "leakline" in engine else 1e-6 if engine == "best bare loop" else TOLERANCE[name]
        note = f"the largest weight change is {np.abs(ours - start).max():.2g}"
        made.append(Row(f"Job {name}, agreement with leakline's model", engine, value, unit, at_most=limit, note=note))
    return made


def main(repeats: int) -> list[Row]:
    """Both jobs."""
    folder = Path(tempfile.mkdtemp(prefix="leakline-bench-"))
    try:
        environment = os.environ | {"PYTHONPATH": str(ENGINES)}
        subprocess.run([sys.executable, str(ENGINES / "prepare.py"), str(folder)], check=True, env=environment)
        a = job("A", JOB_A, folder, repeats)
        b = job("B", JOB_B, folder, repeats)
        cold = {"best bare loop": 1.03, "Flower on Ray": 0.45, "pfl": 0.5}
        steady = {"Flower on Ray": 8.0, "pfl": 2.0}
        return [
            *rows("Job A, three rounds from cold", a, "cold", cold, faster=False),
            *rows("Job A, a later round", a, "steady", {"best bare loop": 1.03}, faster=False),
            *rows("Job B, a later round", b, "steady", steady, faster=True),
            *agreement("A", a, folder),
            *agreement("B", b, folder),
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
