"""A recorder of rounds as leakline has them: those asked for, of the clients asked for, up to a size."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leakline.bench.training import Plan
from leakline.messages import Round
from leakline.recordings.format import PLAN, RESULT, SENT, file_name
from leakline.recordings.writing import Seat, add_round, begin, packed
from leakline.weights import Layout, Weights


@dataclass
class Recorder:
    """Writes rounds as they end: those asked for, of the clients asked for, until ``most_mb`` megabytes are full.

    ``rounds`` and ``clients``: None for all. A round is kept whole or not at all; every round has its line. ``run``
    is the engine's name for the run: a directory holds one run, and going on with the same one is allowed.
    ``claimed``: what the engine's own objects say about clip and noise (fields of `Claimed`).
    """

    to: Path
    rounds: frozenset[int] | None = None
    clients: frozenset[str] | None = None
    most_mb: float = 1024.0
    plan: Mapping[str, Any] = field(default_factory=dict)
    engine: str = "leakline"
    seat: Seat = "server"
    run: str = ""
    claimed: Mapping[str, Any] = field(default_factory=dict)
    held: int | None = field(default=None, init=False)
    """Bytes that are kept, once somebody has looked."""
    full: bool = field(default=False, init=False)
    """Whether a round was left out for its size."""

    def __post_init__(self) -> None:
        if not self.most_mb > 0:
            raise ValueError(f"most_mb must be positive: {self.most_mb}")
        for key in self.plan:
            if key not in PLAN:
                raise ValueError(f"a plan has no {key!r}; it may say: {', '.join(PLAN)}")
        Plan(**self.plan)

    def wants(self, index: int, client: str) -> bool:
        """Whether this client's update in this round is asked for."""
        return (self.rounds is None or index in self.rounds) and (self.clients is None or client in self.clients)

    def open(self, layout: Layout, left_out: Iterable[str] = ()) -> None:
        """Begin a recording, or go on with one of the same run."""
        asked = {
            "rounds": None if self.rounds is None else sorted(self.rounds),
            "clients": None if self.clients is None else sorted(self.clients),
            "most_mb": self.most_mb,
        }
        begin(
            self.to, _entries(layout), self.run, engine=self.engine, seat=self.seat, left_out=list(left_out),
            plan=dict(self.plan), claimed=dict(self.claimed), asked=asked,
        )  # fmt: skip

    def write(self, round_: Round, *, result: bool = True) -> None:
        """Write a round: its files, then its line. ``result``: whether this seat sees what came of it."""
        kept = [u for u in round_.updates if self.wants(round_.index, u.client)]
        for u in kept:
            file_name(u.client, u.part)  # a name that cannot be a file is refused before anything is written
        need = 4 * round_.sent.layout.size * (len(kept) + 1 + result)
        if self.held is None:
            self.held = sum(path.stat().st_size for path in (self.to / "kept").rglob("*.safetensors"))
        why = self._too_much(need, round_.index)
        if why:
            kept = []

        def files() -> Iterator[tuple[str, bytes]]:
            yield SENT, _weights(round_.sent)
            for u in kept:
                about = {"examples": str(u.examples), "steps": str(u.steps), "part": str(u.part), "client": u.client}
                yield file_name(u.client, u.part), packed("delta", u.delta.vector.numpy(), about)
            if result:
                yield RESULT, _weights(round_.result)

        line = {
            "cohort": list(round_.cohort),
            "dropped": [[d.client, d.reason] for d in round_.dropped],
            "facts": dict(round_.facts),
            "metrics": dict(round_.metrics),
            "clients": [
                {"client": u.client, "part": u.part, "examples": u.examples, "metrics": dict(u.metrics)}
                for u in round_.updates
            ],
        }
        folder = add_round(self.to, round_.index, line, files() if kept else (), why)
        self.held += sum(path.stat().st_size for path in folder.glob("*.safetensors")) if kept else 0

    def _too_much(self, need: int, index: int) -> str:
        """Why a round of so many bytes is not kept, said aloud for the first one; "" if it fits."""
        held = (self.held or 0) / 2**20
        if held + need / 2**20 <= self.most_mb:
            return ""
        why = f"more than {self.most_mb:g} MB"
        if not self.full:
            self.full = True
            logging.getLogger("leakline").warning(
                "round %s is not kept, only its figures: it needs %.4g MB, and %.4g of most_mb=%g are held; "
                "set most_mb higher, or ask for fewer rounds or clients",
                index, need / 2**20, held, self.most_mb,
            )  # fmt: skip
        return why


def _entries(layout: Layout) -> list[list[Any]]:
    return [[e.name, list(e.shape), e.buffer] for e in layout.entries]


def _weights(weights: Weights) -> bytes:
    return packed("weights", weights.vector.numpy(), {"layout": json.dumps(_entries(weights.layout))})
