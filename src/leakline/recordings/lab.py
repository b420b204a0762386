"""A recording as a lab: an attack that needs no more than was recorded meets it as it meets a run of leakline's own.

What is there: the weights sent and the updates, round by round, the plan as far as it is known, the last model where
the seat sees it. What is not there (clients' data and memories, other federations, answers to probes) is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from leakline.attacks.base import Look, Says
from leakline.bench.training import Plan
from leakline.data.base import Client, Data, Task
from leakline.errors import DataError, StackError
from leakline.federation import Federation, Transport, keep_none
from leakline.messages import Dropped, Keep, Memory, Order, Update
from leakline.privacy import Claim, NoClaim
from leakline.randomness import Stream
from leakline.recordings.inputs import Inputs
from leakline.recordings.recording import Recording
from leakline.recordings.records import NOTHING, Known
from leakline.runtimes.local import LocalTransport
from leakline.study.lab import unsaid
from leakline.weights import Entry, Layout, Weights

ROOT = "root"
"""The name of a network that is a single layer."""
ELSEWHERE = "run it in a study, on a federation that leakline trains"


@dataclass(frozen=True)
class Target:
    """What the attacker brings: the architecture, the shape of an image, the local plan, what inputs look like."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    plan: Plan
    inputs: Inputs = Inputs()

    def model(self) -> nn.Module:
        """A fresh model."""
        model = self.build()
        if not isinstance(model, nn.Module):
            raise StackError(
                f"the model is a {type(model).__name__}", "--model", "name a function or class that builds it"
            )
        if not any(True for _ in model.children()):  # a single layer: attacks know layers by names, and a root has none
            model = nn.Sequential(OrderedDict([(ROOT, model)]))
        return self.inputs.before(model)


@dataclass(frozen=True)
class RecordedLab:
    """`leakline.attacks.Lab` over some rounds of a recording.

    ``attack`` is the name under which an attack's own files stand; ``inputs``: what pictures go through on their way;
    ``known``: records that the attacker holds; ``single``: whether the network is a single layer.
    """

    federation: Federation
    recording: Recording
    rounds: tuple[int, ...]
    inputs: Inputs = Inputs()
    known: Known = NOTHING
    single: bool = False
    workers: int = 0
    says: Says = unsaid
    attack: str = "unnamed"

    def stream(self, purpose: str) -> Stream:
        """The examiner's own randomness."""
        return Stream(self.federation.seed, -2, "examiner", purpose)

    def final_weights(self) -> Weights:
        """The model that came of the last recorded round, where the seat sees it."""
        last = self.recording.round(self.recording.indices()[-1], clients=())
        if "result_unknown" in last.facts:
            _refuse("the last model")
        return self._named(last.result)

    def cohorts(self) -> list[tuple[str, ...]]:
        """Who took part, by the engine's numbers of rounds; nobody in rounds that have no line."""
        cohorts = {record["round"]: tuple(record["cohort"]) for record in self.recording.records()}
        return [cohorts.get(index, ()) for index in range(self.federation.rounds)]

    def kept(self, index: int) -> tuple[Weights, list[Update]] | None:
        """The weights sent in a round and the updates that were recorded."""
        if index not in self.recording.indices():
            return None
        round_ = self.recording.round(index)
        return self._named(round_.sent), [replace(u, delta=self._named(u.delta)) for u in round_.updates]

    def _named(self, weights: Weights) -> Weights:
        """Weights under the names that the federation's network has for them."""
        if self.single:
            entries = tuple(Entry(f"{ROOT}.{e.name}", e.shape, e.buffer) for e in weights.layout.entries)
            return Weights(Layout(entries), weights.vector)
        return weights

    def media(self) -> Path:
        """The folder that the attack's artefacts are written to."""
        return self.recording.run.media(self.attack)

    def notes(self, *parts: str) -> Path:
        """A folder of the attack's own for what it may need again when it is stopped and goes on."""
        return self.recording.run.notes(self.attack).joinpath(*parts)

    def memories(self) -> dict[str, Memory]:
        """Refused: what clients keep for themselves is not recorded."""
        _refuse("what clients keep for themselves")

    def probe(
        self,
        weights: Weights,
        number: int,
        *,
        federation: Federation | None = None,
        clients: Sequence[str] = (),
        memories: dict[str, Memory] | None = None,
    ) -> tuple[Update, ...]:
        """Clients that the attacker makes itself answer here; refused for the recorded ones, who do not answer."""
        if federation is None or any(client.train.x.is_meta for client in federation.task.clients):
            _refuse("clients that answer chosen weights")
        names = clients or [client.name for client in federation.task.clients]
        index = self.federation.rounds + number
        with LocalTransport(federation, self.workers, {} if memories is None else memories) as transport:
            answers = list(transport.exchange([Order(name, index, weights, {}) for name in names]))
        for answer in answers:
            if isinstance(answer, Dropped):
                raise StackError(f"a simulated client fails: {answer.reason}", "leakline attack", "check the plan")
        return tuple(answer for answer in answers if isinstance(answer, Update))

    def variant(self, federation: Federation, keep: Keep = keep_none) -> RecordedLab:
        """Refused: nothing can be trained."""
        _refuse("other federations trained for comparison")

    def variants(self, federations: Sequence[Federation], keep: Keep = keep_none) -> Sequence[RecordedLab]:
        """Refused: nothing can be trained."""
        _refuse("other federations trained for comparison")

    def place(self, federation: Federation, told: Mapping[str, Any]) -> AbstractContextManager[Transport]:
        """Refused: nothing can be trained."""
        _refuse("a run of its own")

    def watched(self, federations: Sequence[Federation], look: Look) -> list[dict[str, np.ndarray]]:
        """Refused: nothing can be trained."""
        _refuse("other federations trained for comparison")


