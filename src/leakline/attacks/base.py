"""The shape of every attack: an examiner who sets challenges, and an attacker who never sees the secrets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from torch import Tensor

from leakline.federation import Federation, Transport, keep_none
from leakline.measures import Measure
from leakline.messages import Keep, Memory, Round, Update
from leakline.privacy import Seat
from leakline.randomness import Stream
from leakline.readings import Reading
from leakline.weights import Weights


@dataclass(frozen=True)
class Challenge:
    """One question: what the attacker sees, what it is told besides, and the answer that only the examiner knows."""

    view: Any
    hints: Any
    secret: Any


@dataclass(frozen=True)
class Artefact:
    """What an attack leaves to look at, of one client in one round; the lab writes it down.

    ``arrays`` become ``NAME.npy``; ``pictures`` (images [C, H, W] in [0, 1]) become ``NAME.png``; ``lists``, which say
    what they show, become ``NAME.json``. ``lists["media"]`` is what a report's gallery reads. Pictures may show what
    clients hold, so reports can be made without them.
    """

    client: str
    round: int
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    pictures: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    lists: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Effort:
    """How much work an attack is given, beside how much it is known to need: what its failure is worth.

    ``needed`` is what it was shown to work with, where that was shown; ``of`` says what is counted (iterations, shadow
    federations).
    """

    given: float
    needed: float
    of: str

    @property
    def about(self) -> dict[str, str | float]:
        """As readings carry it."""
        return {"effort": float(self.given), "needs": float(self.needed), "work": self.of}


@dataclass(frozen=True)
class Sample:
    """A piece of an attack's work that can be done for its time alone, and the ``share`` of such work that it is.

    ``besides``: of what the attack computes beside what `trains` and `passes` count; else of all that it does.
    """

    do: Callable[[int], object]
    """Does it, with so many workers (0: as many as there are cores)."""
    share: float
    besides: bool = False


class Says(Protocol):
    """Called with a line about how far an attack has come, and perhaps with the share that is done of what was counted.

    That is its search, or the training that it does itself.
    """

    def __call__(self, line: str, share: float | None = None) -> None:
        """Say it."""
        ...


class Look(Protocol):
    """Writes down what is to be known of a federation while it is trained: a frozen dataclass, which is its key."""

    def keep(self, index: int, client: str) -> bool:
        """Which updates it needs to see."""
        ...

    def __call__(self, federation: Federation, rounds: Iterable[Round]) -> dict[str, np.ndarray]:
        """Arrays by name, from the rounds as they end."""
        ...


class Lab(Protocol):
    """The examiner's powers over one federation that has been run."""

    @property
    def federation(self) -> Federation:
        """What was run."""
        ...

    @property
    def workers(self) -> int:
        """How many processes may be used; 0: as many as there are cores."""
        ...

    @property
    def says(self) -> Says:
        """Called with a line about how far an attack has come."""
        ...

    def stream(self, purpose: str) -> Stream:
        """The examiner's own randomness."""
        ...

    def final_weights(self) -> Weights:
        """The last published model."""
        ...

    def memories(self) -> dict[str, Memory]:
        """A copy of what the clients kept for themselves when the run ended."""
        ...

    def cohorts(self) -> list[tuple[str, ...]]:
        """Who took part, round by round."""
        ...

    def kept(self, index: int) -> tuple[Weights, list[Update]] | None:
        """The weights sent in a round and the updates that `Attack.wants` asked to be kept; None if none were."""
        ...

    def probe(
        self,
        weights: Weights,
        number: int,
        *,
        federation: Federation | None = None,
        clients: Sequence[str] = (),
        memories: dict[str, Memory] | None = None,
    ) -> tuple[Update, ...]:
        """One exchange beyond the run: send chosen weights to clients, and get what crosses the wire.

        ``number`` counts the probes of an attack, so that each has its own randomness. ``federation`` stands in for
        the lab's own where clients should use other data or another plan; ``memories`` (default: a copy of what they
        had at the end of the run) is changed as a round would change it.
        """
        ...

    def variant(self, federation: Federation, keep: Keep = keep_none) -> Lab:
        """Another federation's lab, trained if that has not been done yet; what ``keep`` asks for is kept."""
        ...

    def variants(self, federations: Sequence[Federation], keep: Keep = keep_none) -> Sequence[Lab]:
        """The lab of each of several other federations: `variant`, trained side by side."""
        ...

    def watched(self, federations: Sequence[Federation], look: Look) -> list[dict[str, np.ndarray]]:
        """What ``look`` writes down of each federation, trained side by side where that has not been done yet.

        Nothing else is kept of them: neither models nor updates.
        """
        ...

    def place(self, federation: Federation, told: Mapping[str, Any]) -> AbstractContextManager[Transport]:
        """Where the clients of a federation with something of the examiner's in it are: where the lab's own are.

        ``told``: plain values by which somebody who has the lab's federation can make this one of it.
        """
        ...

    def media(self) -> Path:
        """The folder that an attack's artefacts are written to."""
        ...

    def notes(self, *parts: str) -> Path:
        """A folder of the attack's own for what it may need again when it is stopped and goes on."""
        ...


