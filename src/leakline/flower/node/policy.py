"""What a node asks for before it trains: promises, defences by name, the model that was agreed on.

It is asked of every training run by itself. Several runs over the same data add up, and nobody here counts them.
It binds leakline's own app. Code of somebody else's that reaches the node need not ask: who may submit to the SuperLink
is another lock (docs/deployment.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from leakline.defences import MENU, Defence
from leakline.errors import LeaklineError
from leakline.federation import Federation
from leakline.messages import Order
from leakline.privacy import Claim, NoClaim, Seat, Unit, account, group, replace_one
from leakline.stack import Stack
from leakline.weights import Weights

SIZES = (Unit.RECORD, Unit.PATIENT, Unit.CLIENT)
"""Units of which each is made of those before it; parts and reports of a client are none of them."""
SEATS = {
    "server": (Seat.SERVER, Seat.MALICIOUS_SERVER),
    "client": (Seat.SERVER, Seat.MALICIOUS_SERVER, Seat.CLIENT),
    "public": (Seat.SERVER, Seat.MALICIOUS_SERVER, Seat.CLIENT, Seat.PUBLIC),
}
"""Whose promises hold against an observer: who sees more is kept to no more."""
WHO = {"server": "the server", "client": "participants", "public": "the public"}


@dataclass(frozen=True)
class Policy:
    """What a node asks for.

    ``epsilon``: at most so much for one ``unit`` against ``against``, at ``delta``, by the end of a run (0: no promise
    is asked for). ``defences``: names of the menu that must be in the study's stack. ``own``: defences that this node
    adds by itself, such as `pinned-model`; they look at what arrives, and change nothing that leaves.
    """

    epsilon: float = 0.0
    delta: float = 1e-5
    unit: Literal["record", "patient", "client"] = "patient"
    against: Literal["server", "client", "public"] = "server"
    defences: tuple[str, ...] = ()
    own: tuple[Defence, ...] = ()

    def __post_init__(self) -> None:
        if not (0 <= self.epsilon < math.inf and 0 < self.delta < 1):
            raise ValueError(f"epsilon is 0 or more and delta between 0 and 1: {self.epsilon}, {self.delta}")
        if unknown := [name for name in self.defences if name not in MENU]:
            raise ValueError(f"there is no defence {unknown[0]!r}: `leakline list defences` shows them")
        if not Stack(self.own).hooks <= {"accept"}:
            raise ValueError(
                f"a node's own defence may look at what arrives and no more, as pinned-model: {self.own[0]}"
            )

    def __str__(self) -> str:
        asked = [f"the defence {name}" for name in self.defences]
        if self.epsilon:
            asked.insert(0, self._promise)
        asked += [str(Stack(self.own))] if self.own else []
        return ", ".join(asked) or "nothing"

    @property
    def _promise(self) -> str:
        return f"at most epsilon {self.epsilon:g} (delta {self.delta:g}) for a {self.unit} against {WHO[self.against]}"

    def objection(self, federation: Federation) -> str:
        """Why this node does not train in such a federation, in one line; "" if it does."""
        return next(self._objections(federation), "")

    def _objections(self, federation: Federation) -> Iterator[str]:
        for name in self.defences:
            if MENU[name] not in federation.stack.kinds:
                yield f"its policy asks for the defence {name}, and the study is without it"
        try:  # as if a round began: any after the first, whose weights only the server knows
            stack, order = Stack(self.own), Order("", 1, Weights.zeros(federation.wire), {})
            stack.accept(order, stack.turns(1, "", {}, seed=0, secret=True))
        except LeaklineError as error:
            yield f"its policy: {error.what}"
        if self.epsilon and (least := self.promised(federation)) > self.epsilon:
            yield f"its policy asks for {self._promise}, and the study promises {self._instead(federation, least)}"

    def promised(self, federation: Federation) -> float:
        """The least epsilon that one unit of this node's is promised against the observer; infinite where none is."""
        if federation.noise == "seeded":
            return math.inf
        claims = [self._for_unit(claim, federation) for claim in _claims(federation).values()]
        return min((account(claim, self.delta).epsilon for claim in claims if claim is not None), default=math.inf)

    def _for_unit(self, claim: Claim | NoClaim, federation: Federation) -> Claim | None:
        """A promise as one of the node's own units may read it; None where it says nothing of them."""
        if isinstance(claim, NoClaim) or claim.unit not in SIZES or claim.observer not in SEATS[self.against]:
            return None
        have, want = SIZES.index(claim.unit), SIZES.index(Unit(self.unit))
        if have > want:  # a part of a client is another at a client that is otherwise the same: exchanged, not removed
            return replace_one(claim)
        if have < want:
            most = federation.task.most_records if want == SIZES.index(Unit.PATIENT) else None
            return None if most is None else group(claim, most, Unit.PATIENT)
        return claim

    def _instead(self, federation: Federation, least: float) -> str:
        if least < math.inf:
            return f"{least:.3g}"
        if federation.noise == "seeded":
            return "none: its noise is seeded"
        reasons = [claim.reason for claim in _claims(federation).values() if isinstance(claim, NoClaim)]
        return f"none: {reasons[0]}" if reasons else f"none for a {self.unit} against {WHO[self.against]}"

    def watching(self, federation: Federation) -> Federation:
        """The federation at this node, which looks at every model that it is sent."""
        return replace(federation, defences=(*federation.defences, *self.own)) if self.own else federation


def _claims(federation: Federation) -> dict[str, Claim | NoClaim]:
    """What is promised by what is really done: nobody runs a protocol where a study assumes secure aggregation."""
    return federation.granted.but(secure_aggregation="none", min_clients=federation.cohort.quorum).claims()
