"""Sharing out: every row once, exact counts, whole groups, the same answer for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakline.data import (
    CLIENT_INFERENCE,
    COUNT_TABLES,
    HOMOGENEOUS,
    NON_IID,
    ByColumn,
    Counts,
    Data,
    Dataset,
    Dirichlet,
    Even,
    Motion,
    Sizes,
    partition,
    table,
)
from leakline.data.split import apportion, choose, deal, stream
from leakline.data.tables import TRAIN
from leakline.errors import DataError, StudyError


def toy(labels, groups=None, columns=None, classes=None, test=None, traits=None):
    y = torch.as_tensor(np.asarray(labels), dtype=torch.int64)
    x = torch.arange(len(y), dtype=torch.float32)[:, None]
    g = None if groups is None else torch.as_tensor(np.asarray(groups), dtype=torch.int64)
    k = int(y.max()) + 1 if classes is None else classes
    names = tuple(f"class {i}" for i in range(k))
    return Dataset("toy", Data(x, y, g), test, names, columns=columns or {}, traits=traits or {})


def paper_like(groups=None):
    """The Alzheimer set's class counts: 5120 for training, 1280 for testing."""
    test = Data(torch.zeros(1280, 1), torch.as_tensor(np.repeat(np.arange(4), (172, 15, 634, 459))))
    return toy(np.repeat(np.arange(4), TRAIN), groups, test=test)


def rows_of(task):
    """The x of toy() is the row number, so parts can be traced."""
    parts = [c.train for c in task.clients] + [c.test for c in task.clients] + [task.test, task.validation]
    return np.concatenate([p.x[:, 0].numpy() for p in parts if p is not None])


label_lists = st.lists(st.integers(0, 3), min_size=30, max_size=120).map(lambda v: [0, 1, 2, 3, *v])


@settings(deadline=None, max_examples=60)
@given(
    label_lists,
    st.integers(1, 8),
    st.integers(0, 5),
    st.sampled_from(["even", "sizes", "dirichlet", "column"]),
)
def test_every_row_is_used_exactly_once(labels, clients, seed, kind):
    columns = {"site": [f"s{i % clients}" for i in range(len(labels))]}
    weights = np.arange(1, clients + 1) / np.arange(1, clients + 1).sum()
    partitioner = {
        "even": Even(),
        "sizes": Sizes(tuple(weights)),
        "dirichlet": Dirichlet(alpha=5.0, min_examples=1),
        "column": ByColumn("site"),
    }[kind]
    data = toy(labels, columns=columns)
    task = partition(data, partitioner, clients, client_test=0.25, server_test=0.0, seed=seed)
    assert sorted(rows_of(task).tolist()) == list(range(len(labels)))
    assert len(task.clients) == clients


@settings(deadline=None, max_examples=40)
@given(label_lists, st.integers(1, 6), st.integers(0, 3))
def test_even_is_equal_within_one_in_size_and_class(labels, clients, seed):
    rows = Even().assign(toy(labels), clients, np.random.default_rng(seed))
    sizes = [len(r) for r in rows.values()]
    assert max(sizes) - min(sizes) <= 1
    counts = np.stack([np.bincount(np.asarray(labels)[r], minlength=4) for r in rows.values()])
    assert (counts.max(0) - counts.min(0)).max() <= 1
    assert list(rows) == [f"client-{i}" for i in range(1, clients + 1)]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 500), st.lists(st.floats(0.01, 10), min_size=1, max_size=9))
def test_apportion_adds_up_and_keeps_quota(total, weights):
    parts = apportion(total, np.array(weights))
    quota = total * np.array(weights) / sum(weights)
    assert parts.sum() == total
    assert (np.abs(parts - quota) < 1 + 1e-6).all()


@pytest.mark.parametrize("name", ["homogeneous", "non-iid", "client-inference"])
def test_count_tables_of_the_paper_are_exact(name):
    task = partition(paper_like(), Counts(name), client_test=0.2, server_validation=0.5)
    rows = table(task)
    assert tuple(r.counts for r in rows[: len(task.clients)]) == COUNT_TABLES[name]
    assert [r.name for r in rows[-2:]] == ["server: validation", "server: test"]
    assert task.validation is not None
    assert task.test is not None
    assert len(task.validation) == len(task.test) == 640
    for client in task.clients:
        n = len(client.train) + len(client.test)
        assert len(client.test) == int(np.floor(0.2 * n + 0.5))


