"""The two jobs that every engine runs: data, models, batches and the record of a run. No engine is imported here.

Job A: 4 clients x 256 grey images of 128x128, paper 000's CNN, Adam 1e-3, batches of 32, one epoch, 3 rounds.
Job B: 500 clients x 20 images of 28x28, paper 002's CNN, one SGD step on all 20, 50 clients a round, 20 rounds.

`prepare.py` writes what all engines share (images, initial weights, who takes part, which rows are a batch, the
seeds of dropout), so that what they compute can be compared and not only how long it took.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

RATE = {"A": 1e-3, "B": 0.1}
BATCH = {"A": 32, "B": 20}
CLASSES = {"A": 4, "B": 10}


def network(job: str) -> nn.Sequential:
    """The job's model, written out again here so that no engine depends on another's code."""
    if job == "A":
        return nn.Sequential(
            *(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(64, 128, 3), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(128 * 28 * 28, 64), nn.ReLU(), nn.Dropout(0.1)),
            *(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, CLASSES[job])),
        )
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, CLASSES[job])),
    )


def optimiser(job: str, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The job's local optimiser as a user gets it who asks for nothing special."""
    if job == "A":
        return torch.optim.Adam(parameters, lr=RATE[job])
    return torch.optim.SGD(parameters, lr=RATE[job])


@dataclass(frozen=True)
class Shared:
    """What `prepare.py` wrote for one job."""

    folder: Path
    job: str

    def array(self, name: str) -> np.ndarray:
        """One stored array."""
        return np.asarray(np.load(self.folder / f"{self.job}-{name}.npy", allow_pickle=False))

    @cached_property
    def x(self) -> Tensor:
        """Images: client, example, channel, height, width."""
        return torch.from_numpy(self.array("x"))

    @cached_property
    def y(self) -> Tensor:
        """Labels: client, example."""
        return torch.from_numpy(self.array("y"))

    @cached_property
    def start(self) -> Tensor:
        """The initial weights as one vector."""
        return torch.from_numpy(self.array("start"))

    @cached_property
    def cohorts(self) -> list[list[int]]:
        """Who takes part, by round."""
        return [[int(i) for i in row] for row in self.array("cohorts")]

    @cached_property
    def batches(self) -> Tensor:
        """Rows of each step: round, client, step, row."""
        return torch.from_numpy(self.array("batches"))

    @cached_property
    def seeds(self) -> list[list[int]]:
        """The seed of a client's dropout: round, client."""
        return [[int(i) for i in row] for row in self.array("seeds")]

    @property
    def rounds(self) -> int:
        """How many rounds the job has."""
        return len(self.cohorts)

    def steps(self, index: int, client: int) -> Tensor:
        """The batches of a client in a round; in job B the one batch is all of its data."""
        return self.batches[index, client] if self.job == "A" else torch.arange(BATCH[self.job])[None]

    def model(self) -> nn.Sequential:
        """The job's model with the common initial weights."""
        net = network(self.job)
        vector_to_parameters(self.start.clone(), net.parameters())
        return net


@dataclass
class Record:
    """When each round ended, and where the model went. Times are of the monotonic clock that all processes share."""

    ends: list[float] = field(default_factory=list)

    def lap(self) -> None:
        """A round has ended."""
        self.ends.append(time.monotonic())

    def write(self, out: Path, final: Tensor, **more: float) -> None:
        """Leave the record for the process that started this one."""
        np.save(out.with_suffix(".npy"), final.detach().float().numpy())
        out.write_text(json.dumps({"ends": self.ends, **more}), encoding="utf-8")


def arguments() -> tuple[Shared, Path, list[str]]:
    """``FOLDER JOB OUT [OPTIONS]``, the command line of every engine."""
    folder, job, out, *options = sys.argv[1:]
    return Shared(Path(folder), job), Path(out), options


def vector(net: nn.Module) -> Tensor:
    """All parameters as one vector in natural order."""
    return parameters_to_vector([p.detach().contiguous() for p in net.parameters()])
