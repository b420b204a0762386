"""The menu of tables: each takes a store's directory and gives a `Table`. Studies add theirs to `TABLES`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from leakline.cards import number
from leakline.errors import LeaklineError
from leakline.papers.fedper.tables import TABLES as PAPER_003
from leakline.papers.gradient_inversion.tables import TABLES as PAPER_001
from leakline.papers.intermediaries.tables import TABLES as PAPER_004
from leakline.papers.ldp_audit.tables import TABLES as PAPER_002
from leakline.papers.metric_privacy.figures import TABLES as PAPER_000_FIGURES
from leakline.papers.metric_privacy.tables import TABLES as PAPER_000
from leakline.report.page.words import VERDICTS, verdict_of
from leakline.report.tables.clients import clients
from leakline.results.frames import Estimate, column_of, cut, label_names, summary
from leakline.results.pooled import Pooled, Setting, pool
from leakline.results.stored import read_study
from leakline.results.table import FORMS, Table, render
from leakline.text import scrub

__all__ = ["FORMS", "TABLES", "Table", "render"]

SEEDS = "mean ± standard deviation [95 % t-interval] over seeds, cut to the measure's range"


def utility(root: Path) -> Table:
    """How useful the models are: strategies down, defences across, after the last round."""
    return utility_of(pool(read_study(root)))


def utility_of(pooled: Pooled) -> Table:
    """`utility` of settings pooled already."""
    axes = [*pooled.axes]
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for cell in pooled.study.cells:
        rows.setdefault(tuple(cell.labels.get(a, "") for a in axes), {})
    for s in pooled.settings:
        rows[tuple(s.labels.get(a, "") for a in axes)][s.defence] = s.utility
    body = tuple((*place, *(found.get(d) for d in pooled.defences)) for place, found in rows.items())
    name = pooled.headline or "no utility measure"
    return Table(
        f"Utility after the last round: {name}", (*axes, *pooled.defences), body, f"{SEEDS}; {pooled.better} is better"
    )


def measures(root: Path) -> Table:
    """All utility measures after the last round, one row per strategy and defence."""
    return measures_of(pool(read_study(root)))


def measures_of(pooled: Pooled) -> Table:
    """`measures` of settings pooled already."""
    names = list(dict.fromkeys(line["measure"] for cell in pooled.study.finished for line in cell.readings))
    labels = [*pooled.axes, "defence"]
    columns = [column_of(label) for label in labels]
    found: dict[tuple[Any, ...], dict[str, Any]] = {_place(pooled, s): {} for s in pooled.settings}
    for name in names:
        for row in summary(pooled.frame, name, by=columns).itertuples(index=False, name=None):
            mean, sd, low, high, seeds = row[len(labels) : len(labels) + 5]
            one = Estimate(mean) if seeds == 1 else Estimate(mean, sd, low, high, int(seeds))
            found.setdefault(tuple(row[: len(labels)]), {})[name] = cut(one, pooled.study.measure(name))
    body = tuple((*place, *(values.get(n) for n in names)) for place, values in found.items())
    return Table("All utility measures after the last round", (*labels, *names), body, SEEDS)


def cards(root: Path) -> Table:
    """One row per defence: what is promised, what was measured, what it costs."""
    return cards_of(pool(read_study(root)))


def cards_of(pooled: Pooled) -> Table:
    """`cards` of settings pooled already."""
    columns = (
        *pooled.axes,
        "defence",
        "unit",
        "observer",
        "epsilon",
        "delta",
        "verdict",
        "measured",
        "worst attack",
        pooled.headline or "utility",
    )
    rows = []
    for s in pooled.settings:
        promises = s.card.promises or (None,)
        for p in promises:
            formal: tuple[Any, ...] = ("none", "none", "none (heuristic)", None)
            if p is not None and p.epsilon is not None:
                formal = (p.unit, p.observer, p.epsilon, p.delta)
            rows.append((*_place(pooled, s), *formal, VERDICTS[verdict_of([s])], _bounds(s), _worst(s), s.utility))
    note = "epsilon without a promise is none, not zero; measured are lower bounds, the smallest and largest over seeds"
    return Table("Privacy cards", columns, tuple(rows), note)


def attacks(root: Path) -> Table:
    """What every attack got from every setting."""
    return attacks_of(pool(read_study(root)))


def attacks_of(pooled: Pooled) -> Table:
    """`attacks` of settings pooled already."""
    columns = (*pooled.axes, "defence", "attack", "measure", "value", "lowest", "highest", "chance", "trials")
    rows = [
        (*_place(pooled, s), leak.by, leak.label, leak.estimate, leak.low, leak.high, leak.chance, leak.n)
        for s in pooled.settings for leak in s.leaks
    ]  # fmt: skip
    note = f"value: {SEEDS}; lowest and highest: ends of the single runs' own 95 % intervals; trials: in one run"
    return Table("What the attacks got", columns, tuple(rows), note)


def runs(root: Path) -> Table:
    """What was run: hash, status, rounds, seconds, versions, data."""
    return runs_of(pool(read_study(root)))


def runs_of(pooled: Pooled) -> Table:
    """`runs` of settings pooled already."""
    names = [n for n in label_names(pooled.study) if n in (*pooled.axes, "defence", "seed")]
    rows = []
    for cell in pooled.study.cells:
        versions = cell.about.get("versions", {})
        known = versions if isinstance(versions, dict) else {}
        rows.append((
            *(cell.labels.get(n, "") for n in names), cell.key, cell.status, cell.rounds, round(cell.seconds, 1),
            known.get("leakline"), known.get("torch"), cell.federation.get("device"), cell.data,
        ))  # fmt: skip
    columns = (*names, "run", "status", "rounds", "seconds", "leakline", "torch", "device", "data")
    return Table(
        "What was run",
        columns,
        tuple(rows),
        "run: hash of everything that decides the numbers; data: hash of the data's fingerprints",
    )


def missing(root: Path) -> Table:
    """What the study asked for and the store does not hold."""
    return missing_table_of(pool(read_study(root)))


def missing_table_of(pooled: Pooled) -> Table:
    """`missing` of settings pooled already."""
    names = [n for n in label_names(pooled.study) if n in (*pooled.axes, "defence", "seed")]
    rows = tuple((*(m.labels.get(n, "") for n in names), m.what, scrub(m.why), m.run) for m in pooled.missing)
    return Table("What is missing", (*names, "what", "why", "run"), rows)


TABLES: dict[str, Callable[[Path], Table]] = {
    "attacks": attacks,
    "cards": cards,
    "clients": clients,
    "measures": measures,
    "missing": missing,
    "runs": runs,
    "utility": utility,
    **PAPER_000,
    **PAPER_000_FIGURES,
    **PAPER_001,
    **PAPER_002,
    **PAPER_003,
    **PAPER_004,
}


ENDINGS = {"csv": "csv", "latex": "tex", "markdown": "md", "parquet": "parquet", "text": "txt"}


def save_all(root: Path, form: str, folder: Path) -> list[Path]:
    """Write every table that a store can fill into a folder, and say which."""
    if form not in ENDINGS:
        raise LeaklineError(f"there is no format {form!r}", fix=f"one of: {', '.join(ENDINGS)}")
    study = read_study(root).name
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for name, table in {**{n: TABLES[n](root) for n in TABLES if "/" not in n}, **paper_tables(root, study)}.items():
        path = folder / f"{name.replace('/', '-')}.{ENDINGS[form]}"
        rendered = render(table, form)
        path.write_bytes(rendered if isinstance(rendered, bytes) else rendered.encode())
        found.append(path)
    return found


STUDIES = {
    "client-inference": "metric-privacy",
    "fedper": "fedper",
    "fedper-split": "fedper",
    "gradient-inversion": "gradient-inversion",
    "intermediaries-classification": "intermediaries",
    "intermediaries-segmentation": "intermediaries",
    "ldp-audit": "ldp-audit",
    "metric-privacy": "metric-privacy",
}
"""Built-in studies and the prefix of their paper's tables."""


def paper_tables(root: Path, study: str) -> dict[str, Table]:
    """The paper's tables of a built-in study that have anything to show; a copy under another name has none."""
    prefix = STUDIES.get(study)
    found = {}
    for name in TABLES if prefix else ():
        if name.startswith(f"{prefix}/"):
            try:
                table = TABLES[name](root)
            except LeaklineError:
                continue
            if any(cell not in (None, "", "–") for row in table.rows for cell in row[1:]):
                found[name] = table
    return found


def _place(pooled: Pooled, setting: Setting) -> tuple[Any, ...]:
    return (*(setting.labels.get(a, "") for a in pooled.axes), setting.defence)


def _bounds(setting: Setting) -> str:
    texts = []
    for bound in setting.measured:
        low, high = number(bound.low), number(bound.high)
        span = low if low == high else f"{low} to {high}"
        texts.append(f"{bound.label} >= {span} ({bound.by}, {bound.n or '?'} trials)")
    return "; ".join(texts) or "no audit"


def _worst(setting: Setting) -> str:
    worst = setting.worst
    if worst is None:
        return "no attack"
    return f"{worst.name} {worst.estimate.mean:.3f} (chance {worst.chance:.2g})"
