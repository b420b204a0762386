"""The lab: an examiner's powers over what was run, and how an attack meets it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from leakline.attacks import base
from leakline.attacks.base import Artefact, Attack, Says
from leakline.errors import ClientLost, LeaklineError, StackError
from leakline.federation import Federation, Transport, federate, keep_none
from leakline.measures import measure_of, own_measures
from leakline.messages import Dropped, Keep, Memory, Order, Update
from leakline.randomness import Stream
from leakline.readings import Reading
from leakline.runtimes.client import reason_of
from leakline.runtimes.forks import FORKABLE, Tells, side_by_side
from leakline.runtimes.local import LocalTransport
from leakline.runtimes.machine import cores
from leakline.study import artefacts
from leakline.study.counted import Counted
from leakline.study.describe import describe, description, key_of
from leakline.study.first_round import FirstRound
from leakline.study.store import Run, Store
from leakline.study.train import Progress, silent, train_run
from leakline.study.watched import watched
from leakline.weights import Weights

Places = Callable[[Federation, Mapping[str, Any]], AbstractContextManager[Transport]]
"""Opens the place of a federation that an examiner changed, given what its clients must be told to make it."""


def unsaid(line: str, share: float | None = None) -> None:
    """Nobody listens."""


@dataclass(frozen=True)
class Lab:
    """`leakline.attacks.Lab` over a store; ``attack`` is the name under which an attack's own files stand."""

    federation: Federation
    store: Store
    run: Run
    workers: int = 0
    says: Says = unsaid
    attack: str = "unnamed"
    counted: Counted | None = None
    """Who counts the work, where somebody does."""
    places: Places | None = None
    """Where federations with something of an examiner's in them are trained; by default here."""

    def stream(self, purpose: str) -> Stream:
        """The examiner's own randomness."""
        return Stream(self.federation.seed, -2, "examiner", purpose)

    def final_weights(self) -> Weights:
        """The last published model."""
        return self.run.final_weights()

    def memories(self) -> dict[str, Memory]:
        """A copy of what the clients kept for themselves when the run ended."""
        loaded = self.run.load()
        return {} if loaded is None else loaded[1]

    def cohorts(self) -> list[tuple[str, ...]]:
        """Who took part, round by round."""
        return [tuple(record["cohort"]) for record in self.run.rounds()]

    def kept(self, index: int) -> tuple[Weights, list[Update]] | None:
        """The weights sent in a round and the updates that were kept of it; None if none were."""
        return self.run.kept.of(index, self.federation.wire)

    def place(self, federation: Federation, told: Mapping[str, Any]) -> AbstractContextManager[Transport]:
        """Where the clients of a federation with something of the examiner's in it are."""
        return LocalTransport(federation, self.workers) if self.places is None else self.places(federation, told)

    def media(self) -> Path:
        """The folder that the attack's artefacts are written to."""
        return self.run.media(self.attack)

    def notes(self, *parts: str) -> Path:
        """A folder of the attack's own for what it may need again when it is stopped and goes on."""
        return self.run.notes(self.attack).joinpath(*parts)

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
        had at the end of the run) is changed as a round would change it; clients are briefed as the round after the
        last would have briefed them. Nothing is written to the store.
        """
        world = self.federation if federation is None else federation
        kept = self.memories() if memories is None else memories
        index = self.federation.rounds + number
        names = clients or [c.name for c in world.task.clients]
        notes = world.stack.brief(world.turns(index, self._server_memory(world)))
        with LocalTransport(world, self.workers, kept) as transport:
            answers = list(transport.exchange([Order(name, index, weights, notes) for name in names]))
        if self.counted is not None:
            self.counted.probed(self._worth(world, names))
        for one in answers:
            if isinstance(one, Dropped):
                raise ClientLost(f"client {one.client}: {one.reason}", f"probe {number}", "mend it, then run again")
        return tuple(one for one in answers if isinstance(one, Update))

    def _worth(self, world: Federation, names: Sequence[str]) -> float:
        """What an exchange with some clients takes, in rounds of the lab's own federation."""
        whole = self.federation.local_plan.epochs * sum(len(c.train) for c in self.federation.task.clients)
        return world.local_plan.epochs * sum(len(world.clients[name].train) for name in names) / max(whole, 1)

    def _server_memory(self, world: Federation) -> Memory:
        """A copy of what the server's defences had learned when the run ended, for a world with the same ones."""
        if not world.stack.using("brief") or world.defences != self.federation.defences:
            return {}
        standing = self.run.standing()
        return {} if standing is None else standing[0].memory

    def variant(self, federation: Federation, keep: Keep = keep_none) -> Lab:
        """Another federation's lab, trained if it is not in the store yet; what ``keep`` asks for is kept."""
        progress: Progress = silent
        if self.counted is not None:
            self.counted.world(federation.rounds)
            progress = self.counted.world_round
        run = train_run(self.store, federation, workers=self.workers, keep=keep, wait=True, progress=progress)
        if self.counted is not None:
            self.counted.world_is_there(federation.rounds)
        other = Lab(federation, self.store, run, self.workers)
        if other._lacks(keep):  # the run was there already, from a study that kept less
            with run.locked(wait=True), FirstRound(LocalTransport(federation, self.workers)) as transport:
                for round_ in federate(federation, transport, keep=keep):
                    run.kept.add(round_)
        return other

    def variants(self, federations: Sequence[Federation], keep: Keep = keep_none) -> list[Lab]:
        """The lab of each of several other federations, trained side by side: each in one process.

        Where there is one process for all, those that somebody else is training come last: by then they may be there.
        """
        missing = [world for world in federations if not self._is_there(world, keep)]
        if not (min(self._lanes, len(missing)) > 1 and FORKABLE):
            return self._one_by_one(federations, keep)
        done = len(federations) - len(missing)
        apart = replace(self, workers=1, counted=None)

        def hears(number: int, told: Mapping[str, Any]) -> None:
            nonlocal done
            done += 1
            self._count_trained(missing[number], done, len(federations))

        side_by_side([partial(_train_apart, apart, world, keep) for world in missing], self._lanes, hears)
        return [replace(self, counted=None).variant(world, keep) for world in federations]

    def _one_by_one(self, federations: Sequence[Federation], keep: Keep) -> list[Lab]:
        labs, left = dict[int, Lab](), list(range(len(federations)))
        while left:
            free = (number for number in left if not self._run_of(federations[number]).held)
            left.remove(number := next(free, left[0]))
            labs[number] = self.variant(federations[number], keep)
        return [labs[number] for number in range(len(federations))]

    def _run_of(self, federation: Federation) -> Run:
        return self.store.run(key_of(description(federation.granted)))

    def _is_there(self, federation: Federation, keep: Keep) -> bool:
        run = self._run_of(federation)
        end = run.end
        return end is not None and end["status"] == "finished" and not Lab(federation, self.store, run)._lacks(keep)

    def _lacks(self, keep: Keep) -> bool:
        """Whether some update that ``keep`` asks for is not in the store."""
        wanted = {(i, name) for i, cohort in enumerate(self.cohorts()) for name in cohort if keep(i, name)}
        return bool(wanted - self.run.kept.there())

    @property
    def _lanes(self) -> int:
        """How many federations may be trained side by side."""
        return (self.workers or cores()) if self.federation.engine.device == "cpu" else 1

    def _count_trained(self, federation: Federation, done: int, every: int) -> None:
        if self.counted is not None:
            self.counted.watched(federation.rounds, done, every, self._lanes)
        else:
            self.says(f"{done} of {every} federations to compare with")

    def watched(self, federations: Sequence[Federation], look: base.Look) -> list[dict[str, np.ndarray]]:
        """What ``look`` writes down of each federation; those that no attack on this run has had yet are trained."""

        def trained(federation: Federation, done: int) -> None:
            self._count_trained(federation, done, len(federations))

        return watched(self.run.notes("watched"), federations, look, self._lanes, trained)


