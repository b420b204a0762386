"""What an inversion minimises: how far a simulated turn is from the one that was observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal

import torch
from torch import Tensor

from leakline.attacks.inversion.adam import Bounds, outside
from leakline.attacks.inversion.simulate import Simulated
from leakline.attacks.inversion.statistics import mixed

Distance = Literal["layers", "l2", "norms", "cosine"]
Moments = Literal["relative", "norms"]


@dataclass(frozen=True)
class Terms:
    """The weight of each term of the objective; a term of weight 0 is not computed.

    update      mismatch between simulated and observed change of the parameters, by ``distance``:
                  layers   mean over entries of |s - o|^2 / |o|^2: every entry counts alike, however small its gradient
                  l2       sum |s - o|^2 / sum |o|^2 over all entries together (Zhu et al. 2019, up to a factor)
                  norms    sum over entries of |s - o|, un-squared (paper 001, equation 2), over sum of |o|
                  cosine   1 - cos(s, o) over all entries together (Geiping et al. 2020); blind to the learning rate
                After one step of Adam it is instead how far gradients miss the bounds that the step leaves (`adam`)
    smooth      how many times more the update counts on a network without kinks: there its mismatch is a smooth
                function of the image, elsewhere a terraced one that had better not lead
    statistics  mean over BatchNorm layers of the squared error of batch means (in units of the observed standard
                deviation) plus that of standard deviations (relative). With ``moments = "norms"`` as paper 001's
                equation 5 has it: the sum of un-squared norms of both moments' errors, by which a layer with large
                activations outweighs the rest.
    exposed     relative squared error of the layers' inputs that were read exactly (`exposed`)
    label       the network's own loss on the images: pulls them towards their labels (Yin et al. 2020)
    variation   mean absolute difference of neighbouring pixels (total variation, anisotropic)
    energy      mean square of the pixels
    box         mean square of what sticks out of [0, 1]
    likelihood  -log p(update | images) under noise of known law (`Crossing.surprise`), parameters and statistics
                together; with ``belief`` at the same weight the images of the lowest sum are the likeliest
    belief      -log p(images), as far as the attacker's own belief goes (`Belief`)
    """

    update: float = 0.1
    distance: Distance = "l2"
    smooth: float = 1.0
    statistics: float = 2.0
    moments: Moments = "relative"
    exposed: float = 1.0
    label: float = 0.0
    variation: float = 0.0
    energy: float = 0.0
    box: float = 1.0
    likelihood: float = 0.0
    belief: float = 0.0

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self) if f.name not in ("distance", "moments")):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative: {getattr(self, name)}")
        if not self.update + self.statistics + self.exposed + self.label + self.likelihood > 0:
            raise ValueError(
                "at least one of update, statistics, exposed, label and likelihood must be positive: nothing to match"
            )

    def on(self, smooth: bool) -> Terms:
        """The weights on a network that is smooth, or is not."""
        return replace(self, update=self.update * (self.smooth if smooth else 1.0), smooth=1.0)


@dataclass(frozen=True)
class Evidence:
    """What the server holds against a simulation.

    ``statistics`` are weighted means of the steps' batch means and unbiased variances, by normalisation layer, with
    ``shares`` the steps' weights and ``before`` what was sent; ``inputs`` are exactly known inputs by layer.
    """

    change: Mapping[str, Tensor]
    statistics: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    before: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    shares: Sequence[float] = (1.0,)
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    """What one step of Adam tells of gradients: matched in the place of ``change``, whatever the distance."""


def mismatch(terms: Terms, evidence: Evidence, made: Simulated, x: Tensor) -> dict[str, Tensor]:
    """Every term that has a weight, before weighting."""
    found: dict[str, Tensor] = {}
    if terms.update:
        found["update"] = (
            outside(made.first, evidence.bounds)
            if evidence.bounds
            else update_distance(made.change, evidence.change, terms.distance)
        )
    if terms.statistics and evidence.statistics:
        found["statistics"] = statistics_distance(made, evidence, terms.moments)
    if terms.exposed and evidence.inputs:
        seen = made.seen[0].inputs
        found["exposed"] = torch.stack([relative(seen[n], v) for n, v in evidence.inputs.items()]).mean()
    if terms.label:
        found["label"] = made.loss
    if terms.variation:
        found["variation"] = variation(x)
    if terms.energy:
        found["energy"] = x.square().mean()
    if terms.box:
        found["box"] = (x - x.clamp(0, 1)).square().mean()
    return found


def update_distance(made: Mapping[str, Tensor], seen: Mapping[str, Tensor], distance: Distance) -> Tensor:
    """How far the simulated change is from the observed one, over the entries that were observed."""
    names = [name for name, value in seen.items() if float(value.square().sum()) > 0]
    if distance == "layers":
        return torch.stack([relative(made[n], seen[n]) for n in names]).mean()
    if distance == "norms":
        total = sum(float(torch.linalg.vector_norm(seen[n])) for n in names)
        return torch.stack([_norm(made[n] - seen[n]) for n in names]).sum() / total
    size = torch.stack([seen[n].square().sum() for n in names]).sum()
    if distance == "l2":
        return torch.stack([(made[n] - seen[n]).square().sum() for n in names]).sum() / size
    inner = torch.stack([(made[n] * seen[n]).sum() for n in names]).sum()
    own = torch.stack([made[n].square().sum() for n in names]).sum()
    return 1 - inner / (own * size).sqrt().clamp_min(1e-30)


def statistics_distance(made: Simulated, evidence: Evidence, moments: Moments = "relative") -> Tensor:
    """The mean over normalisation layers of both moments' errors; as norms, their sum."""
    parts = []
    for name, (mean, variance) in evidence.statistics.items():
        got_mean, got_variance = mixed([seen.moments[name] for seen in made.seen], evidence.shares)
        if made.statistics_factor is not None:  # what was scaled is the change
            old_mean, old_variance = evidence.before[name]
            got_mean = old_mean + made.statistics_factor * (got_mean - old_mean)
            got_variance = old_variance + made.statistics_factor * (got_variance - old_variance)
        if moments == "norms":
            parts += [_norm(got_mean - mean), _norm(got_variance - variance)]
            continue
        # Under noise an observed variance can be zero or less; a floor keeps such a channel from ruling the rest.
        scale = variance.clamp_min(1e-3 * float(variance.clamp_min(0).mean()) + 1e-12)
        spread = (got_variance / scale).clamp_min(1e-6).sqrt() - (variance.clamp_min(0) / scale).sqrt()
        parts.append(((got_mean - mean).square() / scale).mean() + spread.square().mean())
    return torch.stack(parts).sum() if moments == "norms" else torch.stack(parts).mean()


def _norm(error: Tensor) -> Tensor:
    """A norm with a derivative where it is zero, which is where the search wants to go."""
    return (error.square().sum() + 1e-24).sqrt()


def relative(made: Tensor, wanted: Tensor) -> Tensor:
    """|made - wanted|^2 / |wanted|^2."""
    return (made - wanted).square().sum() / wanted.square().sum().clamp_min(1e-30)


def variation(x: Tensor) -> Tensor:
    """Mean absolute difference between neighbours, down and across."""
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., :, 1:] - x[..., :, :-1]).abs().mean()
