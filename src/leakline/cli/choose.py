"""`leakline choose`: the defences that keep given limits. Exit code 4 if no setting keeps them all."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leakline.cli.console import JsonOption, out
from leakline.cli.loading import load_study, read_store
from leakline.errors import LeaklineError

if TYPE_CHECKING:
    from leakline.decide.choose import Candidate
    from leakline.decide.limits import Limit
    from leakline.results import Results


def choose(
    target: Annotated[str, typer.Argument(help="A run directory, or a study whose results are in runs/NAME.")],
    at_most: Annotated[
        list[str],
        typer.Option(
            "--max",
            help='"NAME<=NUMBER": at most this, such as "client-inference.auc<=0.55" (by every rule of the attack) or '
            '"strongest.auc<=0.6" (of every attack).',
        ),
    ] = [],  # noqa: B006
    at_least: Annotated[
        list[str], typer.Option("--min", help='"NAME>=NUMBER": at least this, such as "accuracy>=0.85".')
    ] = [],  # noqa: B006
    private: Annotated[
        bool,
        typer.Option(
            "--private",
            help="Name one setting only, chosen by its utility under a promise that counts the choice: the best of a "
            'random number of runs. Limits may then be on epsilon alone ("epsilon<=8").',
        ),
    ] = False,
    runs: Annotated[float, typer.Option(min=1, max=1000, help="With --private: how many runs on average.")] = 8.0,
    as_json: JsonOption = False,
) -> None:
    """From finished cells, name the defences that keep the limits, or the nearest and what it misses.

    Limits are held against the cautious end of each 95 % interval. Exit code 4 if no cell keeps them all.
    """
    from leakline.decide.choose import choose as rank
    from leakline.decide.limits import read_limit

    limits = [read_limit(t, ("<=", "<")) for t in at_most] + [read_limit(t, (">=", ">")) for t in at_least]
    if private:
        _choose_privately(read_store(_root(target)), limits, runs, as_json)
        return
    if not limits:
        raise LeaklineError(
            "no limit was given", fix='for example --max "loss-threshold.auc<=0.55" --min "accuracy>=0.85"'
        )
    results = read_store(_root(target))
    if not results.settings:
        raise LeaklineError("no cell of this study is finished", results.name, "run it first")
    ranked = rank(results, limits)
    if as_json:
        out.print_json(json.dumps([_plain(c) for c in ranked], allow_nan=False))
    else:
        _advise(ranked, [str(limit) for limit in limits], len(results.missing))
    if not ranked[0].kept:
        raise typer.Exit(4)


def _choose_privately(results: Results, limits: Sequence[Limit], mean: float, as_json: bool) -> None:
    """Draw, write the draw down before anything is looked at, pick, and write down what was picked and its price."""
    from leakline.decide import private
    from leakline.randomness import SecretNoise
    from leakline.results.stored import CHOICES
    from leakline.study.files import is_there, read_json, write_json
    from leakline.text import clean

    path, noise = results.root / CHOICES, SecretNoise()
    known: dict[str, Any] = read_json(path) if is_there(path) else {"made": []}
    among = private.candidates(results, limits)
    asked = {"settings": [c.name for c in among], "mean": mean}
    waiting = known.get("waiting") or {**asked, "drawn": private.draw(among, mean, noise)}
    if {name: waiting[name] for name in asked} != asked:  # drawing until it suits has another law than is counted
        raise LeaklineError(
            f"a draw of {waiting['mean']:g} runs on average among {len(waiting['settings'])} settings waits for runs",
            CHOICES,
            f"ask for that one again (--runs {waiting['mean']:g}, the same limits) once they are there",
        )
    write_json(path, {**known, "waiting": waiting})
    choice = private.pick(
        among, private.runs_of(among, waiting["drawn"]), results.headline, mean, results.delta, noise
    )  # fmt: skip
    made = [*known["made"], {"run": choice.run, "words": choice.words, "epsilon": choice.epsilon}]
    write_json(path, {"made": made})
    if as_json:
        out.print_json(json.dumps(asdict(choice), allow_nan=False))
        return
    out.print(clean(f"Chosen: {choice.name}"))
    out.print(clean(f"  {choice.words}"))
    out.print(f"  {choice.measure} {choice.score:.3f}, with noise of standard deviation {choice.score_std:.3f} on it")
    if len(made) > 1:
        total = sum(float(line["epsilon"]) for line in made)
        out.print(
            f"This is private choice {len(made)} from these data: together they cost up to epsilon = {total:.3g} "
            f"at delta = {len(made) * results.delta:g} (basic composition)."
        )


def _advise(ranked: Sequence[Candidate], limits: Sequence[str], missing: int) -> None:
    from leakline.text import clean

    kept, rest = [c for c in ranked if c.kept], [c for c in ranked if not c.kept]
    out.print(f"Limits: {clean('; '.join(limits))}")
    out.print(
        "Each limit is held against the cautious end: high for at most, low for at least, of the wider of two 95 % "
        "intervals, over seeds and of the single runs.\n"
    )
    if kept:
        out.print(f"{len(kept)} of {len(ranked)} settings keep all limits, the most useful first:")
    else:
        out.print(f"None of the {len(ranked)} settings keeps all limits. The nearest first:")
    far = [c for c in rest if any(j.short == math.inf for j in c.judged)]
    for candidate in (kept or [c for c in rest if c not in far] or rest)[:10]:
        epsilon = candidate.figures["epsilon"].text
        out.print(clean(f"  {candidate.where}: {', '.join(_figures(candidate))}; formal epsilon: {epsilon}"))
        for text in candidate.missing:
            out.print(clean(f"    {text}"))
        if candidate.remark:
            out.print(clean(f"    mind: the model is {candidate.remark}"))
        for name in candidate.bare:
            out.print(clean(f"    {name} has no interval (one seed): its value alone was judged"))
    if rest and (kept or 0 < len(far) < len(rest)):
        out.print(
            "\nThe others:" if kept else "\nOut of reach, because what a limit asks for was not promised or measured:"
        )
        for candidate in (rest if kept else far)[:10]:
            out.print(clean(f"  {candidate.where}: {'; '.join(candidate.missing)}"))
    out.print("\nAn attack that failed proves nothing about a better one; only a formal epsilon does.")
    out.print(
        "Choosing by results on private data is a release of its own, which no epsilon above counts (--private does)."
    )
    if missing:
        out.print(f"{missing} things are missing from this study: only finished cells were looked at.")


def _figures(candidate: Candidate) -> list[str]:
    return [f"{j.figure.name} {j.figure.text}" for j in candidate.judged if j.figure is not None]


def _plain(candidate: Candidate) -> dict[str, Any]:
    return {
        "where": candidate.where, "defence": candidate.defence, "kept": candidate.kept,
        "useless": candidate.useless,
        "limits": [
            {
                "limit": str(j.limit), "kept": j.kept, "missing": j.missing,
                "judged": j.worst if j.worst is not None and math.isfinite(j.worst) else None,
            }
            for j in candidate.judged
        ],
    }  # fmt: skip


def _root(target: str) -> Path:
    given = Path(target)
    if given.is_dir():
        return given
    from leakline.study.spec import find

    find(target)
    return Path("runs") / load_study(target).name