def _train_apart(lab: Lab, federation: Federation, keep: Keep, tells: Tells, stopped: Callable[[], bool]) -> None:
    """Train a federation in a process of its own; what was wrong with it is found again, and said, by who asked."""
    with contextlib.suppress(LeaklineError):
        lab.variant(federation, keep)
        tells({"done": True})


def meet(attacks: Mapping[str, Attack], lab: Lab) -> None:
    """Let each attack that has not met this run yet do so, and write its readings down."""
    keys = {name: attack_key(name, attack) for name, attack in attacks.items()}
    if set(keys.values()) <= lab.run.met():
        return
    with lab.run.locked("attacks"):
        lab.run.sweep("attacks")
        _meet(attacks, keys, lab)


def _meet(attacks: Mapping[str, Attack], keys: Mapping[str, str], lab: Lab) -> None:
    done = lab.run.met()  # asked again: another process may have held the run until now
    for name, attack in attacks.items():
        key = keys[name]
        if key not in done:
            counted = lab.counted.meets(name) if lab.counted is not None else None
            says = lab.says if counted is None else counted.said
            try:
                readings = examine(attack, replace(lab, attack=key, counted=counted, says=says))
            except LeaklineError:
                raise
            except Exception as error:  # what was trained is kept, and the other cells go on
                raise StackError(
                    f"the attack {name} failed: {reason_of(error)}", lab.run.key, "mend it, and run the study again"
                ) from error
            lab.run.add_attack(key, [replace(r, by=name) for r in readings])
            if counted is not None:
                counted.met()


def attack_key(name: str, attack: Attack) -> str:
    """An attack by its name in the study and a hash of its settings."""
    return f"{name}-{key_of({'attack': describe(attack)})[:8]}"


def examine(attack: Attack, lab: base.Lab) -> list[Reading]:
    """Set the attack's challenges, collect its guesses, compare them with the secrets; write down what it made."""
    secrets: list[Any] = []

    def asked() -> Iterator[tuple[Any, Any]]:
        for challenge in attack.challenges(lab):
            secrets.append(challenge.secret)
            yield challenge.view, challenge.hints

    guesses = attack.guesses(asked(), lab.workers or cores())
    results = attack.measure(guesses, secrets) if guesses else []
    artefacts.write(lab.media(), [made for made in results if isinstance(made, Artefact)])
    own = own_measures(attack.measures)
    readings = [reading for reading in results if isinstance(reading, Reading)]
    effort = attack.effort(lab.federation)
    about = {} if effort is None else effort.about
    readings = [replace(reading, about={**reading.about, **about}) for reading in readings]
    return [_with_chance(reading, measure_of(reading.measure, own).chance) for reading in readings]


def _with_chance(reading: Reading, chance: float | None) -> Reading:
    """The reading, with its measure's chance where it has none of its own."""
    return reading if reading.chance is not None or chance is None else replace(reading, chance=chance)
