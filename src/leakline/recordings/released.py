"""What clients' updates show: their lengths against a bound, and noise that they are said to carry.

An update that leaves as clip_C(u) + N(0, s^2 I) has a length whose square over s^2 is a non-central chi-square with as
many degrees of freedom as values, and a non-centrality of at most (C / s)^2. Too short: there is less noise than is
said. Too long: it was not clipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakline.messages import Update
from leakline.recordings.claims import Claimed
from leakline.recordings.findings import ALPHA, Finding, rounds_in_words, same_noise, sketched

ZEROS = 0.01
"""From this share of exact zeros on, an update has no continuous noise in it."""
SLACK = 1e-4
"""A length above a bound by this share is rounding."""


@dataclass(frozen=True)
class Released:
    """What is kept of one update: lengths (of all of it, and by entry), exact zeros, the bound of its round.

    ``lengths`` are of entries that travel: one that is zero throughout carries nothing, noise or not.
    """

    round: int
    client: str
    norm: float
    zeros: float
    bound: float | None
    lengths: dict[str, tuple[float, int]] = field(default_factory=dict)
    sketch: Tensor | None = None

    @property
    def values(self) -> int:
        """How many values travel."""
        return sum(size for _, size in self.lengths.values())


def released(index: int, update: Update, bound: float | None, noisy: bool) -> Released:
    """One update, looked at; ``noisy``: whether it is said to carry noise."""
    trained = [v.flatten() for e, v in update.delta.layers() if not e.buffer]
    values = torch.cat(trained) if trained else update.delta.vector
    lengths = {}
    if noisy:
        layers = [(e.name, v.double()) for e, v in update.delta.layers() if bool(v.any())]
        lengths = {name: (float(v.norm()), v.numel()) for name, v in layers}
        sent = [v.flatten() for e, v in update.delta.layers() if e.name in lengths]
        values = torch.cat(sent) if sent else values[:0]
    zeros = float((values == 0).double().mean()) if len(values) else 0.0
    return Released(
        index, update.client, update.delta.norm(), zeros, bound, lengths,
        sketched(update.delta.vector) if noisy else None,
    )  # fmt: skip


def release_findings(updates: Sequence[Released], claim: Claimed) -> list[Finding]:
    """Everything that single updates show."""
    if not updates:
        return [Finding("clip", "cannot say", "no update of finite values is recorded")]
    if claim.local:
        return [_noised_lengths(updates, claim), _noise(updates, claim), *_fresh(updates, claim)]
    return [clip_finding(updates, claim), zeros_finding(updates)]


def clip_finding(updates: Sequence[Released], claim: Claimed) -> Finding:
    """Lengths of updates against a claimed bound, each against that of its round."""
    low, high = min(u.norm for u in updates), max(u.norm for u in updates)
    numbers = {"shortest": low, "longest": high, "updates": float(len(updates))}
    span = f"lengths of {len(updates)} updates: {low:.4g} to {high:.4g}"
    bounded = [u for u in updates if u.bound is not None]
    if bounded and claim.clip_at == "client":
        bounds = sorted({u.bound for u in bounded if u.bound is not None})
        said = f"{bounds[0]:g}" if len(bounds) == 1 else f"of each round, {bounds[0]:.4g} to {bounds[-1]:.4g}"
        over = [u for u in bounded if u.bound is not None and u.norm > u.bound * (1 + SLACK)]
        if over:
            rounds = tuple(sorted({u.round for u in over}))
            text = f"{len(over)} of {span}, above the claimed bound {said} in {rounds_in_words(rounds)}"
            return Finding("clip", "broken", text, numbers, rounds)
        return Finding("clip", "holds", f"{span}, within the claimed bound {said}", numbers)
    if len(updates) > 2 and high - low < SLACK * high:
        return Finding("clip", "seen", f"{span}: all alike, as after clipping or scaling at the clients", numbers)
    return Finding("clip", "seen", f"{span}: not bounded at the clients by anything that shows", numbers)


def zeros_finding(updates: Sequence[Released]) -> Finding:
    """Whether the clients can have added noise."""
    most = max(u.zeros for u in updates)
    if most >= ZEROS:
        text = f"up to {most:.0%} of an update's values are exactly 0: no continuous noise was added at that client"
        return Finding("noise at clients", "leaks", text, {"zeros": most})
    return Finding("noise at clients", "cannot say", "updates show no exact zeros: noise at the clients is possible")


def longest(clip: float, std: float, values: int, alpha: float) -> float:
    """What a noised update of length at most ``clip`` exceeds with chance at most ``alpha`` (Birge 2001, Lemma 8.1).

    |u|^2 <= s^2 (d + L + 2 sqrt((d + 2 L) x) + 2 x)        L = (C / s)^2, d values, x = log(1 / alpha)
    """
    x, more = math.log(1 / alpha), (clip / std) ** 2
    return std * math.sqrt(values + more + 2 * math.sqrt((values + 2 * more) * x) + 2 * x)


def _std(update: Released, claim: Claimed) -> float:
    return (claim.noise_multiplier or 0.0) * (update.bound or 0.0)


def _noised_lengths(updates: Sequence[Released], claim: Claimed) -> Finding:
    bounded = [u for u in updates if u.bound]
    over = [
        u for u in bounded
        if u.norm > longest(u.bound or 0.0, _std(u, claim), u.values, ALPHA / len(updates)) * (1 + SLACK)
    ]  # fmt: skip
    low, high = min(u.norm for u in updates), max(u.norm for u in updates)
    numbers = {"shortest": low, "longest": high, "updates": float(len(updates))}
    span = f"lengths of {len(updates)} noised updates: {low:.4g} to {high:.4g}"
    said = f"a clip of {claim.clip:g} and noise of std {_std(bounded[0], claim):.4g} a value" if bounded else ""
    if over:
        rounds = tuple(sorted({u.round for u in over}))
        text = f"{len(over)} of {span}, longer than {said} allow; the first, {over[0].client} in round {over[0].round}"
        return Finding("clip", "broken", text, numbers, rounds)
    return Finding("clip", "holds", f"{span}, as {said} allow", numbers)


def _noise(updates: Sequence[Released], claim: Claimed) -> Finding:
    """Too little of the noise that is claimed: exact zeros, or an entry of an update (or all of it) that is too short.

    Of d values with noise of std s the squared length is at least s^2 times a chi-square's lower quantile, whatever
    they carry besides. What they carry may hide that noise is missing: up to the bound, C = s sqrt(d) hides all of it.
    """
    from scipy.stats import chi2

    tests = sum(len(u.lengths) + 1 for u in updates)
    sizes = {size for u in updates for _, size in u.lengths.values()} | {u.values for u in updates}
    least = {size: math.sqrt(float(chi2.ppf(ALPHA / tests, size))) for size in sizes if size}
    zeros = [u for u in updates if u.zeros >= ZEROS]
    short: list[tuple[Released, str, float]] = []
    for u in updates:
        lengths = {"all of it": (math.sqrt(sum(n * n for n, _ in u.lengths.values())), u.values), **u.lengths}
        worst = min(lengths, key=lambda name: _ratio(lengths[name], least))
        if _ratio(lengths[worst], least) < _std(u, claim):
            short.append((u, worst, lengths[worst][0] / math.sqrt(lengths[worst][1] or 1)))
    std, values = _std(updates[0], claim), max(u.values for u in updates)
    numbers = {"std": std, "updates": float(len(updates))}
    said = f"noise of std z C = {std:.4g} a value (z = {claim.noise_multiplier:g}, C = {claim.clip:g})"
    rounds = tuple(sorted({u.round for u in zeros} | {u.round for u, _, _ in short}))
    if zeros:
        text = f"{zeros[0].zeros:.0%} of an update's values are exactly 0 ({zeros[0].client}): {said} is not there"
        return Finding("noise at clients", "broken", text, {**numbers, "zeros": zeros[0].zeros}, rounds)
    if short:
        u, name, seen = short[0]
        text = (
            f"{len(short)} of {len(updates)} updates are too short for {said}; the first, {u.client} in round "
            f"{u.round}: values of std {seen:.4g} in {name}"
        )
        return Finding("noise at clients", "broken", text, numbers, rounds)
    hidden = (claim.clip or 0.0) ** 2 / (std**2 * values) if values else 1.0
    if hidden >= 1:
        text = f"updates are long enough for {said}, but so would they be without any: the clip alone allows it"
        return Finding("noise at clients", "cannot say", text, numbers)
    seen = math.sqrt(1 - hidden)
    text = (
        f"{len(updates)} updates, each entry of each as long as {said} makes it; less than {seen:.0%} of it would show"
    )
    return Finding("noise at clients", "holds", text, {**numbers, "shows_below": seen})


def _ratio(length: tuple[float, int], least: dict[int, float]) -> float:
    """The largest std of noise that a length allows."""
    return length[0] / least[length[1]] if least.get(length[1]) else math.inf


def _fresh(updates: Sequence[Released], claim: Claimed) -> list[Finding]:
    held = [u for u in updates if u.sketch is not None and _std(u, claim)]
    twins = same_noise(
        [u.sketch / _std(u, claim) for u in held if u.sketch is not None], 1 / (claim.noise_multiplier or 1)
    )
    if twins is None:
        return []
    first, second = (held[i] for i in twins)
    text = (
        f"{first.client} in round {first.round} and {second.client} in round {second.round} carry the same noise: "
        "subtract one from the other and it is gone"
    )
    return [Finding("fresh noise", "broken", text, rounds=tuple(sorted({first.round, second.round})))]
