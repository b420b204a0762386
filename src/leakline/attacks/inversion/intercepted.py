"""From what a server holds to a problem for `search`: reads what can be read exactly, and leaves the rest unknown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from leakline.attacks.inversion.adam import Bounds, bounds
from leakline.attacks.inversion.belief import Belief
from leakline.attacks.inversion.canvas import Canvas
from leakline.attacks.inversion.crossing import Crossing, noise_of
from leakline.attacks.inversion.exposed import exposed, read_factor
from leakline.attacks.inversion.labels import batch_mean, candidates, class_means, ranked_counts
from leakline.attacks.inversion.objective import Evidence, Terms
from leakline.attacks.inversion.problem import Problem
from leakline.attacks.inversion.simulate import Recipe, Simulated, simulate
from leakline.attacks.inversion.statistics import Inverse, inverse, shares
from leakline.attacks.inversion.twin import Twin
from leakline.bench.training import Bench, Plan
from leakline.data.base import Data
from leakline.errors import StackError
from leakline.mechanisms.treatment import Treatment
from leakline.weights import Weights

Labels = Literal["restored", "trainable"]
LOUD = 0.01
"""From this share of noise in an update's squared length on it is weighed. Below, it matters less than how fast a
search gets to fine detail, and a belief's unknowns slow that down."""
LIKELIEST = Terms(update=0.0, statistics=0.0, exposed=0.0, box=0.0, likelihood=1.0, belief=1.0)
"""Maximum a posteriori: what an update says and what was believed before, each in nats."""


@dataclass(frozen=True)
class Intercepted:
    """What an honest but curious server has of one client's turn: no image, no label, no order of batches.

    ``sent`` are the weights that the client started from, ``delta`` the update as it crossed the wire; either may lack
    entries that stay at the clients, for which the initial model's values are used. ``treatment`` is what the client is
    known to have done to its gradients and its update.
    """

    bench: Bench
    sent: Weights
    delta: Weights
    plan: Plan
    examples: int
    index: int = 0
    treatment: Treatment = field(default_factory=Treatment)


