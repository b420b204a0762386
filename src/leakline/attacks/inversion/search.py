"""The search for images: from coarse to fine, from several starts, with a stop at any moment and a way to go on."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from leakline.attacks.inversion.problem import Problem
from leakline.attacks.inversion.restart import Restart
from leakline.attacks.inversion.schedule import COARSE_TO_FINE, TEMPERED, Progress, Search, Standing, silent
from leakline.errors import StackError
from leakline.runtimes.forks import FORKABLE, side_by_side


@dataclass(frozen=True)
class Found:
    """What a search came to: the images and labels of the lowest objective, and how each restart ended.

    ``seconds`` is the time of all restarts together, whether they ran one after another or side by side. ``surprise``
    is -log p(update | images), averaged over the posterior, where one was fitted.
    """

    images: Tensor
    targets: Tensor
    objective: float
    objectives: tuple[float, ...]
    iterations: int
    seconds: float
    gradients: dict[str, float] = field(default_factory=dict)
    surprise: float | None = None

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
    how = replace(how, draws=0)
    return how if how.levels else replace(how, levels=(1.0,) if problem.twin.smooth else COARSE_TO_FINE)


class _Task:
    """One problem: its restarts, and the best of them."""

    def __init__(self, problem: Problem, how: Search, seed: int, folder: Path | None) -> None:
        self.problem = problem
        starts = [_start(problem, how, seed, restart) for restart in range(how.restarts)]
        self.gradients = problem.check_gradient(starts[0] + 1e-3 * _noise(problem, seed, -1))
        key = _key(problem, how, seed)
        self.runs = [
            Restart(
                problem, how, seed, start, i, None if folder is None else folder / f"restart-{i:02d}.safetensors", key
            )
            for i, start in enumerate(starts)
        ]

    def found(self) -> Found:
        """The restart with the lowest objective; with a posterior before one without, where the search was stopped."""
        best = min(self.runs, key=lambda run: (run.surprise is None, run.lowest, -run.done))
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
            sum(run.done for run in self.runs), sum(run.seconds for run in self.runs), self.gradients, best.surprise,
        )  # fmt: skip


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
