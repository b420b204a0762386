"""Patient by patient: everybody sorted by risk as a chart, and by site, class and trait as a table."""

from __future__ import annotations

from collections.abc import Iterator

from leakline.report.charts.chart import Chart, Series, where_of
from leakline.results import Results, Setting
from leakline.results.patients import Patient, Patients
from leakline.results.table import Table

MOST = 160
"""Points of a line: of more patients every so many is drawn, and the worst off all."""
FEWEST = 3
"""Groups of fewer patients are not ranked: they would be about single people."""


def exposure_map(results: Results) -> list[Chart]:
    """How often each patient is told apart, the worst off first, one line per defence; one chart per attack."""
    charts: dict[tuple[str, str], list[Series]] = {}
    about: dict[tuple[str, str], tuple[dict[str, str], Patients]] = {}
    for setting, found, each in _listed(results):
        order = sorted(each, key=lambda p: -p.right)
        every = max(1, len(order) // MOST)
        rows = [i for i in range(len(order)) if i < 20 or i % every == 0 or i == len(order) - 1]
        kept = [order[i] for i in rows]
        where = where_of(results, setting)
        key = (results.place(setting.labels), found.by)
        charts.setdefault(key, []).append(
            Series(
                setting.defence, results.defences.index(setting.defence),
                tuple(100 * (i + 1) / len(order) for i in rows), tuple(p.right for p in kept),
                tuple(p.low for p in kept), tuple(p.high for p in kept), where=(where,),
            )
        )  # fmt: skip
        about[key] = ({k: v for k, v in where.items() if k != "defence"} | {"attack": found.by}, found)
    return [
        Chart(
            f"Exposure map: {by}, {place}", f"percent of {_people(about[place, by][1])}, the worst off first",
            "share of federations told right", tuple(series), y_range=(0.0, 1.0), note=_note(about[place, by][1]),
            where=about[place, by][0],
        )
        for (place, by), series in charts.items()
    ]  # fmt: skip


def exposed(results: Results) -> Table:
    """By site, class and trait: how often patients are told right on average, how many are exposed, the worst."""
    rows = []
    for setting, found, each in _listed(results):
        place = (*(setting.labels.get(a, "") for a in results.axes), setting.defence, found.by)
        for kind, name, mine in _groups(each):
            mean = sum(p.right for p in mine) / len(mine)
            rows.append((*place, kind, name, len(mine), mean, sum(p.exposed for p in mine), max(p.right for p in mine)))
    columns = (*results.axes, "defence", "attack", "by", "group", "patients", "told right", "exposed", "worst")
    note = (
        "told right: mean share of federations in which it was said rightly whether a patient takes part; guessing has "
        "0.5. Exposed: told apart at 95 %, a level that holds for all patients at once. Groups of fewer than "
        f"{FEWEST} patients are left out; seeds are counted together"
    )
    return Table("Patients by site, class and trait", columns, tuple(rows), note)


def _listed(results: Results) -> Iterator[tuple[Setting, Patients, list[Patient]]]:
    """Every attack's patients under a setting, those of all seeds together."""
    for setting in results.settings:
        for by in dict.fromkeys(found.by for cell in setting.cells for found in cell.patients):
            lists = [found for cell in setting.cells for found in cell.patients if found.by == by]
            each = [p for found in lists for p in found.each]
            if each:
                yield setting, lists[0], each


def _groups(each: list[Patient]) -> Iterator[tuple[str, str, list[Patient]]]:
    yield "all", "all", each
    traits = sorted({name for p in each for name in p.traits})
    for kind in ("site", "class", *traits):
        groups: dict[str, list[Patient]] = {}
        for p in each:
            mine = {**p.traits, "site": p.client, "class": p.label}
            groups.setdefault(mine.get(kind, "unknown"), []).append(p)
        if len(groups) > 1:
            ranked = sorted(groups.items(), key=lambda item: -sum(p.right for p in item[1]) / len(item[1]))
            yield from ((kind, name, some) for name, some in ranked if len(some) >= FEWEST)


def _people(found: Patients) -> str:
    return "patients" if found.known else "records"


def _note(found: Patients) -> str:
    whose = "" if found.known else "nobody says whose records are: each counts as a patient. "
    return (
        f"{whose}line: in how many of {found.worlds} federations it was said rightly whether one takes part, guessing "
        "has 0.5; band: 95 % interval of each by itself. The first of many stand high by luck too: who is exposed at a "
        "level that holds for all at once is in the table of patients"
    )
