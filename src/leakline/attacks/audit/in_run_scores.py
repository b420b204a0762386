"""What an observer of one round makes of it: how far it points along each canary."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from leakline.attacks.audit.insertion import Aim, Inserted
from leakline.bench.training import Bench
from leakline.data.base import Data
from leakline.messages import Round, Update
from leakline.weights import Weights, write


@dataclass(frozen=True)
class RoundSeen:
    """What the observer sees of one round: the model that was sent, and single updates or what was published."""

    sent: Weights
    change: Weights
    updates: tuple[Update, ...] = ()


@dataclass(frozen=True)
class Sought:
    """What the observer looks for in a round: the canaries, all of which it knows, but not which of them are in."""

    inserted: Inserted = field(repr=False)
    aim: Aim
    index: int
    bench: Bench = field(repr=False)


def view_of(round_: Round) -> RoundSeen:
    """What is seen of a round."""
    return RoundSeen(round_.sent, round_.result - round_.sent, round_.updates)


def along_clients(view: RoundSeen, hints: Sought) -> np.ndarray:
    """Inner products with every canary's direction, times its sign in this round."""
    made, names = hints.inserted.clients, hints.inserted.names
    free = sum(entry.size for entry in view.sent.layout.entries if not entry.buffer)
    own: dict[str, Tensor] = {}
    for update in view.updates:
        own[update.client] = own.get(update.client, torch.zeros(())) + update.delta.vector[:free]
    found = np.zeros(len(made))
    for place, (name, canary) in enumerate(zip(names, made, strict=True)):
        seen = own.get(name) if hints.aim.single else view.change.vector[:free]
        if seen is not None:
            sign = canary.signs[hints.index % len(canary.signs)]
            if canary.axis is not None:
                found[place] = sign * float(seen[canary.axis])
            else:
                found[place] = sign * float(torch.dot(canary.direction(free), seen))
    return found


def along_records(view: RoundSeen, hints: Sought) -> np.ndarray:
    """How much of every canary record is in its client's update, given its descent direction at the model sent."""
    found = np.zeros(len(hints.inserted.present))
    updates = {update.client: update.delta.vector for update in view.updates}
    for client, (data, places) in hints.inserted.records.items():
        seen = updates.get(client) if hints.aim.single else view.change.vector
        if seen is not None:
            pulls = torch.stack([_pull(view.sent, hints.bench, data, i) for i in range(len(data))]).double()
            found[places] = untangled(pulls, seen.double())
    return found


def untangled(pulls: Tensor, seen: Tensor) -> np.ndarray:
    """The best linear guess of the weights b in ``seen = sum_j b_j pulls_j + noise``, less their mean.

    Records of one class pull nearly the same way, so that plain inner products tell of the class and not of the
    record. With G the unit pulls as rows, K = G G', s2 the variance of the noise and t2 that of the weights,

        b = (K + s2 / t2)^-1 G seen

    Along an eigenvector of K with value k what is seen has variance s2 + t2 k; beyond the span of the pulls it has s2.
    Both variances are taken from what is seen.
    """
    values, vectors = torch.linalg.eigh(pulls @ pulls.T)
    kept = values > 1e-9 * values.max().clamp_min(1e-300)
    values, vectors = values[kept], vectors[:, kept]
    along = vectors.T @ (pulls @ seen) / values.sqrt()
    beyond = max(seen.numel() - len(values), 1)
    noise = ((seen @ seen - along @ along) / beyond).clamp_min(1e-30)
    weight = ((along @ along - len(values) * noise) / values.sum()).clamp_min(1e-3 * noise)
    guessed = vectors @ (along * values.sqrt() / (values + noise / weight))
    return np.asarray((guessed - guessed.mean()).numpy())


def _pull(sent: Weights, bench: Bench, data: Data, row: int) -> Tensor:
    """The unit vector of a descent step on one record, over what travels."""
    model = bench.model
    write(model, sent)
    model.eval()
    rows = slice(row, row + 1)
    loss = bench.loss(model(bench.inputs(data, rows)), bench.targets(data, rows))
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    grads = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
    parts = [-grads[e.name].flatten() if e.name in grads else torch.zeros(e.size) for e in sent.layout.entries]
    return torch.nn.functional.normalize(torch.cat(parts), dim=0)
