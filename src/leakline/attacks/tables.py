"""One table of scores for every seat: what each model that somebody sees says of each record in question.

The score of a record under a model is the log-odds of exp(-loss): the probability of the true class where classes are
learnt (Carlini et al. 2022), and the same function of the loss of one image where masks are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from leakline.bench.batch_last import LOOKED_AT
from leakline.bench.training import Bench
from leakline.data.base import Data
from leakline.federation import Federation
from leakline.leakage.likelihood import confidence, logit
from leakline.messages import Round, Update
from leakline.randomness import Stream
from leakline.views import EVERYBODY, visible
from leakline.weights import Weights, write

FILL_STEPS, FILL_BATCH, FILL_RATE = 100, 32, 0.01
"""How layers that never leave a client are stood in for: Adam on the attacker's own data, the others held still."""


@dataclass(frozen=True)
class Look:
    """What is written down of a federation while it is trained, from the server's seat; other seats see part of it.

    ``owners`` hold ``records``, those in question. ``rounds`` are looked at. ``references``: how many other clients'
    models are asked about a record besides its own client's (FedMIA's references). ``beside``: where layers stay at
    the clients, what the attacker knows of each client's other data, for layers that stand in for them.
    """

    owners: tuple[str, ...]
    records: tuple[Data, ...]
    rounds: tuple[int, ...]
    references: int = 0
    beside: tuple[Data, ...] = ()

    def keep(self, index: int, client: str) -> bool:
        """Which updates it needs."""
        return index in self.rounds

    def __call__(self, federation: Federation, rounds: Iterable[Round]) -> dict[str, np.ndarray]:
        """The table, a row for each look and a column for each record; what is not seen is not a number.

        ``models``: under the models sent in each round looked at, and then the last. ``own``: under the model of the
        record's own client. ``others`` and ``spread``: mean and standard deviation over the reference clients.
        """
        eye = _Eye(federation, self)
        count = sum(len(data) for data in self.records)
        table = {name: np.full((len(self.rounds), count), np.nan) for name in ("own", "others", "spread")}
        table["models"] = np.full((len(self.rounds) + 1, count), np.nan)
        places = range(len(self.owners))
        for round_ in rounds:
            if round_.index in self.rounds:
                look, sent, seen = self.rounds.index(round_.index), round_.sent, visible(federation, round_.updates)
                table["models"][look] = np.concatenate([eye.scores(sent, at) for at in places])
                table["own"][look] = np.concatenate([eye.after(sent, seen, at, at) for at in places])
                if self.references:
                    found = [self._referred(eye, sent, seen, at) for at in places]
                    table["others"][look], table["spread"][look] = np.concatenate(found, axis=1)
            last = round_.result
        table["models"][-1] = np.concatenate([eye.scores(last, at) for at in places])
        return table

    def _referred(self, eye: _Eye, sent: Weights, seen: Sequence[Update], at: int) -> np.ndarray:
        """Mean and spread of the scores of one client's records under the models of the clients after it."""
        names, count = [u.client for u in seen], len(self.owners)
        order = [place % count for place in range(at + 1, at + count) if self.owners[place % count] in names]
        if len(order) < 2:
            return np.full((2, len(self.records[at])), np.nan)
        found = np.stack([eye.after(sent, seen, place, at) for place in order[: self.references]])
        return np.stack([found.mean(0), found.std(0, ddof=1)])


class _Eye:
    """A model to put weights into, and what stands in for layers that nobody sees."""

    def __init__(self, federation: Federation, look: Look) -> None:
        self.federation, self.look, self.bench = federation, look, federation.bench()

    def scores(self, weights: Weights, at: int) -> np.ndarray:
        """Of the records of one client (by its place), under weights that leave the clients."""
        data = self.look.records[at]
        if self.federation.private:
            weights = filled(self.bench, weights, self.federation.private, self.look.beside[at])
        losses = self.federation.objective.per_example_loss(self._outputs(weights, data), data.y)
        return logit(confidence(losses.double().nan_to_num(1e6).numpy()))

    def _outputs(self, weights: Weights, data: Data) -> torch.Tensor:
        """One way for every federation, attacked or shadow: roundings must not tell them apart."""
        quick = self.bench.batch_last
        if quick is None or not quick.fits(LOOKED_AT) or not len(data):
            return self.bench.outputs(weights, data)
        write(self.bench.model, weights)
        cuts = range(0, len(data), LOOKED_AT)
        return torch.cat([quick.outputs(data.inputs(slice(at, at + LOOKED_AT))) for at in cuts])

    def after(self, sent: Weights, seen: Sequence[Update], whose: int, at: int) -> np.ndarray:
        """The same under the model of a client: the best over its parts where it sends several."""
        mine = [u for u in seen if u.client in (self.look.owners[whose], EVERYBODY)]
        if not mine:
            return np.full(len(self.look.records[at]), np.nan)
        return np.asarray(np.max([self.scores(sent + u.delta, at) for u in mine], axis=0))


def filled(bench: Bench, shared: Weights, personal: frozenset[str], data: Data) -> Weights:
    """A whole model: the shared layers as they are, the personal ones learnt from ``data``, the others held still."""
    whole = shared | bench.initial.only(lambda name: name in personal)
    model = bench.model
    write(model, whole)
    model.eval()
    learnt = {name: p for name, p in model.named_parameters() if name in personal}
    optimiser = torch.optim.Adam(learnt.values(), lr=FILL_RATE)
    rng = Stream(0, -2, "examiner", "filled").numpy()
    for _ in range(FILL_STEPS):
        rows = torch.as_tensor(rng.choice(len(data), min(FILL_BATCH, len(data)), replace=False))
        loss = bench.loss(model(bench.inputs(data, rows)), bench.targets(data, rows))
        gradients = torch.autograd.grad(loss, list(learnt.values()))
        for parameter, gradient in zip(learnt.values(), gradients, strict=True):
            parameter.grad = gradient
        optimiser.step()
    vector = whole.vector.clone()
    for name, parameter in learnt.items():
        vector[whole.layout.slices[name]] = parameter.detach().reshape(-1).cpu()
        parameter.grad = None
    return whole.like(vector)


def looked_at(rounds: int, looks: int) -> tuple[int, ...]:
    """So many rounds, evenly spread, the first and the last among them."""
    return tuple(sorted({round(at) for at in np.linspace(0, rounds - 1, min(looks, rounds))}))


def history(kept: Iterable[tuple[int, tuple[Weights, list[Update]] | None]], last: Weights) -> Iterator[Round]:
    """A finished federation's rounds as far as they were kept, and then one of no number for the last model."""
    for index, found in kept:
        if found is not None:
            yield Round(index, found[0], tuple(found[1]), (), (), last)
    yield Round(-1, last, (), (), (), last)
