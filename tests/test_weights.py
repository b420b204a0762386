"""One carrier for everything that travels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import tiny
from leakline.weights import Entry, Layout, Weights, read, write


def channels_last() -> nn.Module:
    return tiny.image_net().to(memory_format=torch.channels_last)


@pytest.mark.parametrize("build", [tiny.linear, tiny.perceptron, tiny.image_net, channels_last])
def test_what_is_read_from_one_model_and_written_to_another_makes_them_equal(build):
    torch.manual_seed(0)
    first, second = build(), build()
    x = torch.randn(
        6, *(tiny.IMAGE if isinstance(first[0] if hasattr(first, "__getitem__") else 0, nn.Conv2d) else (4,))
    )
    first(x)  # moves BatchNorm's statistics away from their start
    write(second, read(first))
    for name, value in first.state_dict().items():
        if value.is_floating_point():
            assert torch.equal(value, second.state_dict()[name]), name
    first.eval(), second.eval()
    assert torch.equal(first(x), second(x))


def test_a_channels_last_model_gives_the_same_vector_as_its_ordinary_twin():
    torch.manual_seed(1)
    plain = tiny.image_net()
    other = tiny.image_net()
    other.load_state_dict(plain.state_dict())
    other = other.to(memory_format=torch.channels_last)
    assert not other[0].weight.is_contiguous() or other[0].weight.shape[1] == 1
    assert torch.equal(read(plain).vector, read(other).vector)
    wide, last = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)
    last.load_state_dict(wide.state_dict())
    last = last.to(memory_format=torch.channels_last)
    assert not last.weight.is_contiguous()
    assert torch.equal(read(wide).vector, read(last).vector)


def test_buffers_are_marked_and_come_last_and_integer_counters_stay_at_home():
    layout = Layout.of(tiny.image_net())
    assert layout.buffers == ("1.running_mean", "1.running_var")
    assert [e.buffer for e in layout.entries] == sorted(e.buffer for e in layout.entries)
    assert not any("num_batches_tracked" in e.name for e in layout.entries)


def test_a_negative_running_variance_is_clamped_and_nothing_else_is():
    model = tiny.image_net()
    before = read(model)
    write(model, before.like(torch.full_like(before.vector, -1.0)))
    state = model.state_dict()
    assert torch.equal(state["1.running_var"], torch.zeros(4))
    assert torch.equal(state["1.running_mean"], -torch.ones(4))
    assert torch.equal(state["0.weight"], -torch.ones_like(state["0.weight"]))


def test_reading_copies():
    model = tiny.linear()
    weights = read(model)
    kept = weights.vector.clone()
    with torch.no_grad():
        model.weight.add_(1)
    assert torch.equal(weights.vector, kept)


names = st.lists(st.text("abcdef.", min_size=1, max_size=4), unique=True, min_size=1, max_size=6)
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def weights(draw):
    entries = tuple(Entry(n, draw(shapes), draw(st.booleans())) for n in draw(names))
    layout = Layout(entries)
    return Weights(layout, torch.arange(layout.size, dtype=torch.float32))


@given(weights(), st.sets(st.sampled_from("abcdef.")))
def test_a_part_and_the_rest_put_together_and_arranged_are_the_whole(whole, letters):
    def keep(name):
        return name[0] in letters

    part, rest = whole.only(keep), whole.only(lambda n: not keep(n))
    assert all(keep(e.name) for e in part.layout.entries)
    again = (part | rest).arranged(whole.layout)
    assert again.layout == whole.layout
    assert torch.equal(again.vector, whole.vector)
    for entry, values in part.layers():
        assert torch.equal(values, whole[entry.name])
        assert values.shape == entry.shape


@given(weights())
def test_arithmetic_is_that_of_vectors(w):
    v = w.vector
    assert torch.equal((w + w).vector, v + v)
    assert torch.equal((w - w).vector, v - v)
    assert torch.equal((2.5 * w).vector, (w * 2.5).vector)
    assert w.norm() == pytest.approx(float(v.double().norm()), rel=1e-6)
    assert w.only(lambda n: True) is w
    assert w.only(lambda n: False).vector.shape == (0,)


def test_what_does_not_fit_is_refused():
    layout = Layout((Entry("a", (2,)),))
    with pytest.raises(ValueError, match="float64"):
        Weights(layout, torch.zeros(2, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"\(3,\)"):
        Weights(layout, torch.zeros(3))
    with pytest.raises(ValueError, match="share a name"):
        Layout((Entry("a", ()), Entry("a", (2,))))
    one = Weights.zeros(layout)
    with pytest.raises(ValueError, match="different layouts"):
        one + Weights.zeros(Layout((Entry("b", (2,)),)))
    with pytest.raises(ValueError, match="share a name"):
        one | one
