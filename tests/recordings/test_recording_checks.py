"""What rounds contradict, and what they do not, on federations whose truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from leakline.defences import FedBN, GlobalDP, PercentileGaussian
from leakline.federation import federate
from leakline.messages import Round, Update
from leakline.recordings.checks import Claimed, Finding, check_recording
from leakline.recordings.recording import Recorder, Recording
from leakline.strategies import MENU as STRATEGIES
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
    ],
)
def test_wrong_claims_are_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        Claimed(**changes)
