"""A study of 200 cells: its page stays small and complete."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from leakline.report.page.build import build_report
from leakline.results import read


@pytest.fixture
def large(tmp_path, monkeypatch):
    folder = Path(__file__).parents[2] / "benchmarks"
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    spec = importlib.util.spec_from_file_location("benchmark_of_reports", folder / "report.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.made_up(tmp_path / "large")


def test_two_hundred_cells_make_a_page_of_less_than_ten_megabytes(large, read_page):
    path = build_report(read(large))
    assert path.stat().st_size < 10e6
    page = read_page(path)
    assert "What was run (200 rows)" in page.text
    # Five defences promise something else under each of five strategies, three promise nothing anywhere.
    assert sum(tag == "article" for tag, _ in page.elements) == 28
    assert "Nothing: every cell of the study finished" in page.text
