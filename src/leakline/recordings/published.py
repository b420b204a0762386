"""What published models show: is a round's change the mean of its updates, with noise, and with how much of it?

Every round is judged by itself; one that cannot be is left out by name, and blinds nobody to the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakline.mechanisms import clip_norm
from leakline.messages import Round
from leakline.recordings.claims import Claimed
from leakline.recordings.findings import ALPHA, Finding, Verdict, rounds_in_words, same_noise, sketched

ROUNDING = 1e-6
"""A residual below this share of the weights' own size is float32 arithmetic, not noise."""
ANOTHER = "what came of it is not the mean of its updates: a server optimiser, another mean or a clip"
UNREAD = "unread_replies"
"""The fact of a round in which the server had replies that are not recorded as updates."""


@dataclass(frozen=True)
class Noise:
    """What lies between the mean of a round's updates and the model that came of it.

    ``std`` of its ``values``; ``aligned``: by how many standard deviations it follows updates more than noise would;
    ``share`` the largest client's weight among ``clients``; ``clip`` the round's bound; ``unclipped``: the model
    shows a mean of updates that were not clipped to it; ``bare``: entries without any noise.
    """

    round: int
    std: float
    values: int
    aligned: float
    rounding: float
    share: float
    clients: int
    clip: float | None
    sketch: Tensor
    bare: frozenset[str]
    unclipped: bool = False

    @property
    def silent(self) -> bool:
        """Whether there is no noise at all."""
        return self.std <= self.rounding

    def upper(self, alpha: float) -> float:
        """The most that the noise's std can be, but with chance ``alpha``: by chi-square."""
        from scipy.stats import chi2

        return self.std * math.sqrt(self.values / float(chi2.ppf(alpha, self.values)))


def server_noise(round_: Round, claim: Claimed) -> Noise | str:
    """What is left of a round's change when the mean of its updates is taken away, or why that cannot be said.

    r = (result - sent) - sum_i w_i clip_C(update_i)        w even (over those who came, or were asked) or by examples

    Two ways of taking the mean are told apart where their means lie x > 10 s from each other, s the residual's std:
    the chance of taking the wrong one, Phi(-x / 2 s), is then below 3e-7. Otherwise the doubt is the federation's.
    """
    if why := _unusable(round_):
        return why
    bound = claim.bound(round_.facts)
    if claim.adaptive and bound is None:
        return "the clip bound of this round is not recorded"
    clip = bound if claim.clip_at == "server" and not claim.local else None
    as_claimed = _likeliest(round_, claim, clip)
    if clip is None:
        return replace(as_claimed.noise, clip=bound)
    plain = _likeliest(round_, claim, None)
    if _plainly(plain, as_claimed):
        return replace(plain.noise, clip=bound, unclipped=True)
    return replace(as_claimed.noise, clip=bound)


def _unusable(round_: Round) -> str:
    updates = round_.updates
    if not updates:
        return "nobody's update is recorded"
    if "result_unknown" in round_.facts:
        return "what came of it is not recorded"
    if {u.client for u in updates} != set(round_.cohort):
        return "not all of its updates are recorded"
    if unread := round_.facts.get(UNREAD):
        return f"{unread:g} replies that the server had could not be recorded"
    if not bool(torch.isfinite(round_.result.vector).all()):
        return "its model holds NaN or infinite values"
    if torch.equal(round_.result.vector, round_.sent.vector) and any(bool(u.delta.vector.any()) for u in updates):
        return "skipped: the model that was sent stays"
    return ""


@dataclass(frozen=True)
class _Residual:
    noise: Noise
    vector: Tensor


def _likeliest(round_: Round, claim: Claimed, clip: float | None) -> _Residual:
    """The way of taking the mean that is claimed, or that the round shows; else the one that needs the least noise."""
    chosen, *others = (_residual(round_, weights, clip) for weights in _weightings(round_, claim))
    for other in others:
        chosen = other if _plainly(other, chosen) else chosen
    return chosen


def _weightings(round_: Round, claim: Claimed) -> Iterator[list[float]]:
    updates, asked = round_.updates, len(round_.cohort) + len(round_.dropped)
    if claim.weighting != "examples":
        if round_.dropped and len(updates) == len(round_.cohort):
            yield [1 / asked] * len(updates)
        yield [1 / len(updates)] * len(updates)
    if claim.weighting != "even":
        counts = [float(u.examples) for u in updates]
        yield [count / sum(counts) for count in counts] if sum(counts) else [1 / len(updates)] * len(updates)


def _plainly(residual: _Residual, other: _Residual) -> bool:
    """Whether a round shows this rather than the other."""
    apart = float((residual.vector - other.vector).norm())
    return residual.noise.std < other.noise.std and apart > 10 * residual.noise.std


def _residual(round_: Round, weights: Sequence[float], clip: float | None) -> _Residual:
    change = (round_.result.vector - round_.sent.vector).double()
    mean, held = torch.zeros_like(change), dict[str, float]()
    for weight, update in zip(weights, round_.updates, strict=True):
        vector = update.delta.vector if clip is None else clip_norm(update.delta.vector, clip)
        mean += vector.double() * weight
        held[update.client] = held.get(update.client, 0.0) + weight
    residual, root = change - mean, math.sqrt(len(change))
    std = float(residual.norm()) / root
    rounding = ROUNDING * float(round_.sent.vector.double().norm() + mean.norm()) / root
    bare = frozenset(
        name for name, place in round_.sent.layout.slices.items()
        if place.stop > place.start and float(residual[place].abs().max()) <= 10 * rounding
    )  # fmt: skip
    noise = Noise(
        round_.index, std, len(change), _aligned(residual, mean, round_), rounding, max(held.values()), len(held), clip,
        sketched(residual / std if std else residual), bare,
    )  # fmt: skip
    return _Residual(noise, residual)


