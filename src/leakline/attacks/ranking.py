"""Which attack is the strongest: one visible table, by seat and by what is asked, from the strongest down.

``attacks = "strongest"`` in a study takes, for each seat that it names and each question of that seat, the first row
that applies and fits into the time that is left. A row says why it stands where it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from leakline.leakage.guessing import FEWEST_TO_TELL
from leakline.privacy import Seat


@dataclass(frozen=True)
class Ranked:
    """An attack of the menu with settings, for one seat and question; ``why`` it comes before those below it."""

    seat: Seat
    question: str
    use: str
    why: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)


RECORD, IMAGES, MIX = "was this record trained on?", "what do the images show?", "what is the client's case mix?"
SITE, PROMISE, RUN = "did this client take part?", "does the mechanism keep its promise?", "did the whole run keep it?"

FEW = "for clients with few records: the same rules, wider intervals"

RANKING: tuple[Ranked, ...] = (
    Ranked(Seat.SERVER, PROMISE, "audit", "costs no training, and a broken promise makes all else idle"),
    Ranked(Seat.SERVER, RECORD, "membership-inference", "what each client sent, in every round", {"on": "updates"}),
    Ranked(Seat.SERVER, RECORD, "membership-inference", FEW, {"on": "updates", "records": 100}),
    Ranked(Seat.SERVER, IMAGES, "gradient-inversion", "all its restarts and iterations"),
    Ranked(Seat.SERVER, IMAGES, "gradient-inversion", "one restart, in that share of the time", {"restarts": 1}),
    Ranked(Seat.SERVER, MIX, "label-inference", "calibrated by simulated clients of the server's own"),
    Ranked(Seat.MALICIOUS_SERVER, IMAGES, "imprint", "reads images off a layer of its own"),
    Ranked(Seat.CLIENT, SITE, "client-inference", "all its pairs of worlds, every score"),
    Ranked(
        Seat.CLIENT, SITE, "client-inference", "the fewest pairs that tell an attack from chance",
        {"worlds": FEWEST_TO_TELL},
    ),
    Ranked(Seat.CLIENT, RECORD, "membership-inference", "every published model", {"on": "models"}),
    Ranked(Seat.CLIENT, RECORD, "membership-inference", FEW, {"on": "models", "records": 100}),
    Ranked(Seat.CLIENT, RUN, "in-run-audit", "canaries inside a whole training run, all rounds together"),
    Ranked(Seat.PUBLIC, RECORD, "membership-inference", "shadow federations calibrate each record", {"on": "model"}),
    Ranked(Seat.PUBLIC, RECORD, "membership-inference", FEW, {"on": "model", "records": 100}),
    Ranked(Seat.PUBLIC, RECORD, "loss-threshold", "needs nothing but the model: weaker, and free"),
)  # fmt: skip
