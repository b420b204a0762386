"""The menu of tables: each is a function of `Results` that gives a `Table`. Papers bring theirs (`report.papers`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from leakline.errors import LeaklineError
from leakline.report.page.words import VERDICTS, verdict_of
from leakline.report.papers import papers, tables_of
from leakline.report.tables.clients import clients
from leakline.report.tables.paired import paired
from leakline.report.tables.patients import exposed
from leakline.results import Results, Setting
from leakline.results.settings import groups_of, pooled, utility_of
from leakline.results.table import FORMS, Table, render
from leakline.text import scrub

__all__ = ["FORMS", "TABLES", "Table", "every_table", "render"]


def over_seeds(results: Results) -> str:
    """What a value stands for."""
    if results.seeds < 2:
        return "one seed"
    return "mean ± standard deviation [95 % t-interval] over seeds, cut to the measure's range"


def utility(results: Results) -> Table:
    """How useful the models are: strategies down, defences across, after the last round."""
    axes = [*results.axes]
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for cell in results.cells:
        rows.setdefault(tuple(cell.labels.get(a, "") for a in axes), {})
    for s in results.settings:
        rows[tuple(s.labels.get(a, "") for a in axes)][s.defence] = s.utility
    blind = {place: _blind(results, settings) for place, settings in _by_place(results).items()}
    body = tuple((*place, *(found.get(d) for d in results.defences), blind.get(place)) for place, found in rows.items())
    name = results.headline or "no utility measure"
    return Table(
        f"Utility after the last round: {name}",
        (*axes, *results.defences, BASELINE),
        body,
        f"{over_seeds(results)}; {results.better} is better; {BASELINE}: what the best answer gets that never looks at "
        "an input",
    )


BASELINE = "constant answer"


def _by_place(results: Results) -> dict[tuple[Any, ...], list[Setting]]:
    """Settings by all axes but the defence."""
    return groups_of(results.settings, lambda s: tuple(s.labels.get(a, "") for a in results.axes))


def _blind(results: Results, settings: Sequence[Setting], measure: str = "") -> float | None:
    """What a constant answer gets, of the headline or another measure, over the defences of one place."""
    described = results.measure(measure or results.headline)
    known = (pooled(s.cells, described) for s in settings)
    values = [r.chance for r in known if r is not None and r.chance is not None]
    return sum(values) / len(values) if values else None


def measures(results: Results) -> Table:
    """All utility measures after the last round, one row per strategy and defence."""
    finished = results.finished.cells
    names = list(dict.fromkeys(r.measure for cell in finished for r in cell.readings))
    labels = (*results.axes, "defence")
    body = tuple(
        (*_place(results, s), *(utility_of(s.cells, results.measure(n)) for n in names)) for s in results.settings
    )
    blind = tuple(
        (*place, f"({BASELINE})", *(_blind(results, settings, n) for n in names))
        for place, settings in _by_place(results).items()
    )
    note = f"{over_seeds(results)}; ({BASELINE}): what the best answer gets that never looks at an input"
    return Table("All utility measures after the last round", (*labels, *names), body + blind, note)


def cards(results: Results) -> Table:
    """One row per defence: what is promised, what was measured, what it costs."""
    units = list(dict.fromkeys(p.unit for s in results.settings for p in s.card.promises if p.epsilon is not None))
    columns = (
        *results.axes, "defence", "observer", *(f"epsilon per {unit}" for unit in units), "delta", "verdict",
        "measured", "worst attack", results.headline or "utility",
    )  # fmt: skip
    rows = []
    for s in results.settings:
        measured = "; ".join(bound.text for bound in s.measured) or "no audit"
        for p in s.card.promises or (None,):
            formal: tuple[Any, ...] = ("none (heuristic)", *(None for _ in units), None)
            if p is not None and p.epsilon is not None:
                formal = (p.observer, *(p.epsilon if p.unit == unit else None for unit in units), p.delta)
            rows.append((*_place(results, s), *formal, VERDICTS[verdict_of([s])], measured, _worst(s), s.utility))
    note = (
        "an epsilon that is not there is no promise, not zero; epsilons of different units are not comparable; "
        f"measured are lower bounds{', the smallest and largest over seeds' if results.seeds > 1 else ''}"
    )
    return Table("Privacy cards", columns, tuple(rows), note)


def attacks(results: Results) -> Table:
    """What every attack got from every setting."""
    columns = (*results.axes, "defence", "attack", "measure", "value", "lowest", "highest", "chance", "trials")
    rows = [
        (*_place(results, s), leak.by, leak.label, leak.estimate, leak.low, leak.high, leak.chance, leak.n)
        for s in results.settings for leak in s.leaks
    ]  # fmt: skip
    ends = "lowest and highest: ends of the single runs' own 95 % intervals; trials: in one run"
    note = f"value: {over_seeds(results)}; {ends}"
    return Table("What the attacks got", columns, tuple(rows), note)


def runs(results: Results) -> Table:
    """What was run: hash, status, rounds, seconds, versions, data."""
    names = [n for n in results.labels if n in (*results.axes, "defence", "seed")]
    rows = []
    for cell in results.cells:
        rows.append((
            *(cell.labels.get(n, "") for n in names), cell.key, cell.status, cell.rounds, round(cell.seconds, 1),
            cell.versions.get("leakline"), cell.versions.get("torch"), cell.federation.get("device"), cell.data,
        ))  # fmt: skip
    columns = (*names, "run", "status", "rounds", "seconds", "leakline", "torch", "device", "data")
    note = "run: hash of everything that decides the numbers; data: hash of the data's fingerprints"
    return Table("What was run", columns, tuple(rows), note)


def missing(results: Results) -> Table:
    """What the study asked for and the store does not hold."""
    names = [n for n in results.labels if n in (*results.axes, "defence", "seed")]
    rows = tuple((*(m.labels.get(n, "") for n in names), m.what, scrub(m.why), m.run) for m in results.missing)
    return Table("What is missing", (*names, "what", "why", "run"), rows)


TABLES: dict[str, Callable[[Results], Table]] = {
    "attacks": attacks,
    "cards": cards,
    "clients": clients,
    "measures": measures,
    "missing": missing,
    "paired": paired,
    "patients": exposed,
    "runs": runs,
    "utility": utility,
}
ENDINGS = {"csv": "csv", "latex": "tex", "markdown": "md", "parquet": "parquet", "text": "txt"}


def every_table() -> dict[str, Callable[[Results], Table]]:
    """The tables of every study, and those of the papers."""
    return TABLES | {name: make for paper in papers() for name, make in (paper.tables | paper.rebuilt).items()}


def save_all(results: Results, form: str, folder: Path) -> list[Path]:
    """Write every table that a store can fill into a folder, and say which."""
    if form not in ENDINGS:
        raise LeaklineError(f"there is no format {form!r}", fix=f"one of: {', '.join(ENDINGS)}")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, table in ({n: make(results) for n, make in TABLES.items()} | tables_of(results, rebuilt=True)).items():
        path = folder / f"{name.replace('/', '-')}.{ENDINGS[form]}"
        rendered = render(table, form)
        path.write_bytes(rendered if isinstance(rendered, bytes) else rendered.encode())
        paths.append(path)
    return paths


def _place(results: Results, setting: Setting) -> tuple[Any, ...]:
    return (*(setting.labels.get(a, "") for a in results.axes), setting.defence)


def _worst(setting: Setting) -> str:
    worst = setting.worst
    if worst is None:
        return "no attack"
    return f"{worst.name} {worst.estimate.mean:.3f} (chance {worst.chance:.2g})"
