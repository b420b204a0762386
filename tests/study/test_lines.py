"""Which line a key stands on."""

from __future__ import annotations

from leakline.study.lines import key_lines, line_of

TEXT = """\
name = "x"  # [data]
[data]
use = "digits"
partition = { use = "dirichlet", alpha = 0.5 }
"odd key" = 1
[[attacks]]
use = "a"
[[attacks]]
use = "b"
[presets.paper.training]
rounds = 3
training.epochs = 4
"""


def test_keys_tables_lists_and_inline_tables_have_lines():
    lines = key_lines(TEXT)
    assert lines["name",] == 1
    assert lines["data",] == 2
    assert lines["data", "partition", "alpha"] == 4
    assert lines["data", "odd key"] == 5
    assert lines["attacks", 0, "use"] == 7
    assert lines["attacks", 1, "use"] == 9
    assert lines["presets", "paper", "training", "rounds"] == 11


def test_a_key_that_is_not_there_has_the_line_of_its_table():
    lines = key_lines(TEXT)
    assert line_of(lines, ("data", "clients")) == 2
    assert line_of(lines, ("attacks", 1, "records")) == 8
    assert line_of(lines, ("training", "rounds")) == 11
    assert line_of(lines, ("nothing",)) is None
