"""What recorded rounds say about a federation that leakline did not train, one round in memory at a time.

Nobody's claim can be proved by looking at rounds, but it can be contradicted: a bound that an update exceeds, a noise
that is not there, the same noise twice, statistics that leave in the clear. Every finding says which of these it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from leakline.messages import Round
from leakline.recordings.altered import Bins, altered_findings, bins_in, jump
from leakline.recordings.bounds import bound_finding, steps_of, unclipped_share
from leakline.recordings.claims import Claimed
from leakline.recordings.findings import Finding
from leakline.recordings.published import Noise, noise_findings, server_noise
from leakline.recordings.recording import Recording
from leakline.recordings.released import Released, release_findings, released
from leakline.weights import Layout


def check_recording(recording: Recording, claimed: Claimed | None = None) -> list[Finding]:
    """Everything that can be said, round by round; without claims it is what the recorded strategy says of itself."""
    claim = recording.claimed() if claimed is None else claimed
    noises: list[Noise] = []
    left_out: dict[int, str] = {}
    updates: list[Released] = []
    shares: dict[int, tuple[float, int]] = {}
    moved: set[str] = set()
    rounds, clients = 0, set[str]()
    layout = recording.layout()
    bins: list[Bins] = []
    jumps: dict[int, float] = {}
    before: Round | None = None
    for round_ in recording.rounds():
        rounds += 1
        bins += bins_in(round_.index, round_.sent)
        if before is not None and before.index + 1 == round_.index and "result_unknown" not in before.facts:
            jumps |= {round_.index: far} if (far := jump(before.result, round_.sent)) else {}
        before = round_
        clients |= {u.client for u in round_.updates}
        bound, bad = claim.bound(round_.facts), ""
        for update in round_.updates:
            if not bool(torch.isfinite(update.delta.vector).all()):
                bad = f"the update of {update.client} holds NaN or infinite values"
                continue
            updates.append(released(round_.index, update, bound, claim.local))
            moved |= {e.name for e, v in update.delta.layers() if e.buffer and e.name not in moved and bool(v.any())}
        noise = bad or server_noise(round_, claim)
        if isinstance(noise, str):
            left_out[round_.index] = noise
            continue
        noises.append(noise)
        if claim.adaptive and not round_.dropped:
            shares[round_.index] = (unclipped_share(round_, claim), len(round_.updates))
    numbers = {"rounds": rounds, "clients": len(clients), "values": layout.size}
    text = f"{rounds} rounds of {len(clients)} clients, {layout.size:,} values each, as the {recording.seat} sees them"
    findings = [
        Finding("what is recorded", "seen", f"{text} ({recording.engine})", numbers),
        *release_findings(updates, claim),
        *noise_findings(noises, left_out, claim),
        statistics_finding(layout, moved, claim),
        *figures_findings(recording.records()),
        influence_finding(noises),
        *altered_findings(bins, jumps),
    ]
    if claim.adaptive:
        bounds = {r["round"]: b for r in recording.records() if (b := claim.bound(r["facts"])) is not None}
        findings.append(bound_finding(steps_of(shares, bounds), claim))
    return [finding for finding in findings if finding is not None]


def influence_finding(noises: Sequence[Noise]) -> Finding | None:
    """Whether a client counts for more than the others."""
    factor = max((n.share * n.clients for n in noises), default=1.0)
    if factor <= 1.001:
        return None
    text = f"the mean is weighted: one client counts up to {factor:.3g} times as much as in an even mean"
    return Finding("influence", "leaks", f"{text}, and noise for C / n is short by that factor", {"factor": factor})


def statistics_finding(layout: Layout, moved: Iterable[str], claim: Claimed) -> Finding | None:
    """Whether BatchNorm statistics of single clients travel in the clear."""
    if not layout.buffers:
        return None
    names = sorted(moved)
    if not names:
        return Finding("BatchNorm", "holds", f"{len(layout.buffers)} statistics are in the model, and none travels")
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    text = f"means and variances of single clients' images travel with their updates ({shown}), outside of gradients"
    if claim.local:
        return Finding("BatchNorm", "seen", f"{text}; each entry is held against the noise claimed at the clients")
    return Finding("BatchNorm", "leaks", text, {"entries": float(len(names))})


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
