"""What recorded rounds say about a federation that leakline did not train: pure functions over rounds.

Nobody's claim can be proved by looking at rounds, but it can be contradicted: a bound that an update exceeds, a noise
that is not there, the same noise twice, statistics that leave in the clear. Every finding says which of these it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from leakline.mechanisms import clip_norm
from leakline.messages import Round, Update
from leakline.recordings.recording import Recording
from leakline.weights import Layout

Verdict = Literal["broken", "leaks", "holds", "seen", "cannot say"]
ALPHA = 1e-6
"""Chance that enough noise is called short (and that independent noise is called the same)."""
ROUNDING = 1e-6
"""A residual below this share of the weights' own size is float32 arithmetic, not noise."""
LOOKED_AT = 8
"""Complete rounds whose residual is looked at: as many vectors lie in memory."""
ZEROS = 0.01
"""From this share of exact zeros on, an update has no continuous noise in it."""


@dataclass(frozen=True)
class Finding:
    """One answer: what was looked at, what it came to, and the numbers behind it."""

    check: str
    verdict: Verdict
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Claimed:
    """What the federation's owners say they do; None: they say nothing about it.

    ``clip_at``: where updates are clipped. At the client a recorded update must keep to the bound; at the server it
    need not, but the mean of the clipped ones must be what the published model shows. ``weighting``: how clients count;
    under much noise a round does not show it, and then the one that needs less noise is assumed.
    """

    clip: float | None = None
    noise_multiplier: float | None = None
    clip_at: Literal["server", "client"] = "server"
    weighting: Literal["even", "examples"] | None = None

    def __post_init__(self) -> None:
        for name in ("clip", "noise_multiplier"):
            if isinstance(getattr(self, name), str | bool):
                raise ValueError(f"{name} must be a number: {getattr(self, name)!r}")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"clip must be positive: {self.clip}")
        if self.noise_multiplier is not None and not 0 <= self.noise_multiplier < math.inf:
            raise ValueError(f"noise_multiplier must not be negative: {self.noise_multiplier}")
        if self.clip_at not in ("server", "client"):
            raise ValueError(f'clip_at must be "server" or "client": {self.clip_at!r}')
        if self.weighting not in (None, "even", "examples"):
            raise ValueError(f'weighting must be "even" or "examples": {self.weighting!r}')
        if self.noise_multiplier and self.clip is None:
            raise ValueError("a noise multiplier is a multiple of the clip bound: give clip too")


def check_recording(recording: Recording, claimed: Claimed | None = None) -> list[Finding]:
    """Everything that can be said, one round in memory at a time."""
    claim = Claimed() if claimed is None else claimed
    norms: list[float] = []
    shares: list[float] = []
    noises: list[Noise] = []
    zeros: list[float] = []
    moved: set[str] = set()
    rounds, clients = 0, set[str]()
    layout = recording.layout()
    for round_ in recording.rounds():
        rounds += 1
        clients |= {u.client for u in round_.updates}
        norms += [u.delta.norm() for u in round_.updates]
        zeros += [exact_zeros(u) for u in round_.updates]
        moved |= {e.name for u in round_.updates for e, v in u.delta.layers() if e.buffer and bool(v.any())}
        if len(noises) < LOOKED_AT and (noise := server_noise(round_, claim)):
            noises.append(noise)
            shares.append(noise.share * noise.clients)
    findings = [
        Finding(
            "what is recorded",
            "seen",
            f"{rounds} rounds of {len(clients)} clients, {layout.size:,} values each, as the {recording.seat} sees "
            f"them ({recording.engine})",
            {"rounds": rounds, "clients": len(clients), "values": layout.size},
        ),
        clip_finding(norms, claim),
        *noise_findings(noises, claim, layout),
        statistics_finding(layout, moved),
        zeros_finding(zeros),
        *figures_findings(recording.records()),
    ]
    if shares and max(shares) > 1.001:
        findings.append(
            Finding(
                "influence",
                "leaks",
                f"the mean is weighted: one client counts up to {max(shares):.3g} times as much as in an even mean, "
                "and noise for C / n is short by that factor",
                {"factor": max(shares)},
            )
        )
    return [finding for finding in findings if finding is not None]


def clip_finding(norms: Sequence[float], claim: Claimed) -> Finding:
    """Lengths of updates against a claimed bound."""
    low, high = min(norms), max(norms)
    numbers = {"shortest": low, "longest": high, "updates": float(len(norms))}
    span = f"lengths of {len(norms)} updates: {low:.4g} to {high:.4g}"
    if claim.clip is not None and claim.clip_at == "client":
        if high > claim.clip * (1 + 1e-4):
            over = sum(n > claim.clip * (1 + 1e-4) for n in norms)
            return Finding("clip", "broken", f"{over} of {span}, above the claimed bound {claim.clip:g}", numbers)
        return Finding("clip", "holds", f"{span}, within the claimed bound {claim.clip:g}", numbers)
    if len(norms) > 2 and high - low < 1e-4 * high:
        return Finding("clip", "seen", f"{span}: all alike, as after clipping or scaling at the clients", numbers)
    return Finding("clip", "seen", f"{span}: not bounded at the clients by anything that shows", numbers)


