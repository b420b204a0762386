"""The client's side of a federation: one turn, from the order that arrives to the updates that may leave."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch

from leakline.bench.ragged import GROUP, fits_ragged, train_ragged
from leakline.bench.together import alike, fewest, fits_together, train_together
from leakline.bench.training import Bench, Gradient, Job, Plan, Trained, train
from leakline.federation import Federation
from leakline.messages import Dropped, Memory, Order, Update
from leakline.names import printable
from leakline.randomness import Stream
from leakline.weights import Layout, Weights

TOGETHER = 25
"""How many small clients train in one vectorised pass. Part of the arithmetic, so not a matter of workers."""
MANY_PARTS = 6
"""From so many parts on, sub-clients of a small model train in one pass: with four it gains nothing or costs (measured
in benchmarks/intermediaries.py). Part of the arithmetic too."""


def answer(federation: Federation, bench: Bench, order: Order, memory: Memory) -> list[Update]:
    """One client's turn, the only client-side entry: train (or evaluate) and return what may leave."""
    return answer_many(federation, bench, [(order, memory)])[0]


def answer_many(federation: Federation, bench: Bench, turns: Sequence[tuple[Order, Memory]]) -> list[list[Update]]:
    """The turns of several clients, trained together where that computes the same thing faster."""
    chosen = [federation.clients[order.client].canary is not None for order, _ in turns]
    if any(chosen) and turns[0][0].kind != "evaluate":
        rest = [turn for turn, canary in zip(turns, chosen, strict=True) if not canary]
        others = iter(answer_many(federation, bench, rest))
        return [
            _recite(federation, *turn) if canary else next(others) for turn, canary in zip(turns, chosen, strict=True)
        ]
    if len(turns) > 1 and federation.batches:
        return [answer_many(federation, bench, [turn])[0] for turn in turns]
    if turns and turns[0][0].kind == "evaluate":
        return [[_evaluate(federation, bench, order, memory)] for order, memory in turns]
    jobs = [_jobs(federation, bench, order, memory) for order, memory in turns]
    most = max((len(part) for part in jobs), default=1)
    alone = turns[0] if len(turns) == 1 else None
    trained = _train(federation, bench, [job for part in jobs for job in part], alone, most)
    if any(order.round == 0 for order, _ in turns):
        bench.check_constants()
    results, at = [], 0
    for (order, memory), parts in zip(turns, jobs, strict=True):
        results.append(_finish(federation, order, memory, parts, trained[at : at + len(parts)]))
        at += len(parts)
    return results


def _recite(federation: Federation, order: Order, memory: Memory) -> list[Update]:
    """A canary's turn: what it was told to send, in as many parts as the stack makes of a client; then as anybody's."""
    client, wire = federation.clients[order.client], federation.wire
    assert client.canary is not None
    turns = federation.turns_of(order.client, order.round, memory)
    federation.stack.accept(order, turns)
    free = sum(entry.size for entry in wire.entries if not entry.buffer)  # parameters come first
    vector = torch.zeros(wire.size)
    vector[:free] = client.canary.change(order.round, free)
    parts = federation.stack.split(len(client.train), order, turns)
    sizes = [len(client.train)] if parts is None else [len(rows) for rows in parts]
    updates = []
    for place, size in enumerate(sizes):
        update = Update(order.client, Weights(wire, vector.clone()), size, 1, part=place)
        own = federation.turns_of(order.client, order.round, memory, None if len(sizes) == 1 else place)
        updates.append(federation.stack.release(update, own))
    return updates


def answer_safely(
    federation: Federation, bench: Bench, turns: Sequence[tuple[Order, Memory]]
) -> Iterator[Update | Dropped]:
    """The turns of several clients; one whose code raises is dropped, and the others do not suffer for it."""
    try:
        answers = [update for updates in answer_many(federation, bench, turns) for update in updates]
        if strange := [type(update).__name__ for update in answers if not isinstance(update, Update)]:
            raise TypeError(f"a defence released a {strange[0]} instead of an update")
        while answers:  # one that was handed on is not held here while the next client trains
            yield answers.pop(0)
    except (Exception, SystemExit) as error:  # a client's model or data may raise anything, and may want to end us
        if len(turns) == 1:
            yield Dropped(turns[0][0].client, reason_of(error))
            return
        for turn in turns:
            yield from answer_safely(federation, bench, [turn])


def local_weights(federation: Federation, bench: Bench, order: Order, memory: Memory) -> Weights:
    """What a client starts from: the weights sent, and the layers that it keeps to itself."""
    if federation.wire == federation.layout:
        return order.weights
    private = federation.layout.only(lambda name: not federation.shares(name))
    kept = memory.get("private")
    own = Weights(private, kept) if kept is not None else bench.initial.only(lambda n: not federation.shares(n))
    return (order.weights | own).arranged(federation.layout)


def _jobs(federation: Federation, bench: Bench, order: Order, memory: Memory) -> list[Job]:
    client = federation.clients[order.client]
    if len(client.train) == 0:
        raise ValueError("it has no examples")
    turns = federation.turns_of(order.client, order.round, memory)
    federation.stack.accept(order, turns)
    start = local_weights(federation, bench, order, memory)
    parts = federation.stack.split(len(client.train), order, turns)
    if parts is None:
        return [Job(start, client.train, Stream(federation.seed, order.round, order.client, "train"), order.round)]
    return [
        Job(
            start,
            client.train.take(rows),
            Stream(federation.seed, order.round, order.client, f"train/{i}"),
            order.round,
        )
        for i, rows in enumerate(parts)
    ]


