"""`leakline recommend`: the arithmetic against a simulated training, sizes and names against the study `frontier`."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import leakline.study
from leakline.data.base import Client, Data, Task
from leakline.data.features import Scattering
from leakline.decide.arms import arms, scattered
from leakline.decide.recommend import (
    DROWNED,
    FIRST,
    HOPELESS,
    WORTH,
    Case,
    case_of,
    most_values,
    outlooks,
    ratio,
    ways,
)
from leakline.decide.recommend import units_needed as needed
from leakline.defences import MENU as DEFENCES
from leakline.errors import LeaklineError
from leakline.models import MENU
from leakline.privacy.calibrate import calibrate
from leakline.study.spec import parse

CASE = Case("record", 500, 4, (1, 32, 32), 4, 3.0, 1e-5, 500)
IMAGES, SIGNALS = (1, 32, 32), (9, 125)
CASES = {  # what `frontier` trains on: units at so many clients, inputs, classes
    "xray": Case("record", 1544, 6, IMAGES, 3, 3.0, 1e-5, 1544),
    "mri": Case("record", 5120, 6, IMAGES, 4, 3.0, 1e-5, 5120),
    "motion": Case("record", 7710, 6, SIGNALS, 6, 3.0, 1e-5, 7710),
    "motion, one promise a recording": Case("patient", 290, 6, SIGNALS, 6, 3.0, 1e-5, 7710),
    "xray, one promise a client": Case("client", 20, 20, IMAGES, 3, 3.0, 1e-5, 1544),
    "mri, one promise a client": Case("client", 20, 20, IMAGES, 4, 3.0, 1e-5, 5120),
    "few": Case("patient", 9, 3, IMAGES, 2, 3.0, 1e-5, 40),
    "one": Case("record", 100, 1, IMAGES, 2, 3.0, 1e-5, 100),
}


@pytest.mark.parametrize("releases", [1, 25])
@pytest.mark.parametrize("way", range(2))
def test_the_ratio_is_that_of_noise_really_drawn(releases, way):
    """Length of the mean noise of T releases: its relative spread is 1 / sqrt(2 p); five of them."""
    p, way = 4000, ways(CASE)[way]
    z = calibrate(CASE.epsilon, CASE.delta, releases)
    told = {"rate": 1.0, "planned": 125.0, "clients": CASE.clients} if way.defence == "distributed-dp" else {}
    std = DEFENCES[way.defence](noise_multiplier=z, clip=1.0, **told).std  # every client's, on its own sum
    generator = torch.Generator().manual_seed(releases)
    drawn = [torch.randn(p, generator=generator) * std for _ in range(releases * CASE.clients)]
    length = float(torch.stack(drawn).sum(0).norm()) / releases / CASE.units
    assert length == pytest.approx(ratio(p, way.louder, CASE), rel=5 / math.sqrt(2 * p))


def test_sizes_are_those_of_what_is_built():
    x = torch.rand(2, 1, 32, 32)
    for scales in (3, 4):
        features = Scattering(scales, 4).of(Data(x, torch.zeros(2)))
        head = MENU["linear"]().build(tuple(features.shape[1:]), 4)
        assert scattered((1, 32, 32), 4, scales, 4) == sum(p.numel() for p in head.parameters())
    assert scattered((1, 8, 8), 4, 3, 4) is None
    signals = Scattering(3).of(Data(torch.rand(2, 9, 125), torch.zeros(2)))
    assert scattered((9, 125), 6, 3, 8) == (signals.shape[1] + 1) * 6


@pytest.mark.parametrize("epsilon", [0.1, 1, 3, 8, 50])
@pytest.mark.parametrize("name", CASES)
def test_nothing_beyond_its_own_limit_comes_first(name, epsilon):
    case = replace(CASES[name], epsilon=epsilon)
    found = outlooks(case)
    assert [o.verdict == FIRST for o in found] == sorted((o.verdict == FIRST for o in found), reverse=True)
    for o in found:
        beyond = o.arm.values > most_values(case, o.way)
        assert beyond == (o.ratio > HOPELESS)
        assert not (beyond and o.verdict == FIRST)
        assert (o.verdict == DROWNED) == (o.met >= HOPELESS)
        assert o.met == ratio(1 if o.arm.linear else o.arm.values, o.way.louder, case) <= o.ratio


USEFUL = [  # better than one class by an interval in docs/what-to-use.md
    *((data, "linear head on scattering", 3) for data in ("xray", "mri", "motion", "motion, one promise a recording")),
    *((data, "whole small network", 3) for data in ("xray", "mri", "motion")),
    ("xray, one promise a client", "linear head on scattering", 3),
    ("xray", "last layer, rest from public images", 3), ("xray", "adapters, rest from public images", 3),
    ("xray, one promise a client", "linear head on scattering", 8),
    ("motion, one promise a recording", "linear head on scattering", 8),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arm", "epsilon"), USEFUL)
def test_what_was_seen_to_work_is_not_called_hopeless(name, arm, epsilon):
    found = [o for o in outlooks(replace(CASES[name], epsilon=epsilon)) if o.arm.name == arm]
    assert found
    assert DROWNED not in {o.verdict for o in found if o.way.defence in ("dp-sgd", "global-dp")}


def frontier():
    """The study's cells by scenario, over made-up data of its shapes."""
    text = (Path(leakline.study.__file__).parent / "library" / "frontier.toml").read_text()
    for name in ("chest-xray", "alzheimer-mri"):
        text = text.replace(f'"{name}"', '"phantoms"')
    text = text.replace('"motionsense"', '"motion", subjects = 12')
    cells = parse(text).cells
    return {cell.labels["scenario"]: cell.federation() for cell in cells if cell.labels["defence"] == "none"}


