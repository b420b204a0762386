"""Attacks on recordings: what the seat that recorded could have found out, from the files and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from leakline.attacks import MENU, Attack, GradientInversion
from leakline.attacks.inversion.intercepted import norm_momenta
from leakline.attacks.inversion.variants import SETTINGS
from leakline.bench.training import Plan
from leakline.data.guard import npz_names, read_npz
from leakline.errors import DataError, LeaklineError, StackError, StudyError
from leakline.foreign import Unfit, fetch
from leakline.models import FACTORY
from leakline.privacy import Seat
from leakline.readings import Reading
from leakline.recordings.lab import ELSEWHERE, RecordedLab
from leakline.recordings.recording import Recording
from leakline.study.build import Mistakes, build
from leakline.study.describe import describe, key_of
from leakline.study.lab import examine

HELD = {
    "loss-threshold": "give --members and --others: records that were trained on, and records that were not",
    "label-inference": "give --public FILE.npz with x and y: public examples of every class",
}
"""What some attacks need beside a recording."""
NEEDED = ("learning_rate", "batch", "epochs")
"""What an inversion must know of the local plan."""
SMALL = 16
"""Up to this side an image has too few frequencies for a search from coarse to fine."""
FOR_SMALL: dict[str, Any] = {
    "update": 1.0, "smooth": 1.0, "statistics": 0.1, "levels": (1.0,), "distance": "l2", "iterations": 1500,
    "patience": 100,
}  # fmt: skip
"""Plain distance over pixels, for small images where no variant was asked for."""


def known_plan(recording: Recording, given: Mapping[str, Any], use: str = "gradient-inversion") -> Plan:
    """The local plan from what was recorded and what the attacker adds; an error where the attack needs more."""
    known = {**recording.known, **{k: v for k, v in given.items() if v is not None}}
    missing = [name for name in NEEDED if name not in known]
    if missing and not (use in MENU and MENU[use].seat is Seat.PUBLIC):  # who sees models alone simulates nobody
        options = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise LeaklineError(
            f"the recording does not say the {', '.join(missing)} of local training", recording.path.name,
            f"give {options}, or record with plan={{...}}",
        )  # fmt: skip
    return Plan(**known)


def attack_for(name: str, lab: RecordedLab, settings: Mapping[str, Any], **common: Any) -> Attack:
    """An attack of the menu with settings by name; ``common``: most_images and seed of an inversion."""
    if MENU.get(name) is GradientInversion:
        return inversion(lab, settings, **common)
    by_number = isinstance(getattr(MENU.get(name), "rounds", None), tuple)  # some have a number of rounds instead
    return _built(name, {"rounds": lab.rounds, **settings} if by_number else settings)


def inversion(lab: RecordedLab, settings: Mapping[str, Any], most_images: int = 64, seed: int = 0) -> GradientInversion:
    """Gradient inversion of the lab's rounds and clients, from mid grey.

    ``settings``: of the engine (see `SETTINGS`) or of the attack. Without a variant it is "grad+bn", and for small
    images one that matches by plain distance over pixels.
    """
    engine = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items() if k in SETTINGS}
    if "variant" not in settings and min(lab.federation.task.shape[-2:]) <= SMALL:
        engine = {**FOR_SMALL, **engine}
    others = {k: v for k, v in settings.items() if k not in SETTINGS}
    asked = {"rounds": lab.rounds, "clients": tuple(lab.federation.clients), "most_images": most_images, "seed": seed}
    attack = _built("gradient-inversion", {"prior": "flat", "grey": False, **others, **asked, "settings": engine})
    assert isinstance(attack, GradientInversion)
    terms = attack.method.terms
    others_match = terms.update + terms.exposed + terms.label
    if terms.statistics and others_match and not norm_momenta(lab.federation.bench().model):
        attack = replace(attack, settings={**engine, "statistics": 0.0})  # the model has none to be matched
    return attack


def _built(name: str, settings: Mapping[str, Any]) -> Attack:
    """As a study would make it of a table, with the same words about what is wrong."""
    mistakes = Mistakes("--set", {})
    attack: Attack | None = build(MENU, {**settings, "use": name}, (), mistakes)
    if attack is None:
        raise LeaklineError(mistakes.text(), fix="`leakline list attacks` shows what each can be given")
    return attack


def attack_recording(lab: RecordedLab, attack: Attack, name: str = "gradient-inversion") -> list[Reading]:
    """Let an attack meet a recording; readings (attacks.jsonl) and pictures (media/) stay with it."""
    federation, run = lab.federation, lab.recording.run
    known = [client.name for client in federation.task.clients if not client.train.x.is_meta]
    about: dict[str, Any] = {"attack": attack, "plan": federation.plan, "shape": federation.task.shape, "known": known}
    if prints := lab.known.prints:
        about["records"] = prints
    if not lab.inputs.plain:
        about["inputs"] = (lab.inputs.mean, lab.inputs.std)
    key = f"{name}-{key_of(describe(about))[:8]}"
    try:
        readings = [
            replace(reading, by=name, note="; ".join(text for text in (reading.note, str(lab.inputs)) if text))
            for reading in examine(attack, replace(lab, attack=key))
        ]
    except (StackError, StudyError) as error:
        # Mending what other attacks complain of leads to the next thing that a recording does not hold.
        fix = error.fix if isinstance(attack, GradientInversion) else HELD.get(name, ELSEWHERE)
        raise _refusal(name, error.what, fix) from error
    if not readings:
        raise _refusal(name, "nothing that was recorded answers what it asks", HELD.get(name, ELSEWHERE))
    with run.locked("attacks"):
        if key not in run.met():
            run.add_attack(key, readings)
    return readings


def _refusal(name: str, why: str, fix: str) -> StackError:
    return StackError(f"{name} cannot work from a recording: {why}", "leakline attack", fix)


def imported(path: str) -> Callable[[], nn.Module]:
    """``package.module:build`` as the function or class that it names, in a file of this folder or installed."""
    try:
        build: Callable[[], nn.Module] = fetch(path, FACTORY, (Path.cwd(),))
    except Unfit as error:
        raise LeaklineError(error.what, "--model", error.fix) from error
    return build


def load_truth(path: Path) -> dict[str, Tensor]:
    """Images by client from an .npz file: float in [0, 1], or uint8."""
    images = {}
    for name, values in read_npz(path, npz_names(path)).items():
        if values.ndim != 4 or values.dtype.kind not in "fu":
            raise DataError(f"{name} is {values.dtype} of shape {values.shape}", path.name, "images are N, C, H, W")
        scaled = values / 255 if values.dtype == np.uint8 else values
        images[name] = torch.tensor(scaled, dtype=torch.float32)
    return images
