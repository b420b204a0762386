"""The reference of study files is what the code says: the page is printed by the command, its examples are good."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pydantic
import pytest

from leakline import attacks, data, defences, models, strategies
from leakline.bench.training import Plan
from leakline.study.build import parameters
from leakline.study.data_table import SHARING
from leakline.study.meanings import MEANINGS
from leakline.study.model_table import ADAPTING
from leakline.study.reference import markdown
from leakline.study.scenario import LOOP, STUDY
from leakline.study.spec import parse
from leakline.study.values import kind

PAGE = Path(__file__).parents[2] / "docs" / "study-file.md"
RECIPE = {name: wanted for name, wanted in parameters(Plan).items() if name != "proximal"}
KEYS = STUDY | SHARING | LOOP | RECIPE | ADAPTING


def test_the_page_is_what_the_command_prints(leakline):
    assert PAGE.read_text(encoding="utf-8") == markdown(), "run: leakline schema --markdown > docs/study-file.md"
    code, out, _ = leakline("schema", "--markdown")
    assert (code, out) == (0, markdown())


def test_every_key_has_a_meaning_and_no_other_has():
    assert MEANINGS.keys() == KEYS.keys()


@pytest.mark.parametrize("key", MEANINGS)
def test_examples_can_be_read(key):
    _, text = MEANINGS[key]
    value = tomllib.loads(text)[key]
    pydantic.TypeAdapter(KEYS[key][0]).validate_python(value, strict=False)


def test_every_entry_of_every_menu_has_its_own_heading():
    page = markdown().splitlines()
    for menu in (data.DATASETS, data.PARTITIONERS, models.MENU, strategies.MENU, defences.MENU, attacks.MENU):
        assert all(f"### {name}" in page for name in menu)


def test_limits_are_shown_as_they_are_kept():
    assert "| a number above 0 to 1 | `1.0` |" in markdown()
    assert kind({"type": "integer", "minimum": 1}) == "a whole number from 1"
    assert kind({"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}) == '`"a"`, `"b"` or left out'
    with pytest.raises(Exception, match=r"training\.participation"):
        parse('name = "a"\nmodel = "mlp"\ndata = { use = "digits", clients = 2 }\ntraining = { participation = 0 }')
