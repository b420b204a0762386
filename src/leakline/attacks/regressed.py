"""Who is in a client's updates, by their gradients alone: `leakline.leakage.regression` over all rounds looked at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from leakline.attacks.tables import Look, filled
from leakline.data.base import Data
from leakline.federation import Federation
from leakline.leakage.regression import Products, memberships
from leakline.mechanisms.per_example import clipped_sum
from leakline.messages import Update
from leakline.views import EVERYBODY, visible
from leakline.weights import Layout, Weights, write

Loss = Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]
ROWS = 2**25
"""How many values of gradients are formed at once."""
WIDEST = 2**16
"""Longer gradients are brought to so many values by a random sketch, which keeps inner products (to about 0.4 %)."""


def regressed(
    federation: Federation,
    look: Look,
    past: Iterable[tuple[int, tuple[Weights, list[Update]]]],
    rest: Sequence[Data] = (),
) -> np.ndarray:
    """A score for each record of the look, over what was kept of its rounds; not a number where nothing was seen.

    Gradients are those of the model that was sent. Every round of a sender counts as much, however far its model moved.
    A sender is one client, or under assumed secure aggregation all of them together. ``rest``: what else each client
    trains on, where the attacker knows it.
    """
    eye = _Gradients(federation, look)
    ends = np.cumsum([0, *(len(data) for data in look.records)])
    senders: dict[str, _Sums] = {}
    for _, (sent, updates) in past:
        for sender, delta in _by_sender(visible(federation, updates)).items():
            held = [at for at, owner in enumerate(look.owners) if sender in (owner, EVERYBODY)]
            if held:
                moved = delta.only(lambda name, buffers=delta.layout.buffers: name not in buffers)  # type: ignore[misc]
                rows = torch.cat([eye.rows(sent, at, moved.layout) for at in held])
                went = -shortened(moved.vector[None])[0]
                if rest:
                    known = torch.stack([eye.total(sent, rest[at], moved.layout) for at in held]).sum(0)
                    rows, went = without(known + rows.sum(0) / 2, rows, went)
                senders.setdefault(sender, _Sums(held)).add(rows, went)
    scores = np.full(int(ends[-1]), np.nan)
    for sums in senders.values():
        if not sums.halves:
            continue
        found = memberships(*sums.halves)
        places = np.concatenate([np.arange(ends[at], ends[at + 1]) for at in sums.held])
        scores[places] = found / max(float(found.std()), np.finfo(float).tiny)
    return scores


def _by_sender(updates: Sequence[Update]) -> dict[str, Weights]:
    """What each sent in a round: the sum of its parts where it sends several."""
    found: dict[str, Weights] = {}
    for update in updates:
        found[update.client] = found[update.client] + update.delta if update.client in found else update.delta
    return found


class _Sums:
    """What is known of one sender's records: products over its even and its odd rounds."""

    def __init__(self, held: list[int]) -> None:
        self.held, self.halves = held, list[Products]()

    def add(self, rows: Tensor, sent: Tensor) -> None:
        """One more round, both in units of their usual length; one in which nothing moved says nothing."""
        length, usual = float(sent.norm()), float(rows.square().sum(1).mean().sqrt())
        if not (np.isfinite(length * usual) and length * usual > 0):
            return
        rows, sent = rows / usual, sent / length
        found = Products((rows @ rows.T).double().numpy(), (rows @ sent).double().numpy())
        if len(self.halves) < 2:
            self.halves.append(found)
        else:
            self.halves = [self.halves[1], self.halves[0] + found]


class _Gradients:
    """The gradients of records under a model that was sent."""

    def __init__(self, federation: Federation, look: Look) -> None:
        self.federation, self.look, self.bench = federation, look, federation.bench()

    def rows(self, sent: Weights, at: int, layout: Layout) -> Tensor:
        """Of each record of one client (by its place): the gradient for what travels, as treated, shortened."""
        data, bench = self.look.records[at], self.bench
        if self.federation.private:
            sent = filled(bench, sent, self.federation.private, self.look.beside[at])
        write(bench.model, sent)
        bench.model.eval()
        names = [entry.name for entry in layout.entries]
        held = {name: p.detach() for name, p in bench.model.named_parameters() if name in set(names)}

        def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            outputs = functional_call(bench.model, weights, (x[None],))
            return self.federation.objective.per_example_loss(outputs, y[None]).sum()

        step = max(1, ROWS // max(layout.size, 1))
        parts = []
        for start in range(0, len(data), step):
            rows = slice(start, min(start + step, len(data)))
            x, y = bench.inputs(data, rows), bench.targets(data, rows)
            found = _each(loss, held, x, y)
            flat = torch.cat([found[name].detach().reshape(len(x), -1) for name in names], dim=1).cpu()
            parts.append(shortened(self._treated(flat.nan_to_num(0.0, 0.0, 0.0))))
        return torch.cat(parts) if parts else torch.zeros(0, min(layout.size, WIDEST))

    def total(self, sent: Weights, data: Data, layout: Layout) -> Tensor:
        """The sum of the gradients of records that are known to be in an update, each as treated, shortened."""
        bench, act = self.bench, self.federation.stack.treatment.examples
        write(bench.model, sent)
        bench.model.eval()
        rows = slice(0, len(data))
        bound = math.inf if act is None else act.clip
        found = clipped_sum(bench.model, bench.loss, bench.inputs(data, rows), bench.targets(data, rows), bound)
        names = [name for name, p in bench.model.named_parameters() if p.requires_grad]
        sums = dict(zip(names, found.sums, strict=True))
        flat = torch.cat([sums[entry.name].detach().reshape(-1) for entry in layout.entries])
        return shortened(flat[None].cpu())[0]

    def _treated(self, rows: Tensor) -> Tensor:
        """Gradients as a client adds them up: clipped where the defence clips them, which is no secret."""
        act = self.federation.stack.treatment.examples
        return rows if act is None else rows * act.factor(rows.square().sum(1, keepdim=True), rows.shape[1])


def _each(loss: Loss, held: dict[str, Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Gradients of one record after another: all at once, where the network allows it."""
    try:
        rows: dict[str, Tensor] = vmap(grad(loss), in_dims=(None, 0, 0), randomness="same")(held, x, y)
        return rows
    except (RuntimeError, NotImplementedError, ValueError):  # a network that vmap cannot follow
        found = [grad(loss)(held, each, target) for each, target in zip(x, y, strict=True)]
        return {name: torch.stack([gradient[name] for gradient in found]) for name in held}


def without(known: Tensor, rows: Tensor, sent: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients and an update without what lies along the expected sum: known members, and half of those in question.

    u = c (r + sum m_i g_i) + e with that direction t = r + sum g_i / 2 taken out of everything is
    u' = c sum (m_i - 1/2) g_i' + e', whatever c is: nothing of the known members is left.
    """
    length = float(known.norm())
    if not (math.isfinite(length) and length > 0):
        return rows, sent
    t = known / length
    return rows - (rows @ t)[:, None] * t, sent - (sent @ t) * t


def shortened(rows: Tensor) -> Tensor:
    """Rows of at most `WIDEST` values: each value is added, under a random sign, to one of so many places."""
    width = rows.shape[1]
    if width <= WIDEST:
        return rows
    generator = torch.Generator().manual_seed(width)
    places = torch.randint(WIDEST, (width,), generator=generator)
    signs = torch.randint(2, (width,), generator=generator).mul_(2).sub_(1).to(rows.dtype)
    return rows.new_zeros(len(rows), WIDEST).index_add_(1, places, rows * signs)
