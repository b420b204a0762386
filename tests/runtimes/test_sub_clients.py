"""Sub-clients of one client: trained together or one after another, the same update; and never mixed up."""

from __future__ import annotations

import pytest
import torch

import tiny
from leakline.defences import Intermediaries
from leakline.messages import Order
from leakline.runtimes.client import answer
from leakline.runtimes.local import LocalTransport
from leakline.strategies import MENU as STRATEGIES


@pytest.mark.parametrize("parts", [4, 6, 7, 20])
@pytest.mark.parametrize("images", [60, 63])
def test_a_vectorised_pass_and_a_loop_agree(parts, images):
    found = []
    for together in ("auto", "off"):
        fed = tiny.federation(
            task=tiny.task((images, 40)), defences=(Intermediaries(1.0, 1.0, parts=parts, smallest=1),),
            together=together, model=tiny.perceptron,
        )  # fmt: skip
        found.append(answer(fed, fed.bench(), Order("a", 0, fed.bench().initial, {"parts": float(parts)}), {}))
    assert [(u.part, u.examples, u.steps) for u in found[0]] == [(u.part, u.examples, u.steps) for u in found[1]]
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one.delta.vector, other.delta.vector, atol=1e-6)


def test_a_split_client_has_a_worker_of_its_own():
    fed = tiny.federation(
        task=tiny.task((20, 20, 20, 20)), defences=(Intermediaries(1.0, 1.0, parts=3),),
        strategy=STRATEGIES["fedavg"]("even"),
    )  # fmt: skip
    orders = [Order(c.name, 0, fed.bench().initial, {"parts": 3.0}) for c in fed.task.clients]
    with LocalTransport(fed, 2) as transport:
        assert [len(group) for group in transport._groups(orders)] == [1, 1, 1, 1]
        answers = list(transport.exchange(orders))
    assert [(u.client, u.part) for u in answers] == [(c, p) for c in "abcd" for p in range(3)]
