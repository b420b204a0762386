"""Networks of one's own that are not quite right: one line of what was tried, and what to write."""

from __future__ import annotations

import sys

import pytest

from leakline.errors import StackError, StudyError
from leakline.federation import Federation
from leakline.models import MLP
from leakline.study.check import check_study
from leakline.study.run import check_model, run_study
from leakline.study.spec import load, parse

NETS = """\
from torch import nn

def flat(out, inside=64):
    return nn.Sequential(nn.Flatten(), nn.Linear(inside, out))

def good(shape, classes): return flat(classes)
def no_arguments(): return flat(10)
def with_kind(shape, classes, kind): return flat(classes)
def with_settings(shape, classes, width=3): return flat(classes)
def any_arguments(**given): return flat(given["classes"])
def usual_names(in_channels, num_classes=1000): return flat(num_classes)
def grouped(shape, classes): return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), flat(classes, 144))
def batched(shape, classes): return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), flat(classes, 144))
class Net(nn.Sequential):
    def __init__(self): super().__init__(nn.Flatten(), nn.Linear(64, 10))

def raises(shape, classes): raise KeyError("missing")
def exits(shape, classes): raise SystemExit(0)
def other_names(input_shape, n_classes): return flat(n_classes)
def nothing(shape, classes): pass
def one_logit(shape, classes): return flat(1)
def wrong_input(shape, classes): return flat(classes, 65)
class Forgets(nn.Module):
    def __init__(self, shape, classes): super().__init__(); self.a = nn.Linear(64, classes)
class Pair(nn.Module):
    def __init__(self): super().__init__(); self.a = nn.Linear(64, 10)
    def forward(self, x): return self.a(x.flatten(1)), x
class Inside(Pair):
    def forward(self, x): return self.a(x)
def more(shape, classes): return flat(classes + 1)
def probabilities(shape, classes): return nn.Sequential(flat(classes), nn.Softmax(1))
"""
STUDY = """\
name = "mine"
model = {model}
[data]
use = "digits"
limit = 60
clients = 3
[training]
rounds = 1
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "nets_of_mine.py").write_text(NETS)
    yield lambda name, more="": parse(
        STUDY.format(model=f'{{ use = "nets_of_mine:{name}"{more} }}'), trust=True, beside=(tmp_path,)
    )
    sys.modules.pop("nets_of_mine", None)


@pytest.mark.parametrize(
    "name", ["good", "no_arguments", "with_kind", "with_settings", "any_arguments", "usual_names", "Net"]
)
def test_a_factory_is_given_what_it_takes(study, name):
    checked = check_study(study(name))
    assert not checked.problems
    assert not [w for w in checked.warnings if "output" in w]


WRONG = {
    "raises": r"nets_of_mine:raises\(shape=\(1, 8, 8\), classes=10\) raised KeyError: 'missing' "
    r"\(nets_of_mine.py, line \d+: def raises",
    "exits": "raised SystemExit",
    "other_names": r"nets_of_mine:other_names\(input_shape, n_classes\) asks for 'input_shape'",
    "nothing": "returned a NoneType, not a torch.nn.Module",
    "one_logit": r"two inputs of shape \(1, 8, 8\) give an output of shape \(2, 1\): 1 outputs for 10 classes",
    "more": r"give an output of shape \(2, 11\): 11 outputs for 10 classes",
    "wrong_input": r"it fails on inputs of shape \(1, 8, 8\) in layer 1 \(Linear, given \(2, 64\)\): "
    "RuntimeError: mat1 and mat2",
    "Inside": r"in layer a \(Linear, given \(2, 1, 8, 8\)\): .*\(nets_of_mine.py, line \d+: def forward",
    "Forgets": "it fails on inputs of shape",
    "Pair": "it returns a tuple",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_in_a_line_at_check_and_before_training(study, name, tmp_path):
    import re

    (problem,) = check_study(study(name)).problems
    assert re.search(WRONG[name], problem)
    assert "fix:" in problem
    with pytest.raises(StudyError, match=WRONG[name]):
        list(run_study(study(name), tmp_path / "out", workers=1))


def test_a_setting_that_a_factory_does_not_take(study):
    (problem,) = check_study(study("good", ", width = 3")).problems
    assert "nets_of_mine:good(shape, classes) takes no 'width'" in problem
    assert not check_study(study("with_settings", ", width = 3")).problems


def test_what_trains_and_is_odd_is_a_warning(study):
    checked = check_study(study("probabilities"))
    assert not checked.problems
    assert any("takes logits" in warning for warning in checked.warnings)


def test_python_takes_the_same_factories(study):
    study("good")  # the module can be imported from here on
    import nets_of_mine as nets

    task = study("good").cells[0].federation().task
    for factory in (
        nets.good,
        nets.no_arguments,
        nets.any_arguments,
        nets.usual_names,
        nets.Net,
        lambda: nets.flat(10),
    ):
        assert Federation(task, factory).layout.size == 650
    with pytest.raises(StudyError, match=r"raises\(shape=\(1, 8, 8\), classes=10\) raised KeyError"):
        Federation(task, nets.raises).bench()
    with pytest.raises(StudyError, match="11 outputs for 10 classes"):
        check_model(Federation(task, nets.more))
    with pytest.raises(StackError, match="MLP()"):
        Federation(task, MLP).bench()


DEFENDED = """\
name = "mine"
model = "nets_of_mine:batched"
models.{of} = "nets_of_mine:grouped"
data = {{ use = "digits", limit = 60, clients = 3 }}
training = {{ rounds = 1 }}
[defences]
none = []
released = [{{ use = "gaussian-release", noise_multiplier = 1, clip = 1 }}]
records = [{{ use = "dp-sgd", noise_multiplier = 1, clip = 1 }}]
"""


def test_one_defence_may_have_another_network(study, tmp_path):
    study("good")

    def with_models(of):
        return parse(DEFENDED.format(of=of), trust=True, beside=(tmp_path,))

    mine = with_models("records")
    kinds = {c.labels["defence"]: c.federation().model.path.partition(":")[2] for c in mine.cells}
    assert kinds == {"none": "batched", "released": "batched", "records": "grouped"}
    checked = check_study(mine)
    assert not checked.problems
    assert "BatchNorm's running statistics reach the server without noise (none)" in checked.warnings
    released = "BatchNorm's running statistics leave the clients under the same noise as the weights (released)"
    assert released in checked.warnings
    with pytest.raises(StudyError, match=r'study.toml:3 models.recrods - unknown key; did you mean "records"'):
        with_models("recrods")


def test_a_problem_of_all_cells_is_said_once(study, tmp_path):
    study("good")
    text = DEFENDED.format(of="records").replace("batched", "raises").replace("grouped", "raises")
    (problem,) = check_study(parse(text, trust=True, beside=(tmp_path,))).problems
    assert problem.startswith("all 3 cells: nets_of_mine:raises(")


def test_a_study_runs_from_any_folder(tmp_path, monkeypatch):
    import numpy as np

    there, elsewhere = tmp_path / "there", tmp_path / "elsewhere"
    there.mkdir()
    elsewhere.mkdir()
    np.savez(there / "data.npz", x=np.zeros((12, 4), np.float32), y=np.arange(12) % 2)
    (there / "study.toml").write_text(
        'name = "mine"\nmodel = "mlp"\ndata = { use = "npz", path = "data.npz", clients = 2 }\n'
    )
    for folder in (there, elsewhere):
        monkeypatch.chdir(folder)
        assert load(str(there / "study.toml")).cells[0].federation().task.shape == (4,)
    (there / "data.npz").rename(there / "dato.npz")
    with pytest.raises(
        StudyError, match=r"data.path - there is no 'data.npz' beside the study.*did you mean \"dato.npz\""
    ):
        load(str(there / "study.toml"))
