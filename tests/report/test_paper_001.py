"""Paper 001's tables from a small store made by hand, against numbers worked out by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from leakline.cards import Card, Promise
from leakline.leakage import mean_interval
from leakline.messages import Round, Update
from leakline.papers.gradient_inversion import PAPER, printed
from leakline.papers.gradient_inversion import charts as paper_001_charts
from leakline.papers.gradient_inversion import figures as paper_001_figures
from leakline.papers.gradient_inversion import tables as paper_001
from leakline.papers.gradient_inversion.claims import clearest, headline, side, until
from leakline.papers.gradient_inversion.means import ONE_IMAGE, Measured, measured, paired, widened
from leakline.papers.gradient_inversion.turns import turns
from leakline.readings import Reading
from leakline.report.charts.interactive import as_json
from leakline.report.charts.menu import save
from leakline.report.papers import charts_of, tables_of
from leakline.report.tables.menu import save_all
from leakline.results import Results, read
from leakline.results.table import FORMS, render
from leakline.study.describe import FORMAT
from leakline.study.files import append, read_json, write_json
from leakline.study.store import Store
from leakline.weights import Entry, Layout, Weights

NAMES = list(PAPER.tables)
FILTER = "leakline.defences.percentile_gaussian:PercentileGaussian"
PRIVATE = "leakline.defences.dp_sgd:DpSgd"


@dataclass(frozen=True)
class Got:
    """What an attack got from one client: SSIM, the prior's, RDLV, its null, p; n images with an interval of +-0.1."""

    client: str
    ssim: float
    prior: float
    rdlv: float
    null: float = -0.1
    p: float = 0.01
    n: int = 1
    round: int = 0
    iip: tuple[float, float, float] | None = None

    def readings(self, attack: str) -> list[Reading]:
        where: dict[str, Any] = {"client": self.client, "round": self.round, "by": attack}
        ends = [(v - 0.1, v + 0.1) if self.n > 1 else (None, None) for v in (self.ssim, self.rdlv)]
        took, luck = {"iterations": 120, "seconds": 30.0}, {"p": self.p, "decoys": 99}
        found = [
            Reading("ssim", self.ssim, *ends[0], n=self.n, chance=self.prior, about=took, **where),
            Reading("psnr", 20.0, n=self.n, **where),
            Reading("rdlv", self.rdlv, *ends[1], n=self.n, chance=self.null, about=luck, **where),
        ]
        if self.iip is not None:
            score, exact, cosine = self.iip
            told = {"p": 0.002, "pool": 1000}
            found += [
                Reading("iip", score, n=self.n, chance=0.05, about=told, **where),
                Reading("iip-exact", exact, n=self.n, chance=0.01, about=told, **where),
                Reading("cosine", cosine, n=self.n, chance=0.6, **where),
            ]
        return found


class Maker:
    """Writes a store cell by cell through the project's own `Store` and `Run`."""

    def __init__(self, root: Path) -> None:
        self.root, self.store = root, Store(root)
        self.cells: list[dict[str, Any]] = []

    def add(
        self,
        scenario: str,
        defence: str,
        stack: Sequence[Mapping[str, Any]] = (),
        got: Mapping[str, Sequence[Got]] | None = None,
        accuracy: float = 0.9,
        epsilon: float | None = None,
        seed: int = 0,
        sizes: Mapping[str, int] | None = None,
        model: str = "leakline.models.resnet:ResNet",
    ) -> Any:
        key = f"run{len(self.cells):04d}"
        run = self.store.run(key)
        clients = {name: n for found in (got or {}).values() for name, n in ((g.client, g.n) for g in found)}
        sizes = sizes or clients
        federation = {
            "task": {"clients": {c: {"train": f"data:{scenario}-{seed}-{c}"} for c in sizes}},
            "model": {"use": model}, "plan": {"batch": 4, "epochs": 1, "learning_rate": 0.1, "decay_every": 2},
            "batches": [["client-5", 8]], "defences": list(stack), "rounds": 1,
        }  # fmt: skip
        partition = [{"name": c, "counts": [n, 0], "train": n, "test": 0} for c, n in sizes.items()]
        partition.append({"name": "server: test", "counts": [30, 70], "train": 0, "test": 100})
        run.open({"federation": federation, "partition": partition})
        ends = Reading("accuracy", accuracy, accuracy - 0.05, accuracy + 0.05, 100, round=0)
        append(run.path / "readings.jsonl", [Reading("accuracy", 0.1, n=100, round=0).line(), ends.line()])
        for attack, found in (got or {}).items():
            lines = [reading for one in found for reading in one.readings(attack)]
            whole = Reading("rdlv", 9.0, 8.0, 9.5, len(lines), by=attack, chance=0.0)
            run.add_attack(f"{attack}-0000abcd", [*lines, whole])
        promise = (
            Promise("DpSgd", "record", epsilon=epsilon, delta=1e-5, advantage=0.9)
            if epsilon
            else Promise("none", reason="none")
        )
        run.finish("finished", card=Card(f"{scenario} {defence}", (promise,)).as_dict())
        self.cells.append({"labels": {"scenario": scenario, "defence": defence, "seed": seed}, "run": key})
        return run

    def done(self, name: str = "gradient-inversion") -> Results:
        grid = {"format": FORMAT, "name": name, "title": "made by hand", "delta": 1e-5, "notes": []}
        self.store.write_study("", {**grid, "cells": self.cells})
        return read(self.root)


