"""Data sets of a study: loaded once, shared out once, however many cells use them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from leakline import data as data_menu
from leakline.data.base import Dataset, Task
from leakline.data.features import Features, featured, publicly_scaled
from leakline.errors import DataError, LeaklineError
from leakline.study.kept_features import kept


@dataclass(frozen=True, eq=False)
class Shared:
    """How one data set is shared out; equal if it reads equal, so that each is loaded once."""

    source: Any
    partitioner: Any
    values: tuple[tuple[str, Any], ...]
    features: Features | None = None

    def __hash__(self) -> int:
        return hash(repr(self))

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other)


_failed: dict[Shared, LeaklineError] = {}


def look_again() -> None:
    """Forget which files could not be used: they may have been mended since."""
    _failed.clear()


def _loaded(source: Shared) -> Dataset:
    """The data set; files that cannot be used are looked at once, and not again for every cell."""
    if source in _failed:
        raise _failed[source]
    try:
        return _read(source)
    except LeaklineError as error:
        _failed[source] = error
        raise


@lru_cache(maxsize=4)
def _read(source: Shared) -> Dataset:
    return source.source.load()  # type: ignore[no-any-return]


@lru_cache(maxsize=4)
def _featured(shared: Shared) -> Dataset:
    assert shared.features is not None
    return featured(_loaded(Shared(shared.source, None, ())), shared.features, partial(kept, shared.features))


@lru_cache(maxsize=8)
def _partitioned(shared: Shared, seed: int) -> Task:
    values = dict(shared.values)
    values.pop("seed", None)
    dataset = _loaded(Shared(shared.source, None, ()))
    if shared.features is not None:
        dataset = _featured(Shared(shared.source, None, (), shared.features))
    try:
        task = data_menu.partition(dataset, shared.partitioner, seed=seed, **values)
        by_public = shared.features is not None and shared.features.normalise == "public"
        return publicly_scaled(task) if by_public else task
    except ValueError as error:
        raise DataError(str(error), "data", "check the [data] table of the study") from error


def task_of(shared: Shared, seed: int) -> Task:
    """The task that a cell with this seed trains on."""
    wanted = dict(shared.values).get("seed", 0)
    return _partitioned(shared, seed if wanted == "each" else wanted)
