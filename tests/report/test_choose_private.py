"""`leakline choose --private`: what is drawn, what is paid, what is kept back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from leakline.decide.private import SCORE_STD, candidates, draw
from leakline.errors import LeaklineError
from leakline.randomness import SeededNoise, Stream
from leakline.results import read

STUDY = """
name = "pick"
seeds = 2
[data]
use = "digits"
clients = 3
[model]
use = "mlp"
hidden = [8]
[training]
rounds = 1
batch = 0
[defences]
low  = [{ use = "dp-sgd", noise_multiplier = 4.0, clip = 1.0 }]
high = [{ use = "dp-sgd", noise_multiplier = 1.0, clip = 1.0 }]
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    from leakline.study.run import run_study
    from leakline.study.spec import parse

    root = tmp_path_factory.mktemp("private") / "pick"
    assert not [o.error for o in run_study(parse(STUDY), root, workers=1) if o.error]
    return root


def test_one_setting_is_named_and_its_card_says_what_it_cost(leakline, trained):
    code, out, _ = leakline("choose", trained, "--private", "--runs", 1)
    assert code == 0
    assert "Chosen: fedavg low" in out or "Chosen: fedavg high" in out
    assert ("low" in out) != ("high" in out)  # nothing is said of the others
    chosen = next(s for s in read(trained).settings if s.card.chosen)
    assert "among 2 settings" in chosen.card.chosen
    assert ("chosen", chosen.card.chosen) in chosen.card.rows()
    code, out, _ = leakline("choose", trained, "--private", "--runs", 1, "--json")
    assert json.loads(out)["epsilon"] > json.loads(out)["alone"]
    _, out, _ = leakline("choose", trained, "--private", "--runs", 1)
    assert "private choice 3" in out


def test_a_draw_that_lacks_runs_waits_for_them(leakline, trained):
    code, _, err = leakline("choose", trained, "--private", "--runs", 900)
    assert code == 2
    assert "more seeds" in err
    first = json.loads((trained / "choices.json").read_text())["waiting"]["drawn"]
    assert leakline("choose", trained, "--private", "--runs", 900)[0] == 2
    assert json.loads((trained / "choices.json").read_text())["waiting"]["drawn"] == first
    _, _, err = leakline("choose", trained, "--private", "--runs", 2)
    assert "waits for runs" in err


def test_refused(leakline, made, trained):
    code, _, err = leakline("choose", trained, "--private", "--min", "accuracy>=0.5")
    assert code == 2
    assert "limit epsilon alone" in err
    _, _, err = leakline("choose", trained, "--private", "--max", "epsilon<=1e-3")
    assert "can be chosen privately" in err
    with pytest.raises(LeaklineError, match="can be chosen"):
        candidates(read(made), [])


def test_draws_are_geometric_and_even(trained):
    """Each figure is held within five of its standard errors: a false alarm in a million."""
    among = candidates(read(trained), [])
    noise = SeededNoise(Stream(0, 0, "test", "draws"))
    drawn = [draw(among, 5.0, noise) for _ in range(4000)]
    counts = np.array([len(d) for d in drawn])
    assert counts.min() == 1
    assert abs(counts.mean() - 5) < 5 * np.sqrt(20 / 4000)
    assert abs((counts == 1).mean() - 0.2) < 5 * np.sqrt(0.16 / 4000)
    share = np.mean([name == among[0].name for d in drawn for name in d])
    assert abs(share - 0.5) < 5 * 0.5 / np.sqrt(counts.sum())
    assert SCORE_STD >= 1
