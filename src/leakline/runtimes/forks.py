"""Jobs in forked processes of one thread each, for work that keeps its own notes.

A job inherits all it needs by forking. While it works it tells how far it is, in JSON over a pipe; what it found it
leaves in files of its own, so that nothing has to come back, and a job that was killed can go on from them.
"""

from __future__ import annotations

import json
import mmap
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from leakline.errors import StackError
from leakline.runtimes.client import reason_of
from leakline.runtimes.machine import die_with, tune_allocator

Tells = Callable[[Mapping[str, Any]], None]
Job = Callable[[Tells, Callable[[], bool]], None]
"""Works until it is done, or until the second argument says that it is to stop; tells its progress to the first."""

FORKABLE = sys.platform == "linux"
POLL = 0.2
"""Seconds between two looks at ``stop``."""


def side_by_side(
    jobs: Sequence[Job],
    workers: int,
    hears: Callable[[int, Mapping[str, Any]], None] = lambda number, told: None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Run all jobs, ``workers`` at a time. ``stop`` is asked here and passed on; jobs that wait are not begun then."""
    context = multiprocessing.get_context("fork")
    stopped = mmap.mmap(-1, 1)  # one byte that the children see too
    waiting = deque(enumerate(jobs))
    running: dict[Connection, tuple[int, BaseProcess]] = {}
    try:
        while running or (waiting and not stopped[0]):
            while waiting and len(running) < workers and not stopped[0]:
                number, job = waiting.popleft()
                ours, theirs = context.Pipe(duplex=False)
                begun = context.Process(target=_work, args=(job, theirs, stopped, os.getpid()), daemon=True)
                begun.start()
                theirs.close()
                running[ours] = (number, begun)
            for pipe in wait(list(running), POLL):
                assert isinstance(pipe, Connection)
                number, process = running[pipe]
                try:
                    told = json.loads(pipe.recv_bytes())
                except (EOFError, ConnectionResetError):
                    process.join()
                    del running[pipe]
                    pipe.close()
                    if process.exitcode:
                        raise _died(process.exitcode) from None
                    continue
                if "failed" in told:
                    raise RuntimeError(told["failed"])
                hears(number, told)
            if stop():
                stopped[0] = 1
    finally:
        for pipe, (_, process) in running.items():
            process.kill()
            process.join()
            pipe.close()


def _work(job: Job, pipe: Connection, stopped: mmap.mmap, parent: int) -> None:
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted too, and ends this one
    torch.set_num_threads(1)
    tune_allocator()

    def tells(what: Mapping[str, Any]) -> None:
        pipe.send_bytes(json.dumps(what).encode())

    try:
        job(tells, lambda: bool(stopped[0]))
    except Exception as error:
        tells({"failed": reason_of(error)})


def _died(code: int) -> StackError:
    return StackError(
        f"a worker died (exit code {code}; out of memory?)",
        "processes side by side",
        "use fewer --workers, or a smaller problem; what was finished is kept",
    )
