"""Attacks on recordings: what the seat that recorded could have found out, from the files and nothing else.

An attack works from a recording if it needs one client's turn only: the weights sent, the update that came back, and
what is known of the local plan. `INVERSIONS` lists those by the name they have in studies.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from leakline.attacks.inversion.attack import VARIANTS, Recipe
from leakline.attacks.inversion.intercepted import Intercepted, norm_momenta, problem_of
from leakline.attacks.inversion.objective import Terms
from leakline.attacks.inversion.search import Found, Search, search
from leakline.bench.training import Bench, Plan
from leakline.data.guard import npz_names, read_npz
from leakline.errors import DataError, LeaklineError, StackError
from leakline.leakage.images import assign, psnr, ssim
from leakline.messages import Round, Update
from leakline.readings import Fact, Reading
from leakline.recordings.recording import Recording
from leakline.runtimes.machine import cores
from leakline.study.describe import describe, key_of
from leakline.study.store import write_atomically
from leakline.utility import objective
from leakline.weights import Layout

NEEDED = ("learning_rate", "batch", "epochs")
"""What an inversion must know of the local plan."""
SMALL = 16
"""Up to this side an image has too few frequencies for a search from coarse to fine."""
FOR_SMALL: dict[str, Any] = {
    "update": 1.0, "smooth": 1.0, "statistics": 0.1, "levels": (1.0,), "distance": "l2", "iterations": 1500,
    "patience": 100,
}  # fmt: skip
SHOWN = 64
"""Side to which small images are enlarged in a gallery."""


@dataclass(frozen=True)
class Inversion:
    """Gradient inversion of one recorded turn: what is matched, how it is searched for, and what the attacker has."""

    recipe: Recipe

    @classmethod
    def of(cls, settings: Mapping[str, Any], shape: Sequence[int] = ()) -> Inversion:
        """From a ``variant`` and settings by name (iterations, restarts, variation, labels, ...).

        Without a variant it is "grad+bn", and for small images one that matches by plain distance over pixels.
        """
        left = dict(settings)
        variant = left.pop("variant", None)
        if variant not in (None, *VARIANTS):
            raise LeaklineError(f"there is no variant {variant!r}", fix=f"one of: {', '.join(VARIANTS)}")
        chosen = VARIANTS[variant or "grad+bn"]
        if variant is None and shape and min(shape[-2:]) <= SMALL:
            left = {**FOR_SMALL, **left}
        parts: dict[str, dict[str, Any]] = {"terms": {}, "search": {}, "recipe": {}}
        homes = {"labels": "recipe", **_fields("terms", Terms), **_fields("search", Search)}
        for name, value in left.items():
            if name not in homes or (name == "labels" and value not in ("restored", "trainable")):
                known = ", ".join(sorted({*homes, "variant"}))
                raise LeaklineError(f"there is no setting {name} = {value!r}", fix=f"one of: {known}")
            parts[homes[name]][name] = tuple(value) if isinstance(value, list) else value
        terms = dataclasses.replace(chosen.terms, **parts["terms"])
        how = dataclasses.replace(chosen.search, **parts["search"])
        return cls(dataclasses.replace(chosen, terms=terms, search=how, **parts["recipe"]))

    def images(
        self, seen: Intercepted, prior: Tensor, seed: int, says: Callable[[str], None] = lambda text: None
    ) -> Found:
        """The attacker's half: from what was intercepted to images."""
        terms, chosen = self.recipe.terms, self.recipe
        if not norm_momenta(seen.bench.model) and terms.update + terms.exposed + terms.label > 0:
            terms = dataclasses.replace(terms, statistics=0.0)  # the model has no statistics to be matched
        problem = problem_of(seen, prior, terms, labels=chosen.labels, statistics=chosen.statistics)
        return search(
            problem, chosen.search, seed=seed, workers=cores(), progress=lambda standing: says(standing.line())
        )


def _fields(home: str, kind: Any) -> dict[str, str]:
    return {f.name: home for f in dataclasses.fields(kind)}


INVERSIONS: dict[str, Callable[[Mapping[str, Any], Sequence[int]], Inversion]] = {"gradient-inversion": Inversion.of}


