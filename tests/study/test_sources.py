"""Cells that follow another: it is run first, and what it wrote down is what they have, however they are run."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import tiny
from leakline.defences import GlobalDP, MetricPrivacy, ReplayedNoise
from leakline.errors import StudyError
from leakline.study.cells import Study, grid
from leakline.study.check import check_study
from leakline.study.describe import description, key_of
from leakline.study.parts import Part
from leakline.study.ray_task import Asked, Order, do_cell, read_files, write_files
from leakline.study.run import check_parts, run_study
from leakline.study.spec import Mistaken, parse
from leakline.study.store import Run, Store
from leakline.study.verify import verify

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked")
STUDY = """
name = "followed"
noise = "seeded"
seeds = [0, 1]
data = { use = "digits", limit = 120, clients = 3, client_test = 0.2 }
model = { use = "mlp", hidden = [8] }
training = { rounds = 3, batch = 16, learning_rate = 0.3 }
attacks = [{ use = "loss-threshold", records = 10 }]

[strategies]
fedavg = { use = "fedavg", weighting = "even" }

[defences]
matched = [{ use = "replayed-noise", of = "metric", clip = 0.5, at = "model" }]
none = []
metric = [{ use = "metric-privacy", noise_multiplier = 1.0, clip = 0.5, reading = "paper" }]
"""


def content(root: Path) -> dict[str, bytes]:
    """Every byte of the store's runs, but for times and claims."""
    paths = [p for p in (root / "runs").rglob("*") if p.is_file() and not p.name.startswith(".")]
    return {str(p.relative_to(root)): p.read_bytes() for p in paths if p.name != "log.jsonl"}


def runs(root: Path, study: Study) -> dict[tuple[str, int], Run]:
    keys = check_parts(study)
    found = zip(study.cells, keys, strict=True)
    return {(cell.labels["defence"], cell.labels["seed"]): Store(root).run(key) for cell, key in found}


