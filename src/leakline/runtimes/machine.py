"""The machine this runs on: its cores, how its memory is handed out, and how processes end together."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys


def tune_allocator() -> None:
    """Keep big blocks in the heap instead of mapping and unmapping them at every step.

    glibc returns blocks above a threshold to the system at once, and each fresh one costs page faults: a third of
    the time of training a small network on a CPU. Does nothing under another C library.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(ctypes.c_int(-3), ctypes.c_int(2**30))  # M_MMAP_THRESHOLD
        libc.mallopt(ctypes.c_int(-1), ctypes.c_int(2**31 - 1))  # M_TRIM_THRESHOLD
        libc.mallopt(ctypes.c_int(-2), ctypes.c_int(64 * 2**20))  # M_TOP_PAD


LARGE = 16_000_000
"""From so many values of a model on, memory that is kept for the next step is worth giving back between turns."""


def give_back(values: int) -> None:
    """Return free memory to the system, where a model has at least `LARGE` ``values``; see `tune_allocator`.

    What a turn leaves free lies in pieces between what is still used, and would stay: several copies of the model.
    """
    if values >= LARGE and sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(ctypes.c_size_t(0))


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def die_with(parent: int) -> None:
    """Ask Linux to kill this worker when its parent dies, however it dies."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)
