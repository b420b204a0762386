"""Seventy studies that somebody in a hurry would write: each ends in words before training, with key and fix.

Of other kinds than the single slips of test_spec.py and the attacks of test_hostile.py: things that are right by
themselves and wrong together, values from other tools, files that are not what the study takes them for.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from leakline.errors import LeaklineError
from leakline.study.check import check_study
from leakline.study.spec import parse

BASE = {
    "data": '{ use = "digits", limit = 120, clients = 4 }',
    "model": '{ use = "mlp", hidden = [4] }',
    "training": "{ rounds = 2, batch = 8 }",
}
DP = '[{ use = "global-dp", noise_multiplier = 1.0, clip = 1.0 }]'
OWN = '{{ use = "npz", path = "{0}", clients = 2 }}'

# Each: what is changed in the study, and words that its line must have.
WRONG: dict[str, tuple[dict[str, str], str]] = {
    # words of other tools
    "adamw": ({"training": '{ optimiser = "adamw" }'}, "training.optimiser"),
    "lr": ({"training": "{ lr = 0.1 }"}, "training.lr"),
    "num_rounds": ({"training": "{ num_rounds = 5 }"}, "training.num_rounds.*rounds"),
    "batch_size": ({"training": "{ batch_size = 8 }"}, "training.batch_size.*batch"),
    "local_epochs": ({"training": "{ local_epochs = 8 }"}, "training.local_epochs.*epochs"),
    "fraction_fit": ({"training": "{ fraction_fit = 0.5 }"}, "training.fraction_fit"),
    "FedAvg": ({"strategies": '{ a = "FedAvg" }'}, "strategies.a.use.*fedavg"),
    "DP-SGD": ({"defences": '{ a = "DP-SGD" }'}, "defences.a.0.use"),
    "dpsgd": ({"defences": '{ a = { use = "dpsgd", noise_multiplier = 1, clip = 1 } }'}, "dp-sgd"),
    "max_grad_norm": (
        {"defences": '{ a = { use = "dp-sgd", noise_multiplier = 1, max_grad_norm = 1 } }'}, "max_grad_norm"),
    "sigma": ({"defences": '{ a = { use = "global-dp", sigma = 1, clip = 1 } }'}, "defences.a.0.sigma"),
    "an epsilon that a weighted mean cannot promise": (
        {"defences": '{ a = { use = "global-dp", epsilon = 8, clip = 1 } }'}, "epsilon = 8.*weighted"),
    "resnet18": ({"model": '"resnet18"'}, "model.use.*resnet-18"),
    "cnn": ({"model": '"cnn"'}, "model.use"),
    "MNIST": ({"data": '{ use = "MNIST", clients = 2 }'}, "data.use"),
    "iid": ({"data": '{ use = "digits", clients = 2, partition = "iid" }'}, "data.partition.use"),
    "mia": ({"attacks": '["mia"]'}, "attacks.0.use"),
    "dlg": ({"attacks": '["dlg"]'}, "attacks.0.use"),
    "cuda:0 as a number": ({"device": "0"}, "device"),
    # shapes of tables
    "defence as text in a list of lists": ({"defences": '{ a = [["global-dp"]] }'}, "defences.a.0"),
    "attack as a table of tables": ({"attacks": '{ a = { use = "loss-threshold" } }'}, "attacks"),
    "strategies as a list": ({"strategies": '["fedavg"]'}, "strategies"),
    "model as a list": ({"model": '["mlp"]'}, "model"),
    "data as text": ({"data": '"digits"'}, "data"),
    "training as a number": ({"training": "5"}, "training"),
    "seeds as text": ({"seeds": '"0,1"'}, "seeds"),
    "no seeds": ({"seeds": "[]"}, "seeds.*at least one"),
    "a seed twice": ({"seeds": "[1, 1]"}, "seeds.*twice"),
    "no defences": ({"defences": "{}"}, "defences.*at least one"),
    "hidden as a number": ({"model": '{ use = "mlp", hidden = 32 }'}, "model.hidden"),
    "hidden of nothing": ({"model": '{ use = "mlp", hidden = [0] }'}, "hidden"),
    # values that are out of range
    "rounds 0": ({"training": "{ rounds = 0 }"}, "training.rounds"),
    "rounds 1.5": ({"training": "{ rounds = 1.5 }"}, "training.rounds"),
    "rounds true": ({"training": "{ rounds = true }"}, "training.rounds"),
    "learning_rate 0": ({"training": "{ learning_rate = 0 }"}, "training.learning_rate"),
    "learning_rate -1": ({"training": "{ learning_rate = -1.0 }"}, "training.learning_rate"),
    "participation in percent": ({"training": "{ participation = 50 }"}, "training.participation"),
    "delta 0": ({"delta": "0.0"}, "delta"),
    "delta 1": ({"delta": "1"}, "delta"),
    "client_test in percent": ({"data": '{ use = "digits", clients = 2, client_test = 20 }'}, "data.client_test"),
    "clients 0": ({"data": '{ use = "digits", clients = 0 }'}, "data.clients"),
    "noise below 0": ({"defences": '{ a = { use = "global-dp", noise_multiplier = -1.0, clip = 1 } }'}, "defences.a.0"),
    "clip 0": ({"defences": '{ a = { use = "global-dp", noise_multiplier = 1.0, clip = 0 } }'}, "defences.a.0"),
    "rate above 1": (
        {"defences": '{ a = { use = "dp-sgd", noise_multiplier = 1, clip = 1, rate = 2.0 } }'}, "defences.a.0"),
    "more records than there are": ({"attacks": '["membership-inference"]'}, "records"),
    "noise loud": ({"noise": '"loud"'}, "noise"),
    # right by themselves, wrong together
    "more clients than records": ({"data": '{ use = "digits", limit = 20, clients = 50 }'}, "."),
    "by-column without the column": (
        {"data": '{ use = "digits", clients = 2, partition = { use = "by-column", column = "site" } }'}, "site"),
    "a segmentation network for classes": ({"model": '"small-unet"'}, "model"),
    "an image network for 8x8": ({"model": '"densenet-121"'}, "model|least"),
    "BatchNorm under dp-sgd": (
        {"model": '{ use = "resnet", norm = "batch" }',
         "defences": '{ a = { use = "dp-sgd", noise_multiplier = 1, clip = 1 } }'}, "BatchNorm|batch|least"),
    "a median under secure aggregation": (
        {"strategies": '{ a = "fedmedian" }', "training": '{ rounds = 1, secure_aggregation = "assumed" }'}, "sum"),
    "global-dp under secure aggregation": (
        {"defences": f"{{ a = {DP} }}", "training": '{ rounds = 1, secure_aggregation = "assumed" }'}, "sum"),
    "two owners of gradients": (
        {"defences": '{ a = [{ use = "dp-sgd", noise_multiplier = 1, clip = 1 }, '
                     '{ use = "dp-sgd", noise_multiplier = 1, clip = 1 }] }'}, "."),
    "a client of batches that is not there": ({"training": "{ rounds = 1, batches = { north = 8 } }"}, "north"),
    "a loss for masks": ({"training": '{ rounds = 1, loss = "soft-dice" }'}, "."),
    "a loss that is none": ({"training": '{ rounds = 1, loss = "mse" }'}, "training.loss"),
    "a model for a defence that is not there": ({"models": '{ dp = "mlp" }'}, "models.dp"),
    "two attacks of one name": ({"attacks": '["loss-threshold", "loss-threshold"]'}, "attacks.1"),
    "inversion of a client that is not there": (
        {"attacks": '[{ use = "gradient-inversion", clients = ["north"] }]'}, "north"),
    "inversion of a round that is not run": (
        {"attacks": '[{ use = "gradient-inversion", rounds = [7] }]'}, "round"),
    "fedper of layers that are not there": ({"defences": '{ a = { use = "fedper", private = ["head"] } }'}, "."),
    "a preset that is not there": ({"preset": '"paper"'}, "paper"),
    "code that is not there": ({"model": '"my_nets:build"'}, "model.use.*my_nets"),
    "code of Python": ({"model": '"os:getcwd"'}, "model.use"),
    # files that are something else
    "a path that is almost right": ({"data": OWN.format("dta.npz")}, "data.path.*data.npz"),
    "labels that are shares": ({"data": OWN.format("shares.npz")}, "regression is not supported yet"),
    "arrays of two lengths": ({"data": OWN.format("lengths.npz")}, "length|rows|examples"),
    "values that are no numbers": ({"data": OWN.format("nan.npz")}, "finite"),
    "an npz that is a folder": ({"data": OWN.format("folder")}, "data.path"),
    "objects in an npz": ({"data": OWN.format("objects.npz")}, "."),
}  # fmt: skip


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    x, y = np.zeros((40, 4), np.float32), np.arange(40) % 2
    np.savez(folder / "data.npz", x=x, y=y)
    np.savez(folder / "shares.npz", x=x, y=y + 0.5)
    np.savez(folder / "lengths.npz", x=x, y=y[:-3])
    np.savez(folder / "nan.npz", x=x * np.nan, y=y)
    np.savez(folder / "objects.npz", x=np.array([{}] * 40), y=y)
    (folder / "folder").mkdir()
    return folder


def said(changes: dict[str, str], folder) -> str:
    """What is said of a study before training; "" where it is taken for a good one."""
    text = 'name = "mine"\n' + "".join(f"{key} = {value}\n" for key, value in {**BASE, **changes}.items())
    try:
        checked = check_study(parse(text, beside=(folder,)))
    except LeaklineError as error:
        return str(error)
    return "\n".join(checked.problems)


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_study_ends_in_words_with_its_key(case, there):
    changes, words = WRONG[case]
    text = said(changes, there)
    assert text, "it was taken for a good study"
    assert re.search(words, text), text
    assert "Traceback" not in text
    assert len(text) < 1500
    assert re.search(r"; |fix:", text), "it does not say what to do"


def test_there_are_seventy_of_them():
    assert len(WRONG) >= 70
