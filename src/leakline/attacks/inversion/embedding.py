"""Images as points: the network that nearest neighbours are looked for with.

Paper 001 takes a ResNet-18 trained on ImageNet, whose weights cannot be shipped. The network is a parameter here: any
``nn.Module`` (`embed`), weights from a file (`load`), or by default a small one trained on public images (`trained`).
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from leakline.bench.training import Bench, Job, Plan, train
from leakline.data.base import Data
from leakline.errors import DataError
from leakline.models import initial
from leakline.models.residual import ResNet
from leakline.randomness import Stream
from leakline.weights import write

FEWEST, MOST_EXEMPLARS = 16, 200
"""Public images that training needs, and uses at most."""
COPIES, EPOCHS = 10, 5
WIDTH, SIDE = 16, 64


def embed(network: nn.Module, images: Tensor, batch: int = 128) -> Tensor:
    """What a network makes of images before its last decision, [N, D].

    The input of the last layer where that is linear (the layer whose output is the network's own), else the network's
    output; flattened. In evaluation mode and without gradients; the network's mode is put back.
    """
    seen: list[tuple[Tensor, Tensor]] = []

    def look(layer: nn.Module, given: tuple[Any, ...], out: Tensor) -> None:
        seen.append((given[0], out))

    hooks = [m.register_forward_hook(look) for m in network.modules() if isinstance(m, nn.Linear)]
    modes = [(m, m.training) for m in network.modules()]
    network.eval()
    try:
        parts = []
        with torch.no_grad():
            for some in torch.split(images, batch):
                seen.clear()
                out = network(some)
                found = next((given for given, made in seen if made is out), out)
                parts.append(found.flatten(1).float().cpu())
        return torch.cat(parts)
    finally:
        for module, training in modes:
            module.training = training
        for hook in hooks:
            hook.remove()


def trained(data: Data, *, seed: int) -> nn.Module:
    """The default network: 18 residual layers with GroupNorm, trained to tell public images apart under damage.

    Every image is a class of its own, shown in damaged copies (`spoilt`): exemplar training (Dosovitskiy et al. 2014).
    Trained on the task's few classes instead, so small a network forgets what tells images of one class apart. Of 200
    chest X-rays (64x64, 170 others public) under noise of 0.15, this one found 97 of 100 again among 870; on classes,
    40 after 5 epochs and 8 after 15. Of blends with the mean, which half-failed reconstructions are, it found 84 and 96
    (two seeds), classes 22 and 11, plain pixels 68.
    Class labels are not used. Images above 64x64 are first averaged down to that.
    """
    shape = _image_shape(tuple(data.x.shape[1:]))
    if len(data) < FEWEST:
        raise DataError(
            f"{len(data)} public images are too few to train an embedding network on ({FEWEST} are needed)",
            "the server's validation or test images",
            "raise server_validation in [data], or give the weights of a network",
        )
    stream = Stream(seed, -2, "examiner", "embedding")
    rng = stream.numpy()
    rows = rng.permutation(len(data))[:MOST_EXEMPLARS]
    images = _shrunk(data.take(rows).inputs(slice(None)), shape)
    copies = torch.cat([spoilt(images, rng) for _ in range(COPIES)])
    exemplars = Data(copies, torch.arange(len(images)).repeat(COPIES))
    whole = initial(_resnet(shape), tuple(images.shape[1:]), len(images), seed=stream.integer() >> 1)
    bench = Bench(whole, functional.cross_entropy)
    plan = Plan(epochs=EPOCHS, batch=32, optimiser="adam", learning_rate=1e-3)
    write(whole, bench.initial + train(bench, Job(bench.initial, exemplars, stream, 0), plan).change)
    network = architecture(shape)
    network.load_state_dict({k: v for k, v in whole.state_dict().items() if not k.startswith("head.")})
    return network.requires_grad_(False).eval()


def spoilt(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Copies with what reconstructions suffer from: the mean shining through, blur, wrong tones, noise."""

    def amount(low: float, high: float) -> Tensor:
        return torch.as_tensor(rng.uniform(low, high, (len(images), 1, 1, 1)), dtype=torch.float32)

    made = torch.lerp(images, images.mean(0, keepdim=True).expand_as(images), amount(0, 0.6))
    coarse = functional.interpolate(functional.avg_pool2d(made, 4), images.shape[-2:], mode="bilinear")
    made = torch.lerp(made, coarse, amount(0, 1)).clamp(0, 1) ** amount(-0.4, 0.4).exp()
    noise = torch.as_tensor(rng.standard_normal(images.shape, dtype=np.float32))
    return (made + amount(0, 0.15) * noise).clamp(0, 1)


def architecture(shape: tuple[int, ...]) -> nn.Module:
    """The default network for images of this shape, with random weights; its output is the embedding, [N, 128]."""
    channels, height, width = _image_shape(shape)
    small = (channels, min(height, SIDE), min(width, SIDE))
    whole = initial(_resnet(shape), small, 2, seed=0)
    layers = OrderedDict((name, part) for name, part in whole.named_children() if name != "head")
    if small != tuple(shape):
        layers["shrink"] = nn.AdaptiveAvgPool2d(small[1:])
        layers.move_to_end("shrink", last=False)
    return nn.Sequential(layers)


def load(path: str | Path, shape: tuple[int, ...]) -> nn.Module:
    """The default architecture with weights from a safetensors file (as `save` writes it); nothing is unpickled."""
    from safetensors import SafetensorError, safe_open

    network = architecture(shape)
    wanted = {name: tuple(values.shape) for name, values in network.state_dict().items()}
    fix = "give weights that leakline.attacks.inversion.embedding.save wrote for images with as many channels"
    try:
        with safe_open(path, framework="pt") as file:
            there = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            wrong = next((n for n in (*wanted, *there) if wanted.get(n) != there.get(n)), None)
            if wrong is not None:
                said = f"{wrong} is {there.get(wrong, 'not there')}, expected {wanted.get(wrong, 'no such name')}"
                raise DataError(f"these weights are of another embedding network: {said}", str(path), fix)
            state = {name: file.get_tensor(name) for name in wanted}
    except (OSError, SafetensorError) as error:
        raise DataError(f"embedding weights that cannot be read ({type(error).__name__})", str(path), fix) from error
    if not all(bool(values.isfinite().all()) for values in state.values()):
        raise DataError("embedding weights that are not all finite numbers", str(path), fix)
    network.load_state_dict(state)
    return network.requires_grad_(False).eval()


def save(network: nn.Module, path: str | Path) -> None:
    """Write a network's weights for `load`."""
    from safetensors.torch import save_file

    save_file({name: values.contiguous() for name, values in network.state_dict().items()}, path)


def _image_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < 8:
        raise DataError(f"the embedding network takes images of at least 8x8, not inputs of shape {shape}")
    return shape[0], shape[1], shape[2]


def _resnet(shape: tuple[int, ...]) -> ResNet:
    """The residual network whose first stage works on 16x16 pixels or a little more."""
    side = min(min(shape[1:]), SIDE)
    return ResNet(width=WIDTH, norm="group", stem_stride=4 if side >= 64 else 2 if side >= 32 else 1)


def _shrunk(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    return functional.adaptive_avg_pool2d(images, (min(shape[1], SIDE), min(shape[2], SIDE)))
