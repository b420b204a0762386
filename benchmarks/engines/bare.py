"""Loops without any framework: ``bare.py FOLDER JOB OUT best|plain|sequential``.

``plain`` is what one writes first: two forked workers, one thread each, everything else as torch has it.
``best`` does leakline's steps the same way: the same workers kept for all rounds, allocator thresholds,
channels-last, the fused Adam kernel, weights and updates in shared memory (job A only). ``sequential`` is one
process, one thread.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
from multiprocessing.connection import Connection, wait

import torch
from jobs import RATE, Record, Shared, arguments, optimiser, vector
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def thresholds() -> None:
    """Keep freed blocks in the heap (glibc: mmap threshold 1 GiB, no trimming, 64 MiB of head room)."""
    libc = ctypes.CDLL(None)
    for option, value in ((-3, 2**30), (-1, 2**31 - 1), (-2, 64 * 2**20)):
        libc.mallopt(option, value)


class FusedAdam:
    """torch's fused Adam kernel alone: ``torch.optim`` imports the compiler at its first use, a second or more."""

    def __init__(self, parameters: list[nn.Parameter], rate: float) -> None:
        """Zero moments."""
        self.parameters, self.rate = parameters, rate
        self.moments = [[torch.zeros_like(p) for p in parameters] for _ in range(2)]
        self.counts = [torch.zeros(()) for _ in parameters]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step."""
        torch._foreach_add_(self.counts, 1)
        torch._fused_adam_(
            self.parameters, [p.grad for p in self.parameters], *self.moments, [], self.counts, lr=self.rate,
            beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip


def turn(shared: Shared, net: nn.Module, start: Tensor, index: int, client: int, best: bool) -> Tensor:
    """One client's local training; the change comes back."""
    with torch.no_grad():
        at = 0
        for p in net.parameters():
            p.copy_(start[at : at + p.numel()].view(p.shape))
            at += p.numel()
    own = list(net.parameters())
    opt = FusedAdam(own, RATE["A"]) if best else optimiser(shared.job, own)
    if shared.job == "A":
        torch.manual_seed(shared.seeds[index][client])
    for rows in shared.steps(index, client):
        x, y = shared.x[client, rows], shared.y[client, rows]
        opt.zero_grad(set_to_none=True)
        cross_entropy(net(x.contiguous(memory_format=torch.channels_last) if best else x), y).backward()
        opt.step()
    return vector(net).sub_(start)


def serve(shared: Shared, pipe: Connection, weights: Tensor, slots: Tensor, best: bool) -> None:
    """A worker: answer (round, client) until the pipe closes."""
    torch.set_num_threads(1)
    net = shared.model().train()
    net = net.to(memory_format=torch.channels_last) if best else net
    while True:
        index, client = pipe.recv()
        slots[client].copy_(turn(shared, net, weights, index, client, best))
        pipe.send(client)


def parallel(shared: Shared, best: bool) -> tuple[Record, Tensor]:
    """One worker a core, and the mean of what they leave in shared memory."""
    if best:
        thresholds()
    torch.set_num_threads(1)
    _, _, weights = shared.x, shared.y, shared.start.clone().share_memory_()
    slots = torch.empty(len(shared.cohorts[0]), len(weights)).share_memory_()
    context, pipes = multiprocessing.get_context("fork"), []
    for _ in range(len(os.sched_getaffinity(0))):
        ours, theirs = context.Pipe()
        context.Process(target=serve, args=(shared, theirs, weights, slots, best), daemon=True).start()
        pipes.append(ours)
    record = Record()
    for index, cohort in enumerate(shared.cohorts):
        waiting = list(cohort)
        for pipe in pipes:
            pipe.send((index, waiting.pop(0)))
        left = len(cohort)
        while left:
            for pipe in wait(pipes):
                pipe.recv()
                left -= 1
                if waiting:
                    pipe.send((index, waiting.pop(0)))
        total = torch.zeros_like(weights)
        for client in cohort:  # in this order and no other, so that a run can be compared bit by bit
            total.add_(slots[client])
        weights.add_(total, alpha=1 / len(cohort))
        record.lap()
    return record, weights


def sequential(shared: Shared) -> tuple[Record, Tensor]:
    """One client after another."""
    torch.set_num_threads(1)
    net, weights, record = shared.model().train(), shared.start.clone(), Record()
    for index, cohort in enumerate(shared.cohorts):
        total = torch.zeros_like(weights)
        for client in cohort:
            total.add_(turn(shared, net, weights, index, client, best=False))
        weights.add_(total, alpha=1 / len(cohort))
        record.lap()
    return record, weights


def main() -> None:
    """Run the job and leave its record."""
    shared, out, (variant,) = arguments()
    record, weights = sequential(shared) if variant == "sequential" else parallel(shared, variant == "best")
    record.write(out, weights)


if __name__ == "__main__":
    main()
