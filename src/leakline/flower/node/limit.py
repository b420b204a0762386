"""The longest that a turn may take at a node: a ClientApp that hangs would keep its node from every later study."""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from leakline.errors import ClientLost

GRACE = 30.0
"""Seconds after which a turn that did not end when it was told to ends with its process."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """End what is inside after so many seconds, with a `ClientLost`; 0: never.

    Code that swallows the error, or hangs where no Python runs, is ended with its process after `GRACE` seconds more:
    the SuperNode then answers for it, and takes the next order. Where it hung is in the node's own log.
    """
    if not seconds or not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(signum: int, frame: FrameType | None) -> None:
        raise ClientLost(f"it took longer than {seconds:g} s, the most that its node allows")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)
