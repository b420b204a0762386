"""Planted bugs: small subclasses of correct defences, each with one mistake that somebody could make.

Lists kept apart because they say different things about the audit that meets them: `OLD` were there when the
first audit was written, `NAMED` were held out and reported as missed by it, `FURTHER` were written down, and
committed, before the audit was widened, `PATIENTS` came with the patient as a unit. `SOUND` are stacks without a
mistake, to count false alarms on.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from leakline.attacks.audit import workbench
from leakline.bench.training import Plan
from leakline.defences import (
    AdaptiveClip,
    Defence,
    DelayedRmsProp,
    DpSgd,
    FedBN,
    FedPer,
    GaussianNoise,
    GaussianRelease,
    GlobalDP,
    Intermediaries,
    LdpSgd,
    MetricPrivacy,
    PercentileGaussian,
)
from leakline.federation import Federation
from leakline.mechanisms import add_gaussian, clip_norm, follow_quantile, norm_of, split_budget
from leakline.mechanisms.per_example import clipped_sum
from leakline.messages import Receipt, Turn, Update
from leakline.privacy import Claim, gdp_mu
from leakline.randomness import SecretNoise, SeededNoise, Stream
from leakline.strategies import MENU as STRATEGIES
from leakline.strategies import fedavg
from leakline.weights import Weights


@dataclass(frozen=True)
class Case:
    """A stack, with the settings of the federation around it."""

    kind: str
    stack: tuple[Defence, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    shape: Callable[[Federation], Federation] = lambda federation: federation

    def federation(self, seed: int = 0) -> Federation:
        """A federation to audit."""
        return self.shape(workbench(self.stack, seed=seed, **({"noise": "seeded"} | dict(self.settings))))


def case(kind: str, *stack: Defence, shape: Callable[[Federation], Federation] | None = None, **settings: Any) -> Case:
    return Case(kind, stack, settings, shape or (lambda federation: federation))


def changed(claim: Any, **gaussian: Any) -> Claim:
    """A claim with other numbers in its Gaussian events."""
    assert isinstance(claim, Claim)
    return replace(claim, events=tuple(replace(e, **gaussian) for e in claim.events))


# --- what the bugs are made of ---------------------------------------------------------------------------------------


class Report(GaussianRelease):
    """A release in three steps, any of which a bug overrides."""

    def bounded(self, vector: Tensor, update: Update, turn: Turn) -> Tensor:
        return clip_norm(vector, self.clip)

    def drawn(self, size: int, update: Update, turn: Turn) -> Tensor:
        return turn.noise().normal(size) * self.noise_multiplier * self.clip

    def release(self, update: Update, turn: Turn) -> Update:
        kept = self.bounded(update.delta.vector, update, turn)
        noise = self.drawn(kept.numel(), update, turn)
        return replace(update, metrics={}).with_delta((kept.double() + noise).float())


class Server(GlobalDP):
    """A noised mean in two steps, either of which a bug overrides."""

    def std(self, cohort: Sequence[Receipt], turn: Turn) -> float:
        return self.noise_multiplier * self.clip / self.divided(cohort, turn)

    def drawn(self, size: int, turn: Turn) -> Tensor:
        return turn.noise().normal(size)

    def publish(self, change: Weights, cohort: Sequence[Receipt], turn: Turn) -> Weights:
        noise = self.drawn(change.vector.numel(), turn) * self.std(cohort, turn)
        return change.like((change.vector.double() + noise).float())


class Steps(DpSgd):
    """A DP-SGD step in four, any of which a bug overrides."""

    def sums(self, model, loss, x, y, step):  # type: ignore[no-untyped-def]
        return [s.double() for s in clipped_sum(model, loss, x, y, self.clip).sums]

    def drawn(self, total: Tensor, noise: Any, step: int, turn: Turn) -> Tensor:
        return noise.normal(total.numel()).view(total.shape) * self.noise_multiplier * self.clip

    def size(self, x: Tensor, turn: Turn) -> float:
        return turn.facts.get("expected_batch") or len(x)

    def gradient(self, model, x, y, loss, turn):  # type: ignore[no-untyped-def]
        step = int(turn.facts.get("noised_steps", 0))
        turn.facts["noised_steps"] = step + 1.0
        noise = turn.noise(f"step {step}")
        sums = self.sums(model, loss, x, y, step)
        for parameter, total in zip(model.parameters(), sums, strict=True):
            noised = (total + self.drawn(total, noise, step, turn)) / self.size(x, turn)
            parameter.grad = noised.float()
        return torch.zeros(())


# --- the ten old ones ------------------------------------------------------------------------------------------------


class HalvedNoise(Report):
    def drawn(self, size, update, turn):
        return super().drawn(size, update, turn) / 2


class ShortNoise(Report):
    def drawn(self, size, update, turn):
        return super().drawn(size, update, turn) * 0.9


class NoClip(GlobalDP):
    def admit(self, updates, turn):
        return updates


class ClipAfterNoise(GaussianRelease):
    def release(self, update, turn):
        noised = add_gaussian(update.delta.vector, self.noise_multiplier * self.clip, turn.noise())
        return replace(update, metrics={}).with_delta(clip_norm(noised, self.clip))


class NoiseDrawnOnce(Server):
    def drawn(self, size, turn):
        if "noise" not in turn.memory:
            turn.memory["noise"] = turn.noise().normal(size)
        return turn.memory["noise"]


class WrongNumber(Server):
    def std(self, cohort, turn):
        return self.noise_multiplier * self.clip / turn.expected  # the invited, not those who answered


class SeededByRound(GaussianRelease):
    def release(self, update, turn):
        noise, std = SeededNoise(turn.stream("noise")), self.noise_multiplier * self.clip
        kept = clip_norm(update.delta.vector, self.clip)
        return replace(update, metrics={}).with_delta(add_gaussian(kept, std, noise))


class BareBuffers(GlobalDP):
    def publish(self, change, cohort, turn):
        size = sum(e.size for e in change.layout.entries if not e.buffer)
        std = self.noise_multiplier * self.clip / len(cohort)
        noised = add_gaussian(change.vector[:size], std, turn.noise())
        return change.like(torch.cat([noised, change.vector[size:]]))


class WrongDelta(GaussianRelease):
    """Calibrated for epsilon = 4 at delta = 0.01, sold as epsilon = 4 at delta = 1e-5."""

    def claim(self, federation, facts=()):
        return changed(super().claim(federation, facts), mu=gdp_mu(4.0, 1e-5))


class SamplingThatIsNot(GlobalDP):
    def claim(self, federation, facts=()):
        return changed(super().claim(federation, facts), rate=0.01)


OLD = {
    "noise halved": case("scale", HalvedNoise(2.0, 1.0)),
    "noise 10 % short": case("scale", ShortNoise(2.0, 1.0)),
    "no clip": case("length", NoClip(1.0, 1.0)),
    "clip after noise": case("length", ClipAfterNoise(2.0, 1.0)),
    "noise drawn once": case("memory", NoiseDrawnOnce(1.0, 1.0)),
    "wrong n after dropout": case("cohort", WrongNumber(1.0, 1.0, denominator="actual")),
    "seeded noise": case("source", SeededByRound(2.0, 1.0), noise="secret"),
    "un-noised buffers": case("geometry", BareBuffers(1.0, 1.0)),
    "wrong delta": case("scale", WrongDelta(2 / gdp_mu(4.0, 0.01), 1.0)),
    "sampling claimed but not done": case("sampling", SamplingThatIsNot(1.0, 1.0), rounds=10),
}


# --- the eighteen named ones -----------------------------------------------------------------------------------------


class Broadcast(Server):
    """One draw, added to all values."""

    def drawn(self, size, turn):
        return turn.noise().normal(1).expand(size)


class Tiled(Report):
    """Four draws, repeated."""

    def drawn(self, size, update, turn):
        return super().drawn(4, update, turn).repeat(-(-size // 4))[:size]


class LastBare(Server):
    def drawn(self, size, turn):
        noise = super().drawn(size, turn)
        noise[-1] = 0.0
        return noise


class BareBiases(Steps):
    def drawn(self, total, noise, step, turn):
        return super().drawn(total, noise, step, turn) * (total.dim() > 1)


class ClipPerTensor(Steps):
    def sums(self, model, loss, x, y, step):
        totals = [torch.zeros_like(p).double() for p in model.parameters()]
        for i in range(len(x)):
            gradients = torch.autograd.grad(loss(model(x[i : i + 1]), y[i : i + 1]), list(model.parameters()))
            for total, g in zip(totals, gradients, strict=True):
                total += clip_norm(g.flatten(), self.clip).view(g.shape)
        return totals


class ClipBeyondTen(Report):
    def bounded(self, vector, update, turn):
        return clip_norm(vector, self.clip) if norm_of(vector) > 10 * self.clip else vector


class ClipSquared(Report):
    """By the squared norm: too long for bounds below 1."""

    def bounded(self, vector, update, turn):
        return vector * min(1.0, self.clip / max(norm_of(vector) ** 2, 1e-12))


class Uniform(Server):
    def drawn(self, size, turn):
        return (turn.noise().uniform(size) * 2 - 1) * math.sqrt(3)


class Truncated(Report):
    def drawn(self, size, update, turn):
        scale = self.noise_multiplier * self.clip
        return super().drawn(size, update, turn).clamp(-2 * scale, 2 * scale)


class BareMomentum(GlobalDP):
    """The server keeps half of the last mean, before noise, and adds it to the next."""

    def publish(self, change, cohort, turn):
        kept = change.vector + 0.5 * turn.memory.get("mean", torch.zeros_like(change.vector))
        turn.memory["mean"] = kept
        return super().publish(change.like(kept), cohort, turn)


class Adaptive(AdaptiveClip):
    """Adaptive clipping in steps that a bug overrides."""

    def bits_noise_drawn(self, turn, std):
        return turn.noise("bits").normal(1).item() * std

    def multiplier(self, std):
        return split_budget(self.noise_multiplier, std)

    def noise_bound(self, bound, moved):
        return bound

    def publish(self, change, cohort, turn):
        bound, n = float(turn.memory.get("clip", self.clip)), float(len(cohort))
        bits_std = self._bits_std(turn.expected)
        centred = turn.memory.pop("fitted", 0) - len(cohort) / 2
        fraction = (centred + self.bits_noise_drawn(turn, bits_std)) / n + 0.5
        moved = follow_quantile(bound, fraction, self.quantile, self.rate)
        std = self.multiplier(bits_std) * self.noise_bound(bound, moved) / n
        turn.memory["clip"] = moved
        return change.like(add_gaussian(change.vector, std, turn.noise()))


class BareBit(Adaptive):
    def bits_noise_drawn(self, turn, std):
        return 0.0


class Antithetic(Server):
    """Every second round takes the noise of the round before with the other sign."""

    def drawn(self, size, turn):
        held = turn.memory.pop("noise", None)
        if held is not None:
            return -held
        turn.memory["noise"] = super().drawn(size, turn)
        return turn.memory["noise"]


class Returning(Server):
    """Noise comes back two rounds later."""

    def drawn(self, size, turn):
        held = turn.memory.setdefault("held", [])
        held.append(held.pop(0) if len(held) == 2 else super().drawn(size, turn))
        return held[-1]


class ActualNumber(Server):
    """Under Poisson sampling mean and noise follow those who came."""

    def publish(self, change, cohort, turn):
        return super().publish(change * (turn.expected / max(len(cohort), 1)), cohort, turn)

    def std(self, cohort, turn):
        return self.noise_multiplier * self.clip / max(len(cohort), 1)


class ActualBatch(Steps):
    def size(self, x, turn):
        return max(len(x), 1)


class FixedAsPoisson(GlobalDP):
    def claim(self, federation, facts=()):
        return changed(super().claim(federation, facts), rate=federation.cohort.participation)


class FirstStepOnly(Steps):
    def drawn(self, total, noise, step, turn):
        return super().drawn(total, noise, step, turn) * (step == 0)


class ForgottenEpochs(Steps):
    def claim(self, federation, facts=()):
        return changed(super().claim(federation, facts), times=federation.rounds)


def epochs(count: int, batch: int = 0) -> Callable[[Federation], Federation]:
    return lambda federation: replace(federation, plan=Plan(epochs=count, batch=batch))


POISSON = {"clients": 12, "sampling": "poisson", "participation": 0.5}
NAMED = {
    "one draw broadcast to all values": case("geometry", Broadcast(1.0, 1.0)),
    "noise tiled from 4 values": case("geometry", Tiled(2.0, 1.0)),
    "last value bare": case("geometry", LastBare(1.0, 1.0)),
    "dp-sgd biases bare": case("geometry", BareBiases(1.0, 1.0)),
    "dp-sgd clip per tensor": case("geometry", ClipPerTensor(1.0, 1.0)),
    "clip only beyond 10 C": case("length", ClipBeyondTen(2.0, 1.0)),
    "clip by the squared norm": case("length", ClipSquared(2.0, 0.1)),
    "uniform noise": case("shape", Uniform(1.0, 1.0)),
    "truncated at 2 std": case("shape", Truncated(2.0, 1.0)),
    "un-noised momentum": case("memory", BareMomentum(1.0, 1.0), rounds=10),
    "bare quantile bit": case("memory", BareBit(1.0, 1.0), rounds=10),
    "antithetic noise": case("memory", Antithetic(1.0, 1.0), rounds=10),
    "noise returns after two rounds": case("memory", Returning(1.0, 1.0), rounds=10),
    "actual n under poisson": case("sampling", ActualNumber(1.0, 1.0), **POISSON),
    "actual poisson batch": case("sampling", ActualBatch(1.0, 1.0, rate=0.5)),
    "fixed cohorts claimed as poisson": case("sampling", FixedAsPoisson(1.0, 1.0), **(POISSON | {"sampling": "fixed"})),
    "noise on the first step only": case("steps", FirstStepOnly(1.0, 1.0), shape=epochs(4)),
    "forgotten epochs": case("steps", ForgottenEpochs(1.0, 1.0), shape=epochs(4)),
}


# --- further ones, written before the audit was widened --------------------------------------------------------------

SECRET = int.from_bytes(os.urandom(7), "little")
"""Something that an observer does not know."""


class SharedByClients(Report):
    """All clients of a round draw the same noise, from a secret that only they share."""

    def drawn(self, size, update, turn):
        count = turn.memory["count"] = turn.memory.get("count", 0) + 1
        source = SeededNoise(Stream(SECRET, turn.round, "everybody", f"{count}"))
        return source.normal(size) * self.noise_multiplier * self.clip


class ClipEachValue(Report):
    def bounded(self, vector, update, turn):
        return vector.clamp(-self.clip, self.clip)


class ClipEachEntry(Report):
    def bounded(self, vector, update, turn):
        layout = update.delta.layout
        return torch.cat([clip_norm(vector[layout.slices[e.name]], self.clip) for e in layout.entries])


class VarianceForStd(Report):
    def drawn(self, size, update, turn):
        return turn.noise().normal(size) * (self.noise_multiplier * self.clip) ** 2


class NoiseOfTotalLength(Report):
    def drawn(self, size, update, turn):
        return super().drawn(size, update, turn) / math.sqrt(size)


class Laplace(Report):
    """Laplace noise of the same standard deviation."""

    def drawn(self, size, update, turn):
        u = turn.noise().uniform(size) - 0.5
        noise = -u.sign() * torch.log1p(-2 * u.abs().clamp(max=0.5 - 1e-12)) / math.sqrt(2)
        return noise * self.noise_multiplier * self.clip


class CoarseNoise(Server):
    """Noise rounded to whole standard deviations; what it hides is not."""

    def drawn(self, size, turn):
        return super().drawn(size, turn).round()


class ForgetsNow(Report):
    """One release in twenty leaves without noise."""

    def drawn(self, size, update, turn):
        lucky = turn.noise("luck").uniform(1).item() < 0.05
        return super().drawn(size, update, turn) * (not lucky)


class DecayingNoise(Server):
    """Noise falls to a half over the rounds; the claim does not know."""

    def std(self, cohort, turn):
        return super().std(cohort, turn) * max(0.5, 0.95**turn.round)


class FirstRoundUnclipped(GlobalDP):
    def admit(self, updates, turn):
        return updates if turn.round == 0 else super().admit(updates, turn)


class CheckpointRound(Server):
    """Every fifth round is published as it is."""

    def drawn(self, size, turn):
        return super().drawn(size, turn) * (turn.round % 5 != 4)


class ErrorFeedback(Report):
    """What the clip cut off comes with the next release, behind the clip."""

    def bounded(self, vector, update, turn):
        kept = clip_norm(vector, self.clip)
        owed = turn.memory.get("owed", torch.zeros_like(vector))
        turn.memory["owed"] = vector - kept
        return kept + 0.5 * owed


class NormOfFirstEntry(GlobalDP):
    def admit(self, updates, turn):
        for update in updates:
            first = update.delta.layout.entries[0]
            length = norm_of(update.delta.vector[update.delta.layout.slices[first.name]])
            yield update.with_delta(update.delta.vector * min(1.0, self.clip / max(length, 1e-12)))


class WeightsOnly(Report):
    """Noise in entries called weight."""

    def drawn(self, size, update, turn):
        noise, layout = super().drawn(size, update, turn), update.delta.layout
        for entry in layout.entries:
            noise[layout.slices[entry.name]] *= entry.name.endswith("weight")
        return noise


class DividedTwice(Server):
    def std(self, cohort, turn):
        return super().std(cohort, turn) / len(cohort)


class NoiseOnUpdates(GlobalDP):
    """Each update gets the noise that belongs on their mean; the mean then averages it."""

    def admit(self, updates: Iterator[Update], turn: Turn) -> Iterator[Update]:
        source = turn.noise()
        for update in super().admit(updates, turn):
            noise = source.normal(update.delta.vector.numel()) * self.noise_multiplier * self.clip / turn.expected
            yield update.with_delta((update.delta.vector.double() + noise).float())

    def publish(self, change, cohort, turn):
        return change


class SmoothedNoise(Server):
    """Noise of two rounds mixed, of the right size: what is slow is hidden well, what alternates is not."""

    def drawn(self, size, turn):
        fresh = super().drawn(size, turn)
        last = turn.memory.get("noise", torch.zeros(size).double())
        turn.memory["noise"] = fresh
        return (fresh + last) / math.sqrt(2)


class OutliersDropped(Server):
    """Updates longer than 100 C are left out, and noise follows the number that is left."""

    def admit(self, updates, turn):
        turn.memory["kept"] = 0
        for update in updates:
            if norm_of(update.delta.vector) <= 100 * self.clip:
                turn.memory["kept"] += 1
                yield update.with_delta(clip_norm(update.delta.vector, self.clip))

    def publish(self, change, cohort, turn):
        return super().publish(change * (turn.expected / max(turn.memory["kept"], 1)), cohort, turn)

    def std(self, cohort, turn):
        return self.noise_multiplier * self.clip / max(turn.memory["kept"], 1)


class EmptyIsBare(Server):
    """Where nobody was sampled there is nothing to hide, so no noise."""

    def drawn(self, size, turn):
        return super().drawn(size, turn) if "some" in turn.facts else torch.zeros(size).double()

    def publish(self, change, cohort, turn):
        if cohort:
            turn.facts["some"] = 1.0
        return super().publish(change, cohort, turn)


class HalfTheRate(GlobalDP):
    def claim(self, federation, facts=()):
        return changed(super().claim(federation, facts), rate=federation.cohort.participation / 2)


class PairedCohorts(Federation):
    """Each cohort is used for two rounds."""

    def invited(self, index):
        return super().invited(index // 2)


class Favourite(Federation):
    """The first client is always there."""

    def invited(self, index):
        first = self.task.clients[0].name
        return [first, *(name for name in super().invited(index) if name != first)]


def as_kind(kind: type[Federation]) -> Callable[[Federation], Federation]:
    from dataclasses import fields

    return lambda federation: kind(**{f.name: getattr(federation, f.name) for f in fields(federation) if f.init})


class StepDividedTwice(Steps):
    def drawn(self, total, noise, step, turn):
        return super().drawn(total, noise, step, turn) / 8


class ClipTheSum(Steps):
    """The batch's gradient is clipped, not each record's."""

    def sums(self, model, loss, x, y, step):
        gradients = torch.autograd.grad(loss(model(x), y) * len(x), list(model.parameters()))
        flat = clip_norm(torch.cat([g.flatten() for g in gradients]), self.clip).double()
        return [p.view_as(g) for p, g in zip(torch.split(flat, [g.numel() for g in gradients]), gradients, strict=True)]


class UnevenBatch(Steps):
    """The noise of a short last batch is divided by the plan's batch, its gradients by their own number."""

    def drawn(self, total, noise, step, turn):
        return super().drawn(total, noise, step, turn) * turn.facts["here"] / 3

    def gradient(self, model, x, y, loss, turn):
        turn.facts["here"] = float(len(x))
        return super().gradient(model, x, y, loss, turn)


