"""`leakline list`: the menus as rows."""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from leakline.cli.console import JsonOption, out
from leakline.errors import LeaklineError

MENUS = (
    "strategies",
    "defences",
    "attacks",
    "datasets",
    "partitioners",
    "models",
    "losses",
    "studies",
    "tables",
)


def list_(what: Annotated[str, typer.Argument(help=" | ".join(MENUS))], as_json: JsonOption = False) -> None:
    """What there is to choose from, one line each."""
    if what not in MENUS:
        raise LeaklineError(f"there is no list of {what!r}", fix=f"one of: {', '.join(MENUS)}")
    rows = menu(what)
    if as_json:
        out.print_json(json.dumps(rows))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        extra = "; ".join(f"{k}: {v}" for k, v in row.items() if k not in ("name", "what") and v)
        out.print(f"{row['name']:<{width}}  {row['what']}" + (f"  [{extra}]" if extra else ""))


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
    from leakline.study.spec import built_in

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
