"""Per-example clipping against the loop that everybody can check, layer by layer, and against Opacus."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from leakline.errors import StackError
from leakline.mechanisms.independence import refuse_layers
from leakline.mechanisms.layer_gradients import RULES, rule_for
from leakline.mechanisms.per_example import Clipped, clipped_sum, path_of
from leakline.mechanisms.units import Members


def by_hand(
    model: nn.Module, loss: Any, x: torch.Tensor, y: torch.Tensor, bound: float, units: torch.Tensor | None = None
) -> torch.Tensor:
    """The definition: one example after another, backward; the mean over each unit; norm, scale, add."""
    rows = []
    for i in range(len(x)):
        model.zero_grad()
        loss(model(x[i : i + 1]), y[i : i + 1]).backward()
        rows.append(
            torch.cat(
                [
                    (torch.zeros_like(p) if p.grad is None else p.grad).flatten()
                    for p in model.parameters()
                    if p.requires_grad
                ]
            )
        )
    total = None
    units = torch.arange(len(x)) if units is None else units
    for unit in units.unique():
        flat = torch.stack(rows)[units == unit].mean(0)
        flat = flat * min(1.0, bound / max(float(flat.double().norm()), 1e-300))
        total = flat if total is None else total + flat
    model.zero_grad()
    assert total is not None
    return total


def flat(found: Clipped) -> torch.Tensor:
    return torch.cat([s.flatten() for s in found.sums])


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss for outputs of any shape: the mean over examples of half the squared distance to a pattern."""
    wave = torch.cos(torch.arange(outputs[0].numel(), dtype=outputs.dtype)).view(outputs[0].shape)
    return ((outputs - wave * (1 + targets.to(outputs.dtype).view(-1, *[1] * (outputs.dim() - 1)))) ** 2).flatten(
        1
    ).sum(1).mean() / 2