class SparseNoise(Steps):
    """Noise where the gradient is not zero."""

    def drawn(self, total, noise, step, turn):
        return super().drawn(total, noise, step, turn) * (total != 0)


class SameNoiseEachStep(Steps):
    def drawn(self, total, noise, step, turn):
        key = f"noise {tuple(total.shape)}"
        if step == 0:
            turn.memory[key] = super().drawn(total, noise, step, turn)
        return turn.memory[key]


class UnclippedLater(Steps):
    def sums(self, model, loss, x, y, step):
        bound = self.clip if step < 2 else 1e6
        return [s.double() for s in clipped_sum(model, loss, x, y, bound).sums]


class BoundMovedFirst(Adaptive):
    """The noise is that of the next round's bound."""

    def noise_bound(self, bound, moved):
        return moved


class FaintBits(Adaptive):
    def bits_noise_drawn(self, turn, std):
        return super().bits_noise_drawn(turn, std) / 10


class BudgetNotSplit(Adaptive):
    def multiplier(self, std):
        return self.noise_multiplier


class TwiceEpsilon(LdpSgd):
    def release(self, update, turn):
        return LdpSgd(2 * self.epsilon, self.clip).release(update, turn)


class LengthShows(LdpSgd):
    """A report is as long as the update that it stands for."""

    def release(self, update, turn):
        report = super().release(update, turn)
        length = min(norm_of(update.delta.vector), self.clip)
        return report.with_delta(report.delta.vector * length)