OURS = [Got("client-1", 0.6, 0.4, 0.5, p=0.01), Got("client-2", 0.5, 0.5, 0.0, p=0.5), Got("client-3", 0.7, 0.5, 0.4)]
GEIPING = [Got("client-1", 0.3, 0.4, -0.25), Got("client-2", 0.4, 0.5, -0.2), Got("client-3", 0.6, 0.5, 0.2)]
SIZES = {"client-1": 8, "client-3": 128, "client-5": 8, "client-9": 1}


def keep(run: Any, index: int, client: str, weights: Sequence[float]) -> None:
    """Two weights and one buffer, which no norm may count."""
    layout = Layout((Entry("w", (2,)), Entry("mean", (1,), buffer=True)))
    sent = Weights(layout, torch.zeros(3))
    update = Update(client, Weights(layout, torch.tensor([*weights, 100.0])), examples=1, steps=3)
    run.kept.add(Round(index, sent, (update,), (client,), (), sent))


def embed(run: Any, client: str, rows: Mapping[str, Sequence[Sequence[float]]]) -> None:
    folder = run.media("grad+bn-0000abcd") / "round-0000" / client
    folder.mkdir(parents=True)
    vectors = np.array([v for some in rows.values() for v in some], dtype=np.float32)
    np.save(folder / "embedding.npy", vectors, allow_pickle=False)
    kinds = [kind for kind, some in rows.items() for _ in some]
    (folder / "embedding.json").write_text(json.dumps({"kind": kinds, "client": client, "round": 0, "noise": 0.0}))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    maker = Maker(tmp_path_factory.mktemp("store") / "inversion")
    maker.add("one-image", "none", got={"geiping": GEIPING, "grad+bn": OURS, "no-statistics": GEIPING[:1]})
    smooth = [Got("client-1", 0.95, 0.4, 1.375)]
    maker.add("smooth", "none", got={"grad+bn": smooth, "dlg": smooth}, model="leakline.models.small:SmallCNN")
    few = [Got("client-1", 0.6, 0.4, 0.5), Got("client-2", 0.45, 0.5, -0.1, n=2), Got("client-4", 0.3, 0.5, -0.4, n=8)]
    maker.add("images", "none", got={"grad+bn": few})
    maker.add("steps-1", "none", got={"grad+bn": OURS})
    maker.add("steps-4", "none", got={"grad+bn": GEIPING})
    maker.add("different", "none", got={"grad+bn": [Got("client-1", 0.3, 0.5, -0.4, n=2)]})
    first = {0: (0.5, 0.30, 1.0), 5: (0.45, 0.15, 1.0), 10: (0.3, -0.2, 0.0)}
    for sigma0, (ssim, rdlv, iip) in first.items():
        got = [
            Got("client-9", ssim, 0.4, rdlv, iip=(iip, iip, 0.9)),
            Got("client-1", 0.3, 0.5, -0.4, n=8, iip=(0.05, 0.0, 0.7)),
        ]
        stack = [{"use": FILTER, "sigma0": float(sigma0)}]
        run = maker.add("nine-clients", f"sigma0-{sigma0}", stack, {"grad+bn": got}, 0.9 - sigma0 / 20, sizes=SIZES)
        if sigma0 == 0:
            keep(run, 0, "client-9", (3.0, 4.0))
        lost = [[0.0, 1.0, sigma0 / 10]] * 2
        embed(
            run,
            "client-1",
            {"original": [[1.0, 0.0, 0.1], [0.9, 0.1, 0.0]], "prior": [[0.5] * 3], "reconstruction": lost},
        )
    maker.add("nine-clients", "fedbn", [{"use": "x:FedBN"}], {"grad+bn": [Got("client-9", 0.42, 0.4, 0.05)]}, 0.8)
    late = [Got("client-9", 0.5, 0.4, 0.25), Got("client-9", 0.6, 0.4, 0.5, round=2)]
    maker.add("fundus", "none", got={"grad+bn": OURS})
    keep(maker.add("phase", "none", got={"grad+bn": late}, sizes=SIZES), 2, "client-9", (0.6, 0.8))
    maker.add("dp-sgd", "none", got={"no-statistics": OURS})
    noisy = [{"use": PRIVATE, "noise_multiplier": 0.5, "clip": 1.0}]
    maker.add("dp-sgd", "dp-sgd-0.5", noisy, {"no-statistics": GEIPING}, 0.6, epsilon=12.5)
    return maker.done()


