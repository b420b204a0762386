"""A server that cheats: the block's algebra, what it takes in one step and many, what refuses and what defeats it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import tiny
from leakline.attacks import Imprint
from leakline.attacks.imprint.block import WEIGHT, Altered, Block, insert, ruler_of
from leakline.attacks.imprint.recover import recover
from leakline.bench.training import Plan
from leakline.data.base import Client, Task
from leakline.data.phantoms import Phantoms
from leakline.defences import DpSgd, FedPer, GaussianRelease, HideLayers, LdpSgd, PinnedModel
from leakline.defences.pinned_model import architecture_of, weights_of
from leakline.errors import StudyError
from leakline.federation import Federation, initial_weights
from leakline.messages import Order
from leakline.models.small import SmallCNN
from leakline.privacy import Seat
from leakline.report.page.summary import summary
from leakline.report.page.words import glances
from leakline.results import read
from leakline.study.lab import Lab, examine
from leakline.study.run import run_study
from leakline.study.spec import parse
from leakline.study.store import Store
from leakline.study.train import train_run

SIDE = 32
IMAGES = Phantoms(examples=160, size=SIDE, seed=3).load().train


def hospitals(sizes=(16,), norm="batch", **changes) -> Federation:
    """Clients with some of the phantoms each; the server has eighty others."""
    clients, at = [], 80
    for i, size in enumerate(sizes):
        clients.append(Client(f"hospital-{i}", IMAGES.take(range(at, at + size))))
        at += size
    task = Task(tuple(clients), None, IMAGES.take(range(80)), ("0", "1", "2", "3"))
    model = SmallCNN((8,), 16, "relu", norm, "average")
    base = Federation(task, model, Plan(batch=0, learning_rate=0.05), rounds=1, noise="seeded")
    return base.but(**changes)


def met(tmp_path, federation: Federation, **settings):
    attack, store = Imprint(**settings), Store(tmp_path)
    run = train_run(store, federation, workers=1, keep=attack.wants(federation))
    return examine(attack, Lab(federation, store, run, 1))


def whole(readings, measure: str):
    (reading,) = [r for r in readings if r.measure == measure and r.client is None]
    return reading


# the block


def test_units_answer_to_their_own_bin_only_and_the_mark_stays_faint():
    images = IMAGES.inputs(slice(0, 80))
    ruler = ruler_of(images, 2, 50)
    block = Block(images.shape[1:], 100, 0.01)
    with torch.no_grad():
        widths = ruler.edges.diff(dim=1)
        rows = (ruler.directions[:, None] / widths[..., None]).flatten(0, 1)
        block.dense.weight.copy_(torch.cat([rows, rows.new_zeros(100, 2)], 1))
        block.dense.bias.copy_((-ruler.edges[:, :-1] / widths).flatten())
    passed = block(images)
    assert (passed - images).abs().max() <= 2 * 0.01 + 1e-6  # at most the pattern, once for each set
    passed.mul(torch.randn(passed.shape)).sum().backward()
    measured = images.flatten(1).double() @ ruler.directions.T
    for s in range(2):
        places = torch.bucketize(measured[:, s].contiguous(), ruler.edges[s])
        expected = {int(p) - 1 for p in places if 0 < p <= 50}
        moved = set(torch.nonzero(block.dense.weight.grad[50 * s : 50 * s + 50].norm(dim=1))[:, 0].tolist())
        assert len(moved ^ expected) <= 1  # an image on an edge may fall to either side in float32


def test_bins_share_the_images_out():
    images = IMAGES.inputs(slice(0, 80))
    ruler = ruler_of(images, 3, 20)
    measured = images.flatten(1).double() @ ruler.directions.T
    assert (ruler.edges.diff(dim=1) > 0).all()
    inside = (measured > ruler.edges[:, 0]) & (measured < ruler.edges[:, -1])
    assert inside.double().mean() > 0.95


@pytest.mark.parametrize("sequential", [True, False])
def test_a_network_with_the_block_keeps_its_names_and_works_as_before_where_the_mark_is_zero(sequential):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(16, 3)

        def forward(self, x):
            return self.head(x.flatten(1))

    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)) if sequential else Net()
    names = list(network.state_dict())
    x = torch.rand(5, 1, 4, 4)
    before = network(x)
    altered = insert(network, Block((1, 4, 4), 6, 0.0))
    assert list(altered.state_dict()) == [WEIGHT, "imprint.dense.bias", *names]
    assert torch.allclose(altered(x), before)


# reading images off


def sums(count: int, sets: int, bins: int, seed: int = 0):
    """Rows as a step would leave them, by the equation alone; the images behind them."""
    images = torch.rand(count, 40, generator=torch.Generator().manual_seed(seed)).double()
    ruler = ruler_of(images.float(), sets, bins)
    weight = torch.randn(count, generator=torch.Generator().manual_seed(seed + 1)).double()
    rows = torch.zeros(sets * bins, 42, dtype=torch.float64)
    for image, g in zip(images, weight, strict=True):
        seen = torch.cat([image, image.square().mean()[None], torch.ones(1)])
        for s in range(sets):
            k = int(torch.bucketize(image @ ruler.directions[s], ruler.edges[s])) - 1
            if 0 <= k < bins:
                rows[s * bins + k] += (-1) ** (s * bins + k) * g * seen
    return images, rows, ruler


@pytest.mark.parametrize(("count", "bins"), [(20, 10), (60, 60), (60, 40)])
def test_planted_sums_are_taken_apart_exactly(count, bins):
    """Up to two images a bin: with three sets, peeling takes all while there are fewer images than 0.8 of all bins."""
    images, rows, ruler = sums(count, 3, bins)
    found = recover(rows, ruler, count)
    gaps = (found.images[: found.certain, None] - images.float()).norm(dim=2) / images.float().norm(dim=1)
    assert found.certain >= 0.9 * count
    assert (gaps.min(1).values < 1e-3).all()  # what is called certain is right


def test_noise_is_never_called_certain():
    _, rows, ruler = sums(30, 3, 60)
    noise = torch.randn(rows.shape, generator=torch.Generator().manual_seed(5))
    found = recover(noise, ruler, 30)
    assert found.certain == 0
    assert len(found.images) <= 30


def test_nothing_changed_gives_nothing():
    _, rows, ruler = sums(30, 3, 60)
    assert len(recover(torch.zeros_like(rows), ruler, 30).images) == 0


# in a federation


def test_one_step_gives_a_whole_batch_away(tmp_path):
    readings = met(tmp_path, hospitals((40,)))
    taken = whole(readings, "images-recovered")
    assert taken.value >= 0.9
    assert taken.chance <= 0.1
    assert taken.n == 40
    assert "imprint" in taken.note
    assert "pinned-model" in taken.note
    assert whole(readings, "ssim").value > 0.95
    assert whole(readings, "iip-exact").value >= 0.9


@pytest.mark.parametrize(
    "plan",
    [
        Plan(epochs=1, batch=4, learning_rate=0.05),
        Plan(epochs=3, batch=8, learning_rate=0.02, momentum=0.5),
        Plan(epochs=1, batch=8, learning_rate=0.05, weight_decay=0.01),
    ],
    ids=["many steps", "epochs with momentum", "weight decay"],
)
def test_many_steps_give_most_away(tmp_path, plan):
    assert whole(met(tmp_path, hospitals((40,), plan=plan)), "images-recovered").value >= 0.6


def test_the_sum_of_all_clients_gives_most_away_under_secure_aggregation(tmp_path):
    federation = hospitals((16, 24, 16), secure_aggregation="assumed")
    readings = met(tmp_path, federation)
    assert {r.client for r in readings} == {None, "everybody"}
    assert whole(readings, "images-recovered").value >= 0.8
    assert whole(readings, "images-recovered").n == 56


def test_each_client_is_read_by_itself_where_single_updates_are_seen(tmp_path):
    readings = met(tmp_path, hospitals((12, 16)))
    each = [r for r in readings if r.measure == "images-recovered" and r.client]
    assert [(r.client, r.n) for r in each] == [("hospital-0", 12), ("hospital-1", 16)]
    assert all(r.value >= 0.9 for r in each)


@pytest.mark.parametrize(
    "defence",
    [DpSgd(noise_multiplier=1.0, clip=1.0), GaussianRelease(noise_multiplier=1.0, clip=1.0), LdpSgd(epsilon=8.0)],
    ids=["dp-sgd", "gaussian-release", "ldp-sgd"],
)
def test_promises_against_the_server_hold_against_one_that_cheats(tmp_path, defence):
    readings = met(tmp_path, hospitals((16,), norm="none", defences=(defence,)))
    taken = whole(readings, "images-recovered")
    assert taken.value == 0.0
    assert "promise against the server holds" in taken.note
    likeness = whole(readings, "ssim")
    assert likeness.value <= likeness.chance  # not even as like as the mean of public images
    again = whole(readings, "iip-exact")
    assert again.chance == pytest.approx(1 - (1 - 1 / 96) ** 16)  # sixteen guesses among 96 images
    assert again.low <= again.chance


def test_a_clip_without_noise_does_not(tmp_path):
    federation = hospitals((16,), defences=(GaussianRelease(noise_multiplier=0.0, clip=1e-3),))
    assert whole(met(tmp_path, federation), "images-recovered").value >= 0.5


def test_clients_that_pinned_their_model_refuse_the_altered_one(tmp_path):
    readings = met(tmp_path, hospitals((16, 16), defences=(PinnedModel(),)))
    taken = whole(readings, "images-recovered")
    assert taken.value == 0.0
    assert "refused" in taken.note
    assert "architecture" in taken.note


def test_a_pinned_model_trains_as_without_where_the_server_is_honest():
    plain, pinned = (tiny.run(tiny.federation(defences=d)) for d in ((), (PinnedModel(),)))
    assert torch.equal(plain[-1].result.vector, pinned[-1].result.vector)


def test_without_an_agreed_print_the_first_model_is_the_agreed_one():
    federation = tiny.federation(defences=(PinnedModel(),))
    sent = initial_weights(federation)
    memory: dict = {}

    def offer(weights, index):
        federation.stack.accept(Order("a", index, weights), federation.turns_of("a", index, memory))

    offer(sent, 0)
    offer(sent * 2.0, 1)  # other weights in the same architecture pass after round 0
    with pytest.raises(Exception, match="architecture"):
        offer(sent.only(lambda name: name != "bias"), 2)


def test_first_weights_can_be_agreed_on_too():
    federation = tiny.federation()
    sent = initial_weights(federation)
    agreed = tiny.federation(defences=(PinnedModel(architecture_of(sent.layout), weights_of(sent)),))
    assert len(tiny.run(agreed)[0].cohort) == 3
    with pytest.raises(Exception, match="first weights"):
        agreed.stack.accept(Order("a", 0, sent * 1.5), agreed.turns_of("a", 0, {}))


STUDY = """
name = "cheat"
noise = "seeded"
model = { use = "small-cnn", channels = [8], norm = "batch" }
training = { rounds = 1, batch = 8, learning_rate = 0.02 }
attacks = ["imprint", { name = "later", use = "imprint", start = "final", clients = ["client-1"] }]