class BareFigure(GaussianRelease):
    """The update's own length rides along."""

    def release(self, update, turn):
        return replace(super().release(update, turn), metrics={"loss": 0.0, "length": norm_of(update.delta.vector)})


class UsedAgain(Report):
    """Noise of one secret source for a client's rounds, used up and begun again every fourth round."""

    def drawn(self, size, update, turn):
        count = turn.memory["count"] = turn.memory.get("count", -1) + 1
        if count % 4 == 0 and count == 0:
            turn.memory["pads"] = [SecretNoise().normal(size) for _ in range(4)]
        return turn.memory["pads"][count % 4] * self.noise_multiplier * self.clip


FURTHER = {
    "noise shared by all clients": case("geometry", SharedByClients(2.0, 1.0)),
    "clip of each value": case("length", ClipEachValue(2.0, 1.0)),
    "clip of each entry": case("length", ClipEachEntry(2.0, 1.0)),
    "variance taken for std": case("scale", VarianceForStd(2.0, 0.1)),
    "noise of total length": case("scale", NoiseOfTotalLength(2.0, 1.0)),
    "laplace noise": case("shape", Laplace(2.0, 1.0)),
    "noise on a coarse grid": case("shape", CoarseNoise(1.0, 1.0)),
    "noise forgotten now and then": case("shape", ForgetsNow(2.0, 1.0)),
    "noise decays over rounds": case("memory", DecayingNoise(1.0, 1.0), rounds=20),
    "first round unclipped": case("memory", FirstRoundUnclipped(1.0, 1.0), rounds=5),
    "every fifth round bare": case("memory", CheckpointRound(1.0, 1.0), rounds=10),
    "error feedback behind the clip": case("memory", ErrorFeedback(2.0, 1.0), rounds=5),
    "norm of the first entry": case("length", NormOfFirstEntry(1.0, 1.0)),
    "noise in weights only": case("geometry", WeightsOnly(2.0, 1.0)),
    "noise divided by n twice": case("scale", DividedTwice(1.0, 1.0)),
    "noise on updates, not on the mean": case("scale", NoiseOnUpdates(1.0, 1.0)),
    "noise smoothed over rounds": case("memory", SmoothedNoise(1.0, 1.0), rounds=10),
    "outliers dropped, n follows": case("cohort", OutliersDropped(1.0, 1.0)),
    "an empty cohort is bare": case("sampling", EmptyIsBare(1.0, 1.0), **(POISSON | {"clients": 4})),
    "twice the claimed rate": case("sampling", HalfTheRate(1.0, 1.0), **POISSON),
    "cohorts used twice": case("sampling", GlobalDP(1.0, 1.0), shape=as_kind(PairedCohorts), **POISSON),
    "one client always there": case("sampling", GlobalDP(1.0, 1.0), shape=as_kind(Favourite), **POISSON),
    "dp-sgd noise divided twice": case("scale", StepDividedTwice(1.0, 1.0)),
    "dp-sgd clip of the sum": case("length", ClipTheSum(1.0, 1.0)),
    "dp-sgd uneven batch": case("steps", UnevenBatch(1.0, 1.0), shape=epochs(1, batch=3)),
    "dp-sgd sparse noise": case("geometry", SparseNoise(1.0, 1.0)),
    "dp-sgd same noise each step": case("steps", SameNoiseEachStep(1.0, 1.0), shape=epochs(4)),
    "dp-sgd unclipped after two steps": case("steps", UnclippedLater(1.0, 1.0), shape=epochs(4)),
    "bound moved before the noise": case("memory", BoundMovedFirst(1.0, 1.0), rounds=10),
    "faint noise on the bits": case("memory", FaintBits(1.0, 1.0), rounds=10),
    "budget not split": case("scale", BudgetNotSplit(1.0, 1.0), rounds=10),
    "ldp-sgd twice epsilon": case("scale", TwiceEpsilon(2.0)),
    "ldp-sgd length shows": case("shape", LengthShows(2.0)),
    "a bare figure rides along": case("source", BareFigure(2.0, 1.0)),
    "pads used again after four rounds": case("memory", UsedAgain(2.0, 1.0), rounds=10),
}