@dataclass(frozen=True)
class Target:
    """What the attacker brings: the architecture, the shape of an image, the plan, an image to start from.

    ``prior`` is [1, C, H, W] in [0, 1]; without one the search starts from mid grey. ``most_images`` bounds memory.
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    plan: Plan
    prior: Tensor | None = None
    loss: str = "default"
    most_images: int = 16

    def start(self) -> Tensor:
        """The image that the search starts from."""
        if self.prior is None:
            return torch.full((1, *self.shape), 0.5)
        if tuple(self.prior.shape[1:]) != self.shape:
            raise DataError(f"the prior has shape {tuple(self.prior.shape[1:])}, images have {self.shape}", "prior")
        return self.prior


def known_plan(recording: Recording, given: Mapping[str, Any]) -> Plan:
    """The local plan from what was recorded and what the attacker adds; an error where too little is known."""
    known = {**recording.known, **{k: v for k, v in given.items() if v is not None}}
    missing = [name for name in NEEDED if name not in known]
    if missing:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise LeaklineError(
            f"the recording does not say the {', '.join(missing)} of local training", recording.path.name,
            f"give {options}, or record with plan={{...}}",
        )  # fmt: skip
    return Plan(**known)


def attack_recording(
    recording: Recording, attack: Inversion, target: Target, *, name: str = "gradient-inversion",
    rounds: Sequence[int] = (), clients: Iterable[str] = (), truth: Mapping[str, Tensor] | None = None, seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Reading]:  # fmt: skip
    """Attack every asked-for update, and keep readings (attacks.jsonl) and galleries (media/) with the recording.

    ``truth``: images by client, for whoever holds them and wants to know how close the attack came.
    """
    bench = _bench(recording, target)
    asked = tuple(clients)
    turns = [
        (r, u) for i in rounds or recording.indices() for r in [recording.round(i, asked or None)] for u in r.updates
    ]
    for round_, update in turns:
        if update.examples > target.most_images:
            raise StackError(
                f"{update.client} trained on {update.examples} images, and {target.most_images} are the bound",
                f"round {round_.index}",
                "choose other clients, or raise --most-images (memory grows with it)",
            )
    found = []
    for round_, update in turns:
        progress(f"round {round_.index}, {update.client}: {update.examples} images")
        about = {"attack": describe(attack), "seed": seed, "of": label(round_, update), "plan": describe(target.plan)}
        key = key_of({**about, "shape": list(target.shape), "scored": truth is not None})[:8]
        made = attack.images(_intercepted(recording, bench, target, round_, update), target.start(), seed, progress)
        images = made.images.detach().clamp(0, 1)
        true = None if truth is None else truth.get(update.client)
        matched = None if true is None else _matched(images, _fitting(true, target.shape, update))
        readings = [
            dataclasses.replace(r, by=name, round=round_.index, client=update.client)
            for r in _readings(images, matched, made, target.start())
        ]
        picture = f"{label(round_, update)}-{key}"
        if f"{name}-{key}" not in {line.get("attack") for line in recording.run.attacks()}:
            recording.run.add_attack(f"{name}-{key}", readings)
        (recording.path / "media").mkdir(exist_ok=True)
        write_atomically(recording.path / "media" / f"{picture}.png", gallery(images, matched))
        found += readings
    return found


def label(round_: Round, update: Update) -> str:
    """A turn in a file's name."""
    return f"round-{round_.index:04d}-{update.client}" + (f".part-{update.part}" if update.part else "")


def _bench(recording: Recording, target: Target) -> Bench:
    model = target.build()
    if not isinstance(model, nn.Module):
        raise StackError(f"the model is a {type(model).__name__}", "--model", "name a function or class that builds it")
    ours, theirs = Layout.of(model), recording.layout()
    mine = {e.name: e.shape for e in ours.entries}
    for entry in theirs.entries:
        if mine.get(entry.name) != entry.shape:
            shown = f"has it as {mine[entry.name]}" if entry.name in mine else "does not have it"
            raise StackError(
                f"this is another model: {entry.name} was recorded with shape {entry.shape}, and the model {shown}",
                recording.path.name,
                "name the model that was trained",
            )
    with torch.no_grad():
        try:
            model.eval()(target.start())
        except RuntimeError as error:
            said = str(error).splitlines()[0]
            raise StackError(f"the model does not take images of shape {target.shape}: {said}", "--shape") from error
    return Bench(model, objective("classification", target.loss).loss)


