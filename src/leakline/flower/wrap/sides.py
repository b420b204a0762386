"""Which side of a Flower app a defence acts on: in the ServerApp's strategy, in a ClientApp's mod, or in both.

    server   brief, admit, publish                       global-dp, adaptive-clip, metric-privacy
    client   accept, shares / kept, release              pinned-model, fedper, fedbn, percentile-gaussian, ldp-sgd ...
    both     split with brief, admit and publish         intermediaries (and ldp-sgd with a radius)

A defence that forms gradients works inside the training loop, which a mod never sees: it cannot be put into an app of
somebody else's. The same list goes to both sides; each does its half, and says so if the other half is not there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from leakline.defences import Defence
from leakline.errors import StackError
from leakline.stack import Stack
from leakline.study.describe import describe

CLIENT = ("accept", "shares", "kept", "split", "release")
SERVER = ("brief", "admit", "publish")
HEAD = "leakline"
"""The record that as_strategy sends along, and as_mod sends back."""


def checked(defences: Sequence[Defence]) -> Stack:
    """The stack, or why it cannot be put into an app of somebody else's."""
    stack = Stack(tuple(defences))
    if wishful := stack.wishful:
        raise StackError(
            f"{wishful} is asked for an epsilon, and how many rounds there will be is not known here",
            fix="give noise_multiplier: leakline.calibrate(epsilon, delta, rounds) computes it",
        )
    if owner := stack.using("gradient"):
        raise StackError(
            f"{owner} forms gradients inside the training loop, which a Flower mod never sees",
            fix="run the study on Flower instead: leakline run STUDY --on flower-sim",
        )
    return stack


def stack_key(stack: Stack) -> str:
    """A hash by which the two sides know that they were given the same list."""
    text = json.dumps(describe(stack.defences), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