def row_of(table: Any, *start: Any) -> dict[str, Any]:
    """The one row that begins so, by column."""
    found = [row for row in table.rows if row[: len(start)] == start]
    assert len(found) == 1, [row[:4] for row in table.rows]
    return dict(zip(table.columns, found[0], strict=True))


def test_figure_3_averages_over_images_with_an_interval_and_both_baselines(results: Results):
    table = paper_001.figure_3(results)
    assert [row[0] for row in table.rows] == ["grad+bn", "geiping", "no-statistics"]
    ours = row_of(table, "grad+bn")
    assert ours["SSIM"] == pytest.approx(0.6)
    assert ours["SSIM of the prior"] == pytest.approx(1.4 / 3)
    assert ours["RDLV"] == pytest.approx(0.3)
    assert ours["null of RDLV"] == pytest.approx(-0.1)
    assert (ours["n"], ours["iterations"], ours["minutes"]) == (3, 120, 0.5)
    assert ours["p of single updates"] == "0.01 to 0.5; at most 0.05 in 2 of 3"
    mean = mean_interval([0.5, 0.0, 0.4])
    assert ours["RDLV 95 %"] == f"[{mean.low:.3f}, {mean.high:.3f}]"
    alone = row_of(table, "no-statistics")
    assert alone["RDLV 95 %"] == alone["SSIM 95 %"] == ONE_IMAGE
    assert alone["p of single updates"] == "0.01"
    assert "no proof of safety" in table.note


def test_networks_stand_side_by_side_and_differences_are_paired(results: Results):
    table = paper_001.networks(results)
    assert {row[1] for row in table.rows} == {"ResNet", "SmallCNN"}
    assert row_of(table, "one-image", "ResNet", "client-2", "geiping")["SSIM"] == 0.4
    assert row_of(table, "smooth", "SmallCNN", "mean over images", "dlg")["SSIM"] == 0.95
    assert not [row for row in table.rows if row[3] == "no-statistics"]
    gaps = paper_001.differences(results)
    ssim, rdlv = (
        row_of(gaps, "one-image", "ResNet", "geiping", "SSIM"),
        row_of(gaps, "one-image", "ResNet", "geiping", "RDLV"),
    )
    assert ssim["difference"] == pytest.approx(0.5 / 3)
    assert rdlv["difference"] == pytest.approx((0.75 + 0.2 + 0.2) / 3)
    assert (rdlv["n"], rdlv["sets of images where ours is more"], rdlv["p (sign test)"]) == (3, 3, 1 / 8)
    mean = mean_interval([0.75, 0.2, 0.2])
    assert rdlv["95 % interval"] == f"[{mean.low:.3f}, {mean.high:.3f}]"
    same = row_of(gaps, "smooth", "SmallCNN", "dlg", "SSIM")
    assert (same["difference"], same["95 % interval"], same["p (sign test)"]) == (0.0, ONE_IMAGE, 1.0)


def test_table_1_says_what_was_not_run(results: Results):
    table = paper_001.table_1(results)
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert rows["GradInversion"]["RDLV, one image, one step"] == "not run"
    assert rows["the paper's, as released"]["RDLV, one image, one step"] == "not run"
    assert rows["ours, after the paper's"]["RDLV, one image, one step"] == pytest.approx(0.3)
    assert rows["ours, after the paper's"]["RDLV, one image, 4 steps, smooth network"] == pytest.approx(-0.25 / 3)
    assert rows["Geiping"]["n, one image, one step"] == 3
    assert rows["Geiping"]["RDLV, one image, 4 steps, smooth network"] == "not run"


