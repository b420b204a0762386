"""The server's strategies: how to combine, and how to step.

A menu entry is a function whose parameters are what a study file may set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from leakline.messages import Update
from leakline.strategies.combine import Combine, Mean, Median, Nova, PerStep, TrimmedMean, Weighting
from leakline.strategies.optimise import SGD, Adaptive, Optimiser, OwnBase, State

__all__ = [
    "MENU", "SGD", "Adaptive", "Combine", "Mean", "Median", "Nova", "Optimiser", "OwnBase", "PerStep", "State",
    "Strategy", "TrimmedMean", "Weighting", "fedadagrad", "fedadam", "fedavg", "fedavgm", "fedmedian", "fednova",
    "fedopt", "fedprox", "fedtrimmed", "fedyogi",
]  # fmt: skip


@dataclass(frozen=True)
class Strategy:
    """How many updates become the next model.

    ``proximal`` is FedProx's mu: it acts in the clients' local objective (see `Plan`), and is part of the strategy
    because that is where a study names it. ``warm_start`` says that the initial model is trained on the server's
    validation data first.
    """

    combine: Combine = Mean()
    optimiser: Optimiser = SGD()
    proximal: float = 0.0
    warm_start: bool = False

    def receive(self, updates: Iterator[Update]) -> Iterator[Update]:
        """Updates as the defences are to see them: as they came, or per local step."""
        return map(self.combine.prepare, updates)


Base = Literal["sent", "own"]
"""What the server's optimiser steps from: the model that was sent, or weights of its own; see `OwnBase`."""


def fedavg(weighting: Weighting = "examples", learning_rate: float = 1.0) -> Strategy:
    """Federated averaging (McMahan et al. 2017)."""
    return Strategy(Mean(weighting), SGD(learning_rate))


def fedavgm(
    weighting: Weighting = "examples", learning_rate: float = 0.1, momentum: float = 0.5, warm_start: bool = False,
    base: Base = "sent",
) -> Strategy:  # fmt: skip
    """Federated averaging with server momentum (Hsu et al. 2019); rates as paper 000 ran it, from a warm start.

    ``base = "own"``: as Flower's legacy class inside its DP wrapper, which paper 000 ran; see `OwnBase`.
    """
    return Strategy(Mean(weighting), _from(base, SGD(learning_rate, momentum)), warm_start=warm_start)


def fedmedian() -> Strategy:
    """Coordinate-wise median (Yin et al. 2018)."""
    return Strategy(Median())


def fedtrimmed(beta: float = 0.2) -> Strategy:
    """Coordinate-wise trimmed mean (Yin et al. 2018)."""
    return Strategy(TrimmedMean(beta))


def fedprox(mu: float = 0.1, weighting: Weighting = "examples") -> Strategy:
    """Federated averaging with a proximal term (mu/2)||w - w_global||^2 at the clients (Li et al. 2020).

    Flower's server only ships mu to the clients, and its example adds un-squared norms per tensor; here it is the
    squared norm of Li et al., eq. 2.
    """
    return Strategy(Mean(weighting), proximal=mu)


def fedopt(weighting: Weighting = "examples") -> Strategy:
    """What Flower's class FedOpt does: federated averaging from a warm-started model.

    Flower's FedOpt overrides no aggregation; it only requires an initial model. For the adaptive methods that the
    FedOpt paper is about, see fedadam, fedadagrad, fedyogi.
    """
    return Strategy(Mean(weighting), warm_start=True)


def fedadam(
    weighting: Weighting = "examples", learning_rate: float = 0.1, beta1: float = 0.9, beta2: float = 0.99,
    tau: float = 1e-3, correction: bool = True,
) -> Strategy:  # fmt: skip
    """Adam on the server (Reddi et al. 2021).

    Paper 004's code: even weights, ``learning_rate`` 0.003 (classification) or 0.03 (segmentation), ``beta1`` 0.9,
    ``beta2`` 0.99, ``tau`` 1e-9, ``correction`` false.
    """
    return Strategy(Mean(weighting), Adaptive("adam", learning_rate, beta1, beta2, tau, correction))


def fedadagrad(weighting: Weighting = "examples", learning_rate: float = 0.1, tau: float = 1e-3) -> Strategy:
    """Adagrad on the server (Reddi et al. 2021)."""
    return Strategy(Mean(weighting), Adaptive("adagrad", learning_rate, 0.0, 0.0, tau))


def fedyogi(
    weighting: Weighting = "examples", learning_rate: float = 0.01, beta1: float = 0.9, beta2: float = 0.99,
    tau: float = 1e-3, warm_start: bool = False, base: Base = "sent",
) -> Strategy:  # fmt: skip
    """Yogi on the server (Reddi et al. 2021); ``base`` as in fedavgm."""
    optimiser = Adaptive("yogi", learning_rate, beta1, beta2, tau)
    return Strategy(Mean(weighting), _from(base, optimiser), warm_start=warm_start)


def fednova(
    weighting: Weighting = "examples", steps: float = 0.0, noise: Literal["plain", "scaled"] = "plain"
) -> Strategy:
    """Normalised averaging: change per local step (Wang et al. 2020).

    ``steps = 0`` takes tau_eff from the round, after any clipping, as paper 004 does: no promise survives that. A
    number of steps given beforehand is public: updates are normalised first, then clipped, averaged and noised, and
    the result is taken ``steps`` times, noise included. The clip bound is then that of *one* step. Where all clients
    take equally many steps, and that number is given, both are the same but for the clip. ``noise`` as in `Nova`.
    """
    if noise not in ("plain", "scaled"):
        raise ValueError(f'noise must be "plain" or "scaled": {noise!r}')
    if steps < 0:
        raise ValueError(f"steps must not be negative: {steps}")
    return Strategy(PerStep(weighting), SGD(steps)) if steps else Strategy(Nova(weighting, noise))


def _from(base: Base, optimiser: SGD | Adaptive) -> Optimiser:
    if base not in ("sent", "own"):
        raise ValueError(f'base must be "sent" or "own": {base!r}')
    return OwnBase(optimiser) if base == "own" else optimiser


MENU: dict[str, Callable[..., Strategy]] = {
    "fedavg": fedavg,
    "fedavgm": fedavgm,
    "fedmedian": fedmedian,
    "fedtrimmed": fedtrimmed,
    "fedprox": fedprox,
    "fedopt": fedopt,
    "fedadam": fedadam,
    "fedadagrad": fedadagrad,
    "fedyogi": fedyogi,
    "fednova": fednova,
}
