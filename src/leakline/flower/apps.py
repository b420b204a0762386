"""The two halves of a Flower app. Importing this imports no torch: a node must be up before Flower loses patience."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

if TYPE_CHECKING:
    from leakline.flower.transport.turns import Mine


def client_app(mine: Mine | None = None) -> ClientApp:
    """A ClientApp that takes a client's turns.

    The study comes with the run and the data from the node's own configuration; ``mine(context, head, name)`` builds
    the federation instead, for those who write one in Python.
    """
    app = ClientApp()

    def turn(message: Message, context: Context) -> Message:
        from leakline.flower.transport.turns import take_turn

        return Message(take_turn(message.content, context, mine, message.metadata.ttl), reply_to=message)

    app.query()(turn)
    app.train()(turn)
    app.evaluate()(turn)
    return app


def server_app() -> ServerApp:
    """A ServerApp that trains the study of the run's configuration and keeps leakline's ordinary store."""
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        from leakline.flower.transport.serving import serve

        serve(grid, context)

    app.main()(main)
    return app