def agrees(model: nn.Module, x: torch.Tensor, loss: Any = squared, path: str = "bookkeeping") -> None:
    """Same clipped sum as by hand to 1e-6, with some examples clipped and some not, and with none clipped."""
    y = torch.arange(len(x)) % 3
    found = clipped_sum(model, loss, x, y, 1e9)
    assert found.path == path
    for bound in (1e9, float(found.norms.median()) * 1.0001 + 1e-9, float(found.norms.min()) / 2 + 1e-9):
        for units in (None, torch.arange(len(x)).flip(0) // 2 if len(x) % 2 else torch.arange(len(x)) % 2):
            got, expected = clipped_sum(model, loss, x, y, bound, units=units), by_hand(model, loss, x, y, bound, units)
            off = torch.linalg.vector_norm(flat(got) - expected)
            assert off <= 1e-6 * torch.linalg.vector_norm(expected) + 1e-12
            assert got.path == path
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def seeded(build: Any) -> nn.Module:
    """In float64, so that 1e-6 judges the method and not the summation."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return build().double().train()


def inputs(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- every layer, over shapes ----------------------------------------------------------------------------------------

few = settings(max_examples=25, deadline=None)


@few
@given(st.data())
def test_convolutions(data):
    dims = data.draw(st.sampled_from([1, 2]))
    groups = data.draw(st.sampled_from([1, 1, 2]))
    channels, outs = groups * data.draw(st.integers(1, 3)), groups * data.draw(st.integers(1, 5))
    options = {
        "kernel_size": data.draw(st.integers(1, 3)),
        "stride": data.draw(st.integers(1, 2)),
        "padding": data.draw(st.sampled_from([0, 1, "valid"])),
        "dilation": data.draw(st.integers(1, 2)),
        "groups": groups,
        "bias": data.draw(st.booleans()),
        "padding_mode": data.draw(st.sampled_from(["zeros", "zeros", "reflect", "circular"])),
    }
    kind = {1: nn.Conv1d, 2: nn.Conv2d}[dims]
    sides = [data.draw(st.integers(5, 8)) for _ in range(dims)]
    x = inputs(data.draw(st.integers(1, 4)), channels, *sides)
    agrees(seeded(lambda: kind(channels, outs, **options)), x)


@few
@given(
    st.integers(1, 4), st.integers(1, 40), st.integers(1, 40), st.lists(st.integers(1, 4), max_size=2), st.booleans()
)
def test_dense_layers_on_any_number_of_positions(n, inner, outer, extra, bias):
    agrees(seeded(lambda: nn.Linear(inner, outer, bias)), inputs(n, *extra, inner))


@few
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.lists(st.integers(2, 4), max_size=2), st.booleans())
def test_normalisation(n, groups, per_group, sides, over_features):
    if over_features:
        model = seeded(lambda: nn.Sequential(nn.LayerNorm(sides[-1:] or [3]), nn.Tanh()))
        x = inputs(n, groups, *(sides or [3]))
    else:
        channels = groups * per_group
        model = seeded(lambda: nn.Sequential(nn.GroupNorm(groups, channels), nn.Tanh()))
        x = inputs(n, channels, *(sides or [3]))
    with torch.no_grad():
        model[0].weight.copy_(torch.linspace(0.5, 2, model[0].weight.numel()).view_as(model[0].weight))
    agrees(model, x)


@few
@given(st.integers(1, 4), st.integers(1, 6), st.integers(2, 5), st.sampled_from([None, 0, 1]))
def test_embeddings_with_repeated_entries(n, length, entries, padding):
    model = seeded(lambda: nn.Sequential(nn.Embedding(entries, 3, padding_idx=padding), nn.Tanh()))
    x = torch.randint(0, entries, (n, length), generator=torch.Generator().manual_seed(n))
    y = torch.arange(n) % 3
    got = clipped_sum(model, squared, x, y, 0.5)
    expected = by_hand(model, squared, x, y, 0.5)
    assert got.path == "bookkeeping"
    assert torch.linalg.vector_norm(flat(got) - expected) <= 1e-6 * torch.linalg.vector_norm(expected)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (lambda: nn.Conv2d(3, 64, 3), (3, 3, 5, 5)),  # ghost norm: few positions, many channels
        (lambda: nn.Conv1d(5, 64, 3), (3, 5, 7)),
        (lambda: nn.Conv2d(24, 24, 3, padding=1), (2, 24, 4, 4)),  # formed twice: too large to keep, too many positions
        (lambda: nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2)), (3, 4, 7, 6)),
        (lambda: nn.Conv2d(4, 6, (2, 3), padding="same"), (3, 4, 5, 5)),
        (lambda: nn.Conv3d(2, 3, 2, padding=1), (2, 2, 4, 3, 4)),
        (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2), (2, 4, 4, 4)),
        (lambda: nn.ConvTranspose1d(3, 2, 2, dilation=2, bias=False), (2, 3, 5)),
    ],
)
def test_unusual_convolutions(build, shape):
    agrees(seeded(build), inputs(*shape))


def test_all_three_roads_of_a_convolution_are_taken_above(monkeypatch):
    from leakline.mechanisms import layer_gradients

    taken: list[str] = []
    for name in ("_ghost", "_rows"):
        real = getattr(layer_gradients, name)
        monkeypatch.setattr(layer_gradients, name, lambda *a, n=name, r=real: (taken.append(n), r(*a))[1])
    for (build, x), expected in zip(
        [
            (lambda: nn.Conv2d(3, 64, 3, bias=False), inputs(3, 3, 5, 5)),
            (lambda: nn.Conv2d(2, 3, 3, bias=False), inputs(3, 2, 9, 9)),
            (lambda: nn.Conv2d(24, 24, 3, padding=1, bias=False), inputs(2, 24, 4, 4)),
        ],
        (["_ghost"], ["_rows"], []),
        strict=True,
    ):
        taken.clear()
        agrees(seeded(build), x)
        assert set(taken) == set(expected)


# --- whole models ----------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """A layer used twice, sums in place, activations in place, a frozen layer and one without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3, padding=1)
        self.norm = nn.GroupNorm(2, 6)
        self.twice = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.frozen = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = functional.relu_(self.first(x))
        out = self.norm(self.twice(h))
        out += h
        out = self.twice(self.relu(out))
        return self.head(self.frozen(out.mean((2, 3))))


