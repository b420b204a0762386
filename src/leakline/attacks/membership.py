"""Membership inference: was this record used for training?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from leakline.attacks.base import Attack, Challenge, Lab
from leakline.data.base import Data
from leakline.leakage.guessing import auc, tpr_at_fprs
from leakline.privacy import Seat
from leakline.readings import Reading
from leakline.views import PublicView, public_view


@dataclass(frozen=True)
class LossThreshold(Attack):
    """Membership by loss: records used for training tend to be fitted better (Yeom et al. 2018).

    Members are records that clients trained on, the others come from the server's test data, equally many of each.
    """

    records: int = 400
    seat: ClassVar[Seat] = Seat.PUBLIC

    def challenges(self, lab: Lab) -> Iterator[Challenge]:
        """One batch of members and one of others; an attacker answers both without knowing which is which."""
        test = lab.federation.task.test
        if test is None:
            return
        rng = lab.stream("membership").numpy()
        clients = lab.federation.task.clients
        pool = [(c, row) for c in clients for row in range(len(c.train))]
        half = min(self.records // 2, len(test), len(pool))
        chosen = [pool[i] for i in rng.choice(len(pool), half, replace=False)]
        view = public_view(lab.federation, lab.final_weights())
        x = torch.cat([c.train.x[row : row + 1] for c, row in chosen])
        y = torch.cat([c.train.y[row : row + 1] for c, row in chosen])
        yield Challenge(view, Data(x, y), np.ones(half, dtype=bool))
        yield Challenge(view, test.take(rng.choice(len(test), half, replace=False)), np.zeros(half, dtype=bool))

    def guess(self, view: PublicView, hints: Data) -> np.ndarray:
        """The smaller the loss, the likelier a member."""
        return -view.losses(hints).numpy()

    def measure(self, guesses: Sequence[Any], secrets: Sequence[Any]) -> list[Reading]:
        """Area under the curve and true positives at few false ones."""
        scores, members = np.concatenate(guesses).astype(float), np.concatenate(secrets)
        found = auc(scores, members)
        n = len(scores)
        curve = tpr_at_fprs(scores, members).items()
        return [
            Reading("auc", found.value, found.low, found.high, n, chance=0.5),
            *(Reading("tpr", t.value, t.low, t.high, n, chance=fpr, about={"fpr": fpr}) for fpr, t in curve),
        ]
