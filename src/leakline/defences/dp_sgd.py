"""DP-SGD at every client: a promise for single records, against the server itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from leakline.bench.training import Plan
from leakline.data.base import Client, Data
from leakline.defences.base import Loss, Terms, beside_updates, splitter
from leakline.defences.noised import Noised
from leakline.errors import StackError
from leakline.mechanisms import add_gaussian
from leakline.mechanisms.independence import refuse_layers
from leakline.mechanisms.per_example import clipped_sum, path_of
from leakline.mechanisms.treatment import Act, Treatment
from leakline.messages import Turn, Update
from leakline.privacy import Adjacency, Claim, Gaussian, NoClaim, Seat, Unit

BLOCK = 65_536
"""Noise is added to so many values at a time: its float64 then stays in the cache and takes no memory to speak of."""

SAMPLE = 8
"""Before training so many records of the lowest and of the highest labels are tried, and of the largest client."""


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

    Every client has the same rate and as many steps, whatever its size, so the promise is the same for every record of
    the federation. Optimisers, FedProx's term and everything the server does come after the noise. Changes of buffers
    and the training loss have no noise and are not sent. The Gaussian is drawn on a grid (`add_gaussian`); otherwise
    this departs from the paper only in B under shuffling.
    """

    rate: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate must lie in [0, 1]: {self.rate}")

    @property
    def treatment(self) -> Treatment:
        """A clip for each record, noise on their sum, no buffers; which records Poisson sampling took is not known."""
        if self.rate:
            return Treatment(unknown=(f"{type(self).__name__}(rate={self.rate:g})",))
        return Treatment(Act(self.clip, noise=self.noise_multiplier * self.clip), buffers=False)

    def unsampled(self) -> DpSgd:
        """With the batches of the plan."""
        return replace(self, rate=0.0)

    def check(self, federation: Terms) -> None:
        """Refuse, before training, a model or a loss in which the records of the task mix."""
        bench = federation.bench()
        records = _assorted(federation.task.clients)
        if records is None:
            refuse_layers(bench.model)
            return
        rows = slice(0, len(records))
        path_of(bench.model.train(), bench.loss, bench.inputs(records, rows), bench.targets(records, rows))

    def batches(self, examples: int, plan: Plan, turn: Turn) -> Iterator[Tensor] | None:
        """Poisson batches, some of them perhaps empty; or None: as the plan has them."""
        if not self.rate:
            return None
        turn.facts["expected_batch"] = self.rate * examples
        return self._poisson(examples, self.poisson_steps(plan), turn)

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
        found = clipped_sum(model, loss, x, y, self.clip)
        step = turn.facts.get("noised_steps", 0.0)
        turn.facts["noised_steps"] = step + 1
        noise = turn.noise(f"step {step:.0f}")  # an address of its own: no two steps of a turn share their noise
        size = turn.facts.get("expected_batch") or len(x)
        trained = (p for p in model.parameters() if p.requires_grad)
        for parameter, total in zip(trained, found.sums, strict=True):
            flat = total.flatten()
            for part in torch.split(flat, BLOCK):
                part.copy_(add_gaussian(part, self.noise_multiplier * self.clip, noise))
            gradient = flat.div_(size).view(parameter.shape)
            # Fused optimisers walk through memory: the gradient must lie there as the parameter does.
            alike = gradient.stride() == parameter.stride()
            parameter.grad = gradient if alike else torch.empty_like(parameter).copy_(gradient)
        return found.loss

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
        """Record-level against the server, and so against everybody; never client-level."""
        if self.noise_multiplier == 0:
            return NoClaim("no noise is added (noise multiplier 0)", "set noise_multiplier above 0")
        try:
            self.check(federation)
        except StackError as error:
            return NoClaim(error.what, error.fix)
        plan, rounds, mu = federation.plan, federation.rounds, 1 / self.noise_multiplier
        assumptions = [
            "a record's data may be anything or nothing (a gradient of 0); how many records a client has is known",
            "the loss is a mean over examples, and the model treats each of them by itself",
        ]
        if self.rate:
            steps = self.poisson_steps(plan)
            event = Gaussian(mu, times=rounds * steps, rate=self.rate)
            assumptions.append(f"which records a step takes (each with probability {self.rate:g}) stays secret")
        else:
            event = Gaussian(mu, times=rounds * self._passes(federation))
            assumptions.append("shuffled batches: a record is in one step of each epoch; no amplification is claimed")
        if federation.strategy.warm_start:
            assumptions.append("the server's own validation data, used for the initial model, are not covered")
        return Claim(
            unit=Unit.RECORD,
            adjacency=Adjacency.ZERO_OUT,
            observer=Seat.SERVER,
            events=(event,),
            assumptions=tuple(assumptions),
            outside=(
                "a whole client, or a patient with several records: k records together move a step k times as far"
                + _largest(federation),
                "exchanging a record for another: it moves a step by 2C, twice as far",
                *beside_updates(federation),
            ),
        )

    @staticmethod
    def _passes(federation: Terms) -> int:
        """How many steps of a round one record takes part in under shuffling: one for each epoch that is begun."""
        plan = federation.plan
        if not plan.max_steps or splitter(federation):
            return plan.epochs
        held = [client for client in federation.task.clients if len(client.train)]
        epochs = [replace(federation.plan_of(c.name), epochs=1, max_steps=0).steps_of(len(c.train)) for c in held]
        shortest = min(epochs, default=1)
        return min(plan.epochs, -(-plan.max_steps // shortest))


def _largest(federation: Terms) -> str:
    """How many records the group (patient) with the most has at a client, where that is known."""
    most = federation.task.most_records
    return "" if most is None else f" (here one {federation.task.group} has up to {most})"


def _assorted(clients: Sequence[Client]) -> Data | None:
    """A few records, one for each label first, then those of the largest client; None where nobody holds any."""
    held = sorted((client.train for client in clients if len(client.train)), key=len, reverse=True)
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
