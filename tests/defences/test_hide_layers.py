"""Layers that the server is not shown."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tiny
from leakline.defences import FedBN, FedPer, HideLayers
from leakline.errors import StackError
from leakline.privacy import NoClaim


def names(defence: HideLayers, model=tiny.image_net) -> set[str]:
    shape = tiny.IMAGE if model is tiny.image_net else (tiny.FEATURES,)
    return set(tiny.federation(defences=(defence,), model=model, task=tiny.task((8, 8), shape)).private)


def test_layers_by_place_by_name_and_by_kind():
    assert names(HideLayers(first=1)) == {"0.weight", "0.bias"}
    assert names(HideLayers(last=1)) == {"5.weight", "5.bias"}
    assert names(HideLayers(["5"])) == {"5.weight", "5.bias"}
    assert names(HideLayers(("0.weight",))) == {"0.weight"}
    normal = {"1.weight", "1.bias", "1.running_mean", "1.running_var"}
    assert names(HideLayers(("batch-norm",))) == normal
    assert names(HideLayers("batch-norm")) == normal
    assert names(HideLayers(("batch-norm", "0*"))) == normal | {"0.weight", "0.bias"}
    assert names(HideLayers(("running*",)), _named) == {"running"}


class _Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.running = nn.Parameter(torch.zeros(3))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(x) + self.running


def _named() -> nn.Module:
    return _Named()


def test_the_server_sees_neither_state_nor_change_of_a_hidden_layer():
    fed = tiny.federation(defences=(HideLayers(first=1),), model=tiny.perceptron)
    for round_ in tiny.run(fed):
        for seen in (round_.sent, round_.result, *(u.delta for u in round_.updates)):
            assert {e.name for e in seen.layout.entries} == {"2.weight", "2.bias"}


def test_what_is_trained_is_what_fedper_and_fedbn_train():
    def last(*defences, **changes) -> torch.Tensor:
        return tiny.run(tiny.federation(defences=defences, **changes))[-1].result.vector

    images = {"model": tiny.image_net, "task": tiny.task((8, 8), tiny.IMAGE)}
    assert torch.equal(last(HideLayers(last=1), model=tiny.perceptron), last(FedPer(last=1), model=tiny.perceptron))
    assert torch.equal(last(HideLayers("batch-norm"), **images), last(FedBN(), **images))


def test_nothing_is_promised():
    fed = tiny.federation(defences=(HideLayers(first=1),), model=tiny.perceptron)
    claim = fed.defences[0].claim(fed)
    assert isinstance(claim, NoClaim)
    assert claim.reason.startswith("25 of 43 values are hidden")


def test_wrong_choices_are_refused():
    for wrong in ({}, {"first": 1, "last": 1}, {"layers": ("0",), "first": 1}, {"first": -1}):
        with pytest.raises(ValueError, match="give one of"):
            HideLayers(**wrong)
    with pytest.raises(StackError, match="nothing would be learned"):
        names(HideLayers(first=2), tiny.perceptron)
    with pytest.raises(StackError, match="'conv9' matches no layer"):
        names(HideLayers(("conv9",)))
    with pytest.raises(StackError, match="matches every layer"):
        names(HideLayers(("*",)))
    with pytest.raises(StackError, match="has none"):
        names(HideLayers("batch-norm"), tiny.perceptron)
