"""What a node's policy says of a cell: said once in its log, and remembered, since accounting may take seconds."""

from __future__ import annotations

import hashlib
import logging

from flwr.app import ConfigRecord, Context

from leakline.federation import Federation
from leakline.flower.node.policy import Policy

KEPT = "leakline-policy"


def objected(policy: Policy, federation: Federation, context: Context, cell: int) -> str:
    """Why this node does not train in a cell of this run's study, in one line; "" if it does."""
    if policy == Policy():
        return ""
    about = repr((policy, cell, sorted(context.run_config.items())))
    key = hashlib.sha256(about.encode()).hexdigest()[:16]
    known = dict(context.state[KEPT]) if KEPT in context.state else {}
    if key not in known:
        known[key] = policy.objection(federation)
        context.state[KEPT] = ConfigRecord(known)
        if known[key]:
            logging.getLogger("leakline").warning("this node declines cell %s: %s", cell, known[key])
    return str(known[key])
