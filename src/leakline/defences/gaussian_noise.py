"""Gaussian noise on updates that nobody clipped: paper 003's "LDP" under its honest name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leakline.defences.base import Defence, Terms
from leakline.mechanisms import add_gaussian
from leakline.mechanisms.treatment import Act, Treatment
from leakline.messages import Turn, Update
from leakline.privacy import NoClaim


@dataclass(frozen=True)
class GaussianNoise(Defence):
    """Add N(0, std^2) to every update as it is; without a clip this promises nothing (paper 003's "LDP").

    update + N(0, std^2 I)

    The paper writes N(0, 0.01) and does not say whether 0.01 is the variance or the standard deviation: ``std =
    0.1`` is the first reading (the usual notation), ``std = 0.01`` the second; they differ tenfold. Its formula puts
    the noise into each step of SGD, its text on the update; this follows the text. The clipped, accounted version
    is gaussian-release.
    """

    std: float = 0.1

    def __post_init__(self) -> None:
        if not self.std >= 0:
            raise ValueError(f"std must not be negative: {self.std}")

    @property
    def loudness(self) -> float:
        """The standard deviation."""
        return self.std

    @property
    def treatment(self) -> Treatment:
        """The noise."""
        return Treatment(updates=(Act(noise=self.std),))

    def release(self, update: Update, turn: Turn) -> Update:
        """Add the noise."""
        return update.with_delta(add_gaussian(update.delta.vector, self.std, turn.noise()))

    def claim(self, federation: Terms, facts: Sequence[Mapping[str, float]] = ()) -> NoClaim:
        """None: an update may be as large as it likes, so no amount of noise hides it."""
        return NoClaim(
            f"N(0, {self.std:g}^2) on updates without a bound: one client may move its own by any amount",
            "use gaussian-release, which clips first",
        )
