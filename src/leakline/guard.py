"""The guard on the server's side of the wire: every answer is checked and written down before anybody works with it.

A client may send anything: another's name, no update at all, a thousand of them, one that is a million times longer
than the others. What cannot be used is dropped with its reason; what can be used and is odd is named in a warning.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from leakline.errors import ClientLost, LeaklineError
from leakline.messages import MOST_STEPS, Dropped, Keep, Receipt, Update, problem_with
from leakline.names import printable
from leakline.weights import Weights

MANY_TIMES = 10.0
"""An update so many times as long as the median of its round is named."""
NOBODY = "(unknown)"
"""Who sent an answer that does not say."""


def any_steps(client: str, examples: int) -> int:
    """As many steps as anybody may take."""
    return MOST_STEPS


@dataclass
class Arrivals:
    """The answers of a round as they arrive, checked against what was asked."""

    index: int
    sent: Weights
    keep: Keep
    stop: bool
    asked: Sequence[str]
    """Who was sent an order: nobody else's answer counts."""
    most: int = 1
    """How many updates a client may send."""
    steps: Callable[[str, int], int] = any_steps
    """The most steps that a client takes over so many examples."""
    max_norm: float = 0.0
    """A longer update is dropped; 0: none is."""
    receipts: list[Receipt] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    kept: list[Update] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    lengths: list[tuple[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._names = frozenset(self.asked)

    def checked(self, answers: Iterable[Any]) -> Iterator[Update]:
        """The usable ones, as they come."""
        heard: set[tuple[str, int]] = set()
        lost = "no reply came"
        for answer in self._arriving(answers):
            if isinstance(answer, str):
                lost = answer
            elif (bad := self._problem(answer, heard)) is not None:
                self._drop(Dropped(name_of(answer), bad))
            else:
                self._take(answer)
                yield answer
                del answer  # as large as the model: not held while the next client trains
        replied = {name for name, _ in heard}
        for client in self.asked:
            if client not in replied:
                self._drop(Dropped(client, lost))

    def _arriving(self, answers: Iterable[Any]) -> Iterator[Any]:
        """What a transport yields, no more than was asked for; text says why nothing comes any more."""
        left = 2 * len(self.asked) * self.most + 100
        arriving = iter(answers)
        while left > 0:
            try:
                answer = next(arriving)
            except StopIteration:
                return
            except LeaklineError:
                raise
            except (Exception, SystemExit) as error:  # a transport may be anybody's
                raise ClientLost(  # not a client's fault: nothing is published of a round that was cut short
                    f"the transport failed: {type(error).__name__}",
                    f"round {self.index}; the model of round {self.index - 1} stands",
                    "mend it; the same command goes on where it was",
                ) from error
            left -= 1
            yield None if isinstance(answer, str) else answer
            del answer
        yield "more answers came than orders were sent"

    def _problem(self, answer: Any, heard: set[tuple[str, int]]) -> str | None:
        """Why an answer is not a usable one to what was asked."""
        if not isinstance(answer, Update | Dropped):
            return f"sent a {type(answer).__name__} instead of an update"
        if (bad := self._unasked(answer, heard)) is not None:
            return bad
        if isinstance(answer, Dropped):
            return printable(answer.reason, 200) or "gave no reason"
        if (bad := problem_with(answer, self.sent)) is not None:
            return bad
        if answer.steps > (most := self.steps(answer.client, answer.examples)):
            return f"reports {answer.steps} steps, and {answer.examples} examples make at most {most}"
        if self.max_norm and (length := answer.delta.norm()) > self.max_norm:
            return f"its update is {length:.4g} long, more than max_norm = {self.max_norm:g}"
        return None

    def _unasked(self, answer: Update | Dropped, heard: set[tuple[str, int]]) -> str | None:
        """Why an answer is not one to what was asked: a client that counted twice would move a mean twice as far."""
        if type(answer.client) is not str:
            return f"sent a {type(answer.client).__name__} for its name"
        if answer.client not in self._names:
            return "was not asked"
        part = answer.part if isinstance(answer, Update) else 0
        if type(part) is not int or not 0 <= part < self.most:
            heard.add((answer.client, -1))
            return f"sends a part beyond the {self.most} that it was asked for"
        if (answer.client, part) in heard:
            return "answered twice"
        heard.add((answer.client, part))
        return None

    def _take(self, update: Update) -> None:
        self.receipts.append(Receipt(update.client, update.examples, update.steps, update.part))
        self.losses.append(float(update.metrics.get("loss", math.nan)))
        self.lengths.append((update.client, update.delta.norm()))
        if self.keep(self.index, update.client):
            self.kept.append(update)

    def _drop(self, lost: Dropped) -> None:
        if self.stop:
            fix = 'mend it, or set on_bad_client = "drop"'
            raise ClientLost(f"client {lost.client}: {lost.reason}", f"round {self.index}", fix)
        self.dropped.append(lost)

    @property
    def cohort(self) -> tuple[str, ...]:
        """Everybody who counted."""
        return tuple(dict.fromkeys(receipt.client for receipt in self.receipts))

    def metrics(self) -> dict[str, float]:
        """The mean of the losses that clients reported."""
        known = [value for value in self.losses if math.isfinite(value)]
        return {"train_loss": sum(known) / len(known)} if known else {}

    def longer(self) -> dict[str, float]:
        """Clients whose updates are many times as long as the median of three or more, and how many times."""
        if len(self.lengths) < 3 or (middle := statistics.median(length for _, length in self.lengths)) == 0:
            return {}
        return {name: length / middle for name, length in self.lengths if length > MANY_TIMES * middle}

    def too_few(self, needed: int, asked: int) -> ClientLost:
        """Why the round cannot end."""
        first = f"; {self.dropped[0].client}: {self.dropped[0].reason}" if self.dropped else ""
        return ClientLost(
            f"only {len(self.cohort)} of {asked} clients gave a usable answer, {needed} are needed{first}",
            f"round {self.index}; the model of round {self.index - 1} stands",
            "mend the clients, or lower min_clients; where values grew too large, lower learning_rate",
        )


def name_of(answer: Any) -> str:
    """Who sent an answer, as far as it says."""
    name = getattr(answer, "client", None)
    return printable(name, 64) if type(name) is str else NOBODY


def judgements(answers: Iterable[Any], asked: Sequence[str]) -> list[Update]:
    """The answers of clients that were asked to judge a model: one of each, with numbers in it."""
    usable: dict[str, Update] = {}
    for answer in answers:
        if not isinstance(answer, Update) or name_of(answer) not in asked or answer.client in usable:
            continue
        if problem_with(answer, answer.delta) is None:
            usable[answer.client] = answer
    return list(usable.values())
