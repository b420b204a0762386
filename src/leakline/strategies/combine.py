"""How the server makes one change out of many: mean, median, trimmed mean, FedNova.

Each takes the updates as an iterator. What is linear streams through one running sum, so that fifty updates of
six million values never lie in memory together; what needs all rows stacks them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leakline.messages import Receipt, Update
from leakline.privacy import NoClaim
from leakline.weights import Layout, Weights

Weighting = Literal["examples", "even"]


EVEN = "use an even mean"
"""What bounds the influence of a client."""


class Combine:
    """Many updates in, one change out; a subclass says how, and how far one client moves the result."""

    sums: ClassVar[bool] = False
    """Whether the sum of the updates is all that it needs, so that a server that sees nothing else can do it."""
    robust: ClassVar[bool] = False
    """Whether one update among many cannot decide the result, however long it is."""

    def __call__(self, updates: Iterable[Update]) -> Weights:
        """The combined change."""
        raise NotImplementedError(f"{type(self).__name__} must say how updates are combined")

    def prepare(self, update: Update) -> Update:
        """An update as the defences are to see it."""
        return update

    def gain(self, cohort: Sequence[Receipt]) -> float:
        """What the combined change is multiplied by once defences have added their noise: so the noise is too."""
        return 1.0

    def influence(self, clip: float, clients: float) -> float | NoClaim:
        """How far one of ``clients`` whose updates are no longer than ``clip`` moves the result, or why nobody can say.

        One update for each client: of an even mean C / n, with C = clip and n = clients.
        """
        return NoClaim(f"the influence of one client under {type(self).__name__} is not bounded by C/n", EVEN)


class _Running:
    """A weighted sum that grows in place."""

    def __init__(self) -> None:
        self.sum: Tensor | None = None
        self.weight = 0.0
        self.layout: Layout | None = None

    def add(self, update: Update, weight: float, scale: float = 1.0) -> None:
        factor = weight * scale
        if self.sum is None:
            self.sum, self.layout = update.delta.vector * factor, update.delta.layout
        else:
            self.sum.add_(update.delta.vector, alpha=factor)
        self.weight += weight

    def mean(self, factor: float = 1.0) -> Weights:
        if self.sum is None or self.layout is None:
            raise ValueError("no update to combine")
        return Weights(self.layout, self.sum.mul_(factor / self.weight))


@dataclass(frozen=True)
class Mean(Combine):
    """The mean of the updates, weighted by their number of examples (McMahan et al. 2017) or evenly."""

    weighting: Weighting = "examples"

    sums = True

    def influence(self, clip: float, clients: float) -> float | NoClaim:
        """C / n, if all count the same."""
        if self.weighting == "even":
            return clip / clients
        return NoClaim(
            "the mean is weighted by examples: a client's influence is C times its share, which exceeds C/n",
            'set weighting = "even" on the strategy',
        )

    def __call__(self, updates: Iterable[Update]) -> Weights:
        """The combined change."""
        running = _Running()
        for update in updates:
            running.add(update, float(update.examples) if self.weighting == "examples" else 1.0)
            del update  # not held while the next client trains
        return running.mean()


@dataclass(frozen=True)
class PerStep(Mean):
    """The mean of changes *per local step*: each update is divided by its steps before any defence sees it.

    mean of clip_C(delta_i / tau_i)        tau_i = steps of client i

    What FedNova averages, in an order under which a bound holds: one client moves an even mean by at most C / n
    whatever its step count. `Nova` divides after the clip. The server's optimiser then takes a public number of
    steps at once (see `fednova`), which scales what was noised already.
    """

    def prepare(self, update: Update) -> Update:
        """The change of one step."""
        return update.with_delta(update.delta.vector / max(update.steps, 1))


def rows(updates: Iterable[Update]) -> tuple[Tensor, Update]:
    """All updates as the rows of one matrix, and the last update for its layout."""
    held = list(updates)
    if not held:
        raise ValueError("no update to combine")
    return torch.stack([u.delta.vector for u in held]), held[-1]


@dataclass(frozen=True)
class Median(Combine):
    """The coordinate-wise median, un-weighted (Yin et al. 2018 take it of gradients, Flower of weights).

    The median of weights minus the weights sent is the median of updates, so both are this function. For an even
    number of clients: the mean of the middle two, as NumPy does.
    """

    robust = True

    def influence(self, clip: float, clients: float) -> NoClaim:
        """Not bounded by C / n."""
        return NoClaim("one client can move a median by as much as C, whatever n is", EVEN)

    def __call__(self, updates: Iterable[Update]) -> Weights:
        """The combined change."""
        held = [update.delta for update in updates]
        if not held:
            raise ValueError("no update to combine")
        middle = torch.empty_like(held[0].vector)
        # Block by block: what is compared stays in the cache, and the rows are never copied into one matrix.
        for start in range(0, len(middle), BLOCK):
            part = slice(start, start + BLOCK)
            middle[part] = _middle([delta.vector[part] for delta in held])
        return held[0].like(middle)


BLOCK = 65_536


def _middle(columns: list[Tensor]) -> Tensor:
    n = len(columns)
    if n <= 8:
        ordered = _sort_network(columns)
        return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    matrix = torch.stack(columns)
    low = matrix.kthvalue((n - 1) // 2 + 1, dim=0).values
    return low if n % 2 else (low + matrix.kthvalue(n // 2 + 1, dim=0).values) / 2


def _sort_network(columns: list[Tensor]) -> list[Tensor]:
    """Sorted by odd-even transposition: min/max over whole rows beats sorting tiny columns."""
    ordered = list(columns)
    for step in range(len(ordered)):
        for i in range(step % 2, len(ordered) - 1, 2):
            a, b = ordered[i], ordered[i + 1]
            ordered[i], ordered[i + 1] = torch.minimum(a, b), torch.maximum(a, b)
    return ordered


@dataclass(frozen=True)
class TrimmedMean(Combine):
    """The mean of each coordinate without its floor(beta * n) smallest and largest values (Yin et al. 2018)."""

    beta: float = 0.2

    robust = True

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 0.5:
            raise ValueError(f"beta must lie in [0, 0.5), not {self.beta}")

    def influence(self, clip: float, clients: float) -> NoClaim:
        """Not bounded by C / n."""
        return NoClaim("one client can move a trimmed mean by more than C/n", EVEN)

    def __call__(self, updates: Iterable[Update]) -> Weights:
        """The combined change."""
        matrix, like = rows(updates)
        cut = int(self.beta * len(matrix))
        ordered = matrix.sort(dim=0).values
        return like.delta.like(ordered[cut : len(matrix) - cut].mean(dim=0))


@dataclass(frozen=True)
class Nova(Combine):
    """FedNova: average the change *per local step*, then take tau_eff steps (Wang et al. 2020, arXiv:2007.07481).

    tau_eff * sum_i p_i * delta_i / tau_i        tau_i = steps of client i, tau_eff = sum_i p_i tau_i

    This is the form for plain local SGD, where a_i = (1, ..., 1). With equal steps it is the weighted mean. tau_eff
    is measured, and each update is rescaled after a defence clipped it: under `PerStep` neither is so.

    ``noise = "scaled"``: noise that a defence adds to the mean is taken tau_eff times with it, as paper 004's released
    code has it. ``"plain"``: it is added to the finished change.
    """

    weighting: Weighting = "examples"
    noise: Literal["plain", "scaled"] = "plain"

    def influence(self, clip: float, clients: float) -> NoClaim:
        """Not bounded: steps come in after the clip."""
        return NoClaim("FedNova rescales each update by its step count after the clip", EVEN)

    def __call__(self, updates: Iterable[Update]) -> Weights:
        """The combined change, or that of one step where the noise is to be scaled with it."""
        running, steps = _Running(), 0.0
        for update in updates:
            weight = self._weight(update.examples)
            running.add(update, weight, 1.0 / max(update.steps, 1))
            steps += weight * max(update.steps, 1)
        return running.mean(steps / running.weight if running.weight and self.noise == "plain" else 1.0)

    def gain(self, cohort: Sequence[Receipt]) -> float:
        """tau_eff of those who answered, where it is still to be applied."""
        whole = sum(self._weight(receipt.examples) for receipt in cohort)
        if self.noise == "plain" or not whole:
            return 1.0
        return sum(self._weight(receipt.examples) * max(receipt.steps, 1) for receipt in cohort) / whole

    def _weight(self, examples: int) -> float:
        return float(examples) if self.weighting == "examples" else 1.0
