"""`leakline audit` and `leakline.audit`: exit codes, JSON, studies."""

from __future__ import annotations

import json
import math
import warnings

import pytest

import leakline
from leakline.errors import LeaklineError
from leakline.study.run import run_study
from leakline.study.spec import parse

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # typer imports names that newer clicks deprecate
    from typer.testing import CliRunner

    from leakline.cli import app

runner = CliRunner()
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
STUDY = """
name  = "tiny"
noise = "seeded"
[data]
use     = "digits"
limit   = 200
clients = 3
[model]
use    = "mlp"
hidden = [4]
[training]
rounds = 2
[strategies]
fedavg = { use = "fedavg", weighting = "even" }
[defences]
none = []
dp   = [{ use = "gaussian-release", noise_multiplier = 2.0, clip = 1.0 }]
"""


def test_a_defence_by_name_with_its_settings() -> None:
    found = runner.invoke(app, ["audit", "ldp-sgd", "--epsilon", "2", "--seat", "server", "--trials", "2000", "--json"])
    assert found.exit_code == 0, found.output
    said = json.loads(found.stdout)
    row = said["findings"][0]
    assert row["promised"] == 2.0
    assert 1 < row["low"] <= 2.0 <= row["ceiling"]
    assert row["point"] > row["low"]
    assert row["method"] == "Clopper-Pearson"
    assert row["trials"] == 2000
    assert said["broken"] == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ldp-sgd", "--epsilon", "0"], "epsilon must be positive"),
        (["ldp-sgd", "--epslon", "1"], "did you mean"),
        (["ldp-sgd"], "needed"),
        (["ldp-sgd", "--epsilon"], "pairs"),
        (["ldp-sgd", "--epsilon", "1", "--trials", "30"], "take at least"),
        (["ldp-sgd", "--epsilon", "1", "--seat", "sofa"], "seat"),
        (["ldp-sgd", "--epsilon", "1", "--adversary", "nobody"], "adversary"),
        (["no-such-thing"], "there is no study"),
    ],
)
def test_mistakes_are_said_in_words(arguments: list[str], says: str) -> None:
    found = runner.invoke(app, ["audit", *arguments])
    assert isinstance(found.exception, LeaklineError)
    assert says in str(found.exception)


def test_all_adversaries_through_the_real_hooks() -> None:
    found = leakline.audit(leakline.LdpSgd(4.0), adversary="all", trials=4000, noise="seeded")
    situations = {f.question.situation: f for f in found.findings}
    assert {"canary", "benign", "collusion", "dummy gradient"} <= set(situations)
    assert not found.broken
    assert all(f.low <= 4 for f in found.findings)
    # A client's own two gradients are told apart nearly as well as worst-case ones.
    assert situations["benign"].low > 1.0


def test_crafted_gradients_are_held_against_replacement_not_removal() -> None:
    found = leakline.audit(leakline.GlobalDP(1.0, 0.1), adversary="gradient-flip", trials=6000, noise="seeded")
    main = found.findings[0]
    assert main.question.promised == pytest.approx(2.0)
    assert 1.0 < main.low <= 2.0
    assert not found.broken


def test_a_stack_without_defence_is_infinite_in_words() -> None:
    found = leakline.audit([], trials=4000)
    assert found.findings[0].low == math.inf
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["findings"][0]["low"] == "infinite"


def test_a_study_gets_its_measured_half_without_training(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "tiny.toml"
    path.write_text(STUDY)
    out = tmp_path / "results"
    asked = ["audit", str(path), "--out", str(out), "--trials", "2000"]
    refused = runner.invoke(app, asked)
    assert isinstance(refused.exception, LeaklineError)
    assert "run it first" in str(refused.exception)
    list(run_study(parse(STUDY), out, workers=1))

    def never(*_: object, **__: object) -> None:
        raise AssertionError("an audit must not train")

    monkeypatch.setattr("leakline.study.lab.train_run", never)
    found = runner.invoke(app, [*asked, "--json"])
    assert found.exit_code == 0, found.output
    cards = {c["title"]: c for c in json.loads(found.stdout)["cards"]}
    assert cards["fedavg none seed 0"]["measured"][0]["low"] == "infinite"
    protected = cards["fedavg dp seed 0"]
    measured = {(r["measure"], r["about"]["unit"]): r["low"] for r in protected["measured"]}
    assert 0 < measured["mu", "client"] <= protected["promises"][0]["mu"]
    # A second time nothing is played again, and the directory itself will do.
    again = runner.invoke(app, ["audit", str(out), "--trials", "2000", "--json"])
    assert json.loads(again.stdout)["cards"] == json.loads(found.stdout)["cards"]


def test_a_broken_promise_ends_with_exit_code_3(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "shoddy.py").write_text(
        "from dataclasses import dataclass\n"
        "from leakline.defences import GaussianRelease\n"
        "@dataclass(frozen=True)\n"
        "class Shoddy(GaussianRelease):\n"
        "    def release(self, update, turn):\n"
        "        return GaussianRelease(self.noise_multiplier / 3, self.clip).release(update, turn)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    text = STUDY.replace('use = "gaussian-release"', 'use = "shoddy:Shoddy"')
    path = tmp_path / "broken.toml"
    path.write_text(text)
    list(run_study(parse(text, trust=True), tmp_path / "out", workers=1))
    found = runner.invoke(app, ["audit", str(path), "--out", str(tmp_path / "out"), "--trials", "4000", "--trust"])
    assert found.exit_code == 3
    assert "BROKEN" in found.stdout
