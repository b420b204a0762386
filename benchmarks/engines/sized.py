"""Processes whose memory is watched: ``sized.py folder PATH CACHE | clients N ROUNDS | updates WORKERS CLIENTS``.

Each says "ready" once torch has been used, waits for a line, and works.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from leakline.bench.training import Plan
from leakline.data import Even, ImageFolder, partition
from leakline.data.base import Client, Data, Task
from leakline.federation import Federation, federate, keep_none
from leakline.models.residual import ResNet
from leakline.runtimes.local import LocalTransport


def folder(path: str, cache: str) -> None:
    """Four clients share a folder of colour images at 224x224; each takes three steps of 32 images, twice."""
    data = ImageFolder(path, size=224, grey=False, cache=cache).load()
    task = partition(data, Even(), clients=4)
    plan = Plan(batch=32, learning_rate=0.01, max_steps=3)
    federation = Federation(task, _convolutions, plan, rounds=2)
    with LocalTransport(federation, 2) as transport:
        for round_ in federate(federation, transport, keep=keep_none):
            outputs = transport.outputs(round_.result, Data(task.test.x[:256], task.test.y[:256]))  # type: ignore[union-attr]
            print(f"round {round_.index}: {len(round_.cohort)} clients, {outputs.isfinite().all()}")
    print(task.clients[0].train.fingerprint())


def clients(count: str, rounds: str) -> None:
    """Many clients with eight numbers each and one linear layer; one line for each round: processor seconds, MB."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(8 * int(count), 16, generator=generator), torch.arange(8 * int(count)) % 4
    members = [Client(f"c{i}", Data(x[8 * i : 8 * i + 8], y[8 * i : 8 * i + 8])) for i in range(int(count))]
    task = Task(tuple(members), None, None, ("a", "b", "c", "d"))
    federation = Federation(task, lambda: nn.Linear(16, 4), Plan(batch=8, learning_rate=0.1), rounds=int(rounds))
    with LocalTransport(federation, 1) as transport:
        then = time.process_time()
        for _ in federate(federation, transport, keep=keep_none):
            gc.collect()
            print(f"{time.process_time() - then:.4f} {_resident():.1f}")
            then = time.process_time()


def updates(workers: str, count: str) -> None:
    """45 million parameters (a ResNet-18 of width 128), one step a client, two rounds."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(2, 3, 32, 32, generator=generator), torch.arange(2)
    members = tuple(Client(f"c{i}", Data(x, y)) for i in range(int(count)))
    plan = Plan(batch=2, learning_rate=0.01, max_steps=1)
    federation = Federation(Task(members, None, None, ("a", "b")), ResNet(width=128), plan, rounds=2)
    with LocalTransport(federation, int(workers)) as transport:
        for round_ in federate(federation, transport, keep=keep_none):
            print(f"round {round_.index}: {len(round_.cohort)} clients, {round_.result.vector.numel():,} values")


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 7, stride=8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64, 2)
    )


def _resident() -> float:
    """The memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 2**20


def _warm() -> None:
    """Use torch once: what it takes for itself is not counted."""
    out = _convolutions()(torch.rand(2, 3, 224, 224)).sum()
    out.backward()


def main() -> None:
    """Do what was asked."""
    jobs: dict[str, Callable[..., None]] = {"folder": folder, "clients": clients, "updates": updates}
    torch.set_num_threads(1)
    _warm()
    print("ready", flush=True)
    sys.stdin.readline()
    jobs[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    main()
