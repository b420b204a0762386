"""What is large, as `benchmarks/run.py size` measures it: memory in Pss over all processes, processor time."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def size(monkeypatch):
    folder = Path(__file__).parents[2] / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location("benchmark_of_sizes", folder / "size.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not module.counted():
        pytest.skip("this system does not count Pss")
    return module


@pytest.mark.parametrize("rows", ["folder_rows", "client_rows", "cell_rows"])
def test_what_is_large_keeps_its_bounds(size, rows):
    figures = getattr(size, rows)()
    assert figures
    assert all(row.met for row in figures), figures


def test_a_round_of_large_updates_holds_few_copies_of_them(size):
    """Ten at most with one worker: model, its gradients, what it began from, what is sent, and those on the way."""
    here, pool = size.update_rows()
    copy = 4 * 45_000_000 / 2**20
    assert here.value < 10 * copy
    assert pool.value < 16 * copy