def _intercepted(recording: Recording, bench: Bench, target: Target, round_: Round, update: Update) -> Intercepted:
    # Schedules count rounds from 0; Flower counts them from 1.
    index = round_.index - (1 if recording.engine.startswith("flower") else 0)
    return Intercepted(bench, round_.sent, update.delta, target.plan, update.examples, max(index, 0))


def _fitting(true: Tensor, shape: tuple[int, ...], update: Update) -> Tensor:
    if tuple(true.shape[1:]) != shape or len(true) != update.examples:
        raise DataError(
            f"{update.client} trained on {update.examples} images of {shape}, the truth has {tuple(true.shape)}",
            "truth",
            "give each client's training images under its name",
        )
    return true


def _matched(images: Tensor, true: Tensor) -> Tensor:
    """The true images in the order of the reconstructions: a batch has no order, so the best pairing is taken."""
    return true[assign(-torch.cdist(true.flatten(1), images.flatten(1)))]


def _variant(shape: Sequence[int]) -> Any:
    side = min(shape[-2:])
    return "gaussian" if side >= 11 else "uniform" if side >= 7 else None


def _readings(images: Tensor, true: Tensor | None, made: Found, prior: Tensor) -> list[Reading]:
    classes = made.targets if made.targets.ndim == 1 else made.targets.argmax(1)
    labels = ", ".join(str(int(c)) for c in classes)
    note = f"{made.iterations} iterations; labels found: {labels}"
    about: dict[str, Fact] = {"iterations": made.iterations, "labels": labels}
    found = [Reading("objective", made.objective, n=len(images), about=about, note=note)]
    if true is None:
        return found
    error, blind = ((a - true).square().mean().sqrt() for a in (images, prior.expand_as(true)))
    pairs = f"{len(images)} images, best pairing; chance: the image that the search starts from"
    found.append(Reading("rmse", float(error), n=len(images), chance=float(blind), note=pairs))
    variant = _variant(images.shape)
    scores: dict[str, Callable[[Tensor], Tensor]] = {"psnr": lambda a: psnr(a, true)}
    if variant is not None:
        scores["ssim"] = lambda a: ssim(true, a, variant=variant)
    for measure, score in scores.items():
        # Equal images have no finite PSNR.
        value, chance = (float(score(a).clamp(max=200.0).mean()) for a in (images, prior.expand_as(true)))
        found.append(Reading(measure, value, n=len(images), chance=chance, note=pairs))
    return found


def gallery(images: Tensor, true: Tensor | None = None) -> bytes:
    """A PNG: reconstructions in the first row, and the true images below where they are known."""
    import io

    from PIL import Image

    factor = max(1, SHOWN // max(images.shape[-2:]))
    rows = []
    for row in [images] if true is None else [images, true]:
        wide = torch.cat([*torch.nn.functional.pad(row, (0, 1, 0, 1), value=1.0)], dim=-1)
        rows.append(wide.repeat_interleave(factor, -1).repeat_interleave(factor, -2))
    values = (torch.cat(rows, dim=-2).clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    picture = Image.fromarray(values[0]) if len(values) != 3 else Image.fromarray(np.moveaxis(values, 0, -1))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return buffer.getvalue()


def imported(path: str) -> Callable[[], nn.Module]:
    """``package.module:build`` as the function or class that it names."""
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise LeaklineError(f"cannot import {path!r}: {error}", "--model", 'write "package.module:name"') from error
    if not callable(found):
        raise LeaklineError(f"{path!r} cannot be called", "--model", "name a function or class that builds the model")
    return found  # type: ignore[no-any-return]


def load_truth(path: Path) -> dict[str, Tensor]:
    """Images by client from an .npz file: float in [0, 1], or uint8."""
    arrays = read_npz(path, npz_names(path))
    found = {}
    for name, values in arrays.items():
        if values.ndim != 4 or values.dtype.kind not in "fu":
            raise DataError(f"{name} is {values.dtype} of shape {values.shape}", path.name, "images are N, C, H, W")
        scaled = values / 255 if values.dtype == np.uint8 else values
        found[name] = torch.tensor(scaled, dtype=torch.float32)
    return found
