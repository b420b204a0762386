"""`leakline audit STUDY --in-run`."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
STUDY = """
name = "small"
[data]
use = "digits"
limit = 200
clients = 4
[model]
use = "mlp"
hidden = [32]
[training]
rounds = 2
batch = 0
learning_rate = 0.5
[strategies]
fedavg = { use = "fedavg", weighting = "even" }
[defences]
dp = [{ use = "global-dp", noise_multiplier = 2.0, clip = 1.0 }]
"""


def test_finished_cells_are_trained_once_more_with_canaries(tmp_path, leakline):
    (tmp_path / "small.toml").write_text(STUDY)
    assert leakline("run", "small.toml", "--workers", "1")[0] == 0
    code, out, err = leakline("audit", "small.toml", "--in-run", "--canaries", "60", "--json")
    assert code == 0
    card = json.loads(out)["cards"][0]
    assert {reading["measure"] for reading in card["measured"]} == {"mu", "epsilon"}
    assert all(reading["by"] == "in-run-audit" for reading in card["measured"])
    assert {"fitted-epsilon", "accuracy-lost"} & {reading["measure"] for reading in card["leaks"]}
    assert "round 2 of 2" in err


def test_a_defence_alone_is_no_run(leakline):
    code, _, err = leakline("audit", "global-dp", "--noise-multiplier", "1", "--clip", "1", "--in-run")
    assert code != 0
    assert "name a study" in err
