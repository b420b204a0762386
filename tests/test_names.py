"""Names from data become client names that are safe everywhere and all different."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakline.names import client_names, is_safe, natural, printable

HOSTILE = [
    "../../x",
    "/etc/passwd",
    "a\0b",
    "CON",
    "con.txt",
    "x" * 300,
    "\u202egnp.exe",
    "<script>",
    "",
    " ",
    "-",
    "..",
    "ä",
    "你好",
    "a b",
    "a-b",
    "A-B",
]


def test_hostile_names_become_safe_and_distinct():
    names = client_names(HOSTILE)
    assert set(names) == set(HOSTILE)
    assert all(is_safe(n) for n in names.values())
    assert len({n.casefold() for n in names.values()}) == len(HOSTILE)
    assert (names["A-B"], names["a-b"]) == ("A-B", "a-b-2")


@given(st.lists(st.text(max_size=90), unique=True, max_size=20))
def test_any_text_becomes_safe_and_distinct(labels):
    names = client_names(labels)
    assert list(sorted(names)) == sorted(labels)
    assert all(re.fullmatch(r"[A-Za-z0-9][\w.-]{0,63}", n, flags=re.ASCII) for n in names.values())
    assert len({n.casefold() for n in names.values()}) == len(labels)


@given(st.text(), st.integers(20, 200))
def test_messages_stay_one_printable_line(text, limit):
    shown = printable(text, limit)
    assert shown.isprintable()
    assert len(shown) <= limit


@pytest.mark.parametrize("name", ["sub-1", "client-12", "a.b_c"])
def test_good_names_stay(name):
    assert client_names([name]) == {name: name}


def test_natural_order():
    assert sorted(["s10", "s9", "s1"], key=natural) == ["s1", "s9", "s10"]
