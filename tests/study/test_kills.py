"""Killed at any moment, a study over every strategy, defence and attack ends with the bytes of one that was not."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from safetensors import safe_open

import tiny
from leakline.attacks import MENU as ATTACKS
from leakline.defences import MENU as DEFENCES
from leakline.report.page.build import build_report
from leakline.results import read
from leakline.strategies import MENU as STRATEGIES
from leakline.study.cells import Cell, Study
from leakline.study.files import NEW, read_lines
from leakline.study.run import run_study
from menu_examples import ATTACKS as ATTACK_SETTINGS
from menu_examples import DEFENCES as EXAMPLES
from menu_examples import world

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked")
FREE = ("log.jsonl", "report.html")
"""What may differ: times, and the page that shows them; and the numbers of claims."""
CLAIM = re.compile(r"\.(training|attacks|grid)\.[0-9]+")
KILLS = 60


def cell(name: str, federation, attacks) -> Cell:
    return Cell({"strategy": "given", "defence": name, "seed": 0}, lambda: federation, attacks)


def everything() -> Study:
    """Every entry of the three menus, each in a cell of its own."""
    loss = {"loss": ATTACKS["loss-threshold"](records=20)}
    cells = [cell(name, tiny.federation(strategy=make(), rounds=3), loss) for name, make in STRATEGIES.items()]
    for name, kind in DEFENCES.items():
        example = EXAMPLES[name]
        settings = {"strategy": STRATEGIES["fedavg"]("even"), "model": tiny.perceptron, **example.needs}
        cells.append(cell(name, tiny.federation(defences=(kind(**example.ordinary),), rounds=3, **settings), loss))
    for name, make in ATTACKS.items():
        federation = world(name).but(noise="seeded")
        cells.append(cell(f"{name}'s", federation, {name: make(**ATTACK_SETTINGS[name])}))
    return Study("everything", tuple(cells))


def content(root: Path) -> dict[str, object]:
    """Every byte of every file, but for the seconds that an inversion writes beside its iterations."""
    paths = [path for path in sorted(root.rglob("*")) if path.is_file() and path.name not in FREE]
    paths = [path for path in paths if not CLAIM.fullmatch(path.name)]
    paths = [path for path in paths if not path.name.startswith(f"{NEW}report.html")]  # belongs to whoever writes it
    return {str(path.relative_to(root)): _timeless(path) for path in paths}


def _timeless(path: Path) -> object:
    if path.name == "attacks.jsonl":
        lines = read_lines(path)
        for line in lines:
            if line.get("about", {}).pop("seconds", None) is not None:
                line["note"] = line["note"].partition(", ")[2].partition(";")[2]
        return lines
    if path.name.startswith("restart-"):
        with safe_open(path, framework="np") as file:
            return {name: file.get_tensor(name).tobytes() for name in sorted(file.keys())}
    return path.read_bytes()


def started(study: Study, root: Path):
    def target() -> None:
        failed = [outcome.error for outcome in run_study(study, root, workers=1) if outcome.error]
        build_report(read(root))
        os._exit(len(failed))

    process = multiprocessing.get_context("fork").Process(target=target)
    process.start()
    return process


def finish(study: Study, root: Path) -> float:
    before = time.monotonic()
    process = started(study, root)
    process.join()
    assert process.exitcode == 0
    return time.monotonic() - before


def page(root: Path, times: Path) -> bytes:
    """The report, with the times of another store."""
    for path in (*times.rglob("log.jsonl"), *times.rglob("attacks.jsonl")):
        if path != root / path.relative_to(times):
            shutil.copy(path, root / path.relative_to(times))
    return build_report(read(root)).read_bytes()


@pytest.mark.slow
def test_sixty_kills_over_every_strategy_defence_and_attack(tmp_path):
    study, rng, struck, attempt = everything(), random.Random(0), 0, 0
    whole = tmp_path / "whole" / "store"
    seconds = finish(study, whole)
    while struck < KILLS:
        root = tmp_path / str(attempt) / "store"
        done = False
        while not done and struck < KILLS:
            process = started(study, root)
            process.join(rng.uniform(0.0, 4 * seconds / KILLS))
            done = process.exitcode is not None
            if not done:
                os.kill(process.pid, signal.SIGKILL)
                struck += 1
            process.join()
        finish(study, root)
        assert content(root) == content(whole)
        assert page(root, whole) == page(whole, whole)
        attempt += 1
    print(f"{struck} kills over {attempt} stores of {len(study.cells)} cells")
