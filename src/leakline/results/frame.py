"""A study's numbers as a pandas frame: tidy, one row per reading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

    from leakline.results.results import Results

FIELDS = ("measure", "label", "value", "low", "high", "n", "by", "round", "client", "chance", "note")
_BESIDE = ("better", "run", "status")
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
    """A label's column: its own name, unless a reading has a column of that name."""
    return f"label.{label}" if label in (*FIELDS, *_BESIDE) else label
