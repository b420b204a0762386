"""A federation as a value, and the loop that runs it. Read this file first.

for round in federate(federation):
    print(round.index, [u.delta.norm() for u in round.updates])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import torch
from torch import nn

from leakline.bench.training import Bench, Job, Plan, train
from leakline.data.base import Client, Task
from leakline.defences import Defence
from leakline.errors import ClientLost, StackError
from leakline.messages import Dropped, Memory, Order, Receipt, Round, Turn, Update, problem_with
from leakline.privacy import Claim, NoClaim
from leakline.randomness import Stream
from leakline.strategies import Mean, Strategy
from leakline.strategies import State as OptimiserState
from leakline.utility import Objective, objective
from leakline.weights import Layout, Weights


class Architecture(Protocol):
    """Anything that builds a model for a task; the entries of `leakline.models.MENU` do."""

    def build(self, shape: tuple[int, ...], classes: int, kind: str) -> nn.Module:
        """A fresh model with random weights."""
        ...


@dataclass(frozen=True)
class Federation:
    """Everything that decides what a federation will do: who, what, how, for how long, under which protection.

    ``noise``: "secret" draws protective noise from the operating system; "seeded" makes runs repeatable and is
    stamped on the card as not private. ``on_bad_client``: "drop" goes on without a client whose answer is
    unusable (noise follows the number that remains), "stop" ends the run before anything is published.
    ``together``: train small clients in vectorised groups ("auto") or one by one ("off").
    ``evaluate``: who judges the model after each round: the server on its test data, the clients on theirs (with
    their personal layers), or "auto": the clients where some layers are personal, the server otherwise.
    ``patience``: a study stops once the loss so measured (mean over clients) has not fallen for so many rounds.
    ``batches``: clients whose batches have another size than the plan's, by name.
    ``secure_aggregation``: "assumed" lets the server's seat see only the sum of a round's updates. No protocol is run
    for it; the card says that it was assumed.
    """

    task: Task
    model: Architecture | Callable[[], nn.Module]
    plan: Plan = Plan()
    strategy: Strategy = Strategy()
    defences: tuple[Defence, ...] = ()
    rounds: int = 10
    seed: int = 0
    sampling: Literal["full", "poisson", "fixed"] = "full"
    participation: float = 1.0
    warm_start: Plan = Plan(epochs=20, optimiser="adam", learning_rate=1e-3)
    loss: str = "default"
    noise: Literal["secret", "seeded"] = "secret"
    on_bad_client: Literal["drop", "stop"] = "drop"
    min_clients: int = 1
    together: Literal["auto", "off"] = "auto"
    device: str = "cpu"
    evaluate: Literal["auto", "server", "clients"] = "auto"
    patience: int = 0
    secure_aggregation: Literal["none", "assumed"] = "none"
    batches: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches", tuple(sorted(dict(self.batches).items())))
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1: {self.rounds}")
        if not 0 < self.participation <= 1:
            raise ValueError(f"participation must lie in (0, 1]: {self.participation}")
        if self.patience < 0:
            raise ValueError(f"patience must not be negative: {self.patience}")
        names = [client.name for client in self.task.clients]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"clients need distinct names, and at least one is needed: {names[:5]}")
        owners = [d for d in self.defences if type(d).gradient is not Defence.gradient]
        if len(owners) > 1:
            raise StackError(
                f"{type(owners[0]).__name__} and {type(owners[1]).__name__} both want to form the gradient",
                fix="keep one of them in a stack",
            )
        if self.strategy.warm_start and self.task.validation is None:
            raise StackError(
                "this strategy starts from a model trained on the server's validation data, and there are none",
                fix="give the task a validation part (server_validation = 0.1)",
            )
        for defence in self.defences:
            if defence.needs_pairs and len(names) < 2:
                raise StackError(f"{type(defence).__name__} compares clients, and there is one", fix="use two or more")
        if self.secure_aggregation != "none":
            _check_sums(self)

    @cached_property
    def clients(self) -> Mapping[str, Client]:
        """Clients by name."""
        return {client.name: client for client in self.task.clients}

    @cached_property
    def objective(self) -> Objective:
        """What is minimised, and how outputs are judged."""
        return objective(self.task.kind, self.loss)

    @cached_property
    def local_plan(self) -> Plan:
        """The plan with the strategy's proximal term in it."""
        return replace(self.plan, proximal=self.strategy.proximal) if self.strategy.proximal else self.plan

    def plan_of(self, client: str) -> Plan:
        """The recipe of one client."""
        size = dict(self.batches).get(client)
        return self.local_plan if size is None else replace(self.local_plan, batch=size)

    def bench(self) -> Bench:
        """A fresh model from this federation's seed, on its device."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(Stream(self.seed, -1, "server", "initial").integer())
            model = self._build()
        return Bench(model, self.objective.loss, self.device)

    def _build(self) -> nn.Module:
        if isinstance(self.model, nn.Module):
            raise StackError("a model that is already built", fix="give a function that builds it: lambda: Net()")
        build = getattr(self.model, "build", None)
        if build is not None:
            return build(self.task.shape, len(self.task.classes), self.task.kind)  # type: ignore[no-any-return]
        return self.model()  # type: ignore[operator]

    @cached_property
    def layout(self) -> Layout:
        """The names and shapes of the whole model."""
        return self.bench().initial.layout

    @cached_property
    def private(self) -> frozenset[str]:
        """The entries that stay at the clients."""
        return frozenset(name for defence in self.defences for name in defence.kept(self.layout))

    def shares(self, name: str) -> bool:
        """Whether an entry may leave the clients: every defence must agree."""
        return name not in self.private

    @cached_property
    def wire(self) -> Layout:
        """The part of the layout that travels."""
        wire = self.layout.only(self.shares)
        if not wire.entries:
            raise StackError("every layer stays at the clients: nothing would be learned together", fix="share a layer")
        return wire

    @cached_property
    def judges(self) -> tuple[str, ...]:
        """The clients that judge each round's model on test data of their own; empty where the server does."""
        personal = self.wire != self.layout
        if self.evaluate == "server" and personal:
            raise StackError(
                "the server cannot judge a model whose personal layers it never sees",
                'evaluate = "server"',
                'set evaluate = "clients"',
            )
        if self.evaluate == "server" or (self.evaluate == "auto" and not personal):
            return ()
        found = tuple(c.name for c in self.task.clients if c.test is not None and len(c.test))
        if self.evaluate == "clients" and not found:
            raise StackError("no client holds test data to judge a model by", 'evaluate = "clients"', "set client_test")
        return found

    def expected(self) -> float:
        """Average number of clients in a round."""
        n = len(self.task.clients)
        return float(n) if self.sampling == "full" else max(1.0, round(n * self.participation, 9))

    def cohort(self, index: int) -> list[str]:
        """Who takes part in round ``index``."""
        names = [client.name for client in self.task.clients]
        if self.sampling == "full":
            return names
        rng = Stream(self.seed, index, "server", "cohort").numpy()
        if self.sampling == "poisson":
            return [name for name, u in zip(names, rng.random(len(names)), strict=True) if u < self.participation]
        chosen = rng.choice(len(names), size=max(1, round(len(names) * self.participation)), replace=False)
        return [names[i] for i in sorted(chosen)]

    def claims(self, facts: Sequence[Mapping[str, float]] = ()) -> dict[str, Claim | NoClaim]:
        """What each defence of the stack promises; an undefended federation promises nothing.

        A defence with a promise for each of several units appears once for each ("Intermediaries per client").
        """
        if not self.defences:
            return {"none": NoClaim("no defence: updates and models are published as they are")}
        names = [type(defence).__name__ for defence in self.defences]
        twins = [f"{n} {names[: i + 1].count(n)}" if names.count(n) > 1 else n for i, n in enumerate(names)]
        found: dict[str, Claim | NoClaim] = {}
        for name, defence in zip(twins, self.defences, strict=True):
            said = defence.claim(self, facts)
            found |= {f"{name} per {each.unit}": each for each in said} if isinstance(said, tuple) else {name: said}
        return found

    def turn(self, place: int, index: int, party: str, memory: Memory, facts: dict[str, float] | None = None) -> Turn:
        """What the defence at ``place`` of the stack may use in a round, at a party."""
        kind = type(self.defences[place])
        # Counted among its own kind, so that other defences in the stack do not shift its randomness.
        twin = sum(type(other) is kind for other in self.defences[:place])
        return Turn(
            round=index,
            party=party,
            memory=memory.setdefault(f"{place}", {}),
            seed=self.seed,
            purpose=f"{kind.__name__}-{twin}",
            expected=self.expected() if party == "server" else 0.0,
            values=self.wire.size if party == "server" else 0,
            sampled=self.sampling == "poisson" and party == "server",
            secret=self.noise == "secret",
            facts={} if facts is None else facts,
        )


