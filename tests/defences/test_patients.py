"""The patient as the unit of DP-SGD, by brute force: whole patients exchanged or removed; and versions of a record."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import tiny
from leakline.bench.training import Plan
from leakline.cards import formal_card
from leakline.data.base import Client, Data
from leakline.defences import DpSgd, Intermediaries
from leakline.errors import StackError
from leakline.mechanisms.augment import augmented
from leakline.mechanisms.units import Units
from leakline.messages import Order
from leakline.privacy import Adjacency, Claim, Gaussian, NoClaim, Unit, account, group
from leakline.runtimes.client import answer

SIZES = (1, 5, 2, 3, 1, 4)
"""Records of each patient."""


def data(seed=0, scale=1.0) -> Data:
    rng = np.random.default_rng(seed)
    groups = np.repeat(10 * np.arange(len(SIZES)), SIZES)
    order = rng.permutation(len(groups))
    x = torch.tensor(scale * rng.normal(size=(len(groups), tiny.FEATURES)), dtype=torch.float32)
    y = torch.tensor(rng.integers(0, tiny.CLASSES, len(groups)))
    return Data(x, y, torch.tensor(groups[order]))


def federation(defence, held: Data, **changes):
    others = tuple(Client(name, data(i)) for i, name in enumerate("bc", 5))
    task = tiny.task(clients=(Client("a", held), *others), group="patient")
    plan = Plan(epochs=1, batch=0, learning_rate=1.0)
    return tiny.federation(**({"task": task, "plan": plan, "defences": (defence,), "model": tiny.perceptron} | changes))


def released(defence, held: Data, **changes) -> torch.Tensor:
    fed = federation(defence, held, **changes)
    bench = fed.bench()
    (update,) = answer(fed, bench, Order("a", 0, bench.initial), {})
    return update.delta.vector


def exchanged(held: Data, patient: int, seed: int, scale: float) -> Data:
    """Other records, in value and in number, for one patient."""
    kept = held.groups != patient
    new = tiny.blobs(1 + seed % 4, seed)
    return Data(
        torch.cat([held.x[kept], scale * new.x]), torch.cat([held.y[kept], new.y]),
        torch.cat([held.groups[kept], torch.full((len(new),), patient)]),
    )  # fmt: skip


@pytest.mark.parametrize("contribution", ["mean", "one"])
def test_a_whole_patient_never_moves_a_release_by_more_than_is_claimed(contribution):
    """One step with the same noise in both worlds: C / B for one who comes or goes, 2 C / B for one exchanged."""
    clip, size, farthest = 0.7, 4.0, 0.0
    defence = DpSgd(1.0, clip, rate=1.0, unit="patient", contribution=contribution, planned=size)
    for scale in (0.01, 1.0, 300.0):
        held = data(1, scale)
        before = released(defence, held)
        for patient in held.groups.unique().tolist():
            gone = released(defence, held.take((held.groups != patient).nonzero()[:, 0]))
            if contribution == "mean":  # who is drawn for the others does not stay when one goes
                farthest = max(farthest, float((gone - before).norm()))
                assert (gone - before).norm() <= clip / size * (1 + 1e-4)
            for seed in range(3):
                other = released(defence, exchanged(held, patient, seed, scale))
                assert (other - before).norm() <= 2 * clip / size * (1 + 1e-4)
    if contribution == "mean":
        assert farthest > 0.99 * clip / size
        record = DpSgd(1.0, clip, rate=1.0, planned=size)
        held = data(1, 300.0)
        gone = held.take((held.groups != 10).nonzero()[:, 0])
        assert (released(record, gone) - released(record, held)).norm() > 1.5 * clip / size


def test_a_step_is_the_clipped_mean_of_each_patient():
    held, clip = data(2, 3.0), 0.5
    fed = federation(DpSgd(0.0, clip, unit="patient"), held)
    bench = fed.bench()
    total = torch.zeros(bench.initial.layout.size)
    for patient in held.groups.unique():
        rows = (held.groups == patient).nonzero()[:, 0]
        bench.model.zero_grad()
        bench.loss(bench.model(held.x[rows]), held.y[rows]).backward()
        mean = torch.cat([p.grad.flatten() for p in bench.model.parameters()])
        total += mean * min(1.0, clip / float(mean.norm()))
    assert torch.allclose(released(DpSgd(0.0, clip, unit="patient"), held), -total / len(SIZES), atol=1e-6)


def test_one_record_of_each_patient_is_drawn_evenly_and_anew():
    units = Units.of(data().groups)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([units.one_of(torch.arange(len(SIZES)), generator)[0] for _ in range(4000)])
    for patient, count in enumerate(SIZES):
        shares = torch.bincount(drawn[:, patient]).double() / len(drawn)
        assert (shares > 0).sum() == count
        # Five standard deviations of a binomial share: false alarms below 1e-5 for all of them together.
        assert (shares[shares > 0] - 1 / count).abs().max() < 5 * (0.25 / len(drawn)) ** 0.5 + 1e-9
    rows, of = units.all_of(torch.tensor([4, 1]))
    assert [int((of == i).sum()) for i in (0, 1)] == [SIZES[4], SIZES[1]]
    assert set(data().groups[rows[of == 1]].tolist()) == {10}


def test_patients_are_what_is_sampled_and_shuffled():
    held = data()
    fed = federation(DpSgd(1.0, 1.0, rate=0.5, unit="patient"), held)
    turns = fed.turns_of("a", 0, {}, groups=held.groups)
    together = []
    for _ in range(200):
        for rows in fed.stack.batches(len(held), fed.plan, turns):
            here = held.groups[rows].bincount(minlength=51)[::10]
            assert all(count in (0, size) for count, size in zip(here.tolist(), SIZES, strict=True))
            together.append(here > 0)
    assert fed.stack.defences[0].rate == 0.5
    shares = torch.stack(together).double().mean(0)
    assert (shares - 0.5).abs().max() < 1.0  # seeded draws repeat from turn to turn: whole patients is the point
    shuffled = federation(DpSgd(1.0, 1.0, unit="patient"), held, plan=Plan(batch=4))
    turns = shuffled.turns_of("a", 0, {}, groups=held.groups)
    parts = [held.groups[rows].unique() for rows in shuffled.stack.batches(len(held), shuffled.plan, turns)]
    assert [len(part) for part in parts] == [4, 2]
    assert len(torch.cat(parts).unique()) == len(SIZES)


def test_the_claim_is_the_patients():
    def claim(**settings) -> Claim:
        (found,) = federation(DpSgd(2.0, 1.0, unit="patient", **settings), data(), rounds=3).claims().values()
        assert isinstance(found, Claim)
        return found

    assert claim().unit is Unit.PATIENT
    assert claim().adjacency is Adjacency.ZERO_OUT
    assert claim().events == (Gaussian(0.5, times=3),)
    sampled = claim(rate=0.25, planned=2.0)
    assert sampled.adjacency is Adjacency.ADD_REMOVE
    assert sampled.events == (Gaussian(0.5, times=12, rate=0.25),)
    fed = federation(DpSgd(epsilon=3.0, clip=1.0, unit="patient"), data())
    assert account(next(iter(fed.claims().values())), 1e-5).epsilon == pytest.approx(3.0, rel=1e-3)


def test_epochs_are_counted_in_patients():
    """Six patients in batches of three: two steps are an epoch, so four steps are two passes of each patient."""
    plan = Plan(epochs=9, batch=3, max_steps=4)
    (claim,) = federation(DpSgd(1.0, 1.0, unit="patient"), data(), plan=plan, rounds=1).claims().values()
    assert claim.events == (Gaussian(1.0, times=2),)


def test_records_say_what_their_patients_are_promised():
    fed = federation(DpSgd(4.0, 1.0), data(), rounds=2)
    card = formal_card("x", fed, 1e-5)
    (claim,) = fed.claims().values()
    assert card.promises[0].most_records == 5
    assert card.promises[0].patient == account(group(claim, 5), 1e-5).epsilon > 4 * card.promises[0].epsilon
    assert any(key == "per patient" and "5 records" in text for key, text in card.rows())
    assert formal_card("x", federation(DpSgd(4.0, 1.0, unit="patient"), data()), 1e-5).promises[0].patient is None


def test_what_cannot_work_is_said_before_training():
    nameless = federation(DpSgd(1.0, 1.0, unit="patient"), replace(data(), groups=None))
    with pytest.raises(StackError, match="client a does not say which records are one patient's"):
        nameless.stack.check(nameless)
    assert isinstance(next(iter(nameless.claims().values())), NoClaim)
    split = (Intermediaries(1.0, 1.0, parts=2), DpSgd(1.0, 1.0, unit="patient"))
    assert "deals one patient's records" in federation(split[1], data(), defences=split).claims()["DpSgd"].reason
    flat = federation(DpSgd(1.0, 1.0, augment=2), data())
    with pytest.raises(StackError, match="images"):
        flat.stack.check(flat)
    for wrong in ({"unit": "hospital"}, {"contribution": "all"}, {"augment": 0}, {"planned": 3.0}, {"planned": -1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            DpSgd(1.0, 1.0, **wrong)


def test_versions_are_made_of_each_example_alone():
    x = torch.arange(2 * 3 * 16 * 16, dtype=torch.float32).view(2, 3, 16, 16)
    made = augmented(x, 4, torch.Generator().manual_seed(1))
    assert made.shape == (8, 3, 16, 16)
    assert torch.equal(made[::4], x)
    changed = x.clone()
    changed[1] = -7.0
    again = augmented(changed, 4, torch.Generator().manual_seed(1))
    assert torch.equal(again[:4], made[:4])
    assert not torch.equal(made[1], made[2])
    assert set(made[1].unique().tolist()) <= set(x[0].unique().tolist())
    signal = torch.randn(5, 2, 64)
    noisy = augmented(signal, 3, torch.Generator().manual_seed(2))
    assert noisy.shape == (15, 2, 64)
    still = torch.ones(1, 1, 64)
    assert torch.equal(augmented(still, 3, torch.Generator().manual_seed(3)), still.expand(3, 1, 64))
    with pytest.raises(ValueError, match="signals and images"):
        augmented(torch.ones(2, 4), 2, torch.Generator())


def test_averaging_versions_costs_no_privacy_and_moves_no_further():
    images = Data(torch.rand(6, 1, 8, 8), torch.arange(6) % 3)
    net = lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))  # noqa: E731
    plain, more = DpSgd(1.0, 0.3, rate=1.0, planned=5.0), DpSgd(1.0, 0.3, rate=1.0, planned=5.0, augment=4)
    task = tiny.task(clients=tuple(Client(n, images) for n in "abc"))
    claims = [federation(d, images, task=task, model=net).claims()["DpSgd"] for d in (plain, more)]
    assert claims[0].events == claims[1].events
    assert federation(more, images, task=task, model=net).stack.treatment.unknown
    loud = replace(images, x=torch.where(torch.arange(6).view(-1, 1, 1, 1) == 5, 100.0, images.x))
    moved = [released(more, held, model=net, task=tiny.task(clients=tuple(Client(n, held) for n in "abc")))
             for held in (images, loud)]  # fmt: skip
    assert 0.01 < (moved[0] - moved[1]).norm() <= 2 * 0.3 / 5 * (1 + 1e-4)