def test_count_tables_use_every_image():
    for counts in (HOMOGENEOUS, NON_IID, CLIENT_INFERENCE):
        assert tuple(np.sum(counts, axis=0)) == TRAIN
    assert CLIENT_INFERENCE[2][0] == 424
    assert [sum(row) for row in HOMOGENEOUS] == [1280] * 4
    assert [sum(row) for row in NON_IID] == [1792, 768, 2048, 512]


def test_count_table_scales():
    scaled = Counts("non-iid", scale=0.1).scaled()
    assert scaled.sum(0).tolist() == [72, 5, 257, 178]
    assert (np.abs(scaled - np.array(NON_IID) * 0.1) <= 1).all()


def test_counts_name_the_class_that_runs_short():
    with pytest.raises(StudyError, match="'class 1' runs short: the table asks for 5, 4 are"):
        partition(toy([0] * 9 + [1] * 4), Counts(((2, 2), (2, 3))), server_test=0.0)


def test_table_8_as_printed_runs_short():
    printed = (*CLIENT_INFERENCE[:2], (524, *CLIENT_INFERENCE[2][1:]))
    with pytest.raises(StudyError, match="'class 0' runs short: the table asks for 824, 724"):
        partition(paper_like(), Counts(printed))


def test_sizes_are_exact_as_shares_and_as_numbers():
    data = toy(np.arange(200) % 4)
    shares = Sizes((0.35, 0.15, 0.40, 0.10)).assign(data, None, np.random.default_rng(0))
    assert [len(r) for r in shares.values()] == [70, 30, 80, 20]
    numbers = Sizes((8, 32, 1, 128)).assign(data, None, np.random.default_rng(0))
    assert [len(r) for r in numbers.values()] == [8, 32, 1, 128]
    counts = np.bincount(np.asarray(data.train.y)[numbers["client-4"]])
    assert counts.max() - counts.min() <= 2
    part = Sizes((0.25, 0.25)).assign(data, None, np.random.default_rng(0))
    assert [len(r) for r in part.values()] == [50, 50]


def test_same_seed_same_task_other_seed_other_task():
    data = toy(np.arange(300) % 3)
    for partitioner in (Even(), Sizes((0.5, 0.3, 0.1, 0.1)), Dirichlet(1.0), Counts(((20, 20, 20),) * 4)):
        once, again, other = (partition(data, partitioner, 4, seed=s) for s in (1, 1, 2))
        assert [c.train.fingerprint() for c in once.clients] == [c.train.fingerprint() for c in again.clients]
        assert [c.train.fingerprint() for c in once.clients] != [c.train.fingerprint() for c in other.clients]


def test_dirichlet_skew_follows_alpha():
    data = toy(np.arange(2000) % 4)

    def spread(alpha):
        rows = Dirichlet(alpha, min_examples=1).assign(data, 5, np.random.default_rng(0))
        counts = np.stack([np.bincount(np.asarray(data.train.y)[r], minlength=4) for r in rows.values()])
        return (counts / counts.sum(1, keepdims=True)).std(0).mean()

    assert spread(1000.0) < 0.03 < 0.1 < spread(0.2)


def test_dirichlet_gives_up_with_advice():
    with pytest.raises(StudyError, match="raise alpha") as caught:
        Dirichlet(1e-3, min_examples=10, tries=20).assign(toy(np.arange(60) % 2), 6, np.random.default_rng(0))
    assert "min_examples" in caught.value.fix
    with pytest.raises(StudyError):
        Dirichlet(1e-310, min_examples=1, tries=3).assign(toy(np.arange(60) % 2), 6, np.random.default_rng(0))


def grouped(seed, n=60, per=4):
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n), rng.integers(1, per + 1, n))
    return toy(rng.integers(0, 3, n)[groups], groups)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 30), st.sampled_from([Even(), Sizes((0.5, 0.2, 0.3)), Dirichlet(2.0, min_examples=1)]))
def test_no_group_is_on_two_sides(seed, partitioner):
    data = grouped(seed)
    task = partition(data, partitioner, 3, server_validation=0.1, seed=seed)
    parts = [p for c in task.clients for p in (c.train, c.test)] + [task.test, task.validation]
    sets = [set(p.groups.tolist()) for p in parts if p is not None]
    assert sum(len(s) for s in sets) == len(set().union(*sets))
    assert sum(len(p) for p in parts if p is not None) == len(data.train)
    assert task.test is not None
    assert abs(len(task.test) / len(data.train) - 0.2) < 0.07


