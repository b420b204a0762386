"""Imprint as an attack on the menu: the seat of a server that alters the model it sends. Fowl et al. 2022."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leakline.attacks.base import Artefact, Attack, Challenge, Lab
from leakline.attacks.imprint.block import MOST_VALUES, NAME, WEIGHT, Altered, Block, Ruler, ruler_of
from leakline.attacks.imprint.judge import Held, Taken, readings
from leakline.attacks.imprint.recover import recover
from leakline.attacks.inversion.scene import public
from leakline.bench.training import Bench, Plan
from leakline.data.base import Data
from leakline.errors import ClientLost, LeaklineError, StudyError
from leakline.federation import Federation, initial_weights
from leakline.messages import Memory, Update
from leakline.privacy import Claim, Seat
from leakline.readings import Reading
from leakline.views import EVERYBODY, ServerView, visible
from leakline.weights import Weights, write

FEWEST = 16
"""How many public images the bins are measured on at least."""
MOST = 512
"""How many of them are used at most."""
MOVED = (0.3, 1.0)
"""By how much of a bin's width a typical image should move the unit that sees it: over many steps, and in a single one,
where nothing comes after it. Less of it drowns in float32's rounding; too much lets units see their neighbours' images.
Chosen on X-rays and phantoms of draws 0 and 1, not on those of docs/imprint.md."""


@dataclass(frozen=True)
class Bins:
    """What the server knows of its own block."""

    ruler: Ruler
    shape: tuple[int, ...]
    refused: str = ""


@dataclass(frozen=True)
class Imprint(Attack):
    """Clients' training images, read off a layer that a cheating server puts before their network (Fowl et al. 2022).

    The server adds ``sets`` times ``bins`` units (0: twice as many a set as images are seen together, 341 at least),
    each of which answers to images within a narrow range of brightness in some direction (see
    `leakline.attacks.imprint.block`), sends the altered model to ``clients`` (all, if none are named) for one round,
    and reads the images off the change of those units: after one step or many, of single updates or, under assumed
    secure aggregation, of the sum of all. ``start``: the weights of the rest are those of the first round ("initial")
    or of the finished run ("final"). Directions and bins come from the server's public images.

    It asks for clients that train whatever they are sent. `pinned-model` refuses the altered model; promises against
    the server (dp-sgd, ldp-sgd, gaussian-release) hold for it as for any model.
    """

    start: Literal["initial", "final"] = "initial"
    clients: tuple[str, ...] = ()
    bins: int = 0
    sets: int = 3
    seat: ClassVar[Seat] = Seat.MALICIOUS_SERVER

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", tuple(self.clients))  # a study file gives a list
        if self.bins < 0 or self.sets < 2:
            raise ValueError(f"bins of 0 and sets of 2 at least: {self.bins}, {self.sets}")

    # the examiner's half

    def trains(self, federation: Federation) -> dict[str, float]:
        """One round, of the altered model."""
        return {f"imprint/{self}/{federation.strategy}/{federation.defences}": 1.0}

    def check(self, federation: Federation) -> None:
        """Refuse, before training, a federation whose model the block cannot be put into, or would tell nothing."""
        shape = federation.task.shape
        if unknown := sorted(set(self.clients) - set(federation.clients)):
            raise _wrong(f"there is no client {unknown[0]!r}", f"one of: {', '.join(list(federation.clients)[:8])}")
        if len(shape) != 3:
            raise _wrong(
                f"it takes images, and inputs have the shape {shape}", "use a task of images, or another attack"
            )
        if federation.plan.optimiser != "sgd":
            raise _wrong(
                f"clients train with {federation.plan.optimiser}, which changes every weight by about the same amount: "
                "the image is lost",
                'optimiser = "sgd", or gradient-inversion',
            )
        if federation.plan.augment != "none":
            raise _wrong(
                "clients train on moved versions of their images, and bins are measured on images as they are",
                'augment = "none" in [training]',
            )
        each = self.sets * math.prod(shape)
        if (size := self._bins(federation) * each) > MOST_VALUES:
            raise _wrong(f"the block would have {size:,} weights", f"set bins to {MOST_VALUES // each} at most")
        images = _shown(federation)
        if len(images) < FEWEST or len(images) <= self.sets:
            raise _wrong(f"bins are measured on {FEWEST} public images at least", "raise server_validation in [data]")
        if float(images.min()) < -1e-6 or float(images.max()) > 1 + 1e-6:
            raise _wrong("inputs are not images with values from 0 to 1", "leave the scaling to the network")
        self._fits(federation, images)

    def _fits(self, federation: Federation, images: Tensor) -> None:
        try:
            world = self._world(federation, 1e-3)
            shared, bench = world.wire, world.bench()
            with torch.no_grad():
                bench.model.train()(images[:2].to(bench.device))
        except LeaklineError:
            raise
        except Exception as error:  # a model of somebody else's may raise anything
            raise _wrong(
                f"the model cannot be built with a layer before it ({type(error).__name__}: {error})",
                "give a model whose forward takes one image tensor; gradient-inversion needs no altered model",
            ) from error
        if WEIGHT not in shared.slices:
            raise _wrong(f"{federation.stack} keeps the added layer at the clients", "leave this attack out")
        world.stack.check(world)

    def _world(self, federation: Federation, strength: float) -> Federation:
        """The federation with the altered model; what clients agreed on beforehand is the model without it."""
        altered = Altered(federation.network, self.sets * self._bins(federation), strength)
        return replace(federation, model=altered, defences=federation.stack.settled(federation))

    def _bins(self, federation: Federation) -> int:
        """Bins of one set."""
        sizes = [len(federation.clients[name].train) for name in self._targets(federation)]
        seen = sum(sizes) if federation.cohort.secure_aggregation != "none" else max(sizes)
        return self.bins or max(2 * seen, 341)

    def _targets(self, federation: Federation) -> tuple[str, ...]:
        return self.clients or tuple(federation.clients)

    def challenges(self, lab: Lab) -> Iterator[Challenge]:
        """One question per client, or one about all of them where only their sum is seen."""
        federation = lab.federation
        self.check(federation)
        images, final = _shown(federation), self.start == "final"
        ruler = ruler_of(images, self.sets, self._bins(federation))
        rest = lab.final_weights() if final else initial_weights(federation)
        world = self._world(federation, self._strength(federation, ruler, rest, images))
        sent = ruler.weights(world.wire, rest)
        memories: dict[str, Memory] = lab.memories() if final else {}
        names = self._targets(federation)
        try:
            updates, refused = lab.probe(sent, 0, federation=world, clients=names, memories=memories), ""
        except ClientLost as error:
            if not federation.stack.using("accept"):
                raise
            updates, refused = (), error.what
        hints = Bins(ruler, federation.task.shape, refused)
        together = federation.cohort.secure_aggregation != "none"
        for name in (EVERYBODY,) if together else names:
            mine = tuple(u for u in updates if together or u.client == name)
            seen = visible(federation, mine)
            view = ServerView(
                sent, world.bench, federation.objective.per_example_loss, (sent,), world.local_plan, (sent,), (seen,)
            )
            held = [federation.clients[n].train for n in (names if together else (name,))]
            yield Challenge(view, hints, self._held(federation, name, held, images, sent, refused))

    def _strength(self, federation: Federation, ruler: Ruler, rest: Weights, images: Tensor) -> float:
        """How faint the mark may be, so that a typical image moves its units by `MOVED` of a bin."""
        plan, trial = federation.local_plan, 1e-2
        world = self._world(federation, trial)
        whole = world.bench()
        sent = ruler.weights(world.wire, rest)
        start = (
            sent if world.wire == world.layout else (sent | whole.initial.only(lambda n: n not in world.wire.slices))
        )
        data = public(federation)
        assert data is not None  # the check looked
        sizes = [len(federation.clients[name].train) for name in self._targets(federation)]
        examples = max(sizes)
        batch = min(plan.batch or examples, examples, len(data))
        felt = _felt(whole, start.arranged(world.layout), data, batch)
        single = plan.steps_of(examples) == 1
        pushes = (
            plan.rate(0) * plan.epochs / max(1 - plan.momentum, 1e-2) * batch / min(plan.batch or examples, examples)
        )
        moved = pushes * felt / trial * float(images.flatten(1).square().sum(1).mean() + 1)
        return min(MOVED[single] / max(moved, 1e-12), 0.5)

    def _held(
        self, federation: Federation, name: str, held: Sequence[Data], shown: Tensor, sent: Weights, refused: str
    ) -> Held:
        images = torch.cat([data.inputs(slice(None)) for data in held])
        every = [c.train.inputs(slice(None)) for c in federation.task.clients]
        added = f"{NAME} ({sent[WEIGHT].numel() + len(sent[WEIGHT]):,} weights before the network)"
        claims = [c for c in federation.claims().values() if isinstance(c, Claim) and c.observer is Seat.SERVER]
        index = federation.rounds if self.start == "final" else 0
        return Held(name, index, images, shown, torch.cat([*every, shown]), added, refused, bool(claims))

    # the attacker's half

    def guess(self, view: ServerView, hints: Bins) -> Taken:
        """The images, from the change of the block's rows."""
        if hints.refused:
            return Taken(torch.zeros(0, *hints.shape), 0)
        sent, plan = view.sent[0][WEIGHT], view.plan
        parts = []
        for update in view.updates[0]:
            idle = _shrunk(plan, update) * sent
            parts.append(recover(update.delta[WEIGHT] - idle, hints.ruler, update.examples))
        images = torch.cat([part.images[: part.certain] for part in parts] + [p.images[p.certain :] for p in parts])
        return Taken(images.view(-1, *hints.shape), sum(part.certain for part in parts))

    # the comparison

    def measure(self, guesses: Sequence[Taken], secrets: Sequence[Held]) -> list[Reading | Artefact]:
        """Images taken out, their likeness, and whether each is found again among all; and the pictures."""
        return readings(guesses, secrets)


