"""What a node runs, said at its introduction and compared before anything is trained."""

from __future__ import annotations

import logging
import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from leakline import __version__
from leakline.errors import StackError
from leakline.names import printable

MUST = "leakline"
"""The part that must be the same on both sides: a message of one version is not read by another."""


def versions() -> dict[str, str]:
    """What this process runs."""
    names = {name: version(name) for name in ("torch", "flwr", "numpy")}
    return {MUST: __version__, "python": platform.python_version(), **names}


def other(fact: Mapping[str, Any]) -> str:
    """Why a node that said this of itself cannot be talked to, in one line; "" if it can."""
    said, mine = fact.get("versions"), versions()[MUST]
    theirs = printable(str(said.get(MUST, "none")), 40) if isinstance(said, Mapping) else "one that it does not say"
    return "" if theirs == mine else f"its {MUST} is {theirs}, the server's {mine}"


def compare(facts: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse nodes of another leakline; say which differ otherwise: the last bits of numbers may then differ too."""
    mine = versions()
    refused, noted = [], []
    for client, fact in sorted(facts.items()):
        said = fact.get("versions")
        theirs = {name: printable(said.get(name, "none"), 40) for name in mine} if isinstance(said, Mapping) else {}
        if theirs.get(MUST) != mine[MUST]:
            refused.append(f"{client}: {theirs.get(MUST, 'a version that it does not say')}")
        elif other := [f"{name} {theirs[name]}" for name in mine if theirs[name] != mine[name]]:
            noted.append(f"{client}: {', '.join(other)}")
    if refused:
        raise StackError(
            f"{len(refused)} nodes run another leakline than the server's {mine[MUST]}; {'; '.join(refused[:5])}",
            "the nodes",
            f"install leakline {mine[MUST]} there",
        )
    for line in noted:
        logging.getLogger("leakline").warning("another version than the server's at %s", line)
