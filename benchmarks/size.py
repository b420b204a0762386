"""What is large: a folder of images beyond memory, thousands of clients, updates of 180 MB, hundreds of cells.

Memory is Pss (see `memory`) above what a process has once torch was used; times are processor time.
"""

from __future__ import annotations

import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from memory import above, counted, family, peak
from PIL import Image
from rows import Row

from leakline.study.files import read_json

IMAGES = 20_000
FOLDER = f"A folder of {IMAGES:,} colour images at 224x224 (3 GB decoded), 4 clients, 2 workers"
CROWD, ROUNDS = 5_000, 100
CLIENTS = f"{CROWD:,} clients of 8 records, one linear layer, one process"
UPDATES = "45 million parameters (updates of 180 MB), 4 clients, one step each"
CELLS = "500 cells of 2 rounds (digits, 10 clients, 5 defences), processor time"
DEPLOYED = """
name = "large"
data = { use = "digits", limit = 60, clients = 3 }
model = { use = "resnet", width = 128 }
training = { rounds = 2, batch = 2, max_steps = 1, learning_rate = 0.01 }
"""
STUDY = """
name = "many"
seeds = 25
data = { use = "digits", clients = 10, server_validation = 0.1 }
model = { use = "mlp", hidden = [2] }
training = { rounds = 2, batch = 32, learning_rate = 0.5 }
strategies = { fedavg = { use = "fedavg", weighting = "even" } }

[defences]
none = []
global-dp = [{ use = "global-dp", noise_multiplier = 4.0, clip = 0.5 }]
asked = [{ use = "global-dp", epsilon = 5.0, clip = 0.5 }]
dp-sgd = [{ use = "dp-sgd", noise_multiplier = 1.0, clip = 0.5 }]
release = [{ use = "gaussian-release", noise_multiplier = 1.0, clip = 0.5 }]
"""


def generate(root: Path, images: int = IMAGES) -> None:
    """JPEG files of two classes; a hundred pictures, each many times under other names."""
    rng = np.random.default_rng(0)
    pictures = []
    for _ in range(100):
        stream = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (7, 7, 3), dtype=np.uint8)).resize((224, 224)).save(stream, "JPEG")
        pictures.append(stream.getvalue())
    for label in ("ill", "well"):
        (root / label).mkdir(parents=True)
    for i in range(images):
        (root / ("ill", "well")[i % 2] / f"{i}.jpg").write_bytes(pictures[i % 100])


def folder_rows() -> list[Row]:
    """Decode, share out and train, then the same once more from the file that is there."""
    with tempfile.TemporaryDirectory() as place:
        generate(Path(place) / "images")
        first, said = above("sized.py", "folder", Path(place) / "images", Path(place) / "cache")
        again, repeated = above("sized.py", "folder", Path(place) / "images", Path(place) / "cache")
        size = sum(file.stat().st_size for file in (Path(place) / "cache").glob("*.images")) / 2**20
    if said != repeated:
        raise RuntimeError(f"the second time it went otherwise: {said} {repeated}")
    note = f"the file of decoded images has {size:.0f} MB; all processes, no page of it is mapped"
    return [
        Row(FOLDER, "peak memory above torch, decoding included", first, "MB", 1500.0, note=note),
        Row(FOLDER, "the same, images decoded before", again, "MB", 1500.0),
    ]


def client_rows() -> list[Row]:
    """Whether memory stays flat over rounds, and whether a round of five times the clients takes five times as long."""
    times: dict[int, float] = {}
    for count, rounds in ((CROWD // 5, 20), (CROWD, ROUNDS)):
        _, said = above("sized.py", "clients", count, rounds)
        seconds, memory = zip(*[(float(a), float(b)) for a, b in (line.split() for line in said)], strict=True)
        times[count] = statistics.median(seconds[1:])
    per = ", ".join(f"{count:,} clients {1e3 * each:.0f} ms" for count, each in times.items())
    linear = times[CROWD] / times[CROWD // 5] / 5
    return [
        Row(CLIENTS, f"memory from the second round to round {ROUNDS}", memory[-1] - memory[1], "MB", 200.0),
        Row(CLIENTS, "a client's share of a round, 5,000 / 1,000 clients", linear, at_most=1.25, note=per),
    ]


def update_rows() -> list[Row]:
    """What a round takes of memory, in copies of the model."""
    made = []
    for workers in (1, 2):
        most, said = above("sized.py", "updates", workers, 4)
        copy = int(said[-1].split()[-2].replace(",", "")) * 4 / 2**20
        note = f"{most / copy:.1f} times the model's {copy:.0f} MB"
        made.append(
            Row(UPDATES, f"peak memory above torch, {workers} worker{'s' * (workers > 1)}", most, "MB", note=note)
        )
    return made


def deployed_rows() -> list[Row]:
    """The same updates through Flower as it is deployed: a SuperLink and three SuperNodes over TLS on loopback."""
    from leakline.flower.transport.shares import write_shares
    from leakline.flower.transport.submit import Asked
    from leakline.flower.trial import Node, down, up

    text = DEPLOYED
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = Path(place)
        (folder / "large.toml").write_text(text)
        shares = write_shares(Asked(text).study(), folder / "shares")
        link = up(folder / "trial", [Node(name, path) for name, path in shares.items()])
        try:
            pids = [each["pid"] for each in read_json(folder / "trial" / "trial.json")["processes"].values()]
            base = sum(map(family, pids))
            where = ["--superlink", link.address, "--root-certificates", str(link.certificate)]
            command = [sys.executable, "-m", "leakline", "run", "large.toml", "--on", "flower", *where, "--out", "out"]
            then = time.monotonic()
            with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as process:
                most = peak(process, beside=pids, look=0.2) - base  # counting pages takes the core from who moves them
            seconds = time.monotonic() - then
        finally:
            down(folder / "trial")
        rounds = [line for file in folder.glob("out/runs/*/rounds.jsonl") for line in file.read_text().splitlines()]
    if [len(json.loads(line)["cohort"]) for line in rounds] != [3, 3]:
        raise RuntimeError(f"not every node answered in both rounds: {rounds}")
    copy = 4 * 45_000_000 / 2**20
    note = f"{most / copy:.1f} times the model's {copy:.0f} MB, over 8 and more processes; {seconds:.0f} s for 2 rounds"
    return [Row(UPDATES, "Flower deployed, 3 nodes over TLS: peak above nodes that wait", most, "MB", note=note)]


def cell_rows() -> list[Row]:
    """A large grid whose cells are all done: to check, to run and to report."""
    made = []
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "many.toml").write_text(STUDY)
        grid = ["many.toml", "-s", "training.learning_rate=0.1,0.2,0.3,0.4"]
        _seconds(place, "run", *grid, "--out", "out")
        for words in (["check", *grid], ["run", *grid, "--out", "out"], ["report", "out"]):
            made.append(Row(CELLS, f"leakline {words[0]}, all done", _seconds(place, *words), "s", 20.0))
    return made


def _seconds(place: str, *words: str) -> float:
    """Processor seconds of a command and its workers."""
    before = os.times()
    subprocess.run([sys.executable, "-m", "leakline", *words], cwd=place, check=True, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main(repeats: int) -> list[Row]:
    """All of it, once: what is counted are bytes and seconds in the dozens."""
    if not counted():
        print("size: left out (no /proc/PID/smaps_rollup here)")
        return []
    return [*folder_rows(), *client_rows(), *update_rows(), *deployed_rows(), *cell_rows()]
