import inspect
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace

import pytest
import torch
from torch import nn

import tiny
from leakline.bench.training import Plan
from leakline.data.base import Client, Data
from leakline.errors import RuntimeMissing, StackError, StudyError
from leakline.models import MENU, Adapted, Imported, Lora, has_batchnorm, has_dropout, initial, resolve
from leakline.weights import constants, write

torch.set_num_threads(1)

SHAPES = {
    "paper-000-cnn": (1, 32, 32),
    "paper-002-cnn": (3, 32, 32),
    "small-cnn": (1, 8, 8),
    "motion-cnn": (9, 125),
    "mlp": (1, 8, 8),
    "linear": (81,),
    "resnet": (1, 16, 16),
    "small-unet": (1, 32, 32),
    "resnet-18": (3, 32, 32),
    "densenet-121": (1, 32, 32),
    "unet": (1, 32, 32),
}
MASKS = {"small-unet", "unet"}
LARGE = {"resnet-18", "densenet-121"}
MONAI = {"resnet-18", "densenet-121", "unet"}


@pytest.mark.parametrize("name", MENU)
def test_every_model_is_a_documented_frozen_value_that_trains(name):
    if name in MONAI:
        pytest.importorskip("monai", reason="MONAI is an extra")
    entry, shape = MENU[name], SHAPES[name]
    assert is_dataclass(entry)
    assert inspect.getdoc(entry).splitlines()[0].endswith(".")
    model = entry()
    if fields(entry):
        with pytest.raises(FrozenInstanceError):
            setattr(model, fields(entry)[0].name, 1)
    kind = "segmentation" if name in MASKS else "classification"
    network = initial(model, shape, 5, kind, seed=3)
    out = network(torch.rand(2, *shape, generator=torch.Generator().manual_seed(0)))
    assert out.shape == ((2, 1, *shape[1:]) if kind == "segmentation" else (2, 5))
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in LARGE else []) for n in MENU])
def test_of_every_model_what_should_move_moves_and_nothing_else(name):
    if name in MONAI:
        pytest.importorskip("monai", reason="MONAI is an extra")
    shape, kind = SHAPES[name], "segmentation" if name in MASKS else "classification"
    x = torch.rand(4, *shape, generator=torch.Generator().manual_seed(1))
    y = (x[:, :1] > 0.5).to(torch.uint8) if kind == "segmentation" else torch.tensor([0, 1, 2, 0])
    plain = MENU[name]().build(shape, 3, kind)
    last = [n for n, m in plain.named_modules() if isinstance(m, nn.Linear | nn.Conv2d | nn.Conv1d)][-1]
    clients = (Client("a", Data(x, y)), Client("b", Data(x.flip(0), y.flip(0))))
    fed = tiny.federation(
        task=replace(tiny.task(), clients=clients, kind=kind),
        model=Adapted(MENU[name](), train=(last,), lora=Lora(1)), rounds=1, plan=Plan(1, 2, 0.01),
    )  # fmt: skip
    before = {n: v.clone() for n, v in constants(fed.bench().model)}
    (first,) = tiny.run(fed)
    assert first.cohort == ("a", "b")
    assert not first.still
    bench = fed.bench()
    write(bench.model, first.result)
    assert all(torch.equal(v, before[n]) for n, v in constants(bench.model))
    assert not any("running" in e.name for e in fed.wire.entries)
    layers = [m for m in plain.modules() if isinstance(m, nn.Linear | nn.Conv2d | nn.Conv1d)]
    # Where the last layer is the only one, it is all there is to train.
    assert (fed.wire.size < sum(p.numel() for p in plain.parameters())) == (len(layers) > 1)


def test_paper_000_has_the_published_size():
    network = MENU["paper-000-cnn"]().build((1, 128, 128), 4, "classification")
    sizes = [p.numel() for p in network.parameters()]
    assert sum(sizes) == 6_517_476
    assert len(sizes) == 12
    assert has_dropout(network)
    assert not has_dropout(resolve("paper-000-cnn", {"dropout": 0.0}).build((1, 18, 18), 4))


def test_paper_000_starts_as_keras_does():
    network = initial(MENU["paper-000-cnn"](), (1, 32, 32), 4, seed=0)
    weight = network.dense1.weight
    bound = (6 / sum(weight.shape)) ** 0.5
    # Uniform on [-b, b]: nothing outside, and the largest of 131,072 values is within 1 % of b
    # except with probability 0.99^131072 < 1e-500.
    assert 0.99 * bound < weight.abs().max() <= bound
    assert all((m.bias == 0).all() for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear))


@pytest.mark.parametrize("shape", [(1, 18, 18), (1, 19, 25), (3, 64, 48)])
def test_paper_000_at_other_sizes(shape):
    assert MENU["paper-000-cnn"]().build(shape, 3)(torch.zeros(1, *shape)).shape == (1, 3)


