"""The wide audit: planted bugs that no canary shows, stacks without a mistake, and the parts it is made of."""

from __future__ import annotations

import numpy as np
import pytest

import bugs
from leakline.attacks.audit import audit, look
from leakline.attacks.audit.law import departures, size_follows
from leakline.attacks.audit.sampling import cohorts, not_poisson
from leakline.defences import GaussianRelease
from leakline.testing import Unfit, check_defence

FAST = ("noise tiled from 4 values", "clip by the squared norm", "truncated at 2 std", "forgotten epochs")


def broken(case: bugs.Case, seed: int = 0) -> list[str]:
    return [str(remark) for remark in look(case.federation(seed)) if remark.verdict == "BROKEN"]


@pytest.mark.parametrize("name", FAST)
def test_named_bugs_are_caught(name: str) -> None:
    assert broken(bugs.NAMED[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*bugs.OLD, *bugs.NAMED, *bugs.FURTHER])
def test_every_planted_bug_is_caught(name: str) -> None:
    case = (bugs.OLD | bugs.NAMED | bugs.FURTHER)[name]
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


def test_a_size_that_follows_the_cohort_is_told() -> None:
    x = np.random.default_rng(3).standard_normal((200, 2, 30))
    assert size_follows(x, x[::-1]) is None
    assert size_follows(2 * x, x) is not None


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
