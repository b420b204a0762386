"""Audit a stack of defences from Python or the command line, without a study."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from leakline.attacks.audit.bounds import Finding, strongest
from leakline.attacks.audit.channel import Channel, PublishChannel, ReleaseChannel
from leakline.attacks.audit.crafters import SIX, Pair, craft
from leakline.attacks.audit.game import Audit, Hints, block, broken
from leakline.attacks.audit.questions import Question, SeatName, not_random, one_release
from leakline.attacks.audit.scene import draw_scene, malicious_model
from leakline.attacks.audit.wide import Remark
from leakline.attacks.audit.workbench import workbench
from leakline.attacks.base import Challenge
from leakline.bench.training import Plan
from leakline.cards import Card, formal_card, violations
from leakline.defences import Defence
from leakline.errors import LeaklineError
from leakline.federation import Federation
from leakline.privacy import Adjacency, Claim, Seat, replace_one
from leakline.randomness import Stream

ADVERSARIES = ("canary", *(name.replace(" ", "-") for name in SIX))


@dataclass(frozen=True)
class Audited:
    """The result: every finding, what else was looked at, and the privacy card with both halves."""

    card: Card
    findings: tuple[Finding, ...]
    remarks: tuple[Remark, ...] = ()

    @property
    def broken(self) -> tuple[str, ...]:
        """Bounds that exceed their promise; empty for an implementation that keeps it."""
        return self.card.broken

    def explain(self) -> list[str]:
        """Which games were played against which claim, and what they could have found."""
        lines = []
        for f in self.findings:
            asked = f.question
            if asked.trouble or not math.isfinite(asked.promised):
                continue
            least = f"; from {f.smallest:.3g} on it would have been found 9 of 10 times" if f.smallest < 1e9 else ""
            lines.append(
                f"{asked.defence}, {asked.unit}, seen by the {asked.seat}: {asked.situation}, {f.trials} trials, "
                f"{f.quantity} of one release >= {f.low:.3g} of {asked.promised:.3g}{least}"
            )
        return lines + [str(remark) for remark in self.remarks]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; infinite numbers as the word."""
        rows = [
            {
                "defence": f.question.defence, "seat": str(f.question.seat), "unit": f.question.unit,
                "situation": f.question.situation, "quantity": f.quantity, "point": f.point, "low": f.low,
                "promised": _promised(f), "composed": f.composed, "releases": f.question.releases,
                "trials": f.trials, "ceiling": f.ceiling, "confidence": f.confidence, "method": f.method,
                "delta": f.delta, "broken": f.broken, "note": f.note,
            }
            for f in self.findings
        ]  # fmt: skip
        return {
            "findings": [plain(row) for row in rows],
            "remarks": [plain(asdict(remark)) for remark in self.remarks],
            "explained": self.explain(),
            "broken": list(self.broken),
            "card": plain(self.card.as_dict()),
        }


def _promised(found: Finding) -> float | None:
    """What is promised for one release, where one number says it."""
    return found.question.promised if found.question.kind in ("mu", "pure") else None


