"""The audit game against closed forms: what it must find, what it must never claim, and bugs that it must catch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import norm

from leakline.attacks.audit import Audit, Fixed, Question, audit, canary, composed_rates, judge, one_run, workbench
from leakline.attacks.audit.channel import PublishChannel, ReleaseChannel
from leakline.attacks.audit.distinguishers import cosine_rule, report_ratio
from leakline.attacks.audit.questions import not_random
from leakline.attacks.audit.workbench import small
from leakline.cards import formal_card
from leakline.defences import AdaptiveClip, Defence, GaussianRelease, GlobalDP, LdpSgd, PercentileGaussian
from leakline.federation import Federation
from leakline.leakage import ErrorCounts, count_errors, epsilon_of_rates, flip_epsilon, lower_bound, point_epsilon, pool
from leakline.leakage.epsilon import mu_of_rates
from leakline.mechanisms import add_gaussian, clip_norm
from leakline.mechanisms.sphere import report_cosines
from leakline.messages import Receipt, Turn, Update
from leakline.privacy import Adjacency, Claim, Gaussian, NoClaim, Seat, Unit, gdp_epsilon, gdp_mu
from leakline.randomness import SeededNoise
from leakline.weights import Weights

# --- oracles ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("r", [1.0, 0.9, 0.75, 0.5, 0.25])
def test_the_flip_audit_finds_the_closed_form(r: float) -> None:
    rng = np.random.default_rng(int(100 * r))
    bits = np.arange(2_000_000) % 2 == 1
    cosines = report_cosines(-1.0, (r, r), bits, 10_650, 4.0, rng)
    counts = count_errors(cosine_rule(cosines), bits)
    assert point_epsilon(counts) == pytest.approx(flip_epsilon(4.0, r), abs=0.04)
    assert lower_bound(counts).low < flip_epsilon(4.0, r) + 1e-3
    assert lower_bound(counts).low > flip_epsilon(4.0, r) - 0.06


@pytest.mark.parametrize(("degrees", "expected"), [(90, 3.98), (30, 3.75), (10, 3.52)])
def test_the_region_reaches_epsilon_at_any_angle_where_the_cosine_rule_does_not(degrees: int, expected: float) -> None:
    lows, cosine_rule_finds = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        bits = np.arange(40_000) % 2 == 1
        cosines = report_cosines(math.cos(math.radians(degrees)), (1.0, 1.0), bits, 500, 4.0, rng)
        counts = count_errors(report_ratio(cosines, (1.0, 1.0), 4.0) > 0, bits)
        lows.append(lower_bound(counts).low)
        cosine_rule_finds.append(point_epsilon(count_errors(cosine_rule(cosines), bits)))
    # The expected figures came from single audits, whose bounds scatter by about a tenth.
    assert np.mean(lows) == pytest.approx(expected, abs=0.25)
    assert max(lows) < 4.05
    assert np.mean(cosine_rule_finds) < {90: 1.2, 30: 0.45, 10: 0.2}[degrees]


def test_the_worked_example_of_paper_002_is_2_08() -> None:
    assert point_epsilon(ErrorCounts(10, 100, 20, 100)) == pytest.approx(2.0794, abs=1e-3)


def test_the_bound_exceeds_the_truth_in_at_most_5_percent_of_1000_audits() -> None:
    epsilon, over, biased = 2.0, 0, 0
    rng = np.random.default_rng(3)
    for _ in range(1000):
        bits = np.arange(4_000) % 2 == 1
        cosines = report_cosines(-1.0, (1.0, 1.0), bits, 100, epsilon, rng)
        counts = count_errors(cosine_rule(cosines), bits)
        over += lower_bound(counts, confidence=0.95).low > epsilon
        biased += point_epsilon(counts) > epsilon
    assert over <= 50
    assert biased > 600  # eq. (3) takes the larger of two logs: more often above the truth than below


def test_composition_of_one_release_by_a_threshold_is_the_plain_bound() -> None:
    zero, one = np.arange(1000) < 100, np.arange(1000) >= 120
    rates = composed_rates(zero, one, 1, 1, 0.95)
    assert epsilon_of_rates(*rates, 1e-5) == pytest.approx(lower_bound(ErrorCounts(100, 1000, 120, 1000), 1e-5).low)


def test_composed_bounds_never_exceed_what_a_composition_promises() -> None:
    # Gaussian with mu = 1 per release, errors exactly at their expectation.
    n = 10**5
    edges = np.linspace(-2.5, 2.5, 17)
    zero, one = (np.searchsorted(edges, norm.ppf((np.arange(n) + 0.5) / n) + shift) for shift in (-0.5, 0.5))
    lows = []
    for releases in (1, 5, 50):
        rates = composed_rates(zero, one, 17, releases, 0.95)
        lows.append(float(epsilon_of_rates(*rates, 1e-5).max()))
        assert 0 < lows[-1] < gdp_epsilon(math.sqrt(releases), 1e-5)
        assert 0.93 * math.sqrt(releases) < mu_of_rates(*rates).max() < math.sqrt(releases)
    assert lows[2] > 3 * lows[1]


def test_a_release_that_is_not_gaussian_is_not_composed_as_if_it_were() -> None:
    """Three outcomes, the last one rare and telling: sqrt(T) mu is more than T releases give away, summed exactly."""
    chances, releases = np.array([[0.70, 0.299, 0.001], [0.70, 0.25, 0.05]]), 9
    n = 400_000
    counts = np.rint(chances * n / 2).astype(int)
    scores = np.concatenate([np.repeat([-1.0, 0.0, 1.0], row) for row in counts])
    order = np.random.default_rng(0).permutation(n)
    asked = Question("three outcomes", Seat.CLIENT, "client", "canary", "mu", math.inf, releases)
    found = judge(scores[order], np.repeat([False, True], n // 2)[order], asked, 0.99, 1e-5)[0]
    weights = [
        (math.prod(chances[w] ** k) * math.factorial(releases) / math.prod(math.factorial(j) for j in k))
        for k in product(range(releases + 1), repeat=3) if sum(k) == releases for w in (0, 1)
    ]  # fmt: skip
    zero, one = np.array(weights[::2]), np.array(weights[1::2])
    best = np.argsort(-one / zero)
    alarm, miss = np.cumsum(zero[best])[:-1], 1 - np.cumsum(one[best])[:-1]
    truth = float(mu_of_rates(alarm, miss).max())
    assert found.low < found.composed <= truth < math.sqrt(releases) * found.low


# --- correct mechanisms ----------------------------------------------------------------------------------------------


def play(stack: Sequence[Defence] | Federation, trials: int = 8_000, **settings: object):  # type: ignore[no-untyped-def]
    more = {"noise": "seeded"} | settings if not isinstance(stack, Federation) else {}
    return audit(stack, trials=trials, wide=False, **more)


@pytest.mark.parametrize(
    ("defence", "quantity", "truth"),
    [
        (GlobalDP(1.0, 1.0), "mu", 1.0), (GlobalDP(2.0, 0.1, at="model"), "mu", 0.5),
        (GaussianRelease(2.0, 3.0), "mu", 1.0), (LdpSgd(2.0), "epsilon", 2.0),
        (AdaptiveClip(1.0, 1.0), "mu", 1.0),
    ],
)  # fmt: skip
def test_correct_defences_are_measured_close_to_their_promise_and_below_it(
    defence: Defence, quantity: str, truth: float
) -> None:
    found = play([defence], 3_000)
    assert not found.broken
    main = next(f for f in found.findings if f.question.situation == "canary" and f.quantity == quantity)
    assert main.question.promised == pytest.approx(truth)
    assert 0.6 * truth < main.low <= truth
    assert main.ceiling > truth
    assert len({f.question.situation for f in found.findings}) >= 2


def test_rounds_compose_on_the_card() -> None:
    one, ten = play([GaussianRelease(2.0, 1.0)], 4_000), play([GaussianRelease(2.0, 1.0)], 4_000, rounds=10)
    assert ten.card.promises[0].mu == pytest.approx(math.sqrt(10))
    by_measure = {r.label: r for r in ten.card.measured}
    assert 0.6 * math.sqrt(10) < by_measure["mu per client"].low < math.sqrt(10)
    assert 0.85 < one.card.measured[0].low < 1.0
    pure = play([LdpSgd(1.0)], 4_000, rounds=10)
    reading, report = pure.card.measured
    assert reading.low is not None
    assert report.low is not None
    assert report.low <= 1 < reading.low
    assert 7 < reading.low <= 10
    assert "10 releases" in reading.note


def test_at_most_1_percent_false_alarms_in_300_audits_of_exact_gaussian_and_pure_mechanisms() -> None:
    rng = np.random.default_rng(8)
    alarms = 0
    for i in range(300):
        bits = np.arange(10_000) % 2 == 1
        mu = (0.5, 1.0, 2.0)[i % 3]
        scores = rng.standard_normal(10_000) + np.where(bits, mu / 2, -mu / 2)
        asked = Question("x", Seat.SERVER, "client", "canary", "mu", mu)
        level = 1 - 0.01 / 6  # as in an audit of three games with two bounds each
        alarms += any(f.broken for f in judge(scores, bits, asked, level, 1e-5))
        side = report_cosines(-1.0, (1.0, 1.0), bits, 50, mu, rng)
        asked = Question("x", Seat.SERVER, "report", "canary", "pure", mu)
        alarms += any(f.broken for f in judge(side[1], bits, asked, level, 0.0))
    assert alarms <= 3


@pytest.mark.slow
def test_at_most_1_percent_false_alarms_in_300_audits_through_real_hooks() -> None:
    alarms = 0
    for seed in range(300):
        defence = (GaussianRelease(2.0, 1.0), LdpSgd(2.0), GlobalDP(1.0, 1.0))[seed % 3]
        alarms += bool(play([defence], 2_000, seed=seed).broken)
    assert alarms <= 3


# --- ten planted bugs ------------------------------------------------------------------------------------------------


class HalvedNoise(GaussianRelease):
    def release(self, update: Update, turn: Turn) -> Update:
        return update.with_delta(
            add_gaussian(clip_norm(update.delta.vector, self.clip), self.noise_multiplier * self.clip / 2, turn.noise())
        )


class ShortNoise(GaussianRelease):
    def release(self, update: Update, turn: Turn) -> Update:
        std = 0.9 * self.noise_multiplier * self.clip
        return update.with_delta(add_gaussian(clip_norm(update.delta.vector, self.clip), std, turn.noise()))


class NoClip(GlobalDP):
    def admit(self, updates, turn):  # type: ignore[no-untyped-def]
        return updates


class ClipAfterNoise(GaussianRelease):
    def release(self, update: Update, turn: Turn) -> Update:
        noised = add_gaussian(update.delta.vector, self.noise_multiplier * self.clip, turn.noise())
        return update.with_delta(clip_norm(noised, self.clip))


class NoiseDrawnOnce(GlobalDP):
    def publish(self, change: Weights, cohort: Sequence[Receipt], turn: Turn) -> Weights:
        if "noise" not in turn.memory:
            turn.memory["noise"] = turn.noise().normal(change.vector.numel()).float()
        return change.like(change.vector + turn.memory["noise"] * self.noise_multiplier * self.clip / len(cohort))


class WrongNumber(GlobalDP):
    def publish(self, change: Weights, cohort: Sequence[Receipt], turn: Turn) -> Weights:
        std = self.noise_multiplier * self.clip / turn.expected  # the invited, not those who answered
        return change.like(add_gaussian(change.vector, std, turn.noise()))


class SeededByRound(GaussianRelease):
    def release(self, update: Update, turn: Turn) -> Update:
        noise = SeededNoise(turn.stream("noise"))
        std = self.noise_multiplier * self.clip
        return update.with_delta(add_gaussian(clip_norm(update.delta.vector, self.clip), std, noise))


class BareBuffers(GlobalDP):
    def publish(self, change: Weights, cohort: Sequence[Receipt], turn: Turn) -> Weights:
        size = sum(e.size for e in change.layout.entries if not e.buffer)
        std = self.noise_multiplier * self.clip / len(cohort)
        noised = add_gaussian(change.vector[:size], std, turn.noise())
        return change.like(torch.cat([noised, change.vector[size:]]))


class WrongDelta(GaussianRelease):
    """Calibrated for epsilon = 4 at delta = 0.01, sold as epsilon = 4 at delta = 1e-5."""

    def claim(self, federation: Federation, facts: Sequence[Mapping[str, float]] = ()) -> Claim | NoClaim:
        honest = super().claim(federation, facts)
        assert isinstance(honest, Claim)
        return replace(honest, events=(Gaussian(gdp_mu(4.0, 1e-5), times=federation.rounds),))


class SamplingThatIsNot(GlobalDP):
    def claim(self, federation: Federation, facts: Sequence[Mapping[str, float]] = ()) -> Claim | NoClaim:
        honest = super().claim(federation, facts)
        assert isinstance(honest, Claim)
        return replace(honest, events=(Gaussian(1 / self.noise_multiplier, times=federation.rounds, rate=0.01),))


BUGS = {
    "noise halved": (HalvedNoise(2.0, 1.0), 8_000, {}),
    "noise 10 % short": (ShortNoise(2.0, 1.0), 20_000, {}),
    "no clip": (NoClip(1.0, 1.0), 4_000, {}),
    "clip after noise": (ClipAfterNoise(2.0, 1.0), 4_000, {}),
    "noise drawn once": (NoiseDrawnOnce(1.0, 1.0), 4_000, {}),
    "wrong n after dropout": (WrongNumber(1.0, 1.0, denominator="actual"), 7_000, {}),
    "seeded noise": (SeededByRound(2.0, 1.0), 4_000, {"noise": "secret"}),
    "un-noised buffers": (BareBuffers(1.0, 1.0), 4_000, {}),
    "wrong delta": (WrongDelta(2 / gdp_mu(4.0, 0.01), 1.0), 8_000, {}),
    "sampling claimed but not done": (SamplingThatIsNot(1.0, 1.0), 1_000, {"rounds": 10}),
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_caught(bug: str) -> None:
    defence, trials, settings = BUGS[bug]
    found = play([defence], trials, **settings)
    assert found.broken, f"{bug} was not caught"
    assert found.broken[0].startswith("BROKEN")
    assert any("BROKEN" in text for _, text in found.card.rows())


# --- heuristics, determinism, bad input ------------------------------------------------------------------------------


def test_percentile_noise_leaks_without_bound_as_the_update_grows() -> None:
    bench = small(workbench([PercentileGaussian(5.0)], noise="seeded"))
    channel = ReleaseChannel(bench)
    lows = []
    for size in (1.0, 5.0, 25.0, 1000.0):
        pair = canary(channel.layout, where="one value", size=size)
        bits = np.arange(2_000) % 2 == 1
        views = torch.stack([channel.see(pair.one if b else pair.zero, i) for i, b in enumerate(bits.tolist())])
        score = (views.double() @ pair.direction).numpy()
        lows.append(lower_bound(count_errors(score >= (1 + size) / 2, bits)).low)
    assert lows[0] == 0.0
    assert lows[0] < lows[1] < lows[2] < lows[3]
    assert lows[3] > 5  # every guess right: the ceiling of 1,000 trials per world
    found = play([PercentileGaussian(5.0)], 4_000)
    assert not found.broken
    assert "none (heuristic)" in dict(found.card.rows())["promise"]


@pytest.mark.parametrize("stack", [[], [GlobalDP(0.0, 1.0)], [PercentileGaussian(0.0)]])
def test_a_stack_without_randomness_is_reported_not_crashed_on(stack: list[Defence]) -> None:
    found = play(stack, 4_000)
    assert found.findings[0].low == math.inf
    assert "deterministic: epsilon = infinity" in found.findings[0].note
    assert not found.broken  # nothing was promised


def test_a_promise_is_not_held_against_another_seat() -> None:
    found = play([GlobalDP(1.0, 1.0)], 4_000, seat="server")
    assert found.findings[0].low == math.inf  # the server sees bare updates
    assert not found.broken  # and was never promised anything
    assert "seen by the server" in found.card.measured[0].label


def test_a_gaussian_that_claims_little_is_caught_by_a_plain_function_too() -> None:
    rng = torch.Generator().manual_seed(0)
    channel = Fixed(lambda change, trial: clip_norm(change, 1.0) + torch.randn(16, generator=rng))
    assert not_random(channel, canary(channel.layout, Adjacency.REPLACE_ONE)) == ""
    still = Fixed(lambda change, trial: clip_norm(change, 1.0))
    assert "deterministic" in not_random(still, canary(still.layout))


def test_dropouts_and_parts_reach_the_real_server() -> None:
    # One of three clipped updates, then one of two: a public denominator stays, the actual one follows who came.
    for denominator, left in (("expected", 1 / 3), ("actual", 1 / 2)):
        bench = small(workbench([GlobalDP(0.0, 1.0, denominator=denominator)]))
        change = canary(bench.wire).one
        full, fewer = PublishChannel(bench), PublishChannel(bench, dropped=1)
        direction = change / change.norm()
        assert float(full.see(change, 0) @ direction) == pytest.approx(1 / 3, abs=1e-4)
        assert float(fewer.see(change, 0) @ direction) == pytest.approx(left, abs=1e-4)


def test_too_few_trials_say_how_many_would_do() -> None:
    with pytest.raises(ValueError, match="take at least"):
        Audit(trials=50)
    with pytest.raises(ValueError, match="confidence"):
        Audit(confidence=1.0)


def test_pooled_counts_bound_what_averages_overstate() -> None:
    rng = np.random.default_rng(4)
    counts = []
    for _ in range(10):
        bits = np.arange(10_000) % 2 == 1
        counts.append(count_errors(cosine_rule(report_cosines(-1.0, (1.0, 1.0), bits, 100, 4.0, rng)), bits))
    assert lower_bound(pool(counts)).low < 4.0 < np.mean([point_epsilon(c) for c in counts]) + 0.1


def test_the_card_says_how_it_was_measured() -> None:
    found = play([GaussianRelease(2.0, 1.0)], 4_000)
    text = dict(found.card.rows())["measured"]
    assert "trials" in text
    assert "could certify" in text
    assert "small copy of the wire" in text
    formal = formal_card("x", workbench([GaussianRelease(2.0, 1.0)]), 1e-5)
    assert found.card.promises == formal.promises


# --- one record ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PerExample(Defence):
    """A bare DP-SGD step: clip each example's gradient to 1, sum, noise z * short, divide by the batch."""

    z: float
    short: float = 1.0

    def gradient(self, model, x, y, loss, turn):  # type: ignore[no-untyped-def]
        parameters = list(model.parameters())
        total = [torch.zeros_like(p) for p in parameters]
        noise = turn.noise(f"step {turn.memory.setdefault('steps', 0)}")
        for i in range(len(x)):
            found = torch.autograd.grad(loss(model(x[i : i + 1]), y[i : i + 1]), parameters)
            length = math.sqrt(sum(float(g.pow(2).sum()) for g in found))
            for t, g in zip(total, found, strict=True):
                t += g * min(1.0, 1.0 / max(length, 1e-12))
        for p, t in zip(parameters, total, strict=True):
            drawn = noise.normal(t.numel()).float().view(t.shape) * self.z * self.short
            p.grad = (t + drawn) / len(x)
        return torch.zeros(())

    def claim(self, federation, facts=()):  # type: ignore[no-untyped-def]
        return Claim(Unit.RECORD, Adjacency.ADD_REMOVE, Seat.SERVER, (Gaussian(1 / self.z, times=federation.rounds),))


