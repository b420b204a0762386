"""Who works on numbered jobs: this process, or a crew of forked ones that take one job at a time each.

Unlike those of `forks`, a process of a crew lives through many jobs, so that imports and caches are paid for once; it
may have workers of its own; and where one dies, whoever waits is told which job it had, and the next job gets a fresh
one. Jobs go out as numbers, and what is told of them comes back as JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal, Protocol

from leakline.runtimes.forks import Tells
from leakline.runtimes.machine import die_with, tune_allocator

Numbered = Callable[[int, Tells], Mapping[str, Any]]
"""Does the job of that number, tells its progress to the second argument, and returns its answer."""
DYING = 5.0
"""Seconds that a process whose pipe is closed has to end, so that its exit code can be said."""


@dataclass(frozen=True)
class Heard:
    """What is heard of a job: how far it is, its answer, or that whoever did it died, and of what."""

    number: int
    told: Mapping[str, Any]
    ended: Literal["", "done", "died"] = ""


class Hands(Protocol):
    """Who works on jobs, at most ``size`` at once."""

    size: int

    @property
    def free(self) -> bool:
        """Whether another job can be given."""

    def give(self, number: int) -> None:
        """Hand out a job."""

    def hear(self, seconds: float) -> Sequence[Heard]:
        """What is heard of the jobs; waits for at most so long if there is nothing yet."""

    def close(self) -> None:
        """End all that work, at once."""


class Here:
    """This process: a job is done while its answer is waited for."""

    size = 1

    def __init__(self, work: Numbered) -> None:
        self.work, self.number = work, -1

    @property
    def free(self) -> bool:
        """Whether there is no job."""
        return self.number < 0

    def give(self, number: int) -> None:
        """Take a job."""
        self.number = number

    def hear(self, seconds: float) -> Sequence[Heard]:
        """Do the job."""
        if self.free:
            time.sleep(seconds)
            return []
        number, self.number = self.number, -1
        return [Heard(number, self.work(number, lambda told: None), "done")]

    def close(self) -> None:
        """There is nothing to end."""


class Crew:
    """Forked processes, at most ``size``, each begun when there is a job for it."""

    def __init__(self, work: Numbered, size: int) -> None:
        self.work, self.size = work, size
        self.context = multiprocessing.get_context("fork")
        self.idle: list[tuple[Connection, BaseProcess]] = []
        self.busy: dict[Connection, tuple[int, BaseProcess]] = {}

    @property
    def free(self) -> bool:
        """Whether fewer are at work than may be."""
        return len(self.busy) < self.size

    def give(self, number: int) -> None:
        """Hand a job to a process that has none, or to a new one."""
        pipe, process = self.idle.pop() if self.idle else self._begin()
        try:
            pipe.send_bytes(json.dumps(number).encode())
        except (BrokenPipeError, ConnectionResetError):  # it died without a job
            _end(pipe, process)
            self.give(number)
            return
        self.busy[pipe] = (number, process)

    def hear(self, seconds: float) -> Sequence[Heard]:
        """One message of each process that has said something."""
        return [self._heard(pipe) for pipe in wait(list(self.busy), seconds) if isinstance(pipe, Connection)]

    def _heard(self, pipe: Connection) -> Heard:
        number, process = self.busy[pipe]
        try:
            told = json.loads(pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            process.join(DYING)
            del self.busy[pipe]
            _end(pipe, process)
            return Heard(number, {"died": f"exit code {process.exitcode}; out of memory?"}, "died")
        if "answer" not in told:
            return Heard(number, told["told"])
        del self.busy[pipe]
        self.idle.append((pipe, process))
        return Heard(number, told["answer"], "done")

    def close(self) -> None:
        """End all processes at once; whatever they were doing is as if they had been killed."""
        for pipe, process in [*self.idle, *((pipe, process) for pipe, (_, process) in self.busy.items())]:
            _end(pipe, process)
        self.idle, self.busy = [], {}

    def _begin(self) -> tuple[Connection, BaseProcess]:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=self._serve, args=(theirs, os.getpid()))
        process.start()
        theirs.close()
        return ours, process

    def _serve(self, pipe: Connection, parent: int) -> None:
        die_with(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted too, and ends this one
        tune_allocator()

        def tells(what: Mapping[str, Any]) -> None:
            pipe.send_bytes(json.dumps({"told": what}).encode())

        while True:
            answer = self.work(json.loads(pipe.recv_bytes()), tells)
            pipe.send_bytes(json.dumps({"answer": answer}).encode())


def _end(pipe: Connection, process: BaseProcess) -> None:
    process.kill()
    process.join()
    pipe.close()
