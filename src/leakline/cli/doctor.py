"""`leakline doctor`: the state of this installation."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer

from leakline import __version__
from leakline.cli.console import out


def doctor() -> None:
    """Versions, devices, threads, disk, data: what a bug report or a colleague needs to know."""
    rows, healthy = installation()
    for name, text in rows:
        out.print(f"{name:<14} {text}")
    if not healthy:
        raise typer.Exit(1)


def installation() -> tuple[list[tuple[str, str]], bool]:
    """What this installation is made of, and whether it can work."""
    import importlib.metadata
    import platform
    import shutil

    import torch

    from leakline.study.device import resolve_device

    rows = [
        ("leakline", __version__),
        ("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("torch", f"{torch.__version__}, device {resolve_device('auto')}"),
        ("cores", str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())),
        ("free disk", f"{shutil.disk_usage('.').free / 2**30:.0f} GiB here"),
    ]
    for extra, package in (("flower", "flwr"), ("medical", "monai"), ("medical", "pydicom"), ("medical", "nibabel")):
        try:
            rows.append((package, importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            rows.append((package, f"not installed: pip install leakline[{extra}]"))
    folder = os.environ.get("LEAKLINE_DATA")
    files = sorted(p.stem for p in Path(folder).glob("*.npz")) if folder else []
    rows.append(
        (
            "LEAKLINE_DATA",
            ", ".join(files) if files else "not set" if not folder else "set, but no .npz file is there",
        )
    )
    rows.append(("network", "never used"))
    return rows, sys.version_info >= (3, 11)