def test_a_record_is_audited_through_real_training() -> None:
    honest = play([PerExample(0.5)], 4_000)
    (main, *_) = honest.findings
    assert main.question.promised == pytest.approx(2.0)  # one gradient of length 1 more or less, noise 1/2
    assert 1.3 < main.low <= 2.0
    assert not honest.broken
    assert play([PerExample(0.5, short=0.5)], 4_000).broken


# --- one run ---------------------------------------------------------------------------------------------------------


def test_one_run_bounds_what_many_runs_would() -> None:
    found = one_run(GlobalDP(0.5, 1.0), canaries=600, noise="seeded")
    assert 1.0 < found.low <= gdp_epsilon(2.0, 1e-5)
    more = one_run(GlobalDP(2.0, 1.0), canaries=600, rounds=16, noise="seeded")  # the same mu, over 16 rounds
    assert 1.0 < more.low <= gdp_epsilon(2.0, 1e-5)
    weak = one_run(GlobalDP(10.0, 1.0), canaries=600, noise="seeded")
    assert weak.low < 0.5
    bare = one_run(GlobalDP(0.0, 1.0), canaries=600)
    assert bare.low == pytest.approx(bare.ceiling)
    with pytest.raises(ValueError, match="8"):
        one_run(GlobalDP(1.0, 1.0), canaries=2)
