"""What rounds contradict, and what they do not, on federations whose truth is known."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2, ncx2

import tiny
from leakline.cli.audit import audit
from leakline.defences import FedBN, GlobalDP, PercentileGaussian
from leakline.errors import StoreError
from leakline.federation import federate
from leakline.messages import Dropped, Round, Update
from leakline.recordings.bounds import Step, bound_finding
from leakline.recordings.checks import check_recording
from leakline.recordings.claims import Claimed
from leakline.recordings.findings import ALPHA, SKETCH, Finding, same_noise
from leakline.recordings.recorder import Recorder
from leakline.recordings.recording import Recording
from leakline.recordings.released import longest
from leakline.strategies import MENU as STRATEGIES
from leakline.study.files import read_json, write_json
from leakline.weights import Entry, Layout, Weights

WIDE = Layout((Entry("w", (20_000,)), Entry("b", (100,))))


def recorded(path: Path, **changes: Any) -> Recording:
    settings = {"model": tiny.image_net, "task": tiny.task([12, 12, 24], shape=tiny.IMAGE), "rounds": 3} | changes
    fed = tiny.federation(**settings)
    recorder = Recorder(path)
    recorder.open(fed.wire)
    for one in federate(fed):
        recorder.write(one)
    return Recording(path)


def found(recording: Recording, **claimed: Any) -> dict[str, Finding]:
    return {f.check: f for f in check_recording(recording, Claimed(**claimed))}


def made(path: Path, std: float, clip: float = 1.0, same: bool = False, bare: bool = False, seed: int = 0) -> Recording:
    """Rounds of a server that clips at ``clip``, takes the even mean of four updates and adds noise of ``std``."""
    g = torch.Generator().manual_seed(seed)
    recorder = Recorder(path)
    recorder.open(WIDE)
    weights = Weights(WIDE, 0.1 * torch.randn(WIDE.size, generator=g))
    noise = std * torch.randn(WIDE.size, generator=g)
    for index in range(3):
        updates = tuple(
            Update(f"c{i}", weights.like(0.03 * torch.randn(WIDE.size, generator=g)), 10, 1) for i in range(4)
        )
        mean = sum(u.delta.vector * min(1, clip / u.delta.norm()) / 4 for u in updates)
        noise = noise if same else std * torch.randn(WIDE.size, generator=g)
        shown = torch.cat([noise[:20_000], torch.zeros(100)]) if bare else noise
        result = weights.like(weights.vector + mean + shown)
        recorder.write(Round(index, weights, updates, tuple(u.client for u in updates), (), result))
        weights = result
    return Recording(path)


def test_a_plain_federation_shows_that_it_is_one(tmp_path):
    looked = found(recorded(tmp_path))
    assert looked["noise"].verdict == "leaks"
    assert "no noise at the server" in looked["noise"].text
    assert looked["BatchNorm"].verdict == "leaks"
    assert "1.running_mean" in looked["BatchNorm"].text
    assert looked["figures"].verdict == "leaks"
    assert "loss" in looked["figures"].text
    assert looked["influence"].numbers["factor"] == pytest.approx(1.5, rel=1e-6)  # 24 of 48 examples, three clients
    assert looked["clip"].verdict == "seen"
    assert found(recorded(tmp_path / "x"), clip=1.0, noise_multiplier=1.0)["noise"].verdict in ("broken", "cannot say")


def test_statistics_that_stay_at_home_are_not_reported(tmp_path):
    looked = found(recorded(tmp_path, defences=(FedBN(),)))
    assert "BatchNorm" not in looked


def test_enough_noise_holds_and_too_little_is_caught(tmp_path):
    """False alarms at 1e-6 for each of the three."""
    assert found(made(tmp_path / "a", 0.25), clip=1.0, noise_multiplier=1.0)["noise"].verdict == "holds"
    short = found(made(tmp_path / "b", 0.225), clip=1.0, noise_multiplier=1.0)["noise"]  # a tenth is missing
    assert short.verdict == "broken"
    assert short.numbers["needed"] == pytest.approx(0.25)
    assert short.numbers["std"] == pytest.approx(0.225, rel=0.02)
    unasked = found(made(tmp_path / "c", 0.25))["noise"]
    assert unasked.verdict == "cannot say"  # it clips, and nobody said so


def test_global_dp_of_leaklines_own_holds_for_even_weights_only(tmp_path):
    even = {"defences": (GlobalDP(1.0, clip=0.5),), "strategy": STRATEGIES["fedavg"](weighting="even")}
    assert found(recorded(tmp_path / "a", **even), clip=0.5, noise_multiplier=1.0)["noise"].verdict == "holds"
    weighted = {"defences": (GlobalDP(1.0, clip=0.5),)}
    looked = found(recorded(tmp_path / "b", **weighted), clip=0.5, noise_multiplier=1.0, weighting="examples")
    assert looked["noise"].numbers["needed"] == pytest.approx(0.25)  # half of the weight is one client's
    assert looked["noise"].numbers["std"] < 0.2  # 0.5 / 3 was added
    assert looked["noise"].verdict == "broken"
    assert looked["influence"].verdict == "leaks"


def test_a_missing_clip_is_caught_with_and_without_noise(tmp_path):
    silent = found(made(tmp_path / "a", 0.0, clip=1e9), clip=1.0, noise_multiplier=1.0)
    assert silent["clip at the server"].verdict == "broken"
    assert silent["noise"].verdict == "broken"
    noisy = found(made(tmp_path / "b", 0.002, clip=1e9), clip=1.0, noise_multiplier=0.001)
    assert noisy["clip at the server"].verdict == "broken"
    assert "clip at the server" not in found(made(tmp_path / "c", 0.002), clip=1.0, noise_multiplier=0.001)


def test_the_same_noise_twice_and_values_without_noise_are_caught(tmp_path):
    twice = found(made(tmp_path / "a", 0.25, same=True), clip=1.0, noise_multiplier=1.0)
    assert twice["fresh noise"].verdict == "broken"
    assert "rounds 0 and 1" in twice["fresh noise"].text
    bare = found(made(tmp_path / "b", 0.25, bare=True), clip=1.0, noise_multiplier=1.0)
    assert bare["noise on every value"].text.endswith("b")
    fine = found(made(tmp_path / "c", 0.25), clip=1.0, noise_multiplier=1.0)
    assert not {"fresh noise", "noise on every value"} & set(fine)


def test_a_server_optimiser_is_not_taken_for_noise(tmp_path):
    looked = found(recorded(tmp_path, strategy=STRATEGIES["fedadam"]()))
    assert looked["noise"].verdict == "cannot say"


def test_a_bound_claimed_at_the_clients_is_held_against_every_update(tmp_path):
    recording = made(tmp_path, 0.0)
    longest = found(recording)["clip"].numbers["longest"]
    assert found(recording, clip=longest * 1.01, clip_at="client")["clip"].verdict == "holds"
    assert found(recording, clip=longest * 0.99, clip_at="client")["clip"].verdict == "broken"


def test_exact_zeros_show_that_clients_add_nothing(tmp_path):
    dead = Weights(WIDE, torch.zeros(WIDE.size).index_fill_(0, torch.arange(100), 1.0))
    recorder = Recorder(tmp_path / "a")
    recorder.open(WIDE)
    recorder.write(Round(0, dead, (Update("c", dead, 1, 1),), ("c",), (), dead + dead))
    assert found(Recording(tmp_path / "a"))["noise at clients"].verdict == "leaks"
    noisy = recorded(tmp_path / "b", defences=(PercentileGaussian(0.5),))
    assert found(noisy)["noise at clients"].verdict == "cannot say"


def test_a_round_with_updates_left_out_says_nothing_about_noise(tmp_path):
    fed = tiny.federation()
    recorder = Recorder(tmp_path, clients=frozenset({"a"}))
    recorder.open(fed.wire)
    for one in federate(fed):
        recorder.write(one)
    assert found(Recording(tmp_path))["noise"].verdict == "cannot say"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clip": -1.0}, "clip"),
        ({"clip": 1.0, "noise_multiplier": -1.0}, "noise_multiplier"),
        ({"noise_multiplier": 1.0}, "give clip too"),
        ({"clip_at": "moon"}, "moon"),
        ({"weighting": "heavy"}, "heavy"),
        ({"noise_at": "moon"}, "moon"),
        ({"quantile": 0.5}, "quantile and rate"),
        ({"quantile": 1.5, "rate": 0.2}, "between 0 and 1"),
        ({"quantile": 0.5, "rate": 0.0}, "rate must be positive"),
        ({"bits_noise": -1.0}, "bits_noise"),
    ],
)
def test_wrong_claims_are_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        Claimed(**changes)


# --- round by round ----------------------------------------------------------------------------------------------


def rounds_of(path: Path, stds: list[float], change: Callable[[int, Round], Round] = lambda i, r: r) -> Recording:
    """Rounds of four clients clipped to 1, the noise of each round of its own std; ``change`` spoils some."""
    g = torch.Generator().manual_seed(0)
    recorder = Recorder(path, claimed={"clip": 1.0, "noise_multiplier": 1.0, "weighting": "even", "by": "a test"})
    recorder.open(WIDE)
    weights = Weights(WIDE, 0.1 * torch.randn(WIDE.size, generator=g))
    for index, std in enumerate(stds):
        updates = tuple(
            Update(f"c{i}", weights.like(0.03 * torch.randn(WIDE.size, generator=g)), 10, 1) for i in range(4)
        )
        mean = sum(u.delta.vector / u.delta.norm() / 4 for u in updates)
        result = weights.like(weights.vector + mean + std * torch.randn(WIDE.size, generator=g))
        recorder.write(change(index, Round(index, weights, updates, tuple(u.client for u in updates), (), result)))
    return Recording(path)


def looked_at(recording: Recording) -> dict[str, Finding]:
    return {f.check: f for f in check_recording(recording)}


def test_every_round_is_judged_against_what_was_recorded_as_claimed(tmp_path):
    good = [0.25] * 12
    assert looked_at(rounds_of(tmp_path / "a", good))["noise"].verdict == "holds"
    late = looked_at(rounds_of(tmp_path / "b", [*good[:10], 0.2, 0.25]))["noise"]  # not among the first eight
    assert (late.verdict, late.rounds) == ("broken", (10,))
    none = looked_at(rounds_of(tmp_path / "c", [0.25, 0.0, 0.25]))["noise"]
    assert (none.verdict, none.rounds) == ("broken", (1,))
    assert "no noise at the server in round 1" in none.text


def test_a_round_that_cannot_be_judged_is_named_and_blinds_nobody(tmp_path):
    def spoil(index: int, round_: Round) -> Round:
        if index == 1:
            return dataclasses.replace(round_, result=round_.sent)
        if index == 2:
            return dataclasses.replace(round_, result=round_.result * float("nan"))
        if index == 3:
            bad = dataclasses.replace(round_.updates[0], delta=round_.sent * float("inf"))
            return dataclasses.replace(round_, updates=(bad, *round_.updates[1:]))
        return dataclasses.replace(round_, result=round_.sent + round_.updates[0].delta) if index == 4 else round_

    looked = looked_at(rounds_of(tmp_path, [0.25] * 5 + [0.2], spoil))
    assert (looked["noise"].verdict, looked["noise"].rounds) == ("broken", (5,))
    text = looked["rounds left out"].text
    assert "round 1: skipped" in text
    assert "round 2: its model holds NaN" in text
    assert "round 3: the update of c0 holds NaN" in text
    assert "round 4: what came of it is not the mean of its updates" in text
    assert np.isfinite(looked["clip"].numbers["longest"])


def test_a_mean_over_those_who_were_asked_is_recognised(tmp_path):
    def absent(index: int, round_: Round) -> Round:
        here = round_.updates[:3]
        mean = sum(u.delta.vector / u.delta.norm() / 4 for u in here)
        noise = 0.25 * torch.randn(WIDE.size, generator=torch.Generator().manual_seed(index))
        result = round_.sent.like(round_.sent.vector + mean + noise)
        cohort = tuple(u.client for u in here)
        return dataclasses.replace(
            round_, updates=here, cohort=cohort, dropped=(Dropped("c3", "late"),), result=result
        )  # fmt: skip

    looked = looked_at(rounds_of(tmp_path, [0.0] * 2, absent))["noise"]
    assert looked.verdict == "holds"
    assert looked.numbers["needed"] == pytest.approx(0.25)


def test_the_help_of_the_audit_names_all_that_may_be_claimed():
    told = str(audit.__doc__)
    for field in dataclasses.fields(Claimed):
        assert field.name == "by" or f"--{field.name.replace('_', '-')} " in told


def test_claims_in_a_recording_are_not_believed(tmp_path):
    rounds_of(tmp_path, [0.25])
    path = tmp_path / "recording.json"
    manifest = read_json(path)
    for table in ({"clip": "much"}, {"clap": 1}, [1], {"clip": True}, {"noise_multiplier": 1.0}, {"by": [1]}):
        write_json(path, {**manifest, "claimed": table})
        if table == {"by": [1]}:
            assert Recording(tmp_path).claimed().by == "[1]"
            continue
        with pytest.raises(StoreError, match="what it says is claimed cannot be read"):
            Recording(tmp_path).claimed()


def calls(act: Callable[[], Any]) -> int:
    count = 0

    def on_event(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        act()
    finally:
        sys.setprofile(before)
    return count


def test_writing_and_auditing_are_linear_in_rounds(tmp_path):
    """Calls of Python functions, not seconds: twice the rounds are twice the calls."""
    small = Layout((Entry("w", (40,)),))
    weights = Weights(small, torch.arange(40.0))

    def write(path: Path, rounds: int) -> None:
        recorder = Recorder(path)
        recorder.open(small)
        for i in range(rounds):
            update = Update("a", weights.like(torch.full((40,), float(i + 1))), 1, 1)
            recorder.write(Round(i, weights, (update,), ("a",), (), weights + update.delta))

    write(tmp_path / "first", 2)
    check_recording(Recording(tmp_path / "first"))  # what is imported and cached once does not count
    writes = {n: calls(lambda n=n: write(tmp_path / str(n), n)) for n in (30, 60)}
    audits = {n: calls(lambda n=n: check_recording(Recording(tmp_path / str(n)))) for n in (30, 60)}
    assert writes[60] < 2.1 * writes[30]
    assert audits[60] < 2.1 * audits[30]


# --- the bounds themselves ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [5, 300, 20_000])
@pytest.mark.parametrize("clip", [0.1, 3.0, 50.0])
def test_the_longest_length_is_above_the_exact_quantile_and_not_far(values, clip):
    """scipy's non-central chi-square is the oracle, where it computes one."""
    exact = np.sqrt(ncx2.isf(1e-8, values, clip**2))
    assert exact <= longest(clip, 1.0, values, 1e-8) <= 1.35 * exact


