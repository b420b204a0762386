"""A federation as a value, and the loop that runs it. Read this file first, then `stack`.

for round in federate(federation):
    print(round.index, [u.delta.norm() for u in round.updates])
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from leakline.bench.once import once
from leakline.bench.pretraining import Lesson, pretrained, warmed
from leakline.bench.training import Bench, Plan
from leakline.data.base import Client, Data, Task
from leakline.defences import Defence
from leakline.errors import ClientLost, StackError
from leakline.guard import Arrivals, any_steps
from leakline.messages import Dropped, Keep, Memory, Order, Round, Turn, Update
from leakline.models import Adapted, made
from leakline.models.base import Model
from leakline.privacy import Claim, NoClaim
from leakline.randomness import SecretNoise, Stream
from leakline.settings import Cohort, Engine, Judging, Settings, setting
from leakline.stack import Stack
from leakline.strategies import State as OptimiserState
from leakline.strategies import Strategy
from leakline.utility import Objective, objective
from leakline.weights import Layout, Weights, unmoved

_LAYOUTS: OrderedDict[Hashable, Layout] = OrderedDict()


@dataclass(frozen=True)
class Federation(Settings):
    """Everything that decides what a federation will do: who, what, how, for how long, under which protection.

    ``noise``: "secret" draws protective noise, and who is Poisson-sampled, from the operating system; "seeded" makes
    runs repeatable and is stamped on the card as not private. ``batches``: clients whose batches have another size
    than the plan's, by name. ``model``: an entry of the menu, or a function or class of your own that builds a network
    (it is given what it takes of shape, classes and kind).
    ``warm_start``: how the server trains the initial model on its validation data, where the strategy asks for one.
    ``initial_seed``: the seed of the initial model where it is not ``seed``: another history from the same start.
    Who takes part, who judges and how it is computed are three values of their own: `Cohort`, `Judging`, `Engine`.
    """

    task: Task
    model: Model | Callable[..., nn.Module]
    plan: Plan = Plan()
    strategy: Strategy = Strategy()
    defences: tuple[Defence, ...] = ()
    rounds: int = setting(10, ge=1)
    seed: int = 0
    noise: Literal["secret", "seeded"] = setting("secret", "study")
    cohort: Cohort = Cohort()
    judging: Judging = Judging()
    engine: Engine = Engine()
    batches: tuple[tuple[str, int], ...] = setting((), quiet=True)
    warm_start: Plan = Plan(epochs=20, optimiser="adam", learning_rate=1e-3)
    initial_seed: int | None = field(default=None, metadata={"quiet": True})

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches", tuple(sorted(dict(self.batches).items())))
        super().__post_init__()
        names = [client.name for client in self.task.clients]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"clients need distinct names, and at least one is needed: {names[:5]}")
        if self.strategy.warm_start and self.task.validation is None:
            raise StackError(
                "this strategy starts from a model trained on the server's validation data, and there are none",
                fix="give the task a validation part (server_validation = 0.1)",
            )
        self.plan.check_augment(self.task.shape, "[training]")
        self.warm_start.check_augment(self.task.shape, "[warm_start]")
        if self.judging.validation != "none" and self.task.validation is None:
            raise StackError(
                "rounds are to be judged by the server's validation data, and there are none",
                f"validation = {self.judging.validation!r}",
                "set server_validation = 0.1 in [data]",
            )
        asked = Stack(self.defences)
        if len(names) < asked.fewest:
            raise StackError(f"{asked} compares clients, and there is one", fix="use two or more")
        if self.cohort.secure_aggregation == "assumed":
            _check_sums(self)

    @cached_property
    def stack(self) -> Stack:
        """The defences, as what happens at each crossing, with noise enough for every epsilon that is asked for."""
        return Stack(self.defences).granted(lambda defences: replace(self, defences=defences))

    @cached_property
    def granted(self) -> Federation:
        """The same federation with the noise for every epsilon that is asked for written down.

        What is made of it afterwards (fewer rounds, other clients) keeps that noise: it is what a run was trained with.
        """
        return replace(self, defences=self.stack.defences) if Stack(self.defences).wishful else self

    @cached_property
    def source(self) -> Federation | None:
        """The federation whose run has to be there before this one's, where a defence follows another stack."""
        follower = self.stack.follower
        return None if follower is None else replace(self, defences=follower.source).granted

    def told(self, run: str, facts: Sequence[Mapping[str, float]]) -> Federation:
        """The same federation, told what the rounds of its source's run wrote down."""
        return replace(self, defences=self.stack.told(run, facts))

    @cached_property
    def clients(self) -> Mapping[str, Client]:
        """Clients by name."""
        return {client.name: client for client in self.task.clients}

    @cached_property
    def objective(self) -> Objective:
        """What is minimised, and how outputs are judged."""
        return objective(self.task.kind, self.judging.loss)

    @cached_property
    def local_plan(self) -> Plan:
        """The plan with the strategy's proximal term in it."""
        return replace(self.plan, proximal=self.strategy.proximal) if self.strategy.proximal else self.plan

    def plan_of(self, client: str) -> Plan:
        """The recipe of one client."""
        size = dict(self.batches).get(client)
        return self.local_plan if size is None else replace(self.local_plan, batch=size)

    def most_steps(self, client: str, examples: int) -> int:
        """How many steps a client's plan makes of so many examples."""
        return self.plan_of(client).steps_of(examples)

    @property
    def bounded(self) -> bool:
        """Whether one long update cannot decide the result, or the server could not tell that there is one."""
        unseen = self.cohort.secure_aggregation == "assumed"
        return unseen or bool(self.stack.using("admit")) or self.strategy.combine.robust

    @property
    def starts_from(self) -> int:
        """The seed of the initial model: of its random weights, and of its training where the strategy asks for one."""
        return self.seed if self.initial_seed is None else self.initial_seed

    def bench(self) -> Bench:
        """A fresh model as this federation starts from, on its device."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(Stream(self.starts_from, -1, "server", "initial").integer())
            model = self.network()
        return Bench(model, self.objective.loss, self.engine.device, self.task.shape)

    def network(self) -> nn.Module:
        """A fresh network: its constants are public, what is trained is as torch's random state has it."""
        if isinstance(self.model, nn.Module):
            raise StackError("a model that is already built", fix="give a function that builds it: lambda: Net()")
        shape, classes, kind = self.task.shape, len(self.task.classes), self.task.kind
        if not isinstance(self.model, Adapted):
            return made(self.model, shape, classes, kind)
        return self.model.build(shape, classes, kind, self._public if self.model.pretrain else None)

    @cached_property
    def _public(self) -> Weights:
        """The whole model after training on the server's validation data."""
        data = self.task.validation
        if data is None or not len(data):
            raise StackError(
                "pretrain needs the server's public data, and there are none here",
                "model",
                "set server_validation = 0.1 in [data]; nodes elsewhere take weights = FILE instead",
            )
        assert isinstance(self.model, Adapted)  # nobody else asks
        # Which part is trained afterwards does not matter for what the whole learns before.
        return pretrained(self._lesson(data, replace(self.model, train=(), lora=None)))

    def _lesson(self, data: Data, model: Any) -> Lesson:
        """What a network may learn from the server's own data before the first round."""
        task, loss, name = self.task, self.objective.loss, self.judging.loss
        return Lesson(model, task.shape, len(task.classes), task.kind, self.warm_start, data, loss, name)

    @property
    def warm_work(self) -> int:
        """How many examples' training steps a warm start takes; 0 where the strategy asks for none."""
        validation = self.task.validation
        return self.warm_start.epochs * len(validation) if self.strategy.warm_start and validation is not None else 0

    def warmed(self) -> Weights:
        """The initial model after the training on the server's validation data that its strategy asks for."""
        data = self.task.validation
        assert data is not None  # checked when the federation was made
        return warmed(self._lesson(data, self.model), self.starts_from, self.engine.device, self.bench)

    @cached_property
    def layout(self) -> Layout:
        """The names and shapes of all that is trained: the network is built for them once, not for every cell."""
        network = (self.model, self.task.shape, len(self.task.classes), self.task.kind)
        return once(_LAYOUTS, network, lambda: self.bench().initial.layout, 64)

    @cached_property
    def private(self) -> frozenset[str]:
        """The entries that stay at the clients."""
        return self.stack.kept(self.layout)

    def shares(self, name: str) -> bool:
        """Whether an entry may leave the clients: every defence must agree."""
        return name not in self.private

    @cached_property
    def wire(self) -> Layout:
        """The part of the layout that travels."""
        return self.layout.only(self.shares)

    @cached_property
    def judges(self) -> tuple[str, ...]:
        """The clients that judge each round's model on test data of their own; empty where the server alone does."""
        personal, by = self.wire != self.layout, self.judging.evaluate
        where = f'evaluate = "{by}"'
        if by in ("server", "both") and personal:
            fix = 'set evaluate = "clients"'
            raise StackError("the server cannot judge a model whose personal layers it never sees", where, fix)
        if by == "both" and self.task.test is None:
            raise StackError("the server holds no test data to judge a model by", where, "set server_test")
        if by == "server" or (by == "auto" and not personal):
            return ()
        clients = tuple(c.name for c in self.task.clients if c.test is not None and len(c.test))
        if by in ("clients", "both") and not clients:
            raise StackError("no client holds test data to judge a model by", where, "set client_test")
        return clients

    def expected(self) -> float:
        """Average number of clients in a round."""
        return self.cohort.expected(len(self.task.clients))

    def invited(self, index: int) -> list[str]:
        """Who is asked to take part in round ``index``: under Poisson sampling with secret noise, drawn anew each time.

        A promise counts on nobody knowing who was drawn, so a seed must not tell it. Nothing counts on the others.
        """
        names, cohort = list(self.clients), self.cohort
        if cohort.sampling == "full":
            return names
        rng = Stream(self.seed, index, "server", "cohort").numpy()
        if cohort.sampling == "poisson":
            secret = self.noise == "secret"
            draws = SecretNoise().uniform(len(names)).tolist() if secret else rng.random(len(names))
            return [name for name, u in zip(names, draws, strict=True) if u < cohort.participation]
        chosen = rng.choice(len(names), size=min(round(self.expected()), len(names)), replace=False)
        return [names[i] for i in sorted(chosen)]

    def claims(self, facts: Sequence[Mapping[str, float]] = ()) -> dict[str, Claim | NoClaim]:
        """What each defence of the stack promises; an undefended federation promises nothing."""
        return self.stack.claims(self, facts)

    def turns(self, index: int, memory: Memory, facts: dict[str, float] | None = None) -> tuple[Turn, ...]:
        """What each defence may use at the server in a round."""
        return self.stack.turns(
            index, "server", memory, seed=self.seed, secret=self.noise == "secret", expected=self.expected(),
            values=self.wire.size, facts=facts,
        )  # fmt: skip

    def turns_of(
        self, client: str, index: int, memory: Memory, part: int | None = None, groups: Tensor | None = None
    ) -> tuple[Turn, ...]:
        """What each defence may use at a client in a round, for one of its parts where it has split itself."""
        party = client if part is None else f"{client}/{part}"
        return self.stack.turns(index, party, memory, seed=self.seed, secret=self.noise == "secret", groups=groups)


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
            state = State() if state is None else state
            state.weights = state.weights or initial_weights(federation, transport.bench)
            yield from federate(federation, transport, keep=keep, state=state)
        return
    state = State() if state is None else state
    if state.weights is None:
        state.weights = initial_weights(federation)
    while state.next < federation.rounds:
        yield _round(federation, transport, keep, state)