# --- the patient as the unit -----------------------------------------------------------------------------------------


class ClipPerRecord(DpSgd):
    """Patients are sampled, and each of their records is clipped by itself."""

    def gradient(self, model, x, y, loss, turn):
        turn.units = None
        turn.facts.setdefault("expected_batch", float(len(x)))
        return super().gradient(model, x, y, loss, turn)


class SumForMean(Steps):
    """A patient's records are added up, and the clip is each record's."""

    def sums(self, model, loss, x, y, step):
        single = clipped_sum(model, loss, x, y, self.clip / 1.2)
        return [s.double() * 1.2 for s in single.sums]


class LongerForMore(DpSgd):
    """The bound grows with the root of a patient's records, as if they were independent."""

    def gradient(self, model, x, y, loss, turn):
        most = int(torch.bincount(turn.units).max()) if len(x) else 1
        claimed = replace(
            self, clip=self.clip * math.sqrt(most), noise_multiplier=self.noise_multiplier / math.sqrt(most)
        )
        return DpSgd.gradient(claimed, model, x, y, loss, turn)


PATIENTS = {
    "clipped per record, claimed per patient": case("length", ClipPerRecord(1.0, 1.0, unit="patient")),
    "a patient's records added up": case("length", SumForMean(1.0, 1.0, unit="patient")),
    "a longer clip for more records": case("length", LongerForMore(1.0, 1.0, unit="patient")),
}


