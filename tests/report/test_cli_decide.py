"""`compare`, `choose`, `--fail-if` and `init` as a user types them: exit codes, clear words, nothing overwritten."""

from __future__ import annotations

import json
import re
import sys
import tomllib

import numpy as np
import pytest


def test_compare_two_cells_and_two_directories(leakline, made, root):
    code, out, _ = leakline("compare", "--in", made, "none", "global-dp")
    assert code == 0
    assert "defences.0.clip" in out
    assert "loss-threshold" in out
    code, out, _ = leakline("compare", made, root, "--json")
    found = json.loads(out)
    assert code == 0
    assert [pair["settings"] for pair in found] == [[], []]
    assert {f["verdict"] for pair in found for f in pair["figures"]} == {"equal"}
    assert leakline("compare", made, root, "--fail-if", "accuracy < 2")[0] == 4
    assert leakline("compare", made, made.parent)[0] == 2
    assert leakline("compare", "--in", made, "none", "nothing")[0] == 2


@pytest.mark.parametrize("width", [80, 100])
def test_compare_fits_a_terminal(leakline, made, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    _, out, _ = leakline("compare", "--in", made, "none", "global-dp")
    assert max(len(line) for line in out.splitlines()) <= width
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    span = r"0\.\d{3} \[0\.\d{3}, [01]\.\d{3}\]"
    # One line per figure: neither names nor intervals are broken, and an empty list is no setting of its own.
    assert re.fullmatch(rf"accuracy +{span} +{span} +\w+ *", rows["accuracy"])
    assert rows["epsilon"].split() == ["epsilon", "no", "promise", rows["epsilon"].split()[3], "right"]
    assert rows["loss-threshold"].strip() == "loss-threshold"
    assert next(line for line in out.splitlines() if "tpr at fpr=0.1 " in line).count("[") == 2
    assert "tpr at fpr=0.5" not in out
    assert "defences " not in out


def test_choose(leakline, made):
    code, out, _ = leakline("choose", made, "--max", "loss-threshold.auc<=1.5", "--min", "accuracy>=-1")
    assert code == 0
    assert "1 of 2 settings keep all limits" in out
    assert "fedavg global-dp: the model is no" in out
    assert "cautious end" in out
    code, out, _ = leakline("choose", made, "--max", "epsilon<=1e6", "--min", "accuracy>=1.5", "--json")
    assert code == 4
    assert [c["kept"] for c in json.loads(out)] == [False, False]
    code, out, _ = leakline("choose", made, "--min", "accuracy>=1.5")
    assert "None of the 2 settings keeps all limits" in out
    for words in (["--max", "auc>=1"], ["--max", "acuracy<=1"], []):
        assert leakline("choose", made, *words)[0] == 2
    assert leakline("choose", "no-such-study", "--min", "accuracy>=1")[0] == 2


@pytest.mark.parametrize(
    ("condition", "code", "says"),
    [
        ("loss-threshold.auc > 1", 0, ""),
        ("loss-threshold.auc > -1", 4, "fails if loss-threshold.auc > -1"),
        ("epsilon > 1e9", 4, "no promise"),
        ("global-dp: epsilon > 1e9", 0, ""),
        ("loss-treshold.auc > 1", 2, "did you mean 'loss-threshold.auc'"),
        ("auc", 2, "cannot read the limit"),
    ],
)
def test_the_gate_of_a_report(leakline, root, condition, code, says):
    found, _, err = leakline("report", root, "--fail-if", condition)
    assert found == code
    assert says in err


def test_the_gate_of_a_run_is_checked_before_training(leakline, tmp_path):
    leakline("init", "demo")
    code, _, err = leakline("run", "demo/study.toml", "--fail-if", "loss-treshold.auc > 0.6")
    assert code == 2
    assert "did you mean 'loss-threshold'" in err
    assert not (tmp_path / "runs").exists()


def test_the_gate_of_an_audit(leakline):
    words = ("audit", "global-dp", "--noise-multiplier", "4", "--clip", "1", "--trials", "1000", "--narrow")
    assert leakline(*words, "--fail-if", "epsilon > 0.001")[0] == 4
    assert leakline(*words, "--fail-if", "epsilon > 1000")[0] == 0


def test_a_new_study_is_commented_valid_and_never_overwritten(leakline, tmp_path):
    code, out, _ = leakline("init", "demo")
    assert code == 0
    text = (tmp_path / "demo" / "study.toml").read_text()
    assert tomllib.loads(text)["name"] == "demo"
    assert text.count("#") > 15
    assert leakline("check", "demo/study.toml")[0] == 0
    (tmp_path / "demo" / "study.toml").write_text("mine")
    assert leakline("init", "demo")[0] == 2
    assert (tmp_path / "demo" / "study.toml").read_text() == "mine"
    assert leakline("init", "../out")[0] == 2
    assert leakline("init", "demo/../../x")[0] == 2


def images(folder, seed):
    from PIL import Image

    rng = np.random.default_rng(seed)
    for label, level in (("clear", 60), ("spot", 190)):
        (folder / label).mkdir(parents=True)
        for i in range(12):
            pixels = rng.normal(level, 20, (20, 24)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{i}.png")


@pytest.mark.parametrize("only", [["--only", "defence=none"], pytest.param([], marks=pytest.mark.slow)])
def test_own_images_and_own_model_end_in_a_report(leakline, tmp_path, monkeypatch, only):
    assert leakline("init", "hospital", "--own")[0] == 0
    folder = tmp_path / "hospital"
    for i, site in enumerate(("north", "south", "east")):
        images(folder / "images" / site, i)
    path = folder / "study.toml"
    touched = len(re.findall(r"^[^#\n]*#.*yours$", path.read_text(), re.M)) + 2
    body = (folder / "model.py").read_text().rpartition('"""')[2].strip().splitlines()
    assert touched + len(body) <= 15
    text = re.sub(r"^clients = .*$", "", path.read_text(), flags=re.M)
    text = text.replace("# sites     = true ", "sites = true #").replace("# partition", "partition")
    path.write_text(re.sub(r"^rounds .*$", "rounds = 2", text, flags=re.M).replace("size  = 64", "size = 16"))
    monkeypatch.chdir(folder)
    code, out, err = leakline("run", "study.toml", "--workers", "1", "--trust", *only)
    sys.modules.pop("model", None)
    assert (code, err) == (0, "")
    page = (folder / "runs" / "hospital" / "report.html").read_text()
    assert "3 clients together trained a model" in page
