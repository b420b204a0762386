"""Code of a study's own needs consent before Flower's commands read the study, and can be given it."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")
STUDY = """
name = "own"
data = { use = "digits", limit = 60, clients = 2 }
model = "own_MODULE:build"
training = { rounds = 1 }
"""
NET = """
from torch import nn

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


@pytest.mark.parametrize("verb", ["export", "split"])
def test_flower_commands_want_trust_once(verb, leakline, tmp_path):
    (tmp_path / "study.toml").write_text(STUDY.replace("MODULE", verb))  # a name that no other test has imported
    (tmp_path / f"own_{verb}.py").write_text(f"{NET}# {verb}\n")
    code, _, err = leakline("flower", verb, "study.toml", "out")
    assert code == 2
    assert "--trust" in err
    assert not (tmp_path / "out").exists()
    code, _, err = leakline("flower", verb, "study.toml", "out", "--trust")
    assert code == 0, err
    assert any((tmp_path / "out").iterdir())
