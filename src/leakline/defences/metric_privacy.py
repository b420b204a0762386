"""Noise divided by the distance between clients: the mechanism of paper 000, and what it may honestly promise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from leakline.defences.base import Promises, Reach, Stage, Terms
from leakline.defences.global_dp import GlobalDP, client_level, unbounded
from leakline.errors import ClientLost, StackError
from leakline.mechanisms import add_gaussian, metric_std, spread
from leakline.messages import Receipt, Turn, Update
from leakline.privacy import NoClaim
from leakline.privacy.gdp import gdp_epsilon
from leakline.weights import Layout, Weights

ROUNDING = 1e-6
"""Clients closer to each other than this share of their updates' own length differ by float32 rounding only."""
DELTA = 1e-5
"""The delta at which the comparison with global DP is printed: a `NoClaim` has none of its own."""


@dataclass(frozen=True)
class MetricPrivacy(GlobalDP):
    """Clip each update, divide global DP's noise by the largest distance between clients (paper 000, Sec. 6).

    change + N(0, (z C / (n d))^2 I)       z = noise_multiplier, C = clip, n as in global DP
    d = max over pairs of the mean over layers of ||w_i[l] - w_j[l]||_F       every array counts as a layer

    d > 1 means *less* noise than global DP with the same z (the paper's text says more; its formula and its code
    divide). Clients start a round from one model, so distances of weights are distances of updates.

    ``reading = "paper"``: d of the updates before they are clipped, noise after the server's optimiser, as the
    authors' code does. ``reading = "sound"``: d after clipping, so that d <= 2 C / sqrt(layers) whatever a client
    sends, and noise before the optimiser. Neither is differentially private: the noise's size follows the data of
    the people it protects, and falls when one of them stands out. ``distance`` puts a public constant in the place
    of d; the mechanism is then global DP with multiplier z / distance and promises exactly that.

    A sampled round with fewer than two clients has no distance, and so no noise: its change is not published.

    What ``buffers = "clear"`` leaves out of clip and noise is left out of the distance too.
    """

    at: Stage = field(init=False, default="aggregate")
    reading: Literal["paper", "sound"] = "sound"
    distance: float | Literal["measured"] = "measured"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reading not in ("paper", "sound"):
            raise ValueError(f'reading must be "paper" or "sound": {self.reading!r}')
        if self.distance != "measured" and not 0 < self.distance < math.inf:
            raise ValueError(f'distance must be "measured" or a positive number: {self.distance!r}')
        object.__setattr__(self, "at", "model" if self.reading == "paper" else "aggregate")

    @property
    def needs_pairs(self) -> bool:
        """Whether there is a distance to be measured."""
        return self.distance == "measured"

    @property
    def reach(self) -> Reach:
        """A measured distance is one of all updates."""
        return "all" if self.distance == "measured" else "each"

    def stated(self, clients: float) -> Mapping[str, float]:
        """Global DP's of the multiplier z / distance, where the distance is a public constant."""
        covered = super().stated(clients)
        if self.distance == "measured" or not covered:
            return {}
        return {**covered, "noise_multiplier": self.noise_multiplier / self.distance}

    def check(self, federation: Terms) -> None:
        """Refuse clients that hold the same examples: nothing but chance would lie between them."""
        held = {client.train.fingerprint() for client in federation.task.clients}
        if self.distance == "measured" and len(held) == 1:
            raise StackError(
                f"all {len(federation.task.clients)} clients hold the same examples: their distance d is 0 but for "
                "the order of batches, and the noise z C / (n d) has no finite size",
                "MetricPrivacy",
                "give the clients data of their own, or a public constant: distance = 1.5",
            )

    def admit(self, updates: Iterator[Update], turn: Turn) -> Iterator[Update]:
        """Clip each update; measure how far apart they are, before (paper) or after (sound)."""
        if self.distance != "measured":
            yield from super().admit(updates, turn)
            return
        turn.memory.pop("distance", None)
        if self.reading == "paper":
            held = list(updates)
            self._measure(held, turn)
            yield from super().admit(iter(held), turn)
        else:
            held = list(super().admit(updates, turn))
            self._measure(held, turn)
            yield from held

    def publish(self, change: Weights, cohort: Sequence[Receipt], turn: Turn) -> Weights:
        """Add noise whose size was set by the round's distance."""
        distance = turn.memory.pop("distance", None) if self.distance == "measured" else self.distance
        if distance is None:
            return Weights.zeros(change.layout)
        std = metric_std(self.noise_multiplier, self.clip, self.divided(cohort, turn), distance)
        turn.facts.update(noise_std=std, distance=distance)
        return change.like(self._covered(change, lambda v: add_gaussian(v, std, turn.noise())))

    def claim(self, federation: Terms, facts: Sequence[Mapping[str, float]] = ()) -> Promises:
        """None for a measured distance, and what holds instead; global DP's for a public constant."""
        if self.noise_multiplier == 0:
            return NoClaim("no noise is added (noise multiplier 0)", "set noise_multiplier above 0")
        problem = unbounded(self, federation)
        if self.distance != "measured":
            return problem or client_level(self.distance / self.noise_multiplier, self, federation)
        where = "before clipping, so that one client can make it as large as it likes"
        if self.reading == "sound":
            where = f"after clipping (at most {self.most(federation.wire):.3g})"
        reason = (
            "the noise is divided by a distance measured on the very clients it protects, "
            f"{where}: it shrinks when one of them stands out, and its size tells so"
        )
        return NoClaim(f"{reason}; besides, {problem.reason}" if problem else reason, self._instead(federation, facts))

    def most(self, layout: Layout) -> float:
        """The largest distance two clipped updates can have: 2 C / sqrt(L).

        With a_l the norm of layer l of the difference, d = sum a_l / L <= sqrt(sum a_l^2 / L) (Cauchy and Schwarz),
        and sqrt(sum a_l^2) <= 2 C for two vectors of norm at most C.
        """
        return 2 * self.clip / math.sqrt(max(len(self._compared(layout).entries), 1))

    def _instead(self, federation: Terms, facts: Sequence[Mapping[str, float]]) -> str:
        """Per-round metric privacy in its Gaussian form, and global DP's figure for the same z."""
        z, n, rounds = self.noise_multiplier, federation.expected(), federation.rounds
        measured = [f["distance"] for f in facts if "distance" in f]
        form = (
            "metric privacy of one round in its Gaussian form, given the noise's size s: two inputs whose published "
            "values lie x apart (L2) are told apart with mu = x / s"
        )
        if measured:
            low, high = min(measured), max(measured)
            sizes = [metric_std(z, self.clip, n, d) for d in (high, low)]
            # Exchanging one clipped update for another moves an even mean by at most 2 C / n.
            form += (
                f"; d was {low:.3g} to {high:.3g} over {len(measured)} rounds, s {sizes[0]:.3g} to {sizes[1]:.3g}: "
                f"a pair at x = 1 had mu up to {1 / sizes[0]:.4g}, clients exchanged in an even mean up to "
                f"{2 * high / z:.4g}"
            )
        else:
            form += f", s = {metric_std(z, self.clip, n, 1.0):.3g} / d"
        plain = gdp_epsilon(math.sqrt(rounds) / z, DELTA)
        return (
            f"{form}. Global DP with the same z = {z:g} and even weights would promise epsilon = {plain:,.0f} "
            f"(delta = {DELTA:g}, {rounds} round{'s' if rounds > 1 else ''}), and adds d times as much noise"
        )

    def _measure(self, updates: Sequence[Update], turn: Turn) -> None:
        if len(updates) < 2:
            return
        layout = self._compared(updates[0].delta.layout)
        rows = [update.delta.vector for update in updates]
        distance = spread(rows, layout)
        longest = max(float(row[: layout.size].norm()) for row in rows)
        if distance <= ROUNDING * longest / len(layout.entries):
            raise ClientLost(
                f"all {len(updates)} clients sent the same update: their distance d is 0, and the noise z C / (n d) "
                "has no finite size",
                f"round {turn.round}; nothing was published",
                "give the clients data of their own, use global-dp, or a public constant: distance = 1.5",
            )
        turn.memory["distance"] = distance

    def _compared(self, layout: Layout) -> Layout:
        """The arrays that count as layers (parameters lie before buffers, so slices agree)."""
        if self.buffers == "covered":
            return layout
        return Layout(tuple(entry for entry in layout.entries if not entry.buffer))
