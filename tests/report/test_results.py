"""Results, frames and queries: against closed forms, and against what the store's lines say."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from leakline.errors import StoreError
from leakline.readings import Reading
from leakline.results import Cell, Results, read
from leakline.results.cell import FINISHED
from leakline.results.estimate import estimate
from leakline.study.files import read_lines


def made_by_hand(*cells):
    """Results of cells given as (seed, status, readings)."""
    made = (Cell({"seed": seed}, f"r{seed}", status, readings=tuple(readings)) for seed, status, readings in cells)
    return Results(Path(), "hand", "", 0.0, (), "", tuple(made))


def test_estimate_is_the_t_interval():
    values = [0.81, 0.84, 0.79, 0.9, 0.77]
    found = estimate(values)
    low, high = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    assert found.mean == pytest.approx(np.mean(values))
    assert found.sd == pytest.approx(np.std(values, ddof=1))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert found.seeds == 5


@pytest.mark.parametrize(("people", "repeats"), [(1.0, 0.0), (0.0, 1.0), (1.0, 0.65), (0.0, 0.0)])
def test_an_interval_over_two_things_that_vary_covers_whatever_moves_the_mean(people, repeats):
    """24 people by 10 repeats, 3,000 draws: at least 95 % covered, less 1.2 % for the draws (3 standard errors).

    The third case is where both move the mean alike; the wider of the two intervals covers 90 % there.
    """
    rng = np.random.default_rng(18)
    values = rng.normal(0, people, (3000, 24, 1)) + rng.normal(0, repeats, (3000, 1, 10))
    values = values + rng.normal(0, 1, (3000, 24, 10))
    covered = 0
    for one in values:
        over = estimate(one.mean(0)).beside(estimate(one.mean(1)))
        covered += over.low <= 0 <= over.high
    assert covered / 3000 >= 0.938


def test_an_interval_beside_none_stays_as_it_is():
    assert estimate([1.0, 2.0]).beside(estimate([1.0])) == estimate([1.0, 2.0])
    assert estimate([1.0]).beside(estimate([1.0, 2.0])) == estimate([1.0])
    assert estimate([1.0, 2.0]).beside(None) == estimate([1.0, 2.0])


def test_one_value_has_no_spread_and_none_is_none():
    assert estimate([0.5]).sd is None
    assert estimate([math.nan]) is None


def test_last_rounds_are_averaged_before_seeds():
    values = np.random.default_rng(0).random((3, 12))
    runs = [(s, FINISHED, [Reading("accuracy", values[s, r], round=r) for r in range(12)]) for s in range(3)]
    found = made_by_hand(*runs).where(measure="accuracy").last(5).over_seeds()
    per_seed = values[:, -5:].mean(1)
    assert found.mean == pytest.approx(per_seed.mean())
    assert found.sd == pytest.approx(per_seed.std(ddof=1))
    assert found.seeds == 3


def test_clients_are_averaged_unless_the_whole_was_measured():
    readings = [Reading("accuracy", v, round=0, client=c) for c, v in (("x", 0.2), ("y", 0.6))]
    assert made_by_hand((0, FINISHED, readings)).whole().over_seeds().mean == pytest.approx(0.4)
    readings.append(Reading("accuracy", 0.9, round=0))
    assert made_by_hand((0, FINISHED, readings)).whole().over_seeds().mean == 0.9


def test_unfinished_runs_do_not_count():
    runs = [(s, status, [Reading("accuracy", v, round=0)]) for s, v, status in ((0, 0.9, FINISHED), (1, 0.1, "failed"))]
    assert made_by_hand(*runs).finished.where(measure="accuracy").over_seeds().mean == 0.9
    assert made_by_hand(*runs).finished.where(measure="dice").over_seeds() is None
    assert [s.utility.mean for s in made_by_hand(*runs).settings] == [0.9]


def test_results_hold_every_line_of_the_store(made):
    found = read(made).frame
    lines = [
        json.loads(line)
        for run in (made / "runs").iterdir()
        for name in ("readings.jsonl", "attacks.jsonl")
        for line in (run / name).read_text().splitlines()
        if json.loads(line)["measure"] != "none"
    ]
    assert len(found) == len(lines) > 0
    assert sorted(found["value"]) == pytest.approx(sorted(line["value"] for line in lines))
    assert set(found["defence"]) == {"none", "global-dp"}
    assert set(found["by"]) == {"utility", "loss-threshold"}
    leaks = read(made).where(attack="loss-threshold", measure="auc").by("defence").values()
    assert [some.over_seeds().seeds for some in leaks] == [2, 2]
    assert read(made).missing == []


def test_what_is_missing_is_named(root, edit):
    def damage(grid):
        grid["cells"][0]["run"] = None
        grid["cells"][1] |= {"run": None, "error": "the sky fell\n  fix: wait"}
        grid["cells"][2]["run"] = "../../etc"

    edit(root / "study.json", damage)
    last = json.loads((root / "study.json").read_text())["cells"][3]["run"]
    (root / "runs" / last / "end.json").unlink()
    whats = [m.what for m in read(root).missing]
    assert whats == ["not run", "failed", "unreadable", "unfinished after 2 of 2 rounds"]
    assert set(read(root).frame["status"]) == {"unfinished"}


def test_an_attack_that_did_not_meet_a_run_is_missing(root):
    run = read(root).frame["run"].iloc[0]
    (root / "runs" / run / "attacks.jsonl").unlink()
    assert [(m.what, m.run) for m in read(root).missing] == [("no reading of loss-threshold", run)]


def test_garbage_lines_are_left_out(root):
    run = read(root).frame["run"].iloc[0]
    before = len(read(root).frame)
    with open(root / "runs" / run / "readings.jsonl", "a") as file:
        file.write('5\n{"measure": 3, "value": 1}\n{"measure": "x", "value": "y"}\n{"measure": "x", "va')
    (root / "runs" / run / "end.json").write_text("{")
    found = read(root).frame
    assert set(found.loc[found["run"] == run, "status"]) <= {"unreadable"}
    assert len(found) < before


def test_an_attack_with_new_settings_replaces_the_old_one(root, edit):
    edit(root / "study.json", lambda grid: [cell.update(attacks=["loss-threshold-other"]) for cell in grid["cells"]])
    run = read(root).frame["run"].iloc[0]
    path = root / "runs" / run / "attacks.jsonl"
    line = read_lines(path)[0]
    with open(path, "a") as file:
        file.write(json.dumps({**line, "value": 0.77, "attack": "loss-threshold-other"}) + "\n")
    mine = read(root).frame.query("run == @run and by == 'loss-threshold'")
    assert list(mine["value"]) == [0.77]


def test_a_store_of_another_format_is_refused(root, edit):
    edit(root / "study.json", lambda grid: grid.update(format=99))
    with pytest.raises(StoreError, match="format 99"):
        read(root)
    with pytest.raises(StoreError, match="not a run directory"):
        read(root.parent)


def test_a_report_opens_each_file_of_the_store_once(made, opens):
    found = opens(made)
    wanted = {"study.json", "study.toml"} | {
        f"runs/{run.name}/{name}"
        for run in (made / "runs").iterdir()
        for name in ("run.json", "end.json", "readings.jsonl", "attacks.jsonl", "rounds.jsonl", "log.jsonl")
    }
    assert found == dict.fromkeys(wanted, 1)


def test_a_query_narrows_results_to_results(made):
    results = read(made)
    accuracy = results.where(attack="utility", measure="accuracy", client=None)
    frame = results.frame.query("measure == 'accuracy' and round == 1")
    for defence, some in accuracy.last().by("defence").items():
        mine = frame[frame["defence"] == defence]["value"]
        assert some.over_seeds().mean == pytest.approx(mine.mean())
        assert some.over_seeds().seeds == len(mine) == 2
        assert some.ends() == (min(r.low for r in some.every), max(r.high for r in some.every))
    assert set(accuracy.by("round")) == {0, 1}
    assert [c.labels["seed"] for c in results.where(seed=(1, 7), defence=lambda d: d.startswith("g")).cells] == [1]
    assert results.where(defence="no such").over_seeds() is None
    assert {r.by for r in results.where(attack=lambda by: by != "utility").every} == {"loss-threshold"}
    assert list(results.by("strategy", "defence")) == [("fedavg", "none"), ("fedavg", "global-dp")]


def test_what_is_made_of_results_is_made_once_and_not_shared_with_a_part(made):
    results, calls = read(made), []

    def count(some):
        calls.append(some)
        return len(some.cells)

    assert [results.once(count), results.once(count), results.where(seed=0).once(count)] == [4, 4, 2]
    assert len(calls) == 2
