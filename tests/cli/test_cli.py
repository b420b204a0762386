"""The command line: exit codes, one clear line, no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

STUDY = """\
name = "tiny"
noise = "seeded"
[data]
use = "digits"
limit = 100
clients = 3
[model]
use = "mlp"
hidden = [4]
[training]
rounds = 1
[strategies]
fedavg = { use = "fedavg", weighting = "even" }
[defences]
none = []
dp = [{ use = "global-dp", noise_multiplier = 1.0, clip = 1.0 }]
"""


@pytest.fixture
def toml(tmp_path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(STUDY)
    return path


def test_run_check_report_and_export(leakline, toml, tmp_path):
    code, out, _ = leakline("check", str(toml))
    assert code == 0
    assert "Nothing was trained" in out
    assert not (tmp_path / "runs").exists()
    code, out, _ = leakline("run", str(toml), "--workers", "1")
    assert code == 0
    assert "2 of 2 cells" in out
    assert "NOT PRIVATE" in out
    assert (tmp_path / "runs" / "tiny" / "report.html").is_file()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs", "tiny.toml"]
    code, out, _ = leakline("report", "runs/tiny", "-o", "page.html")
    assert code == 0
    assert (tmp_path / "page.html").is_file()
    code, out, _ = leakline("export", "runs/tiny", "--table", "utility", "--format", "csv")
    assert code == 0
    assert "fedavg" in out


def test_parts_and_cells_at_once_from_the_command_line(leakline, toml):
    for words in (["--part", "3/2"], ["--part", "two"], ["--part", "1/2", "--fail-if", "accuracy < 0.1"]):
        code, _, err = leakline("run", str(toml), *words)
        assert code == 2
        assert len(err.strip().splitlines()) == 3
        assert "part" in err
    code, out, _ = leakline("run", str(toml), "--part", "2/2", "--workers", "1")
    assert code == 0
    assert "part 2 of 2: 1 of 1 cells done; after all parts: leakline report runs/tiny" in out
    code, out, _ = leakline("run", str(toml), "--part", "3/3", "--workers", "1")
    assert (code, "part 3 of 3: 0 of 0 cells done" in out) == (0, True)
    code, out, _ = leakline("run", str(toml), "--cells", "2")
    assert (code, "2 of 2 cells done; report" in out) == (0, True)


def test_check_as_json(leakline, toml):
    code, out, _ = leakline("check", str(toml), "--json")
    found = json.loads(out)
    assert code == 0
    assert found["cells"] == 2
    assert found["problems"] == []
    assert len(found["cards"]) == 2


def test_examples_are_drawn_as_a_study_holds_them(leakline, toml, tmp_path):
    code, out, _ = leakline("data", "show", str(toml), "-o", str(tmp_path / "seen.png"), "--each", "2")
    assert code == 0
    assert "keep the file as you keep the data" in out
    assert (tmp_path / "seen.png").read_bytes().startswith(b"\x89PNG")
    code, _, err = leakline("data", "show", str(toml), "-o", str(tmp_path / "no" / "seen.png"))
    assert code == 2
    assert "cannot be written" in err


@pytest.mark.parametrize(
    "what", ["strategies", "defences", "attacks", "datasets", "partitioners", "models", "losses", "studies", "tables"]
)
def test_every_list_has_a_line_for_each_entry(leakline, what):
    code, out, _ = leakline("list", what, "--json")
    rows = json.loads(out)
    assert code == 0
    assert rows
    assert all(row["name"] and row["what"] for row in rows)
    assert leakline("list", what)[0] == 0


BAD = {
    "a typo": (("run", "{toml}"), ("rounds = 1", "roundz = 1"), "tiny.toml:11 training.roundz"),
    "a typo in check": (("check", "{toml}"), ("rounds = 1", "roundz = 1"), 'did you mean "rounds"'),
    "out of range": (("run", "{toml}"), ("rounds = 1", "rounds = 0"), "training.rounds"),
    "not TOML": (("run", "{toml}"), ("[data]", "[data"), "not TOML"),
    "a missing study": (("run", "nothing.toml"), None, "no file nothing.toml"),
    "an unknown study": (("run", "quikstart"), None, "there is no study"),
    "a missing data file": (
        ("run", "{toml}"),
        ('use = "digits"\nlimit = 100', 'use = "npz"\npath = "x.npz"'),
        "there is no 'x.npz' beside the study",
    ),
    "a hostile name": (("run", "{toml}"), ('name = "tiny"', 'name = "../../x"'), "letters, digits"),
    "an unknown preset": (("run", "{toml}", "--preset", "paper"), None, "paper"),
    "a bad sweep": (("run", "{toml}", "-s", "training.rounds"), None, "key=value"),
    "an unknown list": (("list", "things"), None, "no list"),
    "a report of nothing": (("report", "{here}"), None, "study.json"),
    "an unknown table": (("export", "{here}", "--table", "x"), None, "no table"),
    "an unknown data set to prepare": (("data", "prepare", "x", "--source", "."), None, "preparing"),
    "an unknown command": (("trian",), None, "trian"),
    "an unknown option": (("run", "{toml}", "--worker", "3"), None, "--worker"),
}


@pytest.mark.parametrize("case", BAD)
def test_mistakes_end_with_exit_code_two_and_write_nothing(leakline, toml, tmp_path, case):
    words, edit, says = BAD[case]
    if edit:
        assert STUDY.count(edit[0]) == 1
        toml.write_text(STUDY.replace(*edit))
    code, _, err = leakline(*(w.format(toml=toml, here=tmp_path) for w in words))
    assert code == 2
    assert says in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tiny.toml"]


def test_a_damaged_run_directory_is_one_clear_line(leakline, toml, tmp_path):
    assert leakline("run", str(toml), "--workers", "1")[0] == 0
    (tmp_path / "runs" / "tiny" / "study.json").write_text("{")
    code, _, err = leakline("report", "runs/tiny")
    assert code == 2
    assert "study.json" in err


@pytest.mark.parametrize("what", ["strategies", "defences", "attacks", "datasets", "partitioners", "models"])
def test_lists_fit_eighty_columns_and_an_entry_says_all_that_it_takes(leakline, what):
    code, text, _ = leakline("list", what)
    assert code == 0
    assert max(len(line) for line in text.splitlines()) <= 80
    name = text.splitlines()[0]
    code, whole, _ = leakline("list", what, name)
    assert code == 0
    assert whole.startswith(name)
    code, _, said = leakline("list", what, name[:-1] + "x")
    assert code == 2
    assert name in said


def test_choices_and_needs_stand_in_a_list(leakline):
    _, text, _ = leakline("list", "defences")
    assert "clip (needed)" in text
    assert "at (aggregate | model)" in " ".join(text.split())
    _, whole, _ = leakline("list", "defences", "global-dp")
    assert 'at: "aggregate", "model"; by default "aggregate"' in whole
    assert "leakline list attacks" in leakline("list")[1]


def test_the_list_says_who_attacks_where_that_depends_on_a_setting(leakline):
    _, text, _ = leakline("list", "attacks")
    assert "<property" not in text
    assert "seat: Anybody sees the last model, a participant every model" in " ".join(text.split())


def test_a_check_that_cannot_build_a_cell_prices_nothing(leakline, toml):
    (toml.parent / "empty").mkdir()
    toml.write_text(STUDY.replace('"digits"', '"image-folder"\npath = "empty"'))
    code, out, _ = leakline("check", str(toml))
    assert code != 0
    assert "work:" not in out
    assert "minutes" not in out
    assert "what they take is told once the problems above are mended. Nothing was trained." in " ".join(out.split())


def test_a_defence_that_is_almost_right_is_suggested(leakline):
    code, _, said = leakline("audit", "globaldp")
    assert code == 2
    assert 'did you mean "global-dp"?' in said


def test_help_names_arguments_once_and_escapes_nothing(leakline):
    _, text, _ = leakline("run", "--help")
    assert text.count("A .toml file, or the name of a built-in study.") == 1
    assert "\\[" not in text


def test_seeds_on_the_command_line_are_seeds_and_sweeps_keep_their_keys(leakline, toml):
    code, text, _ = leakline("check", str(toml), "-s", "seeds=3,4", "-s", "training.epochs=1,2", "--json")
    assert code == 0
    found = json.loads(text)
    assert found["cells"] == 8
    titles = {f"epochs={e} fedavg {defence}" for e in (1, 2) for defence in ("none", "dp")}
    assert {card["title"] for card in found["cards"]} == titles


def test_the_version_and_help_come_from_a_real_process():
    module = subprocess.run([sys.executable, "-m", "leakline", "--version"], capture_output=True, text=True)
    assert module.stdout.startswith("leakline ")
    for words, says in ((["--version"], "leakline "), (["--help"], "promise")):
        done = subprocess.run(
            [sys.executable, "-m", "leakline.cli", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0
        assert says in done.stdout


def test_doctor(leakline):
    code, out, _ = leakline("doctor")
    assert code == 0
    assert "torch" in out


@pytest.mark.parametrize("words", [[], ["run"], ["data"], ["choose"], ["schema"]])
def test_h_is_help(leakline, words):
    assert leakline(*words, "-h")[:2] == leakline(*words, "--help")[:2]
    assert leakline(*words, "-h")[0] == 0


def test_a_negative_number_of_workers_is_refused(leakline):
    code, _, err = leakline("run", "quickstart", "--workers", "-1")
    assert code == 2
    assert "--workers" in err
