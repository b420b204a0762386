"""Made-up motion signals of people whose traits really change how they move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np

from leakline.data.base import Dataset, Trait
from leakline.data.signals import Normalise, Recordings, body_traits, windowed
from leakline.data.split import stream

ACTIVITIES = ("dws", "ups", "wlk", "jog", "sit", "std")
CHANNELS = tuple(f"{kind}.{axis}" for kind in ("gravity", "rotationRate", "userAcceleration") for axis in "xyz")
RATE = 50.0

# Steps per second, strength, share of the second harmonic, lean of the trunk (radians) for each activity.
GAIT = {
    "dws": (1.9, 0.55, 0.6, 0.10),
    "ups": (1.6, 0.40, 0.3, 0.30),
    "wlk": (1.85, 0.45, 0.4, 0.15),
    "jog": (2.6, 1.10, 0.5, 0.25),
    "sit": (0.3, 0.015, 0.2, 1.15),
    "std": (0.4, 0.025, 0.2, 0.05),
}


@dataclass(frozen=True)
class People:
    """Subjects: their traits, and what those and chance do to their movement (one value per subject)."""

    traits: tuple[dict[str, Trait], ...]
    pace: np.ndarray  # factor on step frequency
    force: np.ndarray  # factor on vertical acceleration
    sway: np.ndarray  # factor on rotation
    bounce: np.ndarray  # factor on the second harmonic
    tilt: np.ndarray  # how the telephone lies in the pocket (radians)
    style: np.ndarray  # 9 personal channel gains


@dataclass(frozen=True)
class Motion:
    """Motion signals made on the spot: 6 activities, 9 channels, 50 Hz, subjects with gender, age, body.

    Each subject does every activity in ``trials`` recordings of ``seconds``; recordings are the groups, so with
    five of them a test share of 0.2 is met exactly. Gender shifts pace and sway,
    body mass the force and the bounce of a step, height and age the pace, each by ``trait_effect`` (0: traits
    leave no trace; 1: about one standard deviation between people; 3: blatant). ``person_effect`` scales what
    is nobody's trait. Half of the subjects are women; about four in ten have a BMI over 25. The signal model
    is ours: steps as two harmonics, gravity by posture, noise; it resembles MotionSense in shape, not in
    detail.
    """

    subjects: int = 24
    trials: int = 5
    seconds: float = 15.0
    window: int = 125
    stride: int = 125
    trait_effect: float = 1.0
    person_effect: float = 1.0
    normalise: Normalise = "channel"
    seed: int = 0
    embedded: ClassVar[bool] = True
    needs: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if self.subjects < 1 or self.trials < 1 or self.seconds * RATE < self.window or self.seed < 0:
            raise ValueError(f"too few subjects or trials, or recordings shorter than a window: {self}")
        if self.window < 2 or self.stride < 1:
            raise ValueError(f"window must be at least 2 and stride at least 1: {self.window}, {self.stride}")
        if self.trait_effect < 0 or self.person_effect < 0:
            raise ValueError(f"effects must be at least 0: {self.trait_effect}, {self.person_effect}")
        if self.normalise not in get_args(Normalise):
            raise ValueError(f"normalise must be one of {', '.join(get_args(Normalise))}: {self.normalise!r}")

    def available(self) -> bool:
        """Always: they are made here."""
        return True

    def load(self) -> Dataset:
        """Make the recordings and cut them into windows."""
        people = draw_people(
            self.subjects, self.trait_effect, self.person_effect, stream(self.seed, "motion", "people")
        )
        length = int(self.seconds * RATE)
        who, activity = (
            np.repeat(np.arange(self.subjects), len(ACTIVITIES) * self.trials),
            np.tile(np.repeat(np.arange(len(ACTIVITIES)), self.trials), self.subjects),
        )
        signal = record(people, who, activity, length, stream(self.seed, "motion", "signal"))
        names = tuple(f"sub-{i + 1}" for i in range(self.subjects))
        recordings = Recordings(
            signal=signal.reshape(-1, len(CHANNELS)),
            offsets=np.arange(len(who) + 1) * length,
            activity=activity,
            subject=tuple(names[i] for i in who),
            activities=ACTIVITIES,
            traits=dict(zip(names, people.traits, strict=True)),
        )
        return windowed("motion", recordings, self.window, self.stride, self.normalise, None)


def draw_people(n: int, trait_effect: float, person_effect: float, rng: np.random.Generator) -> People:
    """Draw bodies, then what they do to movement: traits push, chance scatters."""
    woman = rng.permutation(np.arange(n) % 2 == 0)
    height = np.where(woman, 165, 178) + rng.normal(0, 6, n)
    height = np.round(height)
    weight = np.round(np.clip(rng.normal(24.3, 3.2, n), 17.5, 36) * (height / 100) ** 2)
    bmi = weight / (height / 100) ** 2
    age = np.round(np.clip(rng.normal(34, 11, n), 18, 75))
    traits = tuple(
        body_traits("woman" if w else "man", float(h), float(kg), float(a))
        for w, h, kg, a in zip(woman, height, weight, age, strict=True)
    )
    gender = np.where(woman, 1.0, -1.0)
    # Half slope, half step: with a slope alone, people just above and just below 25 could never be told apart.
    heavy = 0.5 * (bmi - 25) / 3.2 + 0.5 * np.where(bmi > 25, 1.0, -1.0)
    tall, old = (height - np.where(woman, 165, 178)) / 6, (age - 34) / 11
    t, p = trait_effect, person_effect

    def scatter(scale: float) -> np.ndarray:
        return p * rng.normal(0, scale, n)

    return People(
        traits=traits,
        pace=np.exp(t * (0.05 * gender - 0.02 * tall - 0.02 * old) + scatter(0.04)),
        force=np.exp(t * 0.14 * heavy + scatter(0.12)),
        sway=np.exp(t * 0.18 * gender + scatter(0.15)),
        bounce=np.exp(-t * 0.15 * heavy + scatter(0.15)),
        tilt=scatter(0.25),
        style=np.exp(p * rng.normal(0, 0.12, (n, len(CHANNELS)))),
    )


def record(people: People, who: np.ndarray, activity: np.ndarray, length: int, rng: np.random.Generator) -> np.ndarray:
    """Signals recording x time x channel."""
    rate, strength, second, lean = np.array([GAIT[a] for a in ACTIVITIES]).T[:, activity]
    n = len(who)
    pace = (rate * people.pace[who] * np.exp(rng.normal(0, 0.02, n)))[:, None]
    # Nobody keeps step exactly: the pace wanders by some per cent, so windows of one recording differ.
    wander = np.cumsum(rng.normal(0, 0.012, (n, length)), axis=1)
    phase = 2 * np.pi * pace * (np.arange(length) / RATE) + wander + rng.uniform(0, 2 * np.pi, (n, 1))
    double = (second * people.bounce[who])[:, None]
    force = (strength * people.force[who])[:, None]
    sway = (2.2 * strength * people.sway[who])[:, None]

    signal = np.empty((n, length, len(CHANNELS)), dtype=np.float32)
    tilt = (lean + people.tilt[who] + rng.normal(0, 0.05, n))[:, None] + 0.06 * force * np.sin(phase / 2)
    roll = (0.5 * people.tilt[who] + rng.normal(0, 0.05, n))[:, None] + 0.05 * sway * np.cos(phase / 2)
    signal[..., 0] = np.sin(roll)
    signal[..., 1] = -np.cos(tilt) * np.cos(roll)
    signal[..., 2] = np.sin(tilt) * np.cos(roll)
    signal[..., 3] = sway * (np.sin(phase / 2 + 0.4) + 0.3 * double * np.sin(phase))
    signal[..., 4] = sway * 0.7 * np.cos(phase / 2 - 0.8)
    signal[..., 5] = sway * 0.5 * np.sin(phase / 2 + 1.9)
    signal[..., 6] = force * 0.4 * np.sin(phase / 2 + 0.2)
    signal[..., 7] = force * (np.sin(phase) + double * np.sin(2 * phase + 0.6))
    signal[..., 8] = force * 0.6 * (np.cos(phase + 0.5) + 0.5 * double * np.cos(2 * phase))
    signal *= people.style[who][:, None].astype(np.float32)
    return signal + rng.normal(0, 0.03, signal.shape).astype(np.float32)
