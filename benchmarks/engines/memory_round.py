"""A process whose memory is watched: ``memory_round.py training|round``.

``round`` is one round of 50 clients with 6.5 million parameters under fedavg. ``training`` is the model's own
training: as many forked processes as leakline has workers, each taking the same step on the same images, and no
federation around them.
"""

from __future__ import annotations

import multiprocessing
import sys
import time

import torch
from bare import thresholds
from torch.nn.functional import cross_entropy

from leakline.bench.training import Bench, Plan
from leakline.data.base import Client, Data, Task
from leakline.federation import Federation, federate, keep_none
from leakline.models.papers import Paper000CNN
from leakline.runtimes.local import LocalTransport
from leakline.runtimes.machine import cores

CLIENTS, IMAGES = 50, 32


def data() -> Data:
    """A full batch, so that training has its usual working memory."""
    generator = torch.Generator().manual_seed(0)
    return Data(torch.rand(IMAGES, 1, 128, 128, generator=generator), torch.arange(IMAGES) % 4)


def step(bench: Bench, one: Data, done: multiprocessing.synchronize.Barrier) -> None:
    """One step of Adam, then wait until all have taken theirs and memory was looked at."""
    torch.set_num_threads(1)
    thresholds()
    bench.model.train()
    optimiser = torch.optim.Adam(bench.model.parameters(), fused=True)
    cross_entropy(bench.model(bench.inputs(one, slice(None))), one.y).backward()
    optimiser.step()
    done.wait()
    time.sleep(1.0)


def main() -> None:
    """Do what was asked."""
    torch.set_num_threads(1)
    one = data()
    clients = tuple(Client(f"client-{i}", one) for i in range(CLIENTS))
    plan = Plan(batch=IMAGES, learning_rate=1e-3, optimiser="adam", max_steps=1)
    made = Federation(Task(clients, None, None, ("a", "b", "c", "d")), Paper000CNN(), plan, rounds=1)
    if sys.argv[1] == "round":
        with LocalTransport(made) as transport:
            for _ in federate(made, transport, keep=keep_none):
                pass
        return
    context = multiprocessing.get_context("fork")
    bench, done = made.bench(), context.Barrier(cores())
    processes = [context.Process(target=step, args=(bench, one, done)) for _ in range(cores())]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
