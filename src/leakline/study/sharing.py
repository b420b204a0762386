"""Data sets of a study: loaded once, shared out once, however many cells use them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from leakline import data as data_menu
from leakline.data.base import Dataset, Task
from leakline.data.features import Features, featured, publicly_scaled
from leakline.data.plant import Plant
from leakline.data.refused import Refused
from leakline.errors import DataError, LeaklineError
from leakline.study.kept_features import kept

SOME = 4
"""Among so many clients data are shared out to be looked at, where the study's own way fails."""


@dataclass(frozen=True, eq=False)
class Shared:
    """How one data set is shared out; equal if it reads equal, so that each is loaded once."""

    source: Any
    partitioner: Any
    values: tuple[tuple[str, Any], ...]
    features: Features | None = None
    plant: Plant | None = None

    def __hash__(self) -> int:
        return hash(repr(self))

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other)


@dataclass
class Look:
    """What was found wrong with data that are only looked at; ``other``: they are shared out as nobody asked for."""

    wrong: list[LeaklineError] = field(default_factory=list)
    other: bool = False


_failed: dict[Shared, LeaklineError] = {}
_left: dict[tuple[Shared, int], tuple[Task, Look]] = {}
_looking: ContextVar[Look | None] = ContextVar("_looking", default=None)


def look_again() -> None:
    """Forget which files could not be used: they may have been mended since."""
    _failed.clear()
    _left.clear()


@contextmanager
def looking() -> Iterator[Look]:
    """For a check, never for training: what is wrong with data is noted, and what is left of them shared out."""
    look = Look()
    token = _looking.set(look)
    try:
        yield look
    finally:
        _looking.reset(token)


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
    if shared.features is not None:
        return _shared_out(_featured(Shared(shared.source, None, (), shared.features)), shared, seed)
    return _shared_out(_loaded(Shared(shared.source, None, ())), shared, seed)


def _shared_out(dataset: Dataset, shared: Shared, seed: int) -> Task:
    values = dict(shared.values)
    values.pop("seed", None)
    try:
        task = data_menu.partition(dataset, shared.partitioner, seed=seed, **values)
        by_public = shared.features is not None and shared.features.normalise == "public"
        return publicly_scaled(task) if by_public else task
    except ValueError as error:
        raise DataError(str(error), "data", "check the [data] table of the study") from error


def _what_is_left(shared: Shared, seed: int) -> tuple[Task, Look]:
    """The task of what is left of refused data, shared out evenly where the study's way fails; and what is wrong."""
    try:
        return _partitioned(shared, seed), Look()
    except Refused as error:
        if error.rest is None:
            raise
        look, dataset = Look(list(error.each)), error.rest
        if shared.features is not None:
            dataset = featured(dataset, shared.features, partial(kept, shared.features))
    except LeaklineError as error:
        look, dataset = Look([error], other=True), _loaded(Shared(shared.source, None, ()))
    if not look.other:
        try:
            return _shared_out(dataset, shared, seed), look
        except LeaklineError as error:
            look = Look([*look.wrong, error], other=True)
    evenly = Shared(shared.source, data_menu.Even(), (("clients", SOME),), shared.features)
    try:
        return _shared_out(dataset, evenly, seed), look
    except LeaklineError:
        raise Refused([DataError(e.what, e.where, e.fix) for e in look.wrong], None) from None


def task_of(shared: Shared, seed: int) -> Task:
    """The task that a cell with this seed trains on, with what is planted in it."""
    if shared.plant is None:
        return _plain(shared, seed)
    if _looking.get() is not None:  # what is left of refused data must not be kept for a run
        return shared.plant.into(_plain(replace(shared, plant=None), seed), seed)
    return _planted(shared, seed)


@lru_cache(maxsize=8)
def _planted(shared: Shared, seed: int) -> Task:
    assert shared.plant is not None
    return shared.plant.into(_plain(replace(shared, plant=None), seed), seed)


def _plain(shared: Shared, seed: int) -> Task:
    wanted = dict(shared.values).get("seed", 0)
    place = (shared, seed if wanted == "each" else wanted)
    look = _looking.get()
    if look is None:
        return _partitioned(*place)
    if place not in _left:
        _left[place] = _what_is_left(*place)
    task, found = _left[place]
    look.wrong += [error for error in found.wrong if error not in look.wrong]
    look.other |= found.other
    return task
