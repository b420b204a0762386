"""`leakline recommend`: the arithmetic against a simulated training, sizes against networks that were built."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from leakline.data.base import Client, Data, Task
from leakline.data.features import Scattering
from leakline.decide.recommend import (
    ARMS,
    HOPELESS,
    WORTH,
    Case,
    case_of,
    most_values,
    outlooks,
    ratio,
    scattered,
    ways,
)
from leakline.decide.recommend import units_needed as needed
from leakline.errors import LeaklineError
from leakline.models import MENU
from leakline.privacy.calibrate import calibrate

CASE = Case("record", 500, 4, (1, 32, 32), 4, 3.0, 1e-5, 500)


@pytest.mark.parametrize("releases", [1, 25])
@pytest.mark.parametrize("way", range(2))
def test_the_ratio_is_that_of_noise_really_drawn(releases, way):
    """Length of the mean noise of T releases: its relative spread is 1 / sqrt(2 p); five of them."""
    p, louder = 4000, ways(CASE)[way].louder
    z = calibrate(CASE.epsilon, CASE.delta, releases)
    generator = torch.Generator().manual_seed(way)
    sources = CASE.clients if louder > 1 else 1  # every client its own noise on its own sum, or one for all
    drawn = [torch.randn(p, generator=generator) * z for _ in range(releases * sources)]
    length = float(torch.stack(drawn).sum(0).norm()) / releases / CASE.units
    assert length == pytest.approx(ratio(p, louder, CASE), rel=5 / math.sqrt(2 * p))


def test_sizes_are_those_of_what_is_built():
    x = torch.rand(2, 1, 32, 32)
    for scales in (3, 4):
        features = Scattering(scales, 4).of(Data(x, torch.zeros(2)))
        head = MENU["linear"]().build(tuple(features.shape[1:]), 4)
        assert scattered((1, 32, 32), 4, scales, 4) == sum(p.numel() for p in head.parameters())
    assert scattered((1, 8, 8), 4, 3, 4) is None
    signals = Scattering(3).of(Data(torch.rand(2, 9, 125), torch.zeros(2)))
    assert scattered((9, 125), 6, 3, 8) == (signals.shape[1] + 1) * 6


def test_limits_turn_verdicts():
    best = outlooks(CASE, ARMS)[0]
    assert best.ratio == min(o.ratio for o in outlooks(CASE, ARMS))
    for way in ways(CASE):
        most = most_values(CASE, way)
        assert ratio(most, way.louder, CASE) <= HOPELESS < ratio(most + 1, way.louder, CASE)
    worst = outlooks(CASE, ARMS)[-1]
    enough = replace(CASE, units=needed(worst, CASE))
    fewer = replace(enough, units=enough.units - 1)
    assert ratio(worst.trained, worst.way.louder, enough) <= WORTH < ratio(worst.trained, worst.way.louder, fewer)


def test_a_linear_head_meets_noise_along_the_input_alone():
    """The noise of an output over 2,000 draws: its standard deviation has a relative spread of 1 / sqrt(4000); five."""
    case, p = replace(CASE, units=20), 3000
    x = torch.nn.functional.normalize(torch.rand(p, generator=torch.Generator().manual_seed(0)), dim=0)
    z = calibrate(case.epsilon, case.delta, 1) / case.units
    noise = torch.randn(2000, p, generator=torch.Generator().manual_seed(1)) * z
    assert float((noise @ x).std()) == pytest.approx(ratio(1, 1.0, case), rel=5 / math.sqrt(4000))
    head = next(o for o in outlooks(case, ARMS) if o.arm.linear and o.way.louder == 1)
    assert head.ratio == ratio(1, 1.0, case)


def task(groups):
    data = Data(torch.rand(6, 1, 8, 8), torch.zeros(6, dtype=torch.int64), groups)
    return Task((Client("a", data), Client("b", data)), None, None, ("x", "y"), group="patient")


def test_units_are_counted_or_refused():
    held = task(torch.tensor([0, 0, 1, 1, 1, 2]))
    assert [case_of(held, unit, 1.0, 1e-5).units for unit in ("record", "patient", "client")] == [12, 6, 2]
    for unknown in (task(None), replace(held, group="recording")):
        with pytest.raises(LeaklineError, match="no patients"):
            case_of(unknown, "patient", 1.0, 1e-5)


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


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_what_is_recommended_is_a_study(arm):
    from leakline.study.spec import parse

    data = '[data]\nuse = "phantoms"\nsize = 32\nclients = 3\n'
    lines = arm.lines.replace("[data]", data) if "[data]" in arm.lines else data + arm.lines
    stack = '[defences]\nd = [{ use = "dp-sgd", epsilon = 3, clip = 1.0 }]'
    federation = parse(f'name = "try"\n{lines}\n{stack}\n').cells[0].federation()
    assert arm.values((1, 32, 32), len(federation.task.classes)) == federation.wire.size
