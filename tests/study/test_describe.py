"""The key under which a run is stored."""

from __future__ import annotations

import importlib
import linecache
import sys
from dataclasses import fields, replace

import pytest
import torch

import tiny
from leakline.bench.training import Plan
from leakline.data.base import Client
from leakline.defences import GlobalDP
from leakline.settings import Cohort, Engine, Judging
from leakline.strategies import MENU
from leakline.study.describe import describe, description, key_of


def key(fed) -> str:
    return key_of(description(fed))


def other_data():
    task = tiny.task()
    x = task.clients[1].train.x.clone()
    x[0, 0] += 1e-6
    moved = Client("b", replace(task.clients[1].train, x=x))
    return replace(task, clients=(task.clients[0], moved, task.clients[2]))


BASE = tiny.federation()
DIFFERENT = {
    "rounds": {"rounds": 3},
    "seed": {"seed": 1},
    "plan": {"plan": Plan(epochs=1, batch=4, learning_rate=0.2)},
    "strategy": {"strategy": MENU["fedavgm"]()},
    "defence": {"defences": (GlobalDP(1.0, 1.0),)},
    "noise": {"noise": "secret"},
    "model": {"model": tiny.perceptron},
    "one value of one client": {"task": other_data()},
    "order of clients": {"task": replace(tiny.task(), clients=tiny.task().clients[::-1])},
    "sampling": {"sampling": "fixed"},
    "test data": {"task": replace(tiny.task(), test=tiny.blobs(41, 90))},
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_whatever_changes_the_numbers_changes_the_key(case):
    assert key(BASE) != key(BASE.but(**DIFFERENT[case]))


def test_every_setting_of_a_federation_is_described_by_its_bare_name():
    told = description(BASE.but(secure_aggregation="assumed", evaluate="server", patience=3, batches={"a": 2}))
    told["federation"] |= description(BASE.but(max_norm=2.0, planned=9, average=0.5, initial_seed=1))["federation"]
    told["federation"] |= description(BASE.but(convolutions="batch-last", validation="server"))["federation"]
    inner = {f.name for kind in (Cohort, Judging, Engine) for f in fields(kind)}
    own = {f.name for f in fields(BASE)} - {"cohort", "judging", "engine"}
    assert set(told["federation"]) == own | inner
    quiet = {
        "secure_aggregation",
        "max_norm",
        "planned",
        "evaluate",
        "average",
        "patience",
        "validation",
        "batches",
        "initial_seed",
        "convolutions",
    }  # younger than the first runs
    assert set(description(BASE)["federation"]) == (own | inner) - quiet


def test_equal_federations_have_equal_keys_however_they_were_made():
    assert key(BASE) == key(tiny.federation())
    assert len(key(BASE)) == 16
    assert key(BASE).isalnum()


def test_the_strength_of_a_defence_is_part_of_the_key():
    keys = {key(replace(BASE, defences=(GlobalDP(z, c),))) for z in (1.0, 1.1) for c in (1.0, 2.0)}
    assert len(keys) == 4


def test_versions_and_threads_are_described():
    found = description(BASE)
    assert found["versions"]["torch"] == torch.__version__
    assert found["threads"] == 1


def test_what_cannot_be_described_is_refused():
    with pytest.raises(TypeError, match="object"):
        describe(object())


def test_changing_ones_own_model_or_defence_changes_the_key(tmp_path, monkeypatch):
    from leakline.models import resolve

    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "own_parts_of_mine.py"
    text = """
from dataclasses import dataclass

from torch import nn

from leakline.defences import Defence


def build(shape, classes):
    return nn.Linear(4, classes)


@dataclass(frozen=True)
class Mine(Defence):
    strength: float = 1.0
"""
    keys = set()
    for version in (text, text + "# another\n"):
        file.write_text(version)
        sys.modules.pop("own_parts_of_mine", None)
        linecache.clearcache()
        model = resolve("own_parts_of_mine:build")
        defence = importlib.import_module("own_parts_of_mine").Mine()
        keys |= {key_of({"model": describe(model)}), key_of({"defence": describe(defence)})}
        assert describe(model)["source"] == describe(defence)["source"] != "?"
    assert len(keys) == 4
    assert "source" not in describe(GlobalDP(1.0, 1.0))