# --- stacks without a mistake ----------------------------------------------------------------------------------------

SOUND = {
    "global-dp": case("", GlobalDP(1.0, 1.0)),
    "global-dp loud": case("", GlobalDP(0.3, 5.0), rounds=10),
    "global-dp faint": case("", GlobalDP(8.0, 0.01), rounds=3),
    "global-dp after the optimiser": case("", GlobalDP(1.0, 1.0, at="model")),
    "global-dp under fedavgm": case("", GlobalDP(1.0, 1.0), strategy=STRATEGIES["fedavgm"]("even"), rounds=5),
    "global-dp under fedadam": case("", GlobalDP(1.0, 1.0), strategy=STRATEGIES["fedadam"]("even"), rounds=5),
    "global-dp poisson": case("", GlobalDP(1.0, 1.0), **POISSON),
    "global-dp fixed cohorts": case("", GlobalDP(1.0, 1.0), **(POISSON | {"sampling": "fixed"})),
    "adaptive-clip": case("", AdaptiveClip(1.0, 1.0), rounds=10),
    "adaptive-clip poisson": case("", AdaptiveClip(1.0, 0.5), **(POISSON | {"rounds": 3})),
    "metric-privacy, public distance": case("", MetricPrivacy(1.0, 1.0, distance=1.5)),
    "metric-privacy, measured": case("", MetricPrivacy(1.0, 1.0)),
    "intermediaries": case("", Intermediaries(1.0, 1.0, parts=2), clients=2),
    "dp2-rmsprop and intermediaries": case("", DelayedRmsProp(2), Intermediaries(1.0, 1.0, parts=2), clients=2),
    "dp2-rmsprop and global-dp": case("", DelayedRmsProp(2), GlobalDP(1.0, 1.0), rounds=8),
    "gaussian-release": case("", GaussianRelease(2.0, 1.0), rounds=3),
    "gaussian-release, secret": case("", GaussianRelease(4.0, 0.1), noise="secret"),
    "fedper and gaussian-release": case("", FedPer(last=1), GaussianRelease(2.0, 1.0)),
    "fedbn and global-dp": case("", FedBN(), GlobalDP(1.0, 1.0)),
    "ldp-sgd": case("", LdpSgd(2.0), rounds=2),
    "dp-sgd": case("", DpSgd(1.0, 1.0)),
    "dp-sgd, epochs and uneven batches": case("", DpSgd(2.0, 0.5), shape=epochs(3, batch=3), rounds=2),
    "dp-sgd poisson": case("", DpSgd(1.0, 1.0, rate=0.5), shape=epochs(2)),
    "dp-sgd by patient": case("", DpSgd(1.0, 1.0, unit="patient"), shape=epochs(2, batch=3)),
    "dp-sgd by patient, poisson": case("", DpSgd(1.0, 1.0, rate=0.5, unit="patient", contribution="one")),
    "gaussian-noise": case("", GaussianNoise(0.1)),
    "percentile-gaussian": case("", PercentileGaussian(5.0)),
    "fedavg, no defence": case("", strategy=fedavg("even")),
}