@pytest.mark.parametrize("side", range(24, 40))
def test_paper_002_geometry(side):
    network = MENU["paper-002-cnn"]().build((1, side, side), 10)
    assert network(torch.zeros(1, 1, side, side)).shape == (1, 10)
    kernels = [(m.kernel_size, m.stride) for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert kernels == [((8, 8), (2, 2)), ((4, 4), (2, 2))]


@pytest.mark.parametrize(
    ("name", "side", "minimum"),
    [("paper-000-cnn", 17, 18), ("paper-002-cnn", 8, 24), ("densenet-121", 16, 32)],
)
def test_too_small_images_say_the_minimum_and_a_way_out(name, side, minimum):
    with pytest.raises(ValueError, match=f"at least {minimum}x{minimum}; got {side}x{side}.*small-cnn"):
        MENU[name]().build((1, side, side), 10)


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "softplus", "gelu", "elu", "leaky-relu"])
@pytest.mark.parametrize("norm", ["none", "group", "batch"])
def test_small_cnn_settings(activation, norm):
    model = resolve("small-cnn", {"channels": [8, 12, 16], "activation": activation, "norm": norm})
    network = model.build((3, 64, 64), 2)
    assert network(torch.zeros(2, 3, 64, 64)).shape == (2, 2)
    assert has_batchnorm(network) == (norm == "batch")
    assert sum(isinstance(m, nn.GroupNorm) for m in network.modules()) == (3 if norm == "group" else 0)
    assert hash(model) == hash(resolve("small-cnn", {"channels": (8, 12, 16), "activation": activation, "norm": norm}))


def test_motion_layers_are_named_from_input_to_output():
    names = [name for name, _ in MENU["motion-cnn"]().build((9, 125), 6).named_parameters()]
    assert names == [f"{layer}.{part}" for layer in ("conv1", "conv2", "dense1", "dense2", "dense3")
                     for part in ("weight", "bias")]  # fmt: skip


@pytest.mark.parametrize("norm", ["none", "group", "batch"])
def test_resnet_has_eighteen_layers_and_stays_in_scale(norm):
    network = initial(resolve("resnet", {"norm": norm, "width": 8}), (3, 32, 32), 2, seed=0)
    main = [m for n, m in network.named_modules() if isinstance(m, nn.Conv2d | nn.Linear) and "shortcut" not in n]
    assert len(main) == 18
    out = network(torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    assert 1e-3 < float(out.detach().abs().mean()) < 1e3
    assert has_batchnorm(network) == (norm == "batch")


def test_resnet_with_its_own_stem_has_the_layers_of_resnet_18():
    pytest.importorskip("monai")
    own = resolve("resnet", {"width": 64, "norm": "batch", "stem": "7x7"}).build((1, 64, 64), 2)
    theirs = MENU["resnet-18"]().build((1, 64, 64), 2)
    for made in (own, theirs):
        made.eval()
    shapes = [sorted(tuple(p.shape) for p in made.parameters()) for made in (own, theirs)]
    assert shapes[0] == shapes[1]
    seen = []
    for made, last in ((own, "stage4_block2"), (theirs, "layer4")):
        with torch.no_grad():
            made.get_submodule(last).register_forward_hook(lambda _, args, out: seen.append(out.shape))
            made(torch.zeros(1, 1, 64, 64))
    assert seen[0] == seen[1]


def test_resnet_stem_stride_shrinks_the_work():
    shapes = {}
    for stride in (1, 2):
        network = resolve("resnet", {"width": 4, "stem_stride": stride}).build((1, 32, 32), 2)
        network.stem.register_forward_hook(lambda _m, _i, out, s=stride: shapes.update({s: out.shape[-1]}))
        network(torch.zeros(1, 1, 32, 32))
    assert shapes == {1: 32, 2: 16}


@pytest.mark.parametrize("side", [32, 64, 128])
def test_small_unet_keeps_the_size(side):
    network = MENU["small-unet"]().build((1, side, side), 2, "segmentation")
    assert network(torch.zeros(1, 1, side, side)).shape == (1, 1, side, side)
    assert not has_batchnorm(network)
    with pytest.raises(ValueError, match="multiples of 4"):
        MENU["small-unet"]().build((1, side + 2, side), 2, "segmentation")


def test_the_unet_of_paper_004_has_its_size():
    """The released network's BatchNorm has no values of its own, so ours are counted beside the norm's."""
    network = MENU["small-unet"]((32, 64, 128, 256, 512), up="transposed").build((3, 32, 32), 2, "segmentation")
    norms = {id(p) for m in network.modules() if isinstance(m, torch.nn.GroupNorm) for p in m.parameters()}
    assert sum(p.numel() for p in network.parameters() if id(p) not in norms) == 7_757_153
    assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 1, 32, 32)


