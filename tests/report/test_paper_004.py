"""Paper 004's tables from a store that was really run, and what it prints."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from leakline.cards import LAST_ROUND
from leakline.papers.intermediaries import PAPER, printed
from leakline.papers.intermediaries import figures as paper_004_figures
from leakline.papers.intermediaries import tables as paper_004
from leakline.papers.intermediaries.arms import arms, difference, percent
from leakline.papers.intermediaries.best_round import best_round
from leakline.papers.intermediaries.inside import inside
from leakline.report.charts.menu import save
from leakline.results import Estimate, Results, read
from leakline.results.table import FORMS, render
from leakline.study.check import check_study
from leakline.study.run import run_study
from leakline.study.spec import parse
from leakline.study.store import Store

ROUNDS, DELTA = 3, 0.1
PLAIN, SPLIT, STRICT = "z = 0.3, C = 1, no split", "z = 0.3, C = 1, v = 4", "z = 1.2, C = 1, v = 4"
HONEST, RULE = "z = 0.075, C = 1, no split", "z = 0.3, median, paper"
STUDY = """
name = "parts"
seeds = [0, 1]
noise = "seeded"
delta = 0.1
reproduces = "paper 004"
[data]
use = "phantoms"
kind = "segmentation"
size = 32
sites = 3
examples = 42
lesions = 1.0
partition = { use = "by-column", column = "site" }
server_test = 0.2
client_test = 0.0
[model]
use = "small-unet"
widths = [8, 8]
[training]
rounds = 3
batch = 8
optimiser = "adam"
learning_rate = 0.01
[strategies]
fedavg = { use = "fedavg", weighting = "even" }
[defences]
none = []
dp = [{ use = "intermediaries", noise_multiplier = 0.3, clip = 1.0, parts = 1 }]
split = [{ use = "intermediaries", noise_multiplier = 0.3, clip = 1.0, parts = 4 }]
strict = [{ use = "intermediaries", noise_multiplier = 1.2, clip = 1.0, parts = 4 }]
honest = [{ use = "global-dp", noise_multiplier = 0.075, clip = 1.0 }]
rule = [{ use = "intermediaries", noise_multiplier = 0.3, clip = 25.0, parts = "paper", start = 2, bound = "median" }]
[scenarios.table-1]
[scenarios.figure-2c-2.data]
clients = 2
[scenarios.figure-2c-2.defences]
dp = [{ use = "intermediaries", noise_multiplier = 0.3, clip = 1.0, parts = 1 }]
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    path = tmp_path_factory.mktemp("store") / "parts"
    outcomes = list(run_study(parse(STUDY), path, workers=1))
    assert [o.error for o in outcomes] == [""] * 14
    return read(path)


def gdp_delta(mu: float, epsilon: float) -> float:
    """Delta of mu-GDP as printed (Balle and Wang 2018), by another road than the library's."""
    from scipy.stats import norm

    second = math.exp(epsilon + norm.logcdf(-epsilon / mu - mu / 2))
    return float(norm.cdf(-epsilon / mu + mu / 2) - second)


def test_the_paper_s_six_epsilons_and_those_of_one_client(made: Path):
    rows = paper_004.epsilons(read(made)).rows
    assert [round(r[4], 1) for r in rows] == [r[3] for r in rows] == [245.6, 72.4, 36.9, 597.3, 224.7, 119.4]
    table = {(r[2], r[1]): dict(zip((1, 2, 3, 4, 5, 8), r[4:], strict=True)) for r in rows}
    known = {
        (0.01, 0.5): {2: 892, 3: 1939, 5: 5232, 8: 13171}, (0.01, 1.0): {2: 245.6, 3: 519, 5: 1365, 8: 3385},
        (0.01, 1.5): {2: 119, 3: 245.6, 5: 632, 8: 1545}, (0.1, 0.3): {2: 2307, 3: 5127, 5: 14102, 8: 35896},
        (0.1, 0.5): {2: 850, 3: 1876, 5: 5127, 8: 13004}, (0.1, 0.7): {2: 444, 3: 972, 5: 2642, 8: 6676},
    }  # fmt: skip
    for place, values in known.items():
        for v, epsilon in values.items():
            assert table[place][v] == pytest.approx(epsilon, abs=0.6), (place, v)


