"""A client's records scored in worlds with and without it, one by one: what other worlds say of this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leakline.attacks.worlds import World
from leakline.data.base import Client, Data
from leakline.leakage.likelihood import confidence, expit, lira_online, logit


@dataclass(frozen=True)
class Calibration:
    """What the attacker has of some records: scores here (rounds, records) and in worlds that it made itself.

    ``elsewhere`` has worlds first; ``present`` says in which of them the target was.
    """

    here: np.ndarray
    elsewhere: np.ndarray
    present: np.ndarray

    def ratio(self) -> float:
        """The mean over records and rounds of the log likelihood ratio of being there."""
        taken = np.repeat(self.present[:, None], self.here.shape[1], axis=1)
        rounds = range(len(self.here))
        found = [lira_online(expit(self.here[r]), expit(self.elsewhere[:, r]), taken).mean() for r in rounds]
        return float(np.mean(found))


@dataclass(frozen=True)
class Scores:
    """The scores of all records that an attacker may hold, in every world (worlds, rounds, records)."""

    table: np.ndarray
    present: np.ndarray
    pair: np.ndarray

    @classmethod
    def of(cls, worlds: Sequence[World], target: Client, population: Data | None) -> Scores:
        """Of the target's training data, its test part and the population, under every model but the initial one."""
        parts = [data for data in (target.train, target.test, population) if data is not None]
        table = []
        for world in worlds:
            bench, loss = world.federation.bench(), world.federation.objective.per_example_loss
            rows = []
            for weights in world.published[1:]:
                losses = [loss(bench.outputs(weights, data), data.y).double().nan_to_num(1e6).numpy() for data in parts]
                rows.append(logit(confidence(np.concatenate(losses))))
            table.append(rows)
        return cls(np.array(table), np.array([w.present for w in worlds]), np.array([w.pair for w in worlds]))

    def of_world(self, number: int, rows: np.ndarray) -> Calibration:
        """Some records in one world, with all pairs but its own as what the attacker made."""
        others = self.pair != self.pair[number]
        return Calibration(self.table[number][:, rows], self.table[others][:, :, rows], self.present[others])
