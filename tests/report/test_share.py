"""What leaves the house: a folder that is searched for every name, path, picture and text of a failure."""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leakline.report.page.build import build_report
from leakline.results import read
from leakline.study.files import append, read_json, write_json
from leakline.study.run import run_study
from leakline.study.spec import parse
from leakline.study.store import Store

STUDY = """\
name = "four-houses"
noise = "seeded"
attacks = ["loss-threshold"]
model = { use = "mlp", hidden = [4] }
training = { rounds = 2 }
[data]
use = "image-folder"
path = "SCANS"
size = 8
sites = true
partition = { use = "by-column", column = "site" }
[defences]
none = []
dp = [{ use = "global-dp", noise_multiplier = 1.0, clip = 1.0 }]
"""
SITES = ("st-marys", "northwick", "charite-west")
CLASSES = ("melanoma", "naevus")
SECRETS = (*SITES, *CLASSES, "mueller_anna_1961", "SCANS", "data:image/png")


@pytest.fixture
def root(tmp_path) -> Path:
    rng = np.random.default_rng(0)
    for site in SITES:
        for label in CLASSES:
            folder = tmp_path / "SCANS" / site / label
            folder.mkdir(parents=True)
            for i in range(8):
                Image.fromarray(rng.integers(0, 255, (8, 8)).astype(np.uint8)).save(
                    folder / f"mueller_anna_1961-{i}.png"
                )
    root = tmp_path / "out"
    outcomes = run_study(parse(STUDY.replace("SCANS", str(tmp_path / "SCANS"))), root, workers=1)
    assert not [o.error for o in outcomes if o.error]
    grid = read_json(root / "study.json")
    grid["cells"].append({"labels": {"strategy": "x", "defence": "y", "seed": 1}, "run": None,
                          "error": f"client st-marys: cannot decode mueller_anna_1961.dcm in {tmp_path}"})  # fmt: skip
    write_json(root / "study.json", grid)
    run = Store(root).run(grid["cells"][0]["run"])
    end = read_json(run.path / "end.json")
    end["card"] |= {
        "dropped": ["st-marys: raised OSError: mueller_anna_1961.dcm"],
        "longer": ["northwick sent long ones"],
    }
    write_json(run.path / "end.json", end)
    append(run.path / "attacks.jsonl", [
        {"measure": "auc", "value": 0.6, "by": "x", "client": "northwick", "note": "of st-marys", "attack": "x-1"},
        {"measure": "none", "value": 1, "attack": "x-1"},
    ])  # fmt: skip
    return root


def secrets(text: str, tmp_path: Path) -> list[str]:
    """What of the house stands in a text; of a page, outside of plotly.js, which has pictures of its own."""
    text = re.sub(r"<script[^>]*>(?!\{).*?</script>", "", text, flags=re.S) if "plotly" in text else text
    here = (
        *SECRETS,
        str(tmp_path),
        f"/{getpass.getuser()}/",
        *([host] if len(host := socket.gethostname()) > 4 else []),
    )
    return [secret for secret in here if secret in text]


def test_a_shared_folder_holds_no_name_path_or_picture(root, leakline, tmp_path):
    code, _, err = leakline("share", root, tmp_path / "given")
    assert code == 0, err
    files = sorted(p for p in (tmp_path / "given").rglob("*") if p.is_file())
    assert {p.suffix for p in files} == {".html", ".csv"}
    for path in files:
        assert secrets(path.read_text(encoding="utf-8"), tmp_path) == [], path.name
    page = (tmp_path / "given" / "report.html").read_text()
    assert "client 1" in page
    assert "left out of the shareable form" in page
    assert not os.path.exists(tmp_path / "given" / "runs")
    assert leakline("share", root, tmp_path / "given")[0] == 2  # never into a folder that holds something


def test_a_shareable_report_says_the_same_numbers(root, tmp_path):
    from leakline.results.share import shareable

    results = read(root)
    shared = shareable(results)
    assert secrets(build_report(results, tmp_path / "shared.html", shareable=True).read_text(), tmp_path) == []
    assert [r.value for r in shared.every] == [r.value for r in results.every]
    assert json.dumps([c.labels for c in shared.cells]) == json.dumps([c.labels for c in results.cells])
    assert {r.client for r in shared.every if r.client} == {f"client {1 + sorted(SITES).index('northwick')}"}


def test_what_a_client_says_when_it_fails_is_one_clean_line():
    from leakline.runtimes.client import reason_of

    told = reason_of(OSError("cannot decode mueller_anna_1961.dcm \x1b[31m in /data/x"))
    assert told == "raised OSError: cannot decode <file>  in <path>"
    assert reason_of(ValueError("0.5 is more than 1.5, e.g. 3")) == "raised ValueError: 0.5 is more than 1.5, e.g. 3"
