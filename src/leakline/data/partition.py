"""From a data set to a task: the server's parts, the clients' parts, and the table that shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from leakline.data.base import Client, Data, Dataset, Task, Trait
from leakline.data.partitioners import ByColumn, Partitioner
from leakline.data.split import cut, deal, group_ids, split, stream
from leakline.errors import DataError, StudyError
from leakline.names import printable


def partition(
    dataset: Dataset,
    partitioner: Partitioner,
    clients: int | None = None,
    *,
    client_test: float = 0.2,
    server_validation: float = 0.0,
    server_test: float = 0.2,
    keep_groups: bool = True,
    fold: int | None = None,
    seed: int = 0,
) -> Task:
    """Share a data set out among clients.

    Where the data set brings a test part, the server's share comes from it: ``server_validation`` of it for
    validation, the rest for testing, and ``server_test`` has no effect (paper 000: 1280 images, half and
    half). Otherwise the server first takes ``server_test`` and ``server_validation`` of all examples. Then
    the partitioner shares out what remains, and each client puts ``client_test`` of its own examples aside.
    All splits are
    stratified and keep groups whole, so where groups are few and large the parts differ from the shares asked for:
    ``table`` shows what they became. The same arguments always give the same task; each
    client's split depends on its name and its rows only. ``keep_groups = False`` lets splits cut through groups
    (windows of one recording, slices of one patient on both sides), as many papers do: test figures are then too good.

    ``fold = k`` makes the clients' test parts those of a cross-validation: each client deals its groups out to
    1 / client_test folds, and keeps the k-th of them for tests. Over all k every record is tested once. A class of
    which a client has one group is then tested once without having been trained on there.
    """
    remarks = list(dataset.remarks)
    if not keep_groups and dataset.train.groups is not None:
        remarks.append(f"keep_groups = false: splits cut through {dataset.group}s, and test figures are too good")
    if not keep_groups:
        test = dataset.test and replace(dataset.test, groups=None)
        dataset = replace(dataset, train=replace(dataset.train, groups=None), test=test)
    for key, share in (("client_test", client_test), ("server_validation", server_validation)):
        if not 0 <= share < 1:
            raise StudyError(f"{key} must be at least 0 and below 1: {share}", key, "give a share such as 0.2")
    if not 0 <= server_test < 1 or server_test + server_validation >= 1:
        raise StudyError(
            f"server_test and server_validation must leave something: {server_test}, {server_validation}",
            "server_test",
            "give shares such as 0.2",
        )
    folds = _folds(client_test, fold)
    check(dataset)
    pool, test, validation = _server_parts(dataset, server_validation, server_test, seed)
    assigned = partitioner.assign(pool, clients, stream(seed, "partition"))
    _check_assignment(assigned, len(pool.train))
    column = partitioner.column if isinstance(partitioner, ByColumn) else None
    members = []
    labels, groups = pool.train.labels(), group_ids(pool.train)
    for name, rows in assigned.items():
        own = None if groups is None else groups[rows]
        if fold is None:
            train, held = cut(labels[rows], own, client_test, stream(seed, "client-test", name))
        else:
            dealt = deal(labels[rows], own, folds, stream(seed, "folds", name))
            train, held = np.flatnonzero(dealt != fold), np.flatnonzero(dealt == fold)
        traits: dict[str, Trait] = {}
        if column is not None:
            label = str(pool.columns[column][rows[0]])
            traits = {**dict(dataset.traits.get(column, {}).get(label, {})), "label": label}
        members.append(
            Client(name, pool.train.take(rows[train]), pool.train.take(rows[held]) if len(held) else None, traits)
        )
    if dataset.kind == "segmentation":
        _check_marked(members, dataset.name)
    remarks += _shared(members, dataset.group)
    return Task(
        tuple(members),
        test,
        validation,
        dataset.classes,
        dataset.kind,
        dataset.name,
        tuple(remarks),
        dataset.group,
        dataset.people(),
    )


def _folds(client_test: float, fold: int | None) -> int:
    """How many folds a share to be tested makes."""
    folds = round(1 / client_test) if client_test else 0
    if fold is not None and not (folds > 1 and abs(folds * client_test - 1) < 1e-6 and 0 <= fold < folds):
        raise StudyError(
            f"fold = {fold}: client_test = {client_test:g} must be one of several equal parts, and fold one of them",
            "fold",
            "client_test = 0.2 makes five folds, 0 to 4",
        )
    return folds


def _shared(members: Sequence[Client], group: str) -> list[str]:
    """Says so where records of one group (a patient) are at several clients."""
    holders = Counter(g for c in members for g in groups_of(c.train, c.test))
    several = sum(count > 1 for count in holders.values())
    return [f"{several} {group}s have records at several clients"] if several else []


def groups_of(*parts: Data | None) -> list[int]:
    """The groups that these parts have, each once."""
    held = [part.groups.numpy() for part in parts if part is not None and part.groups is not None]
    return np.unique(np.concatenate(held)).tolist() if held else []


def check(dataset: Dataset) -> None:
    """Refuse a data set that nothing can be learnt from."""
    if not len(dataset.train):
        raise DataError("the data set has no training examples", dataset.name, "check its files and options")
    labels = dataset.train.labels()
    if dataset.kind == "segmentation":
        for part in (dataset.train, dataset.test):
            if part is not None and part.y.shape != (len(part), 1, *part.x.shape[2:]):
                raise DataError(
                    f"masks are {_sides(part.y)}, images {_sides(part.x)}",
                    dataset.name,
                    "every image needs a mask N, 1, H, W of its own size",
                )
        if not labels.any():
            raise DataError("no training mask marks anything", dataset.name, "check that the masks were read")
        return
    present = np.bincount(labels, minlength=len(dataset.classes)) > 0
    nobody = [name for name, there in zip(dataset.classes, present, strict=True) if not there]
    if nobody:
        raise DataError(
            f"no training example has the class {printable(', '.join(nobody))}",
            dataset.name,
            "number classes 0, 1, ... without a gap, leave out those that nobody has, or raise limit",
        )


def _sides(values: Tensor) -> str:
    return "x".join(str(side) for side in values.shape[1:])


def _check_marked(members: Sequence[Client], name: str) -> None:
    """Refuse a client none of whose training masks marks anything: more often a file not read than a healthy site."""
    blank = [c.name for c in members if not c.train.labels().any()]
    if blank:
        raise DataError(
            f"no training mask marks anything at {printable(', '.join(blank))}",
            name,
            "check that the masks of this client were read, or leave it out",
        )


def _server_parts(
    dataset: Dataset, server_validation: float, server_test: float, seed: int
) -> tuple[Dataset, Data | None, Data | None]:
    if dataset.test is not None:
        test, validation = split(dataset.test, server_validation, stream(seed, "server-validation"))
        return dataset, _part(dataset.test, test), _part(dataset.test, validation)
    rest, test = split(dataset.train, server_test, stream(seed, "server-test"))
    remaining = dataset.train.take(rest)
    keep, held = split(remaining, server_validation / (1 - server_test), stream(seed, "server-validation"))
    return dataset.take(rest[keep]), _part(dataset.train, test), _part(remaining, held)


def _part(data: Data, rows: np.ndarray) -> Data | None:
    return data.take(rows) if len(rows) else None


def _check_assignment(assigned: dict[str, np.ndarray], n: int) -> None:
    empty = [name for name, rows in assigned.items() if not len(rows)]
    if empty or not assigned:
        raise StudyError(
            f"no examples are left for {printable(', '.join(empty)) or 'any client'}",
            "partition",
            "use fewer clients, or larger shares",
        )
    rows = np.concatenate(list(assigned.values()))
    if rows.min() < 0 or rows.max() >= n or len(np.unique(rows)) != len(rows):
        raise StudyError("the partitioner gave an example to two clients, or one that does not exist", "partition")


@dataclass(frozen=True)
class Row:
    """One holder of data: its examples of each class (all its parts together), for training and for testing.

    In segmentation the two counts are images in which nothing and something is marked. ``groups``: how many patients
    (or recordings) they are of, None where nobody says.
    """

    name: str
    counts: tuple[int, ...]
    train: int
    test: int
    groups: int | None = None


def table(task: Task) -> list[Row]:
    """Who holds what: one row for each client, then the server's parts."""
    rows = [_row(c.name, len(task.classes), c.train, c.test) for c in task.clients]
    if task.validation is not None:
        rows.append(_row("server: validation", len(task.classes), task.validation, None))
    if task.test is not None:
        rows.append(_row("server: test", len(task.classes), None, task.test))
    return rows


def _row(name: str, classes: int, train: Data | None, test: Data | None) -> Row:
    parts = [data.labels() for data in (train, test) if data is not None]
    counts = np.bincount(np.concatenate(parts), minlength=classes)
    sizes = [0 if data is None else len(data) for data in (train, test)]
    held = len(groups_of(train, test)) or None
    return Row(name, tuple(int(c) for c in counts), sizes[0], sizes[1], held)
