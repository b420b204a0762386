"""Ways to share a data set out among clients: even, sizes, counts, dirichlet, by-column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from leakline.data.base import Dataset
from leakline.data.split import apportion, group_ids, group_table
from leakline.data.tables import COUNT_TABLES
from leakline.errors import StudyError
from leakline.names import client_names, natural, printable

Assignment = dict[str, np.ndarray]


class Partitioner(Protocol):
    """Says which training examples each client gets: rows by client name."""

    def assign(self, dataset: Dataset, clients: int | None, rng: np.random.Generator) -> Assignment:
        """Row indices of ``dataset.train`` by client name, no row twice."""
        ...


@dataclass(frozen=True)
class Even:
    """Equal shares, stratified by class: sizes differ by at most one (by a group, where there are groups)."""

    def assign(self, dataset: Dataset, clients: int | None, rng: np.random.Generator) -> Assignment:
        """Deal the examples out, class by class, in turn."""
        n = _number(clients, "even")
        return _named(_deal(dataset, np.full(n, len(dataset.train) / n), rng))


@dataclass(frozen=True)
class Sizes:
    """Unequal clients, stratified: shares ([0.35, 0.15, 0.5]) or numbers of examples ([8, 32, 128]).

    Values that add up to at most 1 are shares, otherwise they are numbers of examples. What they leave over
    is not used. Exact where there are no groups.
    """

    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.shares or any(not np.isfinite(s) or s <= 0 for s in self.shares):
            raise ValueError(f"shares must be positive numbers: {self.shares}")
        if sum(self.shares) > 1 + 1e-9 and any(s != int(s) for s in self.shares):
            raise ValueError(f"shares add up to more than 1 and are not whole numbers of examples: {self.shares}")

    def assign(self, dataset: Dataset, clients: int | None, rng: np.random.Generator) -> Assignment:
        """Deal the examples out, class by class, by who lacks most of its share."""
        n, values = len(dataset.train), np.asarray(self.shares, dtype=np.float64)
        _agree(clients, len(values), "sizes")
        if values.sum() > 1 + 1e-9:
            goal = values.astype(np.int64)
        else:
            rest = max(0.0, 1 - values.sum())
            goal = apportion(n, np.append(values, rest))[:-1] if rest > 1e-9 else apportion(n, values)
        if goal.sum() > n:
            raise StudyError(
                f"the clients are to hold {goal.sum()} examples, there are {n}", "sizes", "lower the sizes"
            )
        return _named(_deal(dataset, goal.astype(np.float64), rng))


@dataclass(frozen=True)
class Counts:
    """An exact table of client x class counts: rows of numbers, or the name of a table of paper 000.

    ``scale`` shrinks the whole table (0.1: a tenth of every class), rounding as little as possible. Exact
    counts come first here: where there are groups, a patient's slices may go to two clients.
    """

    table: str | tuple[tuple[int, ...], ...] = "homogeneous"
    scale: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.table, str) and self.table not in COUNT_TABLES:
            raise ValueError(f"no count table {self.table!r}; there are: {', '.join(COUNT_TABLES)}")
        rows = self.rows()
        if not rows or len({len(row) for row in rows}) != 1 or any(c < 0 for row in rows for c in row):
            raise ValueError(f"every client needs one count of at least 0 for every class: {rows}")
        if not self.scale > 0:
            raise ValueError(f"scale must be positive: {self.scale}")

    def rows(self) -> Sequence[Sequence[int]]:
        """The table as written."""
        return COUNT_TABLES[self.table] if isinstance(self.table, str) else self.table

    def scaled(self) -> np.ndarray:
        """The table as used, client x class."""
        table = np.asarray(self.rows(), dtype=np.int64)
        if self.scale == 1:
            return table
        columns = [apportion(int(round(c.sum() * self.scale)), c) if c.sum() else np.zeros_like(c) for c in table.T]
        return np.stack(columns, axis=1)

    def assign(self, dataset: Dataset, clients: int | None, rng: np.random.Generator) -> Assignment:
        """Draw every count at random from its class."""
        table, labels = self.scaled(), dataset.train.labels()
        _agree(clients, len(table), "counts")
        if table.shape[1] != len(dataset.classes):
            raise StudyError(
                f"the count table has {table.shape[1]} classes, {dataset.name} has {len(dataset.classes)}",
                "counts",
                f"give one count for each of: {printable(', '.join(dataset.classes))}",
            )
        rows: list[list[np.ndarray]] = [[] for _ in table]
        for c, name in enumerate(dataset.classes):
            pool = rng.permutation(np.flatnonzero(labels == c))
            if table[:, c].sum() > len(pool):
                raise StudyError(
                    f"class {printable(name)!r} runs short: the table asks for {table[:, c].sum()}, "
                    f"{len(pool)} are to be shared out",
                    "counts",
                    "lower its counts or the scale, or let the server keep less",
                )
            for client, piece in enumerate(np.split(pool, np.cumsum(table[:, c]))[:-1]):
                rows[client].append(piece)
        return _named([np.concatenate(pieces) for pieces in rows])


@dataclass(frozen=True)
class Dirichlet:
    """Label skew: each class is shared out by proportions from Dirichlet(alpha) (Hsu et al. 2019).

    Small alpha: each class sits with few clients; large alpha: nearly even. Drawn again until every client
    has ``min_examples``, at most ``tries`` times.
    """

    alpha: float = 0.5
    min_examples: int = 10
    tries: int = 200

    def __post_init__(self) -> None:
        if not 0 < self.alpha < np.inf:
            raise ValueError(f"alpha must be positive: {self.alpha}")
        if self.min_examples < 1 or self.tries < 1:
            raise ValueError(f"min_examples and tries must be at least 1: {self.min_examples}, {self.tries}")

    def assign(self, dataset: Dataset, clients: int | None, rng: np.random.Generator) -> Assignment:
        """Draw proportions for every class until nobody has too little."""
        n = _number(clients, "dirichlet")
        units, labels, sizes = _units(dataset)
        if n * self.min_examples <= sizes.sum() and n <= len(units):
            for _ in range(self.tries):
                owner = self._draw(labels, n, rng)
                held = np.bincount(owner[owner >= 0], weights=sizes[owner >= 0], minlength=n)
                if held.min() >= self.min_examples and owner.min() >= 0:
                    return _named([np.concatenate([units[u] for u in np.flatnonzero(owner == i)]) for i in range(n)])
        raise StudyError(
            f"no draw gave each of {n} clients at least {self.min_examples} of {int(sizes.sum())} examples",
            f"dirichlet, alpha = {self.alpha}, tries = {self.tries}",
            "raise alpha, or lower the number of clients or min_examples",
        )

    def _draw(self, labels: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
        owner = np.full(len(labels), -1)
        for c in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == c))
            shares = rng.dirichlet(np.full(n, self.alpha))
            if np.isfinite(shares).all() and shares.sum() > 0:  # a tiny alpha underflows to 0/0: a failed try
                owner[members] = np.repeat(np.arange(n), apportion(len(members), shares))
        return owner


@dataclass(frozen=True)
class ByColumn:
    """One client for every value of a column of the data set (subject, site), named after it.

    Values with fewer than ``min_examples`` are left out; ``clients`` takes only the first so many. ``into`` cuts
    large values into several clients ({"DU": 2} makes DU-1 and DU-2), whole groups to each.
    """

    column: str = "subject"
    min_examples: int = 1
    into: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if any(pieces < 1 for pieces in self.into.values()):
            raise ValueError(f"into must be whole numbers of at least 1: {dict(self.into)}")

    def assign(self, dataset: Dataset, clients: int | None, rng: np.random.Generator) -> Assignment:
        """Rows by the column's value; random is only how ``into`` cuts one."""
        if self.column not in dataset.columns:
            known = ", ".join(dataset.columns) or "none"
            raise StudyError(f"{dataset.name} has no column {self.column!r}", "by-column", f"its columns: {known}")
        values, position = np.unique(np.asarray(dataset.columns[self.column], dtype=str), return_inverse=True)
        rows = self._cut(dataset, {str(v): np.flatnonzero(position == i) for i, v in enumerate(values)}, rng)
        kept = sorted((v for v in rows if len(rows[v]) >= self.min_examples), key=natural)
        if not kept or (clients is not None and clients > len(kept)):
            raise StudyError(
                f"column {self.column!r} has {len(kept)} values with at least {self.min_examples} examples",
                f"by-column, clients = {clients}",
                "lower the number of clients or min_examples",
            )
        names = client_names(kept)
        return {names[value]: rows[value] for value in kept[:clients]}

    def _cut(self, dataset: Dataset, rows: Assignment, rng: np.random.Generator) -> Assignment:
        unknown = [value for value in self.into if value not in rows]
        if unknown:
            raise StudyError(
                f"column {self.column!r} has no value {printable(', '.join(unknown))}",
                "by-column, into",
                f"its values: {printable(', '.join(rows))}",
            )
        cut: Assignment = {}
        for value, own in rows.items():
            pieces = self.into.get(value, 1)
            if pieces == 1:
                cut[value] = own
                continue
            dealt = _deal(dataset.take(own), np.full(pieces, len(own) / pieces), rng)
            cut |= {f"{value}-{i}": own[np.sort(part)] for i, part in enumerate(dealt, 1)}
        return cut


