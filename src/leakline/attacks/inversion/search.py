"""The search for images: from coarse to fine, from several starts, with a stop at any moment and a way to go on."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from leakline.attacks.inversion.optimise import Adam, Lbfgs
from leakline.attacks.inversion.problem import Problem
from leakline.errors import StackError

COARSE_TO_FINE = (0.0625, 0.125, 0.25, 0.5, 1.0)
"""Levels for networks with kinks; a smooth one needs none, and coarse ones would only cost it evaluations."""
EVERY = 50
"""Evaluations between checkpoints and reports."""


@dataclass(frozen=True)
class Search:
    """How the objective is minimised.

    ``iterations`` are evaluations of objective and gradient in each restart, line searches included. Half of them are
    shared evenly by all ``levels`` but the last, which has the rest; a level is the share of frequencies that are free.
    None given: `COARSE_TO_FINE` for a network with kinks (ReLU, max pooling), free pixels at once for a smooth one.
    ``soft`` gives each level's slope of the ReLUs' soft step (infinity: exact). A level ends early once the objective
    has not fallen by 0.1 % within ``patience`` iterations.

    The first of the ``restarts`` goes through all levels, the second leaves out the coarsest, and so on; when all have
    been through, they begin again with noise of standard deviation ``spread`` on the start. The one with the lowest
    objective is the answer, so that no truth is needed to choose. ``workers`` restarts run side by side, each on one
    core: memory is that of so many. ``late`` leaves the update's mismatch to the last level where an exactly read input
    can lead the way, at a quarter of the cost of an iteration. ``rate``, ``warm_up`` and ``signed`` are Adam's.
    """

    optimiser: Literal["lbfgs", "adam"] = "lbfgs"
    iterations: int = 1000
    levels: tuple[float, ...] = ()
    soft: tuple[float, ...] = (math.inf,)
    restarts: int = 3
    spread: float = 0.1
    patience: int = 200
    rate: float = 0.05
    warm_up: int = 50
    signed: bool = False
    workers: int = 1
    late: bool = True

    def __post_init__(self) -> None:
        for name in ("iterations", "restarts", "patience", "workers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1: {getattr(self, name)}")
        if self.levels and (any(not 0 < level <= 1 for level in self.levels) or self.levels[-1] != 1):
            raise ValueError(f"levels must lie in (0, 1] and end with 1: {self.levels}")
        count = len(self.levels or COARSE_TO_FINE)
        if len(self.soft) not in (1, count) or any(not beta > 0 for beta in self.soft):
            raise ValueError(f"soft must be one positive slope, or one for each of {count} levels: {self.soft}")


@dataclass(frozen=True)
class Standing:
    """Where a search stands, for whoever watches."""

    restart: int
    iteration: int
    iterations: int
    objective: float
    seconds_left: float

    def line(self) -> str:
        """In words."""
        place = f"restart {self.restart + 1}, iteration {self.iteration}/{self.iterations}"
        return f"{place}, objective {self.objective:.4g}, {self.seconds_left / 60:.1f} min left"


Progress = Callable[[Standing], None]


def silent(standing: Standing) -> None:
    """No progress."""


@dataclass(frozen=True)
class Found:
    """What a search came to: the images and labels of the lowest objective, and how each restart ended."""

    images: Tensor
    targets: Tensor
    objective: float
    objectives: tuple[float, ...]
    iterations: int
    seconds: float
    gradients: dict[str, float] = field(default_factory=dict)


def search(
    problem: Problem,
    how: Search,
    *,
    seed: int = 0,
    progress: Progress = silent,
    checkpoint: Path | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Found:
    """Minimise the problem's objective. With ``checkpoint``, a folder, an interrupted search goes on where it was.

    ``stop`` is asked now and then; when it says yes the state is saved and what was found so far is returned.
    """
    begun = time.perf_counter()
    if not how.levels:
        how = replace(how, levels=(1.0,) if problem.twin.smooth else COARSE_TO_FINE)
    starts = [_start(problem, how, seed, restart) for restart in range(how.restarts)]
    gradients = problem.check_gradient(starts[0] + 1e-3 * _noise(problem, seed, -1))
    paths = [None if checkpoint is None else checkpoint / f"restart-{i:02d}.safetensors" for i in range(how.restarts)]
    key = _key(problem, how, seed)

    def one(restart: int) -> _Run:
        own = problem if how.workers == 1 else problem.copy()
        run = _Run(own, how, starts[restart], restart, paths[restart], key)
        run.go(progress, stop)
        return run

    if how.workers == 1:
        runs = [one(restart) for restart in range(how.restarts)]
    else:
        with ThreadPoolExecutor(how.workers) as pool:
            runs = list(pool.map(one, range(how.restarts)))
    best = min(runs, key=lambda run: run.lowest)
    if not math.isfinite(best.lowest):
        raise StackError(
            "the objective was not a number at any point of the search",
            "gradient inversion",
            "lower the plan's learning rate or the search's own, or start from a prior image",
        )
    with torch.no_grad():
        images, targets = problem.images(best.best).clamp(0, 1), problem.targets(best.best)
    return Found(
        images.clone(), targets.clone(), best.lowest, tuple(run.lowest for run in runs),
        sum(run.done for run in runs), time.perf_counter() - begun, gradients,
    )  # fmt: skip


class _Run:
    """One restart: its point, its optimiser, its place in the schedule."""

    def __init__(self, problem: Problem, how: Search, start: Tensor, restart: int, path: Path | None, key: str) -> None:
        self.problem, self.how, self.restart, self.path, self.key = problem, how, restart, path, key
        self.point, self.best, self.lowest = start, start, math.inf
        self.level, self.used, self.done = restart % max(1, len(how.levels) - 1), 0, 0
        self.skips = how.late and bool(problem.evidence.inputs) and problem.terms.exposed > 0
        self.optimiser: Lbfgs | Adam = (
            Lbfgs() if how.optimiser == "lbfgs" else Adam(how.rate, how.iterations, how.warm_up, how.signed)
        )
        if path is not None and path.is_file():
            self._load(path)

    def go(self, progress: Progress, stop: Callable[[], bool]) -> None:
        """Work through the levels."""
        how, part = self.how, self.how.iterations // (2 * max(1, len(self.how.levels) - 1))
        begun, before, told = time.perf_counter(), self.done, self.done
        while self.level < len(how.levels):
            level, beta = how.levels[self.level], how.soft[min(self.level, len(how.soft) - 1)]
            last = self.level == len(how.levels) - 1
            budget = how.iterations - (self.done - self.used) if last else max(part, 1)

            matched = last or not self.skips

            def evaluate(
                point: Tensor, level: float = level, beta: float = beta, matched: bool = matched
            ) -> tuple[float, Tensor]:
                return self.problem.evaluate(point, level, beta, matched)

            value, slope = evaluate(self.point)
            history = [value]
            while self.used < budget:
                if stop():
                    self._save()
                    return
                self.point, value, slope, used = self.optimiser.step(self.point, value, slope, evaluate)
                self.used, self.done = self.used + used, self.done + used
                # Objectives of different levels cannot be compared: only the last level's count.
                if last and value < self.lowest:
                    self.lowest, self.best = value, self.point
                if self.done - told >= EVERY:
                    told = self.done
                    pace = (time.perf_counter() - begun) / max(self.done - before, 1)
                    left = max(how.iterations - self.done, 0)
                    progress(Standing(self.restart, self.done, how.iterations, value, pace * left))
                    self._save()
                stuck = len(history) > 1 and value == history[-1] and how.optimiser == "lbfgs"
                history.append(value)
                recent = min(history[-how.patience :])
                earlier = min(history[: -how.patience]) if len(history) > how.patience else math.inf
                if stuck or recent > earlier * (1 - 1e-3):
                    break
            if last and value < self.lowest:
                self.lowest, self.best = value, self.point
            if not last:
                if self.level == len(how.levels) - 2:
                    self.point = self.problem.finest(self.point, level)
                self.optimiser.forget()  # the next level's function is another one
            self.level, self.used = self.level + 1, 0
        self._save()

    def _save(self) -> None:
        if self.path is None:
            return
        from safetensors.torch import save

        state = {"level": self.level, "used": self.used, "done": self.done, "lowest": str(self.lowest)}
        tensors = {"point": self.point, "best": self.best.clone()}
        tensors |= {f"optimiser.{n}": t.contiguous() for n, t in self.optimiser.tensors().items()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(self.path.name + ".tmp")
        beside.write_bytes(save(tensors, metadata={"key": self.key, "state": json.dumps(state)}))
        os.replace(beside, self.path)

    def _load(self, path: Path) -> None:
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            meta = file.metadata()
            if meta.get("key") != self.key:
                return  # another search's: this one starts afresh and will replace it
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        state = json.loads(meta["state"])
        self.point, self.best, self.lowest = tensors["point"], tensors["best"], float(state["lowest"])
        self.level, self.used, self.done = state["level"], state["used"], state["done"]
        self.optimiser.restore(
            {n.removeprefix("optimiser."): t for n, t in tensors.items() if n.startswith("optimiser.")}
        )


def _start(problem: Problem, how: Search, seed: int, restart: int) -> Tensor:
    noise = _noise(problem, seed, restart)
    # Several images must differ from the start: equal ones with equal labels would get equal gradients for ever.
    if restart < max(1, len(how.levels) - 1) and problem.canvas.count == 1:
        noise[: problem.canvas.size] = 0
    return how.spread * noise


def _noise(problem: Problem, seed: int, restart: int) -> Tensor:
    generator = torch.Generator().manual_seed(1_000_003 * (restart + 2) + seed)
    return torch.randn(problem.size, generator=generator)


def _key(problem: Problem, how: Search, seed: int) -> str:
    """Names a search: its evidence, its settings, its start. How many run at once does not matter."""
    digest = hashlib.blake2b(digest_size=12)
    settings = {k: v for k, v in asdict(how).items() if k != "workers"}
    digest.update(json.dumps([settings, asdict(problem.terms), asdict(problem.recipe), seed]).encode())
    for part in (problem.start, problem.evidence.change, problem.evidence.inputs):
        for name, value in part.items():
            digest.update(name.encode() + value.detach().contiguous().numpy().tobytes())
    digest.update(problem.canvas.start.contiguous().numpy().tobytes())
    return digest.hexdigest()
