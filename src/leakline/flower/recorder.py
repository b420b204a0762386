"""Recording a federation that leakline did not write: around a Flower strategy, or in a ClientApp.

    strategy = leakline.flower.record(FedAvg(), to="recording")
    app = ClientApp(mods=[leakline.flower.record_mod(to="recording")])

Neither changes what the app does: replies and models pass as they are, also bad ones, which are noted as dropped; and
whatever goes wrong with a recording ends the recording, in words, and not the app.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from leakline.bench.training import Plan
from leakline.flower.wrap.around import Around
from leakline.flower.wrap.bridge import EXAMPLES, Bridge, finite_figures, model_arrays, node_name
from leakline.flower.wrap.stated import bound_now, stated
from leakline.messages import Dropped, Round, Update
from leakline.names import printable
from leakline.recordings.published import UNREAD
from leakline.recordings.recorder import Recorder
from leakline.recordings.writing import last_round
from leakline.runtimes.client import reason_of
from leakline.weights import Weights

ClientAppCallable = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, ClientAppCallable], Message]


def record(
    strategy: Strategy,
    to: str | Path,
    *,
    rounds: Iterable[int] | None = None,
    clients: Iterable[str] | None = None,
    most_mb: float = 1024.0,
    plan: Plan | Mapping[str, Any] | None = None,
    buffers: Iterable[str] = (),
) -> Recorded:
    """The strategy, with every round written to the directory ``to`` as the server sees it.

    ``rounds`` (Flower's numbers, from 1) and ``clients`` ("node-<id>") narrow what is kept, ``most_mb`` bounds it.
    ``plan`` says what an attacker in the server's seat would know about local training: a `Plan`, or some of its
    fields ({"learning_rate": 0.1, "batch": 32, "epochs": 1}). ``buffers`` names arrays that are not trained, where
    they are not called running_mean and running_var.
    """
    return Recorded(strategy, _recorder(to, rounds, clients, most_mb, plan, "server"), tuple(buffers))


class Recorded(Around):
    """A strategy whose rounds are written down."""

    def __init__(self, strategy: Strategy, recorder: Recorder, buffers: tuple[str, ...] = ()) -> None:
        super().__init__(strategy)
        self.recorder, self.buffers = recorder, buffers
        self.bridge: Bridge | None = None
        self.sent: Weights | None = None
        self.asked: list[int] = []
        self.facts: dict[str, float] = {}
        self.over = False

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Take down what is sent, and in the first round what the strategy says of itself."""
        self.facts = dict(bound_now(self.strategy))  # Flower moves the bound while it aggregates
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self.asked, self.sent = [message.metadata.dst_node_id for message in messages], None
        if messages and not self.over:
            with _harmless("nothing is recorded from here on"):
                self.over = True
                self._take_down(messages, arrays)
                self.over = False
        return messages

    def _take_down(self, messages: list[Message], arrays: ArrayRecord) -> None:
        arrays = model_arrays(messages[0].content) if messages[0].content.array_records else arrays
        if self.bridge is None:
            self.bridge = Bridge.of(arrays, self.buffers)
            self.recorder.run = str(messages[0].metadata.run_id)
            self.recorder.claimed = stated(self.strategy, len(messages))
            self.recorder.open(self.bridge.layout, self.bridge.left_out)
        self.sent = self.bridge.weights(arrays)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take down what came back, and what the strategy made of it."""
        held = list(replies)
        answers: tuple[tuple[Update, ...], tuple[Dropped, ...]] | None = None
        with _harmless(f"round {server_round} was not recorded"):
            answers = self._read(held)  # before the strategy sees them: some write into what they are given
        arrays, metrics = super().aggregate_train(server_round, held)
        if answers is not None and self.bridge is not None and self.sent is not None:
            updates, dropped = answers
            with _harmless(f"round {server_round} was not recorded"):
                result = self.sent if arrays is None else self.bridge.weights(arrays)
                facts = {**getattr(self.strategy, "facts", {}), **self.facts}
                if unread := sum(not r.has_error() for r in held) - len(updates):
                    facts[UNREAD] = float(unread)
                cohort, figures = tuple(u.client for u in updates), finite_figures(metrics)
                self.recorder.write(
                    Round(server_round, self.sent, updates, cohort, dropped, result, facts, figures)
                )  # fmt: skip
        return arrays, metrics

    def _read(self, replies: list[Message]) -> tuple[tuple[Update, ...], tuple[Dropped, ...]]:
        if self.bridge is None or self.sent is None:
            return (), ()
        key = getattr(self.strategy, "weighted_by_key", EXAMPLES)
        ordered = sorted(replies, key=lambda r: r.metadata.src_node_id)
        answers = [read_reply(self.bridge, reply, self.sent, key) for reply in ordered]
        here = {reply.metadata.src_node_id for reply in replies}
        answers += [Dropped(node_name(n), "no reply came in time") for n in self.asked if n not in here]
        return tuple(u for u in answers if isinstance(u, Update)), tuple(d for d in answers if isinstance(d, Dropped))

    def summary(self) -> None:
        """Say what is recorded, and what the wrapped strategy is."""
        logging.getLogger("flwr").info("\t├──> Recorded by leakline in %s", self.recorder.to)
        super().summary()


def record_mod(
    to: str | Path,
    *,
    rounds: Iterable[int] | None = None,
    most_mb: float = 1024.0,
    plan: Plan | Mapping[str, Any] | None = None,
    buffers: Iterable[str] = (),
    name: Callable[[Context], str] | None = None,
) -> Mod:
    """A ClientApp mod that writes what this client was sent and what it answers, to ``to``/<client>.

    It sees replies as they leave the mods after it in the list: put it first to record what crosses the wire. What
    came of a round is not known here; the next round's ``sent`` is. ``name`` gives a client's name from its context.
    """
    asked, stays = None if rounds is None else frozenset(rounds), tuple(buffers)
    _recorder(to, asked, None, most_mb, plan, "client")  # wrong settings fail now, not in the first round

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        before: tuple[Bridge, Weights] | None = None
        with _harmless("a round is not recorded"):
            bridge = Bridge.of(model_arrays(message.content), stays)
            before = bridge, bridge.weights(model_arrays(message.content))
        reply = call_next(message, context)
        if before is not None:
            with _harmless("a round was not recorded"):
                client = node_name(context.node_id) if name is None else name(context)
                recorder = _recorder(Path(to) / client, asked, None, most_mb, plan, "client")
                recorder.run = str(message.metadata.run_id)
                _write_one(recorder, *before, reply, client, round_of(message))
        return reply

    return mod


def read_reply(
    bridge: Bridge, reply: Message, sent: Weights, key: str, client: str = "", *, several: bool = True
) -> Update | Dropped:
    """A reply as an update, or why it is none."""
    client = client or node_name(reply.metadata.src_node_id)
    if reply.has_error():
        # An error's text may hold paths, and paths may name people.
        reason = reason_of(RuntimeError(reply.error.reason or f"error {reply.error.code}"))
        return Dropped(client, printable(reason.replace("raised RuntimeError:", "raised", 1), 200))
    return bridge.update(reply.content, sent, client, key, several=several)


def round_of(message: Message) -> int | None:
    """Flower's number of the round, which its strategies put into the configuration."""
    for config in message.content.config_records.values():
        if isinstance(config.get("server-round"), int):
            return int(config["server-round"])
    return None


def _write_one(
    recorder: Recorder, bridge: Bridge, sent: Weights, reply: Message, client: str, index: int | None
) -> None:
    """What one client was sent and answers, as a round of its own."""
    recorder.open(bridge.layout, bridge.left_out)
    answer = read_reply(bridge, reply, sent, EXAMPLES, client)
    updates, dropped = ((answer,), ()) if isinstance(answer, Update) else ((), (answer,))
    line = max(1, last_round(recorder.to / "rounds.jsonl") + 1) if index is None else index
    cohort = tuple(update.client for update in updates)
    recorder.write(Round(line, sent, updates, cohort, dropped, sent), result=False)


@contextlib.contextmanager
def _harmless(what: str) -> Iterator[None]:
    """Whatever goes wrong here is said, and does not end somebody's training."""
    try:
        yield
    except Exception as error:
        logging.getLogger("leakline").warning("%s: %s", what, error)


def _recorder(
    to: str | Path, rounds: Iterable[int] | None, clients: Iterable[str] | None, most_mb: float,
    plan: Plan | Mapping[str, Any] | None, seat: Any,
) -> Recorder:  # fmt: skip
    known = dataclasses.asdict(plan) if isinstance(plan, Plan) else dict(plan or {})
    return Recorder(
        Path(to).absolute(), None if rounds is None else frozenset(rounds),
        None if clients is None else frozenset(clients), most_mb, known, f"flower {version('flwr')}", seat,
    )  # fmt: skip
