"""How much an imprint took: likeness of each image to what stands for it, and whether it is found again among all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from torch import Tensor

from leakline.attacks.base import Artefact
from leakline.attacks.inversion import media
from leakline.attacks.inversion.judge import nearest
from leakline.leakage.images import Variant, assign, rdlv, ssim
from leakline.leakage.interval import clopper_pearson, mean_interval
from leakline.privacy import Seat
from leakline.readings import Fact, Reading

Ends = tuple[float | None, float | None]

TAKEN = 0.95
"""From this SSIM on an image counts as taken."""


@dataclass(frozen=True)
class Taken:
    """Images [N, C, H, W] that the attacker shows, and how many of them, the first, it is certain of."""

    images: Tensor = field(repr=False)
    certain: int


@dataclass(frozen=True)
class Held:
    """What the examiner knows: the client's images, public ones, and all that there are to look among.

    ``added``: what the client was shown; ``refused``: why it did not train it; ``promised``: whether the stack has a
    formal promise against the server.
    """

    client: str
    index: int
    images: Tensor = field(repr=False)
    shown: Tensor = field(repr=False)
    every: Tensor = field(repr=False)
    added: str
    refused: str = ""
    promised: bool = False


@dataclass(frozen=True)
class _Score:
    """Of every true image: SSIM of what stands for it, of the prior and of a decoy; whether something points at it.

    ``aimless`` is the chance of that, if everything shown pointed at some image at random.
    """

    ssim: list[float]
    prior: list[float]
    again: list[float]
    aimless: list[float]
    decoys: list[float]


def readings(guesses: Sequence[Taken], secrets: Sequence[Held]) -> list[Reading | Artefact]:
    """Per client and over all images. An image that nothing stands for counts with the prior (the public mean).

    ``images-recovered`` has for chance what public images reach in place of the attack's; ``iip-exact`` is the share of
    the images that are, for something shown, the nearest of all clients' and public images by correlation of pixels (no
    network is trained for it, and nobody looks which image is meant).
    """
    lines: list[Reading | Artefact] = []
    scores = []
    for guess, secret in zip(guesses, secrets, strict=True):
        prior = secret.shown.mean(0, keepdim=True)
        pairs = _paired(secret.images, guess.images, prior)
        score = _score(pairs, guess, secret, prior)
        scores.append(score)
        note = _words(guess, secret, score)
        lines += _lines(score, len(secret.every), note, secret.client, secret.index)
        if pairs:
            scene = media.Scene(secret.client, secret.index, 0.0)
            lines.append(media.images_of(scene, secret.images, prior, guess.images, pairs))
    if len(scores) > 1:
        whole = _Score(*([v for s in scores for v in getattr(s, f.name)] for f in fields(_Score)))
        every = Taken(guesses[0].images, sum(guess.certain for guess in guesses))
        lines += _lines(whole, len(secrets[0].every), _words(every, secrets[0], whole))
    elif scores:
        (score,), (guess,), (secret,) = scores, guesses, secrets
        lines += _lines(score, len(secret.every), _words(guess, secret, score))
    return lines


def _paired(truth: Tensor, made: Tensor, prior: Tensor) -> list[media.Pair]:
    """Which true image each stands for: one-to-one with the largest sum of correlations."""
    if not len(made):
        return []
    stands = [(t, i) for i, t in enumerate(assign(_alike(truth, made)).tolist()) if t >= 0]
    rows, columns = [t for t, _ in stands], [i for _, i in stands]
    window = _window(truth)
    alike = ssim(truth[rows], made[columns], variant=window).tolist()
    known = ssim(truth[rows], prior, variant=window).tolist()
    gain = rdlv(truth[rows], made[columns], prior, variant=window).tolist()
    return [media.Pair(*line) for line in zip(rows, columns, alike, known, gain, strict=True)]


def _score(pairs: Sequence[media.Pair], guess: Taken, secret: Held, prior: Tensor) -> _Score:
    count = len(secret.images)
    blind = ssim(secret.images, prior, variant=_window(secret.images)).tolist()
    reached = list(blind)
    for pair in pairs:
        reached[pair.truth] = pair.ssim
    pointed = (
        {_print(secret.every[i]) for i in _alike(secret.every, guess.images).argmax(0).tolist()} if pairs else set()
    )
    again = [float(_print(image) in pointed) for image in secret.images]
    decoys = _paired(secret.images, secret.shown, prior)
    lucky = {pair.truth: pair.ssim for pair in decoys}
    aimless = 1 - (1 - 1 / len(secret.every)) ** len(guess.images)  # as many fingers, pointing anywhere
    return _Score(reached, blind, again, [aimless] * count, [lucky.get(t, blind[t]) for t in range(count)])


def _print(image: Tensor) -> bytes:
    return image.contiguous().numpy().tobytes()


def _lines(score: _Score, pool: int, note: str, client: str | None = None, index: int | None = None) -> list[Reading]:
    count = len(score.ssim)
    mean = mean_interval(score.ssim)
    ends: Ends = (mean.low, min(mean.high, 1.0)) if count > 1 else (None, None)
    taken, luck = ([float(v >= TAKEN) for v in values] for values in (score.ssim, score.decoys))

    def line(measure: str, value: float, ends: Ends, chance: float, told: str, **about: Fact) -> Reading:
        facts = {"seat": str(Seat.MALICIOUS_SERVER), **about}
        return Reading(
            measure, value, *ends, n=count, round=index, client=client, chance=chance, about=facts, note=told
        )

    rate, again = (clopper_pearson(round(sum(values)), count) for values in (taken, score.again))
    pixels = f"nearest of {pool} images by pixels"
    worst = nearest(score.ssim, score.again)
    return [
        line("images-recovered", rate.value, (rate.low, rate.high), float(np.mean(luck)), note),
        line("ssim", mean.value, ends, float(np.mean(score.prior)), "chance is the mean of public images", **worst),
        line("iip-exact", again.value, (again.low, again.high), float(np.mean(score.aimless)), pixels, pool=pool),
    ]


def _words(guess: Taken, secret: Held, score: _Score) -> str:
    """How many, what the clients were shown for it, and what would have kept it out or did."""
    if secret.refused:
        return f"the altered model was refused: {secret.refused}"
    taken = sum(v >= TAKEN for v in score.ssim)
    text = f"{taken} of {len(score.ssim)} images, {guess.certain} certain; clients were sent {secret.added}"
    if secret.promised:
        return f"{text}; clip and noise act on the client, whatever it is sent: its promise against the server holds"
    return f"{text}; pinned-model would have refused it"


def _alike(truth: Tensor, made: Tensor) -> Tensor:
    """Correlations of pixels [truth, made]."""
    alike: Tensor = _unit(truth) @ _unit(made).T
    return alike


def _unit(images: Tensor) -> Tensor:
    flat = images.flatten(1).float()
    away = flat - flat.mean(1, keepdim=True)
    unit: Tensor = away / away.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return unit


def _window(images: Tensor) -> Variant:
    """SSIM's usual window, or the small one for images that it does not fit into."""
    return "gaussian" if min(images.shape[-2:]) >= 11 else "uniform"
