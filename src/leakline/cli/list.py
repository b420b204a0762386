"""`leakline list`: the menus as rows."""

from __future__ import annotations

import dataclasses
import inspect
import json
import textwrap
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

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


def list_(
    what: Annotated[str, typer.Argument(help=" | ".join(MENUS))] = "",
    name: Annotated[str, typer.Argument(help="One entry of that list: all that it takes.")] = "",
    as_json: JsonOption = False,
) -> None:
    """What there is to choose from; with a name, what that entry does and takes."""
    if what not in MENUS:
        what_else = get_close_matches(what, MENUS, 1, 0.5)
        hint = f'did you mean "{what_else[0]}"? ' if what_else else ""
        if what:
            raise LeaklineError(f"there is no list of {what!r}", fix=f"{hint}One of: {', '.join(MENUS)}")
        for each in MENUS:
            out.print(f"leakline list {each}")
        return
    rows = menu(what)
    if name and name not in (names := [row["name"] for row in rows]):
        near = get_close_matches(name, names, 3, 0.4) or names
        raise LeaklineError(f"there is no {name!r} among the {what}", fix=f"did you mean one of: {', '.join(near)}?")
    rows = [row for row in rows if name in ("", row["name"])]
    if as_json:
        out.print_json(json.dumps(rows))
        return
    for row in rows:
        out.print(row["name"], style="bold")
        _wrapped(row["what"])
        for key, value in row.items():
            if key not in ("name", "what") and value and not (name and key == "settings"):
                _wrapped(f"{key}: {value}")
        if name:
            _whole(what, name)


def _wrapped(text: str, indent: int = 4) -> None:
    """Text on lines of at most 80 columns."""
    out.print(textwrap.fill(text.replace("``", ""), min(out.width, 80), initial_indent=" " * indent,
                            subsequent_indent=" " * (indent + 2), break_on_hyphens=False))  # fmt: skip


def _whole(what: str, name: str) -> None:
    """All that is said of an entry, and what each of its settings may be."""
    from leakline.study.build import parameters
    from leakline.study.values import described, kind

    entry = _entries(what).get(name)
    if entry is None:
        return
    for paragraph in (inspect.getdoc(entry) or "").split("\n\n")[1:]:
        out.print()
        plain = any(line.startswith("  ") for line in paragraph.splitlines())
        if plain:  # an equation or a table keeps its lines
            out.print(textwrap.indent(paragraph.replace("``", ""), "    "))
        else:
            _wrapped(" ".join(paragraph.split()))
    out.print()
    for key, (hint, default) in parameters(entry).items():
        plain_default = isinstance(default, str | int | float | bool | tuple)
        usual = (
            "needed" if default is ... else f"by default {json.dumps(default)}" if plain_default else "may be left out"
        )
        _wrapped(f"{key}: {kind(described(hint), '')}; {usual}")


def _entries(what: str) -> Mapping[str, Any]:
    """The menu of a list that has settings."""
    from leakline import attacks, data, defences, models, strategies

    menus: dict[str, Mapping[str, Any]] = {
        "strategies": strategies.MENU, "defences": defences.MENU, "attacks": attacks.MENU, "models": models.MENU,
        "datasets": data.DATASETS, "partitioners": data.PARTITIONERS,
    }  # fmt: skip
    return menus.get(what, {})


def first_line(thing: Any) -> str:
    """The first line of a docstring."""
    return (inspect.getdoc(thing) or "").split("\n")[0].rstrip(".")


def settings(entry: Any) -> str:
    """What an entry can be given: choices with the default first, what it cannot do without marked so."""
    from leakline.study.build import parameters

    shown = []
    for name, (hint, default) in parameters(entry).items():
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        if choices:
            others = [str(c) for c in choices if c != default]
            shown.append(f"{name} ({' | '.join([*([] if default is ... else [str(default)]), *others])})")
        elif default is ...:
            shown.append(f"{name} (needed)")
        else:
            plain = isinstance(default, str | int | float | bool) and default != ""
            shown.append(f"{name} ({default})" if plain else name)
    return ", ".join(shown)


def _seat(attack: type) -> str:
    """Who attacks, or how that depends on the attack's settings."""
    seat = getattr(attack, "seat", "")
    return inspect.getdoc(seat) or "" if isinstance(seat, property) else str(seat)


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
            {"name": k, "what": first_line(v), "seat": _seat(v), "settings": settings(v)} for k, v in attacks.items()
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
