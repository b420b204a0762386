"""A Ray cluster that is joined or begun. Nothing here needs torch: its workers load it while the study is read here."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import socket
from typing import Any

from leakline.errors import RuntimeMissing, StackError
from leakline.names import printable
from leakline.runtimes.machine import cores

KNOCK_SECONDS = 5.0
"""How long an address may take to answer at all."""
WARM = 64
"""How many workers at most are told to load what cells need before there are any."""


def need_ray() -> None:
    """Stop with the pip line where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise RuntimeMissing("ray is not installed", "--on ray", 'pip install "leakline[cluster]"')


def load() -> None:
    """Load all that a cell needs, in a worker."""
    importlib.import_module("leakline.study.ray_task")


def begin(address: str = "") -> bool:
    """Join a cluster or begin one, unless that was done; its workers load what cells need. Returns whether it is ours.

    What is refused here is refused before there is a run directory.
    """
    import ray

    if ray.is_initialized():
        return False
    _connect(ray, address)
    with contextlib.suppress(Exception):  # a node that cannot do this will say so of a cell
        for _ in range(min(int(ray.cluster_resources().get("CPU", 0.0)), WARM)):
            ray.remote(num_cpus=1, max_retries=0)(load).remote()
    return True


def _connect(ray: Any, address: str) -> None:
    """Join a cluster, or begin one on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    address = address or os.environ.get("RAY_ADDRESS", "")
    try:
        if address:
            _knock(address)
            ray.init(address=address, **quiet)
        else:
            ray.init(address="local", num_cpus=cores(), include_dashboard=False, **quiet)
    except Exception as error:  # it is known by its text alone
        with contextlib.suppress(Exception):
            ray.shutdown()  # what was refused half way is still held
        what, where = line_of(error), address or "this machine"
        if "version" in what.lower():
            fix = "have one Ray and one Python on all machines"
            raise StackError(f"this Ray cluster is of another version: {what}", where, fix) from error
        raise StackError(f"Ray does not answer: {what}", where, "start it, or check --address") from error


def _knock(address: str) -> None:
    """See whether somebody is there at all: Ray itself would go on asking for a minute."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_SECONDS).close()


def line_of(error: BaseException) -> str:
    """An error in one line."""
    return printable(" ".join(f"{type(error).__name__}: {error}".split()), 300)
