"""Attacks that belong to a scenario, and clients whose batches differ: from the study's file to the store."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tiny
from leakline.attacks import LossThreshold
from leakline.bench.training import Job, Plan, train
from leakline.errors import StudyError
from leakline.federation import federate
from leakline.messages import Order
from leakline.randomness import Stream
from leakline.results import read
from leakline.runtimes.client import answer
from leakline.study.cells import Study, grid
from leakline.study.run import check_cell, run_study
from leakline.study.spec import parse

FILE = """
name = "two"
[data]
use = "digits"
limit = 60
clients = 3
[model]
use = "mlp"
hidden = [4]
[training]
rounds = 1
batches = { client-2 = 5 }
[[attacks]]
use = "loss-threshold"
[scenarios.as-it-is]
[scenarios.other]
attacks = [{ name = "more", use = "loss-threshold", records = 7 }]
[scenarios.none]
attacks = []
"""


def names(study: Study) -> list[list[str]]:
    return [list(study.attacks_on(cell)) for cell in study.cells]


def test_a_scenario_may_name_its_own_attacks():
    study = parse(FILE)
    assert names(study) == [["loss-threshold"], ["more"], []]
    assert study.attacks_on(study.cells[1])["more"] == LossThreshold(records=7)
    assert study.every_attack == ("loss-threshold", "more")
    assert names(study.only(["scenario=other"])) == [["more"]]
    assert names(study.unattacked()) == [[], [], []]


def test_a_mistake_in_a_scenarios_attack_is_caught():
    with pytest.raises(StudyError, match="scenarios.other.attacks.0.recrods"):
        parse(FILE.replace("records = 7", "recrods = 7"))


def test_cells_are_met_by_their_own_attacks_and_nothing_is_called_missing(tmp_path):
    base = tiny.federation(rounds=1)
    first, second = grid(base, seed=[0, 1])
    study = Study("own", (first, replace(second, attacks={"more": LossThreshold(9)})), {"loss": LossThreshold(8)})
    assert [o.error for o in run_study(study, tmp_path, workers=1)] == ["", ""]
    cells = read(tmp_path).cells
    assert [{r.by for r in cell.attacks} for cell in cells] == [{"loss"}, {"more"}]
    assert [cell.asked for cell in cells] == [("loss",), ("more",)]
    assert read(tmp_path).missing == []


def test_a_clients_own_batch_size_is_used_and_described():
    federation = tiny.federation(rounds=1, plan=Plan(batch=4), batches={"b": 6})
    assert [federation.plan_of(name).batch for name in ("a", "b", "c")] == [4, 6, 4]
    start = next(federate(federation)).sent
    bench = federation.bench()
    (update,) = answer(federation, bench, Order("b", 0, start, {}), {})
    job = Job(start, federation.clients["b"].train, Stream(federation.seed, 0, "b", "train"), 0)
    assert update.steps == 2
    assert torch.equal(update.delta.vector, train(bench, job, Plan(batch=6)).change.vector)


def test_workers_see_the_same_batches(tmp_path):
    federation = tiny.federation(rounds=2, plan=Plan(batch=4), batches={"b": 6})
    study = Study("w", grid(federation, seed=[0]))
    weights = []
    for workers in (1, 2):
        (outcome,) = run_study(study, tmp_path / str(workers), workers=workers)
        weights.append(outcome.run.final_weights().vector)
    assert torch.equal(*weights)


def test_batches_of_a_client_that_is_not_there_are_refused_before_training():
    wrong = parse(FILE.replace("client-2", "client-9")).cells[0].federation()
    with pytest.raises(StudyError, match="client-9"):
        check_cell(wrong, {})
    with pytest.raises(StudyError, match="batches"):
        parse(FILE.replace("client-2 = 5", "client-2 = 0"))


def test_the_number_of_steps_of_a_turn():
    for plan, examples, steps in (
        (Plan(batch=4), 10, 3), (Plan(batch=4, drop_last=True), 10, 2), (Plan(batch=0, epochs=3), 10, 3),
        (Plan(batch=32), 10, 1), (Plan(batch=2, epochs=2, max_steps=7), 10, 7),
    ):  # fmt: skip
        assert plan.steps_of(examples) == steps
        assert len(list(plan.batches(examples, Stream(0, 0, "a", "t")))) == steps
