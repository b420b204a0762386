"""The mathematics of the defences: pure functions over vectors, shaped like their equations."""

from leakline.mechanisms.clip import clip_norm, norm_of
from leakline.mechanisms.distance import distances, metric_std, spread
from leakline.mechanisms.intermediaries import (
    client_mu,
    code_parts,
    cosine_spread,
    deal,
    intermediary_ratio,
    median_bound,
    paper_parts,
    public_parts,
    shown_values,
)
from leakline.mechanisms.noise import add_gaussian, lattice
from leakline.mechanisms.quantile import follow_quantile, split_budget

__all__ = [
    "add_gaussian", "client_mu", "clip_norm", "code_parts", "cosine_spread", "deal", "distances", "follow_quantile",
    "intermediary_ratio", "lattice", "median_bound", "metric_std", "norm_of", "paper_parts", "public_parts",
    "shown_values", "split_budget", "spread",
]  # fmt: skip