class Sentence(nn.Module):
    """Embeddings, a dense layer on positions used twice and written over."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 6)
        self.mix = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.mix(self.words(x))
        h += 1.0
        return self.head(self.mix(torch.tanh(self.norm(h))).mean(1))


def test_layers_used_twice_frozen_or_written_over():
    y = torch.arange(5) % 3
    for model, x in (
        (seeded(Residual), inputs(5, 1, 6, 6)),
        (seeded(Sentence), torch.arange(20).view(5, 4) * 7 % 9),
    ):
        for bound in (0.3, 1e6):
            got = clipped_sum(model, functional.cross_entropy, x, y, bound)
            assert got.path == "bookkeeping"
            expected = by_hand(model, functional.cross_entropy, x, y, bound)
            assert torch.linalg.vector_norm(flat(got) - expected) <= 1e-6 * torch.linalg.vector_norm(expected)
    relu = seeded(Residual).relu
    assert relu.inplace  # put back as it was


class PositionsFirst(nn.Module):
    """Sees positions before examples."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.mix(x.transpose(0, 1))).mean(0))


class ByFunction(nn.Module):
    """Uses a layer's weights without calling the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(torch.tanh(self.mix(x)), self.head.weight)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.a(x)))


class OwnParameter(nn.Module):
    """A parameter of its own kind."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x * self.scale)


class BothWays(nn.Module):
    """Calls a layer, and uses its weight past it as well."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.mix(x)) @ self.mix.weight)


class SideLine(nn.Module):
    """Calls a layer once more, to no effect on the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.mix(x)
        self.mix(h)
        return self.head(h)


