"""Gradient inversion: the price of an iteration, of restarts side by side, and what equal iterations buy.

An iteration is counted in forward passes F of the client's own network in training mode, on one thread, with the same
objective: all updates by squared distance and all batch statistics. "Plain" is that objective written the usual way,
with torch's own second derivatives and hooks on BatchNorm. The library breaching runs in a process of its own, from the
folder of peers (see docs/benchmarks.md), since it asks for torchvision, which leakline does not install.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from rows import Row, interleaved, milliseconds, ratio
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from training import ENGINES, PEERS

from leakline.attacks.inversion import VARIANTS, Intercepted, Search, Terms, problem_of, search
from leakline.attacks.inversion.problem import Problem
from leakline.bench.training import Bench, Job, Plan, train
from leakline.data.base import Data
from leakline.data.phantoms import Phantoms
from leakline.leakage.images import ssim
from leakline.models import initial
from leakline.models.residual import ResNet
from leakline.models.small import SmallCNN
from leakline.randomness import Stream
from leakline.runtimes.local import tune_allocator
from leakline.weights import write

SIZE = 64
PLAN = Plan(batch=1, learning_rate=0.01)
BOTH = Terms(update=1.0, distance="l2", statistics=1.0, exposed=0.0, box=0.0)
CASES = {"ResNet-18, width 64": ResNet(width=64, norm="batch"), "ResNet-18, width 16": ResNet(width=16, norm="batch")}
BELIEVABLE = 2.5
"""Two cores cannot do much more than twice the work of two."""
SMOOTH = SmallCNN((16, 32, 32), activation="softplus", norm="batch", pool="average")


def scene(model: ResNet | SmallCNN, channels: int = 1) -> tuple[Intercepted, Tensor, Data]:
    """A client with one phantom, the mean of others, and the update that crossed the wire."""
    images = Phantoms(examples=60, size=SIZE, seed=3).load().train
    x = images.inputs(slice(None)).repeat(1, channels, 1, 1)
    bench = Bench(initial(model, (channels, SIZE, SIZE), 4, seed=0), functional.cross_entropy)
    data = Data(x[:1], images.y[:1])
    change = train(bench, Job(bench.initial, data, Stream(0, 0, "a", "train"), 0), PLAN).change
    return Intercepted(bench, bench.initial, change, PLAN, 1), x[1:].mean(0, keepdim=True), data


class Plain:
    """The same objective without any of leakline's parts."""

    def __init__(self, seen: Intercepted, label: Tensor) -> None:
        self.model = copy.deepcopy(seen.bench.model).train()
        write(self.model, seen.sent)  # training left the client's own weights in it
        self.label = label
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        names = [n for n, _ in self.model.named_parameters()]
        self.seen = [-seen.delta[n] / PLAN.learning_rate for n in names]
        self.norms = {n: m for n, m in self.model.named_modules() if isinstance(m, nn.BatchNorm2d)}
        self.moments: dict[str, tuple[Tensor, Tensor]] = {}
        for name, norm in self.norms.items():
            norm.register_forward_pre_hook(lambda _, args, name=name: self._note(name, args[0]))
        after = seen.sent + seen.delta
        self.wanted = {}
        for n in self.norms:
            mean, var = (
                (after[f"{n}.{b}"] - 0.9 * seen.sent[f"{n}.{b}"]) / 0.1 for b in ("running_mean", "running_var")
            )
            self.wanted[n] = (mean, var)

    def _note(self, name: str, x: Tensor) -> None:
        self.moments[name] = (x.mean((0, 2, 3)), x.var((0, 2, 3)))

    def objective(self, x: Tensor) -> Tensor:
        """Squared distance of updates, relative, and that of statistics."""
        loss = functional.cross_entropy(self.model(x), self.label)
        made = torch.autograd.grad(loss, self.parameters, create_graph=True)
        total = sum(s.square().sum() for s in self.seen)
        value = torch.stack([(m - s).square().sum() for m, s in zip(made, self.seen, strict=True)]).sum() / total
        parts = []
        for name, (mean, var) in self.wanted.items():
            got, spread = self.moments[name]
            parts.append(((got - mean).square() / var).mean() + ((spread / var).sqrt() - 1).square().mean())
        return value + torch.stack(parts).mean()

    def iteration(self, x: Tensor) -> Tensor:
        """The gradient at the image."""
        point = x.detach().requires_grad_()
        return torch.autograd.grad(self.objective(point), point)[0]

    def adam(self, prior: Tensor, iterations: int, rate: float) -> Tensor:
        """Adam over pixels with a cosine decay."""
        x = prior.clone().requires_grad_()
        adam = torch.optim.Adam([x], lr=rate)
        fall = torch.optim.lr_scheduler.CosineAnnealingLR(adam, iterations)
        for _ in range(iterations):
            x.grad = self.iteration(x)
            adam.step()
            fall.step()
        return x.detach().clamp(0, 1)

    def lbfgs(self, prior: Tensor, iterations: int) -> Tensor:
        """torch's L-BFGS over pixels, as many evaluations."""
        x = prior.clone().requires_grad_()
        options = {"max_iter": iterations, "max_eval": iterations, "history_size": 30}
        optimiser = torch.optim.LBFGS([x], tolerance_change=0, line_search_fn="strong_wolfe", **options)

        def evaluate() -> Tensor:
            value = self.objective(x)
            (x.grad,) = torch.autograd.grad(value, x)
            return value.detach()

        optimiser.step(evaluate)  # type: ignore[no-untyped-call]
        return x.detach().clamp(0, 1)


