"""Cutting examples into parts: stratified by class, and never through a group.

A group is what belongs together: the slices of one patient, the windows of one recording. Neighbouring slices
are almost copies, so a group on both sides of a split would make every test too easy and every leak too
small.
"""

from __future__ import annotations

import hashlib

import numpy as np

from leakline.data.base import Data, Dataset


def stream(seed: int, *purpose: str) -> np.random.Generator:
    """The random stream of one purpose: it does not depend on what else was drawn before."""
    digest = hashlib.blake2b("\0".join(purpose).encode("utf-8", "replace"), digest_size=8).digest()
    return np.random.default_rng([seed, int.from_bytes(digest, "little")])


def apportion(total: int, weights: np.ndarray) -> np.ndarray:
    """Whole numbers that add up to ``total``, as near to proportional as they can be (largest remainders)."""
    exact = total * np.asarray(weights, dtype=np.float64) / float(np.sum(weights))
    # 1e-9: a share that is whole but for rounding must not lose one to a real fraction.
    parts = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(-(exact - parts), kind="stable")
    parts[order[: total - int(parts.sum())]] += 1
    return parts


def choose(labels: np.ndarray, groups: np.ndarray | None, share: float, rng: np.random.Generator) -> np.ndarray:
    """Positions of a stratified random part of about ``share`` of the examples, in ascending order.

    Without groups the part has exactly round(share * n) examples, and every class its share to within one.
    With groups whole groups are taken, so both hold only as well as the groups allow: a class of three groups can
    give a third or nothing. To have every class in the part comes before the exact share.
    """
    if not 0 <= share < 1:
        raise ValueError(f"a share must be at least 0 and below 1: {share}")
    return _choose_rows(labels, share, rng) if groups is None else _choose_groups(labels, groups, share, rng)


def _choose_rows(labels: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    values, counts = np.unique(labels, return_counts=True)
    wanted = int(np.floor(share * len(labels) + 0.5))
    if len(labels) == 0 or wanted == 0:
        return np.empty(0, dtype=np.int64)
    takes = apportion(min(wanted, len(labels) - 1), counts)
    picked = [
        rng.permutation(np.flatnonzero(labels == value))[:take] for value, take in zip(values, takes, strict=True)
    ]
    return np.sort(np.concatenate(picked))


def _choose_groups(labels: np.ndarray, groups: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    ids, table = group_table(labels, groups)
    totals = table.sum(0)
    goal, have = share * totals, np.zeros(table.shape[1])
    left = np.count_nonzero(table, axis=0)
    picked = []
    for i in _large_first(table, rng):
        before, after = np.abs(have - goal).sum(), np.abs(have + table[i] - goal).sum()
        # The last group of a class stays: a class that only the test part has cannot be learnt.
        if share > 0 and after <= before and not np.any(left[table[i] > 0] <= 1):
            picked.append(i)
            have = have + table[i]
            left = left - (table[i] > 0)
    if not picked and len(ids) > 1 and share * len(labels) >= 1:
        picked = [int(np.argmin(table.sum(1)))]
    return np.flatnonzero(np.isin(groups, ids[picked]))


def group_table(labels: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The groups, and how many examples of each label each of them has."""
    ids, g = np.unique(groups, return_inverse=True)
    values, c = np.unique(labels, return_inverse=True)
    table = np.zeros((len(ids), len(values)), dtype=np.int64)
    np.add.at(table, (g, c), 1)
    return ids, table


def _large_first(table: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Group positions, large groups first (small ones then fill the gaps), equal ones in random order."""
    shuffled = rng.permutation(len(table))
    return shuffled[np.argsort(-table.sum(1)[shuffled], kind="stable")]


def split(data: Data, share: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Positions of (the rest, a stratified part of about ``share``), groups kept whole."""
    return cut(data.labels(), group_ids(data), share, rng)


def cut(
    labels: np.ndarray, groups: np.ndarray | None, share: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The same for examples of which only labels and groups are known."""
    part = choose(labels, groups, share, rng)
    return np.setdiff1d(np.arange(len(labels)), part), part


def deal(labels: np.ndarray, groups: np.ndarray | None, folds: int, rng: np.random.Generator) -> np.ndarray:
    """The fold of every example: whole groups, dealt out class by class in turn, so that folds have like shares.

    Every group is in one fold, and folds differ by one group at most. A group counts for the class that it has most of.
    """
    ids, table = group_table(labels, np.arange(len(labels)) if groups is None else groups)
    commonest = table.argmax(1)
    seats, turn = rng.permutation(folds), 0
    fold = np.zeros(len(ids), dtype=np.int64)
    for value in rng.permutation(table.shape[1]):
        for i in rng.permutation(np.flatnonzero(commonest == value)):
            fold[i] = seats[turn % folds]
            turn += 1
    return fold[np.searchsorted(ids, np.arange(len(labels)) if groups is None else groups)]


def group_ids(data: Data) -> np.ndarray | None:
    """The groups as an array, or None."""
    return None if data.groups is None else np.asarray(data.groups.numpy(), dtype=np.int64)


def subset(labels: np.ndarray, groups: np.ndarray | None, limit: int | None, seed: int = 0) -> np.ndarray:
    """Positions of a stratified subset of at most about ``limit`` examples (all, if there are no more).

    Always the same subset for the same data: a limit is part of what a data set is, not of a run's
    randomness.
    """
    n = len(labels)
    if limit is None or limit >= n:
        return np.arange(n)
    return choose(labels, groups, limit / n, stream(seed, "limit"))


def limited(dataset: Dataset, limit: int | None) -> Dataset:
    """The same data set with at most so many training examples, whole groups and all classes: see `subset`."""
    rows = subset(dataset.train.labels(), group_ids(dataset.train), limit)
    return dataset if len(rows) == len(dataset.train) else dataset.take(rows)
