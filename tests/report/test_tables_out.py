"""Tables in every form: right numbers, and nothing hostile gets out of its cell."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from leakline.errors import LeaklineError
from leakline.report.papers import papers
from leakline.report.tables.menu import TABLES, every_table
from leakline.report.tables.paired import paired_against
from leakline.results import Estimate, read
from leakline.results.table import FORMS, Table, render
from leakline.study.spec import built_in
from leakline.text import clean, csv_cell, latex, markdown, number, scrub

COMMANDS = {
    "textbackslash",
    "textendash",
    "textasciicircum",
    "textasciitilde",
    "textless",
    "textgreater",
    "textbar",
    "textquotedbl",
    "textquotesingle",
    "textasciigrave",
    "ensuremath",
    "pm",
    "begin",
    "end",
    "centering",
    "caption",
    "toprule",
    "midrule",
    "bottomrule",
    "usepackage",
}
HOSTILE = json.loads((Path(__file__).parent / "hostile.json").read_text())


def table_with(names):
    rows = tuple((name, Estimate(0.5, 0.1, 0.4, 0.6, 3), 1.5) for name in names)
    return Table("t " + names[0], ("name", "value " + names[-1], "plain"), rows, "note " + names[0])


def body_of(text):
    return text[text.index("\\midrule") + 8 : text.index("\\bottomrule")].strip().splitlines()


def check_latex(text, rows):
    """No command but ours, balanced groups, and as many cells as columns."""
    text = text.partition("\n")[2]
    bare = re.sub(r"\\[\\{}$&#%_]", "", text)
    assert set(re.findall(r"\\([A-Za-z]+)", bare)) <= COMMANDS
    assert not re.search(r"\\[^A-Za-z]", bare)
    assert bare.count("{") == bare.count("}")
    assert not set("$#%~^_") & set(re.sub(r"\\[A-Za-z]+", "", bare))
    lines = body_of(text)
    assert len(lines) == rows
    for line in lines:
        assert line.endswith(" \\\\")
        assert len(re.findall(r"(?<!\\)&", line[:-3])) == 2


def check_csv(text, rows):
    found = list(csv.reader(io.StringIO(text)))
    assert len(found) == rows + 1
    for cell in (c for row in found for c in row):
        assert cell[:1] not in ("=", "@", "\t", "\r")
        assert cell.isprintable()
        assert cell[:1] not in ("+", "-") or float(cell) is not None


def check_markdown(text, rows):
    lines = text.splitlines()[2 : 4 + rows]
    for line in lines:
        assert len(re.findall(r"(?<!\\)\|", line)) == 4
    assert not [sign for sign in ("<", "](", "://") if sign in text]
    assert all(c.isprintable() or c == "\n" for c in text)


def check_text(text, rows):
    assert len(text.splitlines()) == rows + 6
    assert all(c.isprintable() or c == "\n" for c in text)


def test_hostile_names_stay_in_their_cells():
    table = table_with(HOSTILE)
    check_latex(render(table, "latex"), len(HOSTILE))
    check_csv(render(table, "csv"), len(HOSTILE))
    check_markdown(render(table, "markdown"), len(HOSTILE))
    check_text(render(table, "text"), len(HOSTILE))
    assert pd.read_parquet(io.BytesIO(render(table, "parquet")))["plain"].tolist() == [1.5] * len(HOSTILE)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here: the tokeniser above stands in for it")
def test_latex_tables_compile(made, tmp_path):
    from leakline.decide.compare import find_setting, pair

    results = read(made)
    compared = pair("none", find_setting(results, "none"), "dp", find_setting(results, "global-dp")).table()
    found = [table_with([name[:60]]) for name in HOSTILE] + [compared]
    found += [make(read(made)) for make in TABLES.values()]
    # A float for each of many tables runs TeX out of boxes: every one goes out before the next.
    body = "\n\\clearpage\n".join(render(table, "latex") for table in found)
    packages = "\\usepackage{booktabs}\\usepackage[T1]{fontenc}\\usepackage{textcomp}"
    document = f"\\documentclass{{article}}{packages}\\begin{{document}}\n{body}\n\\end{{document}}\n"
    (tmp_path / "x.tex").write_text(document, encoding="utf-8")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "x.tex"],
        cwd=tmp_path, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-1500:]
    assert (tmp_path / "x.pdf").stat().st_size > 10_000


@given(st.lists(st.text(st.characters(), max_size=30), min_size=1, max_size=3))
def test_any_name_stays_in_its_cell(names):
    table = table_with(names)
    check_latex(render(table, "latex"), len(names))
    check_csv(render(table, "csv"), len(names))
    check_markdown(render(table, "markdown"), len(names))
    check_text(render(table, "text"), len(names))


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a_b", r"a\_b"),
        ("50%", r"50\%"),
        ("\\x", r"\textbackslash{}x"),
        ("^~", r"\textasciicircum{}\textasciitilde{}"),
        ("0.5 ± 0.1", r"0.5 \ensuremath{\pm} 0.1"),
        ("é", "é"),
        ("–", r"\textendash{}"),
        ("数", "?"),
        ("--", "{-}{-}"),
        ("[1]", "{[}1{]}"),
    ],
)
def test_latex_escapes(text, escaped):
    assert latex(text) == escaped


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+a", "'+a"),
        ("-a", "'-a"),
        ("@x", "'@x"),
        ("\tx", "' x"),
        (" =1", "' =1"),
        ("-1.5", "-1.5"),
        (-1.5e-7, "-1.5e-07"),
        ("+3", "+3"),
        ("plain", "plain"),
        (None, ""),
        (float("nan"), ""),
        ("-1+1", "'-1+1"),
        ("-inf", "'-inf"),
    ],
)
def test_csv_cells(value, cell):
    assert csv_cell(value) == cell


def test_estimates_are_one_cell_to_people_and_five_to_programs():
    table = Table("t", ("name", "x"), (("a", Estimate(0.5, 0.1, 0.4, 0.6, 3)), ("b", None), ("c", Estimate(0.25))))
    assert "0.500 ± 0.100 [0.400, 0.600]" in render(table, "text")
    found = pd.read_parquet(io.BytesIO(render(table, "parquet")))
    assert list(found.columns) == ["name", "x", "x sd", "x low", "x high", "x seeds"]
    assert found["x"].tolist()[0] == 0.5
    assert found["x sd"].isna().tolist() == [False, True, True]
    pd.testing.assert_frame_equal(found, pd.read_csv(io.StringIO(render(table, "csv"))), check_dtype=False)


def test_wrong_rows_and_forms_are_refused():
    with pytest.raises(ValueError, match="2 columns"):
        Table("t", ("a", "b"), ((1,),))
    with pytest.raises(LeaklineError, match="no format"):
        render(Table("t", (), ()), "docx")


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("form", FORMS)
def test_every_table_of_a_store_in_every_form(made, name, form):
    assert every_table()[name].__doc__
    table = every_table()[name](read(made))
    assert render(table, form)
    rows = {
        "attacks": 6, "cards": 2, "clients": 0, "measures": 3, "missing": 0, "paired": 1, "patients": 0, "runs": 4,
        "utility": 1,
    }  # fmt: skip
    assert len(table.rows) == rows[name]


@pytest.mark.parametrize("name", [name for name in every_table() if "/" in name])
def test_a_papers_table_of_another_study_is_a_table_or_a_clear_answer(made, name):
    assert every_table()[name].__doc__
    try:
        shown = render(every_table()[name](read(made)), "markdown")
    except LeaklineError as answer:
        shown = answer.what
    assert shown


def test_differences_are_paired_by_seed(made):
    results = read(made)
    last = results.frame.query("measure == 'accuracy' and round == 1")
    found = last.pivot(columns="defence", index="seed", values="value")
    names = [s.defence for s in results.settings if not s.undefended]
    apart = found[names[0]] - found["none"]
    (row,) = TABLES["paired"](results).rows
    for cell, sign in ((row[-2], 1), (paired_against(results, f"defence={names[0]}").rows[0][-2], -1)):
        assert cell.mean == pytest.approx(sign * apart.mean())
        assert cell.sd == pytest.approx(apart.std())
        width = 2 * student.ppf(0.975, len(apart) - 1) * apart.std() / len(apart) ** 0.5
        assert cell.high - cell.low == pytest.approx(width)
    with pytest.raises(LeaklineError, match="one of"):
        paired_against(results, "defence=nothing")


def test_utility_table_is_the_mean_of_the_last_round(made):

    table = TABLES["utility"](read(made))
    found = read(made).frame.query("measure == 'accuracy' and round == 1")
    assert table.columns[-1] == "constant answer"
    assert table.rows[0][-1] == pytest.approx(found["chance"].mean())
    for defence, cell in zip(table.columns[1:-1], table.rows[0][1:-1], strict=True):
        assert cell.mean == pytest.approx(found[found["defence"] == defence]["value"].mean())


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("cannot read /home/jane/data/x.npz: gone", "cannot read x.npz: gone"),
        ('path = "/home/Jane Doe/my data"', 'path = "my data"'),
        (r"at C:\Users\jane\x.toml", "at x.toml"),
        ("file:///srv/a/b.png", "b.png"),
        ("~/secret/place", "place"),
        ("mean/sd and 1/2, /tmp", "mean/sd and 1/2, /tmp"),
    ],
)
def test_directories_are_scrubbed(text, left):
    assert scrub(text) == left


def test_numbers_read_as_people_write_them():
    assert [number(v) for v in (None, 3.0, 23.3463, 101906.2, 1e-5, float("inf"))] == [
        "–",
        "3",
        "23.35",
        "101,906",
        "1e-05",
        "infinite",
    ]
    assert [number(v, 3) for v in (0.5, 0.0, 1e-5)] == ["0.500", "0.000", "1e-05"]
    assert clean("a\x1b[1m\u202e") == "a?[1m?"
    assert markdown("-0.5 to 1e-05") == "-0.5 to 1e-05"


def test_every_built_in_study_of_a_paper_has_its_tables_in_its_report():
    """A report looks up its paper's tables by the study's name."""
    names = set(built_in())
    studies = {study for paper in papers() for study in paper.studies}
    assert names - studies == {"exposure", "frontier", "participation", "quickstart", "server-sees"}
    assert studies <= names
