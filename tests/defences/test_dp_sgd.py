"""DP-SGD through a whole client's turn: what leaves, what is promised, and what an audit finds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import tiny
from leakline.attacks.audit import audit
from leakline.bench.training import Plan
from leakline.data.base import Client
from leakline.defences import Defence, DpSgd, FedPer, GlobalDP, hooks_of
from leakline.errors import ClientLost, StackError
from leakline.federation import federate
from leakline.messages import Order
from leakline.privacy import Adjacency, Claim, NoClaim, Seat, Unit, account
from leakline.randomness import SeededNoise, Stream
from leakline.runtimes.client import answer
from leakline.weights import read


def turn_of(defence: DpSgd, index: int = 0, **changes):
    """The update of client a, alone."""
    fed = tiny.federation(**({"defences": (defence,), "model": tiny.perceptron} | changes))
    bench = fed.bench()
    (update,) = answer(fed, bench, Order("a", index, bench.initial.only(fed.shares)), {})
    return fed, update


def by_hand(fed, defence: DpSgd, batches, index: int = 0) -> torch.Tensor:
    """Algorithm 1 in plain words: loop over examples, clip, add noise by the addresses it is documented to have."""
    bench = fed.bench()
    model, data, parameters = bench.model.train(), fed.task.clients[0].train, list(bench.model.parameters())
    before = read(model).vector.clone()
    turn = fed.turns_of("a", index, {})[0]
    for step, rows in enumerate(batches):
        total = [torch.zeros_like(p) for p in parameters]
        for i in rows.tolist():
            found = torch.autograd.grad(functional.cross_entropy(model(data.x[[i]]), data.y[[i]]), parameters)
            length = math.sqrt(sum(float(g.double().pow(2).sum()) for g in found))
            for t, g in zip(total, found, strict=True):
                t += g * min(1.0, defence.clip / length)
        noise = SeededNoise(turn.stream(f"step {step}"))
        size = defence.rate * len(data) if defence.rate else len(rows)
        with torch.no_grad():
            for p, t in zip(parameters, total, strict=True):
                drawn = noise.normal(t.numel()).float().view(t.shape) * defence.noise_multiplier * defence.clip
                p -= fed.plan.learning_rate * (t + drawn) / size
    return read(model).vector - before


@pytest.mark.parametrize("clip", [0.1, 1.0, 100.0])
@pytest.mark.parametrize("z", [0.0, 1.3])
def test_a_turn_is_algorithm_1(clip, z):
    defence = DpSgd(z, clip)
    fed, update = turn_of(defence, plan=Plan(2, 5, 0.1))
    batches = fed.plan.batches(12, fed_stream(fed))
    assert torch.allclose(update.delta.vector, by_hand(fed, defence, batches), atol=1e-6)


def fed_stream(fed):
    return Stream(fed.seed, 0, "a", "train")


def test_poisson_batches_divide_by_the_expected_size():
    defence = DpSgd(0.7, 0.5, rate=0.25)
    fed, update = turn_of(defence, plan=Plan(2, 5, 0.1))
    batches = list(defence.batches(12, fed.plan, fed.turns_of("a", 0, {})[0]))
    assert len(batches) == 8  # two epochs of 1/q steps
    assert torch.allclose(update.delta.vector, by_hand(fed, defence, batches), atol=1e-6)
    assert update.steps == 8


def test_poisson_batches_take_each_record_independently_at_the_rate():
    defence = DpSgd(1.0, 1.0, rate=0.1)
    fed = tiny.federation(defences=(defence,))
    drawn = defence.batches(50, Plan(epochs=80), fed.turns_of("a", 0, {})[0])
    member = torch.zeros(800, 50)
    for step, rows in enumerate(drawn):
        member[step, rows] = 1
    # 40,000 draws: 4.5 standard errors of the rate, and of the covariance of two records (false alarm < 1e-5 each)
    assert float(member.mean()) == pytest.approx(0.1, abs=4.5 * math.sqrt(0.09 / 40_000))
    sizes = member.sum(1)
    assert float(sizes.var()) == pytest.approx(50 * 0.09, abs=4.5 * 50 * 0.09 * math.sqrt(2 / 800) * 1.2)


def test_an_empty_batch_still_gets_its_noise():
    defence = DpSgd(1.0, 1.0, rate=1e-9)
    _, update = turn_of(defence, plan=Plan(1, 4, 1e-9, max_steps=3))
    assert update.steps == 3
    assert update.delta.vector.abs().min() > 0


def test_every_step_round_and_client_has_noise_of_its_own():
    defence, batch = DpSgd(1.0, 1e-6), (torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))
    fed = tiny.federation(defences=(defence,), task=tiny.task((4, 4)), plan=Plan(1, 0, 1.0))
    bench = fed.bench()
    turn = fed.turns_of("a", 0, {})[0]
    seen = []
    for where in (turn, turn, fed.turns_of("a", 1, {})[0], fed.turns_of("b", 0, {})[0], replace(turn, party="a/1")):
        defence.gradient(bench.model, *batch, functional.cross_entropy, where)
        seen.append(torch.cat([p.grad.flatten() for p in bench.model.parameters()]))
    for i, one in enumerate(seen):
        for other in seen[:i]:
            assert torch.linalg.vector_norm(one - other) > 0.1 * torch.linalg.vector_norm(one)
    again = fed.turns_of("a", 0, {})[0]  # the same turn again draws the same
    defence.gradient(bench.model, *batch, functional.cross_entropy, again)
    assert torch.equal(seen[0], torch.cat([p.grad.flatten() for p in bench.model.parameters()]))


def test_secret_noise_is_the_default_and_never_the_same():
    defence = DpSgd(1.0, 1.0)
    deltas = [turn_of(defence, noise="secret")[1].delta.vector for _ in range(2)]
    assert not torch.equal(*deltas)
    sampled = DpSgd(1.0, 1.0, rate=0.5)
    fed = tiny.federation(defences=(sampled,), noise="secret")
    one, other = (list(sampled.batches(60, Plan(), fed.turns_of("a", 0, {})[0])) for _ in range(2))
    assert any(len(a) != len(b) or not torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_noise_has_the_promised_size():
    z, clip = 2.0, 0.3
    fed = tiny.federation(defences=(DpSgd(z, clip),), model=lambda: nn.Linear(4, 2000), plan=Plan(1, 0, 1.0))
    bench = fed.bench()
    (update,) = answer(fed, bench, Order("a", 0, bench.initial), {})
    # 10,000 values; the clipped sum adds at most (12 clip)^2 of energy. 5 standard errors of a variance: < 1e-6.
    energy = float(update.delta.vector.double().pow(2).sum()) / (z * clip / 12) ** 2
    assert 10_000 - 5 * math.sqrt(2 * 10_000) < energy < 10_000 + 5 * math.sqrt(2 * 10_000) + (12 / z) ** 2


def test_without_noise_and_clip_it_is_plain_training_to_rounding():
    _, update = turn_of(DpSgd(0.0, 1e9), plan=Plan(3, 5, 0.1, momentum=0.9))
    fed = tiny.federation(model=tiny.perceptron, plan=Plan(3, 5, 0.1, momentum=0.9))
    bench = fed.bench()
    (plain,) = answer(fed, bench, Order("a", 0, bench.initial), {})
    assert torch.allclose(update.delta.vector, plain.delta.vector, atol=1e-6)


def group_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, 3)
    )


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_images_in_channels_last_with_adam(optimiser):
    changes = {"model": group_net, "task": tiny.task((8, 8), tiny.IMAGE), "plan": Plan(2, 4, 0.01, optimiser)}
    _, update = turn_of(DpSgd(0.0, 1e9), **changes)
    fed = tiny.federation(**changes)
    bench = fed.bench()
    (plain,) = answer(fed, bench, Order("a", 0, bench.initial), {})
    assert torch.allclose(update.delta.vector, plain.delta.vector, atol=1e-5)


def test_it_trains_whatever_the_number_of_workers():
    fed = tiny.federation(defences=(DpSgd(1.0, 0.5, rate=0.25),), model=tiny.perceptron)
    one, two = (tiny.run(fed, workers)[-1].result.vector for workers in (1, 2))
    assert torch.equal(one, two)


def test_personal_layers_and_a_server_s_noise_go_with_it():
    fed = tiny.federation(defences=(DpSgd(1.0, 0.5), FedPer(last=1), GlobalDP(1.0, 1.0)), model=tiny.perceptron)
    assert len(tiny.run(fed)) == 2
    assert {type(c) for c in fed.claims().values()} >= {Claim, NoClaim}


# --- what leaves -----------------------------------------------------------------------------------------------------


class Counting(nn.Module):
    """Keeps a running mean of its inputs in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen.lerp_(x.detach().mean(0), 0.1)
        return self.head(x)


