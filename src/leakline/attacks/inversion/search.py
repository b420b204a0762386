"""The search for images: from coarse to fine, from several starts, with a stop at any moment and a way to go on."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from leakline.attacks.inversion.optimise import Adam, Lbfgs
from leakline.attacks.inversion.problem import Problem
from leakline.errors import StackError
from leakline.runtimes.forks import FORKABLE, Tells, side_by_side

COARSE_TO_FINE = (0.0625, 0.125, 0.25, 0.5, 1.0)
"""Levels for networks with kinks; a smooth one needs none, and coarse ones would only cost it evaluations."""
TEMPERED = (1 / 30, 0.1, 1 / 3, 1.0)
"""Levels where noise of known law is weighed: it is taken to be so many times louder first, which smooths the way."""
EVERY = 50
"""Evaluations between checkpoints and reports."""


@dataclass(frozen=True)
class Search:
    """How the objective is minimised.

    ``iterations`` are evaluations of objective and gradient in each restart, line searches included. Half of them are
    shared evenly by all ``levels`` but the last, which has the rest; a level is the share of frequencies that are free.
    Where noise is weighed (``likelihood``) they are `TEMPERED`. None given: `COARSE_TO_FINE` for a network with kinks
    (ReLU, max pooling), free pixels at once for a smooth one.
    ``soft`` gives each level's slope of the ReLUs' soft step (infinity: exact). A level ends early once the objective
    has not fallen by 0.1 % within ``patience`` iterations.

    The first of the ``restarts`` goes through all levels, the second leaves out the coarsest, and so on; when all have
    been through, they begin again with noise of standard deviation ``spread`` on the start. The one with the lowest
    objective is the answer, so that no truth is needed to choose. ``late`` leaves the update's mismatch to the last
    level where an exactly read input can lead the way, at a quarter of the cost of an iteration. ``rate``, ``warm_up``
    and ``signed`` are Adam's.
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
    late: bool = True

    def __post_init__(self) -> None:
        for name in ("iterations", "restarts", "patience"):
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
    ended: bool = False

    def line(self) -> str:
        """In words."""
        return (
            f"restart {self.restart + 1}, iteration {self.iteration}/{self.iterations}, objective {self.objective:.4g}"
        )


Progress = Callable[[Standing], None]


def silent(standing: Standing) -> None:
    """No progress."""


@dataclass(frozen=True)
class Found:
    """What a search came to: the images and labels of the lowest objective, and how each restart ended.

    ``seconds`` is the time of all restarts together, whether they ran one after another or side by side.
    """

    images: Tensor
    targets: Tensor
    objective: float
    objectives: tuple[float, ...]
    iterations: int
    seconds: float
    gradients: dict[str, float] = field(default_factory=dict)

    @property
    def classes(self) -> tuple[int, ...]:
        """The labels, also where a search over probabilities found them."""
        return tuple((self.targets if self.targets.ndim == 1 else self.targets.argmax(1)).tolist())


