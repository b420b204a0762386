"""What a federation's owners say they do, or their strategy says of itself: what rounds are held against."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

Where = Literal["server", "client"]
NUMBERS = ("clip", "noise_multiplier", "clients", "quantile", "rate", "bits_noise")
CHOICES = {"clip_at": ("server", "client"), "noise_at": ("server", "client"), "weighting": ("even", "examples")}


@dataclass(frozen=True)
class Claimed:
    """What is said about clip and noise; None: nothing is said about it.

    ``clip_at``: where updates are clipped. At the client a recorded update must keep to the bound; at the server it
    need not, but the mean of the clipped ones must be what the published model shows. ``noise_at``: where the noise is
    added, to the mean or (then clipped there too) to each update. ``noise_multiplier``: its std over the clip, of the
    *sum* at the server, of one update at a client. ``clients``: the n that the server divides its noise by.
    ``weighting``: how clients count; under much noise a round does not show it, and then the one that needs less
    noise is assumed.

    ``quantile`` and ``rate``: the bound of a round follows a quantile of the updates' lengths, C <- C exp(-rate (b -
    quantile)), b the share of clients whose update was *not* clipped, its count noised with std ``bits_noise`` (Andrew
    et al. 2021). The bounds themselves are then read from the rounds' facts, and ``noise_multiplier`` is that of the
    updates alone. ``by`` names who says so: a strategy, in a recording that holds its own words.
    """

    clip: float | None = None
    noise_multiplier: float | None = None
    clip_at: Where = "server"
    noise_at: Where = "server"
    weighting: Literal["even", "examples"] | None = None
    clients: float | None = None
    quantile: float | None = None
    rate: float | None = None
    bits_noise: float | None = None
    by: str = ""

    def __post_init__(self) -> None:
        for name in NUMBERS:
            value = getattr(self, name)
            if isinstance(value, str | bool):
                raise ValueError(f"{name} must be a number: {value!r}")
            if name in ("noise_multiplier", "bits_noise") and value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} must not be negative: {value}")
            if name in ("clip", "clients", "rate") and value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive: {value}")
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices and not (name == "weighting" and value is None):
                raise ValueError(f'{name} must be "{choices[0]}" or "{choices[1]}": {value!r}')
        if self.noise_at == "client":  # what is noised after it was clipped was clipped there
            object.__setattr__(self, "clip_at", "client")
        if self.quantile is not None and not 0 <= self.quantile <= 1:
            raise ValueError(f"quantile must lie between 0 and 1: {self.quantile}")
        if (self.quantile is None) != (self.rate is None):
            raise ValueError("a bound that follows a quantile has both: give quantile and rate")
        if self.noise_multiplier and self.clip is None:
            raise ValueError("a noise multiplier is a multiple of the clip bound: give clip too")

    @property
    def adaptive(self) -> bool:
        """Whether the bound moves from round to round."""
        return self.quantile is not None

    @property
    def local(self) -> bool:
        """Whether noise is added at the clients."""
        return self.noise_at == "client" and bool(self.noise_multiplier)

    def bound(self, facts: Mapping[str, float]) -> float | None:
        """The clip bound of a round with these facts; None where there is none, or where it is not recorded."""
        if not self.adaptive:
            return self.clip
        bound = facts.get("clip", math.nan)
        return bound if 0 < bound < math.inf else None

    def as_dict(self) -> dict[str, Any]:
        """What is said, and nothing that is not."""
        pairs = {field.name: getattr(self, field.name) for field in fields(self)}
        return {k: v for k, v in pairs.items() if v not in (None, "") and (v != "server" or self.clip is not None)}
