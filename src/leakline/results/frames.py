"""A study's numbers as pandas frames: tidy, one row per reading, and their summary over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakline.measures import Measure
from leakline.readings import label_of
from leakline.results.stored import FINISHED, NOT_RUN, UNFINISHED, StoredStudy, read_study

if TYPE_CHECKING:
    import pandas

LABELS = ("scenario", "strategy", "defence", "seed")
READING = (
    "measure", "label", "value", "low", "high", "n", "by", "round", "client", "chance", "better", "note", "run",
    "status",
)  # fmt: skip
_SUMMARY = ("mean", "sd", "low", "high", "seeds", "rounds_sd")
_NUMBERS = ("value", "low", "high", "n", "round", "chance")


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its standard deviation and 95 % t-interval; with one seed, only the mean."""

    mean: float
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    seeds: int = 1


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean, standard deviation (n - 1) and 95 % t-interval of independent values; None without values."""
    kept = [float(v) for v in values if not math.isnan(v)]
    if not kept:
        return None
    n, mean = len(kept), sum(kept) / len(kept)
    if n == 1:
        return Estimate(mean)
    from scipy.special import stdtrit

    sd = math.sqrt(sum((v - mean) ** 2 for v in kept) / (n - 1)) if math.isfinite(mean) else math.nan
    half = float(stdtrit(n - 1, 0.975)) * sd / math.sqrt(n)
    return Estimate(mean, sd, mean - half, mean + half, n)


def cut(found: Estimate, measure: Measure) -> Estimate:
    """The estimate within the measure's range: a t-interval of few seeds may leave it, the truth cannot."""
    if found.low is None or found.high is None:
        return found
    return replace(found, low=measure.cut(found.low), high=measure.cut(found.high))


def pooled_estimate(values: Sequence[float], measure: Measure) -> Estimate | None:
    """`estimate` of a measure's values, cut to its range."""
    found = estimate(values)
    return None if found is None else cut(found, measure)


def results(root: Path) -> pandas.DataFrame:
    """Every reading of a study, one row each: the cell's labels, what was measured, its interval, and the run.

    Columns: scenario, strategy, defence, seed and the study's other labels; measure, label (the measure with its rule
    and rate, as it is typed), value, low, high, n, by ("utility" or the attack's name), round, client, chance, better,
    note, run, status (of the run); and what readings are about, a column for each key: about.rule, about.fpr ...
    """
    return frame_of(read_study(root))


def frame_of(study: StoredStudy) -> pandas.DataFrame:
    """`results` of a store that has been read already."""
    import pandas as pd

    names = label_names(study)
    columns = [column_of(name) for name in names]
    lines = [line for cell in study.cells for line in (*cell.readings, *cell.attacks)]
    keys = list(dict.fromkeys(key for line in lines for key in line.get("about", {})))
    rows: list[list[Any]] = []
    for cell in study.cells:
        labels = [cell.labels.get(name, "") for name in names]
        for line in (*cell.readings, *cell.attacks):
            about = line.get("about", {})
            more = {"label": label_of(line["measure"], about), "better": study.measure(line["measure"]).better}
            known = {"by": "utility", "note": "", **line, **more, "run": cell.key, "status": cell.status}
            rows.append([*labels, *(known.get(c) for c in READING), *(about.get(key) for key in keys)])
    frame = pd.DataFrame(rows, columns=pd.Index([*columns, *READING, *(f"about.{key}" for key in keys)]))
    for name in _NUMBERS:
        frame[name] = pd.to_numeric(frame[name], errors="coerce").astype(float)
    return frame


def label_names(study: StoredStudy) -> list[str]:
    """The labels of the grid in order: scenario first, then sweeps, strategy, defence; the seed last."""
    found = dict.fromkeys(name for cell in study.cells for name in cell.labels)
    swept = [name for name in found if name not in LABELS]
    return ["scenario", *swept, "strategy", "defence", "seed"]


def column_of(label: str) -> str:
    """A label's column: its own name, unless a reading or a summary has a column of that name."""
    return f"label.{label}" if label in (*READING, *_SUMMARY, "std") else label


def qualified(by: str, label: str) -> str:
    """A figure's full name: "accuracy" for utility, "loss-threshold.tpr at fpr=0.01" for an attack's."""
    return label if by == "utility" else f"{by}.{label}"


