"""Over a zoo of networks and losses: the clipped sum is right to 1e-5 or refused, and nothing coupled is accepted."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from leakline.errors import StackError
from leakline.mechanisms.per_example import clipped_sum, path_of
from networks_zoo import COUPLED, SOUND, Case, N, Net

REFUSED = {
    "embedding, max_norm",
    "half precision",
    "complex parameter",
    "hook after accumulation",
    "a layer's input written over later",
    "returns a tuple",
    "returns a dict",
    "squeezes its output",
    "sum",
    "sum over a constant",
    "one value for each example",
}
"""Of the sound ones: they do not run on a single example, are no mean, or cannot keep the bound."""


def built(case: Case) -> nn.Module:
    torch.manual_seed(3)
    model = case.build()
    if any(isinstance(p, nn.UninitializedParameter) for p in model.parameters()):
        model(case.x())
    return model.train()


def flat(parts: list[Tensor | None], model: nn.Module) -> Tensor:
    trained = [p for p in model.parameters() if p.requires_grad]
    dense = [torch.zeros_like(p) if g is None else g.to_dense() for g, p in zip(parts, trained, strict=True)]
    return torch.cat([g.detach().double().flatten() for g in dense])


def one_after_another(case: Case, bound: float) -> Tensor:
    """The definition: each example in a batch of its own, as if it came first; backward, norm, scale, add."""
    model, x, y = built(case), case.x(), case.y()
    total = torch.zeros(())
    for i in range(len(x)):
        rewound(case, model).zero_grad()
        case.loss(model(x[i : i + 1]), y[i : i + 1]).backward()
        gradient = flat([p.grad for p in model.parameters() if p.requires_grad], model)
        total = total + gradient * min(1.0, bound / max(float(gradient.norm()), 1e-300))
    return total


class Prepared:
    """A model that has been looked at once, as before the first step of training."""

    def __init__(self, case: Case) -> None:
        self.case, self.model = case, built(case)
        clipped_sum(self.model, case.loss, case.x(), case.y(), 1.0)

    def sum(self, bound: float, x: Tensor, y: Tensor) -> Tensor:
        """The clipped sum, from the first state and under the same draws, so that examples keep their masks."""
        rewound(self.case, self.model)
        torch.manual_seed(11)
        np.random.seed(11)  # noqa: NPY002
        return flat(list(clipped_sum(self.model, self.case.loss, x, y, bound).sums), self.model)


def rewound(case: Case, model: nn.Module) -> nn.Module:
    """Buffers as they were at first."""
    first = dict(built(case).named_buffers())
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(first[name])
    return model


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("case", [c for c in SOUND if c.name not in REFUSED], ids=lambda case: case.name)
def test_independent_examples_are_right_to_1e_5(case):
    ready = Prepared(case)
    check_arithmetic(ready)
    check_sensitivity(ready)


def check_arithmetic(ready: Prepared) -> None:
    """The same as one after another; not where each pass draws anew."""
    for bound in () if ready.case.random else (1e9, 0.5):
        expected = one_after_another(ready.case, bound)
        sums = ready.sum(bound, ready.case.x(), ready.case.y())
        assert torch.linalg.vector_norm(sums - expected) <= 1e-5 * torch.linalg.vector_norm(expected)


def check_sensitivity(ready: Prepared) -> None:
    """Exchange an example: two bounds. Leave it out: one (not where that gives other examples other draws)."""
    bound, case = 0.3, ready.case
    x, y = case.x(), case.y()
    whole = ready.sum(bound, x, y)
    assert 0 < float(whole.norm()) <= N * bound
    for j in (0, 3, N - 1):
        other, label = x.clone(), y.clone()
        other[j] = 30 * x[j - 1] if x.is_floating_point() else x[j - 1]
        label[j] = y[j - 2]
        assert float((ready.sum(bound, other, label) - whole).norm()) <= 2 * bound * (1 + 1e-5)
        if not case.random:
            rest = torch.arange(N) != j
            assert float((ready.sum(bound, x[rest], y[rest]) - whole).norm()) <= bound * (1 + 1e-5)


@pytest.mark.parametrize("case", [*COUPLED, *(c for c in SOUND if c.name in REFUSED)], ids=lambda case: case.name)
def test_what_is_coupled_or_cannot_be_clipped_is_refused(case):
    with pytest.raises(StackError) as refused:
        clipped_sum(built(case), case.loss, case.x(), case.y(), 1.0)
    assert refused.value.what
    assert refused.value.fix


# --- after the first look --------------------------------------------------------------------------------------------


class Gate(nn.Module):
    """Uses a layer's weight past the layer, once the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.open = nn.Linear(4, 3), False

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + functional.linear(x**2, self.a.weight) if self.open else self.a(x)


