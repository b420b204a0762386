"""The [data] table of a study: which data set, where it lies, and how it is shared out."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from leakline import data as data_menu
from leakline.study import kinds
from leakline.study.build import Mistakes, build, check_values, parameters
from leakline.study.sharing import Shared

MOST_CLIENTS = 100_000
_Share = Annotated[float, pydantic.Field(ge=0, lt=1)]

SHARING: dict[str, tuple[Any, Any]] = {
    "clients": (Annotated[int, pydantic.Field(ge=1, le=MOST_CLIENTS)] | None, None),
    "partition": (dict[str, Any] | str, "even"),
    "client_test": (_Share, 0.2),
    "server_validation": (_Share, 0.0),
    "server_test": (_Share, 0.2),
    "seed": (int | Literal["each"], 0),
    "otherwise": (dict[str, Any], {}),
    "keep_groups": (bool, True),
    "fold": (Annotated[int, pydantic.Field(ge=0)] | None, None),
    "features": (dict[str, Any] | str, {}),
    "plant": (dict[str, Any], {}),
}
NOTHING = "nothing"
"""What stands in for data that are not here where a scenario had rather be left out."""
PLACES = ("path", "test", "validation", "key")
"""Settings of data sets that name a file or folder: looked for beside the study first, then in the current folder."""


def data_of(table: Mapping[str, Any], mistakes: Mistakes, notes: list[str], here: bool = True) -> Shared | None:
    """What a [data] table names, or None with the mistakes noted; ``here``: its files must be on this machine."""
    use = data_menu.DATASETS.get(str(table.get("use")))
    known = {"use": None, **SHARING, **(parameters(use) if use is not None else {})}
    for key in [*table] if use is not None else ():
        # What follows is looked at as if the nearest key had been written: see `leakline.study.spec.Mistaken`.
        if key not in known and (near := mistakes.unknown(("data", key), known)) and near not in table:
            table = {**table, near: table[key]}
    values = check_values({k: v for k, v in table.items() if k in SHARING}, SHARING, ("data",), mistakes)
    own = {k: v for k, v in table.items() if k not in SHARING and (use is None or k in known)}
    if here and use is not None:
        own |= {key: _found(own[key], mistakes.consent.beside) for key in PLACES if isinstance(own.get(key), str)}
    source = build(data_menu.DATASETS, own, ("data",), mistakes, kinds.SOURCE)
    if values is None or source is None:
        return None
    if here and values.get("otherwise") and not source.available():
        if values["otherwise"].get("use") == NOTHING:
            notes.append(f"data set {table['use']!r} is not here: the cells that ask for it are left out")
            return None
        other = {
            **{k: v for k, v in table.items() if k in SHARING and k != "otherwise"},
            **values["otherwise"],
        }
        notes.append(f"data set {table['use']!r} is not here: {other.get('use')!r} stands in for it")
        return data_of(other, mistakes, notes)
    missing = here and not source.available()
    if missing:
        _not_here(table, source.needs, mistakes)
    shared_out = values.pop("partition", "even")
    partitioner = build(data_menu.PARTITIONERS, shared_out, ("data", "partition"), mistakes, kinds.PARTITIONER)
    values.pop("otherwise", None)
    wanted = values.pop("features", None)
    features = build(data_menu.FEATURES, wanted, ("data", "features"), mistakes) if wanted else None
    sown = values.pop("plant", None)
    plant = build(data_menu.PLANTS, sown, ("data", "plant"), mistakes) if sown else None
    if missing or partitioner is None or (wanted and features is None) or (sown and plant is None):
        return None
    return Shared(source, partitioner, tuple(sorted(values.items())), features, plant)


def _found(place: str, beside: Sequence[Path]) -> str:
    """The path that a study means, so that it may be run from any folder; as it is written where nothing is there."""
    path = Path(place).expanduser()
    if not place or path.is_absolute():
        return str(path) if place else place
    there = (folder / path for folder in beside if folder != Path.cwd() and (folder / path).exists())
    return str(next(there, place))


def _not_here(table: Mapping[str, Any], needs: str, mistakes: Mistakes) -> None:
    """Say which path is missing, with the nearest that is there."""
    place = table.get("path")
    if not isinstance(place, str):
        mistakes.add(("data", "use"), f"{table['use']!r} is not here", f"it needs {needs}")
    elif Path(_found(place, mistakes.consent.beside)).exists():
        mistakes.add(("data", "path"), f"{place!r} is there, but not what is needed", f"it needs {needs}")
    else:
        folders = [folder / Path(place).parent for folder in (*mistakes.consent.beside, Path.cwd())]
        names = {p.name for folder in folders if folder.is_dir() for p in folder.iterdir()}
        near = difflib.get_close_matches(Path(place).name, sorted(names), n=1, cutoff=0.6)
        hint = f'did you mean "{Path(place).parent / near[0]}"?' if near else f"it needs {needs}"
        looked = "" if Path(place).is_absolute() else " beside the study or in the current folder"
        mistakes.add(("data", "path"), f"there is no {place!r}{looked}", hint)
