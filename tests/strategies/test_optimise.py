"""What the server does with the combined change."""

from __future__ import annotations

import pytest
import torch

from leakline.strategies import SGD, Adaptive


def changes(n: int = 5, size: int = 20) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=g) for _ in range(n)]


def steps(optimiser, given):
    state, out = {}, []
    for i, change in enumerate(given):
        step, state = optimiser.step(change, state, i)
        out.append(step)
    return out


def test_without_momentum_the_step_is_the_change():
    given = changes()
    assert all(torch.equal(a, b) for a, b in zip(steps(SGD(), given), given, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(steps(SGD(1.0, 0.0), given), given, strict=True))
    assert SGD().stateless
    assert not SGD(1.0, 0.5).stateless
    assert not Adaptive().stateless


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_momentum_is_torch_s(momentum):
    given = changes()
    w = torch.zeros(20, requires_grad=True)
    optimiser = torch.optim.SGD([w], lr=0.3, momentum=momentum)
    ours = torch.zeros(20)
    for step, change in zip(steps(SGD(0.3, momentum), given), given, strict=True):
        w.grad = -change
        optimiser.step()
        ours = ours + step
        assert torch.allclose(ours, w.detach(), atol=1e-6)


@pytest.mark.parametrize("kind", ["adam", "adagrad", "yogi"])
def test_adaptive_steps_are_their_formulas_in_float64(kind):
    given = changes()
    b1, b2, tau, eta = 0.8, 0.95, 1e-2, 0.3
    m = v = torch.zeros(20, dtype=torch.float64)
    for step, change in zip(steps(Adaptive(kind, eta, b1, b2, tau), given), given, strict=True):
        d = change.double()
        m = b1 * m + (1 - b1) * d
        if kind == "adam":
            v = b2 * v + (1 - b2) * d**2
        elif kind == "adagrad":
            v = v + d**2
        else:
            v = v - (1 - b2) * d**2 * torch.sign(v - d**2)
        assert torch.allclose(step.double(), eta * m / (v.sqrt() + tau), atol=1e-5)


@pytest.mark.parametrize("optimiser", [SGD(0.1, 0.9), Adaptive("adam"), Adaptive("yogi")])
def test_a_step_is_pure(optimiser):
    given = changes(3)
    state: dict[str, torch.Tensor] = {}
    for i in range(2):
        _, state = optimiser.step(given[i], state, i)
    kept = {k: v.clone() for k, v in state.items()}
    change = given[2].clone()
    one, _ = optimiser.step(given[2], state, 2)
    other, _ = optimiser.step(given[2], state, 2)
    assert torch.equal(one, other)
    assert torch.equal(given[2], change)
    assert all(torch.equal(state[k], kept[k]) for k in kept)
