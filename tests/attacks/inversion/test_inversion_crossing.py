"""The simulated client does what the stack's clients do: clips, factors, several images and steps, and says so."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from leakline.attacks.inversion import GradientInversion, Intercepted, Search, Terms, problem_of, search
from leakline.attacks.inversion.exposed import read_factor
from leakline.bench.training import Plan
from leakline.data.base import Client, Data, Task
from leakline.data.phantoms import Phantoms
from leakline.defences import Defence, DpSgd, FedBN, GaussianNoise, GaussianRelease, LdpSgd
from leakline.errors import StudyError
from leakline.federation import Federation
from leakline.leakage.images import ssim
from leakline.messages import Order
from leakline.models.small import SmallCNN
from leakline.privacy import NoClaim
from leakline.randomness import Stream
from leakline.runtimes.client import answer

torch.set_num_threads(1)
BATCH, GROUP = (SmallCNN((8, 16), 16, "softplus", norm, "average") for norm in ("batch", "group"))
IMAGES = Phantoms(examples=40, size=32, seed=3).load().train
QUICK = Search(iterations=150, patience=100, restarts=1, levels=(1.0,))
TERMS = Terms(update=0.1, smooth=100.0)


def world(*defences: Defence, model: SmallCNN = BATCH, images: int = 1, batch: int = 4) -> Federation:
    clients = (Client("a", IMAGES.take(range(images))),)
    task = Task(clients, None, IMAGES.take(range(10, 40)), ("0", "1", "2", "3"))
    return Federation(task, model, Plan(batch=batch, learning_rate=0.05), defences=defences, rounds=1, noise="seeded")


def intercepted(federation: Federation) -> tuple[Intercepted, Data]:
    bench = federation.bench()
    (update,) = answer(federation, bench, Order("a", 0, bench.initial.only(federation.shares)), {})
    data = federation.clients["a"].train
    treatment = federation.stack.treatment
    return Intercepted(federation.bench(), bench.initial, update.delta, federation.plan, len(data), 0, treatment), data


def terms_for(model: SmallCNN) -> Terms:
    return TERMS if model is BATCH else replace(TERMS, statistics=0.0)


STACKS = {
    "dp-sgd": (GROUP, (DpSgd(0.0, 0.02),)),
    "gaussian-release": (BATCH, (GaussianRelease(0.0, 0.01),)),
    "gaussian-release, without statistics": (BATCH, (FedBN(), GaussianRelease(0.0, 0.01))),
    "both": (GROUP, (DpSgd(0.0, 0.5), GaussianRelease(0.0, 0.003))),
    "a clip of a clip": (BATCH, (GaussianRelease(0.0, 0.02), GaussianRelease(0.0, 0.01))),
}


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("images", [1, 4])
def test_the_true_images_make_the_update_that_was_sent(name, images):
    """Under every clip, of examples or of updates."""
    model, stack = STACKS[name]
    federation = world(*stack, model=model, images=images, batch=images)
    seen, data = intercepted(federation)
    problem = problem_of(seen, IMAGES.inputs(slice(10, 40)).mean(0, keepdim=True), terms_for(model))
    truth = replace(problem, canvas=replace(problem.canvas, start=data.inputs(slice(None))), labels=data.y)
    start = torch.zeros(problem.size)
    at_truth, at_prior = (sum(float(v.detach()) for v in p.terms_at(start).values()) for p in (truth, problem))
    assert at_truth < 1e-4 * at_prior


def test_two_steps_under_a_clip_are_simulated_too():
    federation = world(GaussianRelease(0.0, 0.01), images=4, batch=2)
    seen, data = intercepted(federation)
    problem = problem_of(seen, IMAGES.inputs(slice(10, 40)).mean(0, keepdim=True), TERMS)
    order = torch.cat(list(federation.plan.batches(4, Stream(federation.seed, 0, "a", "train"))))
    truth = replace(problem, canvas=replace(problem.canvas, start=data.inputs(order)), labels=data.y[order])
    start = torch.zeros(problem.size)
    at_truth, at_prior = (sum(float(v.detach()) for v in p.terms_at(start).values()) for p in (truth, problem))
    assert at_truth < 1e-4 * at_prior


@pytest.mark.parametrize("name", ["dp-sgd", "gaussian-release", "gaussian-release, without statistics"])
def test_a_clip_without_noise_protects_nobody(name):
    model, stack = STACKS[name]
    prior = IMAGES.inputs(slice(10, 40)).mean(0, keepdim=True)
    got = {}
    for label, defences in {"clipped": stack, "bare": tuple(d for d in stack if isinstance(d, FedBN))}.items():
        seen, data = intercepted(world(*defences, model=model))
        found = search(problem_of(seen, prior, terms_for(model)), QUICK)
        got[label] = float(ssim(data.inputs(slice(None)), found.images))
    assert got["clipped"] == pytest.approx(got["bare"], abs=0.03)
    known = float(ssim(IMAGES.inputs(slice(0, 1)), prior))
    assert got["clipped"] > known + 0.4 * (1 - known)  # these phantoms are much alike: the prior has 0.82


def test_what_an_update_was_multiplied_by_is_read_off_its_last_layer():
    bare, _ = intercepted(world())
    for factor in (1.0, 0.3, 1e-3):
        weight, bias = (-factor * bare.delta[f"dense2.{n}"] / 0.05 for n in ("weight", "bias"))
        read = read_factor(weight, bias, bare.sent["dense2.weight"], bare.sent["dense2.bias"])
        assert read == pytest.approx(factor, rel=1e-3)
    noisy = weight + 0.1 * weight.std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    assert read_factor(noisy, bias, bare.sent["dense2.weight"], bare.sent["dense2.bias"]) is None


def test_labels_of_several_images_are_restored_under_a_clip():
    for stack, model in (((DpSgd(0.0, 0.02),), GROUP), ((GaussianRelease(0.0, 0.01),), BATCH)):
        seen, data = intercepted(world(*stack, model=model, images=4))
        problem = problem_of(seen, IMAGES.inputs(slice(10, 40)).mean(0, keepdim=True), terms_for(model))
        assert sorted(problem.labels.tolist()) == sorted(data.y.tolist())


@dataclass(frozen=True)
class Halves(Defence):
    """Somebody's own defence that does not say what it does."""

    def release(self, update, turn):
        return update.with_delta(update.delta.vector / 2)

    def claim(self, federation, facts=()):
        return NoClaim("it only halves")


def test_a_defence_that_says_nothing_is_refused_before_training_with_a_way_out():
    with pytest.raises(StudyError, match="Halves does not say") as error:
        GradientInversion().check(world(Halves()))
    assert 'defences = "unknown"' in error.value.fix
    GradientInversion(defences="unknown").check(world(Halves()))
    with pytest.raises(StudyError, match="rate=0.5"):
        GradientInversion(statistics="none").check(world(DpSgd(1.0, 1.0, rate=0.5), model=GROUP))
    for known in (GaussianNoise(0.1), LdpSgd(1.0)):
        GradientInversion().check(world(known))


def test_who_does_not_know_the_defences_takes_the_update_as_it_came():
    attack = GradientInversion(defences="unknown")
    federation = world(GaussianRelease(0.0, 0.01))
    assert not attack._treatment(federation).updates
    assert GradientInversion()._treatment(federation).updates
