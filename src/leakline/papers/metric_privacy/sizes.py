"""Runs at the paper's size beside runs at another: one archive holds both, and no figure mixes them."""

from __future__ import annotations

from leakline.results import Results

PAPER_SIZE = "paper-size"
"""The scenario of the presets `core`: the paper's images, network and training."""
CORE = ("fedavg", "fedavgm", "fedopt")
"""The strategies that metric-privacy's preset `core` trains at the paper's size."""


def at_desk(results: Results) -> Results:
    """The finished cells but those at the paper's size beside them."""
    return results.finished.where(scenario=lambda scenario: scenario != PAPER_SIZE)


def at_paper_size(results: Results) -> Results:
    """The finished cells at the paper's size, beside others that are not."""
    return results.finished.where(scenario=PAPER_SIZE)