def test_seven_printed_pairs_are_impossible_and_no_others():
    task, found = printed.SEGMENTATION, set()
    for kind, rows in (("plain", task.plain), ("ours", task.ours)):
        for strategy, pairs in rows.items():
            for z, (dice, iou) in zip(task.z, pairs, strict=True):
                if printed.impossible(dice, iou):
                    found.add((kind, strategy, z))
    assert found == {
        ("plain", "fedadam", 0.3), ("ours", "fedadam", 0.5), ("ours", "fedadam", 0.7), ("ours", "fednova", 0.7),
        ("ours", "dp2-rmsprop", 0.3), ("ours", "dp2-rmsprop", 0.5), ("ours", "dp2-rmsprop", 0.7),
    }  # fmt: skip
    assert not printed.impossible((0.0, 0.0), (0.0, 0.0))


def test_arms_know_their_parts_and_both_epsilons(results: Results):
    found = {a.name: a for a in arms(results)}
    assert list(found) == ["no privacy", PLAIN, SPLIT, STRICT, HONEST, RULE]
    split, honest, strict = (
        found[SPLIT],
        found[HONEST],
        found[STRICT],
    )
    assert split.mu == pytest.approx(4 * math.sqrt(ROUNDS) / 0.3)
    assert split.client_epsilon == pytest.approx(honest.client_epsilon)
    assert strict.client_epsilon == pytest.approx(found[PLAIN].client_epsilon)
    assert split.sub_epsilon == pytest.approx(found[PLAIN].sub_epsilon)
    assert gdp_delta(math.sqrt(ROUNDS) / 0.3, split.sub_epsilon) == pytest.approx(DELTA)
    rule = found[RULE]
    worst = max(sum(f["parts"] ** 2 for f in facts) for facts in rule.rounds)
    assert rule.mu == pytest.approx(math.sqrt(worst) / 0.3)
    assert rule.from_data
    assert not split.from_data


def test_table_1_has_the_paper_s_rows_with_ours_beside_them(results: Results):
    table = paper_004.table_1(results)
    rows = {(r[0], r[1]): dict(zip(table.columns[2:], r[2:], strict=True)) for r in table.rows[:12]}
    first = rows["DP-FedAvg", "Dice"]
    assert first["no privacy (paper)"] == "87.69 ± 0.12"
    assert first["z = 0.3 (paper)"] == "41.43 ± 3.89"
    assert first["z = 0.5 (ours)"] is None
    for row in (first, rows["+Ours", "Dice"], rows["+v = 4 (not in the paper)", "Dice"]):
        assert isinstance(row["z = 0.3 (ours)"], Estimate)
    for label in ("DP-FedAvg", "+Ours", "+v = 4 (not in the paper)"):
        dice, iou = (rows[label, m]["z = 0.3 (ours)"].mean for m in ("Dice", "IoU"))
        assert iou <= dice
    split = rows["+v = 4 (not in the paper)", "epsilon of one client"]["z = 0.3 (ours)"]
    assert gdp_delta(4 * math.sqrt(ROUNDS) / 0.3, float(split.replace(",", ""))) == pytest.approx(DELTA, rel=0.01)
    assert rows["+Ours", "epsilon of one client"]["z = 0.3 (ours)"].endswith("*")
    marked = [cell for row in table.rows for cell in row if isinstance(cell, str) and cell.endswith("(!)")]
    assert len(marked) == 7


def test_equal_privacy_compares_with_an_unsplit_arm_that_is_as_private(results: Results):
    rows = {(r[1], str(r[2])): r for r in paper_004.equal_privacy(results).rows}
    assert rows[0.3, "4"][7] == HONEST
    assert rows[1.2, "4"][7] == PLAIN
    assert rows[0.3, "1"][7] == ""
    found = {a.name: a for a in arms(results)}
    ours, theirs = found[SPLIT].by_seed("dice"), found[HONEST].by_seed("dice")
    assert rows[0.3, "4"][8].mean == pytest.approx(100 * np.mean([ours[s] - theirs[s] for s in (0, 1)]))


def test_gain_takes_the_three_differences_of_each_split(results: Results):
    table = paper_004.gain(results)
    rows = {str(r[2]).partition(":")[0]: r for r in table.rows}
    assert list(rows) == ["4", "paper"]  # z = 1.2 has no arm without a split to gain on
    row = rows["4"]
    names = {a.name: a.by_seed("dice") for a in arms(results)}
    plain, split, strict, honest = (
        names[n]
        for n in (
            PLAIN,
            SPLIT,
            STRICT,
            HONEST,
        )
    )
    assert row[5].mean == pytest.approx(100 * np.mean([split[s] - plain[s] for s in (0, 1)]))
    assert row[7].mean == pytest.approx(100 * np.mean([strict[s] - plain[s] for s in (0, 1)]))
    assert row[10].mean == pytest.approx(100 * np.mean([split[s] - honest[s] for s in (0, 1)]))
    assert row[8] is None or row[8] == pytest.approx(row[7].mean / row[5].mean)


