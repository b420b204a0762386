"""One step of training, plain or private, by several roads: ``dp_step.py ROAD`` prints the memory it takes.

Batches of 32 grey images of 128x128, paper 000's CNN (no BatchNorm), SGD, clip 1, noise multiplier 1, one thread.
"""

from __future__ import annotations

import resource
import sys
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from leakline.bench.optimisers import Sgd
from leakline.defences import DpSgd
from leakline.messages import Turn
from leakline.models.papers import Paper000CNN
from leakline.models.residual import ResNet
from leakline.runtimes.local import tune_allocator

BATCH, SIDE, CLASSES, CLIP, RATE = 32, 128, 4, 1.0, 0.01
ROADS = ("plain", "leakline", "leakline, secret noise", "opacus ghost", "opacus hooks")


def network(dropout: float = 0.1) -> nn.Module:
    """The same weights for everybody, channels-last, as leakline trains."""
    torch.manual_seed(0)
    model = Paper000CNN(dropout=dropout).build((1, SIDE, SIDE), CLASSES).train()
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def batch() -> tuple[Tensor, Tensor]:
    """Noise for images: the time of a step does not depend on what they show."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH, 1, SIDE, SIDE, generator=generator).contiguous(memory_format=torch.channels_last)
    return x, torch.randint(0, CLASSES, (BATCH,), generator=generator)


def plain(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], object]:
    """A step of SGD."""
    optimiser = Sgd(list(model.parameters()), RATE, 0.0, 0.0)

    def step() -> None:
        optimiser.zero_grad()
        functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


def residual() -> nn.Module:
    """A network of many small layers, where calls show: an 18-layer ResNet with GroupNorm for images of 64x64."""
    torch.manual_seed(0)
    return ResNet(norm="group", stem_stride=2).build((1, SIDE // 2, SIDE // 2), CLASSES).train()


def perceptron(*sizes: int) -> nn.Module:
    """Dense layers of these sizes, where nearly all of a step is calls."""
    torch.manual_seed(0)
    layers = [part for a, b in pairwise((*sizes, CLASSES)) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1]).train()


def patients(most: int, alike: bool = False) -> Tensor:
    """Whose each record of a batch is: patients of 1, 2, ... records up to the most, by turns, or of the most each."""
    sizes = torch.tensor([most] * BATCH if alike else list(range(1, most + 1)) * BATCH)
    return torch.repeat_interleave(torch.arange(len(sizes)), sizes)[:BATCH]


def leakline(
    model: nn.Module, x: Tensor, y: Tensor, secret: bool, z: float = 1.0, units: Tensor | None = None
) -> Callable[[], object]:
    """A step of the defence dp-sgd, on records or on patients."""
    optimiser = Sgd(list(model.parameters()), RATE, 0.0, 0.0)
    defence = DpSgd(z, CLIP, unit="record" if units is None else "patient")
    turn = Turn(0, "a", {}, 0, "bench", secret=secret, units=units)

    def step() -> None:
        optimiser.zero_grad()
        defence.gradient(model, x, y, functional.cross_entropy, turn)
        optimiser.step()

    return step


def opacus(model: nn.Module, x: Tensor, y: Tensor, ghost: bool, z: float = 1.0) -> Callable[[], object]:
    """A step of Opacus: fast gradient clipping with ghost norms, or per-sample gradients by hooks."""
    warnings.simplefilter("ignore")
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    sgd = torch.optim.SGD(model.parameters(), lr=RATE)
    settings = {"noise_multiplier": z, "max_grad_norm": CLIP, "expected_batch_size": BATCH}
    if not ghost:
        hooked = GradSampleModule(model)
        optimiser = DPOptimizer(sgd, **settings)

        def step() -> None:
            optimiser.zero_grad()
            functional.cross_entropy(hooked(x), y).backward()  # type: ignore[no-untyped-call]
            optimiser.step()

        return step
    module = GradSampleModuleFastGradientClipping(model, max_grad_norm=CLIP, use_ghost_clipping=True)
    fast = DPOptimizerFastGradientClipping(sgd, **settings)
    criterion = DPLossFastGradientClipping(module, fast, nn.CrossEntropyLoss())

    def fast_step() -> None:
        fast.zero_grad()
        criterion(module(x), y).backward()
        fast.step()

    return fast_step


def road(name: str, model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], object]:
    """A step by its name."""
    if name == "plain":
        return plain(model, x, y)
    if name.startswith("leakline"):
        return leakline(model, x, y, secret="secret" in name)
    return opacus(model, x, y, ghost="ghost" in name)


def resident() -> float:
    """What this process holds now (MB)."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize() / 2**20


def main(name: str) -> None:
    """Print how much memory two steps take beyond model and batch (MB)."""
    torch.set_num_threads(1)
    tune_allocator()
    step = road(name, network(), *batch())
    base = resident()
    for _ in range(2):
        step()
    # Not ru_maxrss, which begins with what the process that started this one held.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    print(int(peak) / 1024 - base)


if __name__ == "__main__":
    main(sys.argv[1])