@pytest.mark.parametrize("name", sorted(MONAI))
def test_the_norm_reaches_every_layer_of_monai_networks(name):
    pytest.importorskip("monai", reason="MONAI is an extra")
    kind = "segmentation" if name in MASKS else "classification"
    for norm in ("batch", "batch-stateless", "group", "instance"):
        network = resolve(name, {"norm": norm}).build((1, 64, 64), 2, kind)
        assert has_batchnorm(network) == norm.startswith("batch")
        assert bool(list(network.buffers())) == (norm == "batch")
        assert network.train()(torch.ones(2, 1, 64, 64)).isfinite().all()


def test_monai_missing_says_the_pip_line(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "monai", None)
    monkeypatch.delitem(sys.modules, "monai.networks.nets", raising=False)
    monkeypatch.delitem(sys.modules, "monai.networks", raising=False)
    with pytest.raises(RuntimeMissing, match=r"pip install leakline\[medical\]"):
        MENU["resnet-18"]().build((1, 64, 64), 2)


def test_task_and_model_must_agree():
    with pytest.raises(StackError, match="small-cnn.*is for classification"):
        MENU["small-cnn"]().build((1, 8, 8), 2, "segmentation")
    with pytest.raises(StackError, match="is for segmentation"):
        MENU["small-unet"]().build((1, 32, 32), 2, "classification")


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("small-cnn", {"activation": "rellu"}, "rellu"),
        ("small-cnn", {"channels": [8, 0]}, r"\(8, 0\)"),
        ("resnet", {"stem_stride": 3}, "3"),
        ("resnet", {"stem": "7x7", "stem_stride": 2}, "its own stride"),
        ("paper-000-cnn", {"dropout": 1.0}, "1.0"),
        ("unet", {"width": 12}, "12"),
        ("motion-cnn", {"hidden": [4]}, r"\(4,\)"),
    ],
)
def test_wrong_values_are_named(name, settings, words):
    with pytest.raises(ValueError, match=words):
        resolve(name, settings)


def test_the_seed_decides_the_weights_and_nothing_else_moves():
    before = torch.random.get_rng_state()
    one, same, other = (initial(MENU["mlp"](), (4,), 2, seed=s) for s in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(one.dense1.weight, same.dense1.weight)
    assert not torch.equal(one.dense1.weight, other.dense1.weight)


def test_import_path(tmp_path, monkeypatch):
    (tmp_path / "my_networks.py").write_text(
        "from torch import nn\n"
        "def tiny(shape, classes, bias=True):\n    return nn.Linear(shape[0], classes, bias)\n"
        "def wrong(shape, classes):\n    return 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    model = resolve("my_networks:tiny", {"bias": False})
    assert model == Imported("my_networks:tiny", {"bias": False})
    assert len(list(model.build((4,), 3).parameters())) == 1
    with pytest.raises(StudyError, match="returned a int"):
        resolve("my_networks:wrong").build((4,), 3)
    with pytest.raises(StudyError, match='did you mean "my_networks:tiny"'):
        resolve("my_networks:tinny")
    with pytest.raises(StudyError, match="cannot be imported"):
        resolve("no_such_package_here:factory")
    with pytest.raises(StudyError, match="not an import path"):
        resolve("../evil:factory")


def test_unknown_names_get_the_nearest_one():
    with pytest.raises(StudyError, match='did you mean "paper-000-cnn"'):
        resolve("paper-000-ccn")
    with pytest.raises(StudyError, match='did you mean "channels"'):
        resolve("small-cnn", {"chanels": [8]})
    with pytest.raises(StudyError, match="has no settings"):
        resolve("paper-002-cnn", {"width": 3})


@pytest.mark.parametrize("name", ["small-cnn", "motion-cnn", "paper-000-cnn"])
def test_relu_behind_the_pool_is_the_same_network_bit_for_bit(name):
    shape = (2, 40) if name == "motion-cnn" else (1, 20, 20)
    ours = MENU[name]().build(shape, 3).eval()
    layers = list(ours.children())
    pools = [i for i, layer in enumerate(layers) if isinstance(layer, nn.MaxPool1d | nn.MaxPool2d)]
    assert len(pools) == 2
    assert all(isinstance(layers[i + 1], nn.ReLU) for i in pools)
    for i in pools:
        layers[i], layers[i + 1] = layers[i + 1], layers[i]
    x = torch.randn(16, *shape, generator=torch.Generator().manual_seed(0))
    x[0] = 0.0  # the same everywhere: every window has ties
    found = []
    for network in (ours, nn.Sequential(*layers)):
        outputs = network(x)
        gradients = torch.autograd.grad(outputs.square().sum(), list(ours.parameters()))
        found.append([outputs, *gradients])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