def test_neither_losses_nor_buffers_leave():
    fed, update = turn_of(DpSgd(1.0, 1.0), model=Counting)
    assert not update.metrics
    assert fed.wire.buffers == ("seen",)
    assert float(update.delta["seen"].abs().max()) == 0
    _, plain = turn_of(Plain(), model=Counting)
    assert float(plain.delta["seen"].abs().max()) > 0


@dataclass(frozen=True)
class Plain(Defence):
    """Nothing."""

    def claim(self, federation, facts=()):
        return NoClaim("nothing is done")


# --- the promise -----------------------------------------------------------------------------------------------------


def claim_of(defence: DpSgd, **changes):
    return defence.claim(tiny.federation(defences=(defence,), **changes))


def test_shuffled_batches_claim_one_release_an_epoch_and_no_amplification():
    claim = claim_of(DpSgd(2.0, 0.1), rounds=5, plan=Plan(epochs=3, batch=4))
    assert isinstance(claim, Claim)
    assert (claim.unit, claim.adjacency, claim.observer) == (Unit.RECORD, Adjacency.ZERO_OUT, Seat.SERVER)
    assert account(claim, 1e-5).mu == pytest.approx(math.sqrt(15) / 2)
    assert any("client" in text for text in claim.outside)
    # not even ten times as large a batch or client changes it: a record is in one batch of an epoch
    same = claim_of(DpSgd(2.0, 0.1), rounds=5, plan=Plan(epochs=3, batch=1), task=tiny.task((40, 3)))
    assert account(same, 1e-5).mu == account(claim, 1e-5).mu