def problem_of(
    seen: Intercepted,
    prior: Tensor,
    terms: Terms,
    *,
    reading: Inverse = "exact",
    labels: Labels = "restored",
    rate: float | None = None,
    statistics: Literal["client", "global", "none"] = "client",
    belief: Belief | None = None,
    public: Data | None = None,
    deals: int = 1,
) -> Problem:
    """The inversion of one update as a problem for `search`; ``prior`` is [1, C, H, W] in [0, 1].

    ``rate`` replaces the plan's learning rate (an attacker who does not know it guesses, and matches by cosine).
    ``statistics``: the client's own, read off its running averages; the global model's running averages (what
    DeepInversion matches); or none. ``belief``: what is known of such images; where the update is loud with noise of
    known law, the likeliest images under both are searched for, in the place of ``terms``.
    ``public``: labelled images to learn the network's predictions by class from; ``deals``: how many ways to have
    labels, and to deal them out to steps, are kept for `settled` to choose from.
    """
    if not torch.isfinite(seen.delta.vector).all():
        raise StackError("the update holds NaN or infinite values", "gradient inversion", "drop this client's update")
    _fits(seen.bench, prior)
    initial = seen.bench.initial
    before = {e.name: seen.sent[e.name] if e.name in seen.sent.layout.slices else v for e, v in initial.layers()}
    parameters = {e.name: before[e.name] for e in initial.layout.entries if not e.buffer}
    each = seen.treatment.examples
    recipe = Recipe.of(seen.plan, seen.examples, seen.index, rate, math.inf if each is None else each.clip)
    if recipe.optimiser == "adam" and rate is not None:  # the longest way that a weight went is its steps' whole rate
        moved = [float(v.abs().max()) for e, v in seen.delta.layers() if not e.buffer]
        recipe = replace(recipe, rate=max(*moved, 1e-30) / len(recipe.steps))
    single = len(recipe.steps) == 1 and seen.examples == 1
    noise = noise_of(seen.treatment, seen.delta, recipe)
    if single and rate is None and (factor := _factor(seen, parameters, recipe)):
        # Known exactly: divided by it, the update is what it would have been without a clip.
        noise = (noise[0] / factor, noise[1] / factor)
        seen = replace(seen, delta=seen.delta * (1 / factor), treatment=Treatment(buffers=seen.treatment.buffers))
        recipe = replace(recipe, clip=math.inf)
    plain = Twin(seen.bench.model)
    change = {e.name: v for e, v in seen.delta.layers() if not e.buffer}
    if recipe.optimiser == "sgd":
        change = audible(change, parameters)
    else:
        moving = movable(plain, seen, parameters, prior, recipe)
        change = {name: v for name, v in change.items() if name in moving}
    momenta = norm_momenta(seen.bench.model)
    if terms.statistics and statistics != "none" and not momenta:
        raise StackError(
            "batch statistics are to be matched, and the model has no BatchNorm",
            "gradient inversion",
            'use norm = "batch", or the variants "geiping" or "dlg", or statistics = 0',
        )
    steps = len(recipe.steps)
    sent = {n: (before[f"{n}.running_mean"], before[f"{n}.running_var"]) for n in momenta}
    travel = seen.delta.layout.slices if seen.treatment.buffers else {}
    back = {n: pair for n, pair in sent.items() if f"{n}.running_mean" in travel and f"{n}.running_var" in travel}
    used = statistics == "client" and terms.statistics > 0
    trained = sum(e.size for e in seen.delta.layout.entries if not e.buffer)
    heard = seen.treatment.heard(seen.delta.vector, trained)  # a percentile of all values, once and not in every step
    crossing = Crossing(heard, back, momenta, seen.delta, noise, used)
    weighed = belief if crossing.loudness > LOUD else None
    if weighed is not None:
        terms = LIKELIEST
    observed: dict[str, tuple[Tensor, Tensor]] = {}
    for name, momentum in momenta.items() if terms.statistics and statistics != "none" else ():
        mean, variance = f"{name}.running_mean", f"{name}.running_var"
        if statistics == "global":
            observed[name] = sent[name]
        elif name in back:
            after = [before[n] + seen.delta[n] for n in (mean, variance)]
            first, second = (
                inverse(before[n], a, steps, momentum, reading) for n, a in zip((mean, variance), after, strict=True)
            )
            observed[name] = (first.float(), second.clamp_min(0).float())
    weights = shares(steps, next(iter(momenta.values())), reading) if momenta else [1.0 / steps] * steps
    if statistics == "global":
        weights = [1.0 / steps] * steps

    known: dict[str, Bounds] = {}
    if recipe.optimiser == "adam" and steps == 1 and not seen.treatment.updates:
        known = {n: bounds(v, parameters[n], recipe.rate) for n, v in change.items()}
    told = {n: known[n].middle if n in known else -v / recipe.rate for n, v in change.items()}
    gradient = {n: v - recipe.weight_decay * parameters[n] for n, v in told.items()}
    inputs: dict[str, Tensor] = {}
    channels = int(prior.shape[1]) if prior.shape[1] > 1 else _channels(seen.bench.model)
    if terms.exposed and single and recipe.optimiser == "sgd":  # algebra needs gradients and not their bounds
        _put(plain, parameters)
        # After a clip of unknown factor the means are not those of the batch.
        bare = statistics == "client" and not seen.treatment.clips
        means = {name: mean for name, (mean, _) in observed.items()} if bare else {}
        shown = prior.expand(1, channels, *prior.shape[2:])
        inputs = exposed(plain.sites(shown), gradient, parameters, means)
    found = []
    if labels == "restored":
        shown = prior.expand(1, channels, *prior.shape[2:])
        moments = observed if statistics == "client" and not seen.treatment.clips else {}
        found = _labels(plain, seen, shown, gradient, parameters, recipe, crossing, public, deals, moments)
    classes = _classes(seen.bench.model)
    return Problem(
        Twin(seen.bench.model, watch=inputs), seen.bench.loss, parameters, recipe,
        Evidence(change, observed, sent, weights, inputs, known), terms.on(plain.smooth),
        Canvas(prior, seen.examples, channels, weighed), classes, found[0] if found else None, crossing,
        tuple(found[1:]),
    )  # fmt: skip


