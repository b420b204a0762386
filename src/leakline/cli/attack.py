"""`leakline attack`: recorded updates, attacked from the seat that recorded them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from leakline.cli.console import JsonOption, err, out, value_of
from leakline.errors import LeaklineError


def attack(
    directory: Annotated[Path, typer.Argument(help="A recording, or one run of a study (DIR/runs/<hash>).")],
    model: Annotated[str, typer.Option(help='What was trained: "package.module:build", a function or class.')],
    shape: Annotated[str, typer.Option(help="Shape of one image: 1,28,28.")],
    use: Annotated[str, typer.Option(help="Which attack.")] = "gradient-inversion",
    rounds: Annotated[list[int], typer.Option("--round", help="This round only; may be given again.")] = [],  # noqa: B006
    clients: Annotated[list[str], typer.Option("--client", help="This client only; may be given again.")] = [],  # noqa: B006
    learning_rate: Annotated[float | None, typer.Option(help="Of local training, if not recorded.")] = None,
    batch: Annotated[int | None, typer.Option(help="Of local training, if not recorded.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Of local training, if not recorded.")] = None,
    truth: Annotated[
        Path | None, typer.Option(help="An .npz file with each client's images under its name, to score against.")
    ] = None,
    sets: Annotated[list[str], typer.Option("-s", "--set", help="key=value: a setting of the attack.")] = [],  # noqa: B006
    most_images: Annotated[int, typer.Option(help="Refuse clients with more images: memory grows with them.")] = 16,
    seed: Annotated[int, typer.Option(help="Of the search's starts.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Attack recorded updates from the seat that recorded them; readings and images stay with the recording."""
    import torch

    from leakline.recordings.attacks import INVERSIONS, Target, attack_recording, imported, known_plan, load_truth
    from leakline.recordings.recording import Recording
    from leakline.text import clean

    if use not in INVERSIONS:
        raise LeaklineError(
            f"{use!r} cannot work from a recording: it needs clients' data or more than their updates",
            fix=f"one of: {', '.join(sorted(INVERSIONS))}",
        )
    torch.set_num_threads(1)
    recording = Recording(directory)
    try:
        plan = known_plan(recording, {"learning_rate": learning_rate, "batch": batch, "epochs": epochs})
        size = _shape(shape)
        target = Target(imported(model), size, plan, most_images=most_images)
        readings = attack_recording(
            recording, INVERSIONS[use](_pairs(sets), size), target, name=use, rounds=rounds, clients=clients,
            truth=None if truth is None else load_truth(truth), seed=seed,
            progress=lambda text: err.print(clean(text)),
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        raise LeaklineError(str(error), "attack") from error
    if as_json:
        out.print_json(json.dumps([reading.line() for reading in readings]))
        return
    for reading in readings:
        chance = "" if reading.chance is None else f" (chance {reading.chance:.3g})"
        out.print(clean(f"round {reading.round} {reading.client}: {reading.measure} {reading.value:.4g}{chance}"))
    out.print(f"images: {(directory / 'media')}; leakline report {directory} shows them")


def _shape(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        sizes = ()
    if len(sizes) != 3 or min(sizes) < 1:
        raise LeaklineError(f"cannot read the shape {text!r}", fix="channels, height, width: --shape 1,28,28")
    return sizes


def _pairs(words: Sequence[str]) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign:
            raise LeaklineError(f"cannot read {word!r}", fix="write key=value: --set iterations=300")
        pairs[key.strip().replace("-", "_")] = value_of(value)
    return pairs
