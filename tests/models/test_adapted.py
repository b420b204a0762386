"""A part of a network is trained: what is frozen is a public constant that moves, travels and counts nowhere."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import tiny
from leakline.bench.ragged import train_ragged
from leakline.bench.together import train_together
from leakline.bench.training import Job, Plan, train
from leakline.defences import MENU as DEFENCES
from leakline.errors import StackError, StudyError
from leakline.federation import federate, initial_weights
from leakline.mechanisms.per_example import clipped_sum, path_of
from leakline.models import MENU, Adapted, Lora, WeightsFile, resolve
from leakline.models.adapted import Adapter, FixedNorm, adapt, freeze, merged
from leakline.randomness import Stream
from leakline.study.check import check_study
from leakline.study.describe import describe
from leakline.study.run import run_study
from leakline.study.spec import parse
from leakline.utility import objective
from leakline.weights import Weights, constants, unmoved

torch.set_num_threads(1)
IMAGES = {"task": tiny.task((6, 6, 6), tiny.IMAGE), "model": tiny.image_net}
HEAD = Adapted(tiny.perceptron, train=("2*",))
BOTH = Adapted(tiny.perceptron, train=("*.bias",), lora=Lora(2, ("0",)))


def by_hand(fed, names):
    """FedAvg with SGD written out, gradients of all other parameters thrown away: the weights after the last round."""
    network = fed.bench().model
    state = {n: p.detach().clone() for n, p in network.named_parameters()}
    for index in range(fed.rounds):
        total, ends = sum(len(c.train) for c in fed.task.clients), []
        for client in fed.task.clients:
            weights = {n: v.clone().requires_grad_() for n, v in state.items()}
            for rows in fed.plan.batches(len(client.train), Stream(fed.seed, index, client.name, "train")):
                out = torch.func.functional_call(network, weights, (client.train.x[rows],))
                loss = nn.functional.cross_entropy(out, client.train.y[rows])
                slopes = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
                for (name, value), slope in zip(weights.items(), slopes, strict=True):
                    if name in names and slope is not None:
                        value.data -= fed.plan.learning_rate * slope
            ends.append((len(client.train) / total, weights))
        state = {n: sum(share * w[n].detach() for share, w in ends) for n in state}
    return state


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (HEAD, {"2.weight", "2.bias"}),
        (Adapted(tiny.perceptron, train=("*.bias",)), {"0.bias", "2.bias"}),
        (BOTH, {"0.base.bias", "2.bias", "0.down.weight", "0.up.weight"}),
        (Adapted(tiny.perceptron, lora=Lora(1)), {f"{i}.{part}.weight" for i in "02" for part in ("down", "up")}),
    ],
    ids=["head", "bias", "bias and lora", "lora"],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_weights_are_those_of_a_masked_run_by_hand(model, names, workers):
    fed = tiny.federation(model=model, together="off", task=tiny.task((12, 9, 14)), rounds=3)
    rounds = tiny.run(fed, workers)
    assert {e.name for e in fed.wire.entries} == names
    assert rounds[-1].result.vector.numel() == sum(dict(fed.bench().model.named_parameters())[n].numel() for n in names)
    hand = by_hand(fed, names)
    for entry, values in rounds[-1].result.layers():
        torch.testing.assert_close(values, hand[entry.name], rtol=1e-5, atol=1e-6)
    assert not rounds[0].still


@pytest.mark.parametrize("model", [HEAD, BOTH], ids=["head", "both"])
def test_grouped_clients_agree_with_single_ones(model):
    fed = tiny.federation(model=model)
    bench = fed.bench()
    for sizes, together in (((12, 12), train_together), ((12, 7), train_ragged)):
        jobs = [Job(bench.initial, tiny.blobs(n, i), Stream(0, 0, str(i), "train"), 0) for i, n in enumerate(sizes)]
        for single, grouped in zip(
            [train(bench, j, fed.plan) for j in jobs], together(bench, jobs, fed.plan), strict=True
        ):
            torch.testing.assert_close(single.change.vector, grouped.change.vector, rtol=1e-4, atol=1e-6)
    bench.check_constants()


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(6, 5), nn.Linear(6, 5, bias=False), nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2),
        nn.Conv2d(4, 6, 3, padding="same", dilation=2),
        nn.Conv2d(4, 8, (3, 1), padding_mode="circular", padding=1, groups=4),
        nn.Conv3d(2, 3, 2, bias=False),
    ],
    ids=repr,
)  # fmt: skip
def test_adapters_begin_as_nothing_and_merge_into_their_layer(layer):
    spatial = len(getattr(layer, "kernel_size", ()))
    x = torch.randn(3, layer.in_channels, *(7,) * spatial) if spatial else torch.randn(3, 6)
    wanted = layer(x)
    network = nn.Sequential(copy.deepcopy(layer))
    freeze(network, set())
    adapt(network, Lora(2))
    assert torch.equal(network(x), wanted)
    with torch.no_grad():
        network[0].up.weight.normal_()
    moved = network(x)
    assert (moved - wanted).abs().max() > 1e-3
    whole = merged(network)
    assert type(whole[0]) is type(layer)
    torch.testing.assert_close(whole(x), moved, rtol=1e-4, atol=1e-5)


def test_what_travels_has_the_size_that_it_should():
    whole = tiny.federation(model=resolve("mlp"), task=tiny.task(shape=(1, 8, 8)))
    dense = {n: m for n, m in whole.bench().model.named_modules() if isinstance(m, nn.Linear)}
    last = list(dense)[-1]
    head = whole.but(model=Adapted(whole.model, train=(last,)))
    lora = whole.but(model=Adapted(whole.model, lora=Lora(3)))
    assert whole.wire.size == sum(p.numel() for p in whole.bench().model.parameters())
    assert head.wire.size == sum(p.numel() for p in dense[last].parameters())
    assert lora.wire.size == sum(3 * (m.in_features + m.out_features) for m in dense.values())
    for fed in (head, lora):
        (first, _) = tiny.run(fed)
        assert {u.delta.layout.size for u in first.updates} == {first.sent.layout.size} == {fed.wire.size}


def test_dead_parts_and_moving_constants_are_named():
    class Dead(nn.Sequential):
        def forward(self, x):
            return self[0](x)

    network = lambda: Dead(nn.Linear(4, 3), nn.Linear(3, 3))  # noqa: E731
    first, _ = tiny.run(tiny.federation(model=network))
    assert first.still == ("1.weight", "1.bias")
    first, _ = tiny.run(tiny.federation(model=Adapted(network, lora=Lora(1))))
    assert first.still == ("1.down.weight", "1.up.weight")

    class Drifting(nn.Sequential):
        def forward(self, x):
            with torch.no_grad():
                self[0].weight += 0.1
            return super().forward(x)

    drifting = Adapted(lambda: Drifting(nn.Linear(4, 3), nn.Linear(3, 3)), train=("1",))
    with pytest.raises(Exception, match="frozen has changed"):
        tiny.run(tiny.federation(model=drifting))


def test_norms_of_frozen_layers_stay_as_they_are_and_mix_nothing():
    model = Adapted(tiny.image_net, train=("5*", "1.bias"))
    fed = tiny.federation(**{**IMAGES, "model": model}, defences=(DEFENCES["dp-sgd"](clip=1.0, noise_multiplier=1.0),))
    bench = fed.bench()
    norm = bench.model.train()[1]
    assert isinstance(norm, FixedNorm)
    assert [e.name for e in fed.wire.entries] == ["1.bias", "5.weight", "5.bias"]
    like = nn.BatchNorm2d(4).eval()
    x = torch.randn(5, 4, 3, 3)
    assert torch.equal(norm(x), like(x))
    fed.stack.check(fed)  # DP-SGD refuses a BatchNorm that is not frozen
    whole = fed.but(model=tiny.image_net)
    with pytest.raises(StackError):
        whole.stack.check(whole)
    assert len(tiny.run(fed)) == 2


def test_dp_sgd_has_the_fast_path_and_the_right_gradients():
    network = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(), nn.Conv2d(6, 4, 3, groups=2), nn.Flatten(),
        nn.Linear(16, 3),
    )  # fmt: skip
    freeze(network, {"1.bias", "5.bias"})
    adapt(network, Lora(2))
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, Adapter):
                module.up.weight.normal_(0, 0.3)
    x, y = torch.randn(6, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    loss = objective("classification").loss
    assert path_of(network, loss, x, y) == "bookkeeping"
    roads = [clipped_sum(network, loss, x, y, 0.5, path) for path in ("bookkeeping", "vmap", "one by one")]
    for other in roads[1:]:
        for mine, theirs in zip(roads[0].sums, other.sums, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_constants_are_the_same_in_every_world_and_what_is_trained_is_not():
    fed = tiny.federation(model=BOTH)
    other = fed.but(seed=5)
    assert fed.bench().constants == other.bench().constants != ""
    assert not torch.equal(initial_weights(fed).vector, initial_weights(other).vector)
    assert tiny.federation().bench().constants == ""


def test_unmoved_counts_the_first_matrix_with_the_second():
    fed = tiny.federation(model=Adapted(tiny.perceptron, lora=Lora(1, ("0",))))
    change = Weights.zeros(fed.wire)
    assert set(unmoved(change)) == {"0.down.weight", "0.up.weight"}
    change.vector[fed.wire.slices["0.up.weight"]] = 1.0
    assert unmoved(change) == ()


def test_pretrained_features_are_frozen_and_the_head_goes_on():
    fed = tiny.federation(model=replace(HEAD, pretrain=True), warm_start=Plan(8, 4, 0.1))
    start = fed.bench()
    assert start.constants == fed.but(seed=3).bench().constants != tiny.federation(model=HEAD).bench().constants
    whole = tiny.federation(model=Adapted(tiny.perceptron, pretrain=True), warm_start=fed.warm_start)
    first, last = (objective("classification").loss(f.bench().outputs(f.bench().initial, f.task.validation),
        f.task.validation.y) for f in (tiny.federation(model=Adapted(tiny.perceptron)), whole))  # fmt: skip
    assert last < 0.7 * first
    assert torch.equal(whole.bench().initial["2.weight"], start.initial["2.weight"])
    rounds = tiny.run(fed)
    assert [e.name for e in rounds[-1].result.layout.entries] == ["2.weight", "2.bias"]
    with pytest.raises(StackError, match="public data"):
        fed.but(task=replace(fed.task, validation=None)).bench()


STUDY = """\
name = "adapted"
noise = "seeded"
[data]
use = "digits"
limit = 200
clients = 3
[model]
use = "mlp"
hidden = [8]
{more}
[training]
rounds = 2
"""


def study(more, folder):
    return parse(STUDY.format(more=more), beside=(folder,))


def test_weights_of_a_file_are_the_start_and_the_constants(tmp_path):
    network = MENU["mlp"](hidden=(8,)).build((1, 8, 8), 10)
    names = list(network.state_dict())
    save_file({names[0]: network.state_dict()[names[0]]}, tmp_path / "first.safetensors")
    frozen = (
        study(f'train = ["{names[2]}", "{names[3]}"]\nweights = "first.safetensors"', tmp_path).cells[0].federation()
    )
    assert torch.equal(dict(constants(frozen.bench().model))[names[0]], network.state_dict()[names[0]])
    whole = study('weights = "first.safetensors"', tmp_path).cells[0].federation()
    assert torch.equal(whole.bench().initial[names[0]], network.state_dict()[names[0]])
    assert whole.wire.size == sum(p.numel() for p in network.parameters())
    save_file({names[0]: 2 * network.state_dict()[names[0]]}, tmp_path / "other.safetensors")
    files = [WeightsFile.at(tmp_path / f"{name}.safetensors") for name in ("first", "other")]
    assert describe(files[0])["digest"] != describe(files[1])["digest"]
    assert str(tmp_path) not in str(describe(files[0]))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('train = ["nothing*"]', "matches no layer"),
        ('lora = { rank = 2, layers = ["act*"] }', "matches no linear or convolution layer"),
        ("lora = { rank = 0 }", "rank"),
        ("lora = { ranks = 2 }", "ranks"),
        ("lora = 3", "lora"),
        ('weights = "missing.safetensors"', "no file"),
        ('weights = "pickled.pt"', "safetensors files alone"),
        ('weights = "damaged.safetensors"', "cannot be read"),
        ('weights = "wrong.safetensors"', "other shapes"),
        ('weights = "strange.safetensors"', "the model has no"),
        ('weights = "nan.safetensors"', "NaN"),
        ("pretrain = true", "public data"),
        ('train = "head"', "train"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_before_training(more, message, tmp_path):
    network = MENU["mlp"](hidden=(8,)).build((1, 8, 8), 10)
    first = next(iter(network.state_dict()))
    torch.save(network.state_dict(), tmp_path / "pickled.pt")
    (tmp_path / "damaged.safetensors").write_bytes(b"\x10" * 40)
    save_file({first: torch.zeros(3, 3)}, tmp_path / "wrong.safetensors")
    save_file({"elsewhere.weight": torch.zeros(3)}, tmp_path / "strange.safetensors")
    save_file({first: network.state_dict()[first] * torch.nan}, tmp_path / "nan.safetensors")
    with pytest.raises(StudyError) as caught:
        list(run_study(study(more, tmp_path), tmp_path / "out"))
    lines = [line for line in str(caught.value).splitlines() if not line.startswith(("  at:", "  fix:"))]
    assert len(lines) == 1
    assert message in lines[0]


def test_a_study_stores_what_is_trained_and_attacks_see_the_whole(tmp_path):
    text = STUDY.format(more='train = ["dense*.bias"]\nlora = { rank = 1 }') + (
        '[[attacks]]\nuse = "membership-inference"\nshadows = 4\nrecords = 20\n'
    )
    made = parse(text)
    checked = check_study(made)
    assert checked.problems == []
    federation = made.cells[0].federation()
    (sizes,) = checked.wire.values()
    assert sizes == {
        "values": federation.wire.size,
        "all": 64 * 8 + 8 + 80 + 10 + 64 + 8 + 8 + 10,
        "bytes": 4 * sizes["values"],
    }
    (outcome,) = run_study(made, tmp_path, workers=1)
    assert not outcome.error
    assert outcome.run.final_weights().layout == federation.wire
    assert [line["measure"] for line in outcome.run.attacks()]


def test_python_users_may_give_a_function():
    first, *_ = federate(tiny.federation(model=HEAD))
    assert first.result.layout.size == 5 * 3 + 3
