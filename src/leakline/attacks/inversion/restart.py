"""One restart of a search: all levels, then the posterior's draws, with a stop at any moment and a way to go on."""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from leakline.attacks.inversion.optimise import Adam, Lbfgs
from leakline.attacks.inversion.posterior import HELD, around, free_energy, mean
from leakline.attacks.inversion.problem import Problem
from leakline.attacks.inversion.schedule import EVERY, Progress, Search, Standing
from leakline.randomness import Stream
from leakline.runtimes.forks import Tells


class Restart:
    """One restart: its point, its optimiser, its place in the schedule (all levels, then the posterior's draws)."""

    def __init__(
        self, problem: Problem, how: Search, seed: int, start: Tensor, restart: int, path: Path | None, key: str
    ) -> None:
        self.problem, self.how, self.seed, self.restart, self.path, self.key = problem, how, seed, restart, path, key
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
        self.surprise: float | None = None
        self.load()

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.level == len(self.how.levels) and (not self.how.draws or self.used == self.how.draws)

    @property
    def _drawing(self) -> bool:
        """Whether a posterior has been begun: all levels are done, and draws were made since."""
        return self.level == len(self.how.levels) and self.used > 0

    @property
    def most(self) -> int:
        """Evaluations at most."""
        return self.how.iterations + self.how.draws

    @property
    def answer(self) -> Tensor:
        """The posterior's mean, or the best point of the last level; the newest one if it was stopped before that."""
        if self.surprise is not None:
            return mean(self.point, self.problem.canvas.size)
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
        if self.level == len(self.how.levels) and self.how.draws:
            self._draw(progress, stop)
        self._save()
        if self.finished:
            progress(Standing(self.restart, self.done, self.most, self.lowest, ended=True))

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
                    progress(Standing(self.restart, self.done, self.most, value))
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

    def _adam(self) -> Adam:
        """The posterior's optimiser."""
        return Adam(self.how.rate, self.how.draws, self.how.warm_up)

    def _draw(self, progress: Progress, stop: Callable[[], bool]) -> None:
        """Fit the posterior around the likeliest images: every step of Adam sees one draw."""
        how, size = self.how, self.problem.canvas.size
        if not self._drawing:
            self.point, self.optimiser = around(self.best, size), self._adam()
        adam = self.optimiser
        assert isinstance(adam, Adam)
        seen = replace(self.problem, terms=replace(self.problem.terms, belief=0.0))  # the divergence has the belief
        while self.used < how.draws:
            if stop():
                return
            stream = Stream(self.seed, self.used, f"restart-{self.restart}", "inversion/draw")
            noise = torch.randn(size, generator=stream.torch())
            surprise, energy, slope = free_energy(seen.evaluate, self.point, noise)
            self.point = adam.moved(self.point, slope)
            self.used, self.done = self.used + 1, self.done + 1
            if math.isfinite(energy):
                held = HELD if self.surprise is not None else 0.0
                self.lowest = held * self.lowest + (1 - held) * energy if held else energy
                self.surprise = held * (self.surprise or 0.0) + (1 - held) * surprise
            if self.used % EVERY == 0:
                progress(Standing(self.restart, self.done, self.most, self.lowest))
                self._save()

    def _save(self) -> None:
        self.seconds = time.perf_counter() - self.clock
        if self.path is None:
            return
        from safetensors.torch import save

        state = {
            "level": self.level, "used": self.used, "done": self.done, "lowest": str(self.lowest),
            "seconds": self.seconds, "surprise": self.surprise,
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
        self.surprise = state["surprise"]
        if self._drawing:
            self.optimiser = self._adam()
        self.optimiser.restore(
            {n.removeprefix("optimiser."): t for n, t in tensors.items() if n.startswith("optimiser.")}
        )