def audible(change: dict[str, Tensor], weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The entries whose change is more than rounding.

    A bias before BatchNorm has no gradient at all; what its difference shows is the last bit of its value, and a
    relative mismatch would chase that.
    """
    loudest = max((float(v.square().mean().sqrt()) for v in change.values()), default=0.0)
    return {
        name: v
        for name, v in change.items()
        if float(v.norm()) > 1e-5 * float(weights[name].norm()) and float(v.square().mean().sqrt()) > 1e-6 * loudest
    }


def movable(twin: Twin, seen: Intercepted, parameters: dict[str, Tensor], prior: Tensor, recipe: Recipe) -> set[str]:
    """The entries that images move at all: Adam makes steps as long as any of the rounding on the others.

    Judged by the gradient on noise around the prior; a bias before BatchNorm has none.
    """
    shown = prior.expand(max(2, seen.examples), _channels(seen.bench.model), *prior.shape[2:])
    x = shown + 0.1 * torch.randn(shown.shape, generator=torch.Generator().manual_seed(0))
    y = torch.arange(len(x)) % _classes(seen.bench.model)
    once = replace(recipe, steps=(tuple(range(len(x))),), clip=math.inf, weight_decay=0.0)
    made = simulate(twin, seen.bench.loss, parameters, x, y, once, graph=False)
    sizes = {name: float(g.detach().square().mean().sqrt()) for name, g in made.first.items()}
    return {name for name, size in sizes.items() if size > 1e-6 * max(sizes.values())}


def norm_momenta(model: nn.Module) -> dict[str, float]:
    """BatchNorm layers that keep running averages, with their momenta."""
    return {
        name: part.momentum
        for name, part in model.named_modules()
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None and part.momentum
    }


def _labels(
    twin: Twin,
    seen: Intercepted,
    prior: Tensor,
    gradient: dict[str, Tensor],
    parameters: dict[str, Tensor],
    recipe: Recipe,
    crossing: Crossing,
    public: Data | None,
    most: int,
    observed: Mapping[str, tuple[Tensor, Tensor]],
) -> list[Tensor]:
    """Labels from the last layer's bias where it crossed the wire, likeliest first; none: they must be searched for.

    ``observed``: the batch's moments in normalisation layers, where they are to be trusted.
    """
    bias = gradient.get(f"{_head(seen.bench.model)}.bias")
    if bias is None:
        return []
    classes, size = len(bias), len(recipe.steps[0])
    if seen.examples == 1 and crossing.loudness <= LOUD:
        return [bias.argmin().view(1)]  # the only negative entry, exactly (Zhao et al. 2020)
    if recipe.optimiser == "adam":
        return []  # classes are counted by how long gradients are
    if seen.examples == 1 and (crossing.treatment.clips or math.isfinite(recipe.clip)):
        # Negative still, by a factor that noise hides; and noise may have made another entry the least.
        unsure = 3 * math.sqrt(2) * crossing.noise[0] / recipe.rate
        return [c.view(1) for c in bias.argsort() if bias[c] <= bias.min() + unsure][:most]
    _put(twin, parameters)
    shown = prior.expand(max(2, seen.examples), *prior.shape[1:])
    spread = 0.0
    exact = None if public is None else batch_mean(twin, public, classes, size, prior.shape[1], observed)
    if exact is not None:
        means = torch.as_tensor(exact.shares).float().expand(classes, classes)
        spread = exact.reach * seen.examples**0.5
    elif public is not None:
        means, spread = class_means(twin, public, classes, size, prior.shape[1])
    else:
        with torch.no_grad():
            means = torch.softmax(twin(shown), 1).mean(0).expand(classes, classes)
    left = _left(twin, seen, shown[: seen.examples], parameters, recipe, crossing, classes)
    scale = _strides(recipe) * float(left.mean())
    ranked = ranked_counts(bias / scale, seen.examples, means, left / left.mean())
    # Noise moves the bias; so does, by an image or so, what the network learns between steps; so do predictions that
    # differ from their class's mean.
    slack = 3 * crossing.noise[0] / (recipe.rate * scale) + 2.5 * spread / seen.examples**0.5
    slack += 2 / seen.examples if len(recipe.steps) > 1 else 0.0
    if crossing.treatment.clips:  # what it leaves depends on the labels that are asked for: all that are near are tried
        slack = math.inf
    return candidates(ranked, recipe.steps, seen.examples, most, slack)


def _left(
    twin: Twin, seen: Intercepted, prior: Tensor, parameters: dict[str, Tensor], recipe: Recipe, crossing: Crossing,
    classes: int,
) -> Tensor:  # fmt: skip
    """How much clips leave of the last bias' gradient for images of each class, judged by turns over the prior.

    A clip of examples leaves all of them about as long, so that images of a class that the network expects lose less:
    each class has its own factor. One of whole updates leaves the same of all.
    """
    name = f"{_head(seen.bench.model)}.bias"

    def turn(y: Tensor, how: Recipe) -> Simulated:
        return simulate(twin, seen.bench.loss, parameters, prior, y, how, graph=False)

    def share(clipped: Simulated, bare: Simulated) -> float:
        return float(clipped.change[name].detach().norm() / bare.change[name].detach().norm().clamp_min(1e-30)) or 1.0

    left = torch.ones(classes)
    if math.isfinite(recipe.clip):
        for c in range(classes):
            y = torch.full((len(prior),), c)
            left[c] = share(turn(y, recipe), turn(y, replace(recipe, clip=math.inf)))
    if crossing.treatment.clips:
        made = turn(torch.arange(len(prior)) % classes, recipe)
        left *= share(crossing(made), made)
    return left


def _factor(seen: Intercepted, parameters: dict[str, Tensor], recipe: Recipe) -> float | None:
    """What the client multiplied one image's update by, where it clips and the last layer tells; else None."""
    treatment, head = seen.treatment, _head(seen.bench.model)
    weight, bias = f"{head}.weight", f"{head}.bias"
    if not (treatment.clips or math.isfinite(recipe.clip)) or recipe.weight_decay or recipe.optimiser == "adam":
        return None
    if weight not in seen.delta.layout.slices or bias not in seen.delta.layout.slices:
        return None
    gradient, shift = (-seen.delta[name] / recipe.rate for name in (weight, bias))
    return read_factor(gradient, shift, parameters[weight], parameters[bias])


def _strides(recipe: Recipe) -> float:
    """How many times the rate and a step's gradient a whole turn amounts to, if all its gradients were the same.

    K for plain SGD; with momentum m a gradient goes on in later steps: sum over steps j = 1..K of (1 - m^j) / (1 - m).
    """
    return sum(sum(recipe.momentum**i for i in range(j + 1)) for j in range(len(recipe.steps)))


def _fits(bench: Bench, prior: Tensor) -> None:
    """Refuse a prior that the network cannot take."""
    wanted = _channels(bench.model)
    problem = "" if prior.ndim == 4 and len(prior) == 1 else "it is not one image [1, C, H, W]"
    if not problem and prior.shape[1] not in (1, wanted):
        problem = f"it has {prior.shape[1]} channels, the network takes {wanted}"
    if not problem:
        try:
            with torch.no_grad():
                Twin(bench.model)(prior.expand(2, wanted, *prior.shape[2:]))
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            problem = f"the network does not take images of {prior.shape[2]}x{prior.shape[3]} ({reason})"
    if problem:
        raise StackError(
            f"the prior has shape {tuple(prior.shape)}: {problem}",
            "gradient inversion",
            "give the prior the size of the clients' images",
        )


def _put(twin: Twin, parameters: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in twin.network.named_parameters():
            if name in parameters:  # what is frozen is as it is
                value.copy_(parameters[name])


def _channels(model: nn.Module) -> int:
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    return 1 if first is None else first.in_channels


def _head(model: nn.Module) -> str:
    """The name of the last dense layer; empty where there is none."""
    return next((n for n, m in reversed([*model.named_modules()]) if isinstance(m, nn.Linear)), "")


def _classes(model: nn.Module) -> int:
    head = model.get_submodule(_head(model))
    return head.out_features if isinstance(head, nn.Linear) else 1
