"""Over a zoo of networks and losses: the clipped sum is right to 1e-5 or refused, and nothing coupled is accepted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from leakline.errors import StackError
from leakline.mechanisms.per_example import clipped_sum
from networks_zoo import COUPLED, SOUND, Case, N

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
