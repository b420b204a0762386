"""A stack of defences: what happens at each crossing of a trust boundary, and what others may ask about it.

    server   brief                                    small numbers that ride with the weights
    client   accept                                   what arrives, before anything is trained on it
    client   split, batches, gradient, release        from a client's examples to what leaves it
    server   admit, publish("aggregate"), publish("model")

`release` and `admit` run first to last, `publish` last to first: who looks at the updates first sees the result last.
Each method takes a `Turn` for each defence (`turns`), as the hook of the same name takes one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor, nn

from leakline.bench.training import Plan
from leakline.defences import Defence, Law, Loss, Promises, Stage, Terms, harm
from leakline.errors import StackError
from leakline.mechanisms.treatment import Treatment
from leakline.messages import Memory, Order, Receipt, Turn, Update
from leakline.privacy import Claim, NoClaim, noise_for
from leakline.weights import Layout, Weights

Turns = Sequence[Turn]
"""What each defence of a stack may use at one party in one round, in the stack's order."""


@dataclass(frozen=True)
class Stack:
    """Defences that act together, in order; ``Stack()`` protects nobody."""

    defences: tuple[Defence, ...] = ()

    def __post_init__(self) -> None:
        for defence in self.defences:
            if not isinstance(defence, Defence):
                raise ValueError(f"a defence is needed, such as leakline.GlobalDP(...): {defence!r}")
        if len(owners := self.using("gradient").defences) > 1:
            first, second = (type(owner).__name__ for owner in owners[:2])
            raise StackError(f"{first} and {second} both want to form the gradient", fix="keep one of them in a stack")
        if sum(bool(defence.follows) for defence in self.defences) > 1:
            raise StackError("two defences of a stack follow another run", fix="keep one of them in a stack")

    def __bool__(self) -> bool:
        return bool(self.defences)

    def __str__(self) -> str:
        return " + ".join(type(defence).__name__ for defence in self.defences) or "no defence"

    # facts

    def using(self, *hooks: str) -> Stack:
        """The defences that use any of these hooks; it is false where none does."""
        chosen = tuple(defence for defence in self.defences if not set(hooks).isdisjoint(defence.hooks))
        return self if len(chosen) == len(self.defences) else Stack(chosen)

    def publishing(self, at: Stage) -> Stack:
        """The defences that act on the combined change at a stage."""
        return Stack(tuple(d for d in self.using("publish").defences if d.at == at))

    @property
    def dividing(self) -> Stack:
        """The defences whose noise is for a mean over a number of clients that all count the same."""
        return Stack(tuple(defence for defence in self.defences if defence.denominator))

    @property
    def kinds(self) -> frozenset[type[Defence]]:
        """What kinds of defence there are in it."""
        return frozenset(type(defence) for defence in self.defences)

    @property
    def hooks(self) -> frozenset[str]:
        """Every hook that some defence uses."""
        return frozenset(hook for defence in self.defences for hook in defence.hooks)

    @property
    def fewest(self) -> int:
        """How many clients a round needs at least."""
        return 2 if any(defence.needs_pairs for defence in self.defences) else 1

    @property
    def steady(self) -> bool:
        """Whether clients are told the same numbers in every round."""
        return all(defence.steady for defence in self.defences)

    @property
    def loudness(self) -> float:
        """How much noise the loudest defence adds, in its own unit; 0 where nothing is added."""
        return max((defence.loudness for defence in self.defences), default=0.0)

    @property
    def law(self) -> Law | None:
        """The law of what a client reports, where one defence alone decides it and it is known in closed form."""
        return self.defences[0].law if len(self.defences) == 1 else None

    @property
    def treatment(self) -> Treatment:
        """What all defences do to gradients and updates at a client, as far as an attacker may know."""
        whole = Treatment()
        for defence in self.defences:
            whole = whole.then(defence.treatment)
        return whole

    def stated(self, clients: float) -> dict[str, float | str]:
        """What rounds of so many clients can be held against: see `Defence.stated`; {} where several act on updates.

        One that clips and noises at the clients is known by its treatment.
        """
        publishing = [defence.stated(clients) for defence in self.using("admit", "publish").defences]
        treatment = self.treatment
        if len(publishing) == 1 and not treatment.updates and not treatment.unknown:
            return {**publishing[0], "clip_at": "server", "noise_at": "server"} if publishing[0] else {}
        acts = treatment.updates
        if publishing or treatment.unknown or len(acts) != 1 or acts[0].scale != 1.0 or not acts[0].buffers:
            return {}
        clip, noise = acts[0].clip, acts[0].noise
        if callable(noise) or math.isinf(clip):
            return {}
        return {"clip": clip, "noise_multiplier": noise / clip, "clip_at": "client", "noise_at": "client"}

    def sends(self, notes: Mapping[str, float]) -> int:
        """At most how many updates a client sends for an order with these notes."""
        return max((defence.sends(notes) for defence in self.defences), default=1)

    def kept(self, layout: Layout) -> frozenset[str]:
        """The entries that stay at the clients: every defence must agree that one may leave."""
        kept = frozenset(name for defence in self.defences for name in defence.kept(layout))
        if kept and len(kept) == len(layout.entries):
            raise StackError("every layer stays at the clients: nothing would be learned together", fix="share a layer")
        return kept

    def settled(self, federation: Terms) -> tuple[Defence, ...]:
        """The defences with whatever they compute from a federation's public size written out."""
        return tuple(defence.settled(federation) for defence in self.defences)

    def unsampled(self) -> tuple[Defence, ...]:
        """The defences without any sampling of records."""
        return tuple(defence.unsampled() for defence in self.defences)

    @property
    def follower(self) -> Defence | None:
        """The defence that needs to be told what another run wrote down, if there is one."""
        return next((defence for defence in self.defences if defence.follows), None)

    def told(self, run: str, facts: Sequence[Mapping[str, float]]) -> tuple[Defence, ...]:
        """The defences, those that follow the run of that key told what its rounds wrote down."""
        return tuple(defence.told(run, facts) if defence.follows else defence for defence in self.defences)

    # books

    def check(self, federation: Terms) -> None:
        """Ask every defence whether it can work in this federation."""
        for defence in self.defences:
            defence.check(federation)

    def claims(self, federation: Terms, facts: Sequence[Mapping[str, float]] = ()) -> dict[str, Claim | NoClaim]:
        """What each defence promises beside the others; a stack of none promises nothing.

        A promise stands only where every other defence is known to leave it alone: see `harm`. A defence with a
        promise for each of several units appears once for each ("Intermediaries per client").
        """
        if not self.defences:
            return {"none": NoClaim("no defence: updates and models are published as they are")}
        claims: dict[str, Claim | NoClaim] = {}
        for place, name in enumerate(self.names):
            promise = self._promise(place, federation, facts)
            if isinstance(promise, tuple):
                claims |= {f"{name} per {claim.unit}": claim for claim in promise}
            else:
                claims[name] = promise
        return claims

    @property
    def names(self) -> list[str]:
        """What claims call the defences: two of a kind are numbered."""
        names = [type(defence).__name__ for defence in self.defences]
        return [f"{n} {names[: i + 1].count(n)}" if names.count(n) > 1 else n for i, n in enumerate(names)]

    def asked_at(self, claim: str) -> float | None:
        """The delta at which an epsilon was asked of the defence that makes a claim, by its name; None: none was."""
        made = self.defences[self.names.index(claim.partition(" per ")[0])].wish if self.defences else None
        return None if made is None else made.delta

    def _promise(self, place: int, federation: Terms, facts: Sequence[Mapping[str, float]] = ()) -> Promises:
        """What one defence promises beside the others."""
        promise = self.defences[place].claim(federation, facts)
        made = promise if isinstance(promise, tuple) else (promise,)
        seats = {claim.observer for claim in made if isinstance(claim, Claim)}
        return next((p for s in seats if (p := harm(self.defences, place, s, federation.wire))), promise)

    @property
    def wishful(self) -> Stack:
        """The defences that are asked for an epsilon and whose noise has not been computed."""
        return Stack(tuple(d for d in self.defences if d.wish is not None and not d.wish.granted))

    @property
    def computed(self) -> tuple[str, ...]:
        """The noise that was computed for what is asked for, in words."""
        wished = [(defence, wish) for defence in self.defences if (wish := defence.wish) is not None]
        return tuple(
            f"{type(defence).__name__}: noise multiplier {defence.loudness:g}, computed for the epsilon = "
            f"{wish.epsilon:g} at delta = {wish.delta:g} that is asked for"
            for defence, wish in wished
        )

    def granted(self, terms: Callable[[tuple[Defence, ...]], Terms]) -> Stack:
        """The stack with noise enough for every epsilon that is asked for; ``terms``: the federation around a stack.

        Where a defence promises something to several units, the first and largest one's epsilon is meant.
        """
        if not self.wishful:
            return self
        tried = tuple(d.with_noise(1.0) if d in self.wishful.defences else d for d in self.defences)
        for place in [i for i, defence in enumerate(self.defences) if defence in self.wishful.defences]:
            tried = _with(tried, place, _noise(tried, place, terms))
        return Stack(tried)

    # crossings

    def turns(
        self, index: int, party: str, memory: Memory, *, seed: int, secret: bool, expected: float = 0.0,
        values: int = 0, facts: dict[str, float] | None = None, groups: Tensor | None = None,
    ) -> tuple[Turn, ...]:  # fmt: skip
        """What each defence may use in a round, at a party: see `Turn`."""
        facts = {} if facts is None else facts
        turns = []
        for place, defence in enumerate(self.defences):
            kind = type(defence)
            # Counted among its own kind, so that other defences in the stack do not shift its randomness.
            twin = sum(type(other) is kind for other in self.defences[:place])
            own, purpose = memory.setdefault(f"{place}", {}), f"{kind.__name__}-{twin}"
            turns.append(Turn(index, party, own, seed, purpose, expected, values, secret, facts, groups))
        return tuple(turns)

    def brief(self, turns: Turns) -> dict[str, float]:
        """The notes that ride with the weights."""
        notes: dict[str, float] = {}
        for defence, turn in zip(self.defences, turns, strict=True):
            notes = defence.brief(notes, turn)
        return notes

    def accept(self, order: Order, turns: Turns) -> None:
        """Let every defence look at an order; whoever minds raises."""
        for defence, turn in zip(self.defences, turns, strict=True):
            defence.accept(order, turn)

    def split(self, examples: int, order: Order, turns: Turns) -> list[np.ndarray] | None:
        """Which rows of a client train separately, or None for all together; the last defence to say so decides."""
        parts = None
        for defence, turn in zip(self.defences, turns, strict=True):
            parts = defence.split(examples, order, turn) or parts
        return parts

    @cached_property
    def owner(self) -> int | None:
        """The place of the defence that forms gradients; None: they come from an ordinary backward pass."""
        return next((place for place, defence in enumerate(self.defences) if "gradient" in defence.hooks), None)

    def batches(self, examples: int, plan: Plan, turns: Turns) -> Iterator[Tensor] | None:
        """The rows of each local step, or None: as the plan has them. The owner of the gradient decides."""
        return None if self.owner is None else self.defences[self.owner].batches(examples, plan, turns[self.owner])

    def gradient(self, loss: Loss, turns: Turns) -> Callable[[nn.Module, Tensor, Tensor], Tensor] | None:
        """What fills the parameters' ``grad`` from one batch and returns the loss; None: an ordinary backward pass."""
        if self.owner is None:
            return None
        defence, turn = self.defences[self.owner], turns[self.owner]
        return lambda model, x, y: defence.gradient(model, x, y, loss, turn)

    def release(self, update: Update, turns: Turns) -> Update:
        """An update as it leaves its client."""
        for defence, turn in zip(self.defences, turns, strict=True):
            update = defence.release(update, turn)
        return update

    def admit(self, updates: Iterator[Update], turns: Turns) -> Iterator[Update]:
        """Updates as they are combined, one after another."""
        for defence, turn in zip(self.defences, turns, strict=True):
            updates = defence.admit(updates, turn)
        return updates

    def publish(self, change: Weights, at: Stage, cohort: Sequence[Receipt], turns: Turns) -> Weights:
        """The combined change as it goes on from a stage.

        What comes is a mean over those who answered. Where it is to be one over a public number of clients, that is
        mended here, once, before any defence sees it; the last defence that minds decides.
        """
        minding = [(d, t) for d, t in zip(self.defences, turns, strict=True) if d.denominator]
        if at == "aggregate" and minding and minding[-1][0].denominator == "expected":
            defence, turn = minding[-1]
            change = change * (len(cohort) / defence.divisor(turn))
        for defence, turn in reversed(list(zip(self.defences, turns, strict=True))):
            if defence.at == at:
                change = defence.publish(change, cohort, turn)
        return change


def _with(defences: tuple[Defence, ...], place: int, noise: float) -> tuple[Defence, ...]:
    return (*defences[:place], defences[place].with_noise(noise), *defences[place + 1 :])


def _noise(defences: tuple[Defence, ...], place: int, terms: Callable[[tuple[Defence, ...]], Terms]) -> float:
    """The least noise at which the defence at a place promises what is asked of it; an error where none does."""
    name, wish = type(defences[place]).__name__, defences[place].wish
    assert wish is not None
    asked = f"{name} is asked for epsilon = {wish.epsilon:g} at delta = {wish.delta:g}"

    def claim_at(noise: float) -> Claim:
        stack = Stack(_with(defences, place, noise))
        made = stack._promise(place, terms(stack.defences))
        first = made[0] if isinstance(made, tuple) else made
        if isinstance(first, NoClaim):
            raise StackError(f"{asked}, and can promise nothing here: {first.reason}", name, first.instead)
        return first

    try:
        return noise_for(claim_at, wish.epsilon, wish.delta)
    except ValueError as error:
        raise StackError(f"{asked}: {error}", name, "ask for a larger epsilon, or train fewer rounds") from error