def test_the_figures_are_what_the_rounds_wrote_down(results: Results):
    table = paper_004_figures.figure_1b(results)
    assert [(r[0], r[1]) for r in table.rows] == [(0.3, 1), (0.3, 4)]
    store, found = Store(results.root), {a.name: a for a in arms(results)}
    means = []
    for cell in found[SPLIT].cells:
        records = [r["facts"]["noise_level"] for r in store.run(cell.key).rounds()]
        means.append(np.mean(records))
    assert table.rows[1][2].mean == pytest.approx(np.mean(means))
    assert table.rows[1][5:] == pytest.approx(
        [table.rows[0][at].mean * law for at, law in ((2, 1 / 4), (3, 4), (4, 1 / 16))]
    )
    missed = [table.rows[1][at].mean / table.rows[1][at + 3] for at in (2, 3)]
    ratio = table.rows[1][4].mean / table.rows[1][7]
    assert missed[0] / missed[1] == pytest.approx(ratio, rel=0.1)  # lambda = xi / phi, but for means over rounds
    lam = {r[2]: r for r in paper_004_figures.figure_2a(results).rows}[SPLIT]
    assert lam[5] == pytest.approx(np.median(found[SPLIT].facts("ratio")))
    assert lam[8] == pytest.approx(1 / 3)
    assert {r[2] for r in paper_004_figures.figure_2b(results).rows} >= {
        PLAIN,
        RULE,
    }
    assert [r[0] for r in paper_004_figures.figure_2c(results).rows] == [2]
    last = paper_004_figures.figure_2d(results).rows
    assert [r[0] for r in last] == [1, 2, 3, "largest step"]
    assert last[0][1] == 2


def test_every_form_and_every_drawing(results: Results, tmp_path: Path):
    for make in PAPER.tables.values():
        for form in FORMS:
            assert render(make(results), form)
    drawn = {path.stem: path.read_text() for path in save(results, "intermediaries", tmp_path)}
    assert set(drawn) == {"fig1b-0.3", "fig2a", "fig2b", "fig2c", "fig2d"}
    for text in drawn.values():
        ElementTree.fromstring(text)


def renamed(results: Results, scenario: str, rounds: int) -> Results:
    """The same store as if its Table 1 had been run under another name for so many rounds."""
    cells = []
    for cell in results.cells:
        label = scenario if cell.labels["scenario"] == "table-1" else cell.labels["scenario"]
        about = {**cell.about, "federation": {**cell.federation, "rounds": rounds}}
        cells.append(replace(cell, labels={**cell.labels, "scenario": label}, about=about))
    return replace(results, cells=tuple(cells))


def test_the_paper_s_own_data_are_table_1_at_its_rounds_only(results: Results):
    desk, whole = renamed(results, "prostate", ROUNDS), renamed(results, "prostate", printed.ROUNDS)
    assert arms(desk) == []
    assert [r[2] for r in paper_004.own_data(desk).rows] == [r[2] for r in paper_004.equal_privacy(results).rows]
    assert [a.name for a in arms(whole)] == [a.name for a in arms(results)]
    both = replace(whole, cells=(*whole.cells, *results.cells))
    assert {a.scenario for a in arms(both)} == {"prostate"}


INSIDE = """
name = "inside"
seeds = [0, 1]
noise = "seeded"
delta = 0.1
reproduces = "paper 004"
model = { use = "small-unet", widths = [4] }
training = { rounds = 1, optimiser = "sgd", learning_rate = 0.1, loss = "soft-dice" }
strategies = { fedavg = { use = "fedavg", weighting = "even" } }
[data]
use = "phantoms"
kind = "segmentation"
size = 32
sites = 2
examples = 24
lesions = 1.0
partition = { use = "by-column", column = "site" }
client_test = 0.0
[scenarios.table-1.defences]
dp = [{ use = "intermediaries", noise_multiplier = 1.0, clip = 1.0, parts = 1 }]
[scenarios.small-network.defences]
dp = [{ use = "intermediaries", noise_multiplier = 2.0, clip = 1.0, parts = 1 }]
[scenarios.large-network-fast.defences]
dp = [{ use = "intermediaries", noise_multiplier = 4.0, clip = 1.0, parts = 1 }]
[scenarios.patient-level.defences]
patient-none = [{ use = "dp-sgd", unit = "patient", noise_multiplier = 0, clip = 0.1, rate = 1.0 }]
patient-8 = [{ use = "dp-sgd", unit = "patient", epsilon = 8, delta = 0.001, clip = 0.1, rate = 1.0 }]
[scenarios.record-level.defences]
record-3 = [{ use = "dp-sgd", epsilon = 3, delta = 0.001, clip = 0.1, rate = 1.0 }]
"""


