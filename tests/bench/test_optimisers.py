"""The clients' optimisers: what must hold whatever lies where in memory (torch's arithmetic: test_training)."""

from __future__ import annotations

import pytest
import torch

from leakline.bench.optimisers import Adam
from leakline.bench.training import Plan
from leakline.study.describe import describe


def test_a_gradient_in_another_layout_moves_the_same_weights():
    """Gradients set by hand may lie otherwise in memory than their parameters; the fused kernel does not look."""
    start, slope = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0)), torch.arange(300.0)
    moved = []
    for layout in (torch.contiguous_format, torch.channels_last):
        parameter = torch.nn.Parameter(start.clone().to(memory_format=torch.channels_last))
        parameter.grad = slope.view(4, 3, 5, 5).cos().contiguous(memory_format=layout)
        Adam([parameter], 0.1, 0.01).step()
        moved.append(parameter.detach().contiguous())
    expected = torch.nn.Parameter(start.clone())
    expected.grad = slope.view(4, 3, 5, 5).cos()
    torch.optim.Adam([expected], 0.1, weight_decay=0.01, foreach=False, fused=False).step()
    for found in moved:
        torch.testing.assert_close(found, expected.detach())


def test_amsgrad_is_torch_s_step_by_step_and_no_adam_once_gradients_shrink():
    slopes = [torch.tensor([1.0, -2.0, 0.5]) / (1 + 9 * step) for step in range(30)]
    ours, theirs, plain = (torch.nn.Parameter(torch.ones(3)) for _ in range(3))
    steps = (
        Adam([ours], 0.1, 0.01, amsgrad=True),
        torch.optim.Adam([theirs], 0.1, weight_decay=0.01, amsgrad=True, fused=True),
        Adam([plain], 0.1, 0.01),
    )
    for slope in slopes:
        for parameter, optimiser in zip((ours, theirs, plain), steps, strict=True):
            parameter.grad = slope.clone()
            optimiser.step()
        assert torch.equal(ours, theirs)
    assert not torch.allclose(ours, plain)


def test_amsgrad_without_adam_is_refused_and_unset_it_is_not_written_down():
    with pytest.raises(ValueError, match='amsgrad is a kind of Adam: set optimiser = "adam"'):
        Plan(amsgrad=True)
    assert "amsgrad" not in describe(Plan(optimiser="adam"))
    assert describe(Plan(optimiser="adam", amsgrad=True))["amsgrad"] is True
