"""What a run will leave on disk, before it is made."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from leakline.attacks.base import Attack
from leakline.federation import Federation
from leakline.study.one_cell import wanted


def disk_of(federation: Federation, attacks: Iterable[Attack]) -> float:
    """Megabytes: two checkpoints with what the server's optimiser and clients remember, and updates that are kept.

    What defences remember is not counted, nor the parts of a client that sends several updates, nor text.
    """
    clients = [client.name for client in federation.task.clients]
    whole, sent = federation.layout.size, federation.wire.size
    optimiser = federation.strategy.optimiser
    step, state = optimiser.step(torch.zeros(1), {}, 0)
    vectors = len(optimiser.told(step, step, state))
    checkpoint = whole + sent * vectors + (whole - sent) * len(clients)
    keep = wanted(attacks, federation)
    asked = [sum(keep(index, name) for name in clients) for index in range(federation.rounds)]
    kept = sent * sum(n + 1 for n in asked if n)  # with each round's what was sent
    return 4 * (2 * checkpoint + kept) / 2**20