def test_the_same_noise_is_found_again_and_independent_noise_is_not():
    """300 vectors, 44,850 pairs: a false alarm at 1e-6."""
    g = torch.Generator().manual_seed(0)
    table = list(torch.randn(300, SKETCH, generator=g))
    assert same_noise(table) is None
    assert same_noise([*table, -table[17]]) == (17, 300)
    common = 4 * torch.ones(SKETCH) / SKETCH**0.5  # what all share, of length 4
    assert same_noise([v + common for v in table], signal=4.0) is None
    assert same_noise(table[:1]) is None


def stepping(swapped: bool, noise: float, steps: int = 10, seed: int = 0) -> list[Step]:
    """A bound that follows the median of lengths 1 to 10, or runs away from it."""
    rng, bound, made = np.random.default_rng(seed), 2.0, []
    for index in range(steps):
        share = float(np.mean(np.arange(1, 11) <= bound))
        told = (1 - share if swapped else share) + rng.normal(0, noise) / 10
        after = bound * float(np.exp(-0.2 * (told - 0.5)))
        made.append(Step(index, bound, after, share, 10))
        bound = after
    return made


@pytest.mark.parametrize("noise", [0.0, 0.5, 1.0])
def test_a_bound_that_follows_its_quantile_holds_and_one_that_runs_away_is_caught(noise):
    claim = Claimed(clip=2.0, quantile=0.5, rate=0.2, bits_noise=noise)
    assert bound_finding(stepping(False, noise, 20), claim).verdict == "holds"
    away = bound_finding(stepping(True, noise, 20), claim)
    assert away.verdict == "broken"
    assert "swapped" in away.text
    if noise == 1.0:
        return  # which of two other rules it follows is then not to be told
    other = bound_finding(stepping(False, noise, 20), Claimed(clip=2.0, quantile=0.9, rate=0.2, bits_noise=noise))
    assert other.verdict == "broken"
    assert "does not follow the 0.9 quantile" in other.text


def test_a_direction_that_noise_hides_is_not_judged():
    claim = Claimed(clip=2.0, quantile=0.5, rate=0.2, bits_noise=20.0)
    assert bound_finding(stepping(True, 20.0), claim).verdict == "cannot say"
    assert bound_finding([], claim).verdict == "cannot say"


def test_the_misfit_of_a_bound_that_is_followed_is_chi_square():
    """400 runs of 10 steps: their mean misfit is 10 within 5 standard errors (a false alarm in 1.7 million)."""
    claim = Claimed(clip=2.0, quantile=0.5, rate=0.2, bits_noise=0.5)
    misfits = [bound_finding(stepping(False, 0.5, seed=s), claim).numbers["misfit"] for s in range(400)]
    assert abs(np.mean(misfits) - 10) < 5 * np.sqrt(20 / 400)
    assert max(misfits) < chi2.isf(ALPHA, 10)
