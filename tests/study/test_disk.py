"""What a check says of disk space is what runs leave, server's optimiser, personal layers and kept updates included."""

from __future__ import annotations

import pytest

from leakline.study.disk import disk_of
from leakline.study.run import run_study
from leakline.study.spec import parse

STUDY = """
name = "disk"
noise = "seeded"
data = { use = "digits", limit = 120, clients = 3, server_validation = 0.2 }
model = { use = "mlp", hidden = [256] }
training = { rounds = 3, learning_rate = 0.1 }
[warm_start]
epochs = 1
[strategies]
fedavg  = { use = "fedavg" }
fedavgm = { use = "fedavgm", momentum = 0.5 }
fedyogi = { use = "fedyogi", warm_start = true, base = "own" }
[defences]
none   = []
global = [{ use = "global-dp", noise_multiplier = 0.1, clip = 1.0, at = "model" }]
fedper = [{ use = "fedper", last = 1 }]
"""
KEEPS = """
[[attacks]]
use = "gradient-inversion"
iterations = 1
restarts = 1
rounds = [0, 2]
clients = ["client-1"]
"""


@pytest.mark.parametrize("attacks", ["", KEEPS], ids=["nobody attacks", "updates are kept"])
def test_what_is_said_is_what_is_left(tmp_path, attacks):
    study = parse(STUDY + attacks).only(["strategy=fedavg,fedavgm", "defence=none"]) if attacks else parse(STUDY)
    outcomes = list(run_study(study, tmp_path, workers=1))
    for cell, outcome in zip(study.cells, outcomes, strict=True):
        files = sum(path.stat().st_size for path in outcome.run.path.rglob("*.safetensors"))
        said = disk_of(cell.federation(), study.attacks_on(cell).values())
        assert said == pytest.approx(files / 2**20, rel=0.1), cell.name
