"""A JSON schema of study files, made from the menus and the settings themselves, for editors that complete and check.

What an editor accepts is never less than what leakline does: a scenario, a preset and code of the user's own
("module:name") may hold anything here, and are looked at by `leakline check`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import getdoc
from typing import Any

from leakline import attacks, data, defences, models, strategies, utility
from leakline.bench.training import Plan
from leakline.study.build import parameters
from leakline.study.data_table import SHARING
from leakline.study.model_table import ADAPTING
from leakline.study.scenario import LOOP, STUDY
from leakline.study.values import Keys, described

DIALECT = "https://json-schema.org/draft/2020-12/schema"
OWN = {"type": "string", "pattern": "^[^:]+:[^:]+$", "description": "Code of your own, module:name; run with --trust."}


def schema() -> dict[str, Any]:
    """The schema of a whole study file."""
    plan = {name: wanted for name, wanted in parameters(Plan).items() if name != "proximal"}
    loss = {"anyOf": [{"enum": ["default", *utility.MENU]}, OWN]}
    model = {"anyOf": [*_choices(models.MENU, ADAPTING), OWN, _own_table()]}
    tables = {
        "data": {"anyOf": [*(_entry(name, source, SHARING) for name, source in data.DATASETS.items()), _own_table()]},
        "model": model,
        "models": _named(model),
        "training": _table(LOOP | plan),
        "warm_start": _table(plan),
        "strategies": _named({"anyOf": [*_choices(strategies.MENU), OWN, _own_table()]}),
        "defences": _named(_one_or_more({"anyOf": [*_choices(defences.MENU), OWN, _own_table()]})),
        "attacks": {
            "anyOf": [
                {"const": "strongest"},
                {"type": "array", "items": {"anyOf": [*_choices(attacks.MENU, NAMED), OWN, _own_table()]}},
            ]
        },
        "scenarios": _named({"type": "object"}),
        "presets": _named({"type": "object"}),
    }
    tables["training"]["properties"]["loss"] = loss
    whole = _table(STUDY)
    whole["properties"] |= tables
    return {"$schema": DIALECT, "title": "leakline study", **whole, "required": ["name", "data", "model"]}


NAMED: Keys = {"name": (str, "")}
"""An attack may have a name of its own in the study."""


def _table(keys: Keys) -> dict[str, Any]:
    """An object with these keys and no others."""
    return {
        "type": "object",
        "properties": {name: _key(hint, default) for name, (hint, default) in keys.items()},
        "additionalProperties": False,
    }


def _key(hint: Any, default: Any) -> dict[str, Any]:
    """What may be given for one key; anything, where its type is no JSON."""
    plain = isinstance(default, str | int | float | bool)
    found = described(hint)
    return {**found, "default": default} if plain and found else found


def _entry(name: str, entry: Callable[..., Any], more: Keys | None = None) -> dict[str, Any]:
    """A table that names an entry of a menu with ``use`` and sets it with its other keys."""
    keys = {**parameters(entry), **(more or {})}
    table = _table(keys)
    needed = [key for key, (_, default) in keys.items() if default is ...]
    use = {"const": name, "description": (getdoc(entry) or "").partition("\n")[0]}
    return {**table, "properties": {"use": use, **table["properties"]}, "required": ["use", *needed]}


def _choices(menu: Mapping[str, Callable[..., Any]], more: Keys | None = None) -> list[dict[str, Any]]:
    """The entries of a menu: by name alone, or as tables."""
    return [{"enum": list(menu)}, *(_entry(name, entry, more) for name, entry in menu.items())]


def _own_table() -> dict[str, Any]:
    """A table whose ``use`` is code of the user's own: its keys are that code's."""
    return {"type": "object", "properties": {"use": OWN}, "required": ["use"]}


def _named(value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": value}


def _one_or_more(value: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [{"type": "array", "items": value}, value]}
