"""What work will take, from a few steps or one round that are timed and thrown away."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch

from leakline.attacks.base import Attack, Sample
from leakline.bench.training import Job, train
from leakline.errors import LeaklineError
from leakline.federation import Federation, State, federate
from leakline.randomness import Stream
from leakline.runtimes.local import LocalTransport
from leakline.runtimes.machine import cores, tune_allocator
from leakline.study.describe import THREADS
from leakline.study.judges import judged

QUICK = 20.0
"""A trial round that takes fewer seconds is done twice: the first has workers to start and kernels to warm up."""
PATIENCE = 30.0
"""Seconds of a round, by its steps, beyond which it is not played: nobody should wait for several of them to hear how
long he will wait."""
GLANCE = 0.3
"""About so many seconds of steps are timed at once, three times, where a step is shorter: one look at two steps was off
by half on a machine that did nothing else."""
MOMENT = 1.0
"""A sample of an attack's work that takes fewer seconds is done twice."""


@dataclass(frozen=True)
class Timed:
    """Seconds of a round on all cores, seconds of one example's part of a step on one core, and megabytes."""

    round: float
    example: float
    memory_mb: float


def timed_step(federation: Federation, examples: int = 0) -> tuple[float, int]:
    """Seconds of a step of the largest client, of its own batch or so many examples, and how many that were.

    From three steps, and where they are quick, more of them three times.
    """
    torch.set_num_threads(THREADS)
    tune_allocator()
    bench = federation.bench()
    client = max(federation.task.clients, key=lambda c: len(c.train))
    plan = federation.plan_of(client.name)
    size = min(examples or plan.batch or len(client.train), len(client.train))
    job = Job(bench.initial, client.train, Stream(0, 0, client.name, "check"), 0)

    def a_step(most: int) -> float:
        start = time.perf_counter()
        took = train(bench, job, replace(plan, batch=size, max_steps=most)).steps  # a small client has one step only
        return (time.perf_counter() - start) / max(took, 1)

    a_step(1)
    per_step = a_step(2)
    if (more := int(GLANCE / per_step)) > 2:  # a turn begins and ends with copies of the model, so two tell too much
        per_step = median(a_step(more) for _ in range(3))
    return per_step, size


class Steps:
    """An example's part of a step by how many are in it, in seconds on one core: timed once for each network."""

    def __init__(self) -> None:
        self._known: dict[tuple[Hashable, int], float] = {}

    def searched(self, attack: Attack, federation: Federation, network: Hashable) -> float:
        """Seconds of an attack's searches, if none ends early; ``network``: the same where a step takes the same."""
        passes = attack.passes_by(federation) or {0: attack.passes(federation)}
        return sum(count * self._example(federation, n, network) for n, count in passes.items() if count)

    def _example(self, federation: Federation, examples: int, network: Hashable) -> float:
        if (network, examples) not in self._known:
            seconds, many = timed_step(federation, examples)
            self._known[network, examples] = seconds / many
        return self._known[network, examples]


def timed_pass(federation: Federation) -> Timed:
    """From a few steps of the largest client, and a look at test data."""
    per_step, size = timed_step(federation)
    bench, plan = federation.bench(), federation.plan_of(max(federation.task.clients, key=lambda c: len(c.train)).name)
    # Examples, not steps, are what takes time where clients' batches differ in size.
    rows = plan.epochs * sum(len(c.train) for c in federation.task.clients) * federation.expected()
    steps = rows / size / len(federation.task.clients)
    test = federation.task.test
    evaluation = 0.0
    if test is not None and len(test):
        few = slice(0, min(len(test), 32))
        start = time.perf_counter()
        bench.outputs(bench.initial, test, few)
        evaluation = (time.perf_counter() - start) * len(test) / (few.stop or 1)
    workers = min(cores(), len(federation.task.clients))
    return Timed((steps * per_step + evaluation) / workers, per_step / size, memory_of(federation, workers))


def memory_of(federation: Federation, workers: int) -> float:
    """Megabytes that a federation needs, by rule of thumb."""
    weights = 4 * federation.layout.size * (4 + min(len(federation.task.clients), 14))
    return weights / 2**20 + 400 * workers