@dataclass(frozen=True)
class Noise:
    """What lies between the mean of a round's updates and the model that came of it.

    ``std`` of ``residual``; ``aligned``: by how many standard deviations it follows the mean more than noise would;
    ``share`` the largest client's weight among ``clients``; ``unclipped``: the model shows a mean of updates that
    were not clipped as claimed.
    """

    round: int
    residual: Tensor
    std: float
    aligned: float
    rounding: float
    share: float
    clients: int
    unclipped: bool = False


def server_noise(round_: Round, claim: Claimed) -> Noise | None:
    """What is left of a round's change when the mean of its updates is taken away; None if not all is recorded.

    r = (result - sent) - sum_i w_i clip_C(update_i)        w even or by examples

    Two ways of taking the mean are told apart where their means lie x > 10 s from each other, s the residual's std:
    the chance of taking the wrong one, Phi(-x / 2 s), is then below 3e-7. Otherwise the doubt is the federation's.
    """
    updates = round_.updates
    if "result_unknown" in round_.facts or {u.client for u in updates} != set(round_.cohort) or not updates:
        return None
    clip = claim.clip if claim.clip is not None and claim.clip_at == "server" else None
    said = _weighted(round_, claim, clip)
    if clip is None:
        return said
    plain = _weighted(round_, claim, None)
    return replace(plain, unclipped=True) if _plainly(plain, said) else said


def _weighted(round_: Round, claim: Claimed, clip: float | None) -> Noise:
    even = _residual(round_, [1.0] * len(round_.updates), clip)
    counted = _residual(round_, [float(u.examples) for u in round_.updates], clip)
    if claim.weighting is not None:
        return even if claim.weighting == "even" else counted
    return counted if _plainly(counted, even) else even


def _plainly(noise: Noise, other: Noise) -> bool:
    """Whether a round shows ``one`` rather than ``other``."""
    return noise.std < other.std and float((noise.residual - other.residual).norm()) > 10 * noise.std


def _residual(round_: Round, counts: Sequence[float], clip: float | None) -> Noise:
    change = (round_.result.vector - round_.sent.vector).double()
    mean, held = torch.zeros_like(change), dict[str, float]()
    for count, update in zip(counts, round_.updates, strict=True):
        weight = count / sum(counts)
        vector = update.delta.vector if clip is None else clip_norm(update.delta.vector, clip)
        mean += vector.double() * weight
        held[update.client] = held.get(update.client, 0.0) + weight
    residual, root = change - mean, math.sqrt(len(change))
    return Noise(
        round_.index, residual, float(residual.norm()) / root, _aligned(residual, mean),
        ROUNDING * float(round_.sent.vector.double().norm() + mean.norm()) / root, max(held.values()), len(held),
    )  # fmt: skip


def _aligned(residual: Tensor, mean: Tensor) -> float:
    """Standard deviations by which a residual follows the mean, in direction or in signs; noise does neither."""
    length, moved = float(residual.norm() * mean.norm()), (mean != 0) & (residual != 0)
    if not length or not bool(moved.any()):
        return 0.0
    cosine = abs(float(residual @ mean)) / length * math.sqrt(len(mean))
    signs = (residual[moved].sign() * mean[moved].sign()).sum()
    return max(cosine, abs(float(signs)) / math.sqrt(int(moved.sum())))


def noise_findings(noises: Sequence[Noise], claim: Claimed, layout: Layout) -> list[Finding]:
    """Is there noise in the published models, enough of it, on every value, and anew in every round?"""
    if not noises:
        return [Finding("noise", "cannot say", "no round is recorded with all its updates and what came of them")]
    missing = []
    if any(n.unclipped for n in noises):
        text = f"published models show means of updates that were not clipped to the claimed bound {claim.clip:g}"
        missing = [Finding("clip at the server", "broken", text)]
    if all(n.std <= n.rounding for n in noises):
        asked = bool(claim.noise_multiplier)
        text = f"every published model is the mean of its updates ({len(noises)} rounds): no noise at the server"
        return [*missing, Finding("noise", "broken" if asked else "leaks", text, {"std": max(n.std for n in noises)})]
    size = len(noises[0].residual)
    if any(n.aligned > 6 for n in noises):
        text = "what came of a round is not the mean of its updates: a server optimiser, another mean or a clip"
        return [*missing, Finding("noise", "cannot say", text, {"deviations": max(n.aligned for n in noises)})]
    findings = [*missing, _enough(noises, claim, size)]
    bare = _without_noise(noises, layout)
    if bare:
        shown = ", ".join(bare[:4]) + (", ..." if len(bare) > 4 else "")
        findings.append(Finding("noise on every value", "leaks", f"{len(bare)} entries leave without noise: {shown}"))
    twins = _same_noise(noises)
    if twins:
        text = f"rounds {twins[0]} and {twins[1]} carry the same noise: subtract one from the other and it is gone"
        findings.append(Finding("fresh noise", "broken", text))
    return findings


