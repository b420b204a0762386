"""From tables of a study file to the objects they name, collecting every mistake on the way."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pydantic

from leakline.errors import LeaklineError
from leakline.study.lines import Path, line_of


@dataclass
class Mistakes:
    """All that is wrong with a study, each with its place."""

    file: str
    lines: dict[Path, int]
    found: list[tuple[int, str]] = field(default_factory=list)

    def add(self, path: Path, what: str, fix: str = "") -> None:
        """Note a mistake at a key."""
        line = line_of(self.lines, path)
        key = ".".join(str(p) for p in path)
        where = f"{self.file}:{line}" if line else self.file
        self.found.append((line or 0, f"{where} {key} - {what}" + (f"; {fix}" if fix else "")))

    def unknown(self, path: Path, good: Iterable[str], kind: str = "key") -> None:
        """Note a name that does not exist, with the nearest that does."""
        names = list(good)
        near = difflib.get_close_matches(str(path[-1]) if kind == "key" else kind, names, n=1, cutoff=0.5)
        hint = f'did you mean "{near[0]}"?' if near else f"known: {', '.join(sorted(names))}"
        self.add(path, "unknown key" if kind == "key" else f'there is no "{kind}"', hint)

    def text(self) -> str:
        """One line per mistake, in the order of the file."""
        # A table is looked at once for the whole study and once for each scenario: say each thing once.
        return "\n".join(line for _, line in sorted(dict.fromkeys(self.found), key=lambda item: item[0]))


def parameters(entry: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """What a menu entry may be given: name -> (type, default or ...)."""
    if dataclasses.is_dataclass(entry):
        hints = typing.get_type_hints(entry)
        return {
            f.name: (hints[f.name], _default(f))
            for f in dataclasses.fields(entry)
            if f.init and not f.name.startswith("_")
        }
    hints = typing.get_type_hints(entry)
    return {
        name: (hints.get(name, Any), ... if p.default is inspect.Parameter.empty else p.default)
        for name, p in inspect.signature(entry).parameters.items()
        if p.kind is not inspect.Parameter.VAR_KEYWORD
    }


def _default(f: dataclasses.Field[Any]) -> Any:
    if f.default is not dataclasses.MISSING:
        return f.default
    return ... if f.default_factory is dataclasses.MISSING else pydantic.Field(default_factory=f.default_factory)


def check_values(
    table: Mapping[str, Any], wanted: Mapping[str, tuple[Any, Any]], path: Path, mistakes: Mistakes
) -> dict[str, Any] | None:
    """Values of the right types, or None with the mistakes noted."""
    before = len(mistakes.found)
    for key in table:
        if key not in wanted:
            mistakes.unknown((*path, key), wanted)
    model = pydantic.create_model("Table", __config__=pydantic.ConfigDict(arbitrary_types_allowed=True), **wanted)  # type: ignore[call-overload]
    try:
        values = model(**{k: v for k, v in table.items() if k in wanted})
    except pydantic.ValidationError as error:
        for each in error.errors():
            place = (*path, *[p for p in each["loc"] if p in wanted or isinstance(p, int)][:1])
            if each["type"] == "missing":
                mistakes.add((*path, str(each["loc"][0])), "is needed")
            else:
                said = f"{each['msg'][0].lower()}{each['msg'][1:]}"
                entry = (place, f"{said}, not {each['input']!r}")
                mistakes.add(*entry)
    else:
        for name in table.keys() & wanted.keys():
            value, given = getattr(values, name), table[name]
            # pydantic reads "3" and true as numbers; in a study file they are slips.
            if isinstance(given, str | bool) and type(value) in (int, float):
                mistakes.add((*path, name), f"a number is needed, not {given!r}")
    if len(mistakes.found) > before:
        return None
    return {name: getattr(values, name) for name in wanted if name in table}


def build(menu: Mapping[str, Callable[..., Any]], table: Any, path: Path, mistakes: Mistakes) -> Any | None:
    """The object that a table names with ``use`` and sets with its other keys, or None with the mistakes noted."""
    if isinstance(table, str):
        table = {"use": table}
    if not isinstance(table, Mapping):
        mistakes.add(path, f"a table is needed, not {table!r}", '{ use = "..." }')
        return None
    use = table.get("use")
    if not isinstance(use, str):
        mistakes.add((*path, "use"), "is needed", f"one of: {', '.join(sorted(menu))}")
        return None
    entry = menu.get(use) or (_imported(use, path, mistakes) if ":" in use else None)
    if entry is None:
        if ":" not in use:
            mistakes.unknown((*path, "use"), menu, kind=use)
        return None
    values = check_values({k: v for k, v in table.items() if k != "use"}, parameters(entry), path, mistakes)
    if values is None:
        return None
    try:
        return entry(**values)
    except (ValueError, TypeError, LeaklineError) as error:
        mistakes.add(path, str(error).splitlines()[0])
        return None


def _imported(use: str, path: Path, mistakes: Mistakes) -> Callable[..., Any] | None:
    module, _, name = use.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        mistakes.add(
            (*path, "use"),
            f"cannot import {use!r}: {error}",
            'write "package.module:name" of something installed',
        )
        return None
    return found  # type: ignore[no-any-return]