def summary(
    frame: pandas.DataFrame, measure: str, by: Sequence[str] = ("strategy", "defence"), last: int = 1
) -> pandas.DataFrame:
    """A measure per group of labels: mean, sd, 95 % t-interval (low, high) over seeds, and how many seeds.

    ``measure`` is a utility measure ("accuracy") or an attack's ("loss-threshold.auc"). ``last=5`` takes the mean of
    the last five rounds of each run first (as paper 000's Table 4); ``rounds_sd`` is then the standard deviation
    over those rounds, averaged over seeds. Rows about single clients are averaged, unless the whole federation was
    measured too. Labels that are not in ``by`` are averaged within a seed. Only finished runs count.
    """
    import pandas as pd

    if last < 1:
        raise ValueError(f"last must be at least 1, not {last!r}")
    groups = list(by)
    columns = [*groups, *_SUMMARY]
    named = frame["label"].where(frame["by"] == "utility", frame["by"] + "." + frame["label"])
    kept = frame[(named == measure) & (frame["status"] == FINISHED) & frame["value"].notna()]
    if kept.empty:
        return pd.DataFrame(columns=pd.Index(columns))
    whole = kept[kept["client"].isna()]
    kept = (kept if whole.empty else whole).assign(round=lambda f: f["round"].fillna(-1))
    ends = kept.groupby(["run", "seed"], dropna=False)["round"].transform("max")
    kept = kept[kept["round"] > ends - last]
    rounds = kept.groupby([*groups, "seed", "round"], dropna=False, sort=False)["value"].mean().reset_index()
    seeds = rounds.groupby([*groups, "seed"], dropna=False, sort=False)["value"].agg(["mean", "std"]).reset_index()
    rows = []
    parts = seeds.groupby(groups, dropna=False, sort=False) if groups else [((), seeds)]
    for key, part in parts:
        found = estimate(part["mean"].tolist())
        if found is not None:
            deviation = float(part["std"].mean()) if last > 1 else math.nan
            labels = key if isinstance(key, tuple) else (key,)
            rows.append([*labels, found.mean, found.sd, found.low, found.high, found.seeds, deviation])
    return pd.DataFrame(rows, columns=pd.Index(columns))


def headline(study: StoredStudy) -> str:
    """The utility measure to show when there is room for one; "" if nothing was measured."""
    for cell in study.finished:
        if cell.card is not None and cell.card.utility:
            return cell.card.utility[0].measure
    found = dict.fromkeys(line["measure"] for cell in study.cells for line in cell.readings)
    return next((m for m in ("accuracy", "dice", *found) if m in found), "")


@dataclass(frozen=True)
class Missing:
    """Something the study asked for that the store does not hold."""

    labels: dict[str, Any]
    what: str
    why: str = ""
    run: str | None = None


def missing(root: Path) -> list[Missing]:
    """What was asked for and is not there: cells that failed or never ended, attacks that did not meet one."""
    return missing_of(read_study(root))


def missing_of(study: StoredStudy) -> list[Missing]:
    """`missing` of a store that has been read already."""
    attacks = dict.fromkeys(str(line.get("by", "")) for cell in study.cells for line in cell.attacks)
    found = []
    for cell in study.cells:
        labels = dict(cell.labels)
        if cell.status != FINISHED:
            what = {NOT_RUN: "not run", UNFINISHED: "unfinished"}.get(cell.status, cell.status)
            done = f" after {cell.rounds} of {cell.wanted or '?'} rounds" if cell.rounds else ""
            again = "the same command goes on where it stopped" if cell.status in (NOT_RUN, UNFINISHED) else ""
            found.append(Missing(labels, what + done, cell.error or again, cell.key))
            continue
        if cell.error:
            found.append(Missing(labels, "trained, but an attack failed", cell.error, cell.key))
        met = {str(line.get("by", "")) for line in cell.attacks}
        if not cell.error:
            found += [
                Missing(labels, f"no reading of {a}", "it has not met this run yet", cell.key)
                for a in (attacks if cell.asked is None else cell.asked)
                if a not in met
            ]
        if not cell.readings:
            found.append(Missing(labels, "no utility readings", "", cell.key))
    return found
