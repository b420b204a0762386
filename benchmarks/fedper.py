"""Two dozen people with different amounts of motion data: one round, trained one by one, grouped, and on all cores.

The work of a round is fixed: everybody's local epochs on windows of MotionSense's shape, with its people's sizes. The
sequential loop runs it client by client in one process. Cases: the study's own network (250,000 values: a step fills a
core), the desk preset's (16,000), and clients with a tenth of the data in small batches, where the overhead of a step
is what grouping saves. `leakline.bench.ragged` groups in the last case only; in the others a round gains by
its workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from rows import Row, interleaved, milliseconds, ratio

from leakline.bench.ragged import GROUP, train_ragged
from leakline.bench.training import Job, Plan, train
from leakline.data.base import Client, Data, Task
from leakline.federation import Federation, State, federate, initial_weights, keep_none
from leakline.models.small import MotionCNN
from leakline.randomness import Stream
from leakline.runtimes.local import LocalTransport
from leakline.runtimes.machine import tune_allocator

TITLE = "One round of 24 people of unequal size (motion-cnn)"
SIZES = (
    394, 333, 360, 314, 295, 295, 337, 336, 313, 343, 365, 301, 290, 337, 339, 353, 308, 355, 406, 311, 369, 339, 293,
    291,
)  # fmt: skip
"""Training windows of MotionSense's subjects under the study's split."""
SHAPE = (9, 125)


@dataclass(frozen=True)
class Case:
    """A network, a plan and how many windows people have."""

    name: str
    model: MotionCNN
    plan: Plan
    sizes: Sequence[int] = SIZES


CASES = (
    Case("paper preset, 250,000 values, batches of 32", MotionCNN(), Plan(epochs=1, batch=32, learning_rate=0.001)),
    Case(
        "desk preset, 16,000 values, batches of 32",
        MotionCNN((8, 16), (32, 16)),
        Plan(epochs=2, batch=32, learning_rate=0.05),
    ),
    Case(
        "a tenth of the data, 16,000 values, batches of 8",
        MotionCNN((8, 16), (32, 16)),
        Plan(epochs=5, batch=8, learning_rate=0.05),
        tuple(n // 10 for n in SIZES),
    ),
)


def federation(case: Case) -> Federation:
    """The case as a federation on random windows: what they hold does not matter to the clock."""
    random = torch.Generator().manual_seed(0)
    clients = tuple(
        Client(
            f"sub-{i + 1}",
            Data(torch.randn(n, *SHAPE, generator=random), torch.randint(0, 6, (n,), generator=random)),
        )
        for i, n in enumerate(case.sizes)
    )
    return Federation(Task(clients, None, None, tuple("abcdef")), case.model, case.plan, rounds=10**6)


def rows_of(case: Case, repeats: int) -> list[Row]:
    """Ratios of a sequential round to the same round done faster: above 1 is faster."""
    world = federation(case)
    bench, start = world.bench(), initial_weights(world)
    jobs = [Job(start, c.train, Stream(0, 0, c.name, "train"), 0) for c in world.task.clients]

    def loop() -> None:
        for job in jobs:
            train(bench, job, case.plan)

    def grouped() -> None:
        for at in range(0, len(jobs), GROUP):
            train_ragged(bench, jobs[at : at + GROUP], case.plan)

    with LocalTransport(world) as transport:
        rounds = federate(world, transport, keep=keep_none, state=State())
        cases: dict[str, Callable[[], object]] = {
            "loop": loop,
            "grouped": grouped,
            "leakline": lambda: next(rounds),
        }
        times = interleaved(cases, repeats)
        rounds.close()

    def row(measure: str, slow: str, fast: str, at_least: float | None = None) -> Row:
        note = f"{measure.split(' against')[0]}: {milliseconds(times[fast], times[slow], slow)}"
        return Row(f"{TITLE}: {case.name}", measure, ratio(times[slow], times[fast]), at_least=at_least, note=note)

    return [
        row("a leakline round against a sequential loop", "loop", "leakline", at_least=1.8),
        row("grouped on one core against the loop", "loop", "grouped"),
    ]


def main(repeats: int) -> list[Row]:
    """All cases."""
    torch.set_num_threads(1)
    tune_allocator()
    return [row for case in CASES for row in rows_of(case, repeats)]
