"""What a round costs on Flower through leakline's adapter, beside Flower's own FedAvg as in its quickstart.

Ten clients, the quickstart's network on digits, one epoch each, on Ray. Rounds of both take turns on one grid, so
that neighbours in time are compared; both sides train the same number of examples in the same batches.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rows import Row, ratio

from leakline.flower.processes import NOWHERE, environment

ENGINES = Path(__file__).parent / "engines"
ROUNDS = 15


def main(repeats: int) -> list[Row]:
    """The ratio of rounds' times."""
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            out = Path(folder) / "times.json"
            env = environment(Path(folder) / "flwr") | NOWHERE
            env["PYTHONPATH"] = os.pathsep.join([str(ENGINES), env.get("PYTHONPATH", "")])
            command = [sys.executable, str(ENGINES / "overhead.py"), str(out), str(ROUNDS)]
            subprocess.run(command, env=env, check=True, capture_output=True, timeout=1800)
            times = json.loads(out.read_text())
            ours += times["leakline"]
            theirs += times["Flower"]
    note = f"leakline {statistics.median(ours):.2f} s, Flower {statistics.median(theirs):.2f} s a round"
    return [
        Row("Flower on Ray", "a round through leakline / Flower's FedAvg", ratio(ours, theirs), "x", 1.1, note=note)
    ]
