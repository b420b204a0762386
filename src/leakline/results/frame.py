"""A study's numbers as pandas frames: tidy, one row per reading, and their summary over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from leakline.results.cell import FINISHED
from leakline.results.estimate import estimate

if TYPE_CHECKING:
    import pandas

    from leakline.results.results import Results

FIELDS = ("measure", "label", "value", "low", "high", "n", "by", "round", "client", "chance", "note")
_BESIDE = ("better", "run", "status")
_SUMMARY = ("mean", "sd", "low", "high", "seeds", "rounds_sd")
_NUMBERS = ("value", "low", "high", "n", "round", "chance")


def frame_of(results: Results) -> pandas.DataFrame:
    """Every reading of a study, one row each: the cell's labels, what was measured, its interval, and the run.

    Columns: scenario, strategy, defence, seed and the study's other labels; measure, label (the measure with its rule
    and rate, as it is typed), value, low, high, n, by ("utility" or the attack's name), round, client, chance, note,
    better, run, status (of the run); and what readings are about, a column for each key: about.rule, about.fpr ...
    """
    import pandas as pd

    keys = list(dict.fromkeys(key for r in results.every for key in r.about))
    columns = [*map(column_of, results.labels), *FIELDS, *_BESIDE, *(f"about.{key}" for key in keys)]
    rows: list[list[Any]] = []
    for cell in results.cells:
        labels = [cell.labels.get(name, "") for name in results.labels]
        for r in (*cell.readings, *cell.attacks):
            beside = (results.measure(r.measure).better, cell.key, cell.status)
            rows.append([*labels, *(getattr(r, name) for name in FIELDS), *beside, *map(r.about.get, keys)])
    frame = pd.DataFrame(rows, columns=pd.Index(columns))
    for name in _NUMBERS:
        frame[name] = pd.to_numeric(frame[name], errors="coerce").astype(float)
    return frame


def column_of(label: str) -> str:
    """A label's column: its own name, unless a reading or a summary has a column of that name."""
    return f"label.{label}" if label in (*FIELDS, *_BESIDE, *_SUMMARY, "std") else label


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
        pooled = estimate(part["mean"].tolist())
        if pooled is not None:
            deviation = float(part["std"].mean()) if last > 1 else math.nan
            labels = key if isinstance(key, tuple) else (key,)
            rows.append([*labels, pooled.mean, pooled.sd, pooled.low, pooled.high, pooled.seeds, deviation])
    return pd.DataFrame(rows, columns=pd.Index(columns))
