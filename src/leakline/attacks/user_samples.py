"""How long it takes to learn something about users from their updates: pieces of that, on made-up rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from leakline.attacks.base import Sample
from leakline.attacks.update_features import FEATURES, Feature
from leakline.attacks.users import LEARNERS, Learner, output_of, ridge
from leakline.federation import Federation

TREES = 50
"""So many trees of a forest are grown: with fewer, what a forest needs besides counts for too much."""


def samples_of(
    federation: Federation,
    features: Sequence[Feature],
    learners: Sequence[Learner],
    trees: int,
    folds: int,
    fits: int,
    looks: int,
) -> list[Sample]:
    """For each feature one user's row, and every learner and the ridge rule once, on rows of the size of what is sent.

    ``fits``: how often each is learnt in all; ``looks``: how often everybody's rows are made.
    """
    bench = federation.bench()
    sent, output = bench.initial.only(federation.shares), output_of(bench.initial)
    rng = np.random.default_rng(0)
    delta = sent.like(torch.from_numpy(rng.standard_normal(sent.vector.numel(), dtype=np.float32)))
    users = len(federation.task.clients)
    known, some = users - users // folds, min(trees, TREES)
    y = np.arange(known) % 2 == 0
    found = []
    for feature in features:
        row = partial(FEATURES[feature], sent, delta, output)
        rows = rng.standard_normal((users, len(row())), dtype=np.float32)
        x, asked = rows[:known], rows[known:]
        found += [_piece(row, 1 / (users * looks)), _piece(partial(ridge, x, asked), 1 / fits)]
        for learner in learners:
            share = (some / trees if learner == "forest" else 1.0) / fits
            found.append(_piece(partial(LEARNERS[learner], x, y, asked, 0, some), share))
    return found


def _piece(work: Callable[[], object], share: float) -> Sample:
    return Sample(lambda workers: work(), share, besides=True)