class Transport(Protocol):
    """Where clients are: the seam between the loop and the place it runs in."""

    def exchange(self, orders: Sequence[Order]) -> Iterator[Update | Dropped]:
        """Send orders, yield what comes back, in the order of ``orders``."""
        ...


@dataclass
class State:
    """Where a federation stands: all that the server needs to go on. Updated in place before each yield."""

    next: int = 0
    weights: Weights | None = None
    optimiser: OptimiserState = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)


Keep = Callable[[int, str], bool]
"""Which updates a `Round` holds on to, by (round, client)."""


def keep_all(index: int, client: str) -> bool:
    """Keep every update: right for looking around, not for fifty clients of six million values."""
    return True


def keep_none(index: int, client: str) -> bool:
    """Let every update go once it is combined."""
    return False


def federate(
    federation: Federation,
    transport: Transport | None = None,
    *,
    keep: Keep = keep_all,
    state: State | None = None,
) -> Iterator[Round]:
    """Run a federation, yielding each round as it ends. Nothing happens until the caller asks for a round.

    ``state`` is where it stands; pass one to go on from there, or to save it after each round.
    """
    if transport is None:
        from leakline.runtimes.local import LocalTransport

        with LocalTransport(federation) as transport:
            yield from federate(federation, transport, keep=keep, state=state)
        return
    state = State() if state is None else state
    if state.weights is None:
        state.weights = initial_weights(federation)
    while state.next < federation.rounds:
        yield _round(federation, transport, keep, state)