def test_table_2_has_batches_steps_and_images_as_run(results: Results):
    table = paper_001.table_2(results)
    one, three, five, nine = (row_of(table, f"client-{i}") for i in (1, 3, 5, 9))
    assert (one["batch (paper)"], one["batch (ours)"], one["steps per round (paper)"]) == (4, 4, 2)
    assert (one["images (ours)"], one["steps per round (ours)"]) == (8, 2)
    assert (three["images (paper)"], three["steps per round (ours)"], three["attacked"]) == (128, 32, False)
    assert (five["batch (ours)"], five["steps per round (ours)"]) == (8, 1)
    assert (nine["batch (ours)"], nine["batch (paper)"], nine["attacked"]) == (1, 1, True)
    assert nine["steps per round (ours)"] == 3  # as the kept update says
    assert sum(client.images for client in printed.CLIENTS) == 1360 + 1  # the paper's sum leaves out the shared image


def test_figures_4_to_6_by_round_images_and_steps(results: Results):
    four = paper_001_figures.figure_4(results)
    assert row_of(four, "phase", "client-9", 3)["RDLV"] == 0.5
    assert row_of(four, "nine-clients", "client-1", 1)["RDLV 95 %"] == "[-0.500, -0.300]"
    five = paper_001_figures.figure_5(results)
    late = row_of(five, "phase", 3)
    assert late["norm of the update"] == pytest.approx(1.0)  # not the buffer
    assert late["learning rate"] == pytest.approx(0.01)
    assert row_of(five, "fundus", 1)["n"] == 3
    assert row_of(five, "phase", 1)["norm of the update"] is None
    assert "only where the store kept" in five.note
    images = paper_001_figures.figure_6a(results)
    assert [(row[0], row[5]) for row in images.rows] == [(1, 0.5), (2, -0.1), (8, -0.4)]
    assert row_of(images, 8)["SSIM 95 %"] == "[0.200, 0.400]"
    steps = paper_001_figures.figure_6b(results)
    assert [(row[:2], row[3]) for row in steps.rows] == [
        (("different images", 2), pytest.approx(0.3)),
        (("the same", 1), pytest.approx(0.6)),
        (("the same", 4), pytest.approx(1.3 / 3)),
    ]


def test_noise_brings_the_high_risk_client_down_to_the_prior(results: Results):
    six = paper_001_figures.figure_6c(results)
    assert [(row[0], row[2], row[5]) for row in six.rows] == [(0, 0.5, True), (5, 0.45, True), (10, 0.3, False)]
    assert {row[3] for row in six.rows} == {ONE_IMAGE}
    seven = paper_001_figures.figure_7(results)
    assert row_of(seven, "client-9")["first at or below the prior"] == "sigma0 = 10"
    assert row_of(seven, "client-1")["first at or below the prior"] == "sigma0 = 0"
    eight = paper_001_figures.figure_8a(results)
    assert [row[2] for row in eight.rows[:2]] == ["client-1", "client-9"]
    assert {row[0] for row in eight.rows} == {"nine-clients"}
    assert len(eight.rows) == 6
    assert row_of(eight, "nine-clients", 5.0, "client-9")["RDLV"] == 0.15
    assert row_of(eight, "nine-clients", 5.0, "client-1")["95 % interval"] == "[-0.500, -0.300]"


def test_accuracy_stands_against_no_noise_and_the_commonest_class(results: Results):
    table = paper_001_figures.figure_8b(results)
    worst = row_of(table, "nine-clients", 10.0)
    assert worst["accuracy"] == pytest.approx(0.4)
    assert worst["95 % interval"] == "[0.350, 0.450]"
    assert worst["less that at sigma0 = 0"].mean == pytest.approx(0.4 - 0.9)
    assert worst["the same over all rounds"].mean == pytest.approx((0.4 - 0.9) / 2)  # each begins at 0.1
    assert row_of(table, "nine-clients", 0.0)["less that at sigma0 = 0"] is None
    assert (worst["commonest class"], worst["n"]) == (0.7, 100)


@pytest.mark.parametrize(
    ("noised", "verdict"), [((0.7, 0.71, 0.72), "yes"), ((0.95, 0.96, 0.97), "no"), ((0.7, 0.99, 0.9), "open")]
)
def test_what_noise_costs_at_the_end_is_paired_by_seed(tmp_path: Path, noised: Sequence[float], verdict: str):
    maker = Maker(tmp_path / "store")
    for seed, (free, value) in enumerate(zip((0.9, 0.91, 0.92), noised, strict=True)):
        maker.add("utility", "sigma0-0", accuracy=free, seed=seed, sizes=SIZES)
        for sigma0, at in ((1.0, free), (50.0, value)):
            stack = [{"use": FILTER, "sigma0": sigma0}]
            maker.add("utility", f"sigma0-{sigma0:g}", stack, accuracy=at, seed=seed, sizes=SIZES)
    made = maker.done()
    claim = next(row for row in headline(made).rows if row[0].startswith("the model is less accurate"))
    assert (claim[3], claim[4]) == (verdict, 3)
    differences = np.array(noised) - (0.9, 0.91, 0.92)
    assert f"sigma0 = 50: {differences.mean():.3f}" in claim[2]
    assert "sigma0 = 1: 0.000 ± 0.000" in claim[2]
    assert row_of(paper_001_figures.figure_8b(made), "utility", 50.0)["less that at sigma0 = 0"].seeds == 3


