"""Commands on a recording: `leakline audit DIR`, `leakline report DIR` and `leakline attack DIR`.

What contradicts a claim ends with exit code 3, as a broken promise of leakline's own does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leakline.errors import LeaklineError

if TYPE_CHECKING:
    from leakline.recordings.checks import Finding

CLAIMS = ("clip", "noise_multiplier", "clip_at", "weighting")


def is_recorded(directory: str | Path) -> bool:
    """Whether a directory is a recording; asked before anything heavy is imported."""
    return (Path(directory) / "recording.json").is_file()


def audit_recording(directory: Path, settings: Mapping[str, Any], as_json: bool) -> None:
    """Look at recorded rounds, hold them against what is claimed, and keep what was found for the report."""
    from leakline.cli import err, out
    from leakline.recordings.checks import Claimed, check_recording
    from leakline.recordings.recording import Recording
    from leakline.report.page.recording import FINDINGS
    from leakline.study.store import write_atomically

    for key in settings:
        if key not in CLAIMS:
            known = ", ".join(f"--{name.replace('_', '-')}" for name in CLAIMS)
            raise LeaklineError(
                f"unknown option --{key.replace('_', '-')}", fix=f"of a recording one may claim {known}"
            )
    try:
        found = check_recording(Recording(directory), Claimed(**settings))
    except (TypeError, ValueError) as error:
        raise LeaklineError(str(error), "audit") from error
    kept = {"claimed": dict(settings), "findings": [one.as_dict() for one in found]}
    write_atomically(directory / FINDINGS, json.dumps(kept, indent=1).encode())
    if as_json:
        out.print_json(json.dumps(kept))
    else:
        _show(found, directory)
    if any(one.verdict == "broken" for one in found):
        err.print("the recorded rounds contradict what is claimed")
        raise typer.Exit(3)


def report_recording(directory: Path, output: Path | None, shareable: bool, fail_if: Sequence[str]) -> Path:
    """The page of a recording."""
    from leakline.report.page.recording import build_recording_report

    if fail_if:
        raise LeaklineError("--fail-if is for studies", fix="`leakline audit DIR` ends with 3 where a claim is broken")
    return build_recording_report(directory, output, shareable)


def _show(found: list[Finding], directory: Path) -> None:
    from rich.table import Table

    from leakline.cli import out
    from leakline.text import clean

    table = Table(show_header=False, box=None, padding=(0, 1), pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in found:
        style = {"broken": "bold red", "leaks": "red"}.get(one.verdict)
        table.add_row(one.check, one.verdict, clean(one.text), style=style)
    out.rule(f"recorded federation {directory.absolute().name}", align="left")
    out.print(table)


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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Attack recorded updates from the seat that recorded them; readings and images stay with the recording."""
    import torch

    from leakline.cli import err, out
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
        found = attack_recording(
            recording, INVERSIONS[use](_pairs(sets), size), target, name=use, rounds=rounds, clients=clients,
            truth=None if truth is None else load_truth(truth), seed=seed,
            progress=lambda text: err.print(clean(text)),
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        raise LeaklineError(str(error), "attack") from error
    if as_json:
        out.print_json(json.dumps([one.line() for one in found]))
        return
    for one in found:
        chance = "" if one.chance is None else f" (chance {one.chance:.3g})"
        out.print(clean(f"round {one.round} {one.client}: {one.measure} {one.value:.4g}{chance}"))
    out.print(f"images: {(directory / 'media')}; leakline report {directory} shows them")


def register(app: typer.Typer) -> None:
    """Put the command on the command line."""
    app.command("attack")(attack)


def _shape(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        found = ()
    if len(found) != 3 or min(found) < 1:
        raise LeaklineError(f"cannot read the shape {text!r}", fix="channels, height, width: --shape 1,28,28")
    return found


def _pairs(words: Sequence[str]) -> dict[str, Any]:
    import tomllib

    found: dict[str, Any] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign:
            raise LeaklineError(f"cannot read {word!r}", fix="write key=value: --set iterations=300")
        try:
            found[key.strip().replace("-", "_")] = tomllib.loads(f"v = {value}")["v"]
        except tomllib.TOMLDecodeError:
            found[key.strip().replace("-", "_")] = value
    return found