class Attack(ABC):
    """Asks of a federation what leaks.

    A subclass is a frozen dataclass; its fields are its configuration. `challenges` is the examiner's half and may use
    everything. `guess` is the attacker's half: its signature has no way to the secret, the lab or the clients' traits.
    `measure` compares the two. The other hooks have answers that fit most attacks.
    """

    seat: ClassVar[Seat]
    """Where the attacker sits."""

    measures: ClassVar[tuple[Measure, ...]] = ()
    """What it measures beyond `leakline.measures.MEASURES`; reports know such a measure by this description alone."""

    def check(self, federation: Federation) -> None:
        """Raise, before anything is trained, what cannot work with this federation."""
        return

    def remarks(self, federation: Federation) -> Sequence[str]:
        """What to know before anything is trained though it would work: `leakline check` prints it."""
        return ()

    def inside(self, federation: Federation, nodes: bool) -> bool:
        """Whether it trains a run of its own in the place where the study trains.

        ``nodes``: that place is other people's machines, not a simulation of them.
        """
        return False

    def wants(self, federation: Federation) -> Keep:
        """Which updates the run must keep for this attack."""
        return keep_none

    def trains(self, federation: Federation) -> dict[str, float]:
        """Rounds of local training beyond the cell's own, by what is trained (cells that share a name share it)."""
        return {}

    def passes(self, federation: Federation) -> float:
        """How many examples' training steps its searches cost at most."""
        return 0.0

    def passes_by(self, federation: Federation) -> Mapping[int, float]:
        """Of `passes`, how many are made in steps of so many examples; none: in batches of the clients' own size."""
        return {}

    def usual(self, federation: Federation) -> float:
        """The share of `passes` after which its searches are expected to have found all that they will."""
        return 0.5

    def samples(self, federation: Federation) -> Sequence[Sample]:
        """A piece of each kind of work for which neither `trains` nor `passes` says how long it takes here."""
        return ()

    def effort(self, federation: Federation) -> Effort | None:
        """How much work it is given beside how much it needs; None where strength is no matter of work.

        The number of trials is no effort: intervals count it.
        """
        return None

    @abstractmethod
    def challenges(self, lab: Lab) -> Iterator[Challenge]:
        """Set the questions."""

    @abstractmethod
    def guess(self, view: Any, hints: Any) -> Any:
        """Answer one question from what the seat can see."""

    def guesses(self, asked: Iterable[tuple[Any, Any]], workers: int) -> list[Any]:
        """Answer all questions, pairs of view and hints: one after another, unless several can be worked on at once."""
        return [self.guess(view, hints) for view, hints in asked]

    @abstractmethod
    def measure(self, guesses: Sequence[Any], secrets: Sequence[Any]) -> Sequence[Reading | Artefact]:
        """How well the guesses do, with intervals and chance levels; and what there is to look at."""
