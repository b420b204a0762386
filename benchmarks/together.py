"""Clients in one vectorised pass or one by one: do `fits_together` and `fewest` choose the faster of the two?

Twenty settings of network, size of inputs, batch and number of clients. Each is trained both ways, in turn, for
three steps in one thread; what is counted is processor time. A row is the time of what the rule chooses over that of
the better choice: 1 where it is right.
"""

from __future__ import annotations

import statistics
import time
from itertools import product

import torch
from rows import Row, interleaved

from leakline.bench.together import fewest, fits_together, train_together
from leakline.bench.training import Bench, Job, Plan, train
from leakline.data.base import Data
from leakline.models.base import Model, Shape
from leakline.models.small import MLP, SmallCNN
from leakline.randomness import Stream
from leakline.utility import objective

TITLE = "Clients together or one by one: what the rule chooses, over the better choice"
STEPS = 3
NETWORKS: tuple[tuple[str, Model, Shape], ...] = (
    ("small-cnn 8x8", SmallCNN(), (1, 8, 8)),
    ("small-cnn 28x28", SmallCNN(), (1, 28, 28)),
    ("small-cnn 32x32x3", SmallCNN(), (3, 32, 32)),
    ("mlp 8x8", MLP((64,)), (1, 8, 8)),
    ("mlp 28x28", MLP((64,)), (1, 28, 28)),
)


def jobs_of(bench: Bench, shape: Shape, examples: int, clients: int) -> list[Job]:
    """So many clients with examples of noise, all from one model."""
    generator = torch.Generator().manual_seed(0)

    def data() -> Data:
        x = torch.rand(examples, *shape, generator=generator)
        return Data(x, torch.randint(0, 10, (examples,), generator=generator))

    return [Job(bench.initial, data(), Stream(0, 0, f"client-{i}", "bench"), 0) for i in range(clients)]


def main(repeats: int) -> list[Row]:
    """One row a setting, and the worst."""
    torch.set_num_threads(1)
    rows: list[Row] = []
    for (name, model, shape), (batch, clients) in product(NETWORKS, ((4, 8), (16, 32), (64, 8), (16, 3))):
        bench = Bench(model.build(shape, 10), objective("classification", "default").loss, "cpu", shape)
        jobs, plan = jobs_of(bench, shape, STEPS * batch, clients), Plan(batch=batch, max_steps=STEPS)
        times = interleaved(
            {
                "one by one": lambda jobs=jobs, bench=bench, plan=plan: [train(bench, job, plan) for job in jobs],
                "together": lambda jobs=jobs, bench=bench, plan=plan: train_together(bench, jobs, plan),
            },
            max(repeats, 3),
            time.process_time,
        )
        took = {way: statistics.median(each) for way, each in times.items()}
        fits = fits_together(bench, plan, STEPS * batch) and clients >= fewest(bench)
        chosen = "together" if fits else "one by one"
        note = ", ".join(f"{way} {1000 * seconds:.0f} ms" for way, seconds in took.items()) + f"; chosen: {chosen}"
        value = took[chosen] / min(took.values())
        rows.append(Row(TITLE, f"{name}, batches of {batch}, {clients} clients", value, at_most=1.1, note=note))
    return rows
