"""A Flower strategy around another one, whatever that is."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from leakline.errors import StackError
from leakline.names import printable

STEPS = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate", "summary")


class Around(Strategy):  # type: ignore[misc]
    """Does what the wrapped strategy does; a subclass changes single steps.

    Everything else that the app asks of the strategy (its own methods, its settings) is answered by the wrapped one.
    """

    def __init__(self, strategy: Strategy) -> None:
        missing = [name for name in STEPS if not callable(getattr(strategy, name, None))]
        if missing:
            kind = printable(type(strategy).__name__, 60)
            old = hasattr(strategy, "configure_fit")
            raise StackError(
                f"{kind} is a strategy of Flower's old API (configure_fit)" if old else f"{kind} has no {missing[0]}",
                "leakline.flower",
                f"use flwr.serverapp.strategy.{kind}, of the Message API" if old else "give a strategy of Flower's",
            )
        self.strategy = strategy
        # The steps as they are now: `start` puts this wrapper's in their place.
        self.inner = SimpleNamespace(**{name: getattr(strategy, name) for name in STEPS})

    def __getattr__(self, name: str) -> Any:
        if name in ("strategy", "inner"):
            raise AttributeError(name)
        return getattr(self.strategy, name)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Whom to ask, and what."""
        found: Iterable[Message] = self.inner.configure_train(server_round, arrays, config, grid)
        return found

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What comes of the replies."""
        found: tuple[ArrayRecord | None, MetricRecord | None] = self.inner.aggregate_train(server_round, replies)
        return found

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Whom to ask to evaluate."""
        found: Iterable[Message] = self.inner.configure_evaluate(server_round, arrays, config, grid)
        return found

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """What comes of the evaluations."""
        return self.inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Say what the wrapped strategy is."""
        self.inner.summary()

    def start(self, *args: Any, **kwargs: Any) -> Result:
        """The wrapped strategy's own start, which may be the app's, with this wrapper's steps in it."""
        before = {name: vars(self.strategy).get(name) for name in STEPS}
        for name in STEPS:
            setattr(self.strategy, name, getattr(self, name))
        try:
            return self.strategy.start(*args, **kwargs)
        finally:
            for name, own in before.items():
                delattr(self.strategy, name) if own is None else setattr(self.strategy, name, own)