def _aligned(residual: Tensor, mean: Tensor, round_: Round) -> float:
    """Standard deviations by which a residual follows the mean, in direction or in signs, or a single update."""
    length, moved = float(residual.norm() * mean.norm()), (mean != 0) & (residual != 0)
    if not length or not bool(moved.any()):
        return 0.0
    signs = (residual[moved].sign() * mean[moved].sign()).sum()
    followed = abs(float(signs)) / math.sqrt(int(moved.sum()))
    unit = residual / residual.norm() * math.sqrt(len(mean))
    for vector in (mean, *(u.delta.vector.double() for u in round_.updates)):
        followed = max(followed, abs(float(unit @ vector)) / max(float(vector.norm()), 1e-300))
    return followed


def noise_findings(seen: Sequence[Noise], left_out: dict[int, str], claim: Claimed) -> list[Finding]:
    """Is there noise in the published models, enough of it, on every value, and anew in every round?"""
    findings = []
    if unclipped := tuple(n.round for n in seen if n.unclipped):
        text = f"the models of {rounds_in_words(unclipped)} are means of updates that were not clipped as claimed"
        findings.append(Finding("clip at the server", "broken", text, rounds=unclipped))
    left_out = {**left_out, **{n.round: ANOTHER for n in seen if n.aligned > 6 and not n.silent}}
    judged = [n for n in seen if n.round not in left_out]
    if not judged:
        why = next(iter(left_out.values()), "nothing is recorded")
        numbers = {"deviations": max(n.aligned for n in seen)} if seen else {}
        findings.append(Finding("noise", "cannot say", f"{rounds_in_words(left_out)}: {why}", numbers))
    else:
        findings.append(_enough(judged, claim))
        findings += _even_and_fresh([n for n in judged if not n.silent])
    if left_out and judged:
        reasons = {why: [i for i, other in left_out.items() if other == why] for why in left_out.values()}
        text = "; ".join(f"{rounds_in_words(indices)}: {why}" for why, indices in reasons.items())
        findings.append(Finding("rounds left out", "cannot say", text, {"rounds": float(len(left_out))}))
    return findings


def _enough(judged: Sequence[Noise], claim: Claimed) -> Finding:
    """Every round's noise against z C w, w the largest weight of a client; upper bounds at `ALPHA` together."""
    silent, noisy = tuple(n.round for n in judged if n.silent), [n for n in judged if not n.silent]
    bare = f"no noise at the server in {rounds_in_words(silent)}" if silent else ""
    if not noisy:
        bare = f"every published model is the mean of its updates ({len(judged)} rounds): no noise at the server"
    asked = bool(claim.noise_multiplier) and not claim.local
    alpha = ALPHA / len(judged)
    needed = {n.round: (claim.noise_multiplier or 0.0) * (n.clip or 0.0) * n.share for n in noisy} if asked else {}
    short = tuple(n.round for n in noisy if asked and n.upper(alpha) < needed[n.round])
    least = min(noisy, key=lambda n: n.std / needed[n.round] if needed else n.std, default=None)
    verdict: Verdict
    if least is None:
        verdict = "broken" if asked else "seen" if claim.local else "leaks"
        return Finding("noise", verdict, bare, {"std": max(n.std for n in judged)}, silent if asked else ())
    numbers = {"std": least.std, "upper": least.upper(alpha), "round": float(least.round), "rounds": float(len(judged))}
    measured = f"noise of std {least.std:.4g} (at most {numbers['upper']:.4g}) in round {least.round}"
    if not asked:
        hint = "" if claim.local else "; give --clip and --noise-multiplier to have it judged"
        verdict = "leaks" if silent and not claim.local else "seen"
        return Finding("noise", verdict, "; ".join(t for t in (bare, measured + hint) if t), numbers)
    numbers["needed"] = needed[least.round]
    terms = (
        f"z C w = {needed[least.round]:.4g} is needed (z = {claim.noise_multiplier:g}, C = {least.clip:.4g}, largest "
        f"weight w = {least.share:.3g} of {least.clients} clients)"
    )
    if not short and not silent:
        return Finding("noise", "holds", f"{len(judged)} rounds, the least {measured}; {terms}", numbers)
    few = f"too little in {rounds_in_words(short)}, the least {measured}; {terms}" if short else ""
    return Finding("noise", "broken", "; ".join(t for t in (bare, few) if t), numbers, tuple(sorted(silent + short)))


def _even_and_fresh(noisy: Sequence[Noise]) -> Iterator[Finding]:
    bare = sorted(frozenset.intersection(*(n.bare for n in noisy))) if noisy else []
    if bare:
        shown = ", ".join(bare[:4]) + (", ..." if len(bare) > 4 else "")
        yield Finding("noise on every value", "leaks", f"{len(bare)} entries leave without noise: {shown}")
    if twins := same_noise([n.sketch for n in noisy]):
        first, second = (noisy[i].round for i in twins)
        text = f"rounds {first} and {second} carry the same noise: subtract one from the other and it is gone"
        yield Finding("fresh noise", "broken", text, rounds=(first, second))
