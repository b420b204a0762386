"""Small networks with the examples of a batch last, against torch's own layers: where the rule takes them, do they win?

One step (forward and backward) of each network in one thread, both ways in turn; what is counted is processor time.
A row is the time of ours over torch's, with a goal where `BatchLast.fits` would take it.
"""

from __future__ import annotations

import time
from itertools import product

import torch
from rows import Row, interleaved, milliseconds, ratio

from leakline.bench.training import Bench
from leakline.models.base import Model
from leakline.models.small import MotionCNN, SmallCNN
from leakline.runtimes.machine import tune_allocator
from leakline.utility import objective

TITLE = "Examples of a batch last: a step of a small network, over torch's"
STEPS = 10
NETWORKS: tuple[tuple[Model, tuple[int, ...]], ...] = (
    (SmallCNN((8, 16)), (1, 8, 8)),
    (SmallCNN((8, 16)), (3, 16, 16)),
    (SmallCNN((16, 32)), (1, 28, 28)),
    (SmallCNN((16, 32)), (3, 32, 32)),
    (MotionCNN((8, 16), (32, 16)), (12, 125)),
    (MotionCNN((32, 64), (128, 64)), (12, 125)),
)


def main(repeats: int) -> list[Row]:
    """One row for each network and size of batch."""
    torch.set_num_threads(1)
    tune_allocator()
    rows: list[Row] = []
    for (network, shape), batch in product(NETWORKS, (8, 50)):
        bench = Bench(network.build(shape, 10), objective("classification").loss, shape=shape)
        quick, model = bench.batch_last, bench.model.train()
        assert quick is not None
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(batch, *shape, generator=generator)
        x = x.contiguous(memory_format=torch.channels_last) if bench.images else x
        y = torch.randint(0, 10, (batch,), generator=generator)

        def torchs(model=model, bench=bench, x=x, y=y) -> None:
            for _ in range(STEPS):
                model.zero_grad(set_to_none=True)
                bench.loss(model(x), y).backward()

        def ours(model=model, quick=quick, x=x, y=y) -> None:
            for _ in range(STEPS):
                quick(model, x, y)

        times = interleaved({"ours": ours, "torch": torchs}, max(repeats, 9), time.process_time)
        each = {name: [t / STEPS for t in taken] for name, taken in times.items()}
        taken = quick.fits(batch)
        note = milliseconds(each["ours"], each["torch"], "torch's") + ("" if taken else "; left to torch")
        name = f"{'x'.join(map(str, shape))}, channels {network.channels}, batch {batch}"
        rows.append(Row(TITLE, name, ratio(each["ours"], each["torch"]), at_most=1.0 if taken else None, note=note))
    return rows
