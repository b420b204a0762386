"""What an engineer looks at before a node joins: one line for each thing, and how to mend it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from leakline.errors import LeaklineError
from leakline.flower.app_files import FLOWER
from leakline.flower.node.settings import NodeSettings
from leakline.flower.reach import reach
from leakline.flower.transport.holdings import load_own, own_client
from leakline.flower.transport.serving import base_task, fit_of
from leakline.flower.transport.submit import Asked
from leakline.flower.transport.turns import as_node, own_study
from leakline.flower.transport.versions import versions
from leakline.study.sharing import Shared

LEAST_DISK = 2**30
"""Bytes that should be free where a node keeps its state and Flower its apps."""


@dataclass(frozen=True)
class Line:
    """One thing that was looked at. "mind": it may start like this; "wrong": it cannot work."""

    name: str
    verdict: Literal["ok", "mind", "wrong"]
    text: str


def look(settings: NodeSettings, study: Asked | None = None) -> Iterator[Line]:
    """Look at a node, and at what it would do in a study; whatever is wrong is a line, never an error."""
    for name, check in (
        ("versions", _versions), ("user", _user), ("key", _key), ("authority", _authority), ("superlink", _superlink),
        ("data", _data), ("state", _state), ("asks", lambda s: iter([("ok", str(s.asks))])),
    ):  # fmt: skip
        yield from _said(name, lambda check=check: check(settings))  # type: ignore[misc]
    if study is not None:
        yield from _said("study", lambda: _study(settings, study))


Said = Iterator[tuple[Literal["ok", "mind", "wrong"], str]]


def _said(name: str, check: Callable[[], Said]) -> Iterator[Line]:
    try:
        for verdict, text in check():
            yield Line(name, verdict, text)
    except LeaklineError as error:
        yield Line(name, "wrong", "; ".join(part for part in (error.what, error.fix) if part).replace("\n", "; "))
    except OSError as error:
        yield Line(name, "wrong", f"{error.strerror or type(error).__name__}: {Path(str(error.filename or '')).name}")


def _versions(settings: NodeSettings) -> Said:
    mine = versions()
    text = ", ".join(f"{name} {number}" for name, number in mine.items())
    if mine["flwr"].split(".")[:2] != FLOWER.split(".")[:2]:
        yield "wrong", f'{text}: leakline talks to Flower {FLOWER}; pip install "leakline[flower]"'
    else:
        yield "ok", f"{text}; leakline must be the server's"


def _user(settings: NodeSettings) -> Said:
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        yield (
            "mind",
            "this is root: a node runs what it is sent, so start it as a user that can read its data and no more",
        )
    elif os.access(settings.path("data"), os.W_OK):
        yield "mind", "this user may write to the data, and need only read them"
    else:
        yield "ok", "may read the data and not write to them"


def _key(settings: NodeSettings) -> Said:
    if not settings.key:
        yield "mind", "none: whoever wishes may join such a federation under this name"
        return
    path = settings.path("key")
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp384r1":
        yield "wrong", f"{path.name} is no key that Flower registers; leakline flower node FILE --new makes one"
    elif path.stat().st_mode & 0o077:
        yield "wrong", f"others may read {path.name}: chmod 600 {path.name}"
    else:
        yield "ok", f"{path.name}; {path.name}.pub must be registered at the SuperLink"


def _authority(settings: NodeSettings) -> Said:
    if settings.insecure:
        yield "mind", "none: nothing is encrypted, and nobody knows who the server is"
        return
    path = settings.path("root_certificates")
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except ValueError:
        yield "wrong", f"{path.name} holds no PEM certificate"
        return
    yield "ok", f"{path.name}, until {min(c.not_valid_after_utc for c in found):%Y-%m-%d}"


def _superlink(settings: NodeSettings) -> Said:
    reached = reach(settings.superlink, None if settings.insecure else settings.path("root_certificates"))
    if reached.problem:
        yield "wrong", f"{settings.superlink}: {reached.problem}; {reached.fix}"
    elif reached.clock:
        yield "wrong", f"{reached.clock}; set the clock"
    else:
        yield "ok", f"{settings.superlink} answers"


def _data(settings: NodeSettings) -> Said:
    dataset = load_own(settings.path("data"))
    groups = dataset.train.groups
    whose = "nobody says whose a record is" if groups is None else f"{len(set(groups.tolist()))} {dataset.group}s"
    shape = "x".join(str(size) for size in dataset.train.x.shape[1:])
    yield "ok", f"{len(dataset.train)} examples of {shape}, {len(dataset.classes)} classes, {whose}"


def _state(settings: NodeSettings) -> Said:
    if not settings.state:
        yield "mind", "none: private layers and memories do not outlive a run that Flower has lost"
        return
    path = settings.path("state")
    path.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path).free
    if not os.access(path, os.W_OK):
        yield "wrong", f"{path.name} cannot be written to by this user"
    elif free < LEAST_DISK:
        yield "wrong", f"{free / 2**30:.2g} GiB are free, 1 is needed"
    else:
        yield "ok", f"{path.name}, {free / 2**30:.0f} GiB free"


def _study(settings: NodeSettings, study: Asked) -> Said:
    """What this node would say at its introduction: whether its data fit, and which cells it declines."""
    fits: list[tuple[dict[str, Any], list[str]]] = []

    def share(shared: Shared, seed: int) -> Any:
        base = base_task(shared, seed)
        fits.append((fit_of(shared, base), [client.name for client in base.clients]))
        return base

    study.study(share).cells[0].federation()
    fit, names = fits[0]
    if settings.client not in names:
        yield "wrong", f"it has no client {settings.client}; one of: {', '.join(names[:8])}"
        return
    client = own_client(settings.config(), settings.client, fit)
    beside = (settings.path("state"),) if settings.state else ()
    for cell in own_study(study.text, study.preset, study.sets, study.only, client, names, fit, beside).cells:
        federation = as_node(cell.federation())
        reason = settings.asks.objection(federation)
        yield ("mind", f"{cell.name}: this node declines: {reason}") if reason else ("ok", f"{cell.name}: takes part")
