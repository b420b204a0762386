"""DP-SGD at every client: a promise for single records, or for patients, against the server itself."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from leakline.bench.once import once
from leakline.bench.training import Plan
from leakline.data.base import Client, Data
from leakline.data.elsewhere import Elsewhere
from leakline.defences.base import Loss, Terms, beside_updates, splitter
from leakline.defences.noised import Noised
from leakline.errors import StackError
from leakline.mechanisms import add_gaussian
from leakline.mechanisms.augment import KINDS, augmented
from leakline.mechanisms.independence import refuse_layers
from leakline.mechanisms.per_example import clipped_sum, path_of
from leakline.mechanisms.treatment import Act, Treatment
from leakline.mechanisms.units import Units
from leakline.messages import Turn, Update
from leakline.privacy import Adjacency, Claim, Gaussian, NoClaim, Seat, Unit
from leakline.settings import setting

BLOCK = 65_536
"""Noise is added to so many values at a time: its float64 then stays in the cache and takes no memory to speak of."""

SAMPLE = 8
"""Before training so many records of the lowest and of the highest labels are tried, and of the largest client."""

_TRIED: OrderedDict[Hashable, None] = OrderedDict()
"""Networks and records that were tried. Not seeds: whether records mix is decided by what a network does, and before
its first step every run looks again, at the weights that it has then."""


@dataclass(frozen=True)
class DpSgd(Noised):
    """Clip each record's gradient, noise the sum, at every local step (Abadi et al. 2016, arXiv:1607.00133, Alg. 1).

    (sum_i clip_C(g_i) + N(0, (z C)^2 I)) / B        z = noise_multiplier, C = clip, B = size of the batch

    ``rate = 0``: batches are those of the plan, a shuffle cut into pieces. A record is in one batch of each epoch and
    B is the batch's size; nothing is gained by not knowing which batch it is in (no amplification is claimed).
    ``rate = q``: at every step each record is taken with probability q, independently (Poisson, as the paper's proof
    wants it); an epoch is 1/q steps, B the expected size q n, and the plan's ``batch`` is not used. Which records are
    taken is drawn like the noise, from the operating system unless the study is seeded: the gain rests on the server
    not knowing it.

    ``unit = "patient"``: patients (groups of the data) take the records' place above: they are what is shuffled or
    sampled, g_i is one vector of patient i however many records it has, and B counts patients. ``contribution``: that
    vector is the mean over all of its records ("mean"), or comes of one record drawn anew each time ("one").
    ``augment = K``: a record's gradient is the mean over K versions of it (`mechanisms.augment`; De et al. 2022), taken
    before the clip, so that nothing is paid for it. Images that the plan moves are other versions of single records
    too: the promise stands, and the two are not put together.
    ``planned = B``: divides by this public number instead of one that follows from how many units a client has. Under
    ``rate`` the promise is then for add-remove; otherwise a unit counts as present with a gradient of 0 (zero-out).

    Every client has the same rate and as many steps, whatever its size, so the promise is the same for every record of
    the federation. Optimisers, FedProx's term and everything the server does come after the noise. Changes of buffers
    and the training loss have no noise and are not sent. The Gaussian is drawn on a grid (`add_gaussian`); otherwise
    this departs from the paper only in B under shuffling.
    """

    rate: float = 0.0
    unit: Literal["record", "patient"] = setting("record", quiet=True)
    contribution: Literal["mean", "one"] = setting("mean", quiet=True)
    augment: int = setting(1, quiet=True)
    planned: float = setting(0.0, quiet=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate must lie in [0, 1]: {self.rate}")
        if self.unit not in ("record", "patient"):
            raise ValueError(f'unit must be "record" or "patient": {self.unit!r}')
        if self.contribution not in ("mean", "one"):
            raise ValueError(f'contribution must be "mean" or "one": {self.contribution!r}')
        if self.augment < 1:
            raise ValueError(f"augment must be at least 1: {self.augment}")
        if not self.planned >= 0 or (self.planned and not self.rate):
            raise ValueError(f"planned is a positive size of batches drawn with a rate: {self.planned}")

    @property
    def treatment(self) -> Treatment:
        """A clip for each record, noise on their sum, no buffers; whom sampling or augmenting took is not known."""
        asked = {"rate": self.rate, "unit": self.unit if self.by_patient else "", "augment": self.augment - 1}
        if hidden := [f"{name}={getattr(self, name)}" for name, used in asked.items() if used]:
            return Treatment(unknown=(f"{type(self).__name__}({', '.join(hidden)})",))
        return Treatment(Act(self.clip, noise=self.noise_multiplier * self.clip), buffers=False)

    def unsampled(self) -> DpSgd:
        """With the batches of the plan."""
        return replace(self, rate=0.0, planned=0.0)

    @property
    def by_patient(self) -> bool:
        """Whether a patient is the unit."""
        return self.unit == "patient"

    def check(self, federation: Terms) -> None:
        """Refuse a model or a loss in which the records of the task mix, patients nobody knows, inputs as they are."""
        self._check_units(federation)
        records = _assorted(federation.task.clients)
        if records is None:
            refuse_layers(federation.bench().model)
            return
        task, loss = federation.task, federation.judging.loss
        network = (federation.model, task.shape, len(task.classes), task.kind, loss)
        once(_TRIED, (*network, records.fingerprint()), partial(_try, federation, records), 64)

    def _check_units(self, federation: Terms) -> None:
        task = federation.task
        bare = [c.name for c in task.clients if _here(c) and c.train.groups is None]
        if self.by_patient and bare:
            raise StackError(
                f"client {bare[0]} does not say which records are one patient's",
                'dp-sgd, unit = "patient"',
                'name the patients in the data set (a column, a folder), or set unit = "record"',
            )
        if self.augment > 1 and (len(task.shape) + 1 not in KINDS or task.kind != "classification"):
            raise StackError(
                f"{task.kind} of inputs of shape {task.shape}: there are augmentations for the classification of "
                f"{' and '.join(KINDS.values())} only",
                f"dp-sgd, augment = {self.augment}",
                "set augment = 1",
            )
        if self.augment > 1 and federation.plan.augment != "none":
            raise StackError(
                "versions of versions: the recipe moves every image already",
                f"dp-sgd, augment = {self.augment}",
                'set augment = 1 (a record still contributes one vector), or augment = "none" in [training]',
            )

    def batches(self, examples: int, plan: Plan, turn: Turn) -> Iterator[Tensor] | None:
        """Poisson batches, some of them perhaps empty, or batches of patients; or None: as the plan has them."""
        if not self.by_patient:
            if not self.rate:
                return None
            turn.facts["expected_batch"] = self.planned or self.rate * examples
            return self._poisson(examples, self.poisson_steps(plan), turn)
        if turn.groups is None:
            raise StackError("nobody says which records are one patient's", turn.party)
        patients = Units.of(turn.groups)
        if not self.rate:
            return self._records(patients, plan.batches(len(patients), turn.stream("patients")), turn)
        turn.facts["expected_batch"] = self.planned or self.rate * len(patients)
        return self._records(patients, self._poisson(len(patients), self.poisson_steps(plan), turn), turn)

    def _records(self, patients: Units, steps: Iterator[Tensor], turn: Turn) -> Iterator[Tensor]:
        """The records that the patients of each step contribute; whose they are is left in the turn."""
        generator = turn.stream("records").torch()
        for chosen in steps:
            found = patients.all_of(chosen) if self.contribution == "mean" else patients.one_of(chosen, generator)
            rows, turn.units = found
            yield rows

    def _poisson(self, examples: int, steps: int, turn: Turn) -> Iterator[Tensor]:
        source = turn.noise("batches")
        for _ in range(steps):
            yield (source.uniform(examples) < self.rate).nonzero()[:, 0]

    def poisson_steps(self, plan: Plan) -> int:
        """Local steps of a round: epochs of 1/q steps each."""
        steps = plan.epochs * max(1, round(1 / self.rate))
        return min(steps, plan.max_steps) if plan.max_steps else steps

    def gradient(self, model: nn.Module, x: Tensor, y: Tensor, loss: Loss, turn: Turn) -> Tensor:
        """Clip, sum, noise, divide; the loss that comes back stays at the client."""
        step = turn.facts.get("noised_steps", 0.0)
        turn.facts["noised_steps"] = step + 1
        units = turn.units
        size = turn.facts.get("expected_batch") or (len(x) if units is None else int(units.max()) + 1)
        if self.augment > 1:
            units = (torch.arange(len(x)) if units is None else units).repeat_interleave(self.augment)
            x = augmented(x, self.augment, turn.stream(f"augment {step:.0f}").torch())
            y = y.repeat_interleave(self.augment, 0)
        found = clipped_sum(model, loss, x, y, self.clip, units=units)
        noise = turn.noise(f"step {step:.0f}")  # an address of its own: no two steps of a turn share their noise
        trained = (p for p in model.parameters() if p.requires_grad)
        for parameter, total in zip(trained, found.sums, strict=True):
            flat = total.flatten()
            for part in torch.split(flat, BLOCK):
                part.copy_(add_gaussian(part, self.std, noise))
            gradient = flat.div_(size).view(parameter.shape)
            # Fused optimisers walk through memory: the gradient must lie there as the parameter does.
            alike = gradient.stride() == parameter.stride()
            parameter.grad = gradient if alike else torch.empty_like(parameter).copy_(gradient)
        return found.loss

    @property
    def std(self) -> float:
        """The standard deviation of the noise on a step's sum."""
        return self.noise_multiplier * self.clip

    def release(self, update: Update, turn: Turn) -> Update:
        """Keep back what no noise covers: figures, and changes of buffers."""
        bare = replace(update, metrics={})
        if not update.delta.layout.buffers:
            return bare
        vector = update.delta.vector.clone()
        for name in update.delta.layout.buffers:
            vector[update.delta.layout.slices[name]] = 0.0
        return bare.with_delta(vector)

    def claim(self, federation: Terms, facts: Sequence[Mapping[str, float]] = ()) -> Claim | NoClaim:
        """For a record or a patient, against the server and so against everybody; never client-level."""
        if self.noise_multiplier == 0:
            return NoClaim("no noise is added (noise multiplier 0)", "set noise_multiplier above 0")
        try:
            self.check(federation)
        except StackError as error:
            return NoClaim(error.what, error.fix)
        if self.by_patient and (other := splitter(federation)):
            return NoClaim(f"{other} deals one patient's records into several parts", 'set unit = "record"')
        return self._claim(federation, 1 / self.noise_multiplier)

    def _claim(self, federation: Terms, mu: float) -> Claim:
        """The claim of steps that one unit moves by mu standard deviations."""
        one, rounds = self.unit, federation.rounds
        public = bool(self.planned)
        assumptions = [
            f"a step is divided by {self.planned:g}, a public number, whoever is in it"
            if public
            else f"a {one}'s data may be anything or nothing (a gradient of 0); how many {one}s a client has is known",
            "the loss is a mean over examples, and the model treats each of them by itself",
        ]
        if self.by_patient:
            assumptions.append(
                f"a patient is a {federation.task.group} of the data, and is at one client only; however many records "
                "it has, it contributes one vector to a step"
            )
        if self.rate:
            event = Gaussian(mu, times=rounds * self.poisson_steps(federation.plan), rate=self.rate)
            assumptions.append(f"which {one}s a step takes (each with probability {self.rate:g}) stays secret")
        else:
            event = Gaussian(mu, times=rounds * self._passes(federation))
            assumptions.append(f"shuffled batches: a {one} is in one step of each epoch; no amplification is claimed")
        if federation.strategy.warm_start:
            assumptions.append("the server's own validation data, used for the initial model, are not covered")
        whole = (
            "a whole client: its patients together move a step as many times as far"
            if self.by_patient
            else "a whole client, or a patient with several records: k records together move a step k times as far"
            + _largest(federation)
        )
        return Claim(
            unit=Unit(one),
            adjacency=Adjacency.ADD_REMOVE if public else Adjacency.ZERO_OUT,
            observer=Seat.SERVER,
            events=(event,),
            assumptions=tuple(assumptions),
            outside=(
                whole,
                f"exchanging a {one} for another: it moves a step by 2C, twice as far",
                *beside_updates(federation),
            ),
        )

    def _passes(self, federation: Terms) -> int:
        """How many steps of a round one unit takes part in under shuffling: one for each epoch that is begun."""
        plan = federation.plan
        if not plan.max_steps or splitter(federation):
            return plan.epochs
        held = [client for client in federation.task.clients if len(client.train)]
        counts = [len(c.train) if not self.by_patient else _patients(c) for c in held]
        plans = [replace(federation.plan_of(c.name), epochs=1, max_steps=0) for c in held]
        epochs = [epoch.steps_of(count) for epoch, count in zip(plans, counts, strict=True)]
        shortest = min(epochs, default=1)
        return min(plan.epochs, -(-plan.max_steps // shortest))


def _patients(client: Client) -> int:
    """How many patients a client has; one, where it does not say (its epochs are then as short as can be)."""
    return 1 if client.train.groups is None else len(Units.of(client.train.groups))


def _largest(federation: Terms) -> str:
    """How many records the group (patient) with the most has at a client, where that is known."""
    most = federation.task.most_records
    return "" if most is None else f" (here one {federation.task.group} has up to {most})"


def _try(federation: Terms, records: Data) -> None:
    """Look whether records mix, on a network that was never trained."""
    bench, rows = federation.bench(), slice(0, len(records))
    path_of(bench.model.train(), bench.loss, bench.inputs(records, rows), bench.targets(records, rows))


def _here(client: Client) -> bool:
    """Whether its records are on this machine: a node tries its own with every batch."""
    return len(client.train) > 0 and not isinstance(client.train, Elsewhere)


def _assorted(clients: Sequence[Client]) -> Data | None:
    """A few records, one for each label first, then those of the largest client; None where none are here."""
    held = sorted((client.train for client in clients if _here(client)), key=len, reverse=True)
    if not held:
        return None
    by_label: dict[int, Data] = {}
    for data in held:
        labels = data.labels()
        for label in set(labels.tolist()) - by_label.keys():
            by_label[label] = data.take((labels == label).nonzero()[0][:1])
    kinds = [by_label[label] for label in sorted(by_label)]
    few = [*kinds[:SAMPLE], *kinds[SAMPLE:][-SAMPLE:], held[0].take(range(len(held[0]))[:SAMPLE])]
    return Data(torch.cat([data.x for data in few]), torch.cat([data.y for data in few]))