def test_promises_to_patients_stand_beside_those_to_clients_and_name_their_unit(tmp_path: Path):
    list(run_study(parse(INSIDE), tmp_path / "out", workers=1))
    found = read(tmp_path / "out")
    rows = {row[2]: row for row in inside(found).rows}
    plain = rows["z = 1, C = 1, no split"]
    assert (plain[3], plain[5]) == ("client", DELTA)
    assert gdp_delta(1.0, float(plain[4])) == pytest.approx(DELTA, abs=0.02)
    control = rows["z = 2, C = 1, no split"]
    assert (control[0], control[3], control[5]) == ("small-network", "client", DELTA)
    assert rows["z = 4, C = 1, no split"][0] == "large-network-fast"
    assert rows["patient-8"][3:6] == ("patient", "8.0", 0.001)
    assert rows["record-3"][3:6] == ("record", "3.0", 0.001)
    assert rows["patient-none"][3:6] == ("nobody", "", None)
    assert all(isinstance(row[6], Estimate) for row in rows.values())
    assert [a.scenario for a in arms(found)] == ["table-1"]
    for cell in found.where(defence="patient-8").cells:  # what the table prints is what the card promises
        promise = next(p for p in cell.card.promises if p.unit == "patient")
        assert (promise.epsilon, promise.delta) == (pytest.approx(8.0, rel=1e-3), 0.001)


CHOSEN = """
name = "chosen"
seeds = [0, 1]
noise = "seeded"
delta = 0.1
reproduces = "paper 004"
data = { use = "digits", limit = 300, clients = 3, client_test = 0.0, server_test = 0.2, server_validation = 0.2 }
model = "linear"
training = { rounds = 4, learning_rate = 0.5, validation = "server" }
strategies = { fedavg = { use = "fedavg", weighting = "even" } }
[scenarios.best-round.defences]
none = []
dp = [{ use = "intermediaries", noise_multiplier = 0.5, clip = 1.0, parts = 1 }]
"""


def test_the_best_round_by_validation_is_that_of_the_readings_and_is_marked(tmp_path: Path):
    list(run_study(parse(CHOSEN), tmp_path / "out", workers=1))
    found = read(tmp_path / "out")
    table = best_round(found)
    rows = {row[2]: row for row in table.rows}
    assert set(rows) == {"no privacy", "z = 0.5, C = 1, no split"}
    assert all(name.endswith("†") for name in table.columns[4:])
    assert "not covered by any promise" in table.note
    assert arms(found) == []  # no part of Table 1
    cells = found.where(defence="dp").cells
    chosen, then = [], []
    for cell in cells:
        by = {(r.measure, r.round): r.value for r in cell.readings}
        best = max(range(4), key=lambda i: by["validation", i])
        chosen.append(best + 1)
        then.append(100 * by["auc_micro", best])
        assert LAST_ROUND in cell.card.assumed
    row = rows["z = 0.5, C = 1, no split"]
    assert row[4].mean == pytest.approx(np.mean(chosen))
    assert row[5].mean == pytest.approx(np.mean(then))
    assert row[6].mean == pytest.approx(row[5].mean - row[3].mean)


def test_rounds_cannot_be_judged_by_validation_data_that_nobody_has():
    without = CHOSEN.replace(", server_validation = 0.2", "")
    assert any("there are none" in text for text in check_study(parse(without)).problems)


def test_intervals_of_shares_stay_within_their_range_and_differences_pair_seeds():
    wide = percent([0.01, 0.30])
    assert wide is not None
    assert wide.low == 0.0
    assert percent([0.5]).low is None
    assert difference({0: 0.5, 1: 0.7, 2: 0.1}, {0: 0.4, 1: 0.6}).mean == pytest.approx(10.0)
    assert difference({0: 0.5}, {1: 0.4}) is None


def test_a_store_of_another_study_gives_empty_tables(made: Path):
    for make in PAPER.tables.values():
        assert render(make(read(made)), "markdown")
