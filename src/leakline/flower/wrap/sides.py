"""Which side of a Flower app a defence acts on: in the ServerApp's strategy, in a ClientApp's mod, or in both.

    server   brief, admit, publish                       global-dp, adaptive-clip, metric-privacy
    client   shares / kept, release                      fedper, fedbn, percentile-gaussian, gaussian-release, ldp-sgd
    both     split with brief, admit and publish         intermediaries (and ldp-sgd with a radius)

A defence that forms gradients works inside the training loop, which a mod never sees: it cannot be put into an app of
somebody else's. The same list goes to both sides; each does its half, and says so if the other half is not there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from leakline.defences import Defence, LdpSgd, hooks_of
from leakline.errors import StackError
from leakline.messages import Memory, Turn
from leakline.study.describe import describe
from leakline.weights import Layout

CLIENT = frozenset({"shares", "kept", "split", "release"})
SERVER = frozenset({"brief", "admit", "publish"})
HEAD = "leakline"
"""The record that as_strategy sends along, and as_mod sends back."""


def needs_client(defence: Defence) -> bool:
    """Whether a defence acts at the clients."""
    return bool(CLIENT & set(hooks_of(defence)))


def needs_server(defence: Defence) -> bool:
    """Whether a defence acts at the server."""
    if isinstance(defence, LdpSgd) and not defence.radius:
        return False  # without a ball its server is a plain one
    return bool(SERVER & set(hooks_of(defence)))


def checked(defences: Sequence[Defence]) -> tuple[Defence, ...]:
    """The stack, or why it cannot be put into an app of somebody else's."""
    for defence in defences:
        if not isinstance(defence, Defence):
            raise ValueError(f"a defence is needed, such as leakline.MetricPrivacy(...): {defence!r}")
        if "gradient" in hooks_of(defence):
            raise StackError(
                f"{type(defence).__name__} forms gradients inside the training loop, which a Flower mod never sees",
                fix="run the study on Flower instead: leakline run STUDY --on flower-sim",
            )
    return tuple(defences)


def stack_key(defences: Sequence[Defence]) -> str:
    """A hash by which the two sides know that they were given the same list."""
    text = json.dumps([describe(defence) for defence in defences], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def names(defences: Sequence[Defence]) -> str:
    """Defences in words."""
    return ", ".join(type(defence).__name__ for defence in defences)


def private(defences: Sequence[Defence], layout: Layout) -> frozenset[str]:
    """The entries that stay at the clients."""
    kept = frozenset(name for defence in defences for name in defence.kept(layout))
    if len(kept) == len(layout.entries):
        raise StackError("every layer stays at the clients: nothing would be learned together", fix="share a layer")
    return kept


def turn(
    defences: Sequence[Defence], place: int, index: int, party: str, memory: Memory, *, seed: int, secret: bool,
    expected: float = 0.0, values: int = 0, facts: dict[str, float] | None = None,
) -> Turn:  # fmt: skip
    """What the defence at ``place`` may use: addressed as in `leakline.federation.Federation.turn`."""
    kind = type(defences[place])
    twin = sum(type(other) is kind for other in defences[:place])
    return Turn(
        index, party, memory.setdefault(f"{place}", {}), seed, f"{kind.__name__}-{twin}", expected, values,
        False, secret, {} if facts is None else facts,
    )  # fmt: skip
