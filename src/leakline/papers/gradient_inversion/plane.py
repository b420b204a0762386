"""Figure 10 of paper 001: embeddings of images and of their reconstructions in the plane, by noise (t-SNE)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from leakline.papers.gradient_inversion.noise import filtered
from leakline.papers.gradient_inversion.store import OURS, Setting, settings
from leakline.report.charts.chart import Chart, Series
from leakline.study.store import folder_of

MOST_OF_A_TURN, MOST, FEWEST = 8, 800, 6
"""Points of one kind in one turn, points in all (the time of t-SNE grows with them), and points that make a picture."""
MOST_BYTES = 50_000_000


@dataclass(frozen=True)
class Point:
    """One embedded image."""

    kind: str
    client: str
    noise: float
    vector: np.ndarray


def figure_10(root: Path) -> Chart | None:
    """The picture, or None where the store holds too few embeddings."""
    found, left_out = points(root)
    if len(found) < FEWEST:
        return None
    places = embed(np.stack([p.vector for p in found]))
    series = []
    names = [_name(p) for p in found]
    for style, name in enumerate(sorted(dict.fromkeys(names), key=lambda n: _order(found[names.index(n)]))):
        chosen = [i for i, other in enumerate(names) if other == name]
        none = (None,) * len(chosen)
        x, y = (tuple(float(places[i, axis]) for i in chosen) for axis in (0, 1))
        labels = tuple(found[i].client for i in chosen)
        series.append(Series(name, style, x, y, none, none, none, none, labels))
    note = f"{len(found)} images; distances between far groups mean nothing in t-SNE, and near is no proof of a leak"
    if left_out:
        note += f"; {left_out} sets left out: the same images are elsewhere in their embedding, which is another one"
    title = "Figure 10: images and reconstructions by noise"
    return Chart(title, "t-SNE 1", "t-SNE 2", tuple(series), "points", note=note)


def embed(vectors: np.ndarray, seed: int = 0) -> np.ndarray:
    """Points of the plane for vectors [N, D] (van der Maaten and Hinton 2008), put to unit length first: cosines count.

    The perplexity is scikit-learn's 30, or a third of the points where they are few.
    """
    from sklearn.manifold import TSNE

    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    flat = (vectors / np.where(lengths > 0, lengths, 1.0)).astype(np.float64)
    perplexity = min(30.0, max(1.0, (len(flat) - 1) / 3))
    made: np.ndarray = TSNE(2, perplexity=perplexity, init="random", random_state=seed).fit_transform(flat)
    return made


def points(root: Path) -> tuple[list[Point], int]:
    """Embeddings of our attack's turns under the filter, originals and the prior once, and how many sets do not fit.

    Of one seed: another one has other images. Every run embeds for itself: sets are put together only if images that
    they share have the same vectors.
    """
    known: dict[tuple[str, str, int], np.ndarray] = {}
    found: list[Point] = []
    left_out = 0
    here = [s for s in filtered(settings(root)) if s.scenario == "nine-clients"]
    seed = here[0].cell.labels.get("seed") if here else None
    for setting in sorted((s for s in here if s.cell.labels.get("seed") == seed), key=lambda s: s.noise):
        for client, kinds, vectors in _sets(root, setting):
            own = {(k, client if k == "original" else "", i): v for k, i, v in _numbered(kinds, vectors)}
            shared = [key for key in own if key in known]
            width = next((len(p.vector) for p in found), vectors.shape[1])
            same = all(np.allclose(own[key], known[key], rtol=1e-3, atol=1e-4) for key in shared)
            if vectors.shape[1] != width or not same:
                left_out += 1
                continue
            for (kind, _, number), vector in own.items():
                fixed = kind in ("original", "prior")
                key = (kind, client if kind == "original" else "", number)
                if number < MOST_OF_A_TURN and len(found) < MOST and not (fixed and key in known):
                    found.append(Point(kind, client if kind != "prior" else "", setting.noise, vector))
            known |= {key: vector for key, vector in own.items() if key[0] in ("original", "prior")}
    return found, left_out


def _sets(root: Path, setting: Setting) -> Iterator[tuple[str, Sequence[str], np.ndarray]]:
    media = root / "runs" / str(setting.cell.key) / "media"
    ours = {folder_of(str(line.get("attack", ""))) for line in setting.cell.attacks if line.get("by") == OURS}
    for path in sorted(media.glob("*/round-*/*/embedding.npy")):
        attack, _, client = path.relative_to(media).parts[:3]
        if attack not in ours or any(part.is_symlink() for part in (path, *path.parents[:3])):
            continue
        try:
            if path.stat().st_size > MOST_BYTES:
                continue
            vectors = np.load(path, allow_pickle=False)
            about = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        except (OSError, ValueError, EOFError):
            continue
        kinds = about.get("kind") if isinstance(about, Mapping) else None
        if isinstance(kinds, list) and vectors.ndim == 2 and len(kinds) == len(vectors) and np.isfinite(vectors).all():
            yield client, [str(kind) for kind in kinds], vectors


def _numbered(kinds: Sequence[str], vectors: np.ndarray) -> Iterator[tuple[str, int, np.ndarray]]:
    """Each vector with its number among those of its kind."""
    count: dict[str, int] = {}
    for kind, vector in zip(kinds, vectors, strict=True):
        count[kind] = count.get(kind, -1) + 1
        yield kind, count[kind], vector


def _name(point: Point) -> str:
    return f"sigma0 = {point.noise:g}" if point.kind == "reconstruction" else point.kind


def _order(point: Point) -> tuple[Any, ...]:
    kinds = ("original", "prior", "reconstruction")
    return kinds.index(point.kind) if point.kind in kinds else len(kinds), point.noise
