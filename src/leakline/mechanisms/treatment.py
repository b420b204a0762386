"""What a client does to what it sends, in terms that anybody may know: for whoever simulates the client.

Every defence on a client is a chain of acts on a vector u of d values,

    u -> s min(1, C / |u|) u + N(0, std^2 I)        s = scale, C = clip, std = noise

and settings are no secrets: only the noise itself is. An attacker who does the same to a simulated update
compares like with like, and weighs what is left by the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Act:
    """One act. ``scale`` may depend on the number of values, ``noise`` be judged by the values that were seen.

    ``buffers``: whether it covers BatchNorm's statistics beside the parameters.
    """

    clip: float = math.inf
    scale: float | Callable[[int], float] = 1.0
    noise: float | Callable[[Tensor], float] = 0.0
    buffers: bool = True

    def factor(self, square: Tensor, values: int) -> Tensor:
        """What a vector of so many values and this squared length is multiplied by, differentiably."""
        scale = self.scale(values) if callable(self.scale) else self.scale
        if math.isinf(self.clip):
            return torch.full_like(square, scale)
        return scale * (self.clip / square.clamp_min(1e-30).sqrt()).clamp_max(1.0)

    def std(self, seen: Tensor) -> float:
        """The standard deviation of its noise, given what was seen of its result."""
        return self.noise(seen) if callable(self.noise) else self.noise


@dataclass(frozen=True)
class Treatment:
    """All that a client does on the way out.

    ``examples`` is done to each example's gradient in every local step, its noise added to their sum; ``updates`` to
    the update, in order. ``buffers``: whether their change is sent. ``unknown`` names defences that do something
    nobody was told of.
    """

    examples: Act | None = None
    updates: tuple[Act, ...] = ()
    buffers: bool = True
    unknown: tuple[str, ...] = ()

    def then(self, other: Treatment) -> Treatment:
        """Both, one after the other; one of them at most treats examples (a stack has one owner of gradients)."""
        return Treatment(
            self.examples or other.examples, self.updates + other.updates,
            self.buffers and other.buffers, self.unknown + other.unknown,
        )  # fmt: skip

    @property
    def clips(self) -> bool:
        """Whether an update's own length decides what it is multiplied by."""
        return any(not math.isinf(act.clip) for act in self.updates)

    @property
    def quiet(self) -> Treatment:
        """The same without noise."""
        examples = None if self.examples is None else replace(self.examples, noise=0.0)
        return replace(self, examples=examples, updates=tuple(replace(act, noise=0.0) for act in self.updates))

    def heard(self, seen: Tensor, parameters: int) -> Treatment:
        """The same with the noise on updates as a number, judged once by what was seen, parameters first."""
        parts = [seen if act.buffers else seen[:parameters] for act in self.updates]
        acts = zip(self.updates, parts, strict=True)
        return replace(self, updates=tuple(replace(act, noise=act.std(part)) for act, part in acts))

    def factors(self, parameters: Tensor, buffers: Tensor, sizes: tuple[int, int], seen: Tensor) -> tuple[Tensor, ...]:
        """What an update's parameters and its buffers are multiplied by, all acts together.

        ``parameters`` and ``buffers`` are their squared lengths before, ``sizes`` their numbers of values. An act that
        clips what noise was added to is taken to meet noise of its expected length.
        """
        made = [torch.ones_like(parameters), torch.ones_like(buffers)]
        for act, (noise, _) in zip(self.updates, self._variances(seen, sizes), strict=True):
            square = made[0].square() * parameters + noise * sizes[0]
            if act.buffers:
                square = square + made[1].square() * buffers + noise * sizes[1]
            factor = act.factor(square, sizes[0] + (sizes[1] if act.buffers else 0))
            made = [made[0] * factor, made[1] * factor if act.buffers else made[1]]
        return tuple(made)

    def stds(self, seen: Tensor, sizes: tuple[int, int]) -> tuple[float, float]:
        """The standard deviation of all updates' noise on parameters and on buffers, from what was seen of both."""
        variances = self._variances(seen, sizes)
        over = variances[-1][1] if variances else (0.0, 0.0)
        return math.sqrt(over[0]), math.sqrt(over[1])

    def _variances(self, seen: Tensor, sizes: tuple[int, int]) -> list[tuple[float, tuple[float, float]]]:
        """Before each act the noise's variance on parameters, and after it that on parameters and on buffers."""
        found: list[tuple[float, tuple[float, float]]] = []
        on = (0.0, 0.0)
        for act in self.updates:
            before = on[0]
            count = sizes[0] + (sizes[1] if act.buffers else 0)
            factor = float(act.factor(torch.tensor(before * count, dtype=torch.float64), count)) if before else 1.0
            add = act.std(seen if act.buffers else seen[: sizes[0]]) ** 2
            on = (on[0] * factor**2 + add, on[1] * factor**2 + add if act.buffers else on[1])
            found.append((before, on))
        return found
