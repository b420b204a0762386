"""Clients split into sub-clients, so that the same noise is shared by more of them (paper 004)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np
import torch

from leakline.defences.base import Promises, Reach, Stage, Terms
from leakline.defences.global_dp import GlobalDP, client_level, unbounded
from leakline.errors import StackError
from leakline.mechanisms import (
    add_gaussian,
    client_mu,
    clip_norm,
    code_parts,
    cosine_spread,
    deal,
    intermediary_ratio,
    median_bound,
    paper_parts,
    public_parts,
    shown_values,
)
from leakline.messages import Order, Receipt, Turn, Update
from leakline.privacy import NoClaim, Unit
from leakline.privacy.gdp import gdp_epsilon
from leakline.weights import Weights

DELTA = 1e-5
"""The delta at which figures beside a `NoClaim` are printed: it has none of its own."""
PARTS = "parts"
"""The note that tells clients v."""
FIGURES = "figures of a round from values before noise: noise_level, diversity, ratio, cosine_spread"
RULES = ("public", "paper", "code")


@dataclass(frozen=True)
class Intermediaries(GlobalDP):
    """Global DP over sub-clients: each client's images are dealt into v parts that train and are clipped apart.

    mean over all sub-clients + N(0, (z C / (N v))^2 I)        z = noise_multiplier, C = clip, N = clients

    The noise on the mean falls by v, and so does what a *client* is promised: removing a hospital removes v updates
    of length C, so mu = v / z per round for a client and 1 / z for a sub-client. The paper prints the second as if
    it were the first. At equal promises per client (noise multiplier z v) nothing of the gain is left but other
    clipping and more local drift. Both promises are made here, each under its own name.

    ``parts``: a number; "public", v = sqrt(z sqrt(d) / N) from public numbers only; "paper" or "code", re-estimated
    every round from the lengths of updates before noise, beginning with ``start``: these void both promises. v stays
    between 1 and ``most``, and every sub-client gets ``smallest`` images or more: a client that holds too few makes
    fewer parts.
    ``bound = "median"`` clips at the median of the raw norms, at most ``clip`` (25 in the released code), which voids
    the promises too and holds all updates of a round in memory at once.

    Images are dealt once for each v, not anew every round: were they, one sub-client's images would reach all parts
    of its client in later rounds, and the promise for it would not compose over rounds. A patient's images may fall
    into several parts. Departs from the released code in that all images are dealt (it drops what does not divide),
    local optimisers start fresh (it averages their states), and round 0 counts (it is a dry run there).

    Facts of a round: parts (v asked for), sub_clients, noise_std, clip, and from values before noise noise_level,
    diversity, ratio (xi, phi, lambda of `leakline.mechanisms.intermediaries`), cosine_spread.
    """

    at: Stage = field(init=False, default="aggregate")
    parts: int | Literal["public", "paper", "code"] = "public"
    start: int = 1
    smallest: int = 2
    most: int = 32
    bound: Literal["fixed", "median"] = "fixed"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.parts, bool) or (isinstance(self.parts, str) and self.parts not in RULES):
            raise ValueError(f'parts must be a number, "public", "paper" or "code": {self.parts!r}')
        if isinstance(self.parts, int) and self.parts < 1:
            raise ValueError(f"parts must be at least 1: {self.parts}")
        for name in ("start", "smallest", "most"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1: {getattr(self, name)}")
        if self.start > self.most:
            raise ValueError(f"start must not exceed most: {self.start} > {self.most}")
        if self.bound not in ("fixed", "median"):
            raise ValueError(f'bound must be "fixed" or "median": {self.bound!r}')

    def stated(self, clients: float) -> Mapping[str, float]:
        """Nothing: its noise is for sub-clients, and a client counts for several."""
        return {}

    def check(self, federation: Terms) -> None:
        """Refuse more parts than a client has images for."""
        parts = self._first(federation.expected(), federation.wire.size)
        least = min(federation.task.clients, key=lambda c: len(c.train))
        if parts * self.smallest > len(least.train):
            rule = "" if isinstance(self.parts, int) else f' (parts = "{self.parts}")'
            at_most = max(1, len(least.train) // self.smallest)
            raise StackError(
                f"{parts} parts{rule} of at least {self.smallest} images each: too many for a client with "
                f"{len(least.train)}",
                f"intermediaries, client {least.name}",
                f"parts = {at_most} or fewer"
                if isinstance(self.parts, int)
                else f"set {'most' if self.parts == 'public' else 'start'} to {at_most} or less",
            )

    def settled(self, federation: Terms) -> Intermediaries:
        """With the number that the public rule comes to."""
        if self.parts != "public":
            return self
        return replace(self, parts=self._first(federation.expected(), federation.wire.size))

    def _first(self, clients: float, values: int) -> int:
        """How many parts the first round has; under a fixed number or the public rule, all rounds."""
        if isinstance(self.parts, int):
            return self.parts
        if self.parts == "public":
            return min(public_parts(self.noise_multiplier, values, clients), self.most)
        return self.start

    @property
    def reach(self) -> Reach:
        """Clients send several updates."""
        return "all"

    def divisor(self, turn: Turn) -> float:
        """So many sub-clients has a round on average."""
        return turn.expected * self._asked(turn)

    def _asked(self, turn: Turn) -> int:
        """How many parts this round has."""
        return int(turn.memory.get("parts", self._first(turn.expected, turn.values)))

    def brief(self, notes: dict[str, float], turn: Turn) -> dict[str, float]:
        """Tell the clients v."""
        return {**notes, PARTS: float(self._asked(turn))}

    @property
    def steady(self) -> bool:
        """Whether v stays as it is."""
        return self.parts not in ("paper", "code")

    def sends(self, notes: Mapping[str, float]) -> int:
        """As many as the clients are told to make parts."""
        return int(notes.get(PARTS, 1))

    def split(self, examples: int, order: Order, turn: Turn) -> list[np.ndarray] | None:
        """The rows of each part, the same in every round with this many parts."""
        parts = max(1, min(self.sends(order.notes), examples // self.smallest))
        if parts == 1:
            return None
        return deal(examples, parts, replace(turn, round=-1).stream(f"split/{parts}").numpy())

    def admit(self, updates: Iterator[Update], turn: Turn) -> Iterator[Update]:
        """Clip each sub-client's update, and take down what the rules and figures need."""
        bound, arriving = self.clip, updates
        if self.bound == "median":
            held = deque(updates)
            bound = median_bound([self.norm(u.delta) for u in held], self.clip) if held else self.clip
            arriving = (held.popleft() for _ in range(len(held)))
        turn.memory["clip"] = bound
        norms, rows = 0.0, []
        for update in arriving:
            norm = self.norm(update.delta)
            # What dp2-rmsprop has divided is long beyond comparison: the released code then counts clipped lengths.
            norms += min(norm, bound) if turn.facts.get("preconditioned") else norm
            clipped = self._covered(update.delta, partial(clip_norm, bound=bound, norm=norm))
            rows.append(clipped[shown_values(len(clipped))])
            yield update.with_delta(clipped)
        if rows:
            turn.memory |= {"norms": norms, "rows": torch.stack(rows)}

    def publish(self, change: Weights, cohort: Sequence[Receipt], turn: Turn) -> Weights:
        """Noise the mean over sub-clients, and choose the next v."""
        parts, n = self._asked(turn), self.divided(cohort, turn)
        bound = float(turn.memory.pop("clip", self.clip))  # nobody may have been sampled: then `admit` never ran
        norms, rows = turn.memory.pop("norms", 0.0), turn.memory.pop("rows", None)
        std = self.noise_multiplier * bound / n
        noised = change.like(self._covered(change, lambda v: add_gaussian(v, std, turn.noise())))
        turn.facts.update(noise_std=std, clip=bound, parts=float(parts), sub_clients=float(len(cohort)))

        noise, length = self.norm(noised.like(noised.vector - change.vector)), self.norm(change)
        if length > 0 and rows is not None:
            shown = change.vector[shown_values(change.layout.size)]
            turn.facts.update(
                noise_level=noise / length, diversity=norms / length, cosine_spread=cosine_spread(rows, shown)
            )
        if norms > 0:
            ratio = turn.facts["ratio"] = intermediary_ratio(noise, norms)
            if self.parts in ("paper", "code"):
                turn.memory["parts"] = self._next(parts, ratio, cohort)
        return noised

    def _next(self, parts: int, ratio: float, cohort: Iterable[Receipt]) -> int:
        held: dict[str, int] = {}
        for receipt in cohort:
            held[receipt.client] = held.get(receipt.client, 0) + receipt.examples
        rule = paper_parts if self.parts == "paper" else code_parts
        return max(1, min(rule(parts, len(held), ratio), self.most, min(held.values()) // self.smallest))

    def claim(self, federation: Terms, facts: Sequence[Mapping[str, float]] = ()) -> Promises:
        """Two promises, for a client and for a sub-client; none where v or C is taken from un-noised updates."""
        if self.noise_multiplier == 0:
            return NoClaim("no noise is added (noise multiplier 0)", "set noise_multiplier above 0")
        if problem := unbounded(self, federation):
            return problem
        leaks = []
        if self.parts in ("paper", "code"):
            leaks.append("the number of parts is chosen from the lengths of updates before any noise")
        if self.bound == "median":
            leaks.append("the clip bound is the un-noised median of the updates' lengths")
        if leaks:
            return NoClaim("; ".join(leaks), self._instead(federation, facts))
        parts, z = self._first(federation.expected(), federation.wire.size), self.noise_multiplier
        whole = f"a client sends up to {parts} updates, each of length C: {parts} times what a sub-client may tell"
        deal = f"images are dealt once into {parts} parts, and one part is the unit: the client has its own promise"
        return (
            client_level(parts / z, self, federation, Unit.CLIENT, [whole], [FIGURES]),
            client_level(1 / z, self, federation, Unit.SUB_CLIENT, [deal], [FIGURES]),
        )

    def _instead(self, federation: Terms, facts: Sequence[Mapping[str, float]]) -> str:
        """What would be promised for each unit if v and C had been public."""
        z, rounds = self.noise_multiplier, federation.rounds
        seen = [f["parts"] for f in facts if "parts" in f]
        if not seen and self.parts not in ("paper", "code"):
            seen = [float(self._first(federation.expected(), federation.wire.size))] * rounds
        one = client_mu([1.0] * (len(seen) or rounds), z)
        text = f"had they been public: per sub-client mu = {one:.4g} (epsilon {gdp_epsilon(one, DELTA):,.4g})"
        if not seen:
            return f"{text}, per client v times that mu (delta = {DELTA:g}, {rounds} rounds)"
        mu, low, high = client_mu(seen, z), min(seen), max(seen)
        span = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        return (
            f"{text}, per client mu = {mu:.4g} (epsilon {gdp_epsilon(mu, DELTA):,.4g}), with v {span} over "
            f"{len(seen)} rounds (delta = {DELTA:g})"
        )
