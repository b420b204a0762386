"""An exponential average of published models, kept beside the run: what a study may judge utility on.

    a_t = b_t a_(t-1) + (1 - b_t) w_t        b_t = min(b, (1 + t) / (10 + t))        w_t the model of round t

b_t lets the average forget its first models while it is young (De et al. 2022, arXiv:2204.13650). A function of what is
published anyway: no promise changes, and attacks meet the published models themselves.
"""

from __future__ import annotations

from dataclasses import replace

from leakline.federation import State
from leakline.messages import Round
from leakline.weights import Weights

PLACE = "average"
"""Where the server's memory holds it, so that it is saved with the run; defences are there by their number."""


def averaged(round_: Round, state: State, decay: float) -> Round:
    """The round with the average in the place of its model."""
    if not decay:
        return round_
    own, t = state.memory.setdefault(PLACE, {}), round_.index
    share = min(decay, (1 + t) / (10 + t))
    before = Weights(round_.result.layout, own["vector"]) if "vector" in own else round_.result
    average = before * share + round_.result * (1 - share)
    own["vector"] = average.vector
    return replace(round_, result=average)
