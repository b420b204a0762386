"""Machines of a test: a network namespace each, wired to the first one by a cable of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from leakline.flower.processes import _end_with_parent, born, stop, tree


@dataclass
class Machine:
    """One of them: its folder, and what it has running."""

    name: str
    space: str
    folder: Path
    env: Mapping[str, str]
    started: dict[str, subprocess.Popen] = field(default_factory=dict)
    family: dict[int, str] = field(default_factory=dict)
    starts: int = 0

    def _command(self, line: str) -> list[str]:
        plain = not set("|>") & set(line)  # then the shell need not stay
        return ["ip", "netns", "exec", self.space, "sh", "-c", f"exec {line}" if plain else line]

    def run(self, line: str, timeout: float = 600.0) -> subprocess.CompletedProcess:
        return subprocess.run(
            self._command(line), cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=timeout,
            check=False,
        )  # fmt: skip

    def start(self, line: str) -> Path:
        """Start what stays, and ends with this test even if that is killed; returns its log."""
        log, self.starts = self.folder / f"{self.starts}.log", self.starts + 1
        with open(log, "ab") as file:
            process = subprocess.Popen(
                self._command(line), cwd=self.folder, env=self.env, stdout=file, stderr=file, stdin=subprocess.DEVNULL,
                start_new_session=True, preexec_fn=_end_with_parent,
            )  # fmt: skip
        self.started[line] = process
        return log

    def kill(self, line: str) -> None:
        """As if its power failed: the process and all that it started, at once."""
        process = self.started.pop(line)
        for pid, day in tree(process.pid).items():
            if born(pid) == day:
                os.kill(pid, 9)
        process.wait()

    def runs(self, line: str) -> bool:
        return self.started[line].poll() is None

    def stop(self, line: str) -> None:
        """As its owner ends it: told to, and waited for."""
        process = self.started.pop(line)
        family = tree(process.pid)
        process.terminate()
        process.wait(timeout=600)
        stop(family)  # nobody, unless it left somebody behind

    def listens(self, port: int) -> bool:
        probe = f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)"
        return self.run(f'{sys.executable} -I -c "{probe}"').returncode == 0

    def off(self) -> None:
        for process in self.started.values():
            self.family |= tree(process.pid)
        stop(self.family)
        for process in self.started.values():
            process.wait()


def until(what: Callable[[], bool], seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.5)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@contextmanager
def machines(
    folder: Path, server: str, names: dict[str, list[str]], env: Callable[[str], Mapping[str, str]]
) -> Iterator[dict[str, Machine]]:
    """A server and others that can reach it and nobody else; ``names``: how each calls it. Skips where not allowed."""
    mark, made = f"ll-{secrets.token_hex(3)}", list[str]()
    there: dict[str, Machine] = {}
    try:
        try:
            for name in (server, *names):
                _ip("netns", "add", f"{mark}-{name}")
                made.append(f"{mark}-{name}")
                _ip("-n", f"{mark}-{name}", "link", "set", "lo", "up")
            for number, (name, hosts) in enumerate(names.items(), start=1):
                here, far = f"{mark}-{server}", f"{mark}-{name}"
                _ip("link", "add", f"v{number}", "netns", here, "type", "veth", "peer", "name", "eth0", "netns", far)
                for space, link, last in ((here, f"v{number}", 1), (far, "eth0", 2)):
                    _ip("-n", space, "address", "add", f"10.77.{number}.{last}/30", "dev", link)
                    _ip("-n", space, "link", "set", link, "up")
                Path(f"/etc/netns/{far}").mkdir(parents=True)
                lines = ["127.0.0.1 localhost", *(f"10.77.{number}.1 {host}" for host in hosts)]
                Path(f"/etc/netns/{far}/hosts").write_text("\n".join(lines) + "\n")
            _ip("netns", "exec", made[-1], "true")
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", "") or str(error)
            pytest.skip(f"network namespaces are not allowed here: {said.strip()[:120]}")
        for name in (server, *names):
            (folder / name).mkdir()
            there[name] = Machine(name, f"{mark}-{name}", folder / name, env(name))
        yield there
    finally:
        for machine in there.values():
            machine.off()
        for space in made:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
            shutil.rmtree(f"/etc/netns/{space}", ignore_errors=True)
