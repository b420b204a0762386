"""The picture of one phantom slice: from a person's anatomy and a scanner to pixels, many at a time.

Every quantity is an array with one value per image; coordinates run from -1 to 1 over the field of view, so a
larger picture shows the same head in more detail.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from leakline.data.base import Trait


@dataclass(frozen=True)
class Anatomy:
    """What a patient's head looks like; ``atrophy`` is the only thing that the class shifts."""

    atrophy: np.ndarray  # 0 healthy .. 1 severe, with personal variation
    width: np.ndarray
    length: np.ndarray
    angle: np.ndarray
    asymmetry: np.ndarray
    ventricle: np.ndarray  # personal factor on ventricle size, unrelated to disease
    gyri: np.ndarray  # number of folds around the cortex
    phase: np.ndarray

    @classmethod
    def make(cls, first: tuple[np.ndarray, np.ndarray], severity: np.ndarray, rng: np.random.Generator) -> Anatomy:
        """Draw people: ``first`` is (ids, row of each one's first slice), ``severity`` is by row."""
        n, s = len(first[0]), severity[first[1]]
        return cls(
            atrophy=s + rng.normal(0, 0.13, n),
            width=rng.normal(0.68, 0.03, n),
            length=rng.normal(0.84, 0.03, n),
            angle=rng.normal(0, 0.12, n),
            asymmetry=rng.normal(0, 0.1, n),
            ventricle=np.exp(rng.normal(0, 0.12, n)),
            gyri=rng.integers(9, 15, n).astype(np.float64),
            phase=rng.uniform(0, 2 * np.pi, n),
        )

    def __len__(self) -> int:
        return len(self.atrophy)

    def take(self, rows: np.ndarray) -> Anatomy:
        """The people at these positions."""
        return Anatomy(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


@dataclass(frozen=True)
class Scanner:
    """What a site's scanner does to every picture."""

    contrast: np.ndarray  # exponent on intensities
    gain: np.ndarray
    bias: np.ndarray  # site x 3: slopes and curvature of the bias field
    noise: np.ndarray
    blur: np.ndarray  # share of each pixel that its neighbours get: lost resolution

    @classmethod
    def make(cls, sites: int, effect: float, rng: np.random.Generator) -> Scanner:
        """Draw scanners; with effect 0 they are all alike."""
        u = rng.uniform(-1, 1, (sites, 5))
        return cls(
            contrast=np.exp(0.3 * effect * u[:, 0]),
            gain=np.exp(0.12 * effect * u[:, 1]),
            bias=0.18 * effect * rng.uniform(-1, 1, (sites, 3)),
            noise=0.04 * np.exp(0.5 * effect * u[:, 2]),
            blur=np.clip(0.25 * (1 + effect * u[:, 3]), 0, 0.6),
        )

    def take(self, rows: np.ndarray) -> Scanner:
        """The scanners at these positions."""
        return Scanner(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def facts(self, i: int) -> dict[str, Trait]:
        """What a report may say about one scanner."""
        return {name: round(float(getattr(self, name)[i]), 4) for name in ("contrast", "gain", "noise", "blur")}


def draw(
    person: Anatomy, scanner: Scanner, size: int, lesions: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Pictures (uint8 N, H, W) and lesion masks (0/1) of one slice for each person."""
    n = len(person)
    level = rng.uniform(-0.5, 0.5, n)  # where the slice lies: ventricles are largest in the middle
    x, y = _head_coordinates(person, level, size)
    radius, angle = np.sqrt(x * x + y * y), np.arctan2(y, x)
    soft = np.float32(size * 0.35)  # edges are about three pixels wide at any size

    folds = np.cos(angle * _col(person.gyri) + _col(person.phase)) + 0.6 * np.cos(
        angle * _col(np.round(person.gyri * 1.7)) - 2 * _col(person.phase)
    )
    atrophy = np.clip(person.atrophy, -0.4, 1.6)
    brain = _col(0.88 - 0.035 * atrophy) - _col(0.012 + 0.014 * np.clip(atrophy, 0, None)) * folds
    white = brain - _col(0.17 - 0.025 * atrophy) + 0.035 * folds
    texture = _smooth(n, 12, size, rng)

    picture = 0.75 * _inside(1.0 - radius, soft) - 0.67 * _inside(0.93 - radius, soft)  # skull, then fluid
    picture += (0.47 + 0.05 * texture) * _inside(brain - radius, soft)
    picture += (0.2 + 0.03 * texture) * _inside(white - radius, soft)
    picture -= 0.6 * _ventricles(x, y, person, atrophy, level, soft)

    edge = _lesion(x, y, lesions, rng)
    mask = (edge > 0) & (radius < brain)
    picture += 0.3 * _inside(edge, soft) * (radius < brain)
    return _scan(picture, scanner, size, rng), mask.astype(np.uint8)


def _col(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32)[:, None, None]


def _inside(distance: np.ndarray, soft: np.float32) -> np.ndarray:
    """1 where the distance to an edge is positive, 0 where negative, a soft step between."""
    return 0.5 + 0.5 * np.clip(distance * soft, -1, 1)


def _head_coordinates(person: Anatomy, level: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixel positions in the head's own frame: the outer skull is the unit circle."""
    line = (np.arange(size, dtype=np.float32) + 0.5) * (2 / size) - 1
    shrink = 1 - 0.25 * level**2
    c, s = np.cos(person.angle), np.sin(person.angle)
    across, down = line[None, None, :], line[None, :, None]
    x = (_col(c) * across + _col(s) * down) / _col(person.width * shrink)
    y = (_col(c) * down - _col(s) * across) / _col(person.length * shrink)
    return x, y


def _ventricles(
    x: np.ndarray, y: np.ndarray, person: Anatomy, atrophy: np.ndarray, level: np.ndarray, soft: np.float32
) -> np.ndarray:
    """Two bent horns left and right of the middle, wider with atrophy, and the third ventricle."""
    wide = 0.085 * (1 + 0.75 * atrophy) * person.ventricle * (1 - 0.8 * level**2)
    tall = 0.30 * (1 + 0.25 * atrophy) * (1 - 0.8 * level**2)
    bent = np.abs(x) - 0.12 - 0.35 * y * y
    side = 1 + _col(person.asymmetry) * np.sign(x)
    horns = 1 - np.sqrt((bent / (_col(wide) * side)) ** 2 + (y / _col(tall)) ** 2)
    third = 1 - np.sqrt((x / _col(0.4 * wide)) ** 2 + ((y - 0.3) / 0.12) ** 2)
    return np.asarray(np.maximum(_inside(horns * _col(wide), soft), _inside(third * _col(0.4 * wide), soft)))


def _lesion(x: np.ndarray, y: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Distance inside the edge of an irregular blob in the brain; negative everywhere where there is none."""
    n = len(x)
    there = rng.random(n) < share
    turn, far = rng.uniform(0, 2 * np.pi, n), rng.uniform(0.25, 0.62, n)
    radius = rng.uniform(0.1, 0.26, n)
    dx, dy = x - _col(far * np.cos(turn)), y - _col(far * np.sin(turn))
    around = np.arctan2(dy, dx)
    wave = 0.16 * np.cos(3 * around + _col(turn)) + 0.1 * np.cos(5 * around - 2 * _col(turn))
    blob = _col(radius) * (1 + wave) - np.sqrt(dx * dx + dy * dy)
    return np.asarray(np.where(there[:, None, None], blob, np.float32(-1)))


def _smooth(n: int, cells: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Smooth random fields: a coarse grid of normal values, interpolated linearly."""
    grid = rng.standard_normal((n, cells, cells), dtype=np.float32)
    at = np.linspace(0, cells - 1, size)
    low = np.minimum(at.astype(np.int64), cells - 2)
    part = (at - low).astype(np.float32)
    rows = grid[:, low] * (1 - part)[None, :, None] + grid[:, low + 1] * part[None, :, None]
    field: np.ndarray = rows[:, :, low] * (1 - part) + rows[:, :, low + 1] * part
    return field


def _scan(picture: np.ndarray, scanner: Scanner, size: int, rng: np.random.Generator) -> np.ndarray:
    """Contrast, bias field, resolution, noise: what the site adds. Magnitudes are never negative."""
    line = np.linspace(-1, 1, size, dtype=np.float32)
    field = 1 + _col(scanner.bias[:, 0]) * line[None, None, :] + _col(scanner.bias[:, 1]) * line[None, :, None]
    field += _col(scanner.bias[:, 2]) * (line[None, :, None] ** 2 + line[None, None, :] ** 2 - 0.7)
    image = np.clip(picture, 0, 1.2) ** _col(scanner.contrast) * field * _col(scanner.gain)
    half = 0.5 * _col(scanner.blur)
    for axis in (1, 2):
        wide = np.pad(image, [(0, 0), *((1, 1) if a == axis else (0, 0) for a in (1, 2))], mode="edge")
        before = wide[:, :-2] if axis == 1 else wide[:, :, :-2]
        after = wide[:, 2:] if axis == 1 else wide[:, :, 2:]
        image = (1 - 2 * half) * image + half * (before + after)
    noisy = np.abs(image + _col(scanner.noise) * rng.standard_normal(image.shape, dtype=np.float32))
    return np.asarray(np.clip(noisy * 200, 0, 255).round(), dtype=np.uint8)
