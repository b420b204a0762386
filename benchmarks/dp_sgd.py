"""A private step against a plain one and against Opacus: time, memory, and whether the update is right.

One thread, so that processor time is the work done, whatever else the machine does; roads take turns. Memory is the
peak of a fresh process above what it held before its first step.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from rows import Row, interleaved, milliseconds, ratio
from torch.nn import functional

from leakline.mechanisms.per_example import clipped_sum
from leakline.runtimes.local import tune_allocator

ENGINES = Path(__file__).parent / "engines"
TITLE = "DP-SGD step, batch 32, 128x128, paper 000's CNN, one thread (processor time, noise included)"

PATIENTS = "DP-SGD step, the patient as the unit, batch of 32 records, one thread (processor time, noise included)"


def memory(name: str) -> float:
    """Peak above base (MB), in a fresh process."""
    environment = os.environ | {"PYTHONPATH": str(ENGINES)}
    command = [sys.executable, str(ENGINES / "dp_step.py"), name]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def memory_rows(names: list[str]) -> list[Row]:
    """What each road takes, against plain training and against Opacus."""
    if not Path("/proc/self/statm").exists():
        print("dp_sgd: memory is left out (no /proc/self/statm here)")
        return []
    peaks = {name: memory(name) for name in names}
    note = ", ".join(f"{name} {peak:.0f} MB" for name, peak in peaks.items())
    made = [Row(TITLE, "peak memory above base, leakline / plain", peaks["leakline"] / peaks["plain"], note=note)]
    if "opacus ghost" in peaks:
        made.append(
            Row(TITLE, "the same, leakline / Opacus ghost", peaks["leakline"] / peaks["opacus ghost"], at_most=1.0)
        )
    return made


def patient_rows(repeats: int) -> list[Row]:
    """The patient as the unit against the record, the same 32 records: what sizes patients have must not matter."""
    import dp_step

    made = []
    x, y = dp_step.batch()
    small = x[:, 0, ::5, ::5].flatten(1)  # 676 numbers
    for network, build, images in (
        ("paper 000's CNN, 128x128", dp_step.network, x),
        ("ResNet-18 of width 16, 64x64", dp_step.residual, x[:, :, ::2, ::2].contiguous()),
        ("a linear head, 676 numbers", partial(dp_step.perceptron, small.shape[1]), small),
        ("a perceptron, 676-64-64", partial(dp_step.perceptron, small.shape[1], 64, 64), small),
    ):
        units = {"records": None, "2 records each": dp_step.patients(2, True), "1 to 7 each": dp_step.patients(7)}
        steps = {name: dp_step.leakline(build(), images, y, secret=False, units=whose) for name, whose in units.items()}
        steps = {name: _often(step, 1 if images.dim() > 2 else 50) for name, step in steps.items()}
        times = interleaved(steps, max(repeats, 5), time.process_time)
        for name in ("2 records each", "1 to 7 each"):
            ours, theirs = times[name], times["records"]
            measure = f"patients, {name} / records, {network}"
            note = milliseconds(ours, theirs, "records")
            made.append(Row(PATIENTS, measure, ratio(ours, theirs), at_most=1.3, note=note))
    return made


def _often(step: Callable[[], object], times: int) -> Callable[[], object]:
    """Steps of small networks are over before a clock has counted them."""

    def steps() -> None:
        for _ in range(times):
            step()

    return steps


def error() -> float:
    """Distance of the clipped, noise-free sum from per-example gradients by vmap in float64, relative."""
    import dp_step

    x, y = dp_step.batch()
    model = dp_step.network(dropout=0.0)
    found = clipped_sum(model, functional.cross_entropy, x[:8], y[:8], dp_step.CLIP)
    assert found.path == "bookkeeping"
    exact = clipped_sum(model.double(), functional.cross_entropy, x[:8].double(), y[:8], dp_step.CLIP, "one by one")
    ours, theirs = (torch.cat([s.double().flatten() for s in one.sums]) for one in (found, exact))
    assert bool((exact.norms > dp_step.CLIP).any())
    return float((ours - theirs).norm() / theirs.norm())


def main(repeats: int) -> list[Row]:
    """All of it; memory first, while this process is small."""
    sys.path.insert(0, str(ENGINES))
    import dp_step

    names = [n for n in dp_step.ROADS if "opacus" not in n or importlib.util.find_spec("opacus") is not None]
    if len(names) < len(dp_step.ROADS):
        print("dp_sgd: Opacus is not installed, its rows are left out")
    made = memory_rows(names)
    torch.set_num_threads(1)
    tune_allocator()
    steps = {name: dp_step.road(name, dp_step.network(), *dp_step.batch()) for name in names}
    times = interleaved(steps, max(repeats, 3), time.process_time)

    def versus(one: str, other: str, **goal: float) -> Row:
        note = milliseconds(times[one], times[other], other)
        return Row(TITLE, f"{one} / {other}", ratio(times[one], times[other]), note=note, **goal)  # type: ignore[arg-type]

    made = [
        versus("leakline", "plain", at_most=1.25),
        *([versus("opacus ghost", "leakline", at_least=1.6)] if "opacus ghost" in names else []),
        *([versus("opacus hooks", "leakline")] if "opacus hooks" in names else []),
        versus("leakline, secret noise", "plain"),
        *made,
    ]
    note = "clipped sum without noise, float32 against one example after another in float64"
    made.append(Row(TITLE, "relative error of the update", error(), "", at_most=1e-6, note=note))
    return [*made, *patient_rows(repeats)]
