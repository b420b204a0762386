"""The numbers that paper 004 (client-level DP via intermediaries) prints, in percent, to stand beside ours."""

from __future__ import annotations

from dataclasses import dataclass

Pair = tuple[float, float]
"""Mean and standard deviation over three seeds."""

STRATEGIES = {
    "fedavg": "DP-FedAvg", "fedadam": "DP-FedAdam", "fednova": "DP-FedNova", "dp2-rmsprop": "DP2-RMSProp",
}  # fmt: skip
ROUNDS = 100


@dataclass(frozen=True)
class Task:
    """One half of Table 1: its two measures, noise multipliers, claimed epsilons, and rows by strategy.

    ``none`` is without privacy, ``plain`` with DP, ``ours`` with intermediaries; the last two hold for each z the
    pair of the first measure and that of the second.
    """

    name: str
    clients: int
    measures: tuple[str, str]
    shown: tuple[str, str]
    z: tuple[float, float, float]
    delta: float
    epsilon: tuple[float, float, float]
    none: dict[str, tuple[Pair, Pair]]
    plain: dict[str, tuple[tuple[Pair, Pair], ...]]
    ours: dict[str, tuple[tuple[Pair, Pair], ...]]


CLASSIFICATION = Task(
    "Intracranial hemorrhage diagnosis (N = 20)", 20, ("auc_binary", "accuracy"), ("AUC", "Acc"), (0.5, 1.0, 1.5), 0.01,
    (245.6, 72.4, 36.9),
    none={
        "fedavg": ((90.88, 0.15), (82.85, 0.26)), "fedadam": ((91.85, 0.30), (84.16, 0.56)),
        "fednova": ((90.89, 0.25), (83.00, 0.17)), "dp2-rmsprop": ((88.89, 0.02), (80.77, 0.25)),
    },
    plain={
        "fedavg": (((70.38, 0.61), (64.94, 0.28)), ((68.00, 1.43), (63.55, 1.12)), ((66.77, 0.12), (62.01, 0.58))),
        "fedadam": (((75.91, 0.28), (68.75, 0.16)), ((70.75, 2.18), (65.34, 0.64)), ((70.89, 2.05), (63.73, 1.16))),
        "fednova": (((71.84, 1.51), (66.25, 0.91)), ((69.26, 1.76), (63.75, 1.49)), ((68.45, 0.93), (63.21, 1.13))),
        "dp2-rmsprop": (
            ((70.59, 1.16), (64.92, 1.19)), ((67.43, 0.60), (62.05, 0.23)), ((65.91, 1.40), (61.77, 1.13)),
        ),
    },
    ours={
        "fedavg": (((82.42, 0.29), (74.87, 0.43)), ((80.84, 0.78), (73.37, 0.92)), ((80.77, 0.80), (72.95, 0.47))),
        "fedadam": (((82.86, 0.47), (75.20, 0.27)), ((81.63, 0.38), (73.99, 0.79)), ((80.55, 0.60), (73.06, 0.68))),
        "fednova": (((82.73, 0.38), (75.35, 0.27)), ((80.64, 0.57), (73.55, 0.78)), ((79.39, 0.41), (71.70, 0.35))),
        "dp2-rmsprop": (
            ((81.60, 0.68), (74.47, 0.95)), ((80.23, 0.22), (73.15, 0.44)), ((81.32, 0.50), (74.21, 0.85)),
        ),
    },
)  # fmt: skip

SEGMENTATION = Task(
    "Prostate MRI segmentation (N = 6)", 6, ("dice", "iou"), ("Dice", "IoU"), (0.3, 0.5, 0.7), 0.1,
    (597.3, 224.7, 119.4),
    none={
        "fedavg": ((87.69, 0.12), (79.62, 0.13)), "fedadam": ((87.63, 0.16), (79.65, 0.20)),
        "fednova": ((87.44, 0.35), (79.49, 0.29)), "dp2-rmsprop": ((87.46, 0.08), (80.00, 0.09)),
    },
    plain={
        "fedavg": (((41.43, 3.89), (29.28, 3.40)), ((22.45, 3.15), (13.50, 2.24)), ((13.59, 0.96), (7.41, 0.59))),
        "fedadam": (((38.24, 2.86), (38.24, 1.38)), ((16.50, 1.82), (15.03, 2.28)), ((9.15, 2.19), (5.49, 2.22))),
        "fednova": (((41.91, 6.34), (29.33, 5.78)), ((17.10, 7.45), (9.96, 4.81)), ((11.41, 0.64), (6.06, 0.38))),
        "dp2-rmsprop": (
            ((38.33, 2.44), (24.73, 3.80)), ((16.74, 0.83), (10.75, 0.99)), ((7.77, 0.41), (4.00, 0.23)),
        ),
    },
    ours={
        "fedavg": (((70.59, 1.55), (67.72, 0.47)), ((63.28, 4.69), (61.12, 0.50)), ((58.14, 4.71), (56.18, 7.21))),
        "fedadam": (((69.68, 1.45), (61.31, 0.71)), ((57.11, 6.30), (57.23, 1.17)), ((43.99, 9.04), (47.49, 7.81))),
        "fednova": (((70.80, 1.28), (66.64, 1.42)), ((68.63, 2.17), (63.99, 0.96)), ((58.99, 4.43), (59.14, 2.03))),
        "dp2-rmsprop": (
            ((63.05, 2.60), (63.05, 2.60)), ((53.53, 4.97), (60.84, 5.81)), ((47.82, 2.01), (59.66, 2.76)),
        ),
    },
)  # fmt: skip


def shown(pair: Pair) -> str:
    """A printed pair."""
    return f"{pair[0]:.2f} ± {pair[1]:.2f}"


def impossible(dice: Pair, iou: Pair) -> bool:
    """Whether a printed IoU is one that no masks have.

    IoU = Dice / (2 - Dice) <= Dice for every image, with equality at 0 and 1 only; a mean of many images that lies
    strictly between cannot have them equal or the other way round.
    """
    return 0 < dice[0] < 100 and iou[0] >= dice[0]