def test_dp_sgd_has_its_epsilon_from_the_card(results: Results):
    table = paper_001_figures.figure_9(results)
    assert [row[:4] for row in table.rows] == [
        ("no DP-SGD", "none", "none", "no-statistics"),
        (0.5, table.rows[1][1], 12.5, "no-statistics"),
    ]
    assert table.rows[1][7] == pytest.approx(-0.25 / 3)
    assert table.rows[1][-2] == 0.6


def test_identification_has_its_chance_and_p(results: Results):
    found = row_of(paper_001_figures.figure_11(results), "nine-clients", 5.0, "client-9")
    assert (found["IIP (the client's)"], found["chance"], found["p"]) == (1.0, 0.05, "0.002")
    assert (found["IIP (the very image)"], found["chance of exact"], found["cosine"]) == (1.0, 0.01, 0.9)
    assert "17%" in paper_001_figures.figure_11(results).note


def test_mitigations_stand_against_none(results: Results):
    table = paper_001.mitigations(results)
    assert [row[:4] for row in table.rows] == [
        ("nine-clients", "none", "grad+bn", "all attacked"), ("nine-clients", "none", "grad+bn", "client-9"),
        ("nine-clients", "fedbn", "grad+bn", "all attacked"), ("one-image", "none", "grad+bn", "all attacked"),
        ("one-image", "statistics not used", "no-statistics", "all attacked"),
    ]  # fmt: skip
    whole, alone, fedbn = (dict(zip(table.columns, row, strict=True)) for row in table.rows[:3])
    assert whole["RDLV"] == pytest.approx((0.3 - 8 * 0.4) / 9)  # every image the same weight
    assert whole["n"] == 9
    assert (alone["RDLV"], fedbn["RDLV"], fedbn["accuracy"]) == (0.3, 0.05, 0.8)


def test_the_cell_that_decides_against_a_claim_is_the_one_shown():
    cells = {
        ("client-1", 0.1): Measured(0.625, 0.087, 1.0, 24),
        ("client-5", 0.1): Measured(0.292, 0.112, 0.495, 24),
        ("client-5", 1.0): Measured(0.05, None, None, 1),
    }
    assert [side(m, above=False, line=0.1) for m in cells.values()] == ["open", "no", "yes"]
    assert clearest(cells)[0] == ("client-5", 0.1)


def test_the_papers_claims_are_held_against_the_intervals(results: Results):
    rows = {row[0]: row[1:] for row in headline(results).rows}
    assert rows["SSIM of the prior and client 9's image"] == ("0.37", "0.400 (n = 1, another image)", "", 1)
    leaks = rows["client 9 leaks (RDLV above 0)"]
    assert leaks[1].startswith("up to sigma0 = 5; without noise +0.300 (one image: no interval), null -0.100")
    assert leaks[2] == "yes (one image)"
    assert rows["client 9's image is identified (IIP 1.0)"][1].startswith("up to sigma0 = 5; without noise 1, chance")
    others = next(row for name, row in rows.items() if name.startswith("all other clients"))
    assert others[1].startswith("3 of 3 pairs (client, sigma0) below, 1 of 8 clients attacked; clearest: client-1 at")
    assert others[2] == "yes"
    assert rows["an attack that ignores BatchNorm's statistics fails"][2] == "open"
    assert rows["an attacker without the weights that were sent fails"] == ("it fails (Fig. 3)", "not run", "", None)
    assert rows["more images in a step leak less"][2] == "yes"
    assert rows["more local steps leak less"][1].startswith(
        f"RDLV at 4 steps minus at 1, same images: {-1.15 / 3:+.3f} ["
    )
    assert rows["more local steps leak less"][2] == "open"  # three images: -0.383 -+ 4.30 x 0.183 reaches 0
    assert rows["later rounds leak more"][1].startswith("RDLV in round 3 minus 1, same images: +0.250 (one image")
    assert "0.5 (no-statistics)" in rows["DP-SGD stops the leak (RDLV below 0)"][1]


