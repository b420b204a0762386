"""A node's SuperNode, started as its file says."""

from __future__ import annotations

import os
from pathlib import Path

from leakline.errors import StudyError
from leakline.flower.node.settings import TEMPLATE, NodeSettings
from leakline.flower.processes import environment, program
from leakline.flower.trial.certificates import make_node_key


def command(settings: NodeSettings) -> list[str]:
    """The SuperNode's command line."""
    told = " ".join(f'{k}="{v}"' if isinstance(v, str) else f"{k}={v}" for k, v in settings.config().items())
    line = ["flower-supernode", "--superlink", settings.superlink, "--host", "127.0.0.1", "--port", str(settings.port)]
    line += ["--node-config", told]
    if settings.insecure:
        return [*line, "--insecure"]
    line += ["--root-certificates", str(settings.path("root_certificates"))]
    return [*line, "--auth-supernode-private-key", str(settings.path("key"))] if settings.key else line


def become(settings: NodeSettings) -> None:
    """Become the SuperNode: this process is the one that a service manager watches, and does not return."""
    home = settings.path("state") / "flower" if settings.state else settings.file.absolute().parent / "flower"
    line = command(settings)
    os.execve(program(line[0]), line, environment(home))  # noqa: S606


def write_new(file: Path, client: str) -> tuple[Path, Path]:
    """A node's file to fill in, and the key pair that it will be known by; returns (file, public key)."""
    if file.exists():
        raise StudyError("there is such a file already", file.name, "give a new name")
    file.parent.mkdir(parents=True, exist_ok=True)
    _, public = make_node_key(file.parent, f"{client}.key")
    file.write_text(TEMPLATE.format(client=client, file=file.name), encoding="utf-8")
    return file, public
