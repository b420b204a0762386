"""What the server does with the combined change: plain SGD with momentum, or an adaptive method."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

State = dict[str, Tensor]


class _Heedless:
    """An optimiser whose base is the model that was sent: what defences added to it is part of it."""

    def told(self, step: Tensor, published: Tensor, state: State) -> State:
        """The same state: nothing is kept of it."""
        return state


class Optimiser(Protocol):
    """A pure step: (change, state, round) -> (what to add to the model, next state)."""

    def step(self, change: Tensor, state: State, index: int) -> tuple[Tensor, State]:
        """One step; rounds count from 0."""
        ...

    def told(self, step: Tensor, published: Tensor, state: State) -> State:
        """The state once it is known what defences made of a step before it was published."""
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
class SGD(_Heedless):
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
class Adaptive(_Heedless):
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


@dataclass(frozen=True)
class OwnBase:
    """An optimiser that steps from weights of its own, to which no noise was ever added (Flower's legacy strategies).

    Flower's legacy FedAvgM and FedYogi keep the model that they made themselves; a DP wrapper around them adds noise
    e_t to what is sent, and they never hear of it:

        sent_t = w_t + e_t,    w_(t+1) = w_t + step(mean_t + e_t),    mean_t of updates of clients that began at sent_t

    So noise does not pile up from round to round as it does where the base is what was sent: it comes back as if it
    were a change, and only as far as the step follows it. Released after noise, un-noised sums stay in the base, so
    nothing can be promised; a noise before the step leaves e at 0 and this has no effect.
    """

    inner: SGD | Adaptive
    stateless = False

    @property
    def gain(self) -> float:
        """That of the optimiser inside."""
        return self.inner.gain

    def step(self, change: Tensor, state: State, index: int) -> tuple[Tensor, State]:
        """One step from the own base, as what is to be added to the model that was sent."""
        inner = {key: value for key, value in state.items() if key != "added"}
        if "added" not in state:
            return self.inner.step(change, inner, index)
        step, inner = self.inner.step(change + state["added"], inner, index)
        return step - state["added"], inner

    def told(self, step: Tensor, published: Tensor, state: State) -> State:
        """Remember e: how far the published model lies from the own base."""
        return {**state, "added": published - step}