def stds(run: Run) -> list[float]:
    return [record["facts"]["noise_std"] for record in run.rounds()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    assert [outcome.error for outcome in run_study(parse(STUDY), root, workers=1)] == [""] * 6
    return root


def test_it_has_exactly_the_noise_of_the_cell_it_follows(whole):
    found = runs(whole, parse(STUDY))
    for seed in (0, 1):
        assert stds(found["matched", seed]) == stds(found["metric", seed])
        assert len(set(stds(found["metric", seed]))) == 3  # measured anew in every round
    assert stds(found["matched", 0]) != stds(found["matched", 1])
    models = {key: run.final_weights().vector.sum().item() for key, run in found.items()}
    assert len(set(models.values())) == 6  # drawn anew
    assert not verify(whole).problems


def test_it_comes_behind_and_its_hash_knows_whom_it_follows():
    study = parse(STUDY)
    assert [cell.labels["defence"] for cell in study.cells][::2] == ["none", "metric", "matched"]
    louder = parse(STUDY.replace("noise_multiplier = 1.0", "noise_multiplier = 2.0"))
    renamed = parse(STUDY.replace("metric =", "other =").replace('of = "metric"', 'of = "other"'))
    keys = [check_parts(one) for one in (study, louder, renamed)]
    assert [a == b for a, b in zip(keys[0], keys[1], strict=True)] == [True, True, False, False, False, False]
    assert keys[0] == keys[2]


def test_told_or_not_it_is_the_same_run_and_in_another_world_another(whole):
    cell = parse(STUDY).cells[-1]
    plain = cell.federation().granted
    told = plain.told(key_of(description(plain.source)), [{"noise_std": 1.0}] * 3)
    assert description(told) == description(plain)
    elsewhere = [replace(one, seed=9) for one in (told, plain)]  # the one has this run's noise, the other seed 9's
    assert description(elsewhere[0]) != description(elsewhere[1])


def test_only_brings_the_cell_that_is_followed(whole, tmp_path):
    study = parse(STUDY).only(["defence=matched", "seed=1"])
    assert [(cell.labels["defence"], cell.labels["seed"]) for cell in study.cells] == [("metric", 1), ("matched", 1)]
    assert study.notes[-1].startswith("fedavg metric seed 1 is run too")
    assert [outcome.error for outcome in run_study(study, tmp_path, workers=1)] == ["", ""]
    same = {name: data for name, data in content(whole).items() if name in content(tmp_path)}
    assert content(tmp_path) == same


def test_a_part_holds_both(whole, tmp_path):
    study, seen = parse(STUDY), Counter[str]()
    for number in (3, 1, 2):
        outcomes = list(run_study(study, tmp_path, workers=1, part=Part(number, 3)))
        assert not [outcome.error for outcome in outcomes if outcome.error]
        seen.update(outcome.cell.name for outcome in outcomes)
    assert seen == Counter(cell.name for cell in study.cells)
    assert content(tmp_path) == content(whole)


@linux
def test_several_at_once_leave_the_same_bytes_and_nothing_is_run_twice(whole, tmp_path):
    study = parse(STUDY)
    first = list(run_study(study, tmp_path, at_once=3))
    assert [outcome.error for outcome in first] == [""] * 6
    order = [outcome.cell.name for outcome in first]
    assert all(order.index(f"fedavg metric seed {s}") < order.index(f"fedavg matched seed {s}") for s in (0, 1))
    assert content(tmp_path) == content(whole)
    assert not any(outcome.trained for outcome in run_study(study, tmp_path, at_once=3))


def test_a_run_that_was_cut_short_goes_on(whole, tmp_path):
    study = parse(STUDY)
    matched = runs(whole, study)["matched", 0]
    fewer = parse(STUDY).only(["defence=metric"])
    list(run_study(fewer, tmp_path, workers=1))
    cut = iter(run_study(study, tmp_path, workers=1, watch=lambda standing: None))
    next(cut)
    cut.close()
    assert [outcome.error for outcome in run_study(study, tmp_path, workers=1)] == [""] * 6
    assert stds(runs(tmp_path, study)["matched", 0]) == stds(matched)
    assert content(tmp_path) == content(whole)


def test_a_node_is_sent_what_its_cell_follows(whole, tmp_path):
    from leakline import __version__

    class Deaf:
        def __init__(self) -> None:
            self.tell = self

        def remote(self, *told: object) -> None:
            pass

    study = parse(STUDY)
    keys = tuple(check_parts(study))
    order = Order(Asked(STUDY), 4, keys, __version__, "", 1, 60.0, None)
    assert "is not finished" in do_cell(order, Deaf())[0]["error"]
    lines = {name: data for name, data in read_files(whole, keys[2]).items() if name.endswith((".json", ".jsonl"))}
    answer, files = do_cell(replace(order, files=lines), Deaf())
    assert answer["how"] == "trained"
    write_files(tmp_path, files)
    mine = {name: data for name, data in content(tmp_path).items() if keys[4] in name}
    assert mine == {name: data for name, data in content(whole).items() if keys[4] in name}


def test_where_the_cell_that_is_followed_fails_so_does_it_in_one_line(tmp_path):
    stacks = {"m": (MetricPrivacy(1.0, 0.5),), "again": (ReplayedNoise(0.5, of="m"),)}
    cells = grid(tiny.federation(rounds=2), defences=stacks)

    def fails():
        if (tmp_path / "study.json").exists():  # in the check all is well
            raise StudyError("the sky fell", "cell", "hold it up")
        return cells[0].federation()

    study = Study("fails", (replace(cells[0], federation=fails), cells[1]))
    errors = [outcome.error for outcome in run_study(study, tmp_path, workers=1)]
    assert "the sky fell" in errors[0]
    assert 'the run with the defence "m" that this one follows is not finished' in errors[1]


def test_python_names_defences_as_study_files_do(tmp_path):
    base = tiny.federation(rounds=2, noise="seeded")
    stacks = {"again": (ReplayedNoise(0.5, of="dp"),), "dp": (GlobalDP(1.0, 0.5),)}
    study = Study("python", grid(base, defences=stacks, seed=range(2)))
    study.run(tmp_path)
    found = runs(tmp_path, study)
    assert stds(found["again", 1]) == stds(found["dp", 1])
    with pytest.raises(ValueError, match='again follows "dq", and there is no such defence'):
        grid(base, defences={**stacks, "again": (ReplayedNoise(0.5, of="dq"),)})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('of = "metric"', 'of = "metrik"', 'there is no "metrik"; did you mean "metric"?'),
        ('of = "metric"', 'of = "none"', 'of = "none" adds no noise that could be added again'),
        ('of = "metric"', 'of = "matched"', 'of = "matched" adds no noise that could be added again'),
        ("clip = 0.5, at", "clip = 0.6, at", 'clip is 0.6 here and 0.5 in "metric"'),
        ('of = "metric", clip', "sigmas = [1, -1, 0], clip", "not negative: -1.0"),
        ('of = "metric", clip', "clip", "neither of nor sigmas"),
    ],
)
def test_a_study_file_that_cannot_be_is_refused_in_one_line(old, new, said):
    with pytest.raises(Mistaken) as caught:
        parse(STUDY.replace(old, new))
    assert said in str(caught.value)
    assert str(caught.value).startswith("study.toml:")
    assert "\n" not in str(caught.value)


def test_check_says_what_is_wrong_between_cells():
    wrong = parse(STUDY.replace('of = "metric", clip', "sigmas = [1.0, 2.0], clip"))
    assert "2 standard deviations for 3 rounds" in "\n".join(check_study(wrong).problems)
    one, other = tiny.federation(rounds=2), tiny.federation(rounds=3)
    stacks = {"dp": (GlobalDP(1.0, 0.5),), "again": (ReplayedNoise(0.5, of="dp"),)}
    for base, said in (
        (other, "which has 2 rounds where it has 3"),
        (tiny.federation(rounds=2, model=tiny.perceptron), "differs from it in more than its defences"),
    ):
        study = Study("mixed", (grid(one, defences=stacks)[0], grid(base, defences=stacks)[1]))
        assert any(said in problem for problem in check_study(study).problems)
        with pytest.raises(StudyError, match=said):
            check_parts(study)
    alone = Study("alone", grid(one, defences=stacks)[1:])
    with pytest.raises(StudyError, match='follows the defence "dp", and no cell'):
        check_parts(alone)
    assert "no cell with that defence" in check_study(alone).problems[0]
