"""Federations on Flower: the same loop over many machines. Needs the extra ``leakline[flower]``.

`FlowerTransport` carries orders and updates, `client_app` and `server_app` are the two halves of a Flower app.
For an app that is there already: `record` and `record_mod` write its rounds down, `as_strategy` and `as_mod` put
defences into it (`rows` lets one of them deal a client's examples into parts).

What is where:

    apps, app_files   the two halves of a study's app, and the four files that `flwr run` takes
    transport/        leakline's own loop over Flower: wire (bytes), exchange (orders and updates), turns, holdings and
                      shelf (a node: its turn, its data, its memory), place and serving (the server), shares (data cut
                      for nodes), submit and drive (the command that hands a study over), known and objections (who
                      was there, who declines)
    wrap/             defences around somebody's own app: strategy (server), mod (client), sides (who does what),
                      bridge (records to weights and back), around (a strategy in a strategy)
    node/             a hospital's own node: its file, its policy, its time limit, its self-check
    proxy, reach      a way for nodes to the fleet API and nothing else; why a SuperLink cannot be reached
    recorder          the rounds of somebody's own app, written down as a recording
    trial/            a SuperLink and SuperNodes on this machine, with certificates
    processes         Flower's programs as child processes, for transport/ and trial/
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from leakline.errors import RuntimeMissing

_HOME = {
    "FlowerTransport": "leakline.flower.transport.exchange",
    "as_mod": "leakline.flower.wrap.mod",
    "as_strategy": "leakline.flower.wrap.strategy",
    "client_app": "leakline.flower.apps",
    "export": "leakline.flower.app_files",
    "record": "leakline.flower.recorder",
    "record_mod": "leakline.flower.recorder",
    "rows": "leakline.flower.wrap.mod",
    "server_app": "leakline.flower.apps",
}

__all__ = list(_HOME)

if TYPE_CHECKING:
    from leakline.flower.app_files import export as export
    from leakline.flower.apps import client_app as client_app
    from leakline.flower.apps import server_app as server_app
    from leakline.flower.recorder import record as record
    from leakline.flower.recorder import record_mod as record_mod
    from leakline.flower.transport.exchange import FlowerTransport as FlowerTransport
    from leakline.flower.wrap.mod import as_mod as as_mod
    from leakline.flower.wrap.mod import rows as rows
    from leakline.flower.wrap.strategy import as_strategy as as_strategy


def need_flower(simulation: bool = False) -> None:
    """Stop with the pip line where Flower (or Ray, for simulations) is not installed."""
    for module in ("flwr", "ray") if simulation else ("flwr",):
        if importlib.util.find_spec(module) is None:
            raise RuntimeMissing(f"{module} is not installed", "Flower", 'pip install "leakline[flower]"')


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'leakline.flower' has no attribute {name!r}")
    need_flower()
    return getattr(importlib.import_module(home), name)