[data]
use = "phantoms"
examples = 120
size = 32
keep_groups = false
clients = 2
server_validation = 0.4

[defences]
none = []
pinned = [{ use = "pinned-model" }]
"""


def test_it_works_from_a_study_file_with_the_first_and_the_finished_model(tmp_path):
    outcomes = list(run_study(parse(STUDY), tmp_path, workers=1))
    assert [outcome.error for outcome in outcomes] == [""] * 2
    taken: dict[str, dict[str, float]] = {}
    for setting in read(tmp_path).settings:
        shares = {leak.by: leak.estimate.mean for leak in setting.leaks if leak.measure == "images-recovered"}
        taken[setting.defence] = shares
    assert taken["none"]["imprint"] >= 0.7
    assert taken["none"]["later"] >= 0.5
    assert taken["pinned"] == {"imprint": 0.0, "later": 0.0}
    plain, pinned = (" ".join(glance.attack) for glance in glances(read(tmp_path)))
    assert "A server that alters the model it sends" in plain
    assert "pinned-model" in plain
    assert "found again" in plain
    assert "takes nothing" in pinned
    assert "by a server that alters the model" in summary(read(tmp_path)).lines[0].attack.text


# bad input


def test_what_it_cannot_be_put_into_is_refused_before_training():
    attack = Imprint()
    with pytest.raises(StudyError, match="adam"):
        attack.check(hospitals(plan=Plan(optimiser="adam")))
    with pytest.raises(StudyError, match="no client"):
        Imprint(clients=("nobody",)).check(hospitals())
    with pytest.raises(StudyError, match="shape"):
        attack.check(tiny.federation())
    with pytest.raises(StudyError, match="set bins to"):
        Imprint(bins=10**7).check(hospitals())
    bare = hospitals()
    with pytest.raises(StudyError, match="public images"):
        attack.check(replace(bare, task=replace(bare.task, validation=None)))
    with pytest.raises(StudyError, match="at the clients"):
        attack.check(hospitals(defences=(HideLayers(first=1),)))
    with pytest.raises(ValueError, match="sets"):
        Imprint(sets=1)

    class TwoInputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(SIDE * SIDE, 4)

        def forward(self, x, y):
            return self.head(x.flatten(1)) + y

    with pytest.raises(StudyError, match="one image tensor"):
        attack.check(hospitals(model=TwoInputs))


def test_personal_layers_do_not_hide_from_it(tmp_path):
    assert whole(met(tmp_path, hospitals((16,), defences=(FedPer(last=1),))), "images-recovered").value >= 0.9


def test_its_seat_is_a_server_that_cheats():
    assert Imprint.seat is Seat.MALICIOUS_SERVER
    assert Altered(lambda: nn.Flatten(), 4, 0.1).build((1, 2, 2), 2, "classification")(
        torch.rand(1, 1, 2, 2)
    ).shape == (1, 4)
