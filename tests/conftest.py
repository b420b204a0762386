"""What all tests share: one thread, repeatable hypothesis, the command line, the tiny federations of `tiny.py`."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")


LONGEST_FIRST = (
    "test_flower_running.py", "test_docs.py", "test_audit_game.py", "test_hostile.py", "test_audit_wide.py",
    "test_dp_sgd.py", "test_inversion_search.py", "test_audit_intermediaries.py", "test_membership.py",
    "test_attacks_menu.py", "test_accountant.py", "test_inversion_attack.py", "test_page.py", "test_guard.py",
    "test_networks_zoo.py", "test_flower_study.py", "test_local.py", "test_readme.py", "test_client_inference.py",
    "test_cli_audit.py", "test_epsilon.py", "test_attribute_inference.py", "test_inversion_labels.py",
    "test_claims_by_force.py", "test_audit_ldp.py", "test_lab.py", "test_inversion_judge.py",
    "test_inversion_crossing.py", "test_federation.py", "test_paper_001.py", "test_distributed_dp.py",
    "test_paper_003.py", "test_inversion_adam.py", "test_canaries_on_flower.py",
)  # fmt: skip
"""Files that take more than ten seconds of a processor, the longest first."""


def pytest_collection_modifyitems(items):
    """Long files begin and short ones end, so that no worker is left with a long one while the other has nothing."""
    rank = {name: index for index, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))


@pytest.fixture(autouse=True)
def _nothing_is_remembered(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def leakline(capfd, monkeypatch, tmp_path):
    """Run a command line in this process, as the installed script would; gives (exit code, out, err)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other people's deprecations
        from leakline.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # a command may add to it

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["leakline", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return call


def pytest_runtest_setup() -> None:
    """A test that draws without a seed of its own draws the same whichever tests ran before it."""
    torch.manual_seed(0)
