"""The memory of a process and its children, as Linux counts it: Pss, where pages that several share count once.

Pages of files count where a process maps them (libraries do); what the system keeps of files that are only read does
not: it gives that back to whoever asks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ENGINES = Path(__file__).parent / "engines"
LOOK = 0.02
"""Seconds between two looks."""


def counted() -> bool:
    """Whether this system counts it."""
    return Path("/proc/self/smaps_rollup").exists()


def started(engine: str, *words: object) -> subprocess.Popen[str]:
    """A script of `engines/` in a process of its own that can be spoken with."""
    path = os.pathsep.join([str(ENGINES), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, str(ENGINES / engine), *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}, stdin=pipe, stdout=pipe, text=True)


def peak(process: subprocess.Popen[str], beside: Sequence[int] = (), look: float = LOOK) -> float:
    """The largest memory (MB) of a process, of others ``beside`` it, and all that descend from them, until it ends."""
    most = 0.0
    while process.poll() is None:
        most = max(most, sum(map(family, (process.pid, *beside))))
        time.sleep(look)
    if process.returncode:
        raise RuntimeError(f"{process.args!r} failed with exit code {process.returncode}")
    return most


def family(pid: int) -> float:
    """The memory (MB) of a process and of all that descend from it, now."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        return _pss(pid) + sum(family(int(child)) for child in children)
    except OSError:
        return 0.0  # it ended between two looks


def above(engine: str, *words: object) -> tuple[float, list[str]]:
    """How far (MB) an engine's memory grows above what it has when it says that it is ready, and what it prints."""
    with started(engine, *words) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{engine} did not start")
        base = family(process.pid)
        process.stdin.write("go\n")
        process.stdin.flush()
        most = peak(process)
        return most - base, process.stdout.read().splitlines()


def _pss(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0