def _shown(federation: Federation) -> Tensor:
    data = public(federation)
    if data is None:
        raise _wrong("the server has no public images to measure bins on", "set server_validation = 0.1 in [data]")
    return data.inputs(slice(0, MOST))


def _felt(bench: Bench, start: Weights, data: Data, batch: int) -> float:
    """The median gradient |g_x| of one image's mark, in a step over public images."""
    write(bench.model, start)
    bench.model.train()
    x = bench.inputs(data, slice(0, batch))
    marks = torch.zeros(len(x), requires_grad=True)
    block = bench.model.get_submodule(NAME)
    assert isinstance(block, Block)  # `Altered` built it
    handle = block.register_forward_hook(lambda module, args, out: out + marks.view(-1, 1, 1, 1) * block.pattern)
    try:
        value = bench.loss(bench.model(x), bench.targets(data, slice(0, batch)))
        (gradient,) = torch.autograd.grad(value, marks)
    finally:
        handle.remove()
    return float(gradient.abs().median())


def _shrunk(plan: Plan, update: Update) -> float:
    """By which share weight decay alone changes a weight in a turn; 0 without it."""
    weight, speed = 1.0, 0.0
    for _ in range((update.steps or plan.steps_of(update.examples)) if plan.weight_decay else 0):
        speed = plan.momentum * speed + plan.weight_decay * weight
        weight -= plan.rate(0) * speed
    return weight - 1.0


def _wrong(what: str, fix: str) -> StudyError:
    return StudyError(what, "imprint", fix)
