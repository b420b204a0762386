"""The named ways to invert gradients, of paper 001 and of others, as settings of one engine."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from leakline.attacks.inversion.intercepted import Labels
from leakline.attacks.inversion.objective import Terms
from leakline.attacks.inversion.schedule import Search

Variant = Literal["grad+bn", "paper", "dlg", "geiping", "bn-only", "deep-inversion"]
Statistics = Literal["client", "global", "none"]


@dataclass(frozen=True)
class Method:
    """A variant: what it matches, how it searches, whose statistics it takes, how it comes by labels."""

    terms: Terms
    search: Search
    statistics: Statistics = "client"
    labels: Labels = "restored"


_PIXELS = Search(optimiser="adam", levels=(1.0,), restarts=1, patience=1000)

VARIANTS: dict[Variant, Method] = {
    "grad+bn": Method(Terms(smooth=100.0), Search()),
    "paper": Method(
        Terms(
            update=1.0,
            distance="norms",
            statistics=1.0,
            moments="norms",
            exposed=0.0,
            label=1.0,
            variation=1e-4,
            energy=1e-5,
            box=0.0,
        ),
        replace(_PIXELS, rate=0.1, warm_up=100),
        labels="trainable",
    ),
    "dlg": Method(
        Terms(update=1.0, distance="l2", statistics=0.0, exposed=0.0, box=0.0),
        Search(levels=(1.0,), restarts=1),
        "none",
        "trainable",
    ),
    "geiping": Method(
        Terms(update=1.0, distance="cosine", statistics=0.0, exposed=0.0, variation=0.1, box=1.0),
        replace(_PIXELS, rate=0.02, signed=True),
        "none",
    ),
    "bn-only": Method(
        Terms(update=0.0, statistics=1.0, exposed=0.0, label=0.1, variation=1e-3, energy=1e-5),
        replace(_PIXELS, rate=0.02, warm_up=100),
        labels="trainable",
    ),
    "deep-inversion": Method(
        Terms(update=0.0, statistics=1.0, exposed=0.0, label=0.1, variation=1e-3, energy=1e-5),
        replace(_PIXELS, rate=0.02, warm_up=100),
        "global",
    ),
}
"""The named attacks, as settings of one engine.

  grad+bn         ours: update and batch statistics matched, exactly read inputs, coarse to fine, L-BFGS
  paper           paper 001's equations 1 to 5: un-squared norms of the update's and of the statistics' mismatch, the
                  classes' loss, total variation and energy; labels searched for, Adam over pixels. Weights of the
                  image terms, rate and warm-up are the released code's, the others 1 as in equation 1; the update's
                  norms are divided by those that were observed. Use reading = "paper" for equations 3 and 4 beyond one
                  step
  dlg             Zhu et al. 2019: squared distance, labels searched for, L-BFGS over pixels
  geiping         Geiping et al. 2020: cosine distance, total variation, signed Adam; knows nothing of statistics
  bn-only         what paper 001's released code amounts to: class loss and the client's batch statistics, no matching
  deep-inversion  Yin et al. 2020: class loss and the global model's own statistics; uses no update at all
"""

SETTINGS: dict[str, type] = {f.name: part for part in (Terms, Search) for f in fields(part)}
"""What `GradientInversion.settings` may say, and of which part of the engine it is a field."""