def test_even_by_group_is_near_equal_and_complete():
    data = grouped(3, n=200)
    rows = Even().assign(data, 4, np.random.default_rng(0))
    sizes = [len(r) for r in rows.values()]
    assert sum(sizes) == len(data.train)
    assert max(sizes) - min(sizes) <= 8


def test_counts_may_cut_groups_between_clients_but_client_splits_do_not():
    data = grouped(5, n=90)
    n = np.bincount(data.train.labels())
    half = tuple(tuple(int(v) for v in n // 2) for _ in range(2))
    task = partition(data, Counts(half), server_test=0.0)
    for client in task.clients:
        assert not set(client.train.groups.tolist()) & set(client.test.groups.tolist())
    assert [r.counts for r in table(task)] == list(half)


def test_stratified_split_takes_each_class_to_within_one():
    labels = np.repeat(np.arange(5), (100, 7, 33, 60, 1))
    part = choose(labels, None, 0.2, stream(0, "x"))
    assert len(part) == 40
    assert (np.abs(np.bincount(labels[part], minlength=5) - np.array([20, 1.4, 6.6, 12, 0.2])) < 1).all()


def test_a_class_of_one_group_stays_in_training():
    labels, groups = [0] * 8 + [1] * 2, [0, 0, 1, 1, 2, 2, 3, 3, 9, 9]
    part = choose(np.array(labels), np.array(groups), 0.5, stream(0, "x"))
    assert not set(part) & {8, 9}
    assert len(part) >= 2


def test_by_column_names_clients_and_carries_traits():
    who = ["sub-10"] * 5 + ["sub-2"] * 5 + ["<b>../../x</b>"] * 5
    traits = {"subject": {"sub-2": {"gender": "woman", "bmi_over_25": True}}}
    task = partition(
        toy([0, 1, 0, 1, 0] * 3, columns={"subject": who}, traits=traits), ByColumn("subject"), server_test=0
    )
    names = {c.name: c for c in task.clients}
    assert set(names) == {"sub-2", "sub-10", "b-..-..-x-b"}
    assert names["sub-2"].traits == {"gender": "woman", "bmi_over_25": True, "label": "sub-2"}
    assert names["b-..-..-x-b"].traits == {"label": "<b>../../x</b>"}
    few = partition(
        toy([0, 1] * 6, columns={"site": ["a"] * 9 + ["b"] * 3}),
        ByColumn("site", min_examples=4),
        server_test=0,
    )
    assert [c.name for c in few.clients] == ["a"]


def test_a_clients_split_does_not_depend_on_the_others():
    y, who = [0, 1] * 30, ["a"] * 20 + ["b"] * 20 + ["c"] * 20
    both = partition(toy(y, columns={"subject": who}), ByColumn("subject"), server_test=0)
    one = partition(toy(y[:20], columns={"subject": who[:20]}), ByColumn("subject"), server_test=0)
    assert one.clients[0].test.fingerprint() == both.clients[0].test.fingerprint()


def test_segmentation_rows_count_marked_images():
    y = torch.zeros(20, 1, 4, 4, dtype=torch.uint8)
    y[:8, :, 1, 1] = 1
    data = Dataset("m", Data(torch.zeros(20, 1, 4, 4), y), None, ("background", "lesion"), "segmentation")
    rows = table(partition(data, Even(), 2, server_test=0.0))
    assert [r.counts for r in rows] == [(6, 4), (6, 4)]
    empty = Dataset("m", Data(torch.zeros(20, 1, 4, 4), y * 0), None, ("background", "lesion"), "segmentation")
    with pytest.raises(DataError, match="no training mask"):
        partition(empty, Even(), 2)


@pytest.mark.parametrize(
    ("partitioner", "clients", "options", "message"),
    [
        (Even(), None, {}, "needs the number of clients"),
        (Even(), 0, {}, "needs the number of clients"),
        (Even(), 41, {"server_test": 0.0}, "41 clients cannot share 40 examples"),
        (Sizes((0.5, 0.5)), 3, {}, "sizes describes 2"),
        (Sizes((30, 30)), None, {}, "60 examples, there are 32"),
        (Sizes((0.999, 0.001)), None, {}, "no examples are left for client-2"),
        (Counts(((1, 1), (0, 0))), None, {}, "no examples are left for client-2"),
        (Counts("homogeneous"), None, {}, "the count table has 4 classes, toy has 2"),
        (Counts(((1, 1),)), 2, {}, "counts describes 1"),
        (ByColumn("site"), None, {}, "no column 'site'"),
        (ByColumn("who", min_examples=99), None, {}, "0 values with at least 99"),
        (ByColumn("who"), 9, {}, "has 2 values"),
        (Dirichlet(), 39, {}, "no draw gave each of 39 clients"),
        (Even(), 2, {"client_test": 1.0}, "client_test must be"),
        (Even(), 2, {"server_test": 0.6, "server_validation": 0.4}, "must leave something"),
    ],
)
def test_wrong_settings_are_said_clearly(partitioner, clients, options, message):
    data = toy([0, 1] * 20, columns={"who": ["a", "b"] * 20})
    with pytest.raises(StudyError, match=message) as caught:
        partition(data, partitioner, clients, **options)
    assert caught.value.fix


def test_a_class_nobody_has_and_an_empty_set():
    with pytest.raises(DataError, match="no training example has the class class 2"):
        partition(toy([0, 1] * 5, classes=3), Even(), 2)
    with pytest.raises(DataError, match="no training examples"):
        partition(toy([0, 1]).take([]), Even(), 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sizes(()),
        lambda: Sizes((0.5, -0.1)),
        lambda: Sizes((0.9, 0.2)),
        lambda: Counts("nonsense"),
        lambda: Counts(((1, 2), (3,))),
        lambda: Counts(((1, -2),)),
        lambda: Counts(scale=0),
        lambda: Dirichlet(0),
        lambda: Dirichlet(1.0, min_examples=0),
    ],
)
def test_wrong_values_are_refused_at_once(make):
    with pytest.raises(ValueError, match=r"."):
        make()


def test_groups_may_be_cut_through_when_asked():
    dataset = Motion(subjects=4, trials=3, seconds=10.0).load()
    for keep in (True, False):
        task = partition(dataset, ByColumn("subject"), server_test=0.0, keep_groups=keep)
        kept = [c.train.groups is not None for c in task.clients]
        assert all(kept) if keep else not any(kept)
        assert sum(len(c.train) + len(c.test) for c in task.clients) == len(dataset.train)


@given(st.lists(st.integers(0, 3), min_size=6, max_size=60), st.integers(2, 5), st.booleans(), st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_folds_have_every_group_once_and_like_shares(labels, folds, grouped, seed):
    y = np.array(labels)
    groups = np.arange(len(y)) // 2 if grouped else None
    dealt = deal(y, groups, folds, stream(seed, "folds"))
    ids = np.arange(len(y)) if groups is None else groups
    of_group = [set(dealt[ids == g].tolist()) for g in np.unique(ids)]
    assert all(len(found) == 1 for found in of_group)
    counts = np.bincount([found.pop() for found in of_group], minlength=folds)
    assert counts.max() - counts.min() <= 1
    if groups is None:
        by_class = [np.bincount(dealt[y == k], minlength=folds) for k in np.unique(y)]
        assert all(c.max() - c.min() <= 1 for c in by_class)


def test_over_all_folds_every_record_is_tested_once_and_never_trained_on_then():
    dataset = Motion(subjects=4, trials=3, seconds=5.0).load()
    tasks = [partition(dataset, ByColumn("subject"), server_test=0.0, fold=k) for k in range(5)]
    for clients in zip(*(task.clients for task in tasks), strict=True):
        held = torch.cat([c.test.x for c in clients]).flatten(1)
        whole = torch.cat([clients[0].train.x, clients[0].test.x]).flatten(1)
        assert torch.equal(torch.unique(held, dim=0), torch.unique(whole, dim=0))
        assert len(held) == len(whole)
        for c in clients:
            assert not set(c.train.groups.tolist()) & set(c.test.groups.tolist())
    again = partition(dataset, ByColumn("subject"), server_test=0.0, fold=0, seed=1)
    assert any(
        not torch.equal(a.test.groups, b.test.groups) for a, b in zip(tasks[0].clients, again.clients, strict=True)
    )


@pytest.mark.parametrize(("share", "fold"), [(0.2, 5), (0.3, 0), (0.0, 0), (0.2, -1)])
def test_a_fold_that_is_none_is_refused(share, fold):
    with pytest.raises(StudyError, match="five folds"):
        partition(toy([0, 1] * 20), Even(), 2, client_test=share, fold=fold)