class Recurrent(nn.Module):
    """What vmap cannot do."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(x)[0][:, -1])


@pytest.mark.parametrize(
    ("build", "shape", "path"),
    [
        (PositionsFirst, (5, 5, 4), "vmap"),
        (ByFunction, (5, 4), "vmap"),
        (Tied, (5, 4), "vmap"),
        (OwnParameter, (5, 4), "vmap"),
        (BothWays, (5, 4), "vmap"),
        (SideLine, (5, 4), "vmap"),
        (Recurrent, (5, 6, 4), "one by one"),
    ],
)
def test_other_models_take_another_road_and_it_is_said(build, shape, path):
    model, x, y = seeded(build), inputs(*shape), torch.arange(5) % 3
    for bound in (0.3, 1e6):
        got = clipped_sum(model, functional.cross_entropy, x, y, bound)
        assert got.path == path
        expected = by_hand(model, functional.cross_entropy, x, y, bound)
        assert torch.linalg.vector_norm(flat(got) - expected) <= 1e-6 * torch.linalg.vector_norm(expected)


def test_a_subclass_that_computes_something_else_has_no_rule():
    class Scaled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    class Named(nn.Linear):
        pass

    assert rule_for(Scaled(2, 2)) is None
    assert rule_for(Named(2, 2)) is RULES[nn.Linear]


def test_norms_loss_and_the_length_of_the_sum():
    model, x, y = seeded(lambda: nn.Linear(4, 3)), inputs(6, 4), torch.arange(6) % 3
    found = clipped_sum(model, functional.cross_entropy, x, y, 0.25)
    single = [float(by_hand(model, functional.cross_entropy, x[i : i + 1], y[i : i + 1], 1e9).norm()) for i in range(6)]
    assert found.norms.tolist() == pytest.approx(single, rel=1e-9)
    assert float(found.loss) == pytest.approx(float(functional.cross_entropy(model(x), y).detach()))
    for i in range(6):  # no clipped gradient is longer than the bound, in float32 either
        rough, row = seeded(lambda: nn.Linear(4, 3)).float(), x[i : i + 1].float()
        one = clipped_sum(rough, functional.cross_entropy, row, y[i : i + 1], 0.25)
        assert flat(one).double().norm() <= 0.25


def test_a_cancelling_gradient_is_not_taken_for_a_short_one():
    """Two positions that pull opposite ways almost cancel: a ghost norm in float32 would be rounding alone."""
    model = seeded(lambda: nn.Linear(64, 64, bias=False)).float()
    x = torch.ones(1, 2, 64)
    x[0, 1] = 1 + 1e-3

    def pull(outputs, targets):
        return 1e3 * (outputs[:, 0].sum() - outputs[:, 1].sum()) / len(outputs)

    found = clipped_sum(model, pull, x, torch.zeros(1), 1e9)
    assert found.path == "bookkeeping"
    assert float(found.norms[0]) == pytest.approx(1e3 * 1e-3 * 64, rel=1e-3)


def test_dropout_is_drawn_once_for_the_batch():
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 40), nn.Dropout(0.5), nn.Linear(40, 3)))
    x, y = inputs(1, 4).expand(8, 4), torch.zeros(8, dtype=torch.long)
    path_of(model, functional.cross_entropy, x, y)
    torch.manual_seed(1)
    clipped = clipped_sum(model, functional.cross_entropy, x, y, 1e9)
    torch.manual_seed(1)
    (functional.cross_entropy(model(x), y) * 8).backward()
    plain = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert torch.allclose(flat(clipped), plain, atol=1e-9)
    assert len(set(clipped.norms.tolist())) > 1  # equal examples, each under its own mask


def test_nothing_is_disturbed():
    model = seeded(Residual)
    before = {n: v.clone() for n, v in model.state_dict().items()}
    state = torch.get_rng_state()
    clipped_sum(model, functional.cross_entropy, inputs(3, 1, 6, 6), torch.arange(3), 1.0)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(m.training for m in model.modules())
    assert [p.requires_grad for p in model.frozen.parameters()] == [False, False]


@pytest.mark.parametrize("build", [lambda: nn.Linear(4, 3), OwnParameter])
def test_an_example_without_a_finite_gradient_counts_as_zero(build):
    model, x, y = seeded(build), inputs(4, 4), torch.arange(4) % 3
    path_of(model, functional.cross_entropy, x, y)
    broken = x.clone()
    broken[2] = float("inf")
    found = clipped_sum(model, functional.cross_entropy, broken, y, 0.5)
    keep = [0, 1, 3]
    expected = clipped_sum(model, functional.cross_entropy, x[keep], y[keep], 0.5)
    assert torch.allclose(flat(found), flat(expected), atol=1e-12)
    assert torch.isfinite(found.norms).tolist() == [True, True, False, True]


def test_an_empty_batch_sums_to_zero():
    model = seeded(lambda: nn.Linear(4, 3))
    found = clipped_sum(model, functional.cross_entropy, torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), 1.0)
    assert float(flat(found).abs().max()) == 0
    assert float(found.loss) == 0


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), r"layer 1 \(BatchNorm2d\).*GroupNorm"),
        (lambda: nn.Sequential(nn.InstanceNorm2d(2, track_running_stats=True)), "layer 0.*statistics"),
        (lambda: nn.Sequential(nn.Embedding(3, 2, scale_grad_by_freq=True)), "layer 0"),
        (lambda: nn.Sequential(nn.Embedding(3, 2, max_norm=1.0)), "layer 0"),
    ],
)
def test_layers_that_mix_examples_are_refused_by_name(build, said):
    with pytest.raises(StackError, match=said):
        refuse_layers(build())
    refuse_layers(nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Dropout(0.5)))


class HiddenBatchNorm(nn.Module):
    """Mixes examples in a function that no layer shows."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(functional.batch_norm(x, None, None, training=True))


def test_a_model_that_mixes_examples_by_a_function_is_found_out():
    with pytest.raises(StackError, match="depends on the other examples"):
        clipped_sum(seeded(HiddenBatchNorm), functional.cross_entropy, inputs(4, 4), torch.arange(4) % 3, 1.0)
    with pytest.raises(ValueError, match="-1"):
        clipped_sum(nn.Linear(2, 2), squared, inputs(1, 2), torch.zeros(1), -1.0)


# --- Opacus ----------------------------------------------------------------------------------------------------------


