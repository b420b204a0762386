"""The report of every built-in study, from tiny stores that were really run, in a real Chromium."""

# Expressions for the page are kept in one line.
# ruff: noqa: E501

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser

DIGITS = """
[data]
use = "digits"
clients = 4
[model]
use = "mlp"
hidden = [4]
"""
PHANTOMS = """
[data]
use = "phantoms"
examples = 90
test = 30
size = 32
clients = 3
client_test = 0.3
server_validation = 0.5
[model]
use = "mlp"
hidden = [4]
"""
TRAINING = """
[training]
rounds = {rounds}
batch = 32
learning_rate = 0.05
"""
STUDIES = {
    "quickstart": DIGITS + TRAINING.format(rounds=2) + """
[strategies]
fedavg = { use = "fedavg", weighting = "even" }
[defences]
none = []
global-dp = [{ use = "global-dp", noise_multiplier = 4.0, clip = 0.5 }]
adaptive-clip = [{ use = "adaptive-clip", noise_multiplier = 4.0, clip = 0.5 }]
[[attacks]]
use = "loss-threshold"
records = 100
""",
    "metric-privacy": PHANTOMS + TRAINING.format(rounds=2) + """
[strategies]
fedavg = { use = "fedavg" }
fedmedian = { use = "fedmedian" }
[defences]
none = []
global-dp = [{ use = "global-dp", noise_multiplier = 0.01, clip = 5.0, at = "model" }]
metric-privacy = [{ use = "metric-privacy", noise_multiplier = 0.01, clip = 5.0, reading = "paper" }]
""",
    "client-inference": PHANTOMS + TRAINING.format(rounds=1) + """
[strategies]
fedavg = { use = "fedavg" }
[defences]
none = []
global-dp = [{ use = "global-dp", noise_multiplier = 0.01, clip = 5.0 }]
[[attacks]]
use = "client-inference"
worlds = 4
shadow = 0.2
""",
    "fedper": """
[data]
use = "motion"
subjects = 12
trials = 3
seconds = 3.0
window = 50
stride = 50
partition = { use = "by-column", column = "subject" }
client_test = 0.34
server_test = 0.0
[model]
use = "motion-cnn"
channels = [2, 2]
hidden = [4, 4]
""" + TRAINING.format(rounds=2) + """
evaluate = "clients"
[defences]
vanilla = []
fedper = [{ use = "fedper", private = ["dense*"] }]
[[attacks]]
name = "gender"
use = "attribute-inference"
trait = "gender"
server = "passive"
folds = 3
repeats = 1
trees = 5
""",
    "intermediaries-classification": "delta = 0.1\nreproduces = \"paper 004\"\n" + DIGITS + TRAINING.format(rounds=2) + """
[strategies]
fedavg = { use = "fedavg", weighting = "even" }
[defences]
none = []
dp = [{ use = "intermediaries", noise_multiplier = 0.3, clip = 1.0, parts = 1 }]
split = [{ use = "intermediaries", noise_multiplier = 0.3, clip = 1.0, parts = 4 }]
honest = [{ use = "global-dp", noise_multiplier = 0.075, clip = 1.0 }]
rule = [{ use = "intermediaries", noise_multiplier = 0.3, clip = 25.0, parts = "paper", start = 2, bound = "median" }]
""",
    "ldp-audit": """
[data]
use = "digits"
clients = 4
limit = 200
[model]
use = "leakline.attacks.audit.network:paper_002_cnn"
[training]
rounds = 1
batch = 0
learning_rate = 1.0
[strategies]
fedavg = { use = "fedavg", weighting = "even", learning_rate = 0.001 }
[defences]
epsilon-1 = [{ use = "ldp-sgd", epsilon = 1.0, clip = 1.0 }]
epsilon-4 = [{ use = "ldp-sgd", epsilon = 4.0, clip = 1.0 }]
[[attacks]]
use = "ldp-distinguish"
measurements = 2
trials = 100
[[attacks]]
use = "audit"
trials = 1000
""",
}  # fmt: skip


@pytest.fixture(scope="module", params=STUDIES)
def report(request, tmp_path_factory):
    from leakline.report.page.build import build_report
    from leakline.results import read
    from leakline.study.run import run_study
    from leakline.study.spec import parse

    root = tmp_path_factory.mktemp("study") / request.param
    head = f'name = "{request.param}"\ntitle = "{request.param}, very small"\nseeds = [0]\nnoise = "seeded"\n'
    assert not [o.error for o in run_study(parse(head + STUDIES[request.param]), root, workers=1) if o.error]
    return build_report(read(root))


ROWS = "Array.from(document.querySelectorAll('table.data tbody tr')).filter(r => !r.classList.contains('out')).length"
TABLE = "document.querySelector('table.glance')"


def drawn(tab):
    """Let every chart that is not folded away come near the screen."""
    for y in range(0, tab.run("document.documentElement.scrollHeight"), 600):
        tab.run(f"window.scrollTo(0, {y}); new Promise(r => setTimeout(r, 40))")
    shown = "Array.from(document.querySelectorAll('.live')).filter(b => !b.closest('details:not([open])') && !b.dataset.drawn).length"
    tab.wait(lambda: tab.run(shown) == 0, "the charts")


@pytest.mark.parametrize("width", [1440, 400])
def test_the_report_of_a_study_is_quiet_alone_and_works(tab, report, width):
    one = tab(report, width)
    drawn(one)
    assert one.run("document.documentElement.scrollWidth") <= width
    # Sorting: by defence, up and down.
    names = f"Array.from({TABLE}.tBodies[0].rows).map(r => r.cells[0].dataset.key)"
    before = one.run(names)
    assert len(before) > 1
    one.run(f"{TABLE}.tHead.rows[0].cells[0].querySelector('button').click()")
    up = one.run(names)
    one.run(f"{TABLE}.tHead.rows[0].cells[0].querySelector('button').click()")
    assert sorted(up) == sorted(before)
    assert one.run(names) == up[::-1]
    # Filters: the last defence goes from rows, tiles, cards and charts, and comes back.
    rows, gone = one.run(ROWS), before[-1]
    one.run(f"document.querySelector('#filters input[name=defence][value=\"{gone}\"]').click()")
    assert one.run(ROWS) < rows
    wheres = "Array.from(document.querySelectorAll('.tile, .card')).filter(e => !e.classList.contains('out')).flatMap(e => JSON.parse(e.dataset.where).map(w => w.defence))"
    assert gone not in one.run(wheres)
    assert before[0] in one.run(wheres)
    traces = "Array.from(document.querySelectorAll('.live')).filter(b => b.data && b.offsetParent).flatMap(b => b.data.map(t => t.name))"
    assert gone not in one.run(traces)
    one.run("document.getElementById('show-all').click()")
    assert one.run(ROWS) == rows
    # Everything that is folded opens without a word on the console.
    one.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    drawn(one)
    assert one.run("document.documentElement.scrollWidth") <= width
    assert one.complaints == []
    assert [url for url in one.requests if not url.startswith(("data:", report.resolve().as_uri()))] == []


def test_a_page_opens_before_its_charts_are_drawn(tab, report):
    one = tab(report)
    assert one.run("typeof window.Plotly") == "undefined"  # the library is run when a chart comes near
    assert one.run("document.querySelectorAll('table.glance tbody tr').length") > 1
    assert one.complaints == []
