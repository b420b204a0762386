"""What splitting costs: a client that trains as four sub-clients against the same client in one piece.

Images, batch size and passes are the same: sub-clients take as many steps together as the unsplit client, and one short
step more each where sizes do not divide. Measured is a client's whole turn on one thread, from the order to the updates
ready to leave; and the server's side of a round, where four times as many updates are clipped and compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from rows import Row, interleaved, milliseconds, ratio

from leakline.bench.training import Plan
from leakline.data.base import Client, Data, Task
from leakline.defences import GlobalDP, Intermediaries
from leakline.federation import Federation, State, federate, initial_weights, keep_none
from leakline.messages import Order, Update
from leakline.models.base import Model
from leakline.models.small import SmallCNN
from leakline.models.unet import SmallUNet
from leakline.runtimes.client import answer
from leakline.runtimes.local import tune_allocator
from leakline.strategies import fedavg

TITLE = "A client as four sub-clients against one piece"
PARTS = 4


@dataclass(frozen=True)
class Case:
    """A network and how many images a client has."""

    name: str
    model: Model
    side: int
    images: int
    plan: Plan
    masks: bool = False


CASES = (
    Case("small CNN, 256 images of 32 x 32", SmallCNN(), 32, 256, Plan(batch=16, optimiser="adam", learning_rate=3e-4)),
    Case("small CNN, 250 images (parts of 62 and 63)", SmallCNN(), 32, 250, Plan(batch=16, learning_rate=0.01)),
    Case(
        "small U-Net, 64 images of 64 x 64",
        SmallUNet((8, 16, 32)),
        64,
        64,
        Plan(batch=8, optimiser="adam", learning_rate=1e-3),
        True,
    ),
    Case("small U-Net, 50 images (parts of 12 and 13)", SmallUNet((8, 16, 32)), 64, 50, Plan(batch=8), True),
)


def federation(case: Case) -> Federation:
    """Six clients with random images: what they show does not matter to the clock."""
    random = torch.Generator().manual_seed(0)
    shape = (case.images, 1, case.side, case.side)

    def data() -> Data:
        x = torch.randn(*shape, generator=random)
        y = (x > 1).to(torch.uint8) if case.masks else torch.randint(0, 2, (case.images,), generator=random)
        return Data(x, y)

    clients = tuple(Client(f"site-{i}", data()) for i in range(6))
    task = Task(clients, None, None, ("no", "yes"), kind="segmentation" if case.masks else "classification")
    return Federation(task, case.model, case.plan, fedavg("even"), rounds=10**6, noise="seeded")


@dataclass(frozen=True)
class Answers:
    """A transport whose clients answer with updates made before."""

    updates: tuple[Update, ...]

    def exchange(self, orders: object) -> tuple[Update, ...]:
        """All of them."""
        return self.updates


def rows_of(case: Case, repeats: int) -> list[Row]:
    """Time of the split client over that of the whole one, and of the server's side."""
    plain = federation(case)
    stacks = {
        "whole": replace(plain, defences=(GlobalDP(1.0, 1.0),)),
        "split": replace(plain, defences=(Intermediaries(1.0, 1.0, parts=PARTS),)),
    }
    bench, start = plain.bench(), initial_weights(plain)
    orders = {
        "whole": Order("site-0", 0, start),
        "split": Order("site-0", 0, start, {"parts": float(PARTS)}),
    }

    def turn(name: str) -> list[Update]:
        return answer(stacks[name], bench, orders[name], {})

    times = interleaved({name: lambda name=name: turn(name) for name in stacks}, repeats)  # type: ignore[misc]
    note = f"split {milliseconds(times['split'], times['whole'], 'whole')}"
    found = [Row(TITLE, case.name, ratio(times["split"], times["whole"]), at_most=1.3, note=note)]

    rounds = {}
    for name, stack in stacks.items():
        sent = tuple(replace(update, client=client.name) for client in stack.task.clients for update in turn(name))
        rounds[name] = federate(stack, Answers(sent), keep=keep_none, state=State())  # type: ignore[arg-type]
    server = interleaved({name: lambda name=name: next(rounds[name]) for name in rounds}, repeats)  # type: ignore[misc]
    note = f"split {milliseconds(server['split'], server['whole'], 'whole')}"
    return [
        *found,
        Row(TITLE, f"the server's side of it, {case.name}", ratio(server["split"], server["whole"]), note=note),
    ]


def main(repeats: int) -> list[Row]:
    """All cases."""
    torch.set_num_threads(1)
    tune_allocator()
    return [row for case in CASES for row in rows_of(case, repeats)]