def _number(clients: int | None, name: str) -> int:
    if clients is None or clients < 1:
        raise StudyError(f"the partitioner needs the number of clients, not {clients}", name, "set clients = 4, say")
    return clients


def _agree(clients: int | None, rows: int, name: str) -> None:
    if clients is not None and clients != rows:
        raise StudyError(f"clients = {clients}, but {name} describes {rows}", name, f"leave clients out or set {rows}")


def _named(parts: Sequence[np.ndarray]) -> Assignment:
    return {f"client-{i}": np.sort(rows) for i, rows in enumerate(parts, 1)}


def _units(dataset: Dataset) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """What is handed out as one piece: rows of each, its (most frequent) label, its size."""
    labels, groups = dataset.train.labels(), group_ids(dataset.train)
    if groups is None:
        return list(np.arange(len(labels))[:, None]), labels, np.ones(len(labels), dtype=np.int64)
    _, table = group_table(labels, groups)
    order = np.argsort(groups, kind="stable")
    rows = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1) if len(groups) else []
    return rows, table.argmax(1), table.sum(1)


def _deal(dataset: Dataset, goal: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Hand the units out, class by class, each to the client that is furthest behind its goal.

    Single rows with equal goals: plain turns, so sizes and class counts differ by at most one. The last,
    unnamed receiver takes what the goals leave over.
    """
    units, labels, sizes = _units(dataset)
    n = int(sizes.sum())
    if len(units) < len(goal):
        what = "examples" if dataset.train.groups is None else "groups (patients, recordings)"
        raise StudyError(f"{len(goal)} clients cannot share {len(units)} {what}", dataset.name, "use fewer clients")
    rest = n - goal.sum()
    goal = np.append(goal, rest) if rest > 0.5 else goal
    given, done = np.zeros(len(goal)), 0.0
    parts: list[list[np.ndarray]] = [[] for _ in goal]
    order = rng.permutation(len(units))
    for u in order[np.lexsort((-sizes[order], labels[order]))]:
        done += sizes[u]
        lack = np.where(given + sizes[u] <= goal + 0.999, goal * (done / n) - given, -np.inf)
        i = int(np.argmax(np.round(lack if np.isfinite(lack).any() else goal - given, 9)))
        parts[i].append(units[u])
        given[i] += sizes[u]
    named = parts[:-1] if rest > 0.5 else parts
    return [np.concatenate(p) if p else np.empty(0, dtype=np.int64) for p in named]
