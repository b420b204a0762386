"""Networks of one's own that are not quite right: one line of what was tried, and what to write."""

from __future__ import annotations

import sys

import pytest

from leakline.errors import StudyError
from leakline.study.check import check_study
from leakline.study.run import run_study
from leakline.study.spec import parse

NETS = """\
from torch import nn

def flat(out, inside=64):
    return nn.Sequential(nn.Flatten(), nn.Linear(inside, out))

def good(shape, classes): return flat(classes)
def no_arguments(): return flat(10)
def with_kind(shape, classes, kind): return flat(classes)
def with_settings(shape, classes, width=3): return flat(classes)
def any_arguments(**given): return flat(given["classes"])
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


@pytest.mark.parametrize("name", ["good", "no_arguments", "with_kind", "with_settings", "any_arguments", "Net"])
def test_a_factory_is_given_what_it_takes(study, name):
    checked = check_study(study(name))
    assert not checked.problems
    assert not [w for w in checked.warnings if "output" in w]


WRONG = {
    "raises": r"nets_of_mine:raises\(shape=\(1, 8, 8\), classes=10\) raised KeyError: 'missing'",
    "exits": "raised SystemExit",
    "other_names": r"nets_of_mine:other_names\(input_shape, n_classes\) asks for 'input_shape'",
    "nothing": "returned a NoneType, not a torch.nn.Module",
    "one_logit": r"two inputs of shape \(1, 8, 8\) give an output of shape \(2, 1\); classification needs \(2, 10\)",
    "wrong_input": r"it fails on inputs of shape \(1, 8, 8\): RuntimeError: mat1 and mat2",
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


@pytest.mark.parametrize(("name", "words"), [("more", "11 outputs for 10 classes"), ("probabilities", "takes logits")])
def test_what_trains_and_is_odd_is_a_warning(study, name, words):
    checked = check_study(study(name))
    assert not checked.problems
    assert any(words in warning for warning in checked.warnings)
