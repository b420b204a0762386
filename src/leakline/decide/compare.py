"""Two settings side by side: what was set differently, what came out differently, and whether that means anything."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leakline.decide.limits import ABOVE, EPSILON, Figure, figures_of
from leakline.errors import LeaklineError
from leakline.leakage.brief import brief
from leakline.results import Results, Setting
from leakline.results.table import Table
from leakline.text import clean

BEYOND, WITHIN, UNKNOWN, SAME = "beyond the intervals", "within the intervals", "no interval to judge by", "equal"
ONE_SIDE, EXACT, BOUNDS = "only one side was measured", "exact: a formal bound", "not known: lower bounds"
SHORT = {WITHIN: "unclear", UNKNOWN: "no interval", SAME: "equal", ONE_SIDE: "", BOUNDS: "not known"}
"""What stands in a narrow table where neither side is called better."""


@dataclass(frozen=True)
class Pair:
    """Two settings, what differs in how they were made, and their figures."""

    left: str
    right: str
    settings: tuple[tuple[str, str, str], ...]
    """(dotted key, left value, right value)"""
    rows: tuple[tuple[str, Figure | None, Figure | None], ...]
    where: str = ""
    aside: tuple[str, ...] = ()
    """Names of figures that `narrow` leaves out: other rules of the attacks, see `leakline.leakage.brief`."""

    def narrow(self) -> Table:
        """For a terminal of 80 columns: figures of one attack under its name, and which side is better."""
        body: list[tuple[str, str, str, str]] = []
        group = ""
        for name, a, b in self.rows:
            by, dot, measure = name.partition(".")
            if name in self.aside:
                continue
            if dot and by != group:
                body.append((by, "", "", ""))
            group = by if dot else ""
            side = SHORT.get(verdict(a, b), _direction(a, b))
            body.append((f"  {measure}" if dot else name, a.text if a else "–", b.text if b else "–", side))
        more = f" {len(self.aside)} more figures of these attacks are in --json." if self.aside else ""
        note = f"[95 % interval over seeds, or of the one run]. unclear: the intervals overlap.{more}"
        return Table(self._title, ("figure", self.left, self.right, "better"), tuple(body), note)

    @property
    def _title(self) -> str:
        return f"{self.where + ': ' if self.where else ''}{self.left} against {self.right}"

    def table(self) -> Table:
        """One row per figure."""
        body = []
        for name, a, b in self.rows:
            change = b.value - a.value if a is not None and b is not None else math.nan
            body.append((
                name, a.text if a else "–", b.text if b else "–",
                f"{change:+.3f}" if math.isfinite(change) else "–", verdict(a, b), _direction(a, b),
            ))  # fmt: skip
        note = (
            "[95 % interval over seeds, or of the one run]; beyond: the two intervals do not overlap, which is a "
            "cautious rule: intervals that overlap a little can still hide a real difference"
        )
        columns = ("figure", self.left, self.right, "difference", "the difference is", "better")
        return Table(self._title, columns, tuple(body), note)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""

        def plain(figure: Figure | None) -> dict[str, Any] | None:
            if figure is None:
                return None
            ends = {"value": figure.value, "low": figure.low, "high": figure.high}
            return {k: v if v is None or math.isfinite(v) else None for k, v in ends.items()} | {"seeds": figure.seeds}

        return {
            "where": self.where, "left": self.left, "right": self.right,
            "settings": [{"key": k, "left": a, "right": b} for k, a, b in self.settings],
            "figures": [
                {"name": n, "left": plain(a), "right": plain(b), "verdict": verdict(a, b)} for n, a, b in self.rows
            ],
        }  # fmt: skip


def verdict(a: Figure | None, b: Figure | None) -> str:
    """Whether two figures differ by more than their intervals; a formal epsilon has none and is simply equal or not."""
    if a is None or b is None:
        return ONE_SIDE
    if a.value == b.value and (a.low, a.high) == (b.low, b.high):
        return SAME
    if a.name == EPSILON:
        return EXACT
    if a.is_bound or b.is_bound:
        return BOUNDS
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return UNKNOWN
    return BEYOND if a.low > b.high or b.low > a.high else WITHIN


def _direction(a: Figure | None, b: Figure | None) -> str:
    if a is None or b is None or a.value == b.value or verdict(a, b) == WITHIN or a.is_bound:
        return ""
    right = b.value > a.value if a.better == "higher" else b.value < a.value
    return "right" if right else "left"


def pair(left: str, a: Setting, right: str, b: Setting, where: str = "") -> Pair:
    """Two settings compared."""
    mine, other = figures_of(a), figures_of(b)
    drawn = {leak.name for s in (a, b) for leak in s.points}
    names = [name for name in dict.fromkeys([*mine, *other]) if name not in drawn and not name.endswith(ABOVE)]
    leaks = [*a.leaks, *b.leaks]
    shown = {leak.name for one in brief(leaks, lambda leak: leak.estimate.mean, a.card.measure) for leak in one.shown}
    aside = tuple(dict.fromkeys(leak.name for leak in leaks if leak.name not in shown))
    rows = tuple((n, mine.get(n), other.get(n)) for n in names)
    return Pair(left, right, tuple(differences(a, b)), rows, where, aside)


def differences(a: Setting, b: Setting) -> list[tuple[str, str, str]]:
    """The settings that differ: first runs of both, the seed aside."""
    one, two = flat(a.cells[0].federation), flat(b.cells[0].federation)
    every = list(dict.fromkeys([*one, *two]))
    keys = [k for k in every if k != "seed" and one.get(k, "–") != two.get(k, "–")]
    # An empty list on one side says nothing beside the keys of what the other side has in it.
    keys = [k for k in keys if not any(other.startswith(f"{k}.") for other in every)]
    found = [(k, clean(one.get(k, "–")), clean(two.get(k, "–"))) for k in keys]
    seeds = [sorted(str(c.labels.get("seed")) for c in s.cells) for s in (a, b)]
    if seeds[0] != seeds[1]:
        found.append(("seeds", ", ".join(seeds[0]), ", ".join(seeds[1])))
    if a.cells[0].data != b.cells[0].data:
        found.append(("data (hash)", a.cells[0].data, b.cells[0].data))
    versions = [flat(s.cells[0].versions) for s in (a, b)]
    keys = [k for k in dict.fromkeys([*versions[0], *versions[1]]) if versions[0].get(k) != versions[1].get(k)]
    return found + [(f"version of {k}", clean(versions[0].get(k, "–")), clean(versions[1].get(k, "–"))) for k in keys]


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """A description as dotted keys; of the task only its name, its clients' names and its classes."""
    if isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value):
        value = {str(i): v for i, v in enumerate(value)}
    if not isinstance(value, Mapping):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if name == "task.clients" and isinstance(inner, Mapping):
            found[name] = ", ".join(str(client) for client in inner)
        elif name not in ("task.test", "task.validation"):
            found |= flat(inner, name)
    return found


