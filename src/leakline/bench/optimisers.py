"""The clients' optimisers on a CPU: torch's arithmetic without importing the compiler that torch.optim needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Steps(Protocol):
    """What training needs of an optimiser; torch's own have it."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        ...

    def step(self) -> object:
        """Move the parameters."""
        ...


class _Direct:
    """Optimisers for float32 on a CPU, bit-equal to torch's, that start at once.

    Using anything of ``torch.optim`` imports the compiler (torch._dynamo): a second or more in every fresh process.
    """

    def __init__(self, parameters: Sequence[Tensor], rate: float, weight_decay: float) -> None:
        self.parameters, self.rate, self.weight_decay = list(parameters), rate, weight_decay

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None


def _like(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient in its parameter's own layout of memory: the fused kernel walks through both side by side."""
    same = gradient.stride() == parameter.stride()
    return gradient if same else torch.empty_like(parameter).copy_(gradient)


class Adam(_Direct):
    """Adam (Kingma and Ba 2015) with torch's default betas and epsilon, by the fused kernel that torch.optim calls.

    ``amsgrad``: it divides by the largest second moment that there was so far (Reddi et al. 2018).
    """

    def __init__(self, parameters: Sequence[Tensor], rate: float, weight_decay: float, amsgrad: bool = False) -> None:
        super().__init__(parameters, rate, weight_decay)
        self.amsgrad = amsgrad
        moments = 3 if amsgrad else 2
        self.state = [(torch.zeros(()), *(torch.zeros_like(p) for _ in range(moments))) for p in parameters]

    @torch.no_grad()
    def step(self) -> None:
        """Move the parameters."""
        live = [
            (p, _like(p, p.grad), *s) for p, s in zip(self.parameters, self.state, strict=True) if p.grad is not None
        ]
        if not live:
            return
        parameters, gradients, counts, first, second, *more = (list(column) for column in zip(*live, strict=True))
        largest: list[Tensor] = more[0] if more else []
        torch._foreach_add_(counts, 1)
        torch._fused_adam_(
            parameters, gradients, first, second, largest, counts, lr=self.rate, beta1=0.9, beta2=0.999,
            weight_decay=self.weight_decay, eps=1e-8, amsgrad=self.amsgrad, maximize=False,
        )  # fmt: skip


class Sgd(_Direct):
    """Stochastic gradient descent with momentum as torch has it (the first step takes the gradient whole)."""

    def __init__(self, parameters: Sequence[Tensor], rate: float, momentum: float, weight_decay: float) -> None:
        super().__init__(parameters, rate, weight_decay)
        self.momentum, self.velocity = momentum, dict[int, Tensor]()

    @torch.no_grad()
    def step(self) -> None:
        """Move the parameters."""
        for i, parameter in enumerate(self.parameters):
            change = parameter.grad
            if change is None:
                continue
            if self.weight_decay:
                change = change.add(parameter, alpha=self.weight_decay)
            if self.momentum:
                old = self.velocity.get(i)
                change = change.clone() if old is None else old.mul_(self.momentum).add_(change)
                self.velocity[i] = change
            parameter.add_(change, alpha=-self.rate)