def _train(
    federation: Federation, bench: Bench, jobs: Sequence[Job], alone: tuple[Order, Memory] | None, parts: int
) -> list[Trained]:
    plan = federation.local_plan if alone is None else federation.plan_of(alone[0].client)
    if federation.stack.owner is not None:
        if alone is None:
            raise RuntimeError("a stack that forms its own gradients trains its clients one by one")
        return [_train_owned(federation, bench, job, plan, *alone, part) for part, job in _numbered(jobs)]
    together = federation.engine.together == "auto"
    if parts > 1:
        return [
            t
            for at in range(0, len(jobs), GROUP)
            for t in _train_parts(federation, bench, jobs[at : at + GROUP], parts, plan)
        ]
    sizes = [len(job.data) for job in jobs]
    enough = together and len(jobs) >= fewest(bench)
    if enough and alike(sizes, plan) and fits_together(bench, plan, max(sizes)):
        return [
            t for at in range(0, len(jobs), TOGETHER) for t in train_together(bench, jobs[at : at + TOGETHER], plan)
        ]
    if enough and fits_ragged(bench, plan, sizes):
        return train_ragged(bench, jobs, plan)
    return [train(bench, job, plan, _gradient(federation, bench, plan, len(job.data))) for job in jobs]


def _gradient(federation: Federation, bench: Bench, plan: Plan, examples: int) -> Gradient | None:
    """Gradients with the examples of a batch last, where that was asked for and is faster; None: torch's."""
    found = bench.batch_last if federation.engine.convolutions == "batch-last" else None
    return found if found is not None and found.fits(min(plan.batch or examples, examples)) else None


def _train_parts(federation: Federation, bench: Bench, jobs: Sequence[Job], parts: int, plan: Plan) -> list[Trained]:
    """Sub-clients: vectorised where they are many and a step is too small to fill a core, else one after another."""
    sizes = [len(job.data) for job in jobs]
    if parts >= MANY_PARTS and federation.engine.together == "auto" and fits_ragged(bench, plan, sizes):
        return train_together(bench, jobs, plan) if len(set(sizes)) == 1 else train_ragged(bench, jobs, plan)
    return [train(bench, job, plan) for job in jobs]


def _train_owned(
    federation: Federation, bench: Bench, job: Job, plan: Plan, order: Order, memory: Memory, part: int | None
) -> Trained:
    """One piece of training whose gradients a defence forms."""
    turns = federation.turns_of(order.client, order.round, memory, part, job.data.groups)
    stack = federation.stack
    gradient = stack.gradient(federation.objective.loss, turns)
    return train(bench, job, plan, gradient, stack.batches(len(job.data), plan, turns))


def _numbered(jobs: Sequence[Job]) -> Iterator[tuple[int | None, Job]]:
    """Each job with the number of its part; a client that did not split itself has none."""
    yield from enumerate(jobs) if len(jobs) > 1 else ((None, job) for job in jobs)


def _finish(
    federation: Federation, order: Order, memory: Memory, jobs: Sequence[Job], trained: Sequence[Trained]
) -> list[Update]:
    if federation.wire != federation.layout:
        # With several parts the private layers are their mean, weighted by examples.
        total = sum(len(job.data) for job in jobs)
        own = [
            (job.start + t.change).only(lambda n: not federation.shares(n)).vector
            for job, t in zip(jobs, trained, strict=True)
        ]
        memory["private"] = sum(
            (v * (len(job.data) / total) for v, job in zip(own, jobs, strict=True)), torch.zeros_like(own[0])
        )
    updates = []
    for (part, job), result in zip(_numbered(jobs), trained, strict=True):
        update = Update(
            order.client,
            result.change.only(federation.shares),
            len(job.data),
            result.steps,
            {"loss": result.loss},
            part or 0,
        )
        turns = federation.turns_of(order.client, order.round, memory, part)
        updates.append(federation.stack.release(update, turns))
    return updates


def _evaluate(federation: Federation, bench: Bench, order: Order, memory: Memory) -> Update:
    client = federation.clients[order.client]
    data = client.test if client.test is not None else client.train
    outputs = bench.outputs(local_weights(federation, bench, order, memory), data)
    figures = federation.objective.summary(outputs, data.y, data.groups)
    return Update(order.client, Weights(Layout(()), torch.zeros(0)), len(data), 0, figures)


def reason_of(error: BaseException) -> str:
    """Why a client failed, in one line and without paths (they may name patients)."""
    plain = re.sub(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-_])", "", str(error)).strip()  # colours of a terminal
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", plain.splitlines()[0]) if plain else ""  # addresses differ from run to run
    text = re.sub(r"'[^']*[\\/][^']*'|\"[^\"]*[\\/][^\"]*\"", "<path>", f"raised {type(error).__name__}: {text}")
    text = re.sub(r"(?:[A-Za-z]:)?[\\/][^\s'\"]+", "<path>", text)
    return printable(re.sub(r"[^\s'\"]+\.(?!\d)\w{1,8}(?=[\s'\",:;)]|$)", "<file>", text), 200)
