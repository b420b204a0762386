"""What a notebook shows and what a script gets: studies, cards, tables, frames; every table in parquet."""

from __future__ import annotations

import io
import json
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from leakline.cards import Card, Promise
from leakline.readings import Reading
from leakline.report.tables.menu import TABLES
from leakline.results import Estimate, read
from leakline.results.table import Table, render
from leakline.study.cells import Cell, Study

HOSTILE = json.loads((Path(__file__).parent / "hostile.json").read_text())


class Seen(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.text = set(), ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        assert not attrs
        self.tags.add(tag)

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_in_a_notebook(name):
    study = Study("s", (Cell({"defence": name, name: 1}, lambda: None),), {name: None}, title=name, notes=(name,))
    card = Card(name, (Promise(name, reason=name),), name, leaks=(Reading(name, 0.5, by=name),), dropped=(name,))
    table = Table(name, (name,), ((name,), (Estimate(0.5),)), name)
    for thing in (study, card, table):
        page = Seen(thing._repr_html_())
        assert page.tags <= {"table", "caption", "tr", "th", "td", "p"}
    assert len(table.frame()) == 2


def test_a_study_shows_its_grid():
    study = Study("tiny", (Cell({"defence": "none", "seed": 0}, lambda: None),))
    text = Seen(study._repr_html_()).text
    assert "defencenone" in text
    assert "attacksnone" in text


@pytest.mark.parametrize("name", TABLES)
def test_every_table_as_parquet_and_as_a_frame(made, name):
    table = TABLES[name](read(made))
    stored = pd.read_parquet(io.BytesIO(render(table, "parquet")))
    frame = table.frame()
    assert list(stored.columns) == list(frame.columns)
    assert len(stored) == len(frame) == len(table.rows)
    for column in stored.select_dtypes("number").columns:
        assert stored[column].tolist() == pytest.approx(pd.to_numeric(frame[column]).tolist(), nan_ok=True)