@dataclass(frozen=True)
class Remote(Data):
    """A client's examples from afar: how many, of what shape; images and labels where they are given.

    What is not known is a tensor without storage: it has a shape, and no value can be read from it.
    """

    @classmethod
    def of(
        cls, examples: int, shape: Sequence[int], images: Tensor | None = None, labels: Tensor | None = None
    ) -> Remote:
        """So many examples, with their images and labels if those are given."""
        x = torch.empty(examples, *shape, device="meta") if images is None else images
        return cls(x, torch.empty(len(x), dtype=torch.int64, device="meta") if labels is None else labels)

    def inputs(self, rows: Tensor | slice) -> Tensor:
        """The images, if they were given."""
        return _refuse("the clients' data") if self.x.is_meta else super().inputs(rows)

    def take(self, rows: Tensor | np.ndarray | Sequence[int]) -> Data:
        """Refused: examples without labels are no data to work with."""
        _refuse("the clients' data")

    def labels(self) -> np.ndarray:
        """The labels, if they were given."""
        return _refuse("the clients' data") if self.y.is_meta else super().labels()

    def fingerprint(self) -> str:
        """Refused: what is not known has no hash."""
        _refuse("the clients' data")


class Undisclosed(Federation):
    """A federation that somebody else ran: what protected it is not known, so nothing is said about promises."""

    def claims(self, facts: Sequence[Mapping[str, float]] = ()) -> dict[str, Claim | NoClaim]:
        """Refused: defences are not recorded."""
        _refuse("the defences")


class FromOne(Plan):
    """The plan of an engine that counts rounds from 1; schedules count them from 0."""

    def rate(self, index: int) -> float:
        """The learning rate of the engine's round ``index``."""
        return super().rate(max(index - 1, 0))


def lab_over(
    recording: Recording, target: Target, *, rounds: Sequence[int] = (), clients: Sequence[str] = (),
    truth: Mapping[str, Tensor] | None = None, known: Known = NOTHING, says: Says = unsaid,
) -> RecordedLab:  # fmt: skip
    """The lab of a recording, or of some of its rounds and clients, if the model is the one that was recorded.

    ``truth``: images by client, for whoever holds them and wants to know how close an attack comes. ``known``: labelled
    records; where some are known to be members, they are what the lab holds of clients' data.
    """
    target.inputs.check(target.shape[0])
    single = _check_model(recording, target)
    rounds, images = tuple(rounds or recording.indices()), dict(truth or {})
    examples: dict[str, int] = {}
    for index in rounds:
        for update in recording.round(index, clients or None).updates:
            if update.client in images:
                _check_images(images[update.client], target.shape, update)
            examples[update.client] = max(update.examples, examples.get(update.client, 0))
            if update.client in known.labels and len(known.labels[update.client]) != update.examples:
                count = len(known.labels[update.client])
                what = f"{update.client} trained on {update.examples} examples, and {count} labels are given"
                raise DataError(what, "labels", "give each client's labels under its name")
    people = tuple(
        Client(name, Remote.of(n, target.shape, images.get(name), known.labels.get(name)))
        for name, n in examples.items()
    )
    if known.members is not None:
        people = (Client("members", known.members),)
    plan = FromOne(**vars(target.plan)) if recording.engine.startswith("flower") else target.plan
    task = Task(people, known.others, known.public, known.classes)
    federation = Undisclosed(task, target.model, plan, rounds=max(recording.indices()) + 1)
    return RecordedLab(federation, recording, rounds, target.inputs, known, single, says=says)


def _check_model(recording: Recording, target: Target) -> bool:
    """Refuse another model than the recorded one; says whether it is a single layer."""
    model = target.model()
    single = [name for name, _ in model.named_children()] == [ROOT]
    state = {name: tuple(value.shape) for name, value in model.state_dict().items() if value.is_floating_point()}
    mine = {name.removeprefix(f"{ROOT}." if single else ""): shape for name, shape in state.items()}
    for entry in recording.layout().entries:
        if mine.get(entry.name) != entry.shape:
            shown = f"has it as {mine[entry.name]}" if entry.name in mine else "does not have it"
            raise StackError(
                f"this is another model: {entry.name} was recorded with shape {entry.shape}, and the model {shown}",
                recording.path.name,
                "name the model that was trained",
            )
    with torch.no_grad():
        try:
            model.eval()(torch.full((1, *target.shape), 0.5))
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise StackError(f"the model does not take images of shape {target.shape}: {reason}", "--shape") from error
    return single


def _check_images(images: Tensor, shape: tuple[int, ...], update: Update) -> None:
    if tuple(images.shape[1:]) != shape or len(images) != update.examples:
        raise DataError(
            f"{update.client} trained on {update.examples} images of {shape}, the truth has {tuple(images.shape)}",
            "truth",
            "give each client's training images under its name",
        )


def _refuse(needed: str) -> NoReturn:
    raise StackError(f"it needs {needed}, which a recording does not hold", "leakline attack", ELSEWHERE)
