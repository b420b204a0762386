"""The wide audit: planted bugs that no canary shows, stacks without a mistake, and the parts it is made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import bugs
from leakline.attacks.audit import audit, likelihood, look
from leakline.attacks.audit.law import departures, size_follows
from leakline.attacks.audit.reach import Canary, Noise
from leakline.attacks.audit.sampling import cohorts, miscounted, not_poisson
from leakline.attacks.audit.session import PublishSession, ReleaseSession
from leakline.attacks.audit.workbench import small
from leakline.defences import GaussianRelease
from leakline.leakage import mu_bound_from_scores
from leakline.privacy import Claim
from leakline.testing import Unfit, check_defence

FAST = (
    "noise tiled from 4 values", "clip by the squared norm", "truncated at 2 std", "forgotten epochs",
    "actual poisson batch", "noise forgotten now and then", "clipped per record, claimed per patient",
)  # fmt: skip
BUGS = bugs.OLD | bugs.NAMED | bugs.FURTHER | bugs.PATIENTS
EVERYTHING = BUGS | bugs.SOUND


def broken(case: bugs.Case, seed: int = 0) -> list[str]:
    return [str(remark) for remark in look(case.federation(seed)) if remark.verdict == "BROKEN"]


@pytest.mark.parametrize("name", FAST)
def test_planted_bugs_are_caught(name: str) -> None:
    """The first alarm will do: `look` says what it finds as it finds it."""
    assert any(remark.verdict == "BROKEN" for remark in look(EVERYTHING[name].federation()))


@pytest.mark.parametrize("name", EVERYTHING)
def test_every_case_can_be_played(name: str) -> None:
    """A bug that crashes is no bug that was missed, nor one that was caught."""
    federation = small(EVERYTHING[name].federation(), most=40, noise="seeded")
    for session in (ReleaseSession(federation, rounds=2), PublishSession(federation, rounds=2)):
        assert session.see(torch.ones(2, session.values), 1).shape[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_every_planted_bug_is_caught(name: str) -> None:
    case = BUGS[name]
    caught = sum(bool(audit(case.federation(seed), trials=4000).broken) for seed in range(3))
    assert caught == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", bugs.SOUND)
def test_stacks_without_a_mistake_raise_no_alarm(name: str) -> None:
    assert not [alarm for seed in range(12) for alarm in broken(bugs.SOUND[name], seed)]


def test_normal_noise_departs_from_nothing() -> None:
    rng = np.random.default_rng(0)
    for _ in range(5):
        assert departures(rng.standard_normal((600, 6, 30))) == []
    moving = rng.standard_normal((600, 6, 30)) * np.exp(0.3 * rng.standard_normal((600, 6, 1)).cumsum(axis=1))
    moving[:, 0] = rng.standard_normal((600, 30))  # a size that follows memory is allowed after the first round
    assert departures(moving) == []


@pytest.mark.parametrize(
    ("spoil", "says", "certain"),
    [
        (lambda x: np.clip(x, -2, 2), "not normal", True),
        # A mask that anybody may know does this to sound noise, too: a suspicion, until a canary confirms it.
        (lambda x: x * np.where(np.arange(len(x)) % 20 == 0, 0.0, 1.0)[:, None, None], "first round", False),
        (lambda x: np.concatenate([x[:, :3], -x[:, :3]], axis=1), "other sign", True),
        (lambda x: np.repeat(x[:, :, :5], 6, axis=2), "is the same between values", True),
        (lambda x: x * np.array([1, 1, 1, 1, 0, 1.0])[:, None], "round 4 leaves without noise", True),
    ],
)
def test_spoilt_noise_is_named(spoil, says: str, certain: bool) -> None:  # type: ignore[no-untyped-def]
    noise = spoil(np.random.default_rng(1).standard_normal((600, 6, 30)))
    assert any(says in departure.text and departure.certain == certain for departure in departures(noise))


def test_correlated_noise_is_a_suspicion_only() -> None:
    x = np.random.default_rng(2).standard_normal((600, 6, 30))
    x[:, 1:] = (x[:, 1:] + x[:, :-1]) / np.sqrt(2)
    (departure,) = departures(x)
    assert not departure.certain
    assert "correlated" in departure.text


@dataclass(frozen=True)
class Additive:
    """A release of 30 values in three rounds: what is sent, of length 1, plus noise of a given law and unit size."""

    law: Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
    values: int = 30
    rounds: int = 3

    def see(self, sent: torch.Tensor | None, seed: int, *, quiet: bool = False) -> torch.Tensor:
        noise = torch.from_numpy(self.law(np.random.default_rng(seed), (self.rounds, self.values)))
        return noise if sent is None else noise + torch.nn.functional.normalize(sent.double(), dim=1)


LAWS: dict[str, tuple[Callable[[np.random.Generator, tuple[int, int]], np.ndarray], bool]] = {
    "normal": (lambda rng, size: rng.standard_normal(size), False),
    "laplace": (lambda rng, size: rng.laplace(scale=math.sqrt(0.5), size=size), True),
    "lattice": (lambda rng, size: np.round(rng.standard_normal(size)), True),
    "normal behind a public mask": (lambda rng, size: rng.standard_normal(size) * (rng.random(size) < 0.8), False),
}


@pytest.mark.parametrize("name", LAWS)
def test_noise_is_judged_by_its_own_law(name: str) -> None:
    """One release promises mu = 1. A false alarm has chance 1e-4; Laplace's own mu is sqrt(2), a lattice's infinite."""
    law, weaker = LAWS[name]
    session = Additive(law)
    noise = Noise(np.stack([session.see(None, seed).numpy() for seed in range(600)]), alike=False)
    canary = Canary("everywhere", None, torch.ones(3, 30))
    if "mask" in name:  # where no noise is, nothing of the canary is either
        session = Masked(law)
    zero, one = likelihood.scores(session, canary, noise, 10**6)
    bound = mu_bound_from_scores(zero, one, 1 - 1e-4, rng=np.random.default_rng(0))
    assert (bound.low > math.sqrt(3)) == weaker


@dataclass(frozen=True)
class Masked(Additive):
    """The same, where a value without noise is not sent at all."""

    def see(self, sent: torch.Tensor | None, seed: int, *, quiet: bool = False) -> torch.Tensor:
        seen = super().see(sent, seed)
        return torch.where(super().see(None, seed) == 0, torch.zeros(()), seen)


def test_a_release_without_noise_is_seen_by_its_repeating_itself() -> None:
    bare = Additive(lambda rng, size: rng.standard_normal(size) * (rng.random() < 0.9))
    silent = Masked(bare.law)
    canary = Canary("everywhere", None, torch.ones(3, 30))
    for session, told in ((bare, True), (silent, False), (Additive(LAWS["normal"][0]), False)):
        noise = Noise(np.stack([session.see(None, seed).numpy() for seed in range(600)]), alike=False)
        assert (likelihood.bare_sessions(session, canary, noise, 10**6) is not None) == told


def test_a_size_that_follows_the_cohort_is_told() -> None:
    x = np.random.default_rng(3).standard_normal((200, 2, 30))
    assert size_follows(x, x[::-1]) is None
    assert size_follows(2 * x, x) is not None


@pytest.mark.parametrize("name", bugs.SOUND)
def test_what_sound_stacks_count_is_what_they_do(name):
    """A report's promise is of one round, a client's of all of them (test of level 1e-6 where cohorts are drawn)."""
    federation = bugs.SOUND[name].federation()
    for claim in federation.claims().values():
        assert not isinstance(claim, Claim) or miscounted(federation, claim) == []


def test_cohorts_are_held_against_the_claimed_rate() -> None:
    poisson = bugs.SOUND["global-dp poisson"].federation()
    assert not_poisson(cohorts(poisson), 0.5, "cohorts") == []
    assert any(d.certain for d in not_poisson(cohorts(poisson), 0.25, "cohorts"))
    fixed = bugs.SOUND["global-dp fixed cohorts"].federation()
    assert "variance" in not_poisson(cohorts(fixed), 0.5, "cohorts")[0].text


def test_the_conformance_suite_passes_what_is_sound_and_names_what_is_not() -> None:
    remarks = check_defence(GaussianRelease(2.0, 1.0), trials=0)
    assert any(remark.verdict == "LOOKED" for remark in remarks)
    with pytest.raises(Unfit, match="above the promised"):
        check_defence(bugs.ShortNoise(2.0, 1.0), trials=0)