def test_every_arm_of_the_study_is_known_by_its_name_and_size():
    for scenario, federation in frontier().items():
        of, _, name = scenario.partition(": ")
        name = name.removesuffix(", noise shared out")
        task, case = federation.task, CASES[of]
        shape = SIGNALS if of.startswith("motion") else IMAGES
        (arm,) = [a for a in arms(shape, len(task.classes), case.unit) if a.name == name]
        assert arm.values == federation.wire.size, scenario
        assert [o for o in outlooks(case) if o.arm.name == name], scenario
        assert len(task.clients) == case.clients


def test_limits_turn_verdicts():
    for way in ways(CASE):
        most = most_values(CASE, way)
        assert ratio(most, way.louder, CASE) <= HOPELESS < ratio(most + 1, way.louder, CASE)
    for one in outlooks(CASE):
        enough = needed(one, CASE)
        again = {n: outlooks(replace(CASE, units=n)) for n in (enough, enough - 1)}
        verdicts = {
            n: next(o.verdict for o in found if (o.arm, o.way) == (one.arm, one.way)) for n, found in again.items()
        }
        assert verdicts[enough] == FIRST != verdicts[enough - 1]


def test_a_linear_head_meets_noise_along_the_input_alone():
    """The noise of an output over 2,000 draws: its standard deviation has a relative spread of 1 / sqrt(4000); five."""
    case, p = replace(CASE, unit="client", units=20, clients=20), 3000
    x = torch.nn.functional.normalize(torch.rand(p, generator=torch.Generator().manual_seed(0)), dim=0)
    z = calibrate(case.epsilon, case.delta, 1) / case.units
    noise = torch.randn(2000, p, generator=torch.Generator().manual_seed(1)) * z
    assert float((noise @ x).std()) == pytest.approx(ratio(1, 1.0, case), rel=5 / math.sqrt(4000))
    head = next(o for o in outlooks(case) if o.arm.linear and o.way.louder == 1)
    assert head.met == ratio(1, 1.0, case) <= WORTH


def task(groups):
    data = Data(torch.rand(6, 1, 8, 8), torch.zeros(6, dtype=torch.int64), groups)
    return Task((Client("a", data), Client("b", data)), None, None, ("x", "y"), group="recording")


def test_units_are_counted_or_refused():
    held = task(torch.tensor([0, 0, 1, 1, 1, 2]))
    found = [case_of(held, unit, 1.0, 1e-5) for unit in ("record", "patient", "client")]
    assert [(case.units, case.name) for case in found] == [(12, "record"), (6, "recording"), (2, "client")]
    with pytest.raises(LeaklineError, match="no patients"):
        case_of(task(None), "patient", 1.0, 1e-5)


def test_the_command(leakline):
    code, out, _ = leakline("recommend", "digits", "--epsilon", 8, "--clients", 4)
    assert code == 0
    assert "mu = 1.67" in out
    assert "[defences]" in out
    code, out, _ = leakline("recommend", "digits", "--unit", "client", "--epsilon", 0.1, "--clients", 3, "--json")
    assert code == 0
    assert '"noise drowns it"' in out
    assert leakline("recommend", "digits", "--unit", "patient")[0] == 2
    assert leakline("recommend", "image-folder")[0] == 2
    assert leakline("recommend", "no-such-thing")[0] == 2


@pytest.mark.parametrize("unit", ["record", "patient", "client"])
@pytest.mark.parametrize("data", ["motion", "phantoms"])
def test_what_is_recommended_is_a_study_of_the_sizes_said(leakline, data, unit):
    _, out, _ = leakline("recommend", data, "--unit", unit, "--clients", 4, "--json")
    told = json.loads(out)
    for one in {o[key]: o for key in ("arm", "defence") for o in reversed(told["outlooks"])}.values():
        federation = parse(one["study"]).cells[0].federation()
        assert federation.wire.size == one["values"]
        assert case_of(federation.task, unit, 3.0, 1e-5).units == told["units"]
        (claim,) = federation.claims().values()
        assert claim.unit == unit
