"""A grid of 48 small cells as whole commands: one cell at a time on all cores, two at a time, and as tasks of Ray.

One cell at a time has a worker per core for its clients, as `leakline run` has it; what is won is what cells lose to
starting workers and to rounds that wait for their last client. Every store must hold the same bytes.
"""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rows import Row, ratio

SEEDS = 12
STUDY = """
name = "grid"
noise = "seeded"
seeds = {seeds}
data = {{ use = "digits", clients = 10 }}
model = {{ use = "mlp", hidden = [32] }}
training = {{ rounds = 40, epochs = 2, batch = 16, learning_rate = 0.3 }}
attacks = [{{ use = "loss-threshold" }}]

[strategies]
fedavg = {{ use = "fedavg", weighting = "even" }}
fedmedian = {{ use = "fedmedian" }}

[defences]
none = []
global-dp = [{{ use = "global-dp", noise_multiplier = 1.0, clip = 0.5 }}]
"""
RESULTS = ("rounds.jsonl", "readings.jsonl", "attacks.jsonl", "end.json", "checkpoint.safetensors")
CASES = {"one at a time": (), "--cells 2": ("--cells", "2"), "--on ray": ("--on", "ray")}


def results(root: Path) -> dict[str, bytes]:
    """All results of a store, byte by byte."""
    return {str(path.relative_to(root)): path.read_bytes() for name in RESULTS for path in root.glob(f"runs/*/{name}")}


def measure(seeds: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of each case, in turn, each into a directory of its own."""
    cases = {name: words for name, words in CASES.items() if name != "--on ray" or importlib.util.find_spec("ray")}
    times: dict[str, list[float]] = {name: [] for name in cases}
    with tempfile.TemporaryDirectory(prefix="leakline-") as folder:
        study = Path(folder) / "study.toml"
        study.write_text(STUDY.format(seeds=seeds))
        first: dict[str, bytes] = {}
        for turn in range(repeats):
            for number, (name, words) in enumerate(cases.items()):
                root = Path(folder) / f"{turn}-{number}"
                command = [sys.executable, "-m", "leakline", "run", str(study), "--out", str(root), *words]
                start = time.perf_counter()
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                times[name].append(time.perf_counter() - start)
                first = first or results(root)
                if results(root) != first or len(first) != 4 * seeds * len(RESULTS):
                    raise AssertionError(f"{name} left another store than {next(iter(cases))}")
    return times


def main(repeats: int) -> list[Row]:
    """Ratios of wall times."""
    times = measure(SEEDS, repeats)
    alone, two = times["one at a time"], times["--cells 2"]
    table, cells = "Grid", 4 * SEEDS
    seconds = {name: f"{statistics.median(taken):.1f} s" for name, taken in times.items()}
    rows = [
        Row(
            table, f"{cells} cells, two at a time: times as fast", ratio(alone, two), at_least=1.8,
            note=f"{seconds['--cells 2']}, one at a time {seconds['one at a time']}",
        )
    ]  # fmt: skip
    if "--on ray" in times:
        share = ratio(times["--on ray"], two)
        rows.append(
            Row(table, f"{cells} cells on Ray over two at a time", share, at_most=1.1, note=seconds["--on ray"])
        )
    return rows


if __name__ == "__main__":  # a trial: grid.py SEEDS
    print(measure(int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS, 1))
