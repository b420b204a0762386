"""What the server does with the combined change: plain SGD with momentum, or an adaptive method."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

State = dict[str, Tensor]


class Optimiser(Protocol):
    """A pure step: (change, state, round) -> (what to add to the model, next state)."""

    def step(self, change: Tensor, state: State, index: int) -> tuple[Tensor, State]:
        """One step; rounds count from 0."""
        ...

    @property
    def stateless(self) -> bool:
        """Whether a round's change appears in no later round, so that noise may also be added after the step."""
        ...

    @property
    def gain(self) -> float:
        """By how much a step may lengthen a change."""
        ...


@dataclass(frozen=True)
class SGD:
    """w <- w + eta * m,   m <- beta * m + change        eta = learning_rate, beta = momentum  (Hsu et al. 2019)

    As Flower's FedAvgM: the first momentum is the change itself, no dampening. (Paper 000 prints w - v with
    v made of local minus global weights, which would climb; the sign here descends.)
    """  # noqa: D415

    learning_rate: float = 1.0
    momentum: float = 0.0

    @property
    def stateless(self) -> bool:
        """True without momentum."""
        return self.momentum == 0

    @property
    def gain(self) -> float:
        """The learning rate; with momentum, that of all steps in which a change takes part."""
        return self.learning_rate / (1 - self.momentum) if self.momentum < 1 else math.inf

    def step(self, change: Tensor, state: State, index: int) -> tuple[Tensor, State]:
        """One step."""
        if self.momentum:
            change = change if not state else state["momentum"] * self.momentum + change
            state = {"momentum": change}
        return change * self.learning_rate if self.learning_rate != 1.0 else change, state


@dataclass(frozen=True)
class Adaptive:
    """FedAdagrad, FedAdam, FedYogi (Reddi et al. 2021, arXiv:2003.00295): one class, one line differs.

    m <- b1 m + (1 - b1) change
    v <- v + change^2                                    adagrad
         b2 v + (1 - b2) change^2                        adam
         v - (1 - b2) change^2 sign(v - change^2)        yogi
    w <- w + eta m / (sqrt(v) + tau)

    Defaults are Flower 1.41's, including v_0 = 0 (the paper has tau^2) and, for adam, Flower's bias correction
    with exponent round + 2 for rounds from 0 (``correction``); the released code of paper 004 corrects nothing.
    """

    kind: Literal["adam", "adagrad", "yogi"] = "adam"
    learning_rate: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    correction: bool = False
    stateless = False
    gain = math.inf

    def step(self, change: Tensor, state: State, index: int) -> tuple[Tensor, State]:
        """One step."""
        square = change * change
        m = state.get("m", torch.zeros_like(change)) * self.beta1 + change * (1 - self.beta1)
        v = state.get("v", torch.zeros_like(change))
        if self.kind == "adagrad":
            v = v + square
        elif self.kind == "adam":
            v = v * self.beta2 + square * (1 - self.beta2)
        else:
            v = v - (1 - self.beta2) * square * torch.sign(v - square)
        rate = self.learning_rate
        if self.correction:
            rate *= (1 - self.beta2 ** (index + 2)) ** 0.5 / (1 - self.beta1 ** (index + 2))
        return m / (v.sqrt() + self.tau) * rate, {"m": m, "v": v}
