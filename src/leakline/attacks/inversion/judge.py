"""How much a reconstruction shows: SSIM, PSNR, RDLV with its null, and whether it gives its source away (IIP)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from leakline.attacks.base import Artefact
from leakline.attacks.inversion import media
from leakline.attacks.inversion.embedding import embed
from leakline.attacks.inversion.lineup import Pool
from leakline.leakage.images import (
    Identification,
    Variant,
    assign,
    iip,
    iip_exact,
    p_value,
    pairwise_ssim,
    psnr,
    rdlv,
    rdlv_max,
    rdlv_null,
)
from leakline.leakage.interval import clopper_pearson, mean_interval
from leakline.randomness import Stream
from leakline.readings import Fact, Reading

_LOOKED = "; too small: which image each stands for was settled by looking at the reconstructions"

MOST_DECIBELS = 200.0
"""PSNR of equal images, which have no finite one."""


FAILED = 1.5
"""From this misfit on a search is said to have failed. At the client's own images it is 1 within sqrt(2 / values), a
few hundredths at most; the rest is for posteriors that are not quite fitted."""


@dataclass(frozen=True)
class Reconstruction:
    """The reconstructions of one turn [N, C, H, W], and what they took."""

    images: Tensor
    objective: float
    iterations: int
    seconds: float
    exposed: tuple[str, ...] = ()
    classes: tuple[int, ...] = ()
    misfit: float | None = None
    """The update's surprise over what it is at the client's own images, where noise is weighed: far above 1 the search
    failed, whatever the defence does."""


@dataclass(frozen=True)
class UnknownImages:
    """A turn whose images the examiner does not have either: of a recording."""

    client: str
    index: int


@dataclass(frozen=True)
class TrueImages:
    """The images of one turn, the prior, and sets of public images [sets, N, C, H, W].

    ``pool``: images to look for the source among; without it ``unread`` says why there is none. ``noise``: how much of
    it the defence adds, in the defence's own unit.
    """

    images: Tensor
    prior: Tensor
    decoys: Tensor | None
    client: str
    index: int
    pool: Pool | None = None
    noise: float = 0.0
    unread: str = ""


Secret = TrueImages | UnknownImages


def readings(guesses: Sequence[Reconstruction], secrets: Sequence[Secret]) -> list[Reading | Artefact]:
    """Per client and round, then over all of them; with the pictures. Of unknown turns only the objective is said."""
    turns = list(zip(guesses, secrets, strict=True))
    unknown = [
        made for guess, secret in turns if isinstance(secret, UnknownImages) for made in _unscored(guess, secret)
    ]
    return unknown + _scored([(guess, secret) for guess, secret in turns if isinstance(secret, TrueImages)])


def _unscored(guess: Reconstruction, secret: UnknownImages) -> list[Reading | Artefact]:
    """How well the reconstructions explain the update, and the pictures."""
    labels = ", ".join(map(str, guess.classes))
    objective = Reading(
        "objective", guess.objective, n=len(guess.images), client=secret.client, round=secret.index,
        about={**_took(guess), "labels": labels}, note=f"{guess.iterations} iterations; labels found: {labels}",
    )  # fmt: skip
    return [objective, media.unscored(secret.client, secret.index, guess.images)]


def _scored(turns: Sequence[tuple[Reconstruction, TrueImages]]) -> list[Reading | Artefact]:
    """Held against the truth.

    RDLV takes for every true image the best of all reconstructions (as the paper), so luck grows with their number:
    ``chance`` is the mean of the same maximum over decoys, reconstructions of *other* turns where their number fits
    and sets of public images, and p says how often decoys did as well.

    IIP looks for each reconstruction's nearest image (cosine in an embedding) among all clients' training images and
    the server's public ones. ``iip``: it is one of the client's; ``iip-exact``: it is the very image. ``cosine`` is
    the mean cosine to the nearest, its chance what public images reach among the others. Intervals are over images
    (95 %), where there are several: Student's, or exact for shares.
    """
    found: list[Reading | Artefact] = []
    whole = _Whole()
    for guess, secret in turns:
        pairs = paired(guess, secret)
        leak = rdlv_max(secret.images, guess.images, secret.prior, variant=_window(secret))
        null = _null(guess, secret, turns)
        peak = psnr(secret.images[[p.truth for p in pairs]], guess.images[[p.made for p in pairs]])
        peak = peak.clamp(max=MOST_DECIBELS)
        luck: dict[str, Fact] = (
            {} if null is None else {"p": p_value(float(leak.mean()), null.mean(1)), "decoys": len(null)}
        )
        told = f"p = {luck['p']:.3g} against {luck['decoys']} decoys" if luck else ""
        turn = _Turn(secret)
        prior = float(np.mean([p.prior for p in pairs]))
        scene = media.Scene(secret.client, secret.index, secret.noise)
        told_apart: list[Reading | Artefact] = []
        again: list[float] | None = None
        if secret.pool is not None:
            told_apart, again = _identify(turn, secret.pool, guess, pairs, whole, scene)
        worst = {**_took(guess), **nearest([p.ssim for p in pairs], again)}
        found += [
            turn.line("ssim", [p.ssim for p in pairs], prior, _effort(guess, secret), worst),
            Reading("psnr", float(peak.mean()), n=len(peak), client=secret.client, round=secret.index),
            turn.line("rdlv", leak.tolist(), None if null is None else float(null.mean()), told, luck),
        ]
        whole.add("ssim", secret, [p.truth for p in pairs], [p.ssim for p in pairs])
        whole.add("prior", secret, [p.truth for p in pairs], [p.prior for p in pairs])
        whole.add("rdlv", secret, range(len(leak)), leak.tolist())
        found += [media.images_of(scene, secret.images, secret.prior, guess.images, pairs), *told_apart]
    return found + whole.lines()


def nearest(scores: Sequence[float], again: Sequence[float] | None) -> dict[str, Fact]:
    """The SSIM of the image that is most like its original, and whether that one was found again (1) or not (0)."""
    best = int(np.argmax(scores))
    found: dict[str, Fact] = {"nearest": float(scores[best])}
    return found if again is None else {**found, "nearest-again": float(again[best])}


def paired(guess: Reconstruction, secret: TrueImages) -> list[media.Pair]:
    """Which true image each reconstruction stands for: one-to-one with the largest sum of SSIM."""
    window = _window(secret)
    scores = pairwise_ssim(secret.images, guess.images, variant=window)
    pairs = [(t, i) for i, t in enumerate(assign(scores).tolist()) if t >= 0]
    rows, columns = [t for t, _ in pairs], [i for _, i in pairs]
    known = pairwise_ssim(secret.images, secret.prior, variant=window)[:, 0]
    gain = rdlv(secret.images[rows], guess.images[columns], secret.prior, variant=window)
    return [
        media.Pair(t, i, float(scores[t, i]), float(known[t]), float(g))
        for t, i, g in zip(rows, columns, gain, strict=True)
    ]


def _identify(
    turn: _Turn, pool: Pool, guess: Reconstruction, pairs: Sequence[media.Pair], whole: _Whole, scene: media.Scene
) -> tuple[list[Reading | Artefact], list[float]]:
    """IIP in both variants and cosine, and the points; and for each pair whether it is the very image (1) or not."""
    secret = turn.secret
    line_up = pool.lineup(secret.client, secret.images)
    made = embed(pool.network, guess.images)
    kept = made[[p.made for p in pairs]]
    rng = Stream(0, secret.index, secret.client, "gradient-inversion/iip").numpy()
    same = iip(made, line_up.features, line_up.owners, secret.client, rng=rng)
    exact = iip_exact(kept, line_up.features, line_up.places[[p.truth for p in pairs]], rng=rng)
    points = media.points_of(scene, line_up.features[line_up.places], embed(pool.network, secret.prior), made)
    count = len(line_up.owners)
    size = f"{count} images"
    own = np.array([owner == secret.client for owner in line_up.owners])
    looked = _LOOKED if len(secret.images) > 1 else ""
    hits = first_hits(same.nearest.numpy(), own)
    right = (exact.nearest == line_up.places[[p.truth for p in pairs]]).double().tolist()
    whole.add("iip", secret, range(len(hits)), hits, same)
    whole.add("iip-exact", secret, [p.truth for p in pairs], right, exact)
    whole.add("cosine", secret, range(len(hits)), same.cosine.tolist())
    whole.near = pool.near
    lines: list[Reading | Artefact] = [
        points,
        turn.line(
            "iip", hits, same.chance, f"p = {same.p_value:.3g} by permutation of {size}",
            {"p": same.p_value, "pool": count},
        ),
        turn.line(
            "iip-exact", right, exact.chance, f"p = {exact.p_value:.3g} by permutation of {size}{looked}",
            {"p": exact.p_value, "pool": count},
        ),
        turn.line("cosine", same.cosine.tolist(), pool.near, f"to the nearest of {size}", {"pool": count}),
    ]  # fmt: skip
    return lines, right


def first_hits(nearest: np.ndarray, own: np.ndarray) -> list[float]:
    """1 for a reconstruction that is the first to have its nearest image, if that is the client's; IIP is the mean."""
    first = np.zeros(len(nearest), dtype=bool)
    first[np.unique(nearest, return_index=True)[1]] = True
    return (first & own[nearest]).astype(float).tolist()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Turn:
    """Writes lines about one client in one round."""

    secret: TrueImages

    def line(
        self, measure: str, values: Sequence[float], chance: float | None, note: str, about: Mapping[str, Fact]
    ) -> Reading:
        low, high = _interval(values)
        return Reading(
            measure, float(np.mean(values)), low, high, len(values), client=self.secret.client,
            round=self.secret.index, chance=chance, about=about, note=note,
        )  # fmt: skip