@pytest.mark.parametrize(
    ("sizes", "plan", "passes"),
    [
        ((12, 12), Plan(3, 4, max_steps=1), 1),
        ((12, 12), Plan(3, 4, max_steps=4), 2),  # 3 steps an epoch: the fourth begins the second
        ((12, 4), Plan(3, 4, max_steps=2), 2),  # the small client is through its data after one step
        ((12, 4), Plan(3, 4, max_steps=99), 3),
    ],
)
def test_a_turn_that_ends_early_counts_the_epochs_begun_at_the_client_that_begins_most(sizes, plan, passes):
    claim = claim_of(DpSgd(1.0, 1.0), rounds=1, plan=plan, task=tiny.task(sizes))
    assert claim.releases == passes
    worst = 0
    for i, n in enumerate(sizes):
        fed = tiny.federation(plan=plan, task=tiny.task(sizes))
        counts = torch.zeros(n)
        for rows in plan.batches(n, replace(fed_stream(fed), party=str(i))):
            counts[rows] += 1
        worst = max(worst, int(counts.max()))
    assert worst <= passes


def test_poisson_batches_are_amplified():
    claim = claim_of(DpSgd(1.0, 0.1, rate=0.02), rounds=2, plan=Plan(epochs=1))
    (event,) = claim.events
    assert (event.mu, event.times, event.rate) == (1.0, 100, 0.02)
    assert any("secret" in text for text in claim.assumptions)
    found = account(claim, 1e-5)
    assert found.epsilon < account(claim_of(DpSgd(1.0, 0.1), rounds=2), 1e-5).epsilon
    # dp-accounting's RDP for DP-SGD with q = .02, z = 1, T = 100 is an upper bound on the exact figure, and close
    import dp_accounting

    rdp = dp_accounting.rdp.RdpAccountant()
    rdp.compose(dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(1.0)), 100)
    assert 0.5 * rdp.get_epsilon(1e-5) < found.epsilon <= rdp.get_epsilon(1e-5)