class Picky(nn.Module):
    """Calls a layer for the rows that are far from zero, of which the first batches have none or all."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        far = (x[:, 0].abs() > 1e4).nonzero()[:, 0]
        rest = (x[:, 0].abs() <= 1e4).nonzero()[:, 0]
        return torch.zeros(len(x), 3).index_add(0, rest, self.a(x[rest])).index_add(0, far, self.b(x[far]))


@pytest.mark.parametrize("build", [Gate, Picky])
def test_a_branch_that_opens_later_is_noticed_in_that_very_pass(build):
    case = Case("", build, lambda: torch.randn(N, 4, generator=torch.Generator().manual_seed(0)))
    ready = Prepared(case)
    x = case.x()
    x[2:4] *= 1e6
    ready.model.open = True
    expected = torch.zeros(())
    for i in range(N):
        ready.model.zero_grad()
        case.loss(ready.model(x[i : i + 1]), case.y()[i : i + 1]).backward()
        gradient = flat([p.grad for p in ready.model.parameters()], ready.model)
        expected = expected + gradient * min(1.0, 0.5 / max(float(gradient.norm()), 1e-300))
    assert float((ready.sum(0.5, x, case.y()) - expected).norm()) <= 1e-5 * float(expected.norm())


def test_a_verdict_is_about_a_loss_the_trained_parameters_and_the_modes():
    model, x, y = nn.Sequential(nn.Linear(4, 3), nn.PReLU()).train(), torch.randn(N, 4), torch.arange(N) % 3
    model[1].requires_grad_(False)
    assert clipped_sum(model, functional.cross_entropy, x, y, 1.0).path == "bookkeeping"
    model[1].requires_grad_(True)
    assert clipped_sum(model, functional.cross_entropy, x, y, 1.0).path == "vmap"
    with pytest.raises(StackError, match="loss is not a mean"):
        clipped_sum(model, lambda out, y: functional.cross_entropy(out, y, reduction="sum"), x, y, 1.0)
    training_only = next(c for c in COUPLED if c.name == "mean taken away in training")
    mixing = built(training_only).eval()
    clipped_sum(mixing, functional.cross_entropy, training_only.x(), training_only.y(), 1.0)
    with pytest.raises(StackError, match="depends on the other examples"):
        clipped_sum(mixing.train(), functional.cross_entropy, training_only.x(), training_only.y(), 1.0)


def test_looking_leaves_no_trace():
    """Buffers, attributes, lists, everybody's random state: as if nobody had looked."""

    def forward(m, x):
        m.seen.lerp_(x.detach().mean(0), 0.1)
        m.log.append(float(x.sum()))
        m.last = x.detach()
        return m.h(functional.dropout(x, 0.5) * random.random() * np.random.rand())  # noqa: NPY002, S311

    model = Net(forward, h=nn.Linear(4, 3), seen=torch.zeros(4)).train()
    model.log = []
    state = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    path_of(model, functional.cross_entropy, torch.randn(N, 4, generator=torch.Generator()), torch.arange(N) % 3)
    assert torch.equal(model.seen, torch.zeros(4))
    assert model.log == []
    assert not hasattr(model, "last")
    assert torch.equal(state[0], torch.get_rng_state())
    assert state[1] == random.getstate()
    assert state[2] == np.random.get_state()[1].tolist()  # noqa: NPY002


@pytest.mark.slow
@pytest.mark.parametrize("size", [64, 256])
@pytest.mark.parametrize("case", [*SOUND, *COUPLED], ids=lambda case: case.name)
def test_batches_of_a_real_size(case, size):
    """No exchange of a record moves the sum by more than two bounds, of whatever is accepted; nothing coupled is."""
    generator = torch.Generator().manual_seed(size)
    x, y = (torch.cat([part] * (size // N)) for part in (case.x(), case.y()))
    if x.is_floating_point():
        x = x * (0.5 + torch.rand(size, *[1] * (x.dim() - 1), generator=generator)).to(x.dtype)
    model, bound = built(case), 0.3
    refused = case in COUPLED or case.name in REFUSED
    try:
        clipped_sum(model, case.loss, x, y, bound)
    except StackError:
        assert refused
        return
    assert not refused

    def total(x: Tensor) -> Tensor:
        rewound(case, model)
        torch.manual_seed(1)
        np.random.seed(1)  # noqa: NPY002
        return flat(list(clipped_sum(model, case.loss, x, y, bound).sums), model)

    whole = total(x)
    for j in (0, size // 2, size - 1):
        other = x.clone()
        other[j] = 100 * x[j - 1] if x.is_floating_point() else x[j - 1]
        assert float((total(other) - whole).norm()) <= 2 * bound * (1 + 1e-5)