@dataclass
class _Whole:
    """Collects what was read of every image, over rounds and clients."""

    values: dict[str, dict[tuple[str, int], list[float]]] = field(default_factory=dict)
    identified: dict[str, list[tuple[int, Identification]]] = field(default_factory=dict)
    near: float | None = None

    def add(
        self, measure: str, secret: TrueImages, images: Sequence[int], values: Sequence[float],
        found: Identification | None = None,
    ) -> None:  # fmt: skip
        mine = self.values.setdefault(measure, {})
        if found is not None:
            self.identified.setdefault(measure, []).append((len(values), found))
        for image, value in zip(images, values, strict=True):
            mine.setdefault((secret.client, image), []).append(value)

    def lines(self) -> list[Reading]:
        """Over all images; several rounds of one image are no independent ones and are averaged first."""
        if not self.values:
            return []
        prior = float(np.mean([np.mean(v) for v in self.values["prior"].values()]))
        found = [
            self._line("ssim", prior, "mean over attacked images; chance is the prior's"),
            self._line("rdlv", 0.0, "mean over attacked images; above 0: nearer to the truth than the prior was"),
        ]
        for measure, turns in self.identified.items():
            share = np.array([count for count, _ in turns], dtype=np.float64)
            share /= share.sum()
            null = share @ np.stack([one.null for _, one in turns])
            observed, chance = (float(x) for x in share @ np.array([[one.score, one.chance] for _, one in turns]))
            p = p_value(observed, null)
            note = f"over attacked images; p = {p:.3g} by permutation"
            if measure == "iip-exact" and any(count > 1 for count, _ in turns):
                note += _LOOKED
            found.append(self._line(measure, chance, note, {"p": p}))
        if self.identified:
            found.append(self._line("cosine", self.near, "to the nearest, mean over attacked images"))
        return found

    def _line(self, measure: str, chance: float | None, note: str, about: Mapping[str, Fact] | None = None) -> Reading:
        values = [float(np.mean(v)) for v in self.values[measure].values()]
        low, high = _interval(values)
        return Reading(
            measure, float(np.mean(values)), low, high, len(values), chance=chance, about=about or {}, note=note
        )


