"""Federations to play on: a small copy of a given one, or a tiny one made up around a stack of defences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from leakline.bench.training import Plan
from leakline.data.base import Client, Data, Task
from leakline.defences import Defence
from leakline.federation import Federation
from leakline.models.base import Kind, Model, Shape
from leakline.stack import Stack
from leakline.strategies import SGD, Strategy, fedavg
from leakline.weights import Entry

VALUES = 4
"""How many values an entry of the small copy keeps."""


ENTRIES = 12
"""How many entries of each kind (parameters, buffers) the small copy keeps: the first and the last."""


CLIENTS = 3
"""How many clients a participant's game is played among: a promise per client does not depend on it."""


class _Shell(nn.Module):
    """A module with entries of given names and sizes, and no forward pass."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        super().__init__()
        for entry in entries:
            *path, last = entry.name.split(".")
            place: nn.Module = self
            for step in path:
                if step not in place._modules:
                    place.add_module(step, nn.Module())
                place = place.get_submodule(step)
            values = torch.zeros(entry.shape)
            if entry.buffer:
                place.register_buffer(last, values)
            else:
                place.register_parameter(last, nn.Parameter(values))


@dataclass(frozen=True)
class _Shrunk:
    """Builds a `_Shell`."""

    entries: tuple[Entry, ...]

    def build(self, shape: Shape, classes: int, kind: Kind = "classification") -> nn.Module:
        return _Shell(self.entries)


def shell(entries: tuple[Entry, ...]) -> Model:
    """An architecture that is nothing but these entries, for games without a forward pass."""
    return _Shrunk(entries)


def small(
    federation: Federation, noise: Literal["secret", "seeded"] | None = None, most: int = ENTRIES * 2 * VALUES
) -> Federation:
    """The same stack, strategy and sampling over a few clients and a few values per entry, at most ``most`` in all.

    The client with most examples comes first: under a weighted mean it has most to lose. Where all noise is added
    before the server's optimiser, the optimiser is left out: its step is public, and an observer inverts it.
    """
    layout = federation.layout
    kinds = [[e for e in layout.entries if e.buffer == buffer] for buffer in (False, True)]
    ends = [e for kind in kinds for e in _ends(kind)]
    each = max(1, min(VALUES, most // len(ends)))
    entries = tuple(Entry(e.name, (min(e.size, each),), e.buffer) for e in ends)
    kept = tuple(sorted(federation.task.clients, key=lambda c: -len(c.train))[:CLIENTS])
    late = federation.stack.publishing("model")
    strategy = federation.strategy if late else replace(federation.strategy, optimiser=SGD())
    return federation.but(
        task=replace(federation.task, clients=kept),
        model=_Shrunk(entries),
        defences=federation.stack.settled(federation),
        strategy=replace(strategy, warm_start=False),
        noise=noise or federation.noise,
        min_clients=1,
    )


def _ends(entries: list[Entry]) -> list[Entry]:
    return entries if len(entries) <= ENTRIES else entries[: ENTRIES // 2] + entries[-ENTRIES // 2 :]


def workbench(
    defences: Sequence[Defence],
    *,
    rounds: int = 1,
    strategy: Strategy | None = None,
    clients: int = CLIENTS,
    buffers: bool = True,
    seed: int = 0,
    **settings: object,
) -> Federation:
    """A tiny federation around a stack, for auditing a defence that no study has trained with.

    ``buffers``: with BatchNorm, except around a defence that clips examples, which BatchNorm mixes.
    """
    stack = Stack(tuple(defences))
    buffers = buffers and stack.owner is None
    generator = torch.Generator().manual_seed(seed)
    patients = torch.arange(8) // 2  # two records each, for a promise that is a patient's
    shared = [Data(torch.randn(8, 4, generator=generator), torch.arange(8) % 2, patients) for _ in range(clients)]
    task = Task(
        tuple(Client(f"client-{i}", data) for i, data in enumerate(shared)), None, None, ("a", "b"), name="workbench"
    )
    return Federation(
        task=task,
        model=_network(buffers),
        plan=Plan(batch=0),
        strategy=strategy or fedavg("even"),
        defences=stack.defences,
        rounds=rounds,
        seed=seed,
    ).but(**settings)


def record_federation(federation: Federation, stack: Sequence[Defence], **settings: Any) -> Federation:
    """A tiny federation around a stack for a record's game; where sums are seen, of as many clients as there are."""
    cohort = federation.cohort
    hidden = cohort.secure_aggregation == "assumed"
    clients = round(federation.expected()) if hidden else CLIENTS
    made = workbench(stack, buffers=False, seed=federation.seed, clients=clients, **settings)
    return made.but(secure_aggregation=cohort.secure_aggregation, min_clients=cohort.min_clients) if hidden else made


def record_bench(federation: Federation) -> Federation:
    """The same stack around a linear classifier, one step on all of a client's records: one release per round.

    Poisson batches are left out: what sampling hides is the accountant's business, what a step hides is asked here.
    """
    stack = federation.stack.unsampled()
    made = record_federation(federation, stack, rounds=federation.rounds, noise=federation.noise)
    return replace(made, model=_linear, plan=Plan(batch=0, learning_rate=1.0))


def _network(buffers: bool) -> Callable[[], nn.Module]:
    return _with_buffers if buffers else _plain


def _with_buffers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def _linear() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 2))


def _plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