def test_the_clipped_sum_is_opacus_hooks_sum():
    opacus = pytest.importorskip("opacus", reason="Opacus is not installed")
    del opacus
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.grad_sample import GradSampleModule

        def build() -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 6, 3),
                nn.Flatten(), nn.Linear(24, 5), nn.LayerNorm(5), nn.Linear(5, 3),
            )  # fmt: skip

        model, theirs = seeded(build), GradSampleModule(seeded(build))
        x, y, bound = inputs(6, 1, 8, 8), torch.arange(6) % 3, 0.7
        functional.cross_entropy(theirs(x), y).backward()
        rows = torch.cat([p.grad_sample.flatten(1) for p in theirs.parameters()], dim=1)
    norms = rows.norm(dim=1)
    expected = (rows * (bound / norms).clamp(max=1.0)[:, None]).sum(0)
    found = clipped_sum(model, functional.cross_entropy, x, y, bound)
    assert int((norms > bound).sum()) in range(1, 7)
    assert torch.allclose(found.norms, norms, rtol=1e-9)
    assert torch.linalg.vector_norm(flat(found) - expected) <= 1e-6 * torch.linalg.vector_norm(expected)


@pytest.mark.parametrize("path", ["bookkeeping", "vmap", "one by one"])
def test_units_of_any_size_by_every_road(path):
    """A mean over each unit, then the clip; norms are the units', in their order."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 2)).double()
    x, y = torch.randn(9, 1, 6, 6).double(), torch.arange(9) % 2
    units = torch.tensor([3, 0, 1, 1, 3, 2, 3, 3, 1])
    lengths = [by_hand(model, squared, x[units == u], y[units == u], 1e9, units[units == u]).norm() for u in range(4)]
    whole = clipped_sum(model, squared, x, y, 1e9, path, units)
    assert torch.allclose(whole.norms, torch.stack(lengths), rtol=1e-9)
    for bound in (float(whole.norms.median()), float(whole.norms.min()) / 3):
        got, expected = (
            clipped_sum(model, squared, x, y, bound, path, units),
            by_hand(model, squared, x, y, bound, units),
        )
        assert (flat(got) - expected).norm() <= 1e-6 * expected.norm()  # what is clipped is shorter by 2e-7


SIZES = (1, 7, 2, 1, 4, 3, 1, 6)
"""Units of a batch of 25."""


@pytest.mark.parametrize("order", ["unit by unit", "mixed"])
@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (lambda: nn.Linear(3, 2), (3,)),  # few vectors: all inner products at once
        (lambda: nn.Linear(40, 30), (40,)),
        (lambda: nn.Linear(40, 30, bias=False), (40,)),
        (lambda: nn.Linear(3, 2), (2, 3)),  # each unit's formed
        (lambda: nn.Linear(400, 300), (20, 400)),  # ghost norm, in packs of units of about one size
        (lambda: nn.Linear(40, 30), (70, 40)),
        (lambda: nn.Conv2d(1, 3, 3), (1, 6, 6)),  # grey images
        (lambda: nn.Conv2d(2, 3, 3), (2, 6, 6)),  # each unit's formed and kept
        (lambda: nn.Conv2d(3, 128, 3), (3, 4, 4)),  # ghost norm
        (lambda: nn.Conv1d(24, 24, 9, groups=2), (24, 10)),  # formed twice
        (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), (4, 3, 3)),
        (lambda: nn.GroupNorm(2, 4), (4, 5)),
        (lambda: nn.LayerNorm(5), (3, 5)),
    ],
)
def test_units_of_many_sizes_in_every_layer(build, shape, order):
    model, x, y = seeded(build), inputs(sum(SIZES), *shape), torch.arange(sum(SIZES)) % 3
    units = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))
    if order == "mixed":
        units = units[torch.randperm(len(units), generator=torch.Generator().manual_seed(1))]
    found = clipped_sum(model, squared, x, y, 1e9, units=units)
    assert found.path == "bookkeeping"
    for bound in (1e9, float(found.norms.median()) * 1.0001, float(found.norms.min()) / 2):
        got, expected = (
            clipped_sum(model, squared, x, y, bound, units=units),
            by_hand(model, squared, x, y, bound, units),
        )
        assert (flat(got) - expected).norm() <= 1e-6 * expected.norm()


@pytest.mark.parametrize("inner", [3, 40])
def test_units_of_more_vectors_than_are_compared_at_once(inner):
    sizes = SIZES * 4
    model, x, y = seeded(lambda: nn.Linear(inner, 30)), inputs(sum(sizes), inner), torch.arange(sum(sizes)) % 3
    units = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    bound = float(clipped_sum(model, squared, x, y, 1e9, units=units).norms.median()) * 1.0001
    expected = by_hand(model, squared, x, y, bound, units)
    assert (flat(clipped_sum(model, squared, x, y, bound, units=units)) - expected).norm() <= 1e-6 * expected.norm()


def test_units_of_sentences():
    model, y = seeded(Sentence), torch.arange(sum(SIZES)) % 3
    x = torch.randint(0, 9, (len(y), 4), generator=torch.Generator().manual_seed(0))
    units = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES)).flip(0)
    for bound in (1e9, 0.3):
        got = clipped_sum(model, functional.cross_entropy, x, y, bound, units=units)
        expected = by_hand(model, functional.cross_entropy, x, y, bound, units)
        assert got.path == "bookkeeping"
        assert (flat(got) - expected).norm() <= 1e-6 * expected.norm()


@given(st.lists(st.integers(1, 5), min_size=1, max_size=9), st.integers(0, 12), st.randoms(use_true_random=False))
def test_members_are_dealt_into_blocks_of_whole_units(sizes, most, random):
    of = [unit for unit, size in enumerate(sizes) for _ in range(size)]
    random.shuffle(of)
    members = Members(torch.tensor(of))
    blocks = list(members.blocks(most))
    assert [u for first, last in blocks for u in range(first, last)] == list(range(len(sizes)))
    everybody = torch.arange(len(of))
    for first, last in blocks:
        rows = everybody[members.rows(first, last)]
        assert sorted(of[r] for r in rows.tolist()) == [of[r] for r in rows.tolist()]
        assert {of[r] for r in rows.tolist()} == set(range(first, last))
        assert len(rows) == sum(sizes[first:last])
        assert len(rows) <= most or last - first == 1
        assert last == len(sizes) or len(rows) + sizes[last] > most  # no smaller than it has to be
    packs = members.packs(most)
    for pack in packs:
        size = max(sizes[u] for u in pack.units.tolist())
        assert pack.places.shape == (len(pack.units), size)
        assert pack.places.numel() <= most or len(pack.units) == 1
        for row, unit in enumerate(pack.units.tolist()):
            places = pack.places[row].tolist()
            assert {of[place] for place in places} == {unit}
            assert len(set(places)) == sizes[unit]
            assert pack.filled is None or int((~pack.filled[row]).sum()) == sizes[unit]
    everybodys = [torch.tensor([sizes[u] for u in pack.units.tolist()]) for pack in packs]
    assert members.unpacked(everybodys, most).tolist() == sizes
    values = torch.arange(len(of), dtype=torch.float64)[:, None] ** 2
    sums = [sum(float(values[i]) for i in range(len(of)) if of[i] == unit) for unit in range(len(sizes))]
    assert members.add(values)[:, 0].tolist() == sums
    assert torch.allclose(members.mean(values)[:, 0] * torch.tensor(sizes), torch.tensor(sums).double())
    assert members.spread(torch.arange(len(sizes))).tolist() == of


@pytest.mark.parametrize("inner", [3, 300])  # each gradient formed; ghost norms, all units in one block
def test_a_unit_with_one_infinite_gradient_counts_as_zero(inner):
    torch.manual_seed(0)
    model = nn.Linear(inner, 2 if inner == 3 else 20)
    x, y, units = torch.randn(5, inner), torch.arange(5) % 2, torch.tensor([0, 1, 1, 2, 2])
    x[1] = float("inf")
    found = clipped_sum(model, squared, x, y, 1.0, units=units)
    assert torch.isfinite(found.norms).tolist() == [True, False, True]
    kept = torch.tensor([0, 3, 4])
    assert torch.allclose(
        flat(found), by_hand(model, squared, x[kept], y[kept], 1.0, units[kept]), rtol=1e-5, atol=1e-7
    )