def _interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Student's, over images; exact where each image is a yes or a no."""
    if len(values) < 2:
        return None, None
    share = set(values) <= {0.0, 1.0}
    mean = clopper_pearson(round(sum(values)), len(values)) if share else mean_interval(values)
    return mean.low, mean.high


def _took(guess: Reconstruction) -> dict[str, Fact]:
    more: dict[str, Fact] = {"exposed": guess.exposed[0]} if guess.exposed else {}
    if guess.misfit is not None:
        more["misfit"] = round(guess.misfit, 3)
    return {"iterations": guess.iterations, "seconds": round(guess.seconds, 3), **more}


def _effort(guess: Reconstruction, secret: TrueImages) -> str:
    note = f"{guess.iterations} iterations, {guess.seconds / 60:.1f} min"
    if guess.exposed:
        note += f"; input of {guess.exposed[0]} read exactly"
    if guess.misfit is not None and guess.misfit > FAILED:
        note += f"; fits {guess.misfit:.1f} times worse than the client's own images: the search failed, not the leak"
    return f"{note}; no IIP: {secret.unread}" if secret.unread else note


def _window(secret: TrueImages) -> Variant:
    """SSIM's usual window, or the small one for images that it does not fit into."""
    return "gaussian" if min(secret.images.shape[-2:]) >= 11 else "uniform"


def _null(
    guess: Reconstruction, secret: TrueImages, turns: Sequence[tuple[Reconstruction, TrueImages]]
) -> Tensor | None:
    """RDLV of decoys [sets, images]: other turns' reconstructions with other images, and public images."""
    count = len(guess.images)
    sets = [
        g.images
        for g, s in turns
        if s.client != secret.client and len(g.images) == count and not _share(s.images, secret.images)
    ]
    if secret.decoys is not None:
        sets += list(secret.decoys)
    return rdlv_null(secret.images, torch.stack(sets), secret.prior, variant=_window(secret)) if sets else None


def _share(a: Tensor, b: Tensor) -> bool:
    """Whether two clients hold an image in common (paper 001's clients 1 and 9 do)."""
    return any(torch.equal(one, other) for one in a for other in b)
