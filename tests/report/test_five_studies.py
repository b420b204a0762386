"""Five small studies, run and stored: every figure on page one and on the cards is the one that the store holds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from leakline.report.page.cardviews import card_views
from leakline.report.page.summary import summary
from leakline.report.page.words import glances
from leakline.results import read
from leakline.study.run import run_study
from leakline.study.spec import parse

HEAD = 'data = { use = "digits", limit = 160, clients = 4, client_test = 0.5, server_validation = 0.2 }\n'
NET = 'model = { use = "mlp", hidden = [6] }\ntraining = { rounds = 2, batch = 16, learning_rate = 0.3 }\n'
EVEN = 'strategies.fedavg = { use = "fedavg", weighting = "even" }\n'
RELEASE = 'defences.r = [{ use = "gaussian-release", noise_multiplier = 1.0, clip = 1.0 }]\n'
STUDIES = {
    "losses": 'attacks = ["loss-threshold"]\nseeds = 2\n' + RELEASE,
    "shadows": 'attacks = [{ use = "membership-inference", shadows = 4, records = 24 }]\n',
    "images": 'attacks = [{ use = "gradient-inversion", clients = ["client-1"], restarts = 1 }]\n',
    "mixes": 'attacks = [{ use = "label-inference", worlds = 40 }, "loss-threshold"]\n' + RELEASE,
    "worlds": 'attacks = [{ use = "client-inference", worlds = 4, rounds = 1 }]\nseeds = 2\n',
}


@pytest.fixture(scope="module", params=STUDIES)
def store(request, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("five") / request.param
    study = parse(f'name = "{request.param}"\n{HEAD}{NET}{EVEN}{STUDIES[request.param]}')
    assert [o.error for o in run_study(study, root, workers=1) if o.error] == []
    return root


def stored(store: Path) -> dict[tuple[str, str], list[dict]]:
    """Raw lines of attacks by run's defences and attack, straight from the files."""
    grid = json.loads((store / "study.json").read_text())
    found: dict[tuple[str, str], list[dict]] = {}
    for cell in grid["cells"]:
        for line in (store / "runs" / cell["run"] / "attacks.jsonl").read_text().splitlines():
            reading = json.loads(line)
            if {"value", "by"} <= reading.keys() and reading["measure"] != "none":
                found.setdefault((cell["labels"]["defence"], reading["by"]), []).append(reading)
    return found


def test_page_one_and_cards_say_what_is_stored(store):
    results, raw = read(store), stored(store)
    assert raw
    views = {view.defence: dict([*view.rows, *view.rest]) for view in card_views(results)}
    for glance, line in zip(glances(results), summary(results).lines, strict=True):
        mine = {by: lines for (defence, by), lines in raw.items() if defence == glance.defence}
        for text in views[glance.defence].get("attacks", ()):
            shown = re.match(r"([\w-]+): (\w[\w-]*).*? (-?\d+\.\d+)", text)
            if shown is None or shown[1] not in mine or "federations" in text.partition(";")[0]:
                continue
            every = [r for r in mine[shown[1]] if r["measure"] == shown[2]]
            same = [r for r in every if "client" not in r] or every  # some figures are of single clients alone
            groups: dict[str, list[dict]] = {}
            for r in same:
                rule = json.dumps({k: v for k, v in r.get("about", {}).items() if isinstance(v, str)}, sort_keys=True)
                groups.setdefault(rule + str(r.get("about", {}).get("fpr")), []).append(r)
            means = [sum(r["value"] for r in rs) / len(rs) for rs in groups.values()]
            assert any(abs(mean - float(shown[3])) < 6e-4 for mean in means), (text, means)
            if "cannot be told from guessing" in text:  # then no stored p of that figure is small
                near = [
                    rs for rs in groups.values() if abs(sum(r["value"] for r in rs) / len(rs) - float(shown[3])) < 6e-4
                ]
                assert not all(float(r.get("about", {}).get("p", 1.0)) < 0.01 for rs in near for r in rs)
        words = " ".join(glance.attack)
        right = re.search(r"is right (\d+) of 100 times", words)
        if right:
            areas = [
                r["value"]
                for lines in mine.values()
                for r in lines
                if r["measure"] in ("auc", "balanced-right") and "client" not in r
            ]
            assert round(100 * max(areas)) + 1 >= int(right[1])
            assert line.attack.text.startswith(f"right {right[1]} of 100 times")
        similar = re.search(r"similarity \(SSIM\) (-?\d\.\d+)", words)
        if similar:
            values = [
                json.loads(text)["value"]
                for path in (store / "runs").glob("*/attacks.jsonl")
                for text in path.read_text().splitlines()
                if json.loads(text).get("measure") == "ssim"
            ]
            assert any(abs(v - float(similar[1])) < 6e-3 for v in values)
