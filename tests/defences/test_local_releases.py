"""The three defences that act before an update leaves its client: ldp-sgd, gaussian-release, percentile-gaussian."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakline.attacks.audit import workbench
from leakline.bench.training import Plan
from leakline.cards import formal_card
from leakline.defences import Defence, GaussianRelease, LdpSgd, PercentileGaussian
from leakline.defences.ldp_sgd import most_steps
from leakline.defences.percentile_gaussian import percentile_of
from leakline.federation import federate
from leakline.mechanisms.sphere import printed_scale, unbiased_scale
from leakline.messages import Turn, Update
from leakline.privacy import Claim, Gaussian, NoClaim, Pure, Seat, Unit
from leakline.weights import Entry, Layout, Weights

LAYOUT = Layout((Entry("w", (6,)), Entry("mean", (4,), buffer=True)))


def turn(index: int = 0) -> Turn:
    return Turn(index, "client-0", {}, 0, "test", secret=False)


def update(vector: torch.Tensor) -> Update:
    return Update("client-0", Weights(LAYOUT, vector), 10, 1, {"loss": 0.5})


def test_a_report_has_the_length_of_its_constant_and_no_figures() -> None:
    for reading, scale in (("sound", unbiased_scale), ("paper", printed_scale)):
        sent = LdpSgd(2.0, 0.5, reading=reading).release(update(torch.ones(10)), turn())  # type: ignore[arg-type]
        assert sent.delta.norm() == pytest.approx(scale(10, 0.5, 2.0), rel=1e-5)
        assert sent.metrics == {}


def test_the_mean_of_many_reports_is_the_clipped_update() -> None:
    x = torch.tensor([3.0, 4.0] + [0.0] * 8)
    total = sum(LdpSgd(4.0).release(update(x), turn(i)).delta.vector for i in range(20_000)) / 20_000
    # Each coordinate of a report is about 1.3 wide: 4.5 standard errors, ten coordinates, false alarm 7e-5.
    assert torch.allclose(total, x / 5, atol=4.5 * 1.4 / math.sqrt(20_000))


def test_a_zero_update_is_reported_like_any_other() -> None:
    sent = LdpSgd(1.0).release(update(torch.zeros(10)), turn())
    assert sent.delta.norm() == pytest.approx(unbiased_scale(10, 1.0, 1.0), rel=1e-5)


def test_ldp_sgd_promises_epsilon_per_report_and_adds_up_over_rounds() -> None:
    federation = workbench([LdpSgd(0.5)], rounds=7)
    client, report = federation.defences[0].claim(federation)  # type: ignore[misc]
    assert (client.unit, client.observer, client.events) == (Unit.CLIENT, Seat.SERVER, (Pure(0.5, 7),))
    assert (report.unit, report.observer, report.events) == (Unit.REPORT, Seat.SERVER, (Pure(0.5),))
    card = formal_card("x", federation, 1e-5)
    assert card.promises[0].epsilon == pytest.approx(3.5)
    assert card.promises[0].delta == 0
    assert (card.promises[1].unit, card.promises[1].epsilon) == ("report", pytest.approx(0.5))


def test_more_than_one_local_step_is_said_aloud() -> None:
    federation = replace(workbench([LdpSgd(1.0)]), plan=Plan(epochs=3, batch=4))
    assert most_steps(federation) == 6
    claim, _ = federation.defences[0].claim(federation)  # type: ignore[misc]
    assert any("6 local steps" in text for text in claim.assumptions)
    assert most_steps(replace(federation, plan=Plan(epochs=3, batch=4, max_steps=1))) == 1


def test_a_client_that_splits_itself_gets_no_claim_for_one_report() -> None:
    class Splitting(Defence):
        def split(self, examples, order, turn):  # type: ignore[no-untyped-def]
            return [np.arange(examples)]

        def claim(self, federation, facts=()):  # type: ignore[no-untyped-def]
            return NoClaim("test")

    for defence in (LdpSgd(1.0), GaussianRelease(1.0, 1.0)):
        federation = workbench([Splitting(), defence])
        assert isinstance(defence.claim(federation), NoClaim)


def test_the_server_step_stays_in_the_ball() -> None:
    federation = replace(workbench([LdpSgd(1.0, radius=2.0)], rounds=6, noise="seeded"), plan=Plan(batch=0))
    start = federation.bench().initial
    far = [round_.result - start for round_ in federate(federation)]
    assert all(step.norm() <= 2.0 + 1e-4 for step in far)
    assert far[-1].norm() > 1.0
    free = [r.result - start for r in federate(replace(federation, defences=(LdpSgd(1.0),)))]
    assert free[-1].norm() > 2.5


def test_gaussian_release_promises_two_over_z_to_the_server() -> None:
    federation = workbench([GaussianRelease(4.0, 1.0)], rounds=9)
    claim = federation.defences[0].claim(federation)
    assert isinstance(claim, Claim)
    assert claim.events == (Gaussian(0.5, times=9),)
    assert (claim.unit, claim.observer) == (Unit.CLIENT, Seat.SERVER)
    assert formal_card("x", federation, 1e-5).promises[0].mu == pytest.approx(1.5)
    assert isinstance(GaussianRelease(0.0, 1.0).claim(federation), NoClaim)


def test_gaussian_release_clips_first_and_covers_buffers() -> None:
    defence = GaussianRelease(0.5, 2.0)
    sent = torch.stack([defence.release(update(torch.full((10,), 100.0)), turn(i)).delta.vector for i in range(4_000)])
    assert torch.allclose(sent.mean(0), torch.full((10,), 2 / math.sqrt(10)), atol=4.5 / math.sqrt(4_000))
    assert torch.allclose(sent.std(0), torch.ones(10), atol=4.5 / math.sqrt(8_000))  # false alarm 1e-4


def test_percentile_noise_follows_the_update() -> None:
    x = torch.tensor([1.0, -2.0, 3.0, 0.0, 0.0, 4.0, 9.0, 9.0, 9.0, 9.0])
    for defence, expected in (
        (PercentileGaussian(2.0, 50.0), 2 * float(np.percentile(np.abs(x.numpy()), 50))),
        (PercentileGaussian(2.0, 50.0, over="non-zero"), 2 * float(np.percentile(np.abs(x[x != 0].numpy()), 50))),
        (PercentileGaussian(2.0, 50.0, buffers="out"), 2 * float(np.percentile(np.abs(x[:6].numpy()), 50))),
    ):
        noted = turn()
        sent = defence.release(update(x), noted).delta.vector
        assert noted.facts["percentile_std"] == pytest.approx(expected)
        assert torch.equal(sent[6:], x[6:]) == (defence.buffers == "out")


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40),
    st.floats(0, 100),
    st.sampled_from(["all", "non-zero"]),
)
def test_the_percentile_is_numpys(values: list[float], q: float, over: str) -> None:
    kept = np.abs(np.array(values, dtype=np.float64))
    kept = kept[kept > 0] if over == "non-zero" else kept
    expected = float(np.percentile(kept, q)) if len(kept) else 0.0
    found = percentile_of(torch.tensor(values, dtype=torch.float32), q, over)  # type: ignore[arg-type]
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-9)


def test_noise_to_signal_does_not_change_with_the_size_of_the_update() -> None:
    x = torch.randn(10, generator=torch.Generator().manual_seed(1))
    near, far = turn(), turn()
    PercentileGaussian(1.0).release(update(x), near)
    PercentileGaussian(1.0).release(update(1000 * x), far)
    assert far.facts["percentile_std"] == pytest.approx(1000 * near.facts["percentile_std"], rel=1e-5)


def test_the_percentile_filter_promises_nothing() -> None:
    card = formal_card("x", workbench([PercentileGaussian(5.0)]), 1e-5)
    assert card.promises[0].formal.startswith("none (heuristic)")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (LdpSgd, {"epsilon": 0.0}), (LdpSgd, {"epsilon": -1.0}), (LdpSgd, {"epsilon": math.inf}),
        (LdpSgd, {"epsilon": 1.0, "clip": 0.0}), (LdpSgd, {"epsilon": 1.0, "radius": -1.0}),
        (GaussianRelease, {"noise_multiplier": -1.0, "clip": 1.0}),
        (GaussianRelease, {"noise_multiplier": 1.0, "clip": 0}),
        (PercentileGaussian, {"sigma0": -0.1}), (PercentileGaussian, {"sigma0": 1.0, "percentile": 101.0}),
    ],
)  # fmt: skip
def test_wrong_values_are_refused(kind: type[Defence], values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        kind(**values)
