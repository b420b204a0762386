"""Forked workers with one thread each, and the memory that they share with the process that forked them.

Workers inherit data and model by forking, so nothing is copied; weights and updates cross in shared memory that was
mapped before the fork. Orders and figures cross a pipe as JSON, clients' memories as safetensors.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import mmap
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import Tensor

from leakline.bench.memory import pack, unpack
from leakline.bench.training import Bench
from leakline.federation import Federation
from leakline.messages import Dropped, Memory, Order, Update, problem_with
from leakline.runtimes.client import answer_safely, reason_of
from leakline.runtimes.machine import die_with, give_back, tune_allocator
from leakline.weights import Layout, Weights


def _shared(values: int) -> Tensor:
    """A float32 vector that forked children see too (an anonymous mapping: no file, no /dev/shm limit)."""
    return torch.frombuffer(mmap.mmap(-1, max(4 * values, 4)), dtype=torch.float32)[:values]


_Answer = Dropped | Mapping[str, Any]
"""What a worker says of a client: why it does not count, or which slot holds its update and what it reports."""


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    job: int | None = None
    group: list[Order] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    due: float = math.inf
    """When it must have answered, by the clock of `time.monotonic`."""

    @property
    def left(self) -> float | None:
        """The seconds until then; None: any number."""
        return None if math.isinf(self.due) else max(0.0, self.due - time.monotonic())


class Pool:
    """Forked workers and the memory they share with this process.

    ``deadline``: the seconds that a client (or a group that trains together) may take for its turn.
    """

    def __init__(self, federation: Federation, bench: Bench, workers: int, slots: int, deadline: float) -> None:
        self.federation, self.bench, self.slots_count, self.deadline = federation, bench, slots, deadline
        self.layout = federation.wire
        self.sent = _shared(self.layout.size)
        self.slots = _shared(slots * self.layout.size).view(slots, self.layout.size)
        self.context = multiprocessing.get_context("fork")
        self.workers = [self._start() for _ in range(workers)]

    def _start(self) -> _Worker:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=self._serve, args=(theirs, os.getpid()), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def close(self) -> None:
        """End the workers at once."""
        for worker in self.workers:
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()

    # in this process

    def exchange(self, groups: Sequence[list[Order]], memories: dict[str, Memory]) -> Iterator[Update | Dropped]:
        """Hand groups to idle workers, and answers on in order."""
        self.sent.copy_(groups[0][0].weights.vector)
        pending: deque[int] = deque(range(len(groups)))
        ready: dict[int, tuple[list[_Answer], list[int]]] = {}
        free = list(range(self.slots_count))
        for turn in range(len(groups)):
            while turn not in ready:
                self._dispatch(groups, memories, pending, free)
                for worker in self._wait():
                    job = worker.job
                    assert job is not None
                    ready[job] = (self._receive(worker, groups[job], memories), worker.slots)
                    worker.job = None
            answers, used = ready.pop(turn)
            taken = [answer if isinstance(answer, Dropped) else self._taken(answer) for answer in answers]
            free += used
            self._dispatch(groups, memories, pending, free)
            while taken:  # one that was handed on is not held here while others train
                yield taken.pop(0)
            give_back(self.layout.size)

    def _taken(self, answer: Mapping[str, Any]) -> Update:
        """An update that is the caller's to keep: out of its slot, when its turn has come and not before."""
        slot, empty = answer["slot"], Weights(Layout(()), torch.zeros(0))
        delta = empty if slot is None else Weights(self.layout, self.slots[slot].clone())
        metrics = {k: math.nan if v is None else v for k, v in answer["metrics"].items()}
        return Update(answer["client"], delta, answer["examples"], answer["steps"], metrics, answer["part"])

    def _dispatch(
        self, groups: Sequence[list[Order]], memories: dict[str, Memory], pending: deque[int], free: list[int]
    ) -> None:
        for worker in self.workers:
            if not pending or worker.job is not None:
                continue
            group = groups[pending[0]]
            need = sum(self.federation.stack.sends(order.notes) for order in group)
            if len(free) < need:
                return
            worker.job, worker.group = pending.popleft(), group
            worker.slots = [free.pop() for _ in range(need)]
            self._order(worker, group, worker.slots, memories)

    def _order(self, worker: _Worker, group: list[Order], slots: list[int], memories: dict[str, Memory]) -> None:
        packed = [pack(memories.get(order.client, {})) for order in group]
        head = {
            "do": group[0].kind, "clients": [o.client for o in group], "round": group[0].round,
            "notes": dict(group[0].notes), "slots": slots, "memories": [len(p) for p in packed],
        }  # fmt: skip
        worker.due = time.monotonic() + self.deadline
        self._send(worker, head, b"".join(packed))

    def _send(self, worker: _Worker, head: dict[str, Any], body: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a dead worker is noticed by _wait
            worker.pipe.send_bytes(json.dumps(head).encode())
            worker.pipe.send_bytes(body)

    def _wait(self) -> list[_Worker]:
        busy = {worker.pipe: worker for worker in self.workers if worker.job is not None}
        first = min(busy.values(), key=lambda worker: worker.due)
        ready = wait(list(busy), first.left)
        return [busy[pipe] for pipe in ready] or [first]  # type: ignore[index]

    def _receive(self, worker: _Worker, group: list[Order], memories: dict[str, Memory]) -> list[_Answer]:
        answers: list[_Answer] = []
        late = not worker.pipe.poll(worker.left)
        try:
            if late:
                worker.process.kill()
                raise EOFError
            head = json.loads(worker.pipe.recv_bytes())
            body = worker.pipe.recv_bytes()
        except (EOFError, ConnectionResetError):
            code = self._replace(worker)
            if len(group) > 1:  # one of them was too much for it: each tries again alone, and that one shows itself
                slots = iter(worker.slots)
                for order in group:
                    own = list(itertools.islice(slots, self.federation.stack.sends(order.notes)))
                    self._order(worker, [order], own, memories)
                    answers += self._receive(worker, [order], memories)
                return answers
            died = f"its worker died (exit code {code}; out of memory?)"
            return [Dropped(group[0].client, f"took longer than {self.deadline:g} seconds" if late else died)]
        start = 0
        for order, size in zip(group, head["memories"], strict=True):
            if size:
                memories[order.client] = unpack(body[start : start + size])
            start += size
        answers += [Dropped(each["client"], each["dropped"]) if "dropped" in each else each for each in head["answers"]]
        return answers

    def _replace(self, worker: _Worker) -> int | None:
        """A fresh process in the place of one that died; returns how that one ended."""
        worker.process.join()
        code = worker.process.exitcode
        fresh = self._start()
        worker.pipe.close()
        worker.process, worker.pipe = fresh.process, fresh.pipe
        return code

    def outputs(self, weights: Weights, cuts: Sequence[tuple[int, int]]) -> Tensor:
        """Outputs on the server's test data, cut among the workers."""
        self.sent.copy_(weights.vector)
        pending = deque(range(len(cuts)))
        parts: dict[int, Tensor] = {}
        while len(parts) < len(cuts):
            for worker in self.workers:
                if pending and worker.job is None:
                    worker.job, worker.due = pending.popleft(), math.inf
                    self._send(worker, {"do": "outputs", "rows": cuts[worker.job]}, b"")
            for worker in self._wait():
                assert worker.job is not None
                try:
                    head, body = json.loads(worker.pipe.recv_bytes()), worker.pipe.recv_bytes()
                except (EOFError, ConnectionResetError):  # it died: its cut is computed here, which cannot loop
                    self._replace(worker)
                    head, body = self._outputs({"rows": cuts[worker.job]})
                if "failed" in head:
                    raise RuntimeError(head["failed"])
                parts[worker.job] = torch.frombuffer(bytearray(body), dtype=torch.float32).view(head["shape"])
                worker.job = None
        return torch.cat([parts[i] for i in range(len(cuts))])

    # in a worker

    def _serve(self, pipe: Connection, parent: int) -> None:
        die_with(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        torch.set_num_threads(1)
        tune_allocator()
        while True:
            try:
                head, body = json.loads(pipe.recv_bytes()), pipe.recv_bytes()
            except EOFError:
                return
            reply, memory = self._outputs(head) if head["do"] == "outputs" else self._answer(head, body)
            pipe.send_bytes(json.dumps(reply).encode())
            pipe.send_bytes(memory)
            give_back(self.layout.size)

    def _outputs(self, head: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        try:
            assert self.federation.task.test is not None
            weights = Weights(self.layout, self.sent)
            out = self.bench.outputs(weights, self.federation.task.test, slice(*head["rows"])).float()
        except Exception as error:
            return {"failed": reason_of(error)}, b""
        return {"shape": list(out.shape)}, out.contiguous().numpy().tobytes()

    def _answer(self, head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        weights = Weights(self.layout, self.sent)
        turns, start = [], 0
        for client, size in zip(head["clients"], head["memories"], strict=True):
            memory = unpack(body[start : start + size])
            turns.append((Order(client, head["round"], weights, head["notes"], head["do"]), memory))
            start += size
        answers: list[dict[str, Any]] = []
        slots = deque(head["slots"])
        for each in answer_safely(self.federation, self.bench, turns):
            if isinstance(each, Dropped):
                answers.append({"client": each.client, "dropped": each.reason})
                continue
            if bad := _unsendable(each):
                answers.append({"client": each.client, "dropped": bad})
                continue
            slot = None
            if each.delta.layout.entries:
                if each.delta.layout != self.layout or not slots:
                    answers.append({"client": each.client, "dropped": "its update does not fit the model"})
                    continue
                slot = slots.popleft()
                self.slots[slot].copy_(each.delta.vector)
            metrics = {k: v if math.isfinite(v) else None for k, v in each.metrics.items()}
            answers.append({
                "client": each.client, "slot": slot, "examples": each.examples, "steps": each.steps,
                "metrics": metrics, "part": each.part,
            })  # fmt: skip
        packed = [pack(memory) for _, memory in turns]
        return {"answers": answers, "memories": [len(p) for p in packed]}, b"".join(packed)


def _unsendable(update: Update) -> str | None:
    """Why an update of somebody's own defence cannot be carried; what it is worth is for the server's guard to say."""
    return problem_with(update, update.delta) if type(update.client) is str else "its name is no text"