def iteration_rows(repeats: int) -> list[Row]:
    """What an iteration costs in forward passes, ours and plain."""
    rows = []
    for name, model in CASES.items():
        seen, prior, data = scene(model)
        problem = problem_of(seen, prior, BOTH)
        zeros = torch.zeros(problem.size)
        plain = Plain(seen, data.y)
        times = interleaved(
            {
                "forward": lambda plain=plain, prior=prior: plain.model(prior),
                "ours": lambda problem=problem, zeros=zeros: problem.evaluate(zeros),
                "plain": lambda plain=plain, prior=prior: plain.iteration(prior),
            },
            max(repeats, 5),
        )
        goal = 8.0 if "64" in name.split()[-1] else None
        for case in ("ours", "plain"):
            rows.append(
                Row(
                    "An inversion's iteration at 64x64, one thread, in forward passes F",
                    f"{name}: {case}",
                    ratio(times[case], times["forward"]),
                    "F",
                    at_most=goal if case == "ours" else None,
                    note=milliseconds(times[case], times["forward"], "forward"),
                )
            )
    return rows


def restart_rows(repeats: int) -> list[Row]:
    """Two restarts side by side on two cores against the same two, each on both cores.

    A restart here has 50 iterations, a real one hundreds; what is done once (the self-test, two forks) counts too.
    The gain is at most two, and what two processes lose to each other; anything above says that the machine was busy
    (threads of one kernel wait for each other, and a busy core makes them all wait), so such a figure is not judged.
    Wide layers keep both cores busy by themselves, so there is little left to gain; narrow ones do not.
    """
    rows = []
    for name, model in CASES.items():
        seen, prior, _ = scene(model)
        how = Search(optimiser="adam", iterations=50, levels=(1.0,), restarts=2, patience=100)
        problem = problem_of(seen, prior, BOTH)

        def run(threads: int, workers: int, problem: Problem = problem, how: Search = how) -> None:
            torch.set_num_threads(threads)
            search(problem, how, workers=workers)

        def both() -> None:
            run(2, 1)

        def beside() -> None:
            run(1, 2)

        times = interleaved({"both cores": both, "side by side": beside}, repeats)
        torch.set_num_threads(1)
        gain = ratio(times["both cores"], times["side by side"])
        note = milliseconds(times["side by side"], times["both cores"], "both cores for one")
        busy = gain > BELIEVABLE
        rows.append(
            Row(
                "Two restarts side by side, throughput against both cores for one", name, gain,
                at_least=None if busy else 1.5, note=note + ("; not judged: the machine was busy" if busy else ""),
            )
        )  # fmt: skip
    return rows