def test_a_claim_has_the_seeds_of_its_own_figures_and_the_fewest_of_them(tmp_path: Path):
    maker = Maker(tmp_path / "seeds")
    for seed in (0, 1, 2):
        maker.add("steps-1", "none", got={"grad+bn": [Got("client-1", 0.9, 0.5, 0.8)]}, seed=seed)
        maker.add("steps-4", "none", got={"grad+bn": [Got("client-1", 0.8, 0.5, 0.6 + 0.01 * seed)]}, seed=seed)
        maker.add("smooth", "none", got={"geiping": [Got("client-1", 0.8, 0.5, 0.6)]}, seed=seed, model="x:SmallCNN")
    maker.add("one-image", "none", got={"geiping": [Got("client-1", 0.8, 0.5, 0.6)]})
    noisy = [{"use": FILTER, "sigma0": 5.0}]
    for seed in (0, 1):
        maker.add("nine-clients", "sigma0-0", got={"grad+bn": [Got("client-9", 0.9, 0.5, 0.8)]}, seed=seed)
        maker.add("nine-clients", "sigma0-5", noisy, {"grad+bn": [Got("client-9", 0.9, 0.5, 0.8)]}, seed=seed)
    seeds = {row[0]: row[-1] for row in headline(maker.done()).rows}
    assert seeds["more local steps leak less"] == 3
    assert seeds["client 9 leaks (RDLV above 0)"] == 2
    # Three seeds of the smooth network and one of the ResNet in one row: the row carries one.
    assert seeds["an attack that ignores BatchNorm's statistics fails"] == 1
    assert seeds["later rounds leak more"] is None


@pytest.mark.parametrize(
    ("low", "high", "above", "answer"),
    [(0.1, 0.3, True, "yes"), (0.1, 0.3, False, "no"), (-0.1, 0.3, True, "open"), (-0.3, 0.0, False, "yes"),
     (-0.3, -0.1, True, "no"), (None, None, True, "yes")],
)  # fmt: skip
def test_a_claim_is_decided_only_by_a_whole_interval(low, high, above, answer):
    assert side(Measured(0.2, low, high, 3), above) == answer


def test_turns_about_the_same_images_are_one_trial(tmp_path: Path):
    maker = Maker(tmp_path / "seeds")
    both = [Got("client-1", 0.5, 0.4, 0.2), Got("client-1", 0.7, 0.4, 0.6, round=1)]
    maker.add("one-image", "none", got={"grad+bn": both})
    again = measured(turns(maker.done()), "rdlv")
    assert again == Measured(pytest.approx(0.4), None, None, 1, pytest.approx(-0.1))
    maker.add("one-image", "none", got={"grad+bn": [Got("client-1", 0.5, 0.4, 0.0, n=4)]}, seed=1)
    found = turns(maker.done())
    two = measured(found, "rdlv")
    assert two is not None
    assert (two.value, two.images) == (pytest.approx((0.4 + 4 * 0.0) / 5), 5)
    # Two sets of weights 1 and 4, 0.32 above and 0.08 below the mean; with one degree of freedom t = tan(0.475 pi).
    half = math.tan(0.475 * math.pi) * math.sqrt(2 * (0.32**2 + (4 * 0.08) ** 2)) / 5
    assert (two.low, two.high) == (pytest.approx(0.08 - half), pytest.approx(0.08 + half))
    assert measured(found, "iip") is None
    assert paired(found, [], "rdlv") is None


