"""Clip and Gaussian noise at the client: a local promise, against the server itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from leakline.defences.base import Terms, beside_updates, splitter
from leakline.defences.noised import Noised
from leakline.mechanisms import add_gaussian, clip_norm
from leakline.mechanisms.treatment import Act, Treatment
from leakline.messages import Turn, Update
from leakline.privacy import Adjacency, Claim, Gaussian, NoClaim, Seat, Unit


@dataclass(frozen=True)
class GaussianRelease(Noised):
    """Local DP with Gaussian noise: each update is clipped and noised before it leaves the client.

    clip_C(update) + N(0, (z C)^2 I)        z = noise_multiplier, C = clip

    Two updates of length C may point opposite ways, so one client moves its release by 2C: mu = 2/z per round
    under replace-one. (Noise for a sensitivity of C, or of anything that is not tied to the clip, promises too
    much.) This is the formal variant of paper 001's filter. Losses and other figures are taken out of a report.
    """

    @property
    def treatment(self) -> Treatment:
        """The clip and the noise."""
        return Treatment(updates=(Act(self.clip, noise=self.noise_multiplier * self.clip),))

    def release(self, update: Update, turn: Turn) -> Update:
        """Clip, then add noise to every entry, buffers included."""
        std = self.noise_multiplier * self.clip
        noised = add_gaussian(clip_norm(update.delta.vector, self.clip), std, turn.noise())
        return replace(update, metrics={}).with_delta(noised)

    def claim(self, federation: Terms, facts: Sequence[Mapping[str, float]] = ()) -> Claim | NoClaim:
        """Client-level against the server; sampling clients hides nothing from it, so nothing is amplified."""
        if self.noise_multiplier == 0:
            return NoClaim("no noise is added (noise multiplier 0)", "set noise_multiplier above 0")
        if other := splitter(federation):
            return NoClaim(
                f"{other} makes a client send several reports a round",
                f"every single report has mu = {2 / self.noise_multiplier:.3g}",
            )
        return Claim(
            unit=Unit.CLIENT,
            adjacency=Adjacency.REPLACE_ONE,
            observer=Seat.SERVER,
            events=(Gaussian(2 / self.noise_multiplier, times=federation.rounds),),
            outside=beside_updates(federation),
        )