def search(
    problem: Problem,
    how: Search,
    *,
    seed: int = 0,
    workers: int = 1,
    progress: Progress = silent,
    checkpoint: Path | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Found:
    """Minimise the problem's objective. With ``checkpoint``, a folder, an interrupted search goes on where it was.

    ``stop`` is asked now and then; when it says yes the state is saved and what was found so far is returned.
    ``workers`` restarts run side by side (see `searches`).
    """
    (found,) = searches(
        [problem], how, seed=seed, workers=workers, progress=lambda _, standing: progress(standing),
        checkpoints=[checkpoint], stop=stop,
    )  # fmt: skip
    return found


def searches(
    problems: Sequence[Problem],
    how: Search,
    *,
    seed: int = 0,
    workers: int = 1,
    progress: Callable[[int, Standing], None] = lambda number, standing: None,
    checkpoints: Sequence[Path | None] = (),
    stop: Callable[[], bool] = lambda: False,
) -> list[Found]:
    """Several problems, and several restarts of each: ``workers`` of all these run side by side.

    Side by side means a process of one thread each, where processes can be forked (Linux), since kernels of a narrow
    network are too short for threads to share an interpreter; memory is that of so many restarts. Each leaves its notes
    in its problem's folder of ``checkpoints``, or in a temporary one, from which the answers are read.
    """
    with tempfile.TemporaryDirectory(prefix="leakline-") as temporary:
        own = workers > 1 and FORKABLE
        folders = list(checkpoints) or [None] * len(problems)
        if own:
            folders = [Path(temporary) / str(i) if folder is None else folder for i, folder in enumerate(folders)]
        tasks = [
            _Task(problem, _with_levels(how, problem), seed, folder)
            for problem, folder in zip(problems, folders, strict=True)
        ]
        left = [(number, run) for number, task in enumerate(tasks) for run in task.runs if not run.finished]
        if own and len(left) > 1:
            side_by_side(
                [run.job for _, run in left], workers,
                lambda job, told: progress(left[job][0], Standing(**told)), stop,
            )  # fmt: skip
            for _, run in left:
                run.load()
        else:
            for number, run in left:
                run.go(partial(progress, number), stop)
        return [task.found() for task in tasks]


def _with_levels(how: Search, problem: Problem) -> Search:
    if problem.terms.likelihood:
        return replace(how, levels=TEMPERED, soft=how.soft[-1:])
    return how if how.levels else replace(how, levels=(1.0,) if problem.twin.smooth else COARSE_TO_FINE)


class _Task:
    """One problem: its restarts, and the best of them."""

    def __init__(self, problem: Problem, how: Search, seed: int, folder: Path | None) -> None:
        self.problem = problem
        starts = [_start(problem, how, seed, restart) for restart in range(how.restarts)]
        self.gradients = problem.check_gradient(starts[0] + 1e-3 * _noise(problem, seed, -1))
        key = _key(problem, how, seed)
        self.runs = [
            _Run(problem, how, start, i, None if folder is None else folder / f"restart-{i:02d}.safetensors", key)
            for i, start in enumerate(starts)
        ]

    def found(self) -> Found:
        """The restart with the lowest objective."""
        best = min(self.runs, key=lambda run: (run.lowest, -run.done))
        if best.finished and not math.isfinite(best.lowest):
            raise StackError(
                "the objective was not a number at any point of the search",
                "gradient inversion",
                "lower the plan's learning rate or the search's own, or start from a prior image",
            )
        with torch.no_grad():
            images, targets = self.problem.images(best.answer).clamp(0, 1), self.problem.targets(best.answer)
        return Found(
            images.clone(), targets.clone(), best.lowest, tuple(run.lowest for run in self.runs),
            sum(run.done for run in self.runs), sum(run.seconds for run in self.runs), self.gradients,
        )  # fmt: skip


class _Run:
    """One restart: its point, its optimiser, its place in the schedule."""

    def __init__(self, problem: Problem, how: Search, start: Tensor, restart: int, path: Path | None, key: str) -> None:
        self.problem, self.how, self.restart, self.path, self.key = problem, how, restart, path, key
        self.point, self.best, self.lowest = start, start, math.inf
        self.level, self.used, self.done, self.seconds = restart % max(1, len(how.levels) - 1), 0, 0, 0.0
        self.skips = (
            how.late
            and bool(problem.evidence.inputs)
            and problem.terms.exposed > 0
            and not problem.crossing.needs_update
        )
        self.optimiser: Lbfgs | Adam = (
            Lbfgs() if how.optimiser == "lbfgs" else Adam(how.rate, how.iterations, how.warm_up, how.signed)
        )
        self.load()

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.level == len(self.how.levels)

    @property
    def answer(self) -> Tensor:
        """The best point of the last level; the newest one where a search was stopped before that."""
        if math.isfinite(self.lowest) or self.finished:
            return self.best
        level = self.how.levels[self.level]
        return self.point if level == 1 else self.problem.finest(self.point, level)

    def job(self, tells: Tells, stop: Callable[[], bool]) -> None:
        """The same as `go`, in a process of its own."""
        self.go(lambda standing: tells(asdict(standing)), stop)

    def go(self, progress: Progress, stop: Callable[[], bool]) -> None:
        """Work through the levels, and note where it ended."""
        self.clock = time.perf_counter() - self.seconds
        self._descend(progress, stop)
        self._save()
        if self.finished:
            progress(Standing(self.restart, self.done, self.how.iterations, self.lowest, ended=True))

    def _descend(self, progress: Progress, stop: Callable[[], bool]) -> None:
        how, part = self.how, self.how.iterations // (2 * max(1, len(self.how.levels) - 1))
        told = self.done
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
                    return
                self.point, value, slope, used = self.optimiser.step(self.point, value, slope, evaluate)
                self.used, self.done = self.used + used, self.done + used
                # Objectives of different levels cannot be compared: only the last level's count.
                if last and value < self.lowest:
                    self.lowest, self.best = value, self.point
                if self.done - told >= EVERY:
                    told = self.done
                    progress(Standing(self.restart, self.done, how.iterations, value))
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

    def _save(self) -> None:
        self.seconds = time.perf_counter() - self.clock
        if self.path is None:
            return
        from safetensors.torch import save

        state = {
            "level": self.level, "used": self.used, "done": self.done, "lowest": str(self.lowest),
            "seconds": self.seconds,
        }  # fmt: skip
        tensors = {"point": self.point, "best": self.best.clone()}
        tensors |= {f"optimiser.{n}": t.contiguous() for n, t in self.optimiser.tensors().items()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # A new file of a name that cannot be guessed: nobody's link is written through. A kill's leftovers are swept.
        handle, beside = tempfile.mkstemp(prefix=f".new-{self.path.name}.", dir=self.path.parent)
        with open(handle, "wb") as file:
            file.write(save(tensors, metadata={"key": self.key, "state": json.dumps(state)}))
        os.replace(beside, self.path)

    def load(self) -> None:
        """Go on from the notes, if there are any of this very search."""
        if self.path is None or not self.path.is_file() or self.path.is_symlink():
            return
        from safetensors import safe_open

        with safe_open(self.path, framework="pt") as file:
            meta = file.metadata()
            if meta.get("key") != self.key:
                return  # another search's: this one starts afresh and will replace it
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        state = json.loads(meta["state"])
        self.point, self.best, self.lowest = tensors["point"], tensors["best"], float(state["lowest"])
        self.level, self.used, self.done, self.seconds = (state[n] for n in ("level", "used", "done", "seconds"))
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
    """Names a search: its evidence, its settings, its start."""
    digest = hashlib.blake2b(digest_size=12)
    settings = [asdict(how), asdict(problem.terms), asdict(problem.recipe), repr(problem.crossing.treatment), seed]
    digest.update(json.dumps(settings).encode())
    for part in (problem.start, problem.evidence.change, problem.evidence.inputs):
        for name, value in part.items():
            digest.update(name.encode() + value.detach().contiguous().numpy().tobytes())
    digest.update(problem.canvas.start.contiguous().numpy().tobytes())
    return digest.hexdigest()
