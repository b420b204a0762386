"""`leakline audit`: does an implementation keep its promise?

A measured bound above the promise ends with exit code 3, so that a pipeline stops there.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from leakline.cli.console import JsonOption, err, out, print_card, value_of
from leakline.cli.gate import FailIf, gate_cards
from leakline.cli.loading import TrustOption, load_study
from leakline.errors import LeaklineError, StudyError
from leakline.recordings import is_recording

if TYPE_CHECKING:
    from leakline.attacks import Attack
    from leakline.attacks.audit import Audit
    from leakline.cards import Card
    from leakline.recordings.findings import Finding

Seat = Literal["promised", "server", "client"]
Until = Literal["trials", "decided"]


def audit(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(help="A defence by name, a study (file or name), what a run wrote, or a recording.")
    ],
    adversary: Annotated[
        str, typer.Option(help="canary, one of paper 002's six, several with commas, or all.")
    ] = "canary",
    seat: Annotated[str, typer.Option(help="promised, server or client: who looks.")] = "promised",
    rounds: Annotated[int, typer.Option(help="How many rounds the promise is composed over.")] = 1,
    trials: Annotated[int, typer.Option(help="Trials of the main game, both worlds together.")] = 20_000,
    confidence: Annotated[float, typer.Option(help="Of all bounds together.")] = 0.99,
    delta: Annotated[float, typer.Option(help="For bounds that need one.")] = 1e-5,
    out_dir: Annotated[Path | None, typer.Option("--out", help="A study's results (default: runs/NAME).")] = None,
    preset: Annotated[str, typer.Option(help="A study's preset.")] = "",
    explain: Annotated[bool, typer.Option(help="Which games, against which claim, and what they could find.")] = False,
    narrow: Annotated[bool, typer.Option(help="The canary's games alone, without the wide look.")] = False,
    until: Annotated[
        str,
        typer.Option(help="trials, or decided: stop once refuted, or once --margin above it would have been found."),
    ] = "trials",
    margin: Annotated[float, typer.Option(help="With --until decided: so much above the promise.")] = 0.25,
    in_run: Annotated[
        bool, typer.Option("--in-run", help="Canaries inside one more training run of each cell.")
    ] = False,
    canaries: Annotated[int, typer.Option(help="How many, with --in-run.")] = 2000,
    trust: TrustOption = False,
    as_json: JsonOption = False,
    fail_if: FailIf = [],  # noqa: B006
) -> None:
    """Play the audit game against a defence or every finished cell of a study; trains only with --in-run.

    A defence's own settings follow as options: leakline audit ldp-sgd --epsilon 4.

    Of a recording (a federation that leakline did not train) every round is looked at, and held against what is
    claimed: leakline audit DIR --clip 1 --noise-multiplier 1. What the recorded strategy says of itself is known; these
    say otherwise, or more: --clip C, --noise-multiplier Z, --clip-at server|client, --noise-at server|client,
    --weighting even|examples, --clients N; for a bound that follows a quantile --quantile Q, --rate R, --bits-noise S.
    """
    if is_recording(Path(target)):
        _recording(Path(target), _settings(context.args), as_json)
        return
    from leakline.attacks.audit import Audit, InRunAudit
    from leakline.defences import MENU

    if seat not in ("promised", "server", "client"):
        raise LeaklineError(f"there is no seat {seat!r}", fix="promised, server or client")
    who = cast(Seat, seat)
    cards: list[Card]
    try:
        if target in MENU and in_run:
            raise LeaklineError(
                "--in-run trains a whole federation, and a defence alone is none",
                target,
                "name a study; leakline.attacks.audit.one_run audits a defence with canaries alone",
            )
        if target in MENU:
            played = Audit(trials, confidence, who, delta, not narrow, cast(Until, until), margin)
            cards, plain = _defence(target, context.args, adversary, rounds, played)
        else:
            if context.args:
                raise LeaklineError(f"unknown option {context.args[0]}", fix="settings go with a defence's name only")
            one: Attack = Audit(trials, confidence, who, delta, not narrow, cast(Until, until), margin)
            if in_run:
                one = InRunAudit(canaries, confidence=confidence, delta=delta)
            cards, plain = _study(target, preset, out_dir, one, trust)
    except ValueError as error:
        raise LeaklineError(str(error), "audit") from error
    if as_json:
        out.print_json(json.dumps(plain, allow_nan=False))
    else:
        for card in cards:
            print_card(card)
        for line in plain.get("explained", ()) if explain else ():
            out.print(line, highlight=False, markup=False)
    if any(card.broken for card in cards):
        err.print("a measured bound exceeds its promise: a bug, or an assumption that does not hold")
        raise typer.Exit(3)
    gate_cards(cards, fail_if)


def _defence(name: str, options: Sequence[str], adversary: str, rounds: int, game: Audit) -> tuple[list[Card], Any]:
    from leakline.attacks.audit import audit as play
    from leakline.defences import MENU
    from leakline.study.build import Mistakes, build

    mistakes = Mistakes("command line", {})
    built = build(MENU, {"use": name, **_settings(options)}, (name,), mistakes)
    if built is None:
        raise LeaklineError(mistakes.text(), fix="`leakline list defences` shows what each can be given")
    audited = play(
        built, adversary=adversary.split(","), seat=game.seat_of, rounds=rounds, trials=game.trials,
        confidence=game.confidence, delta=game.delta, title=f"{name} {' '.join(options)}".strip(), wide=game.wide,
        until=game.until, margin=game.margin,
    )  # fmt: skip
    return [audited.card], audited.as_dict()


def _settings(options: Sequence[str]) -> dict[str, Any]:
    """``--noise-multiplier 1`` as {"noise_multiplier": 1}."""
    words = [part for word in options for part in (word.split("=", 1) if word.startswith("--") else [word])]
    if len(words) % 2 or any(not key.startswith("--") for key in words[::2]):
        raise LeaklineError(f"cannot read {' '.join(options)}", fix="settings are pairs: --epsilon 4 --clip 1")
    return {key[2:].replace("-", "_"): value_of(text) for key, text in zip(words[::2], words[1::2], strict=True)}


def _say(line: str, share: float | None = None) -> None:
    err.print(line, highlight=False, markup=False)


def _study(target: str, preset: str, out_dir: Path | None, played: Attack, trust: bool) -> tuple[list[Card], Any]:
    """Every finished cell gets the measured half of its card; a cell that was not run is named and left alone."""
    import torch

    from leakline.attacks.audit import InRunAudit
    from leakline.attacks.audit.api import plain
    from leakline.defences import MENU as defences
    from leakline.study.carded import card_of
    from leakline.study.describe import description, key_of
    from leakline.study.lab import Lab, meet
    from leakline.study.sources import sourced
    from leakline.study.spec import built_in
    from leakline.study.store import Store

    torch.set_num_threads(1)
    given = Path(target)
    if (given / "study.toml").is_file():
        target, out_dir = str(given / "study.toml"), given
    near = get_close_matches(target.lower(), [*defences, *(name.replace("-", "") for name in defences)], 1, 0.6)
    if near and given.suffix != ".toml" and target not in built_in():
        meant = next(name for name in defences if near[0] in (name, name.replace("-", "")))
        raise LeaklineError(f"there is no defence or study {target!r}", "audit", f'did you mean "{meant}"?')
    study = load_study(target, preset, trust=trust)
    root = out_dir if out_dir is not None else Path("runs") / study.name
    audits = {"in-run-audit" if isinstance(played, InRunAudit) else "audit": played}
    store, cards, missing = Store(root), [], 0
    measures = store.measures().values() if store.exists else ()
    for cell in study.cells:
        federation = cell.federation().granted
        run = store.run(key_of(description(federation)))
        if run.end is None or run.end["status"] != "finished":
            missing += 1
            continue
        meet(audits, Lab(sourced(store, federation), store, run, says=_say))
        cards.append(card_of(run, cell.name, measures))
    if missing:
        err.print(f"{missing} of {len(study.cells)} cells were not run yet and not audited: leakline run {target}")
    if not cards:
        raise StudyError("no cell of this study is finished", root.name, f"run it first: leakline run {target}")
    return cards, {"cards": [plain(card.as_dict()) for card in cards]}


def _recording(directory: Path, settings: Mapping[str, Any], as_json: bool) -> None:
    """Look at recorded rounds, hold them against what is claimed, and keep what was found for the report."""
    from leakline.recordings.checks import check_recording
    from leakline.recordings.claims import Claimed
    from leakline.recordings.recording import Recording
    from leakline.report.page.recording import FINDINGS
    from leakline.study.files import write_atomically

    claims = [field.name for field in dataclasses.fields(Claimed) if field.name != "by"]
    for key in settings:
        if key not in claims:
            known = ", ".join(f"--{name.replace('_', '-')}" for name in claims)
            raise LeaklineError(
                f"unknown option --{key.replace('_', '-')}", fix=f"of a recording one may claim {known}"
            )
    recording = Recording(directory)
    try:
        claim = dataclasses.replace(recording.claimed(), **settings)
        findings = check_recording(recording, claim)
    except (TypeError, ValueError) as error:
        raise LeaklineError(str(error), "audit") from error
    kept = {"claimed": claim.as_dict(), "findings": [finding.as_dict() for finding in findings]}
    write_atomically(directory / FINDINGS, json.dumps(kept, indent=1).encode())
    if as_json:
        out.print_json(json.dumps(kept))
    else:
        _show(findings, directory, claim.as_dict())
    if any(finding.verdict == "broken" for finding in findings):
        err.print("the recorded rounds contradict what is claimed")
        raise typer.Exit(3)


def _show(findings: list[Finding], directory: Path, claimed: Mapping[str, Any]) -> None:
    from rich.table import Table

    from leakline.text import clean

    table = Table(show_header=False, box=None, padding=(0, 1), pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        style = {"broken": "bold red", "leaks": "red"}.get(finding.verdict)
        table.add_row(finding.check, finding.verdict, clean(finding.text), style=style)
    out.rule(f"recorded federation {directory.absolute().name}", align="left")
    said = ", ".join(f"{key} {value}" for key, value in claimed.items()) or "nothing"
    out.print(clean(f"held against what is claimed: {said}"), highlight=False, markup=False)
    out.print(table)
