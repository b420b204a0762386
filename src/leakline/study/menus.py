"""The menus as rows, and the state of this installation."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import inspect
import os
import platform
import sys
from pathlib import Path
from typing import Any

from leakline import __version__
from leakline.study.device import resolve_device
from leakline.study.spec import built_in


def first_line(thing: Any) -> str:
    """The first line of a docstring."""
    return (inspect.getdoc(thing) or "").split("\n")[0].rstrip(".")


def settings(entry: Any) -> str:
    """What an entry can be given, with defaults."""
    from leakline.study.build import parameters

    shown = []
    for name, (_, default) in parameters(entry).items():
        value = (
            "..."
            if default is ...
            else ""
            if not isinstance(default, str | int | float | bool | tuple)
            else repr(default)
        )
        shown.append(f"{name}={value}" if value else name)
    return ", ".join(shown)


def menu(what: str) -> list[dict[str, str]]:
    """One row per entry of a menu."""
    if what == "strategies":
        from leakline.strategies import MENU as strategies

        return [{"name": k, "what": first_line(v), "settings": settings(v)} for k, v in strategies.items()]
    if what == "defences":
        from leakline.defences import MENU as defences
        from leakline.defences import hooks_of

        return [
            {"name": k, "what": first_line(v), "acts at": " ".join(hooks_of(v)), "settings": settings(v)}
            for k, v in defences.items()
        ]
    if what == "attacks":
        from leakline.attacks import MENU as attacks

        return [
            {"name": k, "what": first_line(v), "seat": str(getattr(v, "seat", "")), "settings": settings(v)}
            for k, v in attacks.items()
        ]
    if what == "datasets":
        from leakline.data import DATASETS

        return [
            {"name": k, "what": first_line(v), "here": _here(v), "settings": settings(v)} for k, v in DATASETS.items()
        ]
    if what == "partitioners":
        from leakline.data import PARTITIONERS

        return [{"name": k, "what": first_line(v), "settings": settings(v)} for k, v in PARTITIONERS.items()]
    if what == "models":
        from leakline.models import MENU as models

        return [{"name": k, "what": first_line(v), "settings": settings(v)} for k, v in models.items()]
    if what == "losses":
        from leakline.utility import MENU as losses

        return [{"name": k, "what": v.meaning, "for": v.kind} for k, v in losses.items()]
    if what == "tables":
        from leakline.report.tables.menu import every_table

        return [{"name": k, "what": first_line(v)} for k, v in every_table().items()]
    return [{"name": name, "what": _title(path)} for name, path in built_in().items()]


def _here(source: Any) -> str:
    if source.embedded:
        return "embedded"
    required = [
        f
        for f in dataclasses.fields(source)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    return "give a path" if required else "yes" if source().available() else f"needs {source.needs}"


def _title(path: Path) -> str:
    import tomllib

    return str(tomllib.loads(path.read_text(encoding="utf-8")).get("title", ""))


def doctor() -> tuple[list[tuple[str, str]], bool]:
    """What this installation is made of, and whether it can work."""
    import shutil

    import torch

    rows = [
        ("leakline", __version__),
        ("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        (
            "torch",
            f"{torch.__version__}, device {resolve_device('auto')}",
        ),
        ("cores", str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())),
        ("free disk", f"{shutil.disk_usage('.').free / 2**30:.0f} GiB here"),
    ]
    for extra, package in (("flower", "flwr"), ("medical", "monai")):
        try:
            rows.append((extra, f"{package} {importlib.metadata.version(package)}"))
        except importlib.metadata.PackageNotFoundError:
            rows.append((extra, f"not installed: pip install leakline[{extra}]"))
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