def test_images_of_a_draw_are_not_counted_as_independent():
    """Three draws of six images, half of the variance a draw's own: how often does an interval miss the truth, 0?

    False alarms of this test: of 1,000 intervals that hold in 95 %, 70 or more miss once in 300 times; those over
    images alone (a third misses) practically never fewer than 200.
    """
    rng, draws, sizes = np.random.default_rng(0), [i // 6 for i in range(18)], np.ones(18)
    missed = {"images": 0, "widened": 0}
    for _ in range(1000):
        values = (rng.normal(size=(3, 1)) + rng.normal(size=(3, 6))).ravel()
        mean = mean_interval(values, sizes)
        low, high = widened((mean.low, mean.high), values, sizes, draws)
        missed["images"] += not mean.low <= 0 <= mean.high
        missed["widened"] += not low <= 0 <= high
    assert missed["widened"] < 70
    assert missed["images"] > 200
    ends = (-0.1, 0.1)
    assert widened(ends, values, sizes, [0] * 18) == ends  # one draw says nothing of others
    assert widened(ends, values, sizes, [*draws[:-1], None]) == ends  # the same people under several seeds are no draws
    apart = np.repeat([0.0, 1.0, 0.0], 6)
    assert widened(ends, apart, sizes, draws, within=(0.0, 1.0)) == (0.0, 1.0)


def test_shares_of_images_have_intervals_within_0_and_1(tmp_path: Path):
    maker = Maker(tmp_path / "single")
    single = [Got(f"client-{i}", 0.5, 0.4, 0.2, iip=(1.0, float(i < 3), 0.9)) for i in range(6)]
    maker.add("one-image", "none", got={"grad+bn": single})
    found = turns(maker.done())
    some, every = measured(found, "iip-exact"), measured(found, "iip")
    assert some is not None
    assert every is not None
    # Clopper and Pearson: of 3 of 6 by tables, of 6 of 6 the sixth root of 0.025.
    assert (some.value, some.low, some.high) == (0.5, pytest.approx(0.1181, abs=1e-4), pytest.approx(0.8819, abs=1e-4))
    assert (every.low, every.high) == (pytest.approx(0.025 ** (1 / 6)), 1.0)
    maker = Maker(tmp_path / "several")
    several = [
        Got(f"client-{i}", 0.5, 0.4, 0.2, n=4, iip=(1.0, share, 0.9)) for i, share in enumerate((0.25, 1.0, 1.0))
    ]
    maker.add("images", "none", got={"grad+bn": several})
    clustered = measured(turns(maker.done()), "iip-exact")
    assert clustered is not None
    assert 0 < clustered.low < clustered.value == 0.75 < clustered.high < 1


@pytest.mark.parametrize("name", NAMES)
def test_every_table_in_every_form(results: Results, tmp_path: Path, name: str):
    table = PAPER.tables[name](results)
    assert table.rows
    for form in FORMS:
        assert render(table, form)
    empty = PAPER.tables[name](Maker(tmp_path / "empty").done())
    assert all(not row or "not run" in row or "none of its own" in row for row in empty.rows)
    assert empty.note
    for form in FORMS:
        assert render(empty, form)


@pytest.mark.parametrize(
    ("scenario", "got"),
    [("one-image", {}), ("nine-clients", {"dlg": OURS}), ("images", {"bn-only": OURS}), ("fundus", {"grad+bn": OURS})],
)
def test_a_partial_store_gives_tables_and_charts_of_what_is_there(tmp_path: Path, scenario, got):
    maker = Maker(tmp_path / "partial")
    maker.add(scenario, "none", got=got)
    maker.cells.append({"labels": {"scenario": "smooth", "defence": "none", "seed": 0}, "run": None})
    results = maker.done()
    for name in NAMES:
        assert render(PAPER.tables[name](results), "markdown")
    assert "fig10" not in paper_001_charts.charts(results)


def test_damaged_lines_and_files_are_left_out(tmp_path: Path):
    maker = Maker(tmp_path / "damaged")
    stack = [{"use": FILTER, "sigma0": "many"}]
    run = maker.add(
        "nine-clients", "sigma0-0", stack, {"grad+bn": [Got("client-9", 0.5, 0.4, 0.25)]}, sizes={"client-9": 0}
    )
    lines = [
        {"measure": "rdlv", "value": 0.5, "client": "../../x", "round": 0, "n": "3", "chance": "?", "by": "grad+bn"},
        {"measure": "ssim", "value": float("inf"), "client": "client-2", "round": 0, "by": "grad+bn"},
        {"measure": "rdlv", "value": 0.5, "client": 7, "round": "first", "by": "grad+bn"},
    ]
    append(run.path / "attacks.jsonl", [{**line, "attack": "grad+bn-0000abcd"} for line in lines])
    described = read_json(run.path / "run.json")
    described["federation"] |= {"plan": {"batch": -1}, "batches": 5, "model": None}
    write_json(run.path / "run.json", described)
    folder = run.path / "kept" / "round-0000"
    folder.mkdir(parents=True)
    for name in ("sent", "client-9"):
        (folder / f"{name}.safetensors").write_bytes(b"no tensors")
    media = run.media("grad+bn-0000abcd") / "round-0000" / "client-9"
    media.mkdir(parents=True)
    (media / "embedding.npy").write_bytes(b"nothing")
    results = maker.done()
    for name in NAMES:
        assert render(PAPER.tables[name](results), "csv")
    assert row_of(paper_001_figures.figure_8a(results), "nine-clients", 0.0, "client-9")["RDLV"] == 0.25
    assert "fig10" not in paper_001_charts.charts(results)


def test_charts_are_drawn_with_their_baselines(results: Results, tmp_path: Path):
    found = paper_001_charts.charts(results)
    eight = {s.name: s for s in found["fig8a"].series}
    assert list(eight) == ["client-1", "client-9", "decoys (null), mean over images"]
    assert eight["client-9"].x == (0.0, 5.0, 10.0)
    assert eight["client-9"].y == (0.30, 0.15, -0.2)
    assert eight["client-9"].y_low == ()
    assert eight["client-1"].y_low == pytest.approx((-0.5, -0.5, -0.5))
    accuracy = {s.name: s.y for s in found["fig8b"].series}
    assert accuracy["nine-clients, without noise"] == pytest.approx((0.9, 0.9, 0.9))
    assert accuracy["nine-clients, commonest class"] == (0.7, 0.7, 0.7)
    drawn = {path.stem: path.read_text() for path in save(results, "gradient-inversion", tmp_path)}
    wanted = {"fig6a", "fig6b", "fig6c", "fig8a", "fig8b", "fig9", "fig10", "fig11", "fig11-exact", "fig11-cosine"}
    assert set(drawn) == wanted
    for name, text in drawn.items():
        ElementTree.fromstring(text)
        assert json.dumps(as_json(found[name]), allow_nan=False)


def test_the_plane_shows_each_original_once_and_only_one_embedding(results: Results):
    kept, left_out = paper_001_charts.points(results)
    assert [p.kind for p in kept].count("original") == 2
    assert [p.kind for p in kept].count("prior") == 1
    assert [p.noise for p in kept if p.kind == "reconstruction"] == [0, 0, 5, 5, 10, 10]
    assert left_out == 0
    first, second = paper_001_charts.figure_10(results), paper_001_charts.figure_10(results)
    assert first == second
    assert [s.name for s in first.series] == ["original", "prior", "sigma0 = 0", "sigma0 = 5", "sigma0 = 10"]


def test_sets_of_another_embedding_are_left_out(tmp_path: Path):
    maker = Maker(tmp_path / "two")
    for sigma0, turned in ((0.0, [1.0, 0.0]), (5.0, [0.0, 1.0])):
        got = {"grad+bn": [Got("client-1", 0.5, 0.4, 0.2)]}
        run = maker.add("nine-clients", f"sigma0-{sigma0:g}", [{"use": FILTER, "sigma0": sigma0}], got)
        embed(run, "client-1", {"original": [turned], "reconstruction": [[0.5, 0.5]]})
    kept, left_out = paper_001_charts.points(maker.done())
    assert ([p.kind for p in kept], left_out) == (["original", "reconstruction"], 1)


def test_t_sne_keeps_two_far_groups_apart():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.eye(2, 8) * 5, 20, axis=0) + 0.01 * rng.normal(size=(40, 8))
    places = paper_001_charts.embed(groups)
    a, b = places[:20], places[20:]
    spread = max(np.linalg.norm(g - g.mean(0), axis=1).max() for g in (a, b))
    assert np.linalg.norm(a.mean(0) - b.mean(0)) > 2 * spread


