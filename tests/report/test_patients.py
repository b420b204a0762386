"""Patients in a report: sentences, the exposure map, the table; and nobody's name, nor a number that leads to one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from leakline.attacks.base import Artefact
from leakline.attacks.patients import People, patient_results
from leakline.privacy import Seat
from leakline.readings import Reading
from leakline.report.page.build import render_page
from leakline.report.page.people import patient_words
from leakline.report.tables.patients import exposed, exposure_map
from leakline.results import read
from leakline.results.share import shareable
from leakline.study import artefacts
from leakline.study.store import Store

KEY = "server-0123abcd"


def people(count: int, known: bool = True) -> People:
    sites = tuple("ward" if i % 2 else "clinic" for i in range(count))
    traits = tuple({"sex": "f" if i % 3 else "m", "age": 40.0 + i % 30} for i in range(count))
    return People(sites, ("ill",) * count, traits, np.ones(count, int), np.arange(7000, 7000 + count), known, 0.9, 1234)


def with_patients(root: Path, right: np.ndarray, known: bool = True) -> None:
    """The first run of a store with an attack that told these patients apart."""
    store = Store(root)
    grid = store.grid()
    key = grid["cells"][0]["run"]
    run = store.run(key)
    found = patient_results(right, people(right.shape[1], known), Seat.SERVER)
    artefacts.write(run.media(KEY), [made for made in found if isinstance(made, Artefact)])
    run.add_attack(KEY, [replace(r, by="server") for r in found if isinstance(r, Reading)])
    for cell in grid["cells"]:
        cell["attacks"] = [*cell["attacks"], KEY]
    from leakline.study.files import write_json

    write_json(root / "study.json", {k: v for k, v in grid.items() if k != "seal"})


@pytest.fixture
def right() -> np.ndarray:
    """Forty patients in sixteen federations: three always told right, the others as often as not."""
    told = np.zeros((16, 40), dtype=bool)
    told[:8] = True
    told[:, :3] = True
    return told


def test_sentences_chart_and_table_say_the_same(root: Path, right: np.ndarray) -> None:
    with_patients(root, right)
    results = read(root)
    words = patient_words([s for s in results.settings if any(c.patients for c in s.cells)])
    assert words == [
        "Seen by the server, which sees single updates (server): 3 of 40 patients can be told apart with 95 % "
        "confidence for all at once; the worst is found in 16 of 16 federations (at least 66 of 100 times, which is "
        "the most that so few can prove)."
    ]
    (chart,) = exposure_map(results)
    (series,) = chart.series
    assert series.y[:3] == (1.0, 1.0, 1.0)
    assert series.y[3:] == (0.5,) * 37
    assert all(low < y <= high for low, y, high in zip(series.y_low, series.y, series.y_high, strict=True))
    table = exposed(results)
    at = {name: i for i, name in enumerate(table.columns)}
    rows = {(row[at["by"]], row[at["group"]]): row for row in table.rows}
    assert rows["all", "all"][at["exposed"]] == 3
    assert rows["site", "clinic"][at["exposed"]] == 2
    assert rows["site", "ward"][at["exposed"]] == 1
    assert {("sex", "f"), ("sex", "m"), ("age", "40 to 49")} <= set(rows)
    page = render_page(results)
    assert words[0] in page
    assert "Exposure map" in page


def test_no_pseudonym_reaches_a_report_and_no_trait_a_shareable_one(root: Path, right: np.ndarray) -> None:
    with_patients(root, right)
    stored = next(root.rglob("patients.json")).read_text()
    assert "patient-1" in stored
    assert "7000" in stored
    results = read(root)
    page, shared = render_page(results), render_page(shareable(results), shareable=True)
    for text in (page, shared):
        assert "patient-1<" not in text
        assert ">7000" not in text
    assert "40 to 49" in page
    assert "40 to 49" not in shared
    assert "3 of 40 patients" in shared


def test_where_nobody_says_whose_records_are_the_page_says_so(root: Path, right: np.ndarray) -> None:
    with_patients(root, right[:4], known=False)
    results = read(root)
    words = patient_words(results.settings)
    assert "40 records (nobody says whose they are)" in words[0]
    assert "with 4 federations nobody could be" in words[0]
    assert "each counts as a patient" in exposure_map(results)[0].note


def test_a_list_that_was_changed_is_not_shown(root: Path, right: np.ndarray) -> None:
    with_patients(root, right)
    path = next(root.rglob("patients.json"))
    path.write_text(path.read_text().replace('"right": 1.0', '"right": 0.5'))
    results = read(root)
    assert exposure_map(results) == []
    assert any("patients" in text for cell in results.cells for text in cell.damage)