def _enough(noises: Sequence[Noise], claim: Claimed, size: int) -> Finding:
    """The noise's size against z C w, w the largest weight of a client; an upper bound by chi-square at ALPHA."""
    from scipy.stats import chi2

    least = min(noises, key=lambda n: n.std)
    upper = least.std * math.sqrt(size / float(chi2.ppf(ALPHA / len(noises), size)))
    numbers = {"std": least.std, "upper": upper}
    measured = f"noise of std {least.std:.4g} (at most {upper:.4g}) in round {least.round}"
    if claim.noise_multiplier is None or claim.clip is None:
        return Finding("noise", "seen", f"{measured}; give --clip and --noise-multiplier to have it judged", numbers)
    needed = claim.noise_multiplier * claim.clip * least.share
    numbers["needed"] = needed
    asked = (
        f"z C w = {needed:.4g} is needed (z = {claim.noise_multiplier:g}, C = {claim.clip:g}, largest weight "
        f"w = {least.share:.3g} of {least.clients} clients)"
    )
    return Finding("noise", "broken" if upper < needed else "holds", f"{measured}; {asked}", numbers)


def _without_noise(noises: Sequence[Noise], layout: Layout) -> list[str]:
    return [
        name for name, where in layout.slices.items()
        if where.stop > where.start and all(float(n.residual[where].abs().max()) <= 10 * n.rounding for n in noises)
    ]  # fmt: skip


def _same_noise(noises: Sequence[Noise]) -> tuple[int, int] | None:
    """Two rounds whose residuals are aligned: for independent noise the cosine is N(0, 1/d)."""
    kept = list(noises[:20])
    for i, noise in enumerate(kept):
        for other in kept[i + 1 :]:
            cosine = float(noise.residual @ other.residual) / float(noise.residual.norm() * other.residual.norm())
            if abs(cosine) > max(0.5, 6 / math.sqrt(len(noise.residual))):
                return noise.round, other.round
    return None


def statistics_finding(layout: Layout, moved: Iterable[str]) -> Finding | None:
    """Whether BatchNorm statistics of single clients travel."""
    if not layout.buffers:
        return None
    names = sorted(moved)
    if not names:
        return Finding("BatchNorm", "holds", f"{len(layout.buffers)} statistics are in the model, and none travels")
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    text = f"means and variances of single clients' images travel with their updates ({shown}), outside of gradients"
    return Finding("BatchNorm", "leaks", text, {"entries": float(len(names))})


def exact_zeros(update: Update) -> float:
    """The share of an update's trained values that are exactly 0."""
    trained = [v.flatten() for e, v in update.delta.layers() if not e.buffer]
    values = torch.cat(trained) if trained else update.delta.vector
    return float((values == 0).double().mean()) if len(values) else 0.0


def zeros_finding(zeros: Sequence[float]) -> Finding:
    """Whether the clients can have added noise."""
    most = max(zeros)
    if most >= ZEROS:
        text = f"up to {most:.0%} of an update's values are exactly 0: no continuous noise was added at that client"
        return Finding("noise at clients", "leaks", text, {"zeros": most})
    return Finding("noise at clients", "cannot say", "updates show no exact zeros: noise at the clients is possible")


def figures_findings(records: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Figures that clients send beside their updates, and clients that were dropped."""
    names = sorted({str(k) for r in records for c in r.get("clients", ()) for k in c.get("metrics", {})})
    findings = []
    if names:
        text = f"each client tells the server {', '.join(names[:6])} and its number of examples, without noise"
        findings.append(Finding("figures", "leaks", text, {"figures": float(len(names))}))
    dropped = [(r.get("round"), d) for r in records for d in r.get("dropped", ())]
    if dropped:
        index, (client, reason) = dropped[0]
        text = f"{len(dropped)} replies could not be used; the first, in round {index}, {client}: {reason}"
        findings.append(Finding("dropped", "seen", text, {"replies": float(len(dropped))}))
    return findings
