"""What a Flower strategy says of itself about clip, noise and weights: its own settings, and those of its wrappers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    FedAvg,
    Strategy,
)

from leakline.stack import Stack

SETTINGS = {
    "clip": "clipping_norm", "noise_multiplier": "noise_multiplier", "clients": "num_sampled_clients",
    "quantile": "target_clipped_quantile", "rate": "clip_norm_lr", "bits_noise": "clipped_count_stddev",
}  # fmt: skip
"""Flower's names for what its differential-privacy wrappers are given; wrappers of others often share them."""
AT_CLIENTS = (DifferentialPrivacyClientSideFixedClipping, DifferentialPrivacyClientSideAdaptiveClipping)


def stated(strategy: Strategy, clients: float = 0.0) -> dict[str, Any]:
    """The fields of `leakline.recordings.claims.Claimed` that a strategy's settings fill, for rounds of ``clients``.

    Two wrappers that both add noise are not added up: then only names and weights are said.
    """
    chain = list(_chain(strategy))
    weighting = "examples" if type(chain[-1]).aggregate_train is FedAvg.aggregate_train else None
    said: list[dict[str, Any]] = []
    for member in chain:
        stack, settings = vars(member).get("stack"), vars(member)
        if isinstance(stack, Stack):
            said.append(dict(stack.stated(clients)))
            weighting = settings["weighting"] if weighting else None
        elif "clipping_norm" in settings and "noise_multiplier" in settings:
            at = {"clip_at": "client" if isinstance(member, AT_CLIENTS) else "server"}
            said.append({**at, **{ours: settings[theirs] for ours, theirs in SETTINGS.items() if theirs in settings}})
    table = said[0] if len(said) == 1 else {}
    by = " around ".join(type(member).__name__ for member in chain)
    return {**table, **({"weighting": weighting} if weighting else {}), "by": by}


def bound_now(strategy: Strategy) -> Mapping[str, float]:
    """The bound in force, where one of Flower's wrappers moves it from round to round."""
    settings: Mapping[str, Any] = next((vars(m) for m in _chain(strategy) if "target_clipped_quantile" in vars(m)), {})
    return {"clip": float(settings["clipping_norm"])} if settings else {}


def _chain(strategy: Strategy) -> Any:
    while True:
        yield strategy
        inner = vars(strategy).get("strategy")
        if not isinstance(inner, Strategy):
            return
        strategy = inner
