"""Presets `core`: a night on two cores at a paper's own size. What they train must be what the paper preset would."""

from __future__ import annotations

import pytest

from leakline.papers.metric_privacy.sizes import CORE, PAPER_SIZE
from leakline.study.describe import description
from leakline.study.spec import load


@pytest.fixture(autouse=True)
def _made_up(monkeypatch):
    monkeypatch.delenv("LEAKLINE_DATA", raising=False)


@pytest.mark.parametrize("name", ["metric-privacy", "client-inference", "fedper"])
def test_a_core_cell_is_the_same_run_as_the_papers(name):
    papers = {key(c): c for c in load(name, "paper").cells}
    core = load(name, "core").cells
    assert core
    for cell in core:
        assert description(cell.federation()) == description(papers[key(cell)].federation())


def key(cell):
    """A cell's labels; that core may have a name for the paper's size and its homogeneous clients is no difference."""
    alike = (("scenario", "paper-size"), ("scenario", "homogeneous"))
    return tuple(sorted(label for label in cell.labels.items() if label not in alike))


def test_the_strategies_that_paper_000s_page_expects_at_the_papers_size_are_those_of_core():
    cells = load("metric-privacy", "core").cells
    assert {c.labels["strategy"] for c in cells} == set(CORE)
    assert {c.labels["scenario"] for c in cells} == {PAPER_SIZE}
    assert {c.labels["scenario"] for c in load("client-inference", "core").cells} == {PAPER_SIZE}


@pytest.mark.parametrize("name", ["intermediaries-classification", "intermediaries-segmentation"])
def test_core_has_the_papers_images_and_network_in_fewer_rounds(name):
    core = load(name, "core").cells
    paper = next(c.federation() for c in load(name, "paper").cells if c.labels["scenario"] == "table-1")
    assert {c.labels["seed"] for c in core} == {0, 1, 2}
    for federation in (cell.federation() for cell in core):
        assert federation.model == paper.model
        assert federation.task.shape == paper.task.shape
        assert federation.plan == paper.plan
        assert federation.rounds < paper.rounds


def test_core_of_the_inversion_leaves_scenarios_out_and_keeps_the_papers_images():
    core, paper = load("gradient-inversion", "core"), load("gradient-inversion", "paper")
    assert {c.labels["scenario"] for c in core.cells} == {"one-image", "trained", "nine-clients"}
    assert {c.labels["seed"] for c in core.cells} == {0, 1, 2}
    assert len({c.labels["scenario"] for c in paper.cells}) > 3
    shape = paper.cells[0].federation().task.shape
    for federation in (cell.federation() for cell in core.cells):
        assert federation.task.shape == shape
        assert federation.model.stem == "7x7"
        assert federation.model.width == 64


def test_fedpers_utility_is_of_the_desk_presets_own_runs():
    desk = {tuple(sorted(c.labels.items())): description(c.federation()) for c in load("fedper").cells}
    utility = load("fedper", "utility")
    found = {tuple(sorted(c.labels.items())): description(c.federation()) for c in utility.cells}
    assert {c.labels["seed"] for c in utility.cells} == {0, 1, 2, 3, 4}
    shared = [labels for labels in found if labels in desk]
    assert len(shared) == 15  # five arms, three seeds: nothing is trained twice
    assert all(found[labels] == desk[labels] for labels in shared)
    assert utility.every_attack == ()