def quality_rows() -> list[Row]:
    """SSIM at equal evaluations against the plain objective, under the best of three ways to minimise it."""
    evaluations = 300
    seen, prior, data = scene(SMOOTH)
    how = replace(VARIANTS["grad+bn"].search, iterations=evaluations, restarts=1)
    plain = Plain(seen, data.y)
    others = {f"Adam {rate}": plain.adam(prior, evaluations, rate) for rate in (0.003, 0.01)}
    others["L-BFGS"] = plain.lbfgs(prior, evaluations)
    scores = {name: float(ssim(data.x, image)) for name, image in others.items()}
    best, told = max(scores.values()), ", ".join(f"{name} {score:.3f}" for name, score in scores.items())
    table = f"Similarity after {evaluations} evaluations, three-block smooth network, one phantom"
    rows = []
    for name, terms, goal in (
        ("the same objective", BOTH, 0.0), ("our own weights of the terms", VARIANTS["grad+bn"].terms, None)
    ):  # fmt: skip
        got = float(ssim(data.x, search(problem_of(seen, prior, terms), how).images))
        note = f"ours {got:.3f}; plain: {told}; prior {float(ssim(data.x, prior)):.3f}"
        rows.append(Row(table, f"SSIM, ours less the best plain: {name}", got - best, "", at_least=goal, note=note))
    return rows


def breaching_rows() -> list[Row]:
    """SSIM at equal evaluations against breaching: one phantom in three channels, since its prior wants three."""
    if not (PEERS / "breaching").is_dir():
        print(f"breaching is not in {PEERS.name}/ of the environment: left out")
        return []
    evaluations = 300
    seen, prior, data = scene(SMOOTH, channels=3)
    given = {"prior": prior.contiguous(), "label": data.y}
    for entry, delta in seen.delta.layers():
        if not entry.buffer:
            given[f"weight.{entry.name}"] = seen.sent[entry.name].contiguous()
            given[f"gradient.{entry.name}"] = -delta / PLAN.learning_rate
    with tempfile.TemporaryDirectory() as folder:
        told, made = Path(folder) / "scene.safetensors", Path(folder) / "made.safetensors"
        save_file(given, told)
        command = [sys.executable, str(ENGINES / "breaching_engine.py"), str(told), str(evaluations), str(made)]
        path = os.pathsep.join([str(ENGINES), str(PEERS), *sys.path])
        subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True, capture_output=True)
        scores = {name: float(ssim(data.x, image)) for name, image in load_file(made).items()}
    best, said = max(scores.values()), ", ".join(f"{name} {score:.3f}" for name, score in scores.items())
    how = replace(VARIANTS["grad+bn"].search, iterations=evaluations, restarts=1)
    distance = replace(BOTH, statistics=0.0)
    rows = []
    for name, terms in (("squared distance of updates", distance), ("grad+bn", VARIANTS["grad+bn"].terms)):
        got = float(ssim(data.x, search(problem_of(seen, prior, terms), how).images))
        note = f"ours {got:.3f}; breaching: {said}; prior {float(ssim(data.x, prior)):.3f}"
        table = f"Similarity after {evaluations} evaluations against breaching, three channels"
        rows.append(Row(table, f"SSIM, ours less breaching's best: {name}", got - best, "", at_least=0.0, note=note))
    return rows


def main(repeats: int) -> list[Row]:
    """All rows."""
    torch.set_num_threads(1)
    tune_allocator()
    return iteration_rows(repeats) + restart_rows(repeats) + quality_rows() + breaching_rows()