def plain(value: Any) -> Any:
    """The same values, with infinite and undefined numbers as a word: JSON has none."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return "infinite" if isinstance(value, float) and not math.isfinite(value) else value


def audit(
    defences: Defence | Sequence[Defence] | Federation,
    *,
    adversary: str | Sequence[str] = "canary",
    seat: SeatName = "promised",
    rounds: int = 1,
    trials: int = 20_000,
    confidence: float = 0.99,
    delta: float = 1e-5,
    title: str = "",
    wide: bool = True,
    until: Literal["trials", "decided"] = "trials",
    margin: float = 0.25,
    **settings: Any,
) -> Audited:
    """Measure what a stack of defences really promises, by playing the audit game against its own code.

    ``defences``: one, several, or a whole federation (nothing of it is trained). ``adversary``: "canary" is the worst
    case for the mechanism; paper 002's six ("benign" ... "dummy-gradient") craft gradients of a small model on
    embedded digits, or of the federation's own; "all" plays everything. ``wide``: look at the noise's own law, at
    rounds in a row and at what is counted, too. ``until = "decided"`` stops each game once the promise is refuted, or a
    violation ``margin`` above it would have been found 9 of 10 times. ``settings`` go to the federation that is made
    up around the defences (strategy, sampling, participation, noise, seed).
    """
    names = [adversary] if isinstance(adversary, str) else list(adversary)
    names = list(ADVERSARIES) if "all" in names else [name.replace(" ", "-") for name in names]
    for name in names:
        if name not in ADVERSARIES:
            raise LeaklineError(f"there is no adversary {name!r}", fix=f"all, or one of: {', '.join(ADVERSARIES)}")
    stack = [defences] if isinstance(defences, Defence) else defences
    federation = stack if isinstance(stack, Federation) else workbench(stack, rounds=rounds, **settings)
    game = Audit(trials, confidence, seat, delta, wide, until, margin)
    challenges: list[Iterator[Challenge]] = []
    if "canary" in names:
        challenges.append(game.games(federation))
    six = [name.replace("-", " ") for name in names if name != "canary"]
    if six:
        played = federation if isinstance(stack, Federation) else _on_digits(federation)
        challenges.append(_crafted(played, six, seat, max(trials // 10, 400)))
    guesses, secrets = [], []
    for source in challenges:
        for challenge in source:
            guesses.append(game.guess(challenge.view, challenge.hints))
            secrets.append(challenge.secret)
    findings = tuple(game.findings(guesses, secrets))
    remarks = tuple(secret for secret in secrets if isinstance(secret, Remark))
    return Audited(card_with(federation, findings, delta, title, remarks), findings, remarks)


def card_with(
    federation: Federation, findings: Sequence[Finding], delta: float, title: str = "", remarks: Sequence[Remark] = ()
) -> Card:
    """The formal card of a federation with what was found, and whether it holds."""
    card = formal_card(title or str(federation.stack), federation, delta)
    told = [r for r in remarks if r.verdict != "LOOKED"] + [broken(f) for f in findings if f.broken]
    bounds = tuple(f.reading() for f in strongest(findings))
    card = replace(card, measured=bounds, leaks=tuple(remark.reading() for remark in told))
    return replace(card, broken=violations(card))


def _on_digits(federation: Federation) -> Federation:
    """The same stack around a small model on the embedded digits."""
    from leakline.data import DATASETS, PARTITIONERS, partition
    from leakline.models.small import MLP

    task = partition(DATASETS["digits"]().load(), PARTITIONERS["even"](), clients=3, seed=federation.seed)
    network = MLP(hidden=(16,))
    return replace(
        federation,
        task=task,
        model=lambda: network.build(task.shape, len(task.classes)),
        plan=Plan(batch=0, learning_rate=1.0),
    )


def _crafted(federation: Federation, names: Sequence[str], seat: SeatName, trials: int) -> Iterator[Challenge]:
    """Paper 002's crafters through the real hooks of any stack: each exchanges one input for another."""
    claims = {k: c for k, c in federation.claims().items() if isinstance(c, Claim)}
    name, claim = next(iter(claims.items()), (str(federation.stack), None))
    promised = Seat.SERVER if claim is None or claim.observer is Seat.SERVER else Seat.CLIENT
    looks = promised if seat == "promised" else Seat(seat)
    channel: Channel = ReleaseChannel(federation) if looks is Seat.SERVER else PublishChannel(federation)
    asked = Question(name, looks, "", "", "none", setting=f"gradients of a model on {federation.task.name}")
    if claim is not None:
        kind, worth = one_release(replace_one(claim)) if looks is promised else ("none", math.inf)
        same = looks is promised and claim.adjacency is Adjacency.REPLACE_ONE
        unit = str(claim.unit) if same else f"{claim.unit} exchanged for another, seen by the {looks}"
        asked = replace(asked, unit=unit, kind=kind, promised=worth, releases=claim.releases)
    bench = federation.bench()
    rng = Stream(federation.seed, -2, "examiner", "adversaries").numpy()
    scene = draw_scene(federation, bench, rng)
    malicious = malicious_model(federation, bench, int(scene.y1[0]))
    for place, adversary in enumerate(names):
        crafted = craft(adversary, scene, malicious)
        # What a client sends is a step along the negative gradient.
        pair = Pair(crafted.name, -crafted.zero, -crafted.one)
        question = replace(asked, situation=adversary, trouble=not_random(channel, pair))
        if question.trouble:
            views = torch.stack([channel.see(x, 0).clone() for x in (pair.zero, pair.one)])
            yield Challenge(views, Hints(pair, views[:1], views[1:]), (np.array([False, True]), question))
            continue
        bits = np.asarray(rng.permutation(trials) % 2 == 1)
        known, views = block(channel, pair, bits, (place + 1) * 2**40)
        hints = Hints(pair, *known, learn=question.kind == "none", sides=question.kind == "pure")
        yield Challenge(views, hints, (bits, question))
