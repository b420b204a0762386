"""The curves of paper 001's figures, and its Figure 10: embeddings of images and reconstructions in the plane."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from leakline.errors import StoreError
from leakline.papers.gradient_inversion import printed
from leakline.papers.gradient_inversion.figures import steps
from leakline.papers.gradient_inversion.means import NOT_SAFE, Measured, accuracy, measured
from leakline.papers.gradient_inversion.turns import OURS, Case, Turn, filtered, in_order, noisy, risky, turns
from leakline.report.charts.chart import Chart, Series
from leakline.results import Results
from leakline.results.settings import groups_of
from leakline.study.media import read_media
from leakline.study.store import folder_of

MOST_OF_A_TURN, MOST, FEWEST = 8, 800, 6
"""Points of one kind in one turn, points in all (the time of t-SNE grows with them), and points that make a picture."""
MOST_BYTES = 50_000_000
BAND = "band: 95 % t-interval over images, where there are several"
Points = Sequence[tuple[float, Measured | None]]


def charts(results: Results) -> dict[str, Chart]:
    """The figures that are curves, and Figure 10."""
    found: dict[str, Chart] = {}
    images = turns(results, lambda s: s.scenario == "images" and s.plain)
    found["fig6a"] = _by_attack("Figure 6a: by images in the step", "images in the step", images, lambda t: t.count)
    stepped = turns(results, lambda s: steps(s) is not None and s.plain)
    found["fig6b"] = _by_attack("Figure 6b: by local steps", "local steps", stepped, lambda t: steps(t.case))
    noise = noisy(results, "nine-clients")
    found["fig6c"] = _by_attack(
        "Figure 6c: the high-risk client by noise", "sigma0", risky(noise), lambda t: t.case.noise,
        f"the paper's prior has {printed.PRIOR_SSIM:g}",
    )  # fmt: skip
    main = leading(noise)
    found["fig8a"] = _by_client("Figure 8: RDLV by noise", "RDLV", main, "rdlv", "decoys (null)")
    found["fig8b"] = _accuracy(results)
    private = turns(results, lambda s: s.scenario == "dp-sgd")
    found["fig9"] = _by_attack(
        "Figure 9: RDLV under DP-SGD", "noise multiplier (0: none)", private, lambda t: t.case.noise, measure="rdlv",
        baseline="decoys (null)",
    )  # fmt: skip
    if (plane := figure_10(results)) is not None:
        found["fig10"] = plane
    found["fig11"] = _by_client("Figure 11: IIP by noise", "IIP (the client's image)", main, "iip", "chance")
    found["fig11-exact"] = _by_client("Figure 11: IIP, the very image", "IIP (exact)", main, "iip-exact", "chance")
    found["fig11-cosine"] = _by_client("Figure 11: cosine to the nearest", "cosine", main, "cosine", "decoys")
    return found


def leading(found: Sequence[Turn]) -> list[Turn]:
    """The turns of our attack, or of the first that was run."""
    first = next((a for a in (OURS, *(t.attack for t in found)) if any(t.attack == a for t in found)), "")
    return [t for t in found if t.attack == first]


def _by_attack(
    title: str,
    x: str,
    found: Sequence[Turn],
    key: Callable[[Turn], Any],
    note: str = "",
    measure: str = "ssim",
    baseline: str = "prior",
) -> Chart:
    """One line for each attack, and the baseline of the leading one."""
    series = []
    for style, (attack, own) in enumerate(groups_of(found, lambda t: t.attack).items()):
        series.append(line(attack, style, [(float(at), measured(some, measure)) for at, some in in_order(own, key)]))
    points = [(float(at), measured(some, measure)) for at, some in in_order(leading(found), key)]
    series.append(_flat(baseline, len(series), points))
    name = "SSIM" if measure == "ssim" else measure.upper()
    words = "; ".join(text for text in (note, BAND, NOT_SAFE) if text)
    return Chart(title, x, name, tuple(s for s in series if s.x), note=words)


def _by_client(title: str, y: str, found: Sequence[Turn], measure: str, baseline: str) -> Chart:
    """One line for each client over sigma0, and the mean baseline of all."""
    series = []
    for style, (client, own) in enumerate(in_order(found, lambda t: t.client)):
        points = [(x, measured(some, measure)) for x, some in in_order(own, lambda t: t.case.noise)]
        series.append(line(client, style, points))
    every = [(x, measured(some, measure)) for x, some in in_order(found, lambda t: t.case.noise)]
    series.append(_flat(f"{baseline}, mean over images", len(series), every))
    return Chart(title, "sigma0", y, tuple(s for s in series if s.x), note=f"{BAND}; {NOT_SAFE}")


def _accuracy(results: Results) -> Chart:
    every = filtered(results)
    series: list[Series] = []
    for scenario in dict.fromkeys(s.scenario for s in every):
        here = [s for s in every if s.scenario == scenario]
        levels = sorted({s.noise for s in here})
        points = [(x, accuracy([s for s in here if s.noise == x])) for x in levels]
        series.append(line(scenario, len(series), points))
        without = dict(points).get(0.0)
        if without is not None:
            flat = tuple(without.value for _ in levels)
            series.append(Series(f"{scenario}, without noise", len(series), tuple(levels), flat))
        series.append(_flat(f"{scenario}, commonest class", len(series), points))
    kept = tuple(s for s in series if s.x)
    note = "after the last round, on the server's test images; band: 95 % interval, or the seeds' range"
    return Chart("Figure 8: test accuracy by noise", "sigma0", "accuracy", kept, note=note, y_range=(0.0, 1.0))


def line(name: str, style: int, points: Points) -> Series:
    """Means with a band, which is as thin as the line where there is no interval."""
    kept = [(x, m) for x, m in points if m is not None]
    banded = any(m.low is not None and m.high is not None for _, m in kept)
    return Series(
        name, style, tuple(x for x, _ in kept), tuple(m.value for _, m in kept),
        tuple(m.value if m.low is None else m.low for _, m in kept) if banded else (),
        tuple(m.value if m.high is None else m.high for _, m in kept) if banded else (),
    )  # fmt: skip


def _flat(name: str, style: int, points: Points) -> Series:
    kept = [(x, m.chance) for x, m in points if m is not None and m.chance is not None]
    return Series(name, style, tuple(x for x, _ in kept), tuple(y for _, y in kept))


# --- Figure 10: embeddings of images and reconstructions in the plane, by noise (t-SNE) ---------------------------


@dataclass(frozen=True)
class Point:
    """One embedded image."""

    kind: str
    client: str
    noise: float
    vector: np.ndarray


def figure_10(results: Results) -> Chart | None:
    """The picture, or None where the store holds too few embeddings."""
    found, left_out = points(results)
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


def points(results: Results) -> tuple[list[Point], int]:
    """Embeddings of our attack's turns under the filter, originals and the prior once, and how many sets do not fit.

    Of one seed: another one has other images. Every run embeds for itself: sets are put together only if images that
    they share have the same vectors.
    """
    known: dict[tuple[str, str, int], np.ndarray] = {}
    found: list[Point] = []
    left_out = 0
    here = filtered(results, "nine-clients")
    seed = here[0].cell.labels.get("seed") if here else None
    for case in sorted((s for s in here if s.cell.labels.get("seed") == seed), key=lambda s: s.noise):
        for client, kinds, vectors in _sets(case):
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
                    found.append(Point(kind, client if kind != "prior" else "", case.noise, vector))
            known |= {key: vector for key, vector in own.items() if key[0] in ("original", "prior")}
    return found, left_out


def _sets(case: Case) -> Iterator[tuple[str, Sequence[str], np.ndarray]]:
    if case.cell.folder is None:
        return
    media = case.cell.folder / "media"
    ours = folder_of(case.cell.hashes.get(OURS, ""))
    for path in sorted(media.glob("*/round-*/*/embedding.npy")):
        attack, _, client = path.relative_to(media).parts[:3]
        if attack != ours or any(part.is_symlink() for part in (path, *path.parents[:3])):
            continue
        try:
            data = io.BytesIO(read_media(path, case.cell.folder, MOST_BYTES))
            vectors = np.load(data, allow_pickle=False)
            about = json.loads(read_media(path.with_suffix(".json"), case.cell.folder, MOST_BYTES))
        except (StoreError, ValueError, EOFError):
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
