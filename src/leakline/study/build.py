"""From tables of a study file to the objects they name, collecting every mistake on the way."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pydantic

from leakline.errors import LeaklineError, StudyError
from leakline.foreign import Kind, Unfit
from leakline.names import printable
from leakline.study.consent import Consent
from leakline.study.lines import Path, line_of
from leakline.study.values import described, kind, sample

MOST_MISTAKES, MOST_SHOWN, MOST_DEPTH = 60, 40, 20
"""So many mistakes are noted, and so many said: nobody reads more."""


@dataclass
class Mistakes:
    """All that is wrong with a study, each with its place."""

    file: str
    lines: dict[Path, int]
    found: list[tuple[int, str]] = field(default_factory=list)
    consent: Consent = field(default_factory=Consent)
    """To which code outside leakline the study's reader has agreed."""

    def add(self, path: Path, what: str, fix: str = "") -> None:
        """Note a mistake at a key."""
        if len(self.found) >= MOST_MISTAKES:
            return
        line = line_of(self.lines, path)
        key = ".".join(printable(p, 60) for p in path)
        where = f"{self.file}:{line}" if line else self.file
        self.found.append((line or 0, f"{where} {key} - {printable(what, 600)}" + (f"; {fix}" if fix else "")))

    def unknown(self, path: Path, good: Iterable[str], kind: str = "key") -> str:
        """Note a name that does not exist, with the nearest that does, which is returned ("" if none is near)."""
        names = [] if len(self.found) >= MOST_MISTAKES else list(good)
        near = difflib.get_close_matches(str(path[-1]) if kind == "key" else kind, names, n=1, cutoff=0.5)
        hint = f'did you mean "{near[0]}"?' if near else f"known: {', '.join(sorted(names))}"
        self.add(path, "unknown key" if kind == "key" else f'there is no "{kind}"', hint)
        return near[0] if near else ""

    def text(self) -> str:
        """One line per mistake, in the order of the file."""
        # A table is looked at once for the whole study and once for each scenario: say each thing once.
        lines = [line for _, line in sorted(dict.fromkeys(self.found), key=lambda item: item[0])]
        return "\n".join(lines[:MOST_SHOWN] + (["... and more of the kind"] if len(lines) > MOST_SHOWN else []))


def read_toml(text: str, file: str) -> dict[str, Any]:
    """The tables of a study file, or one clear line."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise StudyError("this is not TOML", f"{file}: {error}", "see the example in the README") from error
    except (ValueError, RecursionError) as error:  # integers of thousands of digits, thousands of brackets
        raise StudyError(f"this is TOML that nobody meant ({type(error).__name__})", file, "look at it") from error


def check_plain(value: Any, path: Path, mistakes: Mistakes) -> None:
    """Note numbers that no setting can have: infinite, not a number, or beyond 64 bits."""
    if len(path) > MOST_DEPTH:
        mistakes.add(path[:2], f"tables in tables, more than {MOST_DEPTH} deep", "a study has two or three levels")
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            check_plain(inner, (*path, str(key)), mistakes)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            check_plain(inner, (*path, place), mistakes)
    elif isinstance(value, float) and not math.isfinite(value):
        mistakes.add(path, f"a finite number is needed, not {value}", "write a plain number")
    elif isinstance(value, int) and abs(value) >= 2**63:
        mistakes.add(path, "a number of at most 19 digits is needed", "write a smaller one")


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
    if f.metadata.get("needed"):
        return ...
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
                name = str(each["loc"][0])
                mistakes.add((*path, name), "is needed", f"give {name} = {sample(described(wanted[name][0]))}")
            else:
                said = f"{each['msg'][0].lower()}{each['msg'][1:]}"
                mistakes.add(place, f"{said}, not {each['input']!r}", _may_be(wanted, place[-1]))
    else:
        for name in table.keys() & wanted.keys():
            value, given = getattr(values, name), table[name]
            # pydantic reads "3" and true as numbers; in a study file they are slips.
            if isinstance(given, str | bool) and type(value) in (int, float):
                mistakes.add((*path, name), f"a number is needed, not {given!r}", _may_be(wanted, name))
    if len(mistakes.found) > before:
        return None
    return {name: getattr(values, name) for name in wanted if name in table}


def _may_be(wanted: Mapping[str, tuple[Any, Any]], name: object) -> str:
    """What a key may be given."""
    hint, default = wanted.get(str(name), (None, ...))
    text = kind(described(hint), "") if hint is not None else ""
    usual = f" (by default {default!r})" if isinstance(default, str | int | float) else ""
    return f"it may be {text}{usual}" if text else ""


MENUS = {
    "data": "datasets", "model": "models", "models": "models", "strategies": "strategies", "defences": "defences",
    "attacks": "attacks", "partition": "partitioners",
}  # fmt: skip
"""By the key of a table, what `leakline list` calls its menu."""


def _look(use: str, path: Path) -> str:
    """Where to read what an entry of a menu takes."""
    menu = next((MENUS[str(part)] for part in reversed(path) if str(part) in MENUS), "")
    return f"`leakline list {menu} {use}` says what it takes" if menu else ""


def build(
    menu: Mapping[str, Callable[..., Any]], table: Any, path: Path, mistakes: Mistakes, kind: Kind | None = None
) -> Any | None:
    """The object that a table names with ``use`` and sets with its other keys, or None with the mistakes noted.

    ``kind``: what a name from outside the menu must stand for; without one there are no other names.
    """
    if isinstance(table, str):
        table = {"use": table}
    if not isinstance(table, Mapping):
        mistakes.add(path, f"a table is needed, not {table!r}", '{ use = "..." }')
        return None
    use = table.get("use")
    if not isinstance(use, str):
        mistakes.add((*path, "use"), "is needed", f"one of: {', '.join(sorted(menu))}")
        return None
    entry = menu.get(use)
    if entry is None and kind is not None and ":" in use:
        entry = fetched(use, kind, (*path, "use"), mistakes)
    elif entry is None:
        mistakes.unknown((*path, "use"), menu, kind=use)
    if entry is None:
        return None
    try:
        wanted = parameters(entry)
        values = check_values({k: v for k, v in table.items() if k != "use"}, wanted, path, mistakes)
        return None if values is None else entry(**values)
    except (ValueError, TypeError, LeaklineError) as error:
        mistakes.add(path, (str(error).splitlines() or ["it cannot be made"])[0], _look(use, path))
    except Exception as error:
        if use in menu:
            raise
        mistakes.add(path, f"{use} cannot be made: {type(error).__name__}: {str(error)[:160]}", "mend its code")
    return None


def fetched(use: str, kind: Kind, path: Path, mistakes: Mistakes) -> Any | None:
    """What a name from outside the menus stands for; None where it is wrong, or its code has not been agreed to."""
    try:
        return mistakes.consent.fetch(use, kind)
    except Unfit as error:
        mistakes.add(path, error.what, error.fix)
        return None
