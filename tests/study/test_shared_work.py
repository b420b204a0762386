"""What a check says of work that cells share, where it can be counted by hand."""

from __future__ import annotations

from dataclasses import replace

import tiny
from leakline.attacks import LossThreshold
from leakline.defences import FedPer, GaussianNoise, GlobalDP
from leakline.strategies import MENU
from leakline.study.cells import Study, grid
from leakline.study.check import check_study
from leakline.study.shared_work import SharedWork

EVEN = MENU["fedavg"]("even")


def seen(*federations) -> SharedWork:
    work = SharedWork()
    for federation in federations:
        work.see(federation)
    return work


def test_equal_federations_are_one_run():
    work = seen(*(tiny.federation(seed=seed, rounds=5) for seed in (0, 1, 0)))
    assert (work.cells, len(work.runs), sum(work.runs.values()), work.first_rounds) == (3, 2, 10, 0)
    assert work.lines() == ["3 cells are 2 runs of 10 rounds in all; 1 cells are the run of another"]


def test_first_rounds_are_alike_where_all_that_differs_comes_after_training():
    plain = tiny.federation(strategy=EVEN, rounds=4, model=tiny.perceptron)
    later = [
        plain.but(defences=(GlobalDP(1.0, 0.5),)),
        plain.but(defences=(GlobalDP(2.0, 0.5),)),
        plain.but(strategy=MENU["fedmedian"]()),
        plain.but(rounds=9),
        plain.but(patience=3),
    ]
    other = [
        plain.but(seed=1),
        plain.but(defences=(GaussianNoise(1.0),)),  # at the clients: what is remembered has its noise
        plain.but(strategy=MENU["fedprox"](mu=0.1)),
        plain.but(defences=(FedPer(last=1),)),
        plain.but(sampling="poisson", participation=0.5),
        plain.but(sampling="poisson", participation=0.5, rounds=9),
    ]
    assert seen(plain, *later).first_rounds == len(later)
    assert seen(plain, *other).first_rounds == 0
    assert "5 first rounds (17% of all) are those of another run" in seen(plain, *later).lines()[-1]


def test_worlds_of_one_name_are_trained_once():
    work = seen(tiny.federation())
    work.ask({"a": 10.0, "b": 5.0})
    work.ask({"a": 10.0})
    assert work.as_dict()["rounds_of_worlds"] == 15.0
    assert (
        work.lines()[-1]
        == "attacks train worlds of 15 rounds in all; 10 rounds more are those of another cell or attack"
    )


def test_a_check_counts_all_cells():
    cells = grid(tiny.federation(strategy=EVEN), defences={"none": (), "dp": (GlobalDP(1.0, 0.5),)}, seed=range(2))
    twin = replace(cells[0], labels={**cells[0].labels, "defence": "twin"}, attacks={"loss": LossThreshold(10)})
    checked = check_study(Study("grid", (*cells, twin), attacks={"loss": LossThreshold(20)}))
    assert checked.as_dict()["shared"] == {
        "cells": 5, "runs": 4, "rounds": 8, "rounds_of_worlds": 0, "rounds_of_worlds_asked_for": 0.0,
        "first_rounds_alike": 2, "warm_starts_alike": 0,
    }  # fmt: skip


def test_warm_starts_are_told_apart_by_what_they_are_made_from():
    warm = tiny.federation(strategy=MENU["fedavg"](), rounds=3).but(strategy=MENU["fedavgm"](warm_start=True))
    work = seen(warm, warm.but(rounds=5), warm.but(seed=1))
    assert (work.starts.total(), len(work.starts)) == (3, 2)
    assert any(line.startswith("1 of 3 warm starts are those of another run") for line in work.lines())
