"""A model of a study: which network, and what of it is trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leakline import models as model_menu
from leakline.errors import StudyError
from leakline.study.build import Mistakes, build, check_values, fetched

ADAPTING: dict[str, tuple[Any, Any]] = {
    "train": (tuple[str, ...], ()),
    "lora": (model_menu.Lora, None),
    "weights": (str, ""),
    "pretrain": (bool, False),
}
"""What any model of a study may be told beside its own settings: see `leakline.models.adapted`."""


def model_of(table: Any, path: tuple[str, ...], mistakes: Mistakes) -> Any | None:
    """What a model's table names, or None with the mistakes noted."""
    if not isinstance(table, Mapping):
        return _network(table, path, mistakes)
    model = _network({key: value for key, value in table.items() if key not in ADAPTING}, path, mistakes)
    own = {key: value for key, value in table.items() if key in ADAPTING}
    if isinstance(own.get("lora"), Mapping):  # by itself, so that a key that it does not have is named
        lora = {**own["lora"], "use": "lora"}
        own["lora"] = build({"lora": model_menu.Lora}, lora, (*path, "lora"), mistakes)
    values = check_values(own, ADAPTING, path, mistakes) if None not in own.values() else None
    if model is None or not values:
        return None if values is None else model
    try:
        weights = _beside(values.pop("weights"), mistakes) if "weights" in values else None
        return model_menu.Adapted(model, weights=weights, **values)
    except StudyError as error:
        mistakes.add((*path, "weights"), error.what, error.fix)
        return None


def _network(table: Any, path: tuple[str, ...], mistakes: Mistakes) -> Any | None:
    entry = {"use": table} if isinstance(table, str) else dict(table) if isinstance(table, Mapping) else {}
    use = entry.pop("use", None)
    if isinstance(use, str) and ":" in use:
        wanted = fetched(use, model_menu.FACTORY, (*path, "use"), mistakes)
        return None if wanted is None else model_menu.Imported(use, entry)
    return build(model_menu.MENU, table, path, mistakes)


def _beside(name: str, mistakes: Mistakes) -> model_menu.WeightsFile:
    """A file of weights: by its path, or beside the study."""
    folders = (*mistakes.consent.beside, Path())
    return model_menu.WeightsFile.at(next((f / name for f in folders if (f / name).is_file()), Path(name)))
