"""Flower's programs as child processes: started quietly, watched, and ended exactly, with all that they started."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leakline.errors import LeaklineError, RuntimeMissing

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on every system: Ray then stays on the loopback address
    "OMP_NUM_THREADS": "1",
}
"""No telemetry, no look for newer versions, nothing installed while running, nothing but loopback for Ray."""
NOWHERE = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1,localhost"),
}
"""For a simulation: Ray's dashboard asks three clouds whether it runs there, and has no switch for it."""


def environment(home: Path) -> dict[str, str]:
    """The environment of a Flower program that keeps its files in ``home``, and meets its helpers without a proxy."""
    home.mkdir(parents=True, exist_ok=True)
    here = str(Path(sys.executable).parent)  # Flower starts its helpers by name
    path = os.pathsep.join([here, os.environ.get("PATH", "")])
    direct = ",".join(
        filter(None, [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), "127.0.0.1", "localhost"])
    )
    own = {"PATH": path, "FLWR_HOME": str(home), "RAY_TMPDIR": str(home), "no_proxy": direct, "NO_PROXY": direct}
    return {**os.environ, **QUIET, **own}


def program(name: str) -> str:
    """The full path of one of Flower's programs."""
    path = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if path is None:
        raise RuntimeMissing(f"{name} is not installed", "Flower", 'pip install "leakline[flower]"')
    return path


def start(
    command: Sequence[str], env: Mapping[str, str], log: Path, cwd: Path | None = None, *, with_us: bool = False
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, so that Ctrl-C reaches only the one who started it.

    ``with_us``: on Linux it is told to end when this process ends, however that happens.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as file:
        return subprocess.Popen(
            [program(command[0]), *command[1:]], env=dict(env), stdout=file, stderr=file, stdin=subprocess.DEVNULL,
            start_new_session=True, cwd=cwd, preexec_fn=_end_with_parent if with_us else None,
        )  # fmt: skip


def _end_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG; it survives exec


def let_go(process: subprocess.Popen[bytes]) -> None:
    """A process that outlives us on purpose: from here on it is known by its number and birthday alone."""
    process.returncode = 0  # else Python warns that it was forgotten


def born(pid: int) -> str:
    """When a process began, by the system's own count: a number that is used again has another birthday."""
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] == "Z" else fields[19]
    if sys.platform == "linux":
        return ""
    return _ps(f"-p {pid} -o lstart=").strip()


def tree(pid: int) -> dict[int, str]:
    """A process and all its descendants, each with its birthday."""
    parents: dict[int, int] = {}
    if sys.platform == "linux":
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError, IndexError, ValueError):
                    parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    else:
        for line in _ps("-A -o pid=,ppid=").splitlines():
            child, parent = line.split()
            parents[int(child)] = int(parent)
    family, fresh = {pid}, {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - family
        family |= fresh
    return {member: day for member in family if (day := born(member))}


def _ps(options: str) -> str:
    return subprocess.run(["ps", *options.split()], capture_output=True, text=True, check=False).stdout


def stop(family: Mapping[int, str], grace: float = 10.0) -> None:
    """End processes by number and birthday: first politely, then for certain. One that is another by now is let be."""
    everyone = dict(family)
    for pid, day in family.items():
        if born(pid) == day:
            everyone |= tree(pid)
    for how, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        alive = [pid for pid, day in everyone.items() if born(pid) == day]
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, how)
        until = time.monotonic() + seconds
        while time.monotonic() < until and any(born(pid) == everyone[pid] for pid in alive):
            reap(alive)
            time.sleep(0.1)
    reap(everyone)


def reap(pids: Sequence[int] | Mapping[int, str]) -> None:
    """Bury children that have ended: while one is a zombie, those who watch for its end think that it lives."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError, OSError):
            os.waitpid(pid, os.WNOHANG)


def free_port() -> int:
    """A port of the loopback address that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def healthy(address: str, certificate: Path | None = None) -> bool:
    """Whether a SuperLink answers."""
    scheme, context = "http", None
    if certificate is not None:
        scheme, context = "https", ssl.create_default_context(cafile=str(certificate))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(f"{scheme}://{address}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def flwr(arguments: Sequence[str], env: Mapping[str, str], timeout: float = 120.0) -> dict[str, Any]:
    """One call of Flower's command line, and the JSON that it prints."""
    try:
        done = subprocess.run(
            [program("flwr"), *arguments, "--format", "json"], env=dict(env), capture_output=True, text=True,
            timeout=timeout, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise LeaklineError(f"flwr {arguments[0]} gave no answer within {timeout:.0f} s", "Flower") from error
    try:
        answer = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:
        answer = {}
    if done.returncode != 0 or not answer.get("success"):
        if "403 Forbidden" in f"{answer.get('error-message')}{done.stderr}{done.stdout}":
            raise LeaklineError(
                "a proxy lets nodes through to this SuperLink, and nobody else",
                "Flower",
                "give this command on the SuperLink's machine, with the address that it has there",
            )
        lines = (answer.get("error-message") or done.stderr or done.stdout).strip().splitlines()
        raise LeaklineError(
            f"flwr {arguments[0]} failed: {lines[-1] if lines else f'exit code {done.returncode}'}"[:300],
            "Flower",
            "is the SuperLink there, and is its certificate the one given?",
        )
    return dict(answer)