def test_nothing_is_promised_without_noise_or_with_batch_norm():
    assert "noise" in claim_of(DpSgd(0.0, 1.0)).reason
    changes = {"model": tiny.image_net, "task": tiny.task((8, 8), tiny.IMAGE)}
    refused = claim_of(DpSgd(1.0, 1.0), **changes)
    assert isinstance(refused, NoClaim)
    assert "layer 1 (BatchNorm2d)" in refused.reason
    fed = tiny.federation(defences=(DpSgd(1.0, 1.0),), **changes)
    with pytest.raises(StackError, match=r"layer 1 \(BatchNorm2d\)[\s\S]*GroupNorm"):
        DpSgd(1.0, 1.0).check(fed)
    with pytest.raises(ClientLost, match=r"layer 1 \(BatchNorm2d\)"):  # and without a check no step is taken
        next(federate(fed))


def one_label_each() -> tuple[Client, ...]:
    """Clients of 6 records, all of one class."""
    pool = tiny.blobs(60)
    return tuple(Client(f"holds {c}", pool.take((pool.labels() == c).nonzero()[0][:6])) for c in range(3))


class Centred(nn.Module):
    """Takes the batch's mean away, in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x - x.mean(0) if self.training else x)


WEIGHTED = "networks_zoo:class_weights"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": Centred}, "output depends on the other examples"),
        ({"loss": WEIGHTED}, "loss is not a mean"),
        # each client holds one label only: its own batches would not show what the loss does with the others'
        ({"loss": WEIGHTED, "task": tiny.task(clients=one_label_each())}, "loss is not a mean"),
    ],
)
def test_coupled_records_are_refused_on_the_task_s_own_data(changes, reason):
    defence = DpSgd(1.0, 1.0)
    fed = tiny.federation(defences=(defence,), **changes)
    with pytest.raises(StackError, match=reason):
        defence.check(fed)
    refused = defence.claim(fed)
    assert isinstance(refused, NoClaim)
    assert reason in refused.reason
    assert refused.instead


def test_a_check_leaves_the_run_as_it_would_have_been():
    fed = tiny.federation(defences=(DpSgd(1.0, 0.5),), model=group_net, task=tiny.task((8, 8), tiny.IMAGE))
    before = tiny.run(fed)[-1].result.vector
    fed.defences[0].check(fed)
    assert torch.equal(before, tiny.run(fed)[-1].result.vector)


@pytest.mark.parametrize("wrong", [(-1.0, 1.0, 0.0), (1.0, 0.0, 0.0), (1.0, 1.0, 1.5), (float("nan"), 1.0, 0.0)])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=r"must"):
        DpSgd(*wrong)
    assert hooks_of(DpSgd) == ("batches", "gradient", "release")


# --- the audit -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Short(DpSgd):
    """Half the noise that is claimed."""

    def gradient(self, model, x, y, loss, turn):
        return DpSgd(self.noise_multiplier / 2, self.clip).gradient(model, x, y, loss, turn)


def test_an_audit_finds_what_is_promised_and_notices_half_the_noise():
    # 99 % confidence over all bounds of one audit; the seed is fixed
    honest = audit(DpSgd(0.5, 1.0), trials=6_000, noise="seeded", wide=False)
    (main, *_) = honest.findings
    assert main.question.unit.startswith("record")
    assert main.question.promised == pytest.approx(2.0)
    assert 1.3 < main.low <= 2.0
    assert not honest.broken
    assert audit(Short(0.5, 1.0), trials=6_000, noise="seeded", wide=False).broken


def test_a_sampled_stack_is_asked_about_a_batch_that_holds_the_record():
    # Canaries alone: attacks/test_audit_wide.py takes the long look at sound and broken stacks of this kind.
    found = audit(DpSgd(0.5, 1.0, rate=0.1), trials=4_000, noise="seeded", wide=False)
    assert found.findings[0].question.promised == pytest.approx(2.0)
    assert found.findings[0].low > 1.0
    assert not found.broken


def test_a_stack_without_noise_is_found_out():
    found = audit(DpSgd(0.0, 1.0), trials=6_000)
    assert any("deterministic" in f.question.trouble or f.low > 2 for f in found.findings)
