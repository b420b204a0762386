"""How long a large report takes to build and how large it is: 200 cells of 20 rounds, made up and not trained."""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from pathlib import Path

from rows import Row, interleaved

from leakline.study.store import FORMAT

CELLS, ROUNDS, CLIENTS = 200, 20, 20
STRATEGIES = ("fedavg", "fedmedian", "fedprox", "fedyogi", "fedadam")
DEFENCES = ("none", "global-dp", "adaptive-clip", "metric-privacy", "ldp-sgd", "gaussian", "fedper", "fedbn")
SEEDS = 5
ATTACKS = ("membership", "client-inference")


def made_up(root: Path) -> Path:
    """A store in the layout that `leakline run` writes, with random numbers in it."""
    draw = random.Random(0)
    cells = []
    labels = [(s, d, seed) for s in STRATEGIES for d in DEFENCES for seed in range(SEEDS)]
    for number, (strategy, defence, seed) in enumerate(labels):
        key = f"{number:016x}"
        cells.append({"labels": {"strategy": strategy, "defence": defence, "seed": seed}, "run": key})
        folder = root / "runs" / key
        folder.mkdir(parents=True)
        _write(folder, defence, seed, draw)
    grid = {"format": FORMAT, "name": "large", "title": "Made up", "delta": 1e-5, "notes": [], "cells": cells}
    grid["attacks"] = [f"{name}-1" for name in ATTACKS]
    (root / "study.json").write_text(json.dumps(grid))
    (root / "study.toml").write_text('name = "large"\n')
    return root


def _write(folder: Path, defence: str, seed: int, draw: random.Random) -> None:
    clients = {f"client-{i}": {"train": f"data:{i}", "test": None} for i in range(CLIENTS)}
    federation = {
        "seed": seed, "rounds": ROUNDS, "defences": [] if defence == "none" else [{"use": f"x:{defence}", "clip": 1.0}],
        "model": {"use": "leakline.models.small:MLP"}, "device": "cpu",
        "task": {"name": "digits", "classes": list("0123456789"), "clients": clients},
    }  # fmt: skip
    versions = {"leakline": "0.1.0", "torch": "2.13.0", "format": FORMAT}
    (folder / "run.json").write_text(json.dumps({"federation": federation, "versions": versions, "threads": 1}))
    readings, base = [], draw.uniform(0.4, 0.9)
    for r in range(ROUNDS):
        for measure in ("accuracy", "f1", "precision"):
            value = base * (1 - 0.7 ** (r + 1)) + draw.gauss(0, 0.01)
            readings.append({"measure": measure, "value": value, "low": value - 0.03, "high": value + 0.03, "round": r})
    _lines(folder / "readings.jsonl", readings)
    attacks = []
    for name in ATTACKS:
        for measure, chance, about in (("auc", 0.5, {}), ("tpr", 0.01, {"fpr": 0.01}), ("tpr", 0.1, {"fpr": 0.1})):
            value = min(chance + abs(draw.gauss(0, 0.1)), 1.0)
            figures = {"value": value, "low": max(value - 0.05, 0), "high": min(value + 0.05, 1), "chance": chance}
            attacks.append({"measure": measure, **figures, "n": 400, "by": name, "about": about, "attack": f"{name}-1"})
    _lines(folder / "attacks.jsonl", attacks)
    _lines(folder / "rounds.jsonl", [{"round": r} for r in range(ROUNDS)])
    promise = {"defence": defence, "reason": "no defence"}
    if defence not in ("none", "fedper", "fedbn"):
        epsilon = 10 ** draw.uniform(0, 4)
        promise = {
            "defence": defence, "unit": "client", "adjacency": "add-remove", "observer": "client", "epsilon": epsilon,
            "delta": 1e-5, "mu": 1.0, "method": "Gaussian (exact)", "releases": ROUNDS, "advantage": 0.4,
            "verdict": "weak" if epsilon < 10 else "vacuous",
        }  # fmt: skip
    card = {"title": defence, "promises": [promise], "utility": [{"measure": "accuracy", "value": base}]}
    (folder / "end.json").write_text(json.dumps({"status": "finished", "card": card}))


def _lines(path: Path, lines: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def main(repeats: int) -> list[Row]:
    """Seconds and megabytes of the page."""
    from leakline.report.page.build import build_report
    from leakline.results import read

    with tempfile.TemporaryDirectory() as folder:
        root = made_up(Path(folder) / "large")
        times = interleaved({"build": lambda: build_report(read(root))}, repeats, time.process_time)["build"]
        size = (root / "report.html").stat().st_size / 1e6
    table = f"Report of {CELLS} cells"
    return [
        Row(table, "to build it", statistics.median(times), "s", 20, note="of one core's work"),
        Row(table, "size of the page", size, "MB", 10),
    ]
