"""The shape of every attack: an examiner who sets challenges, and an attacker who never sees the secrets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from leakline.privacy import Seat
from leakline.readings import Reading

if TYPE_CHECKING:
    from leakline.study.lab import Lab


@dataclass(frozen=True)
class Challenge:
    """One question: what the attacker sees, what it is told besides, and the answer that only the examiner knows."""

    view: Any
    hints: Any
    secret: Any


class Attack(Protocol):
    """A frozen dataclass; its fields are its configuration.

    `challenges` is the examiner's half and may use everything. `guess` is the attacker's half: its signature has no
    way to the secret, the lab or the clients' traits. `measure` compares the two.

    Optional, and asked before anything is trained: ``check(federation)`` raises what cannot work;
    ``wants(federation)`` says which updates to keep; ``trains(federation)`` says how many rounds of local training
    the attack asks for beyond the cell's own, by what is trained (cells of one scenario and seed share a name's work).
    ``passes(federation)`` says how many examples' training steps its searches cost at most.
    ``guesses(asked, workers)`` answers all questions, pairs of view and hints, at once, for attacks that can work on
    several side by side.
    """

    seat: ClassVar[Seat]

    def challenges(self, lab: Lab) -> Iterator[Challenge]:
        """Set the questions."""
        ...

    def guess(self, view: Any, hints: Any) -> Any:
        """Answer one question from what the seat can see."""
        ...

    def measure(self, guesses: Sequence[Any], secrets: Sequence[Any]) -> list[Reading]:
        """How well the guesses do, with intervals and the chance level."""
        ...
