"""Write what all engines share into a folder: ``prepare.py FOLDER``. Not timed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from leakline_engine import federation

from leakline.randomness import Stream


def main(folder: Path) -> None:
    """Images with a class-dependent pattern under noise, and leakline's own start, cohorts and batches."""
    rng = np.random.default_rng(0)
    for job, clients, examples, side, classes in (("A", 4, 256, 128, 4), ("B", 500, 20, 28, 10)):
        patterns = rng.random((classes, side, side), dtype=np.float32)
        y = rng.integers(0, classes, (clients, examples))
        x = 0.5 * patterns[y] + 0.5 * rng.random((clients, examples, side, side), dtype=np.float32)
        np.save(folder / f"{job}-x.npy", x[:, :, None])
        np.save(folder / f"{job}-y.npy", y)
        np.save(folder / f"{job}-start.npy", np.zeros(0, np.float32))
        made = federation(job, torch.from_numpy(x[:, :, None]), torch.from_numpy(y))
        np.save(folder / f"{job}-start.npy", made.bench().initial.vector.numpy())
        cohorts = [[int(name) for name in made.invited(r)] for r in range(made.rounds)]
        np.save(folder / f"{job}-cohorts.npy", np.array(cohorts))
        if job == "A":
            streams = [[Stream(made.seed, r, str(c), "train") for c in range(clients)] for r in range(made.rounds)]
            rows = [[torch.stack(list(made.plan.batches(examples, s))).numpy() for s in line] for line in streams]
            np.save(folder / "A-batches.npy", np.array(rows))
            seeds = [[replace(s, purpose="train/dropout").integer() for s in line] for line in streams]
            np.save(folder / "A-seeds.npy", np.array(seeds))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
