"""What a study does not compute twice: first rounds, warm starts, trials of networks. Nobody can tell from results."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from torch import nn

import tiny
from leakline.bench import pretraining
from leakline.bench.once import once
from leakline.defences import AdaptiveClip, DpSgd, GlobalDP, dp_sgd
from leakline.errors import StackError
from leakline.federation import initial_weights
from leakline.strategies import fedavg, fedmedian, fedopt, fedprox
from leakline.study import first_round
from leakline.study.store import Store
from leakline.study.train import train_run

TURNS = [0]


class Counting(nn.Linear):
    """A linear layer that counts the batches it is trained on."""

    def forward(self, x):
        TURNS[0] += self.training
        return super().forward(x)


def counting() -> nn.Module:
    return Counting(tiny.FEATURES, tiny.CLASSES)


@pytest.fixture(autouse=True)
def nothing_remembered():
    first_round._rounds.clear()
    pretraining._warmed.clear()
    TURNS[0] = 0


def trained(root, fed, forget=False) -> bytes:
    if forget:
        first_round._rounds.clear()
    run = train_run(Store(root), fed, workers=1)
    names = ("rounds.jsonl", "readings.jsonl", "end.json", "checkpoint-before.safetensors", "checkpoint.safetensors")
    return b"".join((run.path / name).read_bytes() for name in names if (run.path / name).exists())


ALIKE = {
    "none": {},
    "global-dp": {"defences": (GlobalDP(1.0, 0.5),)},
    "adaptive": {"defences": (AdaptiveClip(1.0),)},
    "median": {"strategy": fedmedian()},
    "max-norm": {"max_norm": 100.0, "rounds": 3},
}
ELSE = {
    "proximal": {"strategy": fedprox(mu=0.5)},
    "at clients": {"defences": (DpSgd(1.0, 0.5),)},
    "another seed": {"seed": 1},
    "another start": {"initial_seed": 3},
    "another plan": {"learning_rate": 0.2},
    "one by one": {"together": "off"},
    "fewer": {"sampling": "fixed", "participation": 0.67},
}


def alone(**changes):
    rate = changes.pop("learning_rate", 0.1)
    fed = tiny.federation(model=counting, strategy=fedavg("even"), together=changes.pop("together", "auto")).but(
        **changes
    )
    return replace(fed, plan=replace(fed.plan, learning_rate=rate))


@pytest.mark.parametrize("name", [*ALIKE, *ELSE])
def test_what_is_stored_does_not_depend_on_what_ran_before(name, tmp_path):
    fed = alone(**(ALIKE | ELSE)[name])
    fresh = trained(tmp_path / "fresh", fed, forget=True)
    first_round._rounds.clear()
    trained(tmp_path / "before", alone(noise="secret"))
    assert len(first_round._rounds) == 1
    assert trained(tmp_path / "after", fed) == fresh
    assert len(first_round._rounds) == (1 if name in ALIKE else 1 if name == "at clients" else 2)


def test_clients_that_answer_alike_train_once(tmp_path):
    one_round = {"rounds": 1, "together": "off"}
    trained(tmp_path, alone(**one_round))
    before = TURNS[0]
    assert before > 0
    trained(tmp_path, alone(**one_round, defences=(GlobalDP(1.0, 0.5),)))
    trained(tmp_path, alone(**one_round, strategy=fedmedian()))
    assert TURNS[0] == before
    trained(tmp_path, alone(**one_round, seed=1))
    assert TURNS[0] == 2 * before


def test_what_is_remembered_is_bounded_and_no_round_with_a_lost_client_is(tmp_path, monkeypatch):
    size = 4 * initial_weights(alone()).layout.size * 3
    monkeypatch.setattr(first_round, "MOST", 2 * size)
    for seed in range(4):
        trained(tmp_path, alone(seed=seed))
    assert len(first_round._rounds) == 2
    monkeypatch.setattr(first_round, "MOST", size - 1)
    first_round._rounds.clear()
    trained(tmp_path / "large", alone())
    assert not first_round._rounds
    monkeypatch.setattr(first_round, "MOST", 2 * size)
    broken = tiny.task((12, 0, 12))
    trained(tmp_path / "lost", replace(alone(), task=broken))
    assert not first_round._rounds


def test_functions_of_the_same_text_are_not_the_same_model(tmp_path):
    def model(activation):
        return lambda: nn.Sequential(nn.Linear(tiny.FEATURES, 5), activation(), nn.Linear(5, tiny.CLASSES))

    tanh, relu = (tiny.federation(model=model(kind), rounds=1) for kind in (nn.Tanh, nn.ReLU))
    assert torch.equal(initial_weights(tanh).vector, initial_weights(relu).vector)
    one = trained(tmp_path / "tanh", tanh)
    assert trained(tmp_path / "relu", relu) != one


def test_a_warm_start_is_trained_once_for_all_strategies_and_defences():
    warm = {"strategy": fedopt(), "rounds": 1}
    start = initial_weights(alone(**warm)).vector
    turns = TURNS[0]
    assert turns > 0
    other = initial_weights(alone(strategy=replace(fedavg(), warm_start=True), defences=(GlobalDP(1.0, 0.5),))).vector
    assert torch.equal(start, other)
    assert TURNS[0] == turns
    assert not torch.equal(initial_weights(alone(**warm, seed=1)).vector, start)
    assert TURNS[0] == 2 * turns
    pretraining._warmed.clear()
    assert torch.equal(initial_weights(alone(**warm)).vector, start)


def test_whether_records_mix_is_tried_once_for_all_seeds_and_refused_every_time():
    dp_sgd._TRIED.clear()
    stack = alone(defences=(DpSgd(1.0, 0.5),)).stack
    turns = []
    for seed in range(3):
        stack.check(alone(seed=seed))
        turns.append(TURNS[0])
    assert turns[0] > 0
    assert turns == turns[:1] * 3
    mixing = tiny.federation(model=lambda: Mixing(tiny.FEATURES, tiny.CLASSES), defences=(DpSgd(1.0, 0.5),))
    for _ in range(2):
        with pytest.raises(StackError, match="depends on the other examples"):
            mixing.stack.check(mixing)


class Mixing(nn.Linear):
    """Outputs that depend on the batch."""

    def forward(self, x):
        return super().forward(x - x.mean(0))


def test_once_keeps_the_newest_under_their_keys_and_makes_the_unhashable_every_time():
    kept, made = OrderedDict(), []

    def make():
        made.append(len(made))
        return made[-1]

    assert [once(kept, (key,), make, 2) for key in "abaca"] == [0, 1, 0, 2, 0]
    assert list(kept) == [("c",), ("a",)]
    assert [once(kept, ([],), make) for _ in range(2)] == [3, 4]