def trial_round(federation: Federation, workers: int = 0, patience: float = PATIENCE) -> float | None:
    """Seconds of a round, judged and all, under the federation's own defences; None where it cannot be done.

    A round of S steps takes a + b S. Where that would last (``patience``), two short ones tell a and b: of one step a
    client, and of so many as take a third of that.
    """
    try:
        steps, owner = _steps(federation), federation.stack.owner
        together = workers or min(cores(), len(federation.task.clients))
        # Parts of a client (`stack.owner`) have steps of their own, which its plan does not tell.
        if owner is not None or (whole := timed_step(federation)[0] * steps / together) < patience:
            return _played(federation, workers)
        some = patience / (3 * whole) * steps / federation.expected()
        few, more = _shortened(federation, 1), _shortened(federation, 2 + int(some))
        if _steps(more) == steps:
            return _played(federation, workers)
        took, longer = _played(few, workers), _played(more, workers, turns=1)
        return took + max(longer - took, 0.0) / (_steps(more) - _steps(few)) * (steps - _steps(few))
    except LeaklineError:  # whatever is wrong will be said when it is run
        return None


def _played(federation: Federation, workers: int, turns: int = 2) -> float:
    """Seconds of a round, the last of so many turns. From the untrained model: a warm start is no part of it."""
    took, state = 0.0, State(weights=federation.bench().initial.only(federation.shares))
    with LocalTransport(federation, workers) as transport:
        start = time.perf_counter()
        for round_ in federate(replace(federation, rounds=min(federation.rounds, turns)), transport, state=state):
            judged(federation, transport, round_)
            took, start = time.perf_counter() - start, time.perf_counter()
            if took >= QUICK:
                break
    return took


def _shortened(federation: Federation, most: int) -> Federation:
    """The same, with the noise of the whole rounds, and no more than so many steps of a client in each."""
    granted = federation.granted
    return replace(granted, plan=replace(granted.plan, max_steps=min(most, granted.plan.max_steps or most)))


def _steps(federation: Federation) -> float:
    """Steps of all clients that are expected in a round."""
    clients = federation.task.clients
    return federation.expected() / len(clients) * sum(federation.most_steps(c.name, len(c.train)) for c in clients)


def place_of(federation: Federation) -> str:
    """Where rounds take the same time: the same network, data, recipe and defences."""
    task = federation.task
    held = [len(client.train) for client in task.clients]
    return repr((
        federation.model, task.shape, task.classes, held, federation.local_plan, federation.batches,
        federation.defences, federation.cohort,
    ))  # fmt: skip


@dataclass(frozen=True)
class Sampled:
    """Seconds of an attack on a federation: of all that it does, or of what it computes besides (`Sample.besides`)."""

    seconds: float
    besides: bool


class Samples:
    """Times samples of attacks' work, once for all federations where they take the same."""

    def __init__(self, workers: int = 0) -> None:
        self.workers = workers
        self._known: dict[str, Sampled | None] = {}

    def of(self, attack: Attack, federation: Federation) -> Sampled | None:
        """From a piece of each kind; None where there is none, or it cannot be done."""
        try:
            pieces = attack.samples(federation)
        except Exception:  # somebody else's attack, too: whatever is wrong will be said when it is run
            return None
        besides = bool(pieces) and all(piece.besides for piece in pieces)
        # what is learnt or looked at depends on sizes alone; what is played or trained, on all the rest too
        held = [(len(c.train), 0 if c.test is None else len(c.test)) for c in federation.task.clients]
        sizes = (held, federation.rounds, federation.wire, federation.model)
        key = repr((attack, sizes if besides else place_of(federation)))  # in words: a model of one's own need not hash
        if key not in self._known:
            try:
                self._known[key] = self._timed(pieces, besides) if pieces else None
            except Exception:
                self._known[key] = None
        return self._known[key]

    def _timed(self, pieces: Sequence[Sample], besides: bool) -> Sampled:
        tune_allocator()  # as whoever trains does: large outputs cost several times as much without
        return Sampled(sum(self._seconds(piece) / piece.share for piece in pieces), besides)

    def _seconds(self, piece: Sample) -> float:
        took = 0.0
        for _ in range(2):
            start = time.perf_counter()
            piece.do(self.workers)
            took = time.perf_counter() - start
            if took >= MOMENT:
                break
        return took