def test_the_study_is_known_to_reports(results: Results, tmp_path: Path):
    assert set(tables_of(results)) == set(NAMES)
    assert {c.title for c in charts_of(results).values()} >= {"Figure 8: RDLV by noise"}
    written = {path.name for path in save_all(results, "markdown", tmp_path / "out")}
    assert {"gradient-inversion-8a.md", "gradient-inversion-headline.md"} <= written


def test_a_report_with_pictures_and_embeddings_opens_each_file_once(results: Results, opens: Any):
    found = opens(results.root)
    assert {Path(name).name for name in found} >= {"study.json", "attacks.jsonl", "embedding.npy", "embedding.json"}
    assert set(found.values()) == {1}


def test_an_update_is_read_when_asked_for_and_then_known(results: Results):
    (cell,) = (c for c in results.cells if (c.labels["scenario"], c.labels["defence"]) == ("phase", "none"))
    first = cell.kept(2, "client-9")
    assert first is not None
    assert first.norm == pytest.approx(1.0)
    assert cell.only(lambda r: False).kept(2, "client-9") is first
    assert cell.kept(0, "client-9") is None
    assert cell.kept(2, "../client-9") is None


def test_how_far_a_leak_reaches_is_said_of_its_mean_and_of_its_interval():
    curve = {
        0.0: Measured(1.5, 0.3, 2.8, 3), 5.0: Measured(0.5, 0.1, 0.9, 3), 10.0: Measured(0.3, -0.1, 0.7, 3),
        25.0: Measured(-0.1, -0.2, 0.0, 3), 50.0: Measured(0.1, 0.05, 0.2, 3),
    }  # fmt: skip
    assert until({x: m.value for x, m in curve.items()}, 0.0) == "up to sigma0 = 10"
    assert until({x: m.low for x, m in curve.items()}, 0.0) == "up to sigma0 = 5"  # 50 comes after a gap
    assert until({0.0: -1.0}, 0.0) == "not even without noise"
    assert until({0.0: 1.0}, 0.0) == "up to sigma0 = 0 (the largest run)"
