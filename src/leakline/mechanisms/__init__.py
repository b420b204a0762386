"""The mathematics of the defences: pure functions over vectors, shaped like their equations."""

from leakline.mechanisms.clip import clip_norm, norm_of
from leakline.mechanisms.distance import distances, metric_std, spread
from leakline.mechanisms.noise import add_gaussian, lattice
from leakline.mechanisms.quantile import follow_quantile, split_budget

__all__ = [
    "add_gaussian", "clip_norm", "distances", "follow_quantile", "lattice", "metric_std",
    "norm_of", "split_budget", "spread",
]  # fmt: skip
