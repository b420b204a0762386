"""Child processes under watch: where they connect to, which data files they open, whether one stays behind."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_HOOK = '''"""Loaded by every Python process of a test: writes down connections and opened data files."""

import os
import sys

_log = os.environ.get("LEAKLINE_WATCH")


def _hook(event, args):
    if event in ("socket.connect", "socket.sendto"):
        what = ("connect", args[1])
    elif event == "open" and isinstance(args[0], str) and args[0].endswith(".npz"):
        what = ("open", args[0])
    else:
        return
    with open(_log, "a") as file:
        file.write(repr((*what, os.environ.get("FLWR_HOME", ""), os.path.basename(sys.argv[0]))) + "\\\\n")


if _log:
    sys.addaudithook(_hook)
'''.replace("\\\\n", "\\n")
_ALONE = """
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    fcntl.ioctl(s, 0x8914, struct.pack("16sh", b"lo", 0x41))
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Brings loopback up in a network namespace of one's own, then becomes the command."""


@dataclass(frozen=True)
class Watch:
    """A log of what all processes of a test did."""

    log: Path

    def entries(self, kind: str) -> list[tuple]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [entry for line in lines if (entry := ast.literal_eval(line))[0] == kind]

    def abroad(self) -> list[tuple]:
        """Connections to anywhere but this machine."""
        return [e for e in self.entries("connect") if not _is_here(e[1])]

    def left_behind(self, seconds: float = 15.0) -> list[str]:
        """Processes of this test that are still there after a while (they all carry the log's name)."""
        until = time.monotonic() + seconds
        while (found := self._alive()) and time.monotonic() < until:
            time.sleep(0.5)
        return found

    def _alive(self) -> list[str]:
        mark, found = str(self.log).encode(), []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if mark in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200])
            except OSError:
                continue
        return found


def _is_here(address: object) -> bool:
    return isinstance(address, str | bytes) or address[0] in ("127.0.0.1", "::1", "localhost")  # text: a local socket


def watch(folder: Path, monkeypatch) -> Watch:
    """Watch every process that is started from now on."""
    hooks = folder / "hooks"
    hooks.mkdir(parents=True)
    (hooks / "sitecustomize.py").write_text(_HOOK)
    monkeypatch.setenv("PYTHONPATH", f"{hooks}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("LEAKLINE_WATCH", str(folder / "watch.log"))
    return Watch(folder / "watch.log")


def alone() -> list[str]:
    """What to put before a command so that it sees no network but loopback; nothing where that is not allowed."""
    probe = ["unshare", "-rn", sys.executable, "-c", _ALONE]
    try:
        allowed = subprocess.run([*probe, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        allowed = False
    return probe if allowed else []


def leakline(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "leakline.cli", *arguments]
