"""`leakline run`: train what is missing, attack, measure, report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakline.cli import flower, gate
from leakline.cli.console import OnlyOption, PresetOption, SetOption, StudyArgument, err, out, print_card
from leakline.cli.loading import TrustOption, load_study, read_store
from leakline.cli.progress import Progress
from leakline.errors import StudyError

if TYPE_CHECKING:
    from leakline.study import Study
    from leakline.study.run import Engine, Outcome


def run(
    study: StudyArgument,
    preset: PresetOption = "",
    out_dir: Annotated[Path | None, typer.Option("--out", help="Where results go (default: runs/NAME).")] = None,
    sets: SetOption = [],  # noqa: B006
    only: OnlyOption = [],  # noqa: B006
    workers: Annotated[
        int, typer.Option(min=0, help="Worker processes; 0 takes one per core. Results do not depend on it.")
    ] = 0,
    cells: Annotated[
        int, typer.Option(min=1, help="Cells at a time, each in a process of its own with its share of the cores.")
    ] = 1,
    part: Annotated[str, typer.Option(help="NUMBER/PARTS, such as 3/16: these cells only, for array jobs.")] = "",
    trust: TrustOption = False,
    fail_if: gate.FailIf = [],  # noqa: B006
    on: flower.OnOption = "local",
    superlink: flower.SuperlinkOption = "",
    certificate: flower.CertificateOption = None,
    insecure: flower.InsecureOption = False,
    address: Annotated[
        str, typer.Option(help="With --on ray: ray://HOST:PORT, HOST:PORT or auto (default: a Ray of this machine's).")
    ] = "",
    deadline: flower.DeadlineOption = 3600.0,
) -> None:
    """Train what is missing, attack, measure, report. The same command goes on after an interruption."""
    ours = on == "ray" and _ray_begun(address)
    from leakline.study.parts import Part
    from leakline.study.run import run_study

    loaded = load_study(study, preset, sets, trust).only(only)
    gate.check_conditions(fail_if, loaded.every_attack)
    flower.check_place(on)
    share = Part.read(part)
    if part and fail_if:
        raise StudyError("a part knows its own cells only", "--fail-if", "give it to the last run, of all parts")
    root = out_dir if out_dir is not None else Path("runs") / loaded.name
    engine = _on_ray(loaded, (preset, sets, only), ours) if on == "ray" else None
    for note in loaded.notes:
        out.print(f"note: {note}")
    with Progress(len(loaded.cells)) as progress:
        link = (superlink, certificate, insecure)
        left, opens = flower.train(on, loaded, (preset, sets, only), root, link, deadline, progress.round)
        for note in left.notes[len(loaded.notes) :]:
            out.print(f"note: {note}")
        outcomes = run_study(
            left, root, workers=workers, at_once=cells, part=share,
            watch=progress.standing, opens=opens, deadline=deadline, engine=engine,
        )  # fmt: skip
        ended = shown(loaded, outcomes, progress)
    if part:  # the others may be at work; whoever comes last reports
        out.print(f"\n{share}: {ended.done} of {ended.cells} cells done; after all parts: leakline report {root}")
    finish(ended, None if part else root, fail_if)


@dataclass
class Ended:
    """How the cells of a command ended."""

    done: int = 0
    failures: int = 0
    broken: bool = False

    @property
    def cells(self) -> int:
        """How many there were."""
        return self.done + self.failures


def shown(loaded: Study, outcomes: Iterable[Outcome], progress: Progress) -> Ended:
    """Show every outcome as it comes: what failed, and a card for each setting."""
    from leakline.study.at_work import declared
    from leakline.study.carded import card_of
    from leakline.study.lab import attack_key

    measures = declared(a for cell in loaded.cells for a in loaded.attacks_on(cell).values()).values()
    ended, carded = Ended(), set[str]()
    for outcome in outcomes:
        how = "failed" if outcome.error else "trained" if outcome.trained else "already there"
        progress.cell(outcome.cell.name, how, outcome.of)
        ended.done += not outcome.error
        if outcome.error:
            ended.failures += 1
            err.print(f"{outcome.cell.name} failed\n{outcome.error}")
        elif outcome.run is not None and outcome.run.end is not None and outcome.cell.setting not in carded:
            carded.add(outcome.cell.setting)
            listed = [attack_key(name, attack) for name, attack in loaded.attacks_on(outcome.cell).items()]
            card = card_of(outcome.run, outcome.cell.name, measures, listed)
            ended.broken |= bool(card.broken)
            print_card(card)
    return ended


def finish(ended: Ended, root: Path | None, fail_if: Sequence[str] = ()) -> None:
    """Write the report of a run directory (None: others still work on it), and exit as the cells ended."""
    results = None if root is None else read_store(root)
    if results is not None:
        from leakline.report.page.build import build_report

        out.print(f"\n{ended.done} of {ended.cells} cells done; report: {build_report(results)}")
    if ended.broken:
        err.print("a measured bound exceeds its promise: see the card")
        raise typer.Exit(3)
    if results is not None:
        gate.gate(results, fail_if)
    if ended.failures:
        raise typer.Exit(1)


def _ray_begun(address: str) -> bool:
    """Join or begin a cluster before torch is loaded here, so that its workers load it at the same time."""
    from leakline.study.cluster import begin, need_ray

    need_ray()
    return begin(address)


def _on_ray(study: Study, asked: tuple[str, Sequence[str], Sequence[str]], ours: bool) -> Engine:
    from leakline.study.on_ray import OnRay
    from leakline.study.ray_task import Asked

    return partial(OnRay, asked=Asked.of(study, *asked), ours=ours)
