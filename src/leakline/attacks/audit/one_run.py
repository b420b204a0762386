"""An audit from a single run: many canaries at once, each there or not by a coin (Steinke et al. 2023).

For stacks that are too costly to repeat, or whose state runs through the rounds: the real loop runs once, with its
memory, and every client is a canary of its own. `leakline.leakage.one_run_bound` turns right guesses into epsilon.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from leakline.attacks.audit.channel import released
from leakline.attacks.audit.crafters import SIZE
from leakline.attacks.audit.questions import one_release
from leakline.attacks.audit.workbench import shell
from leakline.data.base import Client, Data, Task
from leakline.defences import Defence
from leakline.federation import Federation, State, federate, keep_none
from leakline.leakage.epsilon import EpsilonBound
from leakline.leakage.one_run import one_run_bound, one_run_mu_bound_from_scores
from leakline.messages import Dropped, Order, Update
from leakline.privacy import Claim, gdp_epsilon
from leakline.strategies import fedavg
from leakline.weights import Entry, Weights


@dataclass(frozen=True)
class _Canaries:
    """A transport whose client i sends a long vector along axis i, or nothing."""

    federation: Federation
    present: dict[str, bool]
    axis: dict[str, int]

    def exchange(self, orders: Sequence[Order]) -> Iterator[Update | Dropped]:
        """Everybody answers."""
        for order in orders:
            change = torch.zeros(self.federation.wire.size)
            change[self.axis[order.client]] = SIZE if self.present[order.client] else 0.0
            update = Update(order.client, Weights(self.federation.wire, change), 1, 1)
            yield released(self.federation, update, order.round, {})


def one_run(
    defences: Defence | Sequence[Defence],
    *,
    canaries: int = 400,
    rounds: int = 1,
    guesses: int = 0,
    delta: float = 1e-5,
    confidence: float = 0.99,
    seed: int = 0,
    **settings: object,
) -> EpsilonBound:
    """Lower bound on a participant's epsilon for one client, all rounds together, from one run of the real loop.

    ``canaries`` clients each take part with a vector of their own or with nothing. The observer adds up what each
    axis of the published model did, and guesses the ``guesses`` most telling ones (0: a quarter of them): half as
    present, half as absent. That number is fixed beforehand, as the bound demands. Where the stack promises mu-GDP
    and ``guesses`` is 0, the bound is that of the promise's whole trade-off curve (Mahloujifar et al. 2024), with
    half, a quarter and an eighth of the canaries guessed: if it is above the promise, the promise is broken.
    """
    if canaries < 8:
        raise ValueError(f"a single run needs at least 8 canaries, not {canaries}")
    stack = (defences,) if isinstance(defences, Defence) else tuple(defences)
    names = [f"client-{i}" for i in range(canaries)]
    one = Data(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64))
    federation = Federation(
        task=Task(tuple(Client(name, one) for name in names), None, None, ("a", "b"), name="canaries"),
        model=shell((Entry("axes", (canaries,)),)),
        strategy=fedavg("even"),
        defences=stack,
        rounds=rounds,
        seed=seed,
    ).but(**settings)
    bits = np.random.default_rng([seed, 5]).random(canaries) < 0.5
    cohort = _Canaries(
        federation, dict(zip(names, bits.tolist(), strict=True)), {name: i for i, name in enumerate(names)}
    )
    state = State(weights=Weights.zeros(federation.wire))
    score: Tensor = torch.zeros(canaries)
    for round_ in federate(federation, cohort, keep=keep_none, state=state):
        score = score + (round_.result.vector - round_.sent.vector)
    claims = [claim for claim in federation.claims().values() if isinstance(claim, Claim)]
    if claims and not guesses and all(one_release(claim)[0] == "mu" for claim in claims):
        mu = one_run_mu_bound_from_scores(score.numpy(), bits, confidence)
        point, low, most = (gdp_epsilon(value, delta) for value in (mu.point, mu.low, mu.ceiling))
        return EpsilonBound(point, low, confidence, f"{mu.method}, {rounds} rounds", mu.trials, most, delta)
    half = (guesses or canaries // 4) // 2
    order = np.argsort(score.numpy(), kind="stable")
    correct = int(bits[order[-half:]].sum() + (~bits[order[:half]]).sum())
    found = one_run_bound(canaries, 2 * half, correct, delta, confidence)
    return replace(found, method=f"{found.method}, {rounds} rounds")
