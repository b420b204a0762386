"""A node's own file: who it is, where its data, keys and SuperLink are, and what it asks for before it trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leakline.defences import MENU
from leakline.errors import StudyError
from leakline.flower.node.policy import Policy
from leakline.names import is_safe
from leakline.study.build import Mistakes, build, check_values, parameters, read_toml
from leakline.study.lines import key_lines

TEMPLATE = """# A node of a federation: `leakline flower node {file} --check` looks at it, without --check it starts.
# Paths are meant from this file.
client            = "{client}"          # the client that this node plays: a name of the study
superlink         = "server.example:443"
root_certificates = "ca.crt"            # the authority that vouches for the SuperLink
key               = "{client}.key"          # what this node is known by; the SuperLink has its other half, *.key.pub
data              = "data.npz"          # an .npz file, a folder of images by class, or a .toml file with a [data] table
state             = "state"             # a folder for what the client must not forget
limit             = 3600                # seconds that one turn may take; then this node is free again

[asks]                                  # before this node trains; it declines whatever promises less
epsilon  = 8.0                          # at most, by the end of a run
delta    = 1e-5
unit     = "patient"                    # for whom: record, patient or client
against  = "server"                     # and from whom: server, client (participants) or public
defences = []                           # such as ["dp-sgd"]: these must be there
own      = []                           # such as [{{ use = "pinned-model", architecture = "..." }}]: this node adds it
"""


@dataclass(frozen=True)
class NodeSettings:
    """One node. ``port``: where its own helpers find it, on this machine; ``file``: where all of this is written."""

    client: str
    superlink: str
    data: str
    root_certificates: str = ""
    key: str = ""
    state: str = ""
    limit: float = 0.0
    port: int = 9094
    insecure: bool = False
    asks: Policy = field(default_factory=Policy)
    file: Path = Path()

    def __post_init__(self) -> None:
        if not is_safe(self.client):
            raise ValueError(f"client must be a name of letters, digits, '_', '.' and '-': {self.client!r}")
        host, _, port = self.superlink.rpartition(":")
        if not host or not port.isdigit() or "/" in self.superlink:
            raise ValueError(f"superlink is host:port, such as server.example:443: {self.superlink!r}")
        if self.limit < 0 or not 0 < self.port < 65536:
            raise ValueError(f"limit is 0 or more seconds, port a port: {self.limit}, {self.port}")
        if self.insecure == bool(self.root_certificates):
            raise ValueError("give root_certificates, by which the SuperLink is known, or insecure = true")
        if any('"' in text for text in (self.data, self.state, str(self.file))):
            raise ValueError("paths cannot hold quotation marks")

    def path(self, name: str) -> Path:
        """One of the paths, from where the file lies."""
        return self.file.absolute().parent / str(getattr(self, name))

    def config(self) -> dict[str, Any]:
        """What the node's app is told of all this: a SuperNode's --node-config."""
        told: dict[str, Any] = {"client": self.client, "data": str(self.path("data"))}
        told |= {"state": str(self.path("state"))} if self.state else {}
        told |= {"limit": self.limit} if self.limit else {}
        return {**told, "policy": str(self.file.absolute())}


def read_node(file: Path) -> NodeSettings:
    """A node's file; every mistake in it is one line."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fix = f"make one: leakline flower node {file.name} --new"
        raise StudyError(f"there is no node's file {file.name}", "leakline flower node", fix) from error
    table = read_toml(text, file.name)
    mistakes = Mistakes(file.name, key_lines(text))
    wanted = parameters(NodeSettings)
    asks = _asks(table.pop("asks", {}), mistakes)
    plain = {name: kind for name, kind in wanted.items() if name not in ("asks", "file")}
    values = check_values(table, plain, (), mistakes)
    if values is None or asks is None or mistakes.found:
        raise StudyError(mistakes.text(), file.name, "mend this file")
    try:
        return NodeSettings(**values, asks=asks, file=file)
    except ValueError as error:
        raise StudyError(str(error), file.name, "mend this file") from error


def _asks(table: Any, mistakes: Mistakes) -> Policy | None:
    if not isinstance(table, Mapping):
        mistakes.add(("asks",), "a table is needed", "[asks]")
        return None
    tables = table.get("own", [])
    own = [build(MENU, one, ("asks", "own"), mistakes) for one in (tables if isinstance(tables, list) else [tables])]
    wanted = {name: kind for name, kind in parameters(Policy).items() if name != "own"}
    values = check_values({k: v for k, v in table.items() if k != "own"}, wanted, ("asks",), mistakes)
    if values is None or None in own:
        return None
    try:
        return Policy(**values, own=tuple(one for one in own if one is not None))
    except ValueError as error:
        mistakes.add(("asks",), str(error))
        return None


def policy_of(config: Mapping[str, Any]) -> Policy:
    """What a node with this --node-config asks for: nothing, unless it names its file."""
    return read_node(Path(str(config["policy"]))).asks if config.get("policy") else Policy()