def initial_weights(federation: Federation, bench: Bench | None = None) -> Weights:
    """The first global model: random from the seed, or trained on the server's validation data.

    ``bench``: one that this federation made, if there is one already; a large network is then not built again.
    """
    warm = federation.strategy.warm_start
    weights = federation.warmed() if warm else (federation.bench() if bench is None else bench).initial
    return weights.only(federation.shares)


def _round(federation: Federation, transport: Transport, keep: Keep, state: State) -> Round:
    index, sent, stack, strategy = state.next, state.weights, federation.stack, federation.strategy
    assert sent is not None
    facts: dict[str, float] = {}
    turns = federation.turns(index, state.memory, facts)
    notes = stack.brief(turns)
    orders = [Order(name, index, sent, notes) for name in federation.invited(index)]

    stop, asked = federation.cohort.on_bad_client == "stop", [order.client for order in orders]
    steps = federation.most_steps if stack.owner is None else any_steps
    arrivals = Arrivals(index, sent, keep, stop, asked, stack.sends(notes), steps, federation.cohort.max_norm)
    updates = stack.admit(strategy.receive(arrivals.checked(transport.exchange(orders))), turns)
    if orders:
        first = list(islice(updates, 1))
        change = strategy.combine(_again(first, updates)) if first else None
    else:
        change = Weights.zeros(sent.layout)  # a Poisson sample may be empty; the noise is published all the same
    needed = max(federation.cohort.quorum, stack.fewest)
    if change is None or (orders and len(arrivals.cohort) < min(needed, len(orders))):
        raise arrivals.too_few(needed, len(orders))

    still = unmoved(change) if index == 0 and orders else ()
    change = stack.publish(change, "aggregate", arrivals.receipts, turns)
    if (gain := strategy.combine.gain(arrivals.receipts)) != 1:
        change = change * gain
    step, optimiser = strategy.optimiser.step(change.vector, state.optimiser, index)
    change = stack.publish(change.like(step), "model", arrivals.receipts, turns)
    optimiser = strategy.optimiser.told(step, change.vector, optimiser)
    result = sent + change
    if not torch.isfinite(result.vector).all():
        raise ClientLost(
            "the next model would not be finite; it was not published",
            f"round {index}",
            "lower the learning rate, or protect the mean (global-dp clips, fedmedian ignores outliers)",
        )
    state.next, state.weights, state.optimiser = index + 1, result, optimiser
    kept, dropped = tuple(arrivals.kept), tuple(arrivals.dropped)
    longer = {} if federation.bounded else arrivals.longer()
    return Round(index, sent, kept, arrivals.cohort, dropped, result, facts, arrivals.metrics(), longer, still)


def _check_sums(federation: Federation) -> None:
    """Refuse what a server that sees only the sum of updates could not do."""
    admitting = Stack(federation.defences).using("admit")
    single = str(admitting) if admitting else ""
    single = single or ("max_norm" if federation.cohort.max_norm else "")
    if not single and not federation.strategy.combine.sums:
        single = type(federation.strategy.combine).__name__
    if single:
        raise StackError(
            f"{single} looks at single updates at the server, which under secure aggregation sees only their sum",
            'secure_aggregation = "assumed"',
            "clip and noise at the clients (gaussian-release), and combine by a mean",
        )


def _again(first: list[Update], rest: Iterator[Update]) -> Iterator[Update]:
    yield first.pop()  # held by nobody here: an update may be as large as the model
    yield from rest