def matching(a: Results, b: Results) -> list[tuple[Setting, Setting]]:
    """Settings of two stores with the same labels; if there are none and each has only one, those two."""
    there = {tuple(sorted(map(repr, s.labels.items()))): s for s in b.settings}
    keys = [(s, tuple(sorted(map(repr, s.labels.items())))) for s in a.settings]
    found = [(s, there[key]) for s, key in keys if key in there]
    if not found and len(a.settings) == len(b.settings) == 1:
        return [(a.settings[0], b.settings[0])]
    return found


def find_setting(results: Results, wanted: str) -> Setting:
    """The one setting whose labels match: a defence, several values, or ``strategy=fedavg,defence=none``."""
    words = [w for w in wanted.replace(",", " ").split() if w]

    def fits(setting: Setting) -> bool:
        labels = {str(k): str(v) for k, v in setting.labels.items()}
        return bool(words) and all(
            labels.get(w.partition("=")[0]) == w.partition("=")[2] if "=" in w else w in labels.values() for w in words
        )

    found = [s for s in results.settings if fits(s)]
    known = _names(results.settings)
    if not found:
        raise LeaklineError(f"no finished cell has the labels {clean(wanted)!r}", fix=f"there are: {known}")
    if len(found) > 1:
        raise LeaklineError(
            f"{clean(wanted)!r} fits {len(found)} settings: {_names(found)}", fix="add a label, such as strategy=fedavg"
        )
    return found[0]


def _names(settings: Sequence[Setting]) -> str:
    names = [" ".join(clean(v) for v in s.labels.values()) for s in settings]
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "") or "none"
