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
    mean: Annotated[
        str, typer.Option(help="Of the inputs' normalisation, (x - mean) / std: one, or one a channel.")
    ] = "",
    std: Annotated[str, typer.Option(help="Of the same: 0.5,0.5,0.5.")] = "",
    span: Annotated[str, typer.Option("--range", help="Or where inputs lie, if not in [0, 1]: --range=-1,1.")] = "",
    public: Annotated[
        Path | None,
        typer.Option(
            help="Or an .npz file of public images as the network takes them (x; y their labels): their range."
        ),
    ] = None,
    members: Annotated[
        Path | None, typer.Option(help="For loss-threshold: an .npz file of records (x, y) that were trained on.")
    ] = None,
    others: Annotated[Path | None, typer.Option(help="For the same: records that were not.")] = None,
    labels: Annotated[
        Path | None, typer.Option(help="For label-inference: each client's labels under its name, to score against.")
    ] = None,
    sets: Annotated[list[str], typer.Option("-s", "--set", help="key=value: a setting of the attack.")] = [],  # noqa: B006
    most_images: Annotated[int, typer.Option(help="Refuse clients with more images: memory grows with them.")] = 64,
    seed: Annotated[int, typer.Option(help="Of the search's starts.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Attack recorded updates from the seat that recorded them; readings and images stay with the recording."""
    import torch

    from leakline.recordings.attacks import attack_for, attack_recording, imported, known_plan, load_truth
    from leakline.recordings.inputs import inputs_of
    from leakline.recordings.lab import Target, lab_over
    from leakline.recordings.recording import Recording
    from leakline.recordings.records import known_from
    from leakline.text import clean

    torch.set_num_threads(1)
    recording = Recording(directory)
    try:
        plan = known_plan(recording, {"learning_rate": learning_rate, "batch": batch, "epochs": epochs}, use)
        inputs = inputs_of(_numbers(mean), _numbers(std), _numbers(span), public)
        known = known_from(members, others, public, labels, inputs)
        lab = lab_over(
            recording, Target(imported(model), _shape(shape), plan, inputs), rounds=rounds, clients=clients,
            truth=None if truth is None else load_truth(truth), known=known,
            says=lambda line, share=None: err.print(clean(line)),
        )  # fmt: skip
        chosen = attack_for(use, lab, _pairs(sets), most_images=most_images, seed=seed)
        readings = attack_recording(lab, chosen, use)
    except (TypeError, ValueError) as error:
        raise LeaklineError(str(error), "attack") from error
    if as_json:
        out.print_json(json.dumps([reading.line() for reading in readings]))
        return
    hint = "; --mean and --std, --range or --public say otherwise" if inputs.source == "assumed" else ""
    out.print(f"{inputs}{hint}", highlight=False, markup=False)
    for reading in readings:
        chance = "" if reading.chance is None else f" (chance {reading.chance:.3g})"
        whom = "all" if reading.client is None else f"round {reading.round} {reading.client}"
        out.print(clean(f"{whom}: {reading.label} {reading.value:.4g}{chance}"))
    out.print(f"images: {(directory / 'media')}; leakline report {directory} shows them")


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise LeaklineError(f"cannot read {text!r}", fix="numbers with commas: --mean 0.5,0.5,0.5") from error


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
