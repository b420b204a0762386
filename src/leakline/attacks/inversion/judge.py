"""How much a reconstruction shows: SSIM, PSNR, RDLV with its null, and the pictures themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leakline.leakage.images import assign, bootstrap_interval, p_value, pairwise_ssim, psnr, rdlv_max, rdlv_null
from leakline.readings import Reading


@dataclass(frozen=True)
class Guess:
    """The reconstructions of one turn [N, C, H, W], and what they took."""

    images: Tensor
    objective: float
    iterations: int
    seconds: float
    exposed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Truth:
    """The images of one turn, the prior, sets of public images [sets, N, C, H, W], and where pictures go."""

    images: Tensor
    prior: Tensor
    decoys: Tensor | None
    client: str
    index: int
    media: Path


def readings(guesses: Sequence[Guess], secrets: Sequence[Truth]) -> list[Reading]:
    """Per client and round, then over all of them.

    RDLV takes for every true image the best of all reconstructions (as the paper), so luck grows with their number:
    ``chance`` is the mean of the same maximum over decoys, reconstructions of *other* turns where their number fits
    and sets of public images, and the note says how often decoys did as well.
    """
    found: list[Reading] = []
    every: list[float] = []
    for place, (guess, secret) in enumerate(zip(guesses, secrets, strict=True)):
        scores = pairwise_ssim(secret.images, guess.images)
        pairs = assign(scores)  # one truth for each reconstruction
        mine = torch.tensor([float(scores[t, i]) for i, t in enumerate(pairs.tolist()) if t >= 0])
        peak = torch.stack(
            [psnr(secret.images[t : t + 1], guess.images[i : i + 1])[0] for i, t in enumerate(pairs.tolist())]
        )
        known = pairwise_ssim(secret.images, secret.prior)[:, 0]
        leak = rdlv_max(secret.images, guess.images, secret.prior)
        null = _null(place, guesses, secrets)
        luck = None if null is None else float(null.mean())
        note = f"{guess.iterations} iterations, {guess.seconds / 60:.1f} min"
        if guess.exposed:
            note += f"; input of {guess.exposed[0]} read exactly"
        where = {"client": secret.client, "round": secret.index, "better": "lower"}
        found.append(Reading("ssim", float(mine.mean()), n=len(mine), chance=float(known.mean()), note=note, **where))  # type: ignore[arg-type]
        found.append(Reading("psnr", float(peak.mean()), n=len(peak), **where))  # type: ignore[arg-type]
        told = "" if null is None else f"p = {p_value(float(leak.mean()), null.mean(1)):.3g} against {len(null)} decoys"
        found.append(Reading("rdlv", float(leak.mean()), n=len(leak), chance=luck, note=told, **where))  # type: ignore[arg-type]
        every += leak.tolist()
        save(secret, guess, mine)
    rng = np.random.default_rng(len(every))
    low, high = bootstrap_interval(np.array(every), rng=rng) if len(every) > 1 else (None, None)
    found.append(
        Reading(
            "rdlv", float(np.mean(every)), low, high, len(every), chance=0.0, better="lower",
            note="mean over attacked images; above 0: nearer to the truth than the prior was",
        )
    )  # fmt: skip
    return found


def _null(place: int, guesses: Sequence[Guess], secrets: Sequence[Truth]) -> Tensor | None:
    """RDLV of decoys [sets, images]: other turns' reconstructions with other images, and public images."""
    secret, count = secrets[place], len(guesses[place].images)
    sets = [
        g.images
        for g, s in zip(guesses, secrets, strict=True)
        if s.client != secret.client and len(g.images) == count and not _share(s.images, secret.images)
    ]
    if secret.decoys is not None:
        sets += list(secret.decoys)
    return rdlv_null(secret.images, torch.stack(sets), secret.prior) if sets else None


def _share(a: Tensor, b: Tensor) -> bool:
    """Whether two clients hold an image in common (paper 001's clients 1 and 9 do)."""
    return any(torch.equal(one, other) for one in a for other in b)


def save(secret: Truth, guess: Guess, scores: Tensor) -> None:
    """The arrays as .npy and a strip of pictures (truth, prior, reconstruction) as .png."""
    secret.media.mkdir(parents=True, exist_ok=True)
    for name, images in (("truth", secret.images), ("prior", secret.prior), ("reconstruction", guess.images)):
        np.save(secret.media / f"{name}.npy", images.numpy().astype(np.float32), allow_pickle=False)
    from PIL import Image

    rows = [
        torch.cat([secret.images[i], secret.prior[0], guess.images[i]], dim=-1)
        for i in range(min(len(secret.images), len(guess.images), 8))
    ]
    pixels = (torch.cat(rows, dim=-2).clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    picture = Image.fromarray(pixels[0] if pixels.shape[0] == 1 else pixels.transpose(1, 2, 0))
    picture.save(secret.media / "strip.png")
