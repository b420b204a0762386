"""The JSON schema of study files: what leakline takes it takes, and a slip of the pen it marks."""

from __future__ import annotations

import copy
import json
import tomllib

import pytest

from leakline.attacks import MENU as ATTACKS
from leakline.data import DATASETS
from leakline.study.scenario import LOOP, STUDY
from leakline.study.schema import schema
from leakline.study.spec import built_in

jsonschema = pytest.importorskip("jsonschema")
MADE = schema()
VALIDATOR = jsonschema.Draft202012Validator(MADE)

SMALL = {
    "name": "t",
    "seeds": [0, 1],
    "data": {"use": "digits", "clients": 3, "partition": {"use": "dirichlet", "alpha": 0.3}},
    "model": {"use": "mlp", "hidden": [8]},
    "training": {"rounds": 3, "epochs": 1, "batch": 8, "learning_rate": 0.1},
    "strategies": {"fedavg": {"use": "fedavg", "weighting": "even"}},
    "defences": {"none": [], "dp": [{"use": "global-dp", "noise_multiplier": 1.0, "clip": 1.0}]},
    "attacks": ["loss-threshold", {"use": "loss-threshold", "name": "more", "records": 50}],
}


def test_it_is_a_schema_and_plain_json():
    jsonschema.Draft202012Validator.check_schema(MADE)
    assert json.loads(json.dumps(MADE)) == MADE


@pytest.mark.parametrize("name", built_in())
def test_every_study_that_comes_with_leakline_fits(name):
    VALIDATOR.validate(tomllib.loads(built_in()[name].read_text(encoding="utf-8")))


def test_a_study_of_every_kind_of_table_fits():
    VALIDATOR.validate(SMALL)
    VALIDATOR.validate({**SMALL, "model": "nets:build", "attacks": ["mine:Attack", {"use": "mine:Attack", "x": 1}]})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("tranining",), {}),
        (("training", "epoch"), 3),
        (("training", "rounds"), 0),
        (("training", "rounds"), "three"),
        (("model", "hiden"), [8]),
        (("model", "use"), "mpl"),
        (("data", "use"), "digit"),
        (("data", "client_test"), 1.5),
        (("strategies", "fedavg", "weighting"), "heavy"),
        (("defences", "dp"), [{"use": "global-dp", "noise": 1.0}]),
        (("attacks",), ["loss-treshold"]),
        (("delta",), 2),
    ],
)
def test_a_slip_of_the_pen_is_marked(path, value):
    study = copy.deepcopy(SMALL)
    table = study
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    assert list(VALIDATOR.iter_errors(study))


@pytest.mark.parametrize("key", ["name", "data", "model"])
def test_what_a_study_cannot_do_without(key):
    assert list(VALIDATOR.iter_errors({k: v for k, v in SMALL.items() if k != key}))


def test_it_knows_every_key_and_every_entry():
    assert set(MADE["properties"]) == set(STUDY)
    assert set(LOOP) < set(MADE["properties"]["training"]["properties"])
    uses = {entry["properties"]["use"].get("const") for entry in MADE["properties"]["data"]["anyOf"]}
    assert uses == {*DATASETS, None}
    named = MADE["properties"]["attacks"]["anyOf"][1]["items"]["anyOf"][0]["enum"]
    assert named == list(ATTACKS)


def test_the_command_prints_it(leakline):
    code, out, _ = leakline("schema")
    assert code == 0
    assert json.loads(out) == MADE
