"""Small examples of every entry of the menus: settings under which each works, and federations that suit it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tiny
from leakline.attacks.audit.network import paper_002_cnn
from leakline.bench.training import Plan
from leakline.data import DATASETS, PARTITIONERS, partition
from leakline.data.base import Client, Task
from leakline.data.phantoms import Phantoms
from leakline.defences import GlobalDP, LdpSgd
from leakline.federation import Federation
from leakline.models.small import SmallCNN
from leakline.strategies import fedavg


@dataclass(frozen=True)
class Example:
    """How a contract makes one: ordinary settings, settings under which it does nothing, settings by strength."""

    ordinary: dict[str, Any]
    nothing: dict[str, Any] | None
    """None: it has no setting of strength zero."""
    weaker_to_stronger: tuple[dict[str, Any], ...] = ()
    """Empty: it promises nothing."""
    draws: bool = True
    """Whether it draws noise at all."""
    needs: dict[str, Any] = field(default_factory=dict)
    """What its federation must have."""


def scaled(**fixed: Any) -> tuple[dict[str, Any], ...]:
    return tuple({**fixed, "noise_multiplier": z} for z in (0.1, 1.0, 10.0))


DEFENCES = {
    "global-dp": Example(
        {"noise_multiplier": 1.0, "clip": 0.5}, {"noise_multiplier": 0.0, "clip": 1e6}, scaled(clip=0.5)
    ),
    "adaptive-clip": Example(
        {"noise_multiplier": 1.0, "clip": 0.5}, {"noise_multiplier": 0.0, "clip": 1e6, "rate": 0.0}, scaled(clip=0.5)
    ),
    "metric-privacy": Example(
        {"noise_multiplier": 1.0, "clip": 0.5},
        {"noise_multiplier": 0.0, "clip": 1e6},
        scaled(clip=0.5, distance=1.5),
    ),
    "intermediaries": Example(
        {"noise_multiplier": 1.0, "clip": 0.5, "parts": 3},
        {"noise_multiplier": 0.0, "clip": 1e6, "parts": 1},
        scaled(clip=0.5, parts=3),
    ),
    "dp2-rmsprop": Example({"interval": 1, "rate": 0.01}, None, draws=False),
    # Its noise is in its gradients: not bit-equal to another way to sum, and not in the hooks that act on updates.
    "dp-sgd": Example({"noise_multiplier": 1.0, "clip": 0.5}, None, scaled(clip=0.5), draws=False),
    "distributed-dp": Example(
        {"noise_multiplier": 1.0, "clip": 0.5, "rate": 1.0, "planned": 4.0, "clients": 3},
        None,
        scaled(clip=0.5, rate=1.0, planned=4.0, clients=3),
        draws=False,
        needs={"min_clients": 3},
    ),
    "ldp-sgd": Example({"epsilon": 2.0}, None, tuple({"epsilon": e} for e in (8.0, 2.0, 0.5))),
    "gaussian-release": Example(
        {"noise_multiplier": 1.0, "clip": 0.5}, {"noise_multiplier": 0.0, "clip": 1e6}, scaled(clip=0.5)
    ),
    "percentile-gaussian": Example({"sigma0": 0.5}, {"sigma0": 0.0}),
    "fedper": Example({"last": 1}, None, draws=False),
    "fedbn": Example(
        {}, None, draws=False, needs={"model": tiny.image_net, "task": tiny.task((8, 12, 12), tiny.IMAGE)}
    ),
    "hide-layers": Example({"first": 1}, None, draws=False),
    "gaussian-noise": Example({"std": 0.1}, {"std": 0.0}),
    "replayed-noise": Example(
        {"clip": 0.5, "sigmas": (0.1, 0.3, 0.2)}, {"clip": 1e6, "sigmas": (0.0, 0.0, 0.0)}, needs={"rounds": 3}
    ),
    "pinned-model": Example({}, {}, draws=False),
}


ATTACKS = {
    "loss-threshold": {"records": 20},
    "client-inference": {"worlds": 2, "shadow": 0.2},
    "membership-inference": {"records": 16, "shadows": 4},
    "user-membership": {"folds": 2, "worlds": 1, "trees": 5},
    "attribute-inference": {"trait": "gender", "folds": 2, "repeats": 1, "trees": 5, "server": "passive"},
    "label-inference": {"worlds": 9, "confidence": 0.9},
    "gradient-inversion": {"iterations": 3, "restarts": 1, "clients": ("a", "b")},
    "imprint": {"bins": 20, "sets": 2},
    "audit": {"trials": 4000, "confidence": 0.9},
    "in-run-audit": {"canaries": 60},
    "ldp-distinguish": {"measurements": 1, "trials": 40, "clients": (1,), "steps": (1.0,), "norms": (0.5,)},
}
"""Settings with which an attack is over in a moment."""


def people() -> Federation:
    """Eight clients with a trait and data that they do not train on."""
    clients = tuple(
        Client(chr(97 + i), tiny.blobs(12, i + 1), tiny.blobs(8, i + 31), {"gender": "wm"[i % 2]}) for i in range(8)
    )
    return Federation(tiny.task(clients=clients), tiny.perceptron, Plan(learning_rate=0.1), rounds=1)


def hospitals() -> Federation:
    """Two clients with one image each, and public images of others."""
    data = Phantoms(examples=40, size=32, seed=1).load().train
    clients = tuple(Client(name, data.take([i])) for i, name in enumerate("ab"))
    task = Task(clients, None, data.take(range(2, 40)), ("0", "1", "2", "3"))
    return Federation(task, SmallCNN((4,), 8, "softplus", "batch", "average"), Plan(learning_rate=0.05), rounds=1)


def digits() -> Federation:
    """Three clients with images, under the one defence whose law paper 002's rules know."""
    task = partition(DATASETS["digits"](limit=300).load(), PARTITIONERS["even"](), clients=3, seed=0)
    return Federation(
        task, lambda: paper_002_cnn((1, 8, 8), 10), Plan(batch=0, learning_rate=1.0), fedavg("even", 0.001),
        (LdpSgd(4.0),), rounds=1, noise="seeded",
    )  # fmt: skip


def audited() -> Federation:
    """People under a defence whose promise can be audited."""
    return people().but(defences=(GlobalDP(1.0, 1.0),), strategy=fedavg("even"))


WORLDS = {
    "gradient-inversion": hospitals,
    "imprint": hospitals,
    "ldp-distinguish": digits,
    "audit": audited,
    "in-run-audit": audited,
}


def world(attack: str) -> Federation:
    """A federation that suits an attack of the menu."""
    return WORLDS.get(attack, people)()
