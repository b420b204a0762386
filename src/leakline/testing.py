"""A conformance suite for defences: contracts, the law of the noise, how far a neighbour reaches, the audit's game.

def test_my_defence():
    leakline.testing.check_defence(MyDefence(noise_multiplier=1.0, clip=1.0))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from leakline.attacks.audit import Remark, audit, look, workbench
from leakline.attacks.audit.session import PublishSession, ReleaseSession
from leakline.attacks.audit.workbench import small
from leakline.defences import Defence
from leakline.errors import LeaklineError
from leakline.federation import Federation
from leakline.privacy import Claim, NoClaim


class Unfit(AssertionError):
    """A defence that breaks a contract or its own promise; the message lists every reason."""


def check_defence(defence: Defence | Sequence[Defence], *, trials: int = 4000, **settings: Any) -> tuple[Remark, ...]:
    """Hold a defence (or a stack) to its contracts and its promise; returns what was looked at, or raises `Unfit`.

    ``trials``: of the audit's game (0: leave the game out, and look at law, reach and counts alone). ``settings`` go
    to the federation that is made up around it (rounds, sampling, participation, strategy).
    """
    stack = (defence,) if isinstance(defence, Defence) else tuple(defence)
    federation = workbench(stack, **({"noise": "seeded"} | settings))
    problems = list(contracts(federation))
    remarks: tuple[Remark, ...] = ()
    if not problems:
        remarks = tuple(look(federation))
        problems = [str(remark) for remark in remarks if remark.verdict == "BROKEN"]
        problems += audit(federation, trials=trials, wide=False).broken if trials else ()
    if problems:
        raise Unfit("\n".join(problems))
    return remarks


def contracts(federation: Federation) -> Iterator[str]:
    """What every defence must keep to, whatever it promises."""
    for defence in federation.defences:
        kind = type(defence).__name__
        if not dataclasses.is_dataclass(defence) or not defence.__dataclass_params__.frozen:
            yield f"{kind} is not a frozen dataclass: a run is stored under its settings"
    try:
        promises = federation.claims()
    except TypeError as error:
        yield str(error)
        return
    for name, promise in promises.items():
        if not isinstance(promise, Claim | NoClaim):
            yield f"{name} answers {promise!r} where a Claim or a NoClaim is due"
    bench = small(federation, noise="seeded")
    change = torch.linspace(-1, 1, bench.wire.size).expand(2, -1)
    try:
        for session in (ReleaseSession(bench, rounds=2), PublishSession(bench, rounds=2)):
            first, again = (session.see(change, 1) for _ in range(2))
            if not torch.isfinite(first).all():
                yield f"{federation.stack}: what leaves is not finite"
            if not torch.equal(first, again):
                yield f"{federation.stack}: a seeded round differs when it is played again; draw from turn.noise()"
    except LeaklineError as error:
        yield f"{federation.stack}: a plain round ends: {error.what}"