def initial_weights(federation: Federation) -> Weights:
    """The first global model: random from the seed, or trained on the server's validation data."""
    bench = federation.bench()
    weights = bench.initial
    if federation.strategy.warm_start:
        assert federation.task.validation is not None  # checked when the federation was made
        stream = Stream(federation.seed, -1, "server", "warm-start")
        weights = (
            weights + train(bench, Job(weights, federation.task.validation, stream, 0), federation.warm_start).change
        )
    return weights.only(federation.shares)


def _round(federation: Federation, transport: Transport, keep: Keep, state: State) -> Round:
    index, sent = state.next, state.weights
    assert sent is not None
    facts: dict[str, float] = {}
    turns = [federation.turn(i, index, "server", state.memory, facts) for i in range(len(federation.defences))]
    stack = list(zip(federation.defences, turns, strict=True))

    notes: dict[str, float] = {}
    for defence, turn in stack:
        notes = defence.brief(notes, turn)
    orders = [Order(name, index, sent, notes) for name in federation.cohort(index)]

    receipts: list[Receipt] = []
    dropped: list[Dropped] = []
    kept: list[Update] = []
    losses: list[float] = []

    def arriving(answers: Iterable[Update | Dropped]) -> Iterator[Update]:
        for one in answers:
            bad = one.reason if isinstance(one, Dropped) else problem_with(one, sent)
            if bad is not None:
                if federation.on_bad_client == "stop":
                    raise ClientLost(
                        f"client {one.client}: {bad}",
                        f"round {index}",
                        'mend it, or set on_bad_client = "drop"',
                    )
                dropped.append(Dropped(one.client, bad))
                continue
            assert isinstance(one, Update)
            receipts.append(Receipt(one.client, one.examples, one.steps, one.part))
            losses.append(one.metrics.get("loss", float("nan")))
            if keep(index, one.client):
                kept.append(one)
            yield one

    updates: Iterator[Update] = federation.strategy.receive(arriving(transport.exchange(orders)))
    for defence, turn in stack:
        updates = defence.admit(updates, turn)
    if orders:
        first = next(updates, None)
        change = None if first is None else federation.strategy.combine(_again(first, updates))
    else:
        change = Weights.zeros(sent.layout)  # a Poisson sample may be empty; the noise is published all the same
    here = {r.client for r in receipts}
    needed = max(federation.min_clients, 2 if any(d.needs_pairs for d in federation.defences) else 1)
    if change is None or (orders and len(here) < min(needed, len(orders))):
        raise ClientLost(
            f"only {len(here)} of {len(orders)} clients gave a usable answer, {needed} are needed"
            + (f"; {dropped[0].client}: {dropped[0].reason}" if dropped else ""),
            f"round {index}; the model of round {index - 1} stands",
            "mend the clients, or lower min_clients",
        )

    change = _publish(change, "aggregate", stack, receipts)
    step, optimiser = federation.strategy.optimiser.step(change.vector, state.optimiser, index)
    change = _publish(change.like(step), "model", stack, receipts)
    result = sent + change
    if not torch.isfinite(result.vector).all():
        raise ClientLost(
            "the next model would not be finite; it was not published",
            f"round {index}",
            "lower the learning rate, or protect the mean (global-dp clips, fedmedian ignores outliers)",
        )
    state.next, state.weights, state.optimiser = index + 1, result, optimiser
    finite = [v for v in losses if v == v]
    metrics = {"train_loss": sum(finite) / len(finite)} if finite else {}
    cohort = tuple(dict.fromkeys(r.client for r in receipts))
    return Round(index, sent, tuple(kept), cohort, tuple(dropped), result, facts, metrics)


def _check_sums(federation: Federation) -> None:
    """Refuse what a server that sees only the sum of updates could not do."""
    if federation.secure_aggregation != "assumed":
        raise ValueError(f'secure_aggregation must be "none" or "assumed": {federation.secure_aggregation!r}')
    single = [type(d).__name__ for d in federation.defences if type(d).admit is not Defence.admit]
    if not isinstance(federation.strategy.combine, Mean):
        single.append(type(federation.strategy.combine).__name__)
    if single:
        raise StackError(
            f"{single[0]} looks at single updates at the server, which under secure aggregation sees only their sum",
            'secure_aggregation = "assumed"',
            "clip and noise at the clients (gaussian-release), and combine by a mean",
        )


def _publish(change: Weights, at: str, stack: Sequence[tuple[Defence, Turn]], receipts: Sequence[Receipt]) -> Weights:
    for defence, turn in reversed(stack):
        if defence.at == at:
            change = defence.publish(change, receipts, turn)
    return change


def _again(first: Update, rest: Iterator[Update]) -> Iterator[Update]:
    yield first
    yield from rest
