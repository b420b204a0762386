"""The server's side at 6.5 million parameters: combine, median, clip, noise, distance, and the memory of a round.

Times are against what one would write first, with one thread. Goals are the ratios of `perf.md`'s measurements
("or better"), so that they hold on other machines too.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from memory import counted, peak, started
from rows import Row, interleaved, milliseconds, ratio
from torch import Tensor

from leakline.mechanisms import add_gaussian, clip_norm, distances
from leakline.messages import Update
from leakline.models.papers import Paper000CNN
from leakline.randomness import SecretNoise, SeededNoise, Stream
from leakline.runtimes.machine import tune_allocator
from leakline.strategies.combine import Mean, Median
from leakline.weights import Layout, Weights

TITLE = "Server, 6.5 million parameters, one thread"
TUNED = "The same with leakline's allocator settings, which a run has and what one would write first has not"
PAIRS = 20
"""Of the 1,225 pairs of 50 clients the naive loop does this many; the rest is extrapolated."""


def versus(name: str, ours: Callable[[], object], other: str, theirs: Callable[[], object], repeats: int) -> Row:
    """One comparison without a goal."""
    times = interleaved({"ours": ours, "theirs": theirs}, repeats)
    return Row(
        TITLE,
        f"{name} / {other}",
        ratio(times["ours"], times["theirs"]),
        note=milliseconds(times["ours"], times["theirs"], other),
    )


def judged(row: Row, at_most: float) -> Row:
    """The same with a goal."""
    return replace(row, at_most=at_most)


def naive(rows: list[Tensor], layout: Layout, pairs: list[tuple[int, int]], kind: torch.dtype) -> list[float]:
    """The distance of paper 000 by its definition, pair by pair."""
    places = list(layout.slices.values())
    return [
        float(torch.stack([(rows[i][p].to(kind) - rows[j][p].to(kind)).norm() for p in places]).mean())
        for i, j in pairs
    ]


def distance_rows(vectors: list[Tensor], layout: Layout, repeats: int) -> list[Row]:
    """Pairwise distances among few and among many, and their error against float64."""
    every = [(i, j) for i in range(4) for j in range(i)]
    few = versus(
        "pairwise distances of 4",
        lambda: distances(vectors[:4], layout),
        "pair by pair",
        lambda: naive(vectors[:4], layout, every, torch.float32),
        repeats,
    )
    some = [(i, (i * 7 + 1) % 50) for i in range(PAIRS)]
    times = interleaved(
        {
            "ours": lambda: distances(vectors, layout),
            "theirs": lambda: naive(vectors, layout, some, torch.float32),
        },
        max(1, repeats // 2),
    )
    whole = [t * (50 * 49 / 2) / PAIRS for t in times["theirs"]]
    found, exact = distances(vectors, layout), naive(vectors, layout, some, torch.float64)
    error = max(abs(float(found[i, j]) - d) / d for (i, j), d in zip(some, exact, strict=True))
    note = (
        f"{statistics.median(times['ours']):.2f} s; pair by pair {statistics.median(whole):.1f} s, from {PAIRS} pairs"
    )
    return [
        judged(few, 116 / 201),
        Row(TITLE, "pair by pair / pairwise distances of 50", ratio(whole, times["ours"]), at_least=10.0, note=note),
        Row(TITLE, "relative error of the distances of 50", error, "", at_most=1e-5, note="against float64"),
    ]


def memory(what: str) -> float:
    """The largest memory (MB) of a process and its children while it works."""
    with started("memory_round.py", what) as process:
        return peak(process)


def memory_rows() -> list[Row]:
    """What a round needs beyond the model's own training."""
    if not counted():
        print("server: the memory of a round is left out (no /proc/PID/smaps_rollup here)")
        return []
    training, whole = memory("training"), memory("round")
    note = f"peak {whole:.0f} MB, training alone {training:.0f} MB (all processes, shared pages counted once)"
    return [Row("Memory", "a round of 50 clients, fedavg, above training", whole - training, "MB", 1000.0, note=note)]


def main(repeats: int) -> list[Row]:
    """All of it; memory first, while this process is small."""
    made = memory_rows()
    torch.set_num_threads(1)
    layout = Layout.of(Paper000CNN().build((1, 128, 128), 4))
    generator = torch.Generator().manual_seed(0)
    vectors = [torch.randn(layout.size, generator=generator).mul_(1e-2) for _ in range(50)]
    updates = [Update(str(i), Weights(layout, v), 100, 8) for i, v in enumerate(vectors)]
    change, stream = vectors[0], Stream(0, 0, "server", "bench")
    four = np.stack([v.numpy() for v in vectors[:4]])
    made += [
        judged(
            versus(
                f"mean of {n}",
                lambda n=n: Mean()(iter(updates[:n])),  # type: ignore[misc]
                "stack().mean()",
                lambda n=n: torch.stack(vectors[:n]).mean(0),  # type: ignore[misc]
                repeats,
            ),
            goal,
        )
        for n, goal in ((4, 40 / 165), (50, 232 / 1912))
    ]
    made += [
        judged(
            versus(
                "median of 4", lambda: Median()(iter(updates[:4])), "np.median", lambda: np.median(four, 0), repeats
            ),
            241 / 1255,
        ),
        versus(
            "clip",
            lambda: clip_norm(change, 1.0),
            "x * min(1, C / norm)",
            lambda: change * min(1.0, 1.0 / float(change.norm())),
            repeats,
        ),
        versus(
            "seeded noise",
            lambda: add_gaussian(change, 1.0, SeededNoise(stream)),
            "x + randn",
            lambda: change + torch.randn(layout.size),
            repeats,
        ),
        versus(
            "secret noise (ChaCha20, float64, on a grid)",
            lambda: add_gaussian(change, 1.0, SecretNoise()),
            "x + randn",
            lambda: change + torch.randn(layout.size),
            repeats,
        ),
    ]
    made += distance_rows(vectors, layout, repeats)
    tune_allocator()  # for good, hence last
    made += [
        replace(
            versus(
                f"mean of {n}",
                lambda n=n: Mean()(iter(updates[:n])),  # type: ignore[misc]
                "stack().mean()",
                lambda n=n: torch.stack(vectors[:n]).mean(0),  # type: ignore[misc]
                repeats,
            ),
            table=TUNED,
        )
        for n in (4, 50)
    ]
    made.append(
        replace(
            versus(
                "median of 4", lambda: Median()(iter(updates[:4])), "np.median", lambda: np.median(four, 0), repeats
            ),
            table=TUNED,
        )
    )
    return made + [
        replace(row, table=TUNED, at_most=None, at_least=None) for row in distance_rows(vectors, layout, repeats)
    ]
