"""The clients' optimisers: what must hold whatever lies where in memory (torch's arithmetic: test_training)."""

from __future__ import annotations

import torch

from leakline.bench.optimisers import Adam


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
