"""The local transport: clients in this process, or in forked workers with one thread each.

Every worker computes with the same number of threads as the process alone would, updates
are handed on in the order of the orders, and clients are grouped the same way whatever the number of workers: one
worker or many, the bytes are the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import TracebackType

import torch
from torch import Tensor

from leakline.bench.ragged import GROUP, fits_ragged
from leakline.bench.together import alike, fewest, fits_together, load_vmap
from leakline.data.base import Data
from leakline.federation import Federation
from leakline.messages import Dropped, Memory, Order, Update
from leakline.runtimes.client import TOGETHER, answer_safely
from leakline.runtimes.machine import cores, give_back, tune_allocator
from leakline.runtimes.pool import Pool
from leakline.weights import Weights

SLOT_BYTES = 384 * 2**20
"""How much memory finished updates may fill while they wait for their turn to be combined."""


DEADLINE = 3600.0
"""The longest that a client's turn may take, in seconds, if nobody says otherwise; also on Flower."""


class LocalTransport:
    """Runs the clients of a federation here.

    ``workers = 0`` takes one worker per core where forking is possible (Linux, CPU); 1 runs everything in this
    process. ``memories`` is what clients keep between rounds (private layers, defences' own state), by name.
    ``deadline``: a client that takes longer for its turn, in seconds, is dropped; only a worker can be stopped, so
    where there is one it has none.
    """

    def __init__(
        self,
        federation: Federation,
        workers: int = 0,
        memories: dict[str, Memory] | None = None,
        deadline: float = DEADLINE,
    ) -> None:
        if not deadline > 0:
            raise ValueError(f"deadline must be above 0: {deadline}")
        self.federation, self.deadline = federation, deadline
        self.memories = {} if memories is None else memories
        forkable = sys.platform == "linux" and federation.engine.device == "cpu"
        wanted = workers or min(cores(), len(federation.task.clients))
        self.workers = wanted if forkable else 1
        self.bench = federation.bench()
        self._pool: Pool | None = None
        self._threads = torch.get_num_threads()

    def __enter__(self) -> LocalTransport:
        tune_allocator()
        torch.set_num_threads(1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        torch.set_num_threads(self._threads)

    def close(self) -> None:
        """End the workers."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def exchange(self, orders: Sequence[Order]) -> Iterator[Update | Dropped]:
        """Let every ordered client take its turn."""
        groups = self._groups(orders)
        if self.workers == 1 or not groups:
            for group in groups:
                yield from self._here(group)
            return
        rows = max(sum(self.federation.stack.sends(order.notes) for order in group) for group in groups)
        finished = False
        try:
            yield from self._workers(rows).exchange(groups, self.memories)
            finished = True
        finally:
            if not finished:  # the caller gave up in mid-round: workers are still busy with it
                self.close()

    def outputs(self, weights: Weights, data: Data) -> Tensor:
        """The global model's outputs on data of the server's, in order."""
        cuts = _cuts(len(data))
        if self.workers == 1 or len(cuts) < 2 or data is not self.federation.task.test:
            return torch.cat([self.bench.outputs(weights, data, slice(a, b)) for a, b in cuts])
        return self._workers(1).outputs(weights, cuts)

    def _here(self, group: Sequence[Order]) -> Iterator[Update | Dropped]:
        turns = [(order, self.memories.setdefault(order.client, {})) for order in group]
        yield from answer_safely(self.federation, self.bench, turns)
        give_back(self.federation.wire.size)

    def _groups(self, orders: Sequence[Order]) -> list[list[Order]]:
        """Neighbouring clients that will train in one vectorised pass; everybody else alone."""
        federation, stack = self.federation, self.federation.stack
        split = any(stack.sends(order.notes) > 1 for order in orders)  # a client's parts are a group by themselves
        alone = federation.engine.together == "off" or stack.owner is not None or split or federation.batches
        if alone or not self._vectorised:
            return _singly(orders)
        # A group shares the fate of its worker. Where clients are few there is less to gain, and more to lose.
        many = len(orders) >= GROUP
        groups: list[list[Order]] = []
        sizes: list[int] = []  # of the last group
        for order in orders:
            sizes.append(len(federation.clients[order.client].train))
            even = len(sizes) <= TOGETHER and alike(sizes, federation.local_plan)
            if groups and (even or many and fits_ragged(self.bench, federation.local_plan, sizes)):
                groups[-1].append(order)
            else:
                groups.append([order])
                sizes = sizes[-1:]
        enough = fewest(self.bench)
        return [part for group in groups for part in ([group] if len(group) >= enough else _singly(group))]

    @property
    def _vectorised(self) -> bool:
        """Whether clients may train in one pass: judged by the largest, so that a round is computed one way."""
        return fits_together(self.bench, self.federation.local_plan, self._most)

    @property
    def _most(self) -> int:
        """How many examples the largest client has."""
        return max(len(client.train) for client in self.federation.task.clients)

    def _workers(self, rows: int) -> Pool:
        if self._pool is not None and self._pool.slots_count < rows:
            self.close()
        if self._pool is None:
            if self._vectorised:
                load_vmap(self.federation.local_plan, self._most)  # once here, not in every worker
            row_bytes = 4 * max(self.federation.wire.size, 1)
            clients = len(self.federation.task.clients)
            give_back(self.federation.wire.size)
            slots = max(rows, min(SLOT_BYTES // row_bytes, max(clients, rows * 2)), 2 * self.workers)
            self._pool = Pool(self.federation, self.bench, self.workers, slots, self.deadline)
        return self._pool


def _singly(group: Sequence[Order]) -> list[list[Order]]:
    return [[order] for order in group]


def _cuts(n: int, size: int = 128) -> list[tuple[int, int]]:
    return [(start, min(start + size, n)) for start in range(0, n, size)] or [(0, 0)]
