"""What a page can be filtered by: the labels of the study that have several values, defences, attacks."""

from __future__ import annotations

from dataclasses import dataclass

from leakline.results import Results
from leakline.results.table import sort_key
from leakline.text import scrub


@dataclass(frozen=True)
class Filter:
    """One row of choices; ``name`` is the column of tables that it looks at."""

    name: str
    values: tuple[str, ...]


def filters_of(results: Results) -> list[Filter]:
    """Filters in the order of the labels; one value is no choice."""
    found = {
        name: [_value(s.labels.get(name, "")) for s in results.settings]
        for name in (*(a for a in results.axes if a not in ("defence", "attack")), "defence")
    }
    found["attack"] = [_value(leak.by) for s in results.settings for leak in s.leaks]
    made = [Filter(name, tuple(dict.fromkeys(values))) for name, values in found.items()]
    return [one for one in made if len(one.values) > 1]


def _value(value: object) -> str:
    """As table cells carry it."""
    return scrub(sort_key(value))
