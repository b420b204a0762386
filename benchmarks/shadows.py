"""What shadow federations cost: sixteen of them, trained and looked at, against the federation that they are like.

The setting of the study `exposure` (five clients of 200 training and 200 other images of 16 x 16, a small CNN, five
epochs in batches of 50) on noise, for a few rounds; both on all cores, of which the one federation has five clients to
fill them with and the shadows sixteen federations. The second row leaves that out: it counts processor time.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from rows import Row, interleaved, ratio

from leakline import Federation, Plan, federate
from leakline.attacks.shadow_worlds import Asked
from leakline.attacks.tables import Look, looked_at
from leakline.data.base import Client, Data, Task
from leakline.federation import keep_none
from leakline.models.small import SmallCNN
from leakline.runtimes.local import LocalTransport
from leakline.runtimes.machine import cores
from leakline.strategies import fedavg
from leakline.study.watched import watched

TITLE = "Shadow federations: sixteen that are trained and looked at, over one that is trained"
CLIENTS, EACH, ROUNDS, SHADOWS = 5, 200, 4, 16


def federation() -> Federation:
    """Five clients with images of noise."""
    generator = torch.Generator().manual_seed(0)

    def data() -> Data:
        return Data(
            torch.rand(EACH, 3, 16, 16, generator=generator), torch.randint(0, 10, (EACH,), generator=generator)
        )

    clients = tuple(Client(f"client-{i}", data(), data()) for i in range(CLIENTS))
    task = Task(clients, None, None, tuple("0123456789"), name="noise")
    plan = Plan(epochs=5, batch=50, learning_rate=0.1, momentum=0.9)
    return Federation(task, SmallCNN(channels=(8, 16)), plan, fedavg("even"), rounds=ROUNDS).but(together="off")


def processor() -> float:
    """Seconds of work, of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def main(repeats: int) -> list[Row]:
    """The ratio in time and in processor time."""
    torch.set_num_threads(1)
    one = federation()
    asked = Asked.of(one.task.clients, EACH, np.random.default_rng(0))
    coins = np.random.default_rng(1).random((SHADOWS, asked.patients)) < 0.5
    worlds = asked.worlds(one, coins, ROUNDS, "published")
    look = Look(asked.owners, asked.records, looked_at(ROUNDS, ROUNDS))

    def alone() -> None:
        with LocalTransport(one) as transport:
            for _ in federate(one, transport, keep=keep_none):
                pass

    def shadows() -> None:
        with tempfile.TemporaryDirectory() as folder:
            watched(Path(folder), worlds, look, cores(), lambda world, done: None)

    cases, repeats = {"one": alone, "shadows": shadows}, max(repeats, 3)
    times, work = interleaved(cases, repeats), interleaved(cases, repeats, processor)
    name = f"{SHADOWS} shadows, {cores()} cores"
    return [
        Row(TITLE, name, ratio(times["shadows"], times["one"]), at_most=8.0, note=_medians(times)),
        Row(
            TITLE, f"{name}: processor time / cores", ratio(work["shadows"], work["one"]) / cores(), note=_medians(work)
        ),
    ]


def _medians(times: Mapping[str, list[float]]) -> str:
    return ", ".join(f"{name} {statistics.median(each):.2f} s" for name, each in times.items())
