"""The audit of LDP-SGD with paper 002's network: white box by the exact law, black box in stacks, one thread.

The naive loops draw a report of d values for every trial and look at it alone; they are measured on fewer trials and
extrapolated. The floor of a black box is the cost of drawing one report per trial and doing nothing with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from rows import Row, interleaved, milliseconds, ratio
from torch.func import functional_call

from leakline.attacks.audit.blackbox import CHUNK, one_thread, report_sides
from leakline.attacks.audit.channel import PublishChannel, ReleaseChannel
from leakline.attacks.audit.crafters import Scene, canary, gradient_flip
from leakline.attacks.audit.distinguishers import cosine_rule, loss_rule
from leakline.attacks.audit.network import paper_002_cnn
from leakline.attacks.audit.stacks import stacked_losses
from leakline.attacks.audit.workbench import small, workbench
from leakline.defences import GlobalDP, LdpSgd
from leakline.leakage.epsilon import count_errors
from leakline.mechanisms.sphere import report_cosines
from leakline.runtimes.machine import tune_allocator
from leakline.weights import read

TITLE = "Audit of LDP-SGD, 10,650 parameters, 10,000 trials, one thread"
TRIALS, WHITE, BLACK = 10_000, 500, 200
EPSILON, STEP = 4.0, 0.13


def main(repeats: int = 5) -> list[Row]:
    """All rows."""
    torch.set_num_threads(1)
    tune_allocator()
    model = paper_002_cnn((1, 28, 28), 10).eval()
    x = torch.rand(1, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    scene = Scene(model, F.cross_entropy, read(model), x, torch.tensor([3]), x, torch.tensor([5]))
    times = interleaved(
        {
            "white": white(scene), "naive white": naive_white(scene), "black": black(scene),
            "naive black": naive_black(scene), "draw": draw(scene),
        },
        repeats,
    )  # fmt: skip
    loop = [t * TRIALS / WHITE for t in times["naive white"]]
    alone = [t * TRIALS / BLACK for t in times["naive black"]]
    return [
        Row(TITLE, "white box: loop / exact law", ratio(loop, times["white"]), at_least=500,
            note=milliseconds(times["white"], loop, "loop")),
        Row(TITLE, "black box: loop / stacks", ratio(alone, times["black"]), at_least=5,
            note=milliseconds(times["black"], alone, "loop")),
        Row(TITLE, "black box: stacks / drawing a report per trial", ratio(times["black"], times["draw"]),
            at_most=1.5, note=milliseconds(times["black"], times["draw"], "drawing")),
        *hooks(repeats),
    ]  # fmt: skip


def white(scene: Scene) -> Callable[[], object]:
    """Ours: two coordinates per trial."""
    rng, bits = np.random.default_rng(0), np.arange(TRIALS) % 2 == 1
    size = scene.weights.layout.size
    return lambda: count_errors(cosine_rule(report_cosines(-1.0, (1.0, 1.0), bits, size, EPSILON, rng)), bits)


def _report(gradient: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    v = torch.randn(gradient.numel(), generator=generator)
    v /= v.norm()
    p, q = torch.rand(2, generator=generator).tolist()
    z = gradient if p < 0.5 + min(1.0, float(gradient.norm())) / 2 else -gradient
    side = 1.0 if float(z @ v) >= 0 else -1.0
    return v * (side if q < 1 / (1 + math.exp(-EPSILON)) else -side)


def naive_white(scene: Scene) -> Callable[[], object]:
    """A report and two cosines per trial."""
    pair, generator = gradient_flip(scene), torch.Generator().manual_seed(0)

    def loop() -> int:
        wrong = 0
        for k in range(WHITE):
            u = _report(pair.one if k % 2 else pair.zero, generator)
            guess = F.cosine_similarity(u, pair.one, dim=0) > F.cosine_similarity(u, pair.zero, dim=0)
            wrong += bool(guess) != bool(k % 2)
        return wrong

    return loop


def black(scene: Scene) -> Callable[[], object]:
    """Ours: K/2 directions, both sides of each, in stacks."""
    pair, generator, rng = gradient_flip(scene), torch.Generator().manual_seed(0), np.random.default_rng(0)
    losses = stacked_losses(scene, scene.x1, scene.y1)
    before = float(losses(scene.weights.vector[None])[0])
    gradients = torch.stack([pair.zero, pair.one])

    def game() -> object:
        sides = one_thread([scene.weights.vector], [(0, losses)], gradients, TRIALS // 2, STEP, generator, 1)
        worlds = [sides.after(0, report_sides(sides.along[w], 1.0, EPSILON, rng)) for w in (0, 1)]
        return count_errors(loss_rule(before, np.concatenate(worlds)), np.repeat([False, True], TRIALS // 2))

    return game


def naive_black(scene: Scene) -> Callable[[], object]:
    """A report, a step and a forward pass per trial."""
    pair, generator = gradient_flip(scene), torch.Generator().manual_seed(0)
    layout, start = scene.weights.layout, scene.weights.vector

    def loop() -> int:
        grown = 0
        with torch.inference_mode():
            for k in range(BLACK):
                moved = start - STEP * _report(pair.one if k % 2 else pair.zero, generator)
                parts = {e.name: moved[layout.slices[e.name]].view(e.shape) for e in layout.entries}
                grown += float(F.cross_entropy(functional_call(scene.model, parts, (scene.x1,)), scene.y1)) > 2.3
        return grown

    return loop


def draw(scene: Scene) -> Callable[[], object]:
    """The floor: as many normal values as a report per trial takes."""
    block, generator = torch.empty(CHUNK, scene.weights.layout.size), torch.Generator().manual_seed(0)

    def loop() -> None:
        for _ in range(TRIALS // CHUNK):
            block.normal_(generator=generator)

    return loop


def hooks(repeats: int) -> list[Row]:
    """One trial through a stack's real hooks, on the small copy of the wire."""
    rows = []
    for name, channel in (
        ("ldp-sgd, server's seat", ReleaseChannel(small(workbench([LdpSgd(4.0)])))),
        ("global-dp, participant's seat", PublishChannel(small(workbench([GlobalDP(1.0, 1.0)])))),
    ):
        pair = canary(channel.layout)
        times = interleaved({"see": lambda c=channel, p=pair: [c.see(p.one, k) for k in range(200)]}, repeats)["see"]
        rows.append(Row(TITLE, f"a trial through the real hooks: {name}", 1e6 * min(times) / 200, "us"))
    return rows
